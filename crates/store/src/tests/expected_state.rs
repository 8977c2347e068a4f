//! The expected state: everything that must be true after any crash.

use std::collections::BTreeMap;

use bytes::Bytes;
use flotilla_kv::raw::{self, RawOp};
use flotilla_region::entry_data;
use flotilla_region::{HardState, Index, LogEntry, RecoveredReplica};

use super::*;
use crate::schema::DataRow;

/// One replica, as its clients know it.
#[derive(Clone, Debug, Default)]
pub(super) struct ReplicaState {
    /// Every entry that was ever on its way to the log, by index and term.
    written: BTreeMap<(u64, u64), LogEntry>,
    /// The log as it is when all that is on its way arrives.
    pub(super) log: BTreeMap<u64, LogEntry>,
    /// The entry before its first.
    truncated: u64,
    /// The term and index of what was acknowledged and has not been replaced since.
    acked: BTreeMap<u64, u64>,
    /// The hard state when all that is on its way arrives, and the last acknowledged one.
    pub(super) hard_state: HardState,
    acked_state: HardState,
    /// The applied entries, from index 1 on; no other may ever be applied.
    applied: Vec<LogEntry>,
    pub(super) applied_now: u64,
    /// How far a durable root has applied it.
    pub(super) durable: u64,
    /// A snapshot that was installed, and that no root was said to have.
    installed: Option<InstalledSnapshot>,
}

/// The entries that a snapshot brings, and the hard state that comes with them.
#[derive(Clone, Debug)]
struct InstalledSnapshot {
    entries: Vec<LogEntry>,
    hard_state: HardState,
}

impl ReplicaState {
    pub(super) fn last(&self) -> u64 {
        self.log.keys().next_back().copied().unwrap_or(self.truncated)
    }

    /// Forgets the entries below `first`.
    pub(super) fn compact(&mut self, first: u64) {
        self.log = self.log.split_off(&first);
        self.truncated = first - 1;
    }

    /// The last entry up to which all are acknowledged.
    pub(super) fn persisted(&self) -> u64 {
        self.acked.keys().next_back().copied().unwrap_or(0).max(self.durable)
    }

    /// The last entry that the other replicas know to be committed. No leader replaces it, even
    /// if this replica forgot what it knew.
    pub(super) fn committed(&self) -> u64 {
        self.hard_state.commit.0.max(self.applied.len() as u64)
    }

    /// Entries are on their way.
    pub(super) fn queue(&mut self, write: &LogWrite) {
        self.hard_state = write.hard_state.unwrap();
        if let Some(first) = write.entries.first() {
            // Whether the old ones or the new ones are found after a crash is now open.
            self.acked.split_off(&first.index.0);
            self.log.split_off(&first.index.0);
        }
        for entry in &write.entries {
            self.log.insert(entry.index.0, entry.clone());
            self.written.insert((entry.index.0, entry.term.0), entry.clone());
        }
    }

    /// They have arrived.
    pub(super) fn ack(&mut self, write: &LogWrite) {
        for entry in &write.entries {
            // Unless others are on the way to their places.
            if self.log.get(&entry.index.0) == Some(entry) {
                self.acked.insert(entry.index.0, entry.term.0);
            }
        }
        if write.sync {
            self.acked_state = write.hard_state.unwrap();
        }
    }

    pub(super) fn apply(&mut self, entries: &[LogEntry]) {
        for entry in entries {
            self.applied_now += 1;
            assert_eq!(entry.index.0, self.applied_now);
            match self.applied.get(entry.index.0 as usize - 1) {
                Some(before) => assert_eq!(before, entry, "another entry is applied again"),
                None => self.applied.push(entry.clone()),
            }
        }
    }

    /// A snapshot takes the place of the rows: the replica is applied up to the last of these
    /// entries, once a root has it.
    pub(super) fn install(&mut self, entries: Vec<LogEntry>, hard_state: HardState) {
        self.installed = Some(InstalledSnapshot { entries, hard_state });
    }

    /// A root has the snapshot. Nothing is left of the log, acknowledged or not.
    pub(super) fn take_installed(&mut self) {
        let InstalledSnapshot { entries, hard_state } = self.installed.take().unwrap();
        self.applied.extend(entries);
        (self.log, self.acked) = (BTreeMap::new(), BTreeMap::new());
        self.applied_now = self.applied.len() as u64;
        (self.truncated, self.durable) = (self.applied_now, self.applied_now);
        self.hard_state = hard_state;
    }

    /// Takes the snapshot if a crash has left it.
    pub(super) fn find_installed(&mut self, found: &RecoveredReplica) {
        let index = self.installed.as_ref().map(|snapshot| snapshot.hard_state.commit);
        if index == Some(found.applied.0) {
            self.take_installed();
        }
        self.installed = None;
    }

    /// Compares the state found after a crash with the states that are allowed.
    pub(super) fn check(&self, found: &RecoveredReplica, rows: &ExpectedRows) {
        let RecoveredReplica { applied, tail, last, hard_state, .. } = found;
        let region = found.descriptor.id;
        assert!(applied.0.0 >= self.durable, "region {region} fell back behind a durable root");
        assert!(found.truncated.0 <= applied.0, "region {region} has a hole");
        assert_eq!(tail.len() as u64, last.0 - applied.0.0, "region {region}");
        let entry = |index: u64| tail.get((index - applied.0.0 - 1) as usize);
        for found in tail {
            let written = self.written.get(&(found.index.0, found.term.0));
            assert_eq!(written, Some(found), "region {region} has an entry that nobody wrote");
        }
        for (&index, &term) in self.acked.range(applied.0.0 + 1..) {
            let found = entry(index).map(|entry| entry.term.0);
            assert_eq!(found, Some(term), "region {region} lost acknowledged entry {index}");
        }
        for committed in self.applied.iter().skip(applied.0.0 as usize) {
            let found = entry(committed.index.0);
            assert_eq!(found, Some(committed), "region {region} lost a committed entry");
        }
        let (had, has) = (self.acked_state, hard_state);
        let kept = has.term > had.term
            || (has.term == had.term && (has.vote == had.vote || had.vote.is_none()));
        assert!(kept, "region {region} forgot {had:?}, it has {has:?}");
        assert!(has.commit >= applied.0 && has.commit <= *last, "region {region}: {found:?}");
        assert_eq!(
            *rows,
            self.rows_at(applied.0),
            "region {region} has other rows at {}",
            applied.0
        );
    }

    /// Goes on from what was found. It counts as acknowledged: raft takes it for persisted.
    pub(super) fn restart(&mut self, found: &RecoveredReplica) {
        self.log = found.tail.iter().map(|entry| (entry.index.0, entry.clone())).collect();
        self.truncated = found.truncated.0.0;
        for entry in self.applied.iter().take(found.applied.0.0 as usize) {
            if entry.index > found.truncated.0 {
                self.log.insert(entry.index.0, entry.clone());
            }
        }
        self.acked = self.log.values().map(|entry| (entry.index.0, entry.term.0)).collect();
        self.hard_state = found.hard_state;
        self.acked_state = found.hard_state;
        self.applied_now = found.applied.0.0;
        self.durable = found.applied.0.0;
    }

    /// The rows after the first `applied` entries, by the simplest means.
    pub(super) fn rows_at(&self, applied: Index) -> ExpectedRows {
        let mut rows = ExpectedRows::default();
        for entry in &self.applied[..applied.0 as usize] {
            for proposal in entry_data::proposals(&entry.data) {
                let command = raw::decode(proposal.unwrap().command).unwrap();
                command.ops.into_iter().for_each(|op| rows.execute(command.time_ms, op));
            }
        }
        rows
    }
}

/// Rows as they are in the tree, and the region's watermark.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ExpectedRows {
    pub(super) rows: BTreeMap<Bytes, ExpectedValue>,
    pub(super) watermark_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ExpectedValue {
    pub(super) value: Bytes,
    /// 0 for never.
    pub(super) expires_ms: u64,
}

impl ExpectedValue {
    /// The bytes of its row.
    pub(super) fn row(&self) -> Vec<u8> {
        match self.expires_ms {
            0 => [&[0], &self.value[..]].concat(),
            expires_ms => [&[1], &expires_ms.to_le_bytes()[..], &self.value].concat(),
        }
    }

    fn has_expired(&self, now_ms: u64) -> bool {
        self.expires_ms > 0 && self.expires_ms <= now_ms
    }
}

impl ExpectedRows {
    fn execute(&mut self, time_ms: u64, op: RawOp) {
        let now_ms = time_ms.max(self.watermark_ms);
        let rows = &mut self.rows;
        let new = |value, ttl_s| ExpectedValue {
            value,
            expires_ms: if ttl_s == 0 { 0 } else { now_ms + 1000 * ttl_s },
        };
        let is_in = |key: &Bytes, start: &Bytes, end: &Option<Bytes>| {
            key >= start && end.as_ref().is_none_or(|end| key < end)
        };
        match op {
            RawOp::Put { key, value, ttl_s } => drop(rows.insert(key, new(value, ttl_s))),
            RawOp::Delete { key } => drop(rows.remove(&key)),
            RawOp::DeleteRange { start, end } => rows.retain(|key, _| !is_in(key, &start, &end)),
            RawOp::CompareAndSwap { key, expected, value, ttl_s } => {
                if rows.get(&key).is_some_and(|row| row.has_expired(now_ms)) {
                    self.watermark_ms = now_ms;
                }
                let held = rows.get(&key).filter(|row| !row.has_expired(now_ms));
                if held.map(|row| &row.value) == expected.as_ref() {
                    match value {
                        Some(value) => rows.insert(key, new(value, ttl_s)),
                        None => rows.remove(&key),
                    };
                }
            }
            RawOp::RaiseWatermark => self.watermark_ms = now_ms,
            RawOp::RemoveExpired { start, end } => {
                self.watermark_ms = now_ms;
                rows.retain(|key, row| !is_in(key, &start, &end) || !row.has_expired(now_ms));
            }
        }
    }
}

/// The rows of a region as they are in its tree, and its watermark.
pub(super) fn stored_rows(store: &Store, region: u64) -> ExpectedRows {
    let mut rows = BTreeMap::new();
    let copy = |key: &[u8], DataRow { expires_ms, value }: DataRow<'_>| {
        let value = Bytes::copy_from_slice(value);
        rows.insert(Bytes::copy_from_slice(key), ExpectedValue { value, expires_ms });
    };
    view(store, region).for_each_row(copy).unwrap();
    let watermark_ms = store.read().state(RegionId(region)).unwrap().watermark_ms;
    ExpectedRows { rows, watermark_ms }
}
