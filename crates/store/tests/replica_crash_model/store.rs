//! The store: slots in memory, the log, the last durable root, and the promises that have left it.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;

use crate::log::{Birth, Item, LogItem, ModelLog, VoteState};
use crate::rules::BrokenRule;
use crate::truth::{DecidedRegion, FIRST, Index, KEYS, Key, Operation, RegionId, ReplicaId};

/// A snapshot on its way in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InstallStep {
    /// Raft has taken it; its range is promised.
    Taken,
    /// Its rows are published; no root has them.
    Published,
    /// A root has them; the log is not reset.
    InRoot,
}

/// A replica, and its rows.
#[derive(Clone, Debug, Default)]
pub(crate) struct LocalReplica {
    pub(crate) id: ReplicaId,
    pub(crate) region: RegionId,
    pub(crate) is_initialised: bool,
    pub(crate) start: Key,
    pub(crate) end: Key,
    pub(crate) applied: Index,
    pub(crate) state: VoteState,
    /// Entries above what the log has given up.
    pub(crate) log: BTreeMap<Index, Operation>,
    /// Entries that are not synced.
    pub(crate) unsynced: BTreeSet<Index>,
    pub(crate) installing: Option<(Index, InstallStep)>,
    /// The vote that was asked for before the split.
    pub(crate) held_vote: Option<u32>,
    /// The pages have it by a split, and the shard does not: it can do nothing yet.
    pub(crate) is_unheard: bool,
}

impl LocalReplica {
    pub(crate) fn last(&self) -> Index {
        self.log.keys().last().copied().unwrap_or(0).max(self.applied)
    }

    pub(crate) fn item(&self, item: Item) -> LogItem {
        LogItem { replica: self.id, region: self.region, item }
    }

    /// The hard state as it is written.
    pub(crate) fn state_item(&self) -> LogItem {
        self.item(Item::State(self.state))
    }

    pub(crate) fn is_free(&self) -> bool {
        self.installing.is_none() && !self.is_unheard
    }
}

/// The place of a region on the store.
#[derive(Clone, Debug)]
pub(crate) enum Slot {
    Replica(LocalReplica),
    /// Its range is held by another region here; the vote that was asked for waits.
    Held {
        replica: ReplicaId,
        vote: u32,
    },
    /// The log has the replica, whose split is to be applied again.
    Unborn {
        replica: ReplicaId,
        parent: ReplicaId,
    },
    /// Ended, and no root has it yet.
    Ending(LocalReplica),
}

/// The last durable root.
#[derive(Clone, Debug, Default)]
pub(crate) struct DurableRoot {
    pub(crate) replicas: BTreeMap<ReplicaId, LocalReplica>,
    pub(crate) rows: BTreeMap<Key, u32>,
    pub(crate) tombstones: BTreeMap<RegionId, ReplicaId>,
    /// Batches of the log whose hard states the root has.
    pub(crate) checkpoint_lsn: usize,
}

/// The content of messages that left the store, which must hold after any crash.
#[derive(Clone, Debug, Default)]
pub(crate) struct Promises {
    pub(crate) votes: BTreeMap<ReplicaId, BTreeMap<u32, u32>>,
    pub(crate) entries: BTreeMap<ReplicaId, BTreeSet<Index>>,
    pub(crate) gone: BTreeSet<ReplicaId>,
}

/// A split that the pages have, and the shard has not heard of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnheardSplit {
    pub(crate) parent: (RegionId, ReplicaId),
    pub(crate) index: Index,
    pub(crate) child: (RegionId, ReplicaId),
}

pub(crate) struct ModelStore {
    pub(crate) rng: Rng,
    pub(crate) broken: Option<BrokenRule>,
    pub(crate) counts: BTreeMap<&'static str, usize>,
    pub(crate) trace: Option<Vec<String>>,
    pub(crate) truth: BTreeMap<RegionId, DecidedRegion>,
    pub(crate) last_replica: ReplicaId,
    pub(crate) last_value: u32,
    pub(crate) slots: BTreeMap<RegionId, Slot>,
    pub(crate) rows: BTreeMap<Key, u32>,
    pub(crate) tombstones: BTreeMap<RegionId, ReplicaId>,
    pub(crate) unheard: Vec<UnheardSplit>,
    pub(crate) log: ModelLog,
    pub(crate) root: DurableRoot,
    pub(crate) promises: Promises,
}

impl ModelStore {
    /// A store with the first region.
    pub(crate) fn new(broken: Option<BrokenRule>, seed: u64, has_trace: bool) -> Self {
        let first = LocalReplica {
            id: 1,
            region: 1,
            is_initialised: true,
            end: KEYS,
            applied: FIRST,
            state: VoteState { term: 5, vote: 0, commit: FIRST },
            ..Default::default()
        };
        let mut store = Self {
            rng: Rng::with_seed(seed),
            broken,
            counts: BTreeMap::new(),
            trace: has_trace.then(Vec::new),
            truth: BTreeMap::from([(1, DecidedRegion::new((0, KEYS), BTreeMap::new(), 1))]),
            last_replica: 1,
            last_value: 0,
            slots: BTreeMap::from([(1, Slot::Replica(first))]),
            rows: BTreeMap::new(),
            tombstones: BTreeMap::new(),
            unheard: Vec::new(),
            log: ModelLog::default(),
            root: DurableRoot::default(),
            promises: Promises::default(),
        };
        store.checkpoint();
        store
    }

    pub(crate) fn breaks(&self, rule: BrokenRule) -> bool {
        self.broken == Some(rule)
    }

    pub(crate) fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    pub(crate) fn note(&mut self, step: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(step());
        }
    }

    pub(crate) fn replicas(&self) -> impl Iterator<Item = &LocalReplica> {
        self.slots.values().filter_map(|slot| match slot {
            Slot::Replica(own) => Some(own),
            _ => None,
        })
    }

    pub(crate) fn replica_mut(&mut self, region: RegionId) -> &mut LocalReplica {
        match self.slots.get_mut(&region) {
            Some(Slot::Replica(own)) => own,
            other => panic!("region {region} has no replica: {other:?}"),
        }
    }

    pub(crate) fn replica(&self, region: RegionId) -> Option<&LocalReplica> {
        match self.slots.get(&region) {
            Some(Slot::Replica(own)) => Some(own),
            _ => None,
        }
    }

    /// The region of one of the replicas that fit.
    pub(crate) fn pick(&mut self, fits: impl Fn(&LocalReplica) -> bool) -> Option<RegionId> {
        let fitting: Vec<_> =
            self.replicas().filter(|own| fits(own)).map(|own| own.region).collect();
        self.rng.choice(fitting)
    }

    pub(crate) fn tombstone(&self, region: RegionId) -> ReplicaId {
        self.tombstones.get(&region).copied().unwrap_or(0)
    }

    /// Whether a replica is here whose children are unborn: it must apply their splits first.
    pub(crate) fn has_unborn(&self, parent: ReplicaId) -> bool {
        let is_child =
            |slot: &Slot| matches!(slot, Slot::Unborn { parent: of, .. } if *of == parent);
        self.slots.values().any(is_child)
    }

    /// Whether a region here, other than `region`, has or was promised a part of a range.
    pub(crate) fn is_held(&self, region: RegionId, (start, end): (Key, Key)) -> bool {
        let holds = |own: &LocalReplica| own.is_initialised || own.installing.is_some();
        let mut others = self.replicas().filter(|own| own.region != region && holds(own));
        others.any(|own| own.start < end && start < own.end)
    }

    /// Syncs the log. Entries are acknowledged then.
    pub(crate) fn sync(&mut self) {
        self.log.synced = self.log.batches.len();
        for slot in self.slots.values_mut() {
            let Slot::Replica(own) = slot else { continue };
            own.unsynced.clear();
            if own.is_free() {
                let entries = self.promises.entries.entry(own.id).or_default();
                entries.extend(own.log.keys());
            }
        }
    }

    /// Makes a root of what is published, with the newest hard states.
    pub(crate) fn checkpoint(&mut self) {
        if !self.breaks(BrokenRule::RootBeforeLog) {
            self.sync();
        }
        let mut replicas = BTreeMap::new();
        for own in self.replicas() {
            let mut row = own.clone();
            row.log.clear();
            row.unsynced.clear();
            (row.installing, row.is_unheard) = (None, false);
            if !row.is_initialised {
                (row.start, row.end) = (0, 0);
            }
            replicas.insert(row.id, row);
        }
        self.root = DurableRoot {
            replicas,
            rows: self.rows.clone(),
            tombstones: self.tombstones.clone(),
            checkpoint_lsn: self.log.batches.len(),
        };
        let ended: Vec<_> = self
            .slots
            .iter()
            .filter(|(_, slot)| matches!(slot, Slot::Ending(_)))
            .map(|(region, _)| *region)
            .collect();
        for region in ended {
            if let Some(Slot::Ending(own)) = self.slots.remove(&region) {
                self.promises.gone.insert(own.id);
            }
        }
        for slot in self.slots.values_mut() {
            if let Slot::Replica(own) = slot
                && let Some((_, step)) = &mut own.installing
                && *step == InstallStep::Published
            {
                *step = InstallStep::InRoot;
            }
        }
        self.note(|| "checkpoint".to_owned());
        if self.rng.bool() {
            self.purge();
        }
    }

    /// The log gives up what the last durable root has.
    pub(crate) fn purge(&mut self) {
        let by_memory = self.breaks(BrokenRule::LogGoneByMemory);
        let (root, slots) = (&self.root, &self.slots);
        let applied = |log: &LogItem| match slots.get(&log.region) {
            Some(Slot::Replica(own)) if by_memory && own.id == log.replica => own.applied,
            _ => root.replicas.get(&log.replica).map_or(0, |row| row.applied),
        };
        for (lsn, batch) in self.log.batches.iter_mut().enumerate() {
            batch.retain(|log| {
                let tombstone = root.tombstones.get(&log.region).copied().unwrap_or(0);
                let has_row = root.replicas.contains_key(&log.replica);
                match log.item {
                    _ if log.replica <= tombstone => false,
                    Item::Entry(index, _) => index > applied(log),
                    Item::State(_) | Item::Birth(_) => !has_row || lsn >= root.checkpoint_lsn,
                    Item::Reset(_) => true,
                }
            });
        }
    }

    /// Ends a replica: its rows go, the tombstone rises. It counts by a root.
    pub(crate) fn end(&mut self, region: RegionId) {
        let Some(Slot::Replica(own)) = self.slots.remove(&region) else {
            panic!("region {region} has no replica to end");
        };
        if own.is_initialised {
            self.rows.retain(|key, _| *key < own.start || *key >= own.end);
        }
        let tombstone = self.tombstones.entry(region).or_default();
        *tombstone = (*tombstone).max(own.id);
        match self.broken {
            Some(BrokenRule::GoneBeforeRoot) => {
                self.promises.gone.insert(own.id);
            }
            Some(BrokenRule::EndEmptiesLog) => {
                self.log.write(vec![own.item(Item::Reset(0))]);
                self.sync();
            }
            _ => {}
        }
        let id = own.id;
        self.note(|| format!("{id} of region {region} ends"));
        self.count("ends");
        if !self.breaks(BrokenRule::SuccessorBeforeRoot) {
            self.slots.insert(region, Slot::Ending(own));
        }
    }

    /// The shard hears of a split: the births go into the log behind the parent's commit index,
    /// then the child may speak.
    pub(crate) fn hear_split(&mut self) {
        if self.unheard.is_empty() {
            return;
        }
        let split = self.unheard.remove(0);
        let (region, id) = split.child;
        let mut batch = Vec::new();
        let parent = match self.slots.get(&split.parent.0) {
            Some(Slot::Replica(own)) if own.id == split.parent.1 => Some(own),
            Some(Slot::Ending(own)) if own.id == split.parent.1 => {
                Some(own).filter(|_| !self.breaks(BrokenRule::EndedParentSaysNothing))
            }
            // A root has the parent's end, and the child's rows.
            _ => None,
        };
        if !self.breaks(BrokenRule::ParentCommitLate) {
            batch.extend(parent.map(LocalReplica::state_item));
        }
        let own = match self.slots.get_mut(&region) {
            Some(Slot::Replica(own)) if own.id == id => own,
            other => panic!("the child of a split that is not heard does nothing: {other:?}"),
        };
        own.is_unheard = false;
        let birth = Birth::Split(split.parent.1, split.index);
        batch.extend([own.item(Item::Birth(birth)), own.state_item()]);
        let held_vote = own.held_vote.take();
        self.log.write(batch);
        self.note(|| format!("region {region} is born as {id}"));
        if let Some(vote) = held_vote {
            self.count("held votes given");
            self.give_vote(region, vote, !self.breaks(BrokenRule::HeldVoteUnwritten));
        }
    }
}
