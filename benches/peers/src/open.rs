//! Opening a log of 1 KiB entries, after a clean close and after the process that wrote was killed.
//!
//! The page cache holds the files, as after a restart of the process alone. Before each opening
//! after a kill, a process appends a few more entries and is really killed, at a place in its files
//! that differs from round to round.

use crate::bench::Bench;
use crate::child::{self, End, GROUPS, Seen, Task};
use crate::engines::Contender;
use crate::log::Result;
use crate::record::Metric;

/// The workload's name.
pub const NAME: &str = "open";
/// The name of the workload that is about memory alone.
pub const MEMORY: &str = "memory";
/// Entries of a killed process's last appends: about 37 MiB, so that the last file is partly full.
const BEFORE_KILL: u64 = 37 << 10;
const MIB_ENTRIES: u64 = 1 << 10;

/// Sizes of the opened logs, in MiB of entries; the last one counts.
pub fn sizes(quick: bool) -> &'static [u64] {
    if quick { &[256] } else { &[1024, 4096] }
}

/// The name of a case in tables.
pub fn case_name(mib: u64, at_a_time: u64, end: End) -> String {
    let end = if end == End::Close { "after a clean close" } else { "after kill -9" };
    format!("{mib} MiB, appended {at_a_time} at a time, {end}")
}

/// Measures all cases.
///
/// # Errors
///
/// The first error of an engine or the disk, and if entries are missing.
pub fn run(bench: &mut Bench) -> Result<()> {
    for mib in sizes(bench.quick) {
        for at_a_time in [1, 4] {
            let is_wanted = |end: &End| bench.wants(&case_name(*mib, at_a_time, *end));
            let ends: Vec<End> = [End::Close, End::Kill].into_iter().filter(is_wanted).collect();
            if !ends.is_empty() {
                run_one(bench, *mib, at_a_time, &ends)?;
            }
        }
    }
    Ok(())
}

fn run_one(bench: &mut Bench, mib: u64, at_a_time: u64, ends: &[End]) -> Result<()> {
    let engines = bench.engines.clone();
    let mut counts = vec![0; engines.len()];
    for (engine, count) in engines.iter().zip(&mut counts) {
        bench.say(NAME, &format!("writing {mib} MiB"), 0, *engine);
        bench.fresh(&format!("open-{engine}"))?;
        *count = child(bench, *engine, mib * MIB_ENTRIES, at_a_time, End::Close, None)?.entries;
    }
    for end in ends.iter().copied() {
        for round in 0..bench.rounds {
            for engine in bench.in_order(round) {
                let name = case_name(mib, at_a_time, end);
                bench.say(NAME, &name, round, engine);
                let place = engines.iter().position(|e| *e == engine).unwrap_or(0);
                let count = &mut counts[place];
                if end == End::Kill {
                    let more = BEFORE_KILL + round as u64 * 5 * MIB_ENTRIES;
                    *count = child(bench, engine, more, at_a_time, end, Some(*count))?.entries;
                }
                let seen = child(bench, engine, 0, 1, End::Close, Some(*count))?;
                let rate = seen.entries as f64 / seen.open_seconds;
                bench.records.add(NAME, &name, engine, Metric::OpenSeconds, seen.open_seconds);
                bench.records.add(NAME, &name, engine, Metric::EntriesPerSecond, rate);
            }
        }
    }
    for engine in engines {
        bench.remove(&bench.dir.join(format!("open-{engine}")))?;
    }
    Ok(())
}

/// Measures what a million entries take in memory, one an append in turn in all groups.
///
/// # Errors
///
/// As [`run`].
pub fn run_memory(bench: &mut Bench) -> Result<()> {
    let name = memory_case();
    if !bench.wants(&name) {
        return Ok(());
    }
    for round in 0..if bench.quick { 1 } else { bench.rounds } {
        for engine in bench.in_order(round) {
            bench.say(MEMORY, &name, round, engine);
            let dir = bench.fresh(&format!("open-{engine}"))?;
            let written = child(bench, engine, 1_000_000, 1, End::Close, Some(0))?;
            let opened = child(bench, engine, 0, 1, End::Close, Some(written.entries))?;
            let millions = written.entries as f64 / 1e6;
            let heap = mib(written.heap_bytes) / millions;
            bench.records.add(MEMORY, &name, engine, Metric::HeapMibPerMillion, heap);
            let heap = mib(opened.open_heap_bytes) / millions;
            bench.records.add(MEMORY, &name, engine, Metric::OpenedHeapMibPerMillion, heap);
            bench.remove(&dir)?;
        }
    }
    Ok(())
}

/// The name of the one case of the memory workload in tables.
pub fn memory_case() -> String {
    format!("a million entries of 1 KiB, {GROUPS} groups")
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn child(
    bench: &Bench,
    engine: Contender,
    entries: u64,
    at_a_time: u64,
    end: End,
    expected: Option<u64>,
) -> Result<Seen> {
    let dir = bench.dir.join(format!("open-{engine}"));
    let seen = child::run(&Task { engine, dir, entries, at_a_time, data: bench.data, end })?;
    match expected {
        Some(count) if count != seen.entries_before => {
            Err(format!("{engine}: {} entries of {count} came back", seen.entries_before).into())
        }
        _ => Ok(seen),
    }
}
