//! Reads of a log that the page cache holds: ranges of 64 entries, and single entries at random.
//!
//! The log has 256 MiB of 1 KiB entries in 16 groups, written one an append in turn, or 64 an
//! append. It is opened anew before it is read, so that nothing is left in an engine's own memory
//! but what opening brings there.

use crate::bench::Bench;
use crate::data::Data;
use crate::engines::Contender;
use crate::load::{self, Measured};
use crate::log::{Append, Fetched, RaftLog, Result, Settings};
use crate::record::Metric;
use peers::measure;
use std::path::Path;
use std::time::{Duration, Instant};

/// The workload's name.
pub const NAME: &str = "fetch";
/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 1024;
/// Groups of the log.
pub const GROUPS: u64 = 16;
const WARM_UP: Duration = Duration::from_millis(300);
/// Entries in a range, and in a large append.
const RANGE: u64 = 64;

/// One case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Entries in a read.
    pub entries: u64,
    /// Entries in an append.
    pub appended: u64,
}

/// All cases.
pub const CASES: [Case; 4] = [
    Case { entries: RANGE, appended: RANGE },
    Case { entries: RANGE, appended: 1 },
    Case { entries: 1, appended: RANGE },
    Case { entries: 1, appended: 1 },
];

impl Case {
    /// Its name in tables.
    pub fn name(&self) -> String {
        let read = if self.entries == 1 { "a random entry" } else { "a range of 64" };
        format!("{read}, appended {} at a time", self.appended)
    }
}

/// Measures all cases.
///
/// # Errors
///
/// The first error of an engine or the disk.
pub fn run(bench: &mut Bench) -> Result<()> {
    let per_group = (if bench.quick { 4 << 10 } else { 16 << 10 }) as u64;
    for appended in [RANGE, 1] {
        let is_wanted = |c: &&Case| c.appended == appended && bench.wants(&c.name());
        let cases: Vec<&Case> = CASES.iter().filter(is_wanted).collect();
        if cases.is_empty() {
            continue;
        }
        let engines = bench.engines.clone();
        for engine in &engines {
            let dir = bench.fresh(&format!("fetch-{engine}"))?;
            fill(bench, *engine, &dir, appended, per_group)?;
        }
        for case in cases {
            for round in 0..bench.rounds {
                for engine in bench.in_order(round) {
                    bench.say(NAME, &case.name(), round, engine);
                    let dir = bench.dir.join(format!("fetch-{engine}"));
                    let measured = once(bench, case, engine, &dir, per_group)?;
                    keep(bench, case, engine, &measured);
                }
            }
        }
        for engine in engines {
            bench.remove(&bench.dir.join(format!("fetch-{engine}")))?;
        }
    }
    Ok(())
}

fn fill(bench: &Bench, engine: Contender, dir: &Path, appended: u64, per_group: u64) -> Result<()> {
    let data = Data::new(bench.data, ENTRY_BYTES);
    let log = engine.open(dir, Settings::default())?;
    let mut writer = log.writer();
    for first in (1..=per_group).step_by(appended as usize) {
        for group in 1..=GROUPS {
            let data = data.entries(first + group, appended as usize);
            writer.append(Append { group, first, data, state: None, sync: false })?;
        }
    }
    drop(writer);
    log.close()
}

fn once(
    bench: &Bench,
    case: &Case,
    engine: Contender,
    dir: &Path,
    per_group: u64,
) -> Result<Measured> {
    let log = engine.open(dir, Settings::default())?;
    read(log.as_ref(), case, per_group, WARM_UP)?;
    let measured = read(log.as_ref(), case, per_group, bench.time)?;
    log.close()?;
    Ok(measured)
}

/// Reads at random for `time`.
///
/// # Errors
///
/// Errors of the engine, or if it returns another number of bytes.
pub fn read(log: &dyn RaftLog, case: &Case, per_group: u64, time: Duration) -> Result<Measured> {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut latency = load::histogram();
    let expected = Fetched { entries: case.entries, bytes: case.entries * ENTRY_BYTES as u64 };
    let (start, cpu) = (Instant::now(), measure::cpu());
    let mut begin = start;
    while begin < start + time {
        let (group, at) = (rng.u64(1..=GROUPS), rng.u64(1..=per_group + 1 - case.entries));
        let fetched = log.fetch(group, at..at + case.entries)?;
        let now = Instant::now();
        if fetched != expected {
            return Err(format!("{fetched:?} came back, not {expected:?}").into());
        }
        latency.saturating_record(now.duration_since(begin).as_nanos() as u64);
        begin = now;
    }
    let cpu = measure::cpu() - cpu;
    Ok(Measured { calls: latency.len(), time: start.elapsed(), cpu, latency })
}

fn keep(bench: &mut Bench, case: &Case, engine: Contender, measured: &Measured) {
    let (name, entries) = (case.name(), case.entries as f64);
    let records = &mut bench.records;
    records.add(NAME, &name, engine, Metric::EntriesPerSecond, measured.rate() * entries);
    records.add(NAME, &name, engine, Metric::CpuNsPerEntry, measured.cpu_ns() / entries);
    bench.add_latency(NAME, &name, engine, &measured.latency);
}
