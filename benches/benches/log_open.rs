//! Costs of opening a log that was closed, and memory of its index: a million appends of one
//! entry, over 1, 128 and 10,000 groups.
//!
//! The entries are short, for opening does not read them: it decodes and merges what the segments'
//! footers say. Behind the times stand, by entry, the memory of the index before and after a start,
//! and the bytes of the files.

use criterion::{BenchmarkId, Criterion, Throughput};
use flotilla_raftlog::{Config, Durability, EntryRef, LogBatch, LogEngine};
use flotilla_vfs::os::OsFs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const ENTRIES: u64 = 1_000_000;
/// Enough to see that it works.
const ENTRIES_OF_TEST: u64 = 20_000;
const ENTRY_BYTES: usize = 64;

fn open(dir: &Path) -> LogEngine {
    LogEngine::open_with(Arc::new(OsFs::new()), dir, Config::default()).expect("it opens").0
}

/// Writes a log, each entry to a group drawn at random, and closes it. Returns the memory of its
/// index and the bytes of its files.
fn write(dir: &Path, group_count: u64, entries: u64) -> (u64, u64) {
    let log = open(dir);
    let mut rng = fastrand::Rng::with_seed(group_count);
    let mut next = vec![1; group_count as usize];
    for _ in 0..entries {
        let group = rng.u64(..group_count);
        let index = next[group as usize];
        next[group as usize] += 1;
        let mut batch = LogBatch::new();
        // Ids as a cluster gives them out: in steps.
        batch
            .append(4 + group * 4, [EntryRef { index, term: 7, kind: 0, data: &[7; ENTRY_BYTES] }]);
        log.write(batch, Durability::Buffered).wait().expect("written");
    }
    log.close().expect("closed");
    let stats = log.stats();
    (stats.index_bytes, stats.segment_bytes)
}

fn log_open(criterion: &mut Criterion, group_count: u64, entries: u64) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (written_bytes, file_bytes) = write(dir.path(), group_count, entries);
    let mut cases = criterion.benchmark_group("log_open");
    cases.throughput(Throughput::Elements(entries));
    let id = BenchmarkId::from_parameter(format!("{group_count}_groups"));
    // A log can be opened again only when it is dropped, which is no part of it.
    cases.bench_function(id, |b| {
        b.iter_custom(|count| {
            let open_once = || {
                let begin = Instant::now();
                let log = open(dir.path());
                let took = begin.elapsed();
                drop(log);
                took
            };
            (0..count).map(|_| open_once()).sum()
        });
    });
    cases.finish();

    let by_entry = |bytes: u64| bytes as f64 / entries as f64;
    println!(
        "log_open/{group_count}_groups: index {:.2} B an entry, {:.2} after a start; files {:.0} B",
        by_entry(written_bytes),
        by_entry(open(dir.path()).stats().index_bytes),
        by_entry(file_bytes),
    );
}

fn main() {
    let is_test = std::env::args().any(|argument| argument == "--test");
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .sample_size(10)
        .configure_from_args();
    for group_count in [1, 128, 10_000] {
        log_open(&mut criterion, group_count, if is_test { ENTRIES_OF_TEST } else { ENTRIES });
    }
    criterion.final_summary();
}
