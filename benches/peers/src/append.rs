//! Appends: entry sizes, threads, groups, synced or buffered.
//!
//! Each write has one entry, and each thread waits for its write before the next. A round opens a
//! new log, writes for a while unmeasured, and then for the measured time.

use crate::bench::Bench;
use crate::data::Data;
use crate::engines::Contender;
use crate::load::{self, Groups, Load, Measured};
use crate::log::{Result, Settings};
use crate::record::Metric;
use std::time::Duration;

/// The workload's name.
pub const NAME: &str = "append";
const WARM_UP: Duration = Duration::from_millis(300);

/// One case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Bytes of an entry.
    pub bytes: usize,
    /// Threads.
    pub threads: u64,
    /// Whether each write is synced.
    pub sync: bool,
    /// Groups; `None` is one for each thread.
    pub groups: Option<u64>,
}

impl Case {
    /// Its name in tables.
    pub fn name(&self) -> String {
        let Case { bytes, threads, sync, groups } = self;
        let size =
            if *bytes < 1024 { format!("{bytes} B") } else { format!("{} KiB", bytes >> 10) };
        let sync = if *sync { "synced" } else { "buffered" };
        let groups = groups.map_or("a group each".to_owned(), |g| format!("{g} groups"));
        format!("{sync}, {size}, {threads} threads, {groups}")
    }
}

/// The cases, those of the quick run first.
pub fn cases(quick: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |bytes, threads, sync, groups| {
        let case = Case { bytes, threads, sync, groups };
        if !cases.contains(&case) {
            cases.push(case);
        }
    };
    for sync in [true, false] {
        for threads in [1, 8, 64] {
            add(1024, threads, sync, None);
        }
    }
    add(128, 1, false, None);
    add(32 << 10, 8, true, None);
    if !quick {
        for sync in [true, false] {
            for threads in [1, 8, 64] {
                for bytes in [128, 4 << 10, 32 << 10] {
                    add(bytes, threads, sync, None);
                }
                for groups in [128, 10_000] {
                    add(1024, threads, sync, Some(groups));
                }
            }
        }
    }
    cases
}

/// Measures all cases.
///
/// # Errors
///
/// The first error of an engine or the disk.
pub fn run(bench: &mut Bench) -> Result<()> {
    let cases = cases(bench.quick).into_iter().filter(|c| bench.wants(&c.name()));
    for case in cases.collect::<Vec<_>>() {
        for round in 0..bench.rounds {
            for engine in bench.in_order(round) {
                bench.say(NAME, &case.name(), round, engine);
                let measured = once(bench, &case, engine)?;
                keep(bench, &case, engine, &measured);
            }
        }
    }
    Ok(())
}

fn once(bench: &Bench, case: &Case, engine: Contender) -> Result<Measured> {
    let Case { bytes, threads, sync, groups } = *case;
    let load = Load { threads, groups: groups.unwrap_or(threads), entries: 1, sync };
    let data = Data::new(bench.data, bytes);
    let dir = bench.fresh("append")?;
    let log = engine.open(&dir, Settings::default())?;
    let mut next = Groups::new(&load);
    load::run(log.as_ref(), &load, &data, &mut next, WARM_UP)?;
    let measured = load::run(log.as_ref(), &load, &data, &mut next, bench.time)?;
    log.close()?;
    bench.remove(&dir)?;
    Ok(measured)
}

fn keep(bench: &mut Bench, case: &Case, engine: Contender, measured: &Measured) {
    let name = case.name();
    bench.records.add(NAME, &name, engine, Metric::EntriesPerSecond, measured.rate());
    bench.add_latency(NAME, &name, engine, &measured.latency);
    bench.records.add(NAME, &name, engine, Metric::CpuNsPerEntry, measured.cpu_ns());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_full_run_has_all_of_the_quick_one_and_no_case_twice() {
        let (quick, all) = (cases(true), cases(false));
        assert!(quick.iter().all(|c| all.contains(c)));
        let mut names: Vec<String> = all.iter().map(Case::name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all.len());
        assert_eq!(quick[0].name(), "synced, 1 KiB, 1 threads, a group each");
    }
}
