//! Costs of an append to the log: 1 KiB entries, 1, 8 and 64 threads, synced and not; and by 1 and
//! 64 tasks that await (`synced/await`).
//!
//! Each thread appends to a group of its own and waits for each append before the next, so the
//! time per append is that of all threads together: its inverse is the throughput. Behind each
//! case stands how many syncs there were for an append.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use flotilla_raftlog::{Config, Durability, Entry, LogBatch, LogEngine};
use flotilla_vfs::os::OsFs;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

const ENTRY_BYTES: usize = 1024;
/// The log is compacted and purged after so many appends of a thread, outside the measured time.
const KEPT_COUNT: u64 = 1 << 16;

fn log_append(criterion: &mut Criterion) {
    let mut cases = criterion.benchmark_group("log_append");
    cases.throughput(Throughput::Elements(1));
    for durability in [Durability::Synced, Durability::Buffered] {
        for thread_count in [1, 8, 64] {
            let dir = tempfile::tempdir().expect("a temporary directory");
            let (log, _) =
                LogEngine::open_with(Arc::new(OsFs::new()), dir.path(), Config::default())
                    .expect("a new log opens");
            let mut bench = Bench { log, next: vec![1; thread_count], durability };
            let name = format!("{durability:?}/{thread_count}").to_lowercase();
            cases.bench_function(&name, |b| b.iter_custom(|count| bench.append(count)));
            if durability == Durability::Synced && thread_count != 8 {
                let runtime = Runtime::new().expect("a runtime");
                let name = format!("synced/await/{thread_count}");
                cases.bench_function(&name, |b| {
                    b.iter_custom(|count| bench.append_by_tasks(&runtime, count));
                });
            }
            let stats = bench.log.stats();
            let per_append = stats.syncs as f64 / stats.batches.max(1) as f64;
            println!(
                "log_append/{name}: {per_append:.4} syncs an append, {} appends",
                stats.batches
            );
        }
    }
    cases.finish();
}

/// A log, and where each thread is in its group.
struct Bench {
    log: LogEngine,
    next: Vec<u64>,
    durability: Durability,
}

impl Bench {
    /// Appends `count` entries, each thread its share.
    fn append(&mut self, count: u64) -> Duration {
        let (log, durability) = (&self.log, self.durability);
        let thread_count = self.next.len() as u64;
        let begin = Instant::now();
        std::thread::scope(|scope| {
            for (group, next) in (0..).zip(&mut self.next) {
                let share = count / thread_count + u64::from(group < count % thread_count);
                scope.spawn(move || {
                    for _ in 0..share {
                        append_one(log, group, *next, durability);
                        *next += 1;
                    }
                });
            }
        });
        let elapsed = begin.elapsed();
        self.tidy();
        elapsed
    }

    /// Appends `count` entries, each task its share.
    fn append_by_tasks(&mut self, runtime: &Runtime, count: u64) -> Duration {
        let task_count = self.next.len() as u64;
        let begin = Instant::now();
        let tasks = (0..).zip(&self.next).map(|(group, next)| {
            let (log, durability) = (self.log.clone(), self.durability);
            let share = count / task_count + u64::from(group < count % task_count);
            let indexes = *next..next + share;
            runtime.spawn(async move {
                for index in indexes.clone() {
                    log.write(entry(group, index), durability).await.expect("appended");
                }
                indexes.end
            })
        });
        let tasks: Vec<_> = tasks.collect();
        let ends = tasks.into_iter().map(|task| runtime.block_on(task).expect("it ends"));
        self.next = ends.collect();
        let elapsed = begin.elapsed();
        self.tidy();
        elapsed
    }

    fn tidy(&self) {
        let is_long = |(group, next): (u64, &u64)| {
            self.log.group(group).is_some_and(|g| next - g.first_index() > KEPT_COUNT)
        };
        if !(0..).zip(&self.next).any(is_long) {
            return;
        }
        let mut batch = LogBatch::new();
        for (group, next) in (0..).zip(&self.next) {
            batch.compact_to(group, *next, 1);
        }
        self.log.write(batch, Durability::Buffered).wait().expect("compacted");
        self.log.purge_expired_files().expect("purged");
    }
}

fn append_one(log: &LogEngine, group: u64, index: u64, durability: Durability) {
    log.write(entry(group, index), durability).wait().expect("appended");
}

fn entry(group: u64, index: u64) -> LogBatch {
    // Made anew each time, as an entry that comes over the network is.
    let data = vec![index as u8; ENTRY_BYTES].into();
    let mut batch = LogBatch::new();
    batch.append(group, &[Entry { index, term: 1, kind: 0, data }]);
    batch
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(3))
        .sample_size(10);
    targets = log_append
}
criterion_main!(benches);
