//! Threads that write for some time, each waiting for one write before the next.

use crate::data::Data;
use crate::log::{Append, RaftLog, Result};
use hdrhistogram::Histogram;
use peers::measure;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// The writers and their entries.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Threads; group `g` belongs to thread `g % threads`.
    pub threads: u64,
    /// Groups, at least one a thread. A thread writes to its groups in turn.
    pub groups: u64,
    /// Entries in one write.
    pub entries: usize,
    /// Whether each write is synced.
    pub sync: bool,
}

/// The results.
#[derive(Debug)]
pub struct Measured {
    /// Writes or reads.
    pub calls: u64,
    /// From the first write's beginning to the last one's end.
    pub time: Duration,
    /// CPU time of the whole process meanwhile, all its threads together.
    pub cpu: Duration,
    /// How long each took, in ns.
    pub latency: Histogram<u64>,
}

impl Measured {
    /// Calls a second.
    pub fn rate(&self) -> f64 {
        self.calls as f64 / self.time.as_secs_f64()
    }

    /// CPU time for one call, in ns.
    pub fn cpu_ns(&self) -> f64 {
        self.cpu.as_nanos() as f64 / self.calls.max(1) as f64
    }
}

/// A histogram of times in ns, up to a minute, to a thousandth.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are valid")
}

/// The groups that are written to, and the next index of each.
#[derive(Debug)]
pub struct Groups {
    /// By thread.
    next: Vec<Vec<u64>>,
}

impl Groups {
    /// Groups in which nothing was written yet.
    pub fn new(load: &Load) -> Groups {
        let groups = load.groups.max(load.threads);
        let of_thread = |thread: u64| (groups - thread).div_ceil(load.threads);
        Groups { next: (0..load.threads).map(|t| vec![1; of_thread(t) as usize]).collect() }
    }
}

/// The most that all threads together write in one run, so that large entries do not fill the disk.
const BYTES_MAX: usize = 16 << 30;

/// Writes for `time`, or until the entries are as many bytes as a run may write.
///
/// # Errors
///
/// The first error of any thread.
pub fn run(
    log: &dyn RaftLog,
    load: &Load,
    data: &Data,
    groups: &mut Groups,
    time: Duration,
) -> Result<Measured> {
    let barrier = Barrier::new(load.threads as usize + 1);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .zip(&mut groups.next)
            .map(|(thread, next)| {
                let barrier = &barrier;
                scope.spawn(move || write(log, load, data, thread, next, barrier, time))
            })
            .collect();
        barrier.wait();
        let (begin, cpu) = (Instant::now(), measure::cpu());
        let mut latency = histogram();
        let mut failed = None;
        for thread in threads {
            match thread.join().expect("a thread that writes does not panic") {
                Ok(one) => latency.add(one).expect("the bounds are alike"),
                Err(error) => failed = Some(error),
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        let (time, cpu) = (begin.elapsed(), measure::cpu() - cpu);
        Ok(Measured { calls: latency.len(), time, cpu, latency })
    })
}

fn write(
    log: &dyn RaftLog,
    load: &Load,
    data: &Data,
    thread: u64,
    next: &mut [u64],
    barrier: &Barrier,
    time: Duration,
) -> Result<Histogram<u64>> {
    let mut writer = log.writer();
    let mut latency = histogram();
    let mut turn = thread;
    barrier.wait();
    let bytes = load.entries * data.entries(0, 1)[0].len();
    let turn_max = turn.saturating_add((BYTES_MAX / load.threads as usize / bytes) as u64);
    let end = Instant::now() + time;
    let mut begin = Instant::now();
    while begin < end && turn < turn_max {
        let place = (turn % next.len() as u64) as usize;
        let first = next[place];
        writer.append(Append {
            group: 1 + thread + place as u64 * load.threads,
            first,
            data: data.entries(turn, load.entries),
            state: None,
            sync: load.sync,
        })?;
        next[place] = first + load.entries as u64;
        turn += 1;
        let now = Instant::now();
        latency.saturating_record(now.duration_since(begin).as_nanos() as u64);
        begin = now;
    }
    Ok(latency)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Kind;
    use crate::engines::Contender;
    use crate::log::Settings;

    #[test]
    fn each_group_has_one_thread_and_all_is_counted() {
        for (threads, groups) in [(1, 1), (4, 4), (3, 8), (4, 2)] {
            let load = Load { threads, groups, entries: 2, sync: false };
            let mut next = Groups::new(&load);
            let count: usize = next.next.iter().map(Vec::len).sum();
            assert_eq!(count as u64, groups.max(threads));
            let dir = tempfile::tempdir().expect("a temporary directory");
            let log = Contender::Raftlog.open(dir.path(), Settings::default()).expect("opens");
            let data = Data::new(Kind::Random, 100);
            let time = Duration::from_millis(20);
            let measured = run(log.as_ref(), &load, &data, &mut next, time).expect("written");
            let written: u64 = (1..=count as u64).map(|g| log.last_index(g).expect("told")).sum();
            assert_eq!(written, 2 * measured.calls);
            assert!(measured.calls >= threads && measured.rate() > 0.0 && measured.cpu_ns() > 0.0);
        }
    }
}
