//! The workload that raft-engine's article describes: append, compact, purge, for as long as it
//! takes to write the log's limit many times over.
//!
//! Entries of 32 KiB, each with a small state in the same write, go to groups drawn from N(128,
//! 96). At each 32nd entry of a group it is compacted to some entries before its end, a number
//! drawn from N(32, 16). Every 1024 writes the log is purged by a thread of its own; groups that
//! stand in the way keep seven entries. Four threads write, each write is synced.

use crate::bench::{Bench, us_at};
use crate::data::Data;
use crate::engines::Contender;
use crate::load;
use crate::log::{Append, RaftLog, Result, Settings, Writer};
use crate::record::Metric;
use hdrhistogram::Histogram;
use peers::measure;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Instant;

/// The workload's name.
pub const NAME: &str = "append-compact-purge";
const ENTRY_BYTES: usize = 32 << 10;
const THREADS: u64 = 4;
/// Groups are drawn again if they are not below this.
const GROUPS: u64 = 1024;
const PURGE_EVERY: u64 = 1024;
const COMPACT_EVERY: u64 = 32;
const KEPT_BY_FORCE: u64 = 7;

/// The case's name in tables.
pub fn case_name(bench: &Bench) -> String {
    let (writes, limit) = size(bench.quick);
    format!("{writes} writes of 32 KiB, limit {} MiB, {}", limit >> 20, bench.data)
}

/// How much is written, and the limit above which the log is to be purged.
fn size(quick: bool) -> (u64, u64) {
    if quick { (24 << 10, 256 << 20) } else { (160 << 10, 1 << 30) }
}

/// Measures it.
///
/// # Errors
///
/// The first error of an engine or the disk.
pub fn run(bench: &mut Bench) -> Result<()> {
    let name = case_name(bench);
    if !bench.wants(&name) {
        return Ok(());
    }
    for round in 0..bench.rounds {
        for engine in bench.in_order(round) {
            bench.say(NAME, &name, round, engine);
            once(bench, &name, engine)?;
        }
    }
    Ok(())
}

fn once(bench: &mut Bench, name: &str, engine: Contender) -> Result<()> {
    let (writes, purge_above_bytes) = size(bench.quick);
    let dir = bench.fresh("churn")?;
    let data = Data::new(bench.data, ENTRY_BYTES);
    let dirtied_before = measure::dirtied_bytes()?;
    let written_before = measure::disk_written_bytes(&dir)?;
    let log = engine.open(&dir, Settings { purge_above_bytes, file_bytes: None })?;
    let churn = Churn::new(log.as_ref(), &data, writes, purge_above_bytes);
    let begin = Instant::now();
    let latency = churn.run()?;
    let seconds = begin.elapsed().as_secs_f64();
    drop(churn);
    let (on_disk, _) = measure::on_disk(&dir)?;
    log.close()?;
    measure::settle(&dir)?;
    let dirtied = measure::dirtied_bytes()?.saturating_sub(dirtied_before);
    let written = measure::disk_written_bytes(&dir)?.zip(written_before);
    bench.remove(&dir)?;

    bench.add_latency(NAME, name, engine, &latency.all);
    let of_entries = (writes * ENTRY_BYTES as u64) as f64;
    for (metric, value) in [
        (Metric::EntriesPerSecond, writes as f64 / seconds),
        (Metric::PurgingP999Us, us_at(&latency.once_purging, 0.999)),
        (Metric::DuringPurgeP999Us, us_at(&latency.beside_purge, 0.999)),
        (Metric::DirtiedPerByte, dirtied as f64 / of_entries),
        (Metric::DiskMib, on_disk as f64 / f64::from(1 << 20)),
    ] {
        bench.records.add(NAME, name, engine, metric, value);
    }
    if let Some((after, before)) = written {
        let value = (after - before) as f64 / of_entries;
        bench.records.add(NAME, name, engine, Metric::WrittenPerByte, value);
    }
    Ok(())
}

/// How long writes took, in ns.
struct Latency {
    all: Histogram<u64>,
    /// Those that began when more had been written than the log's limit.
    once_purging: Histogram<u64>,
    /// Those during whose time a call to purge ran.
    beside_purge: Histogram<u64>,
}

impl Latency {
    fn new() -> Latency {
        let [all, once_purging, beside_purge] = [(); 3].map(|()| load::histogram());
        Latency { all, once_purging, beside_purge }
    }

    fn add(&mut self, other: &Latency) {
        for (to, from) in [
            (&mut self.all, &other.all),
            (&mut self.once_purging, &other.once_purging),
            (&mut self.beside_purge, &other.beside_purge),
        ] {
            to.add(from).expect("the bounds are alike");
        }
    }
}

/// One engine under the load.
struct Churn<'a> {
    log: &'a dyn RaftLog,
    data: &'a Data,
    writes_max: u64,
    limit_bytes: u64,
    /// The last index of each group; whoever writes to a group holds it.
    last: Vec<Mutex<u64>>,
    begun: AtomicU64,
    is_purging: AtomicBool,
    /// Calls to purge that have begun.
    purges: AtomicU64,
    done: Mutex<Done>,
    more: Condvar,
}

/// How far the writers are.
#[derive(Default)]
struct Done {
    writes: u64,
    threads: u64,
}

impl Churn<'_> {
    fn new<'a>(
        log: &'a dyn RaftLog,
        data: &'a Data,
        writes_max: u64,
        limit_bytes: u64,
    ) -> Churn<'a> {
        Churn {
            log,
            data,
            writes_max,
            limit_bytes,
            last: (0..GROUPS).map(|_| Mutex::new(0)).collect(),
            begun: AtomicU64::new(0),
            is_purging: AtomicBool::new(false),
            purges: AtomicU64::new(0),
            done: Mutex::default(),
            more: Condvar::new(),
        }
    }

    fn run(&self) -> Result<Latency> {
        std::thread::scope(|scope| {
            let purger = scope.spawn(|| self.purge());
            let writers: Vec<_> =
                (0..THREADS).map(|thread| scope.spawn(move || self.write(thread))).collect();
            let mut latency = Latency::new();
            let mut outcome = Ok(());
            for writer in writers {
                match writer.join().expect("a thread that writes does not panic") {
                    Ok(one) => latency.add(&one),
                    Err(error) => outcome = Err(error),
                }
            }
            purger.join().expect("the thread that purges does not panic")?;
            outcome.map(|()| latency)
        })
    }

    fn write(&self, thread: u64) -> Result<Latency> {
        let mut latency = Latency::new();
        let mut rng = fastrand::Rng::with_seed(thread);
        let mut writer = self.log.writer();
        let outcome = loop {
            let number = self.begun.fetch_add(1, Ordering::Relaxed);
            if number >= self.writes_max {
                break Ok(());
            }
            if let Err(error) = self.write_one(number, writer.as_mut(), &mut rng, &mut latency) {
                break Err(error);
            }
            let mut done = self.done.lock().expect("nobody panics with it");
            done.writes += 1;
            if done.writes.is_multiple_of(PURGE_EVERY) {
                self.more.notify_one();
            }
        };
        self.done.lock().expect("nobody panics with it").threads += 1;
        self.more.notify_one();
        outcome.map(|()| latency)
    }

    fn write_one(
        &self,
        number: u64,
        writer: &mut dyn Writer,
        rng: &mut fastrand::Rng,
        latency: &mut Latency,
    ) -> Result<()> {
        let group = draw(rng, 128.0, 96.0, GROUPS);
        let mut last = self.last[group as usize].lock().expect("nobody panics with it");
        let first = *last + 1;
        let state = first.to_le_bytes();
        let data = self.data.entries(number, 1);
        let purges = self.purges.load(Ordering::Relaxed);
        let is_beside_purge = self.is_purging.load(Ordering::Relaxed);
        let begin = Instant::now();
        writer.append(Append { group, first, data, state: Some(&state), sync: true })?;
        let ns = begin.elapsed().as_nanos() as u64;
        latency.all.saturating_record(ns);
        if is_beside_purge || self.purges.load(Ordering::Relaxed) != purges {
            latency.beside_purge.saturating_record(ns);
        }
        if number * ENTRY_BYTES as u64 > self.limit_bytes {
            latency.once_purging.saturating_record(ns);
        }
        *last = first;
        if first.is_multiple_of(COMPACT_EVERY) {
            let kept = draw(rng, 32.0, 16.0, u64::MAX);
            if first > kept {
                self.log.compact(group, first - kept)?;
            }
        }
        Ok(())
    }

    fn purge(&self) -> Result<()> {
        let mut seen = 0;
        loop {
            let mut done = self.done.lock().expect("nobody panics with it");
            while done.writes < seen + PURGE_EVERY && done.threads < THREADS {
                done = self.more.wait(done).expect("nobody panics with it");
            }
            if done.threads == THREADS {
                return Ok(());
            }
            seen = done.writes;
            drop(done);
            self.purges.fetch_add(1, Ordering::Relaxed);
            self.is_purging.store(true, Ordering::Relaxed);
            for group in self.log.purge()? {
                let Some(last) = self.last.get(group as usize) else { continue };
                let last = last.lock().expect("nobody panics with it");
                if *last > KEPT_BY_FORCE {
                    self.log.compact(group, *last - KEPT_BY_FORCE)?;
                }
            }
            self.is_purging.store(false, Ordering::Relaxed);
        }
    }
}

/// A whole number from a normal distribution, from 1 to below `end`.
fn draw(rng: &mut fastrand::Rng, mean: f64, deviation: f64, end: u64) -> u64 {
    loop {
        let (radius, angle) = (1.0 - rng.f64(), rng.f64());
        let unit = (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos();
        let number = mean + deviation * unit;
        if number >= 1.0 && (number as u64) < end {
            return number as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Kind;

    #[test]
    fn what_is_drawn_has_the_mean_and_the_bounds() {
        let mut rng = fastrand::Rng::with_seed(7);
        let drawn: Vec<u64> = (0..10_000).map(|_| draw(&mut rng, 1000.0, 10.0, 1020)).collect();
        assert!(drawn.iter().all(|n| *n < 1020));
        let mean = drawn.iter().sum::<u64>() as f64 / drawn.len() as f64;
        assert!((990.0..1001.0).contains(&mean), "{mean}");
    }

    #[test]
    fn every_write_is_counted_and_there() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let log = Contender::Raftlog.open(dir.path(), Settings::default()).expect("opens");
        let data = Data::new(Kind::Half, 100);
        let churn = Churn::new(log.as_ref(), &data, 3000, 1000 * ENTRY_BYTES as u64);
        let latency = churn.run().expect("written");
        assert_eq!((latency.all.len(), latency.once_purging.len()), (3000, 1999));
        assert!(churn.purges.load(Ordering::Relaxed) >= 1);
        let last = |g: usize| *churn.last[g].lock().expect("whole");
        assert_eq!((0..GROUPS as usize).map(last).sum::<u64>(), 3000);
        for group in 1..GROUPS {
            assert_eq!(log.last_index(group).expect("told"), last(group as usize));
        }
    }
}
