//! Costs of allocating and releasing pages, by how many are free.
//!
//! `recent` allocates 1 to 8 pages and releases some that were allocated a moment ago; `anywhere`
//! releases a span anywhere in the file and allocates as many pages, as each page does that a
//! transaction replaces. The array is the baseline, a sorted list of free pages. With `--table` it
//! prints one table: nanoseconds for an allocation and a release, the median of five rounds.

mod array;
mod loads;

use std::time::Instant;

use criterion::{BenchmarkId, Criterion};
use loads::{File, Layout, Load, Pages};

const COUNTS: [(u64, &str); 4] =
    [(1_000, "1 k"), (100_000, "100 k"), (1_000_000, "1 M"), (10_000_000, "10 M")];

/// How the free pages lie, and what is done.
const CASES: [(&str, Layout, bool); 4] = [
    ("runs, recent", Layout::Runs, false),
    ("runs, anywhere", Layout::Runs, true),
    ("scattered, recent", Layout::Scattered, false),
    ("scattered, anywhere", Layout::Scattered, true),
];

/// The array is not measured beyond this: filling it alone takes too long.
const ARRAY_PAGES_MAX: u64 = 1_000_000;

fn main() {
    if std::env::args().any(|arg| arg == "--table") {
        return table();
    }
    let mut criterion = Criterion::default().configure_from_args();
    benches(&mut criterion);
    criterion.final_summary();
}

fn step<P: Pages>(load: &mut Load<P>, anywhere: bool) {
    if anywhere { load.anywhere() } else { load.recent() }
}

fn benches(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("page_freelist");
    for (name, layout, anywhere) in CASES {
        for (free, label) in [COUNTS[0], COUNTS[2]] {
            let mut load = File::new(layout, free).segregated();
            group.bench_function(BenchmarkId::new(name, label), |bencher| {
                bencher.iter(|| step(&mut load, anywhere));
            });
        }
    }
    group.sample_size(10);
    let mut load = File::new(Layout::Runs, COUNTS[1].0).array();
    group.bench_function(BenchmarkId::new("array, runs, recent", COUNTS[1].1), |bencher| {
        bencher.iter(|| load.recent());
    });
    group.finish();
}

/// Nanoseconds a step: the median of five rounds.
fn measure<P: Pages>(load: &mut Load<P>, anywhere: bool, steps: u32) -> f64 {
    for _ in 0..steps.min(2_000_000) {
        step(load, anywhere);
    }
    let mut rounds: Vec<f64> = (0..5)
        .map(|_| {
            let begin = Instant::now();
            for _ in 0..steps {
                step(load, anywhere);
            }
            begin.elapsed().as_nanos() as f64 / f64::from(steps)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[2]
}

fn table() {
    print!("| ns for an allocation and a release |");
    for (_, label) in COUNTS {
        print!(" {label} free |");
    }
    println!(" 10 M / 1 k | array, 1 M | array / ours |\n|---|---|---|---|---|---|---|---|");
    for (name, layout, anywhere) in CASES {
        print!("| {name} |");
        let mut ours = Vec::new();
        for (free, _) in COUNTS {
            let mut load = File::new(layout, free).segregated();
            ours.push(measure(&mut load, anywhere, 1_000_000));
            print!(" {:.0} |", ours[ours.len() - 1]);
        }
        let array = measure(&mut File::new(layout, ARRAY_PAGES_MAX).array(), anywhere, 300);
        println!(" {:.2} | {array:.0} | {:.0} |", ours[3] / ours[0], array / ours[2]);
    }
}
