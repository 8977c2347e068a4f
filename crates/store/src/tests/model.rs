//! Random histories of one store on a faulty disk, with crashes anywhere.
//!
//! After each crash: nothing acknowledged is lost, no vote is forgotten, the rows are those of
//! exactly the applied entries, the log has no hole, and all that was found stays found.

use std::collections::BTreeMap;

use bytes::Bytes;
use fastrand::Rng;
use flotilla_kv::raw::RawOp;
use flotilla_region::{
    Index, InstallTask, LogEntry, LogReset, LogWrite, RegionId, RegionSize, SnapshotHead, StageId,
};
use flotilla_vfs::fault::FaultFs;

use super::expected_state::{ExpectedRows, ReplicaState, stored_rows};
use super::*;
use crate::snapshot::ChunkBuilder;
use crate::{Commit, SnapshotEnd, StageOffer};

/// One history.
pub(super) struct History {
    rng: Rng,
    fs: FaultFs,
    store: Store,
    replicas: BTreeMap<u64, ReplicaState>,
    /// On their way to the log.
    pending: Vec<(Vec<LogWrite>, Commit)>,
    pub(super) seen: Seen,
}

/// That a run met what it is there to meet.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) crashes: u64,
    pub(super) opens_cut: u64,
    pub(super) segments_purged: u64,
    pub(super) replayed: u64,
    pub(super) replaced: u64,
    pub(super) snapshots: u64,
}

/// The disk failed, as was ordered.
struct Down;

impl<E: std::error::Error> From<E> for Down {
    fn from(_: E) -> Self {
        Self
    }
}

impl History {
    pub(super) fn new(seed: u64) -> Self {
        let fs = FaultFs::new(seed);
        let (store, _) = open(&fs);
        let replicas = regions().iter().map(|d| (d.id.0, ReplicaState::default())).collect();
        let rng = Rng::with_seed(seed);
        Self { rng, fs, store, replicas, pending: vec![], seen: Seen::default() }
    }

    pub(super) fn run(&mut self, steps: u32) {
        for _ in 0..steps {
            if self.rng.u8(0..20) == 0 {
                self.fs.cut_power_after(self.rng.u64(1..12));
            }
            if self.step().is_err() || self.rng.u8(0..40) == 0 {
                self.crash();
            }
        }
        self.crash();
    }

    fn step(&mut self) -> Result<(), Down> {
        match self.rng.u8(0..36) {
            0..=9 => self.append(),
            10..=12 => self.replace(),
            13..=15 => self.vote(),
            16 | 17 => self.tell_commit(),
            18..=21 => self.flush()?,
            22..=25 => self.apply()?,
            26..=28 => self.checkpoint()?,
            29..=31 => self.compact(),
            32 | 33 => self.take_snapshot()?,
            _ => self.seen.segments_purged += self.store.purge_log()?.segments,
        }
        Ok(())
    }

    fn any_region(&mut self) -> u64 {
        self.rng.u64(1..=4)
    }

    fn queue(&mut self, writes: Vec<LogWrite>) {
        let commit = self.store.write_log(&writes, &[], &[], &[]);
        for write in &writes {
            self.replica(write.region.0).queue(write);
        }
        self.pending.push((writes, commit));
    }

    fn replica(&mut self, region: u64) -> &mut ReplicaState {
        self.replicas.get_mut(&region).unwrap()
    }

    /// Entries of one or several regions, in one batch.
    fn append(&mut self) {
        let mut writes = vec![];
        for region in 1..=4 {
            if self.rng.u8(0..3) > 0 {
                continue;
            }
            let (last, mut state) = (self.replica(region).last(), self.replica(region).hard_state);
            state.term = state.term.max(Term(1));
            let count = self.rng.u64(1..4);
            let entries: Vec<LogEntry> =
                (1..=count).map(|i| self.entry(region, last + i, state.term.0)).collect();
            state.commit = Index(self.rng.u64(state.commit.0..=last + count));
            writes.push(write(region, state, &entries));
        }
        if !writes.is_empty() {
            self.queue(writes);
        }
    }

    /// A new leader replaces what was not committed.
    fn replace(&mut self) {
        let region = self.any_region();
        let (last, mut state) = (self.replica(region).last(), self.replica(region).hard_state);
        let committed = self.replica(region).committed();
        if last > committed {
            state.term = Term(state.term.0 + 1);
            state.vote = None;
            let first = self.rng.u64(committed + 1..=last);
            let entry = self.entry(region, first, state.term.0);
            self.seen.replaced += last + 1 - first;
            self.queue(vec![write(region, state, &[entry])]);
        }
    }

    fn vote(&mut self) {
        let region = self.any_region();
        let mut state = self.replica(region).hard_state;
        state.term = Term(state.term.0 + 1);
        state.vote = Some(PeerId(region * 100 + self.rng.u64(1..3)));
        self.queue(vec![write(region, state, &[])]);
    }

    /// Only the commit index moves: no message waits for it.
    fn tell_commit(&mut self) {
        let region = self.any_region();
        let (last, mut state) = (self.replica(region).last(), self.replica(region).hard_state);
        state.commit = Index(self.rng.u64(state.commit.0..=last.max(state.commit.0)));
        self.queue(vec![LogWrite { sync: false, ..write(region, state, &[]) }]);
    }

    fn flush(&mut self) -> Result<(), Down> {
        for (writes, commit) in std::mem::take(&mut self.pending) {
            commit.wait()?;
            for write in writes {
                self.replica(write.region.0).ack(&write);
            }
        }
        Ok(())
    }

    /// Committed and persisted entries are applied, in one transaction for several regions.
    fn apply(&mut self) -> Result<(), Down> {
        let mut tasks = vec![];
        for region in 1..=4 {
            let replica = self.replica(region);
            let high = replica.hard_state.commit.0.min(replica.persisted());
            let low = replica.applied_now + 1;
            let entries: Vec<LogEntry> =
                replica.log.range(low..).map(|(_, entry)| entry.clone()).collect();
            let count = (high + 1).saturating_sub(low) as usize;
            if count > 0 && self.rng.u8(0..2) == 0 {
                let count = self.rng.usize(1..=count);
                tasks.push((region, entries[..count].to_vec()));
            }
        }
        let all: Vec<_> = tasks.iter().map(|(region, entries)| task(*region, entries)).collect();
        self.store.apply(&all)?;
        for (region, entries) in tasks {
            self.replica(region).apply(&entries);
            let rows = stored_rows(&self.store, region);
            let replica = &self.replicas[&region];
            assert_eq!(rows, replica.rows_at(Index(replica.applied_now)));
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<(), Down> {
        self.checkpoint_with(None)
    }

    /// Makes a checkpoint, which has to tell of a snapshot in this region and of no other.
    fn checkpoint_with(&mut self, snapshot_in: Option<u64>) -> Result<(), Down> {
        let told = self.store.checkpoint()?.replicas;
        let with_snapshot = told.iter().find(|replica| replica.installed.is_some());
        assert_eq!(with_snapshot.map(|replica| replica.region.0), snapshot_in);
        if let Some(region) = snapshot_in {
            self.replica(region).take_installed();
        }
        for CheckpointedReplica { region, applied, .. } in told {
            let replica = self.replica(region.0);
            assert!(applied.0 >= replica.durable && applied.0 <= replica.applied_now);
            replica.durable = applied.0;
        }
        Ok(())
    }

    /// A snapshot takes the place of a replica whose writes are on disk and whose committed entries
    /// are applied. Its entries were committed elsewhere.
    fn take_snapshot(&mut self) -> Result<(), Down> {
        self.flush()?;
        let region = self.any_region();
        let replica = self.replica(region);
        let rest = replica.log.range(replica.applied_now + 1..replica.committed() + 1);
        let rest: Vec<LogEntry> = rest.map(|(_, entry)| entry.clone()).collect();
        self.store.apply(&[task(region, &rest)])?;
        self.replica(region).apply(&rest);
        let (first, mut state) =
            (self.replica(region).applied_now + 1, self.replica(region).hard_state);
        if self.rng.bool() {
            (state.term, state.vote) = (Term(state.term.0 + 1), None);
        }
        state.term = state.term.max(Term(1));
        let index = first + self.rng.u64(0..3);
        let entries: Vec<_> =
            (first..=index).map(|index| self.entry(region, index, state.term.0)).collect();
        state.commit = Index(index);
        let mut after = self.replica(region).clone();
        after.install(entries.clone(), state);
        after.take_installed();
        let stage = self.stage(region, state, &after.rows_at(Index(index)))?;
        let head = self.head(region, state);
        let task = InstallTask { peer: peer(region), stage, head, hard_state: state };
        self.replica(region).install(entries, state);
        self.store.install(&task)?;
        if self.rng.u8(0..4) == 0 {
            self.store.purge_log()?;
        }
        self.checkpoint_with(Some(region))?;
        if self.rng.u8(0..4) == 0 {
            self.store.purge_log()?;
        }
        let reset = LogReset { index: state.commit, term: state.term };
        let write = LogWrite { reset: Some(reset), ..write(region, state, &[]) };
        self.queue(vec![write]);
        self.seen.snapshots += 1;
        self.flush()
    }

    fn head(&self, region: u64, state: HardState) -> SnapshotHead {
        let descriptor = view(&self.store, region).descriptor().clone();
        SnapshotHead { index: state.commit, term: state.term, descriptor }
    }

    /// Stages rows in chunks of some of them.
    fn stage(
        &mut self,
        region: u64,
        state: HardState,
        expected: &ExpectedRows,
    ) -> Result<StageId, Down> {
        let rows: Vec<_> =
            expected.rows.iter().map(|(key, value)| (key.clone(), value.row())).collect();
        let total = RegionSize { bytes: 0, keys: rows.len() as u64 };
        let offer = self.store.begin_stage(peer(region), &self.head(region, state), total)?;
        let StageOffer::Go(stage) = offer else { panic!("{offer:?}") };
        let watermark_ms = expected.watermark_ms;
        let mut end = SnapshotEnd { watermark_ms, ..SnapshotEnd::default() };
        for (number, rows) in (0..).zip(rows.chunks(self.rng.usize(1..4))) {
            let mut chunk = ChunkBuilder::new(number, ColumnFamily::Default, 0);
            rows.iter().for_each(|(key, value)| chunk.push(key, value));
            end.add(rows.len() as u64, chunk.rows());
            self.store.stage_chunk(stage, chunk.finish().bytes)?;
        }
        self.store.finish_stage(stage, end)?;
        Ok(stage)
    }

    /// Several logs are cut, each somewhere below what is durable in the pages.
    fn compact(&mut self) {
        let mut compactions = vec![];
        for region in 1..=4 {
            let replica = &self.replicas[&region];
            let low = replica.log.keys().next().copied().unwrap_or(u64::MAX);
            if low > replica.durable || self.rng.u8(0..4) == 0 {
                continue;
            }
            let all = replica.durable + 1;
            let first = if self.rng.bool() { all } else { self.rng.u64(low + 1..=all) };
            compactions.push(Compaction {
                region: RegionId(region),
                peer: peer(region),
                first: Index(first),
                term_before: replica.log[&(first - 1)].term,
            });
            // The window goes on without these entries at once, as raft's does.
            self.replica(region).compact(first);
        }
        if !compactions.is_empty() {
            self.pending.push((vec![], self.store.write_log(&[], &[], &compactions, &[])));
        }
    }

    fn entry(&mut self, region: u64, index: u64, term: u64) -> LogEntry {
        let start = ["", "", "", "h", "p"][region as usize];
        if self.rng.u8(0..8) == 0 {
            return entry(index, term, Bytes::new());
        }
        let key = |rng: &mut Rng| Bytes::from(format!("{start}{}", rng.char('a'..'f')));
        let ops: Vec<RawOp> = (0..self.rng.usize(1..4))
            .map(|_| {
                let rng = &mut self.rng;
                let value =
                    Bytes::from(format!("{index}.{term}-{}", "v".repeat(rng.usize(0..1000))));
                // Mostly none, so that rows without one are among them; placement has no others.
                let ttl_s = if region == 1 { 0 } else { rng.u64(0..6).saturating_sub(3) };
                match rng.u8(0..10) {
                    8 => RawOp::RaiseWatermark,
                    9 => RawOp::RemoveExpired { start: key(rng), end: Some(key(rng)) },
                    0 => RawOp::Delete { key: key(rng) },
                    1 => RawOp::DeleteRange { start: key(rng), end: Some(key(rng)) },
                    2 => {
                        let (key, value) = (key(rng), Some(value));
                        RawOp::CompareAndSwap { key, expected: None, value, ttl_s }
                    }
                    _ => RawOp::Put { key: key(rng), value, ttl_s },
                }
            })
            .collect();
        // The clocks of leaders: some seconds apart, and one of them goes on with the entries.
        let time_ms = 100_000 + 1000 * index - self.rng.u64(0..5_000);
        entry(index, term, data_at(time_ms, &[(1, &ops)]))
    }

    fn crash(&mut self) {
        self.seen.crashes += 1;
        self.pending.clear();
        self.fs.power_loss(self.rng.u64(..));
        // Opening writes as well, and may be cut off as well.
        while self.rng.u8(0..3) == 0 {
            self.fs.cut_power_after(self.rng.u64(1..10));
            self.seen.opens_cut += u64::from(try_open(&self.fs).is_err());
            self.fs.power_loss(self.rng.u64(..));
        }
        let (store, recovered) = open(&self.fs);
        self.store = store;
        self.store.check().unwrap();
        assert_eq!(recovered.len(), self.replicas.len());
        for found in &recovered {
            let region = found.descriptor.id.0;
            let replica = self.replicas.get_mut(&region).unwrap();
            replica.find_installed(found);
            replica.check(found, &stored_rows(&self.store, region));
            replica.restart(found);
            self.seen.replayed += found.tail.len() as u64;
        }
    }
}

#[test]
fn any_history_survives_any_crash() {
    let mut sum = Seen::default();
    for seed in 0..100 {
        let seen = std::panic::catch_unwind(|| {
            let mut history = History::new(seed);
            history.run(250);
            history.seen
        });
        let seen = seen.unwrap_or_else(|_| panic!("seed {seed} fails"));
        sum.crashes += seen.crashes;
        sum.opens_cut += seen.opens_cut;
        sum.segments_purged += seen.segments_purged;
        sum.replayed += seen.replayed;
        sum.replaced += seen.replaced;
        sum.snapshots += seen.snapshots;
    }
    println!("{sum:?}");
    assert!(sum.crashes > 1000 && sum.opens_cut > 100, "{sum:?}");
    assert!(sum.segments_purged > 100 && sum.replayed > 1000 && sum.replaced > 100, "{sum:?}");
    assert!(sum.snapshots > 500, "{sum:?}");
}
