//! Snapshots that are held while the store goes on, and bounds so small that the memory behind them
//! is spilled all the time.

use std::collections::BTreeSet;
use std::ops::AddAssign;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use flotilla_pagestore::{Error, Options, PageStore, Snapshot, SpillStats};
use flotilla_vfs::fault::{FaultFs, TemporaryFault};

use super::oracle::State;

/// The bounds of what old snapshots may hold, drawn by seed.
#[derive(Clone, Copy)]
pub(crate) struct SnapshotBounds {
    memory_bytes: u64,
    disk_bytes: u64,
}

impl SnapshotBounds {
    /// None for a history with the store's own bounds, which are never reached.
    pub(crate) fn of(seed: u64) -> Option<SnapshotBounds> {
        // Not what the shape of pages is drawn from.
        let mut rng = Rng::with_seed(!seed);
        let memory_bytes = rng.choice([Some(0), Some(3 * 4096), None]).flatten()?;
        let disk_bytes = rng.choice([0, 4 << 20, 1 << 30])?;
        Some(SnapshotBounds { memory_bytes, disk_bytes })
    }

    pub(crate) fn set(self, options: Options) -> Options {
        options.old_version_bytes(self.memory_bytes).old_version_disk_bytes(self.disk_bytes)
    }
}

/// Sums over spills.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SpillCounts {
    pub(crate) written_bytes: u64,
    pub(crate) refused: u64,
    pub(crate) ended: u64,
    /// Snapshots that were read whole while memory of the store was in the spill file.
    pub(crate) read: u64,
}

impl AddAssign for SpillCounts {
    fn add_assign(&mut self, more: SpillCounts) {
        self.written_bytes += more.written_bytes;
        self.refused += more.refused;
        self.ended += more.ended;
        self.read += more.read;
    }
}

struct HeldSnapshot {
    snapshot: Snapshot,
    state: Arc<State>,
}

/// The snapshots of one store, oldest first.
#[derive(Default)]
pub(crate) struct HeldSnapshots {
    held: Vec<HeldSnapshot>,
    /// Transactions whose snapshots the store has ended.
    ended: BTreeSet<u64>,
    /// A time as maintenance has it.
    now: Duration,
    has_fault: bool,
    counts: SpillCounts,
}

impl HeldSnapshots {
    pub(crate) fn take(&mut self, store: &PageStore, state: Arc<State>) {
        self.held.push(HeldSnapshot { snapshot: store.read(), state });
    }

    /// Reads one of them whole, and drops it.
    pub(crate) fn drop_one(&mut self, store: &PageStore, rng: &mut Rng) {
        if !self.held.is_empty() {
            let held = self.held.remove(rng.usize(..self.held.len()));
            self.assert_is(store, &held);
        }
    }

    /// Reads all of them whole.
    pub(crate) fn assert_all(&mut self, store: &PageStore) {
        let held = std::mem::take(&mut self.held);
        held.iter().for_each(|held| self.assert_is(store, held));
        self.held = held;
    }

    /// A snapshot is what it was taken of, or each read of a page says that it was ended.
    fn assert_is(&mut self, store: &PageStore, HeldSnapshot { snapshot, state }: &HeldSnapshot) {
        let txid = snapshot.txid();
        match state.compare(snapshot) {
            // Without a tree there is no page to read.
            Ok(()) => assert!(
                !self.ended.contains(&txid) || state.is_empty(),
                "an ended snapshot is read"
            ),
            Err(Error::SnapshotTooOld { txid: named }) => {
                assert!(named == txid && self.ended.contains(&txid), "{txid} was not ended");
            }
            Err(error) => panic!("a snapshot cannot be read: {error}"),
        }
        self.counts.read += u64::from(store.stats().spill.spilled_bytes > 0);
    }

    /// A checkpoint while a reader has borrowed the values of a snapshot.
    pub(crate) fn checkpoint_beneath(&self, rng: &mut Rng, mut checkpoint: impl FnMut()) {
        let readable: Vec<&HeldSnapshot> =
            (self.held.iter()).filter(|held| !self.ended.contains(&held.snapshot.txid())).collect();
        let Some(held) = rng.choice(readable) else { return checkpoint() };
        let trees = held.state.trees(&held.snapshot);
        let borrowed: Vec<_> =
            trees.iter().flat_map(|(tree, map)| State::borrow(tree, map)).collect();
        checkpoint();
        assert!(borrowed.iter().all(|(found, value)| **found == **value), "borrowed bytes changed");
    }

    /// A step of maintenance some seconds later. It may end the oldest snapshot.
    pub(crate) fn maintain(&mut self, store: &PageStore, rng: &mut Rng) {
        self.now += Duration::from_millis(rng.u64(..20_000));
        let before = store.stats().spill.ended_snapshots;
        store.maintain(self.now).expect("the disk is well");
        match store.stats().spill.ended_snapshots - before {
            0 => {}
            count => {
                assert_eq!(count, 1, "several were ended at once");
                let left = self.held.iter().map(|held| held.snapshot.txid());
                let oldest = left.filter(|txid| !self.ended.contains(txid)).min();
                let oldest = oldest.expect("a snapshot was ended, and none was held");
                assert!(oldest < store.stats().txid, "the last published state was ended");
                self.ended.insert(oldest);
            }
        }
    }

    /// Lets the disk refuse something to the spill file, or nothing any more.
    pub(crate) fn inject(&mut self, disk: &FaultFs, rng: &mut Rng) {
        let fault = if rng.bool() { rng.choice(TemporaryFault::ALL) } else { None };
        self.has_fault |= fault.is_some();
        disk.fail_temporary(fault);
    }

    /// Drops all of them, because the store is going to be closed.
    pub(crate) fn end(&mut self, store: &PageStore) {
        self.held.clear();
        self.ended.clear();
        self.now = Duration::ZERO;
        let SpillStats { written_bytes, error_count, ended_snapshots, .. } = store.stats().spill;
        assert!(self.has_fault || error_count == 0, "a spill was refused by a good disk");
        self.counts.written_bytes += written_bytes;
        self.counts.refused += error_count;
        self.counts.ended += ended_snapshots;
    }

    pub(crate) fn counts(&self) -> SpillCounts {
        self.counts
    }
}
