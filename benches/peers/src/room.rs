//! Room on disk where some groups are never compacted: bytes on disk, bytes written, and how many
//! groups the log asks to compact.
//!
//! One thread appends entries of 4 KiB, unsynced, to groups at random. A group that is active keeps
//! its last 8 entries, and is compacted at each 16th. Ten groups are never compacted, whatever the
//! log asks: either they are idle and hold 100 MiB, or they are written to like all others. The
//! limit is 64 MiB, and files have an eighth of it.

use crate::bench::Bench;
use crate::data::Data;
use crate::engines::Contender;
use crate::log::{Append, RaftLog, Result, Settings, Writer};
use crate::record::Metric;
use peers::measure;
use std::path::Path;

/// The workload's name.
pub const NAME: &str = "room";
const ENTRY_BYTES: usize = 4 << 10;
const LIMIT_BYTES: u64 = 64 << 20;
const KEPT: u64 = 8;
const COMPACT_EVERY: u64 = 16;
/// Groups that are never compacted.
const STUBBORN: u64 = 10;
const HELD_BYTES: u64 = 100 << 20;

/// One case.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The groups that are never compacted are idle, and hold much from the beginning.
    pub is_idle: bool,
    /// Bytes of entries from one call of purge to the next.
    pub purge_every_bytes: u64,
}

impl Case {
    /// The case's name in tables.
    pub fn name(self, bench: &Bench) -> String {
        let stubborn = if self.is_idle {
            "10 idle groups hold 100 MiB"
        } else {
            "10 of 1,000 groups never compact"
        };
        let (every, all) = (self.purge_every_bytes >> 20, written_bytes(bench) >> 20);
        format!("{stubborn}, purge each {every} MiB of {all}")
    }

    /// Groups that are written to after the beginning.
    fn groups(self) -> u64 {
        if self.is_idle { 110 } else { 1000 }
    }
}

/// All cases.
pub fn cases() -> impl Iterator<Item = Case> {
    let with =
        |is_idle| [32, 4].map(|mib| Case { is_idle, purge_every_bytes: mib << 20 }).into_iter();
    with(true).chain(with(false))
}

fn written_bytes(bench: &Bench) -> u64 {
    if bench.quick { 1 << 30 } else { 4 << 30 }
}

/// Measures all cases.
///
/// # Errors
///
/// The first error of an engine or the disk.
pub fn run(bench: &mut Bench) -> Result<()> {
    for case in cases() {
        let name = case.name(bench);
        if !bench.wants(&name) {
            continue;
        }
        for round in 0..bench.rounds {
            for engine in bench.in_order(round) {
                bench.say(NAME, &name, round, engine);
                once(bench, &name, case, engine)?;
            }
        }
    }
    Ok(())
}

fn once(bench: &mut Bench, name: &str, case: Case, engine: Contender) -> Result<()> {
    let dir = bench.fresh("room")?;
    let data = Data::new(bench.data, ENTRY_BYTES);
    let settings = Settings { purge_above_bytes: LIMIT_BYTES, file_bytes: Some(LIMIT_BYTES / 8) };
    let log = engine.open(&dir, settings)?;
    let mut load = RoomLoad::new(log.as_ref(), &data, case);
    let before = measure::passed_bytes()?;
    load.run(&dir, written_bytes(bench))?;
    let passed = measure::passed_bytes()? - before;
    let (entry_bytes, disk_bytes, asked) = (load.bytes, load.disk_bytes_max, load.asked);
    drop(load);
    log.close()?;
    bench.remove(&dir)?;
    for (metric, value) in [
        (Metric::DiskMibMax, disk_bytes as f64 / f64::from(1 << 20)),
        (Metric::PassedPerByte, passed as f64 / entry_bytes as f64),
        (Metric::GroupsAsked, asked as f64),
    ] {
        bench.records.add(NAME, name, engine, metric, value);
    }
    Ok(())
}

/// The load on one engine.
struct RoomLoad<'a> {
    log: &'a dyn RaftLog,
    writer: Box<dyn Writer + 'a>,
    data: &'a Data,
    case: Case,
    rng: fastrand::Rng,
    /// The last index of each group.
    last: Vec<u64>,
    /// Bytes of entries so far.
    bytes: u64,
    /// The most bytes on disk after any purge.
    disk_bytes_max: u64,
    asked: u64,
}

impl RoomLoad<'_> {
    fn new<'a>(log: &'a dyn RaftLog, data: &'a Data, case: Case) -> RoomLoad<'a> {
        let last = vec![0; case.groups() as usize];
        let (writer, rng) = (log.writer(), fastrand::Rng::with_seed(7));
        RoomLoad { log, writer, data, case, rng, last, bytes: 0, disk_bytes_max: 0, asked: 0 }
    }

    fn run(&mut self, dir: &Path, bytes_max: u64) -> Result<()> {
        if self.case.is_idle {
            while self.bytes < HELD_BYTES {
                let group = self.rng.u64(..STUBBORN);
                self.append(group)?;
            }
        }
        let first = if self.case.is_idle { STUBBORN } else { 0 };
        let mut purge_at = self.case.purge_every_bytes;
        while self.bytes < bytes_max {
            let group = self.rng.u64(first..self.case.groups());
            self.append(group)?;
            let last = self.last[group as usize];
            if group >= STUBBORN && last.is_multiple_of(COMPACT_EVERY) {
                self.log.compact(group + 1, last - KEPT + 1)?;
            }
            if self.bytes >= purge_at {
                self.purge()?;
                self.disk_bytes_max = self.disk_bytes_max.max(measure::on_disk(dir)?.0);
                purge_at = self.bytes + self.case.purge_every_bytes;
            }
        }
        Ok(())
    }

    fn append(&mut self, group: u64) -> Result<()> {
        let first = self.last[group as usize] + 1;
        let data = self.data.entries(self.bytes / ENTRY_BYTES as u64, 1);
        self.writer.append(Append { group: group + 1, first, data, state: None, sync: false })?;
        self.last[group as usize] = first;
        self.bytes += ENTRY_BYTES as u64;
        Ok(())
    }

    fn purge(&mut self) -> Result<()> {
        for asked in self.log.purge()? {
            self.asked += 1;
            let group = asked - 1;
            let last = self.last.get(group as usize).copied().unwrap_or(0);
            if group >= STUBBORN && last > KEPT {
                self.log.compact(asked, last - KEPT + 1)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Kind;

    #[test]
    fn the_groups_hold_what_the_case_says() {
        let case = Case { is_idle: false, purge_every_bytes: 1 << 20 };
        let dir = tempfile::tempdir().expect("a temporary directory");
        let settings = Settings { purge_above_bytes: 1 << 20, file_bytes: Some(1 << 18) };
        let log = Contender::Raftlog.open(dir.path(), settings).expect("opens");
        let data = Data::new(Kind::Half, ENTRY_BYTES);
        let mut load = RoomLoad::new(log.as_ref(), &data, case);
        load.run(dir.path(), 80 << 20).expect("written");
        assert_eq!(load.bytes, 80 << 20);
        for (group, last) in (1..).zip(&load.last) {
            assert_eq!(log.last_index(group).expect("told"), *last);
            let kept_from = if group <= STUBBORN { 1 } else { last - last % COMPACT_EVERY };
            assert!(log.fetch(group, kept_from.max(1)..last + 1).is_ok(), "group {group}");
        }
    }
}
