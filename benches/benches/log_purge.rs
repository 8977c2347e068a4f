//! Effect of a purge that rewrites all the time on concurrent writers: 4 KiB entries, 8 threads,
//! synced and not, with and without the purge.
//!
//! Old segments are full of what idle groups need, and the purge is told to move whatever that
//! costs, so that it goes round and round and never rests. Phases with it and without it alternate;
//! what is shown is the median of each figure.
//!
//! `cargo bench --bench log_purge`, and `-- SECONDS ROUNDS` behind it for other than 3 and 5. With
//! `--test` the phases are so short that they show only that it works.

use flotilla_raftlog::{Config, Durability, Entry, LogBatch, LogEngine};
use flotilla_vfs::os::OsFs;
use std::sync::Arc;
use std::time::{Duration, Instant};

const ENTRY_BYTES: usize = 4096;
const THREAD_COUNT: u64 = 8;
/// Groups that wrote once and are idle since, and what they have.
const IDLE_GROUPS: u64 = 1000;
const IDLE_ENTRIES: u64 = 64;
/// A writer compacts its group after so many appends.
const KEPT_COUNT: u64 = 1 << 10;

fn main() {
    let is_test = std::env::args().any(|argument| argument == "--test");
    let numbers: Vec<u64> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let (phase, rounds) = match numbers[..] {
        _ if is_test => (Duration::from_millis(100), 1),
        [seconds, rounds] => (Duration::from_secs(seconds), rounds),
        _ => (Duration::from_secs(3), 5),
    };
    println!(
        "           purge  appends/s  p50 us  p99 us  p99.9 us  max us  moved MiB/s  purged MiB/s"
    );
    for durability in [Durability::Synced, Durability::Buffered] {
        let mut bench = Bench::new(durability);
        bench.phase(false, phase.min(Duration::from_secs(1)));
        let (mut quiet, mut purging) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            quiet.push(bench.phase(false, phase));
            purging.push(bench.phase(true, phase));
        }
        let (quiet, purging) = (median(&quiet), median(&purging));
        let name = format!("{durability:?}").to_lowercase();
        show(&name, "no", &quiet);
        show(&name, "yes", &purging);
        let ratio = purging[P999] / quiet[P999];
        println!("{name:9}  p99.9 with purge is {ratio:.2} of that without");
    }
}

/// Appends a second; latencies in microseconds: half, 99 %, 99.9 %, the worst; MiB moved and purged
/// a second.
type Figures = [f64; 7];
const P999: usize = 3;

struct Bench {
    log: LogEngine,
    durability: Durability,
    next: Vec<u64>,
    _maintenance: flotilla_raftlog::LogMaintenance,
    _dir: tempfile::TempDir,
}

impl Bench {
    /// A log with much that is needed in old segments.
    fn new(durability: Durability) -> Bench {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let config = Config::default()
            .purge_above_bytes(0)
            .move_live_ratio_max(1.0)
            .compress_above_bytes(u64::MAX);
        let (log, _) = LogEngine::open_with(Arc::new(OsFs::new()), dir.path(), config)
            .expect("a new log opens");
        let maintenance = log.maintain_in_background().expect("a thread");
        for index in 1..=IDLE_ENTRIES {
            for group in 0..IDLE_GROUPS {
                append(&log, 1000 + group, index, Durability::Buffered);
            }
        }
        log.sync().wait().expect("synced");
        let next = vec![1; THREAD_COUNT as usize];
        Bench { log, durability, next, _maintenance: maintenance, _dir: dir }
    }

    fn phase(&mut self, purges: bool, time: Duration) -> Figures {
        let (log, durability) = (&self.log, self.durability);
        let before = log.stats().purge;
        let begin = Instant::now();
        let end = begin + time;
        let mut latencies = Vec::new();
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..)
                .zip(&mut self.next)
                .map(|(group, next)| scope.spawn(move || write(log, group, next, durability, end)))
                .collect();
            if purges {
                scope.spawn(|| {
                    while Instant::now() < end {
                        log.purge_expired_files().expect("purged");
                    }
                });
            }
            for writer in writers {
                latencies.extend(writer.join().expect("it wrote"));
            }
        });
        let after = log.stats().purge;
        let seconds = begin.elapsed().as_secs_f64();
        if !purges {
            // Records that have died meanwhile are no work of the next phase.
            log.purge_expired_files().expect("purged");
        }
        latencies.sort_unstable();
        let at = |part: f64| latencies[(part * (latencies.len() - 1) as f64) as usize] as f64 / 1e3;
        let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64 / seconds;
        [
            latencies.len() as f64 / seconds,
            at(0.5),
            at(0.99),
            at(0.999),
            at(1.0),
            mib(after.rewritten_bytes - before.rewritten_bytes),
            mib(after.bytes - before.bytes),
        ]
    }
}

/// Appends until it is over, once at least, and returns how long each append took, in nanoseconds.
fn write(
    log: &LogEngine,
    group: u64,
    next: &mut u64,
    durability: Durability,
    end: Instant,
) -> Vec<u64> {
    let mut latencies = Vec::new();
    loop {
        let begin = Instant::now();
        append(log, group, *next, durability);
        latencies.push(begin.elapsed().as_nanos() as u64);
        *next += 1;
        if next.is_multiple_of(KEPT_COUNT) {
            let mut batch = LogBatch::new();
            batch.compact_to(group, *next, 1);
            log.write(batch, Durability::Buffered).wait().expect("compacted");
        }
        if Instant::now() >= end {
            return latencies;
        }
    }
}

fn append(log: &LogEngine, group: u64, index: u64, durability: Durability) {
    let data = vec![index as u8; ENTRY_BYTES].into();
    let mut batch = LogBatch::new();
    batch.append(group, &[Entry { index, term: 1, kind: 0, data }]);
    log.write(batch, durability).wait().expect("appended");
}

/// The median of each figure.
fn median(phases: &[Figures]) -> Figures {
    std::array::from_fn(|at| {
        let mut figures: Vec<f64> = phases.iter().map(|phase| phase[at]).collect();
        figures.sort_by(f64::total_cmp);
        figures[figures.len() / 2]
    })
}

fn show(name: &str, purge: &str, figures: &Figures) {
    let [rate, p50, p99, p999, max, moved, purged] = figures;
    println!(
        "{name:9}  {purge:>5}  {rate:9.0}  {p50:6.0}  {p99:6.0}  {p999:8.0}  {max:6.0}  {moved:11.0}  {purged:12.0}"
    );
}
