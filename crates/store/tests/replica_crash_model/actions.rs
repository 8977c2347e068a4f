//! The life of the replicas of the store: entries, splits, ends, messages, votes.

use crate::log::{Birth, Item};
use crate::rules::BrokenRule;
use crate::store::{LocalReplica, ModelStore, Slot, UnheardSplit};
use crate::truth::{DecidedRegion, FIRST, Index, Key, Operation, RegionId, ReplicaId};

/// Entries of a region's log, so that a history ends.
const ENTRIES_MAX: Index = 60;

impl ModelStore {
    /// A replica writes its next entry; it may have to be decided first.
    pub(crate) fn append(&mut self) {
        let Some(region) = self.pick(|own| own.is_initialised && own.is_free()) else { return };
        let (id, index) = {
            let own = self.replica_mut(region);
            (own.id, own.last() + 1)
        };
        let truth = &self.truth[&region];
        if truth.replica != id || index > truth.last() && truth.is_removed {
            return;
        }
        if index > truth.last() {
            self.decide(region, id);
        }
        let operation = self.truth[&region].operation(index);
        let (knows_commit, is_synced) = (self.rng.bool(), self.rng.u8(..10) < 6);
        let own = self.replica_mut(region);
        own.log.insert(index, operation);
        own.unsynced.insert(index);
        if knows_commit {
            own.state.commit = own.state.commit.max(index - 1);
        }
        let batch = vec![own.item(Item::Entry(index, operation)), own.state_item()];
        self.log.write(batch);
        self.note(|| format!("{id} writes {index}: {operation:?}"));
        if is_synced {
            self.sync();
        }
    }

    fn decide(&mut self, region: RegionId, id: ReplicaId) {
        let truth = &self.truth[&region];
        let (start, (end, rows)) = (truth.start, truth.at(truth.last()));
        let operation = match self.rng.u8(..100) {
            0..=13 if end - start >= 4 => {
                let key = self.rng.u8(start + 1..end);
                self.last_replica += 1;
                let child = self.last_replica;
                let region = RegionId::try_from(self.truth.len()).expect("few regions") + 1;
                let rows = rows.into_iter().filter(|(own, _)| *own >= key).collect();
                self.truth.insert(region, DecidedRegion::new((key, end), rows, child));
                Operation::Split { key, end, region, replica: child }
            }
            14..=18 => Operation::Remove(id),
            _ => self.put(start, end),
        };
        self.truth.get_mut(&region).expect("it exists").decide(operation);
    }

    fn put(&mut self, start: Key, end: Key) -> Operation {
        self.last_value += 1;
        Operation::Put(self.rng.u8(start..end), self.last_value)
    }

    /// The rest of a group goes on without the replica here, or removes it.
    pub(crate) fn decide_elsewhere(&mut self) {
        let goes_on = |truth: &DecidedRegion| !truth.is_removed && truth.last() < ENTRIES_MAX;
        let open = self.truth.iter().filter(|(_, truth)| goes_on(truth));
        let open: Vec<_> = open.map(|(region, _)| *region).collect();
        let Some(region) = self.rng.choice(open) else { return };
        let truth = &self.truth[&region];
        let operation = match self.rng.u8(..10) {
            0 | 1 => Operation::Remove(truth.replica),
            _ => {
                let (start, (end, _)) = (truth.start, truth.at(truth.last()));
                self.put(start, end)
            }
        };
        self.truth.get_mut(&region).expect("it was found").decide(operation);
    }

    /// A replica that was removed comes back under a new number.
    pub(crate) fn add_again(&mut self) {
        let removed = self.truth.iter().filter(|(_, truth)| truth.is_removed);
        let removed: Vec<_> = removed.map(|(region, _)| *region).collect();
        let Some(region) = self.rng.choice(removed) else { return };
        self.last_replica += 1;
        let id = self.last_replica;
        let truth = self.truth.get_mut(&region).expect("it was found");
        (truth.replica, truth.is_removed, truth.since) = (id, false, truth.last());
        self.receive(region);
    }

    /// A message comes for a replica that the group believes to be here.
    pub(crate) fn receive_one(&mut self) {
        let regions: Vec<_> = self.truth.keys().copied().collect();
        if let Some(region) = self.rng.choice(regions) {
            self.receive(region);
        }
    }

    fn receive(&mut self, region: RegionId) {
        let truth = &self.truth[&region];
        let (id, range) = (truth.replica, (truth.start, truth.at(truth.last()).0));
        match self.slots.get(&region) {
            Some(Slot::Replica(own)) if own.id < id && own.is_free() && self.may_end(own.id) => {
                self.end(region);
            }
            None if id > self.tombstone(region) => {
                if self.is_held(region, range) {
                    // The replica that will be made, or one that comes when the range is free.
                    let vote = self.rng.u32(1..9);
                    self.slots.insert(region, Slot::Held { replica: id, vote });
                    self.count("held");
                    return;
                }
                let own = LocalReplica { id, region, ..Default::default() };
                if !self.breaks(BrokenRule::VoteBeforeBirth) {
                    self.log.write(vec![own.item(Item::Birth(Birth::Message)), own.state_item()]);
                }
                self.slots.insert(region, Slot::Replica(own));
                self.note(|| format!("{id} of region {region} without data"));
                self.count("without data");
            }
            _ => {}
        }
    }

    /// The vote of a held slot is no longer wanted.
    pub(crate) fn forget_held(&mut self) {
        let held = self.slots.iter().find(|(_, slot)| matches!(slot, Slot::Held { .. }));
        if let Some(region) = held.map(|(region, _)| *region) {
            self.slots.remove(&region);
        }
    }

    /// A replica ends only when its children are born: their rows are in its range.
    fn may_end(&self, id: ReplicaId) -> bool {
        !self.has_unborn(id) || self.breaks(BrokenRule::ParentEndsBeforeBirth)
    }

    /// A replica hears that its group goes on without it, or a store that it never had it.
    pub(crate) fn hear_gone(&mut self) {
        let truth = &self.truth;
        let is_gone = |own: &LocalReplica| {
            truth[&own.region].replica != own.id || truth[&own.region].is_removed
        };
        let here = self.replicas().filter(|own| own.is_free() && self.may_end(own.id));
        let here: Vec<_> = here.filter(|own| is_gone(own)).map(|own| own.region).collect();
        if let Some(region) = self.rng.choice(here) {
            self.end(region);
            return;
        }
        let is_empty =
            |region: &RegionId| matches!(self.slots.get(region), None | Some(Slot::Held { .. }));
        let never = truth.iter().filter(|(region, truth)| {
            truth.is_removed && is_empty(region) && self.tombstone(**region) < truth.replica
        });
        let never: Vec<_> = never.map(|(region, truth)| (*region, truth.replica)).collect();
        if let Some((region, id)) = self.rng.choice(never) {
            self.tombstones.insert(region, id);
            let own = LocalReplica { id, region, ..Default::default() };
            self.slots.insert(region, Slot::Ending(own));
            self.count("ended without a life");
        }
    }

    /// A replica votes in a term of its own time.
    pub(crate) fn vote(&mut self) {
        let while_installing = self.breaks(BrokenRule::VoteWhileInstalling);
        let may_vote =
            |own: &LocalReplica| own.is_free() || while_installing && own.installing.is_some();
        let Some(region) = self.pick(may_vote) else { return };
        let vote = self.rng.u32(1..9);
        let own = self.replica_mut(region);
        let is_written = own.is_initialised || !self.breaks(BrokenRule::VoteBeforeBirth);
        self.give_vote(region, vote, is_written);
    }

    /// A vote is synced before it leaves.
    pub(crate) fn give_vote(&mut self, region: RegionId, vote: u32, is_written: bool) {
        let own = self.replica_mut(region);
        own.state.term += 1;
        own.state.vote = vote;
        let mut state = own.state;
        if let Some((index, _)) = own.installing {
            // Raft knows it as committed since it took the snapshot.
            state.commit = index;
        }
        let (id, term, item) = (own.id, own.state.term, own.item(Item::State(state)));
        if is_written {
            self.log.write(vec![item]);
            self.sync();
        }
        self.promises.votes.entry(id).or_default().insert(term, vote);
        self.note(|| format!("{id} votes in term {term}"));
        self.count("votes");
    }

    pub(crate) fn apply_one(&mut self) {
        let is_ready = |own: &LocalReplica| {
            let next = own.applied + 1;
            own.is_free() && own.log.contains_key(&next) && !own.unsynced.contains(&next)
        };
        if let Some(region) = self.pick(is_ready) {
            self.apply(region);
        }
    }

    /// Applies the next entry: one transaction of the pages.
    pub(crate) fn apply(&mut self, region: RegionId) {
        let own = self.replica_mut(region);
        own.applied += 1;
        own.state.commit = own.state.commit.max(own.applied);
        let (id, index) = (own.id, own.applied);
        let operation = own.log[&index];
        self.note(|| format!("{id} applies {index}: {operation:?}"));
        match operation {
            Operation::Put(key, value) => {
                self.rows.insert(key, value);
            }
            Operation::Remove(removed) => {
                if removed == id {
                    self.end(region);
                }
            }
            Operation::Split { key, end, region: child, replica } => {
                self.replica_mut(region).end = key;
                let split = UnheardSplit { parent: (region, id), index, child: (child, replica) };
                self.apply_split(split, (key, end));
            }
        }
    }

    fn apply_split(&mut self, split: UnheardSplit, (start, end): (Key, Key)) {
        let (region, id) = split.child;
        let later = match self.slots.get(&region) {
            Some(Slot::Replica(own) | Slot::Ending(own)) => own.id > id,
            _ => false,
        };
        let is_dead = self.tombstone(region) >= id && !self.breaks(BrokenRule::DeadChildMade);
        if is_dead || later {
            self.rows.retain(|key, _| *key < start || *key >= end);
            let tombstone = self.tombstones.entry(region).or_default();
            *tombstone = (*tombstone).max(id);
            self.count("children not made");
            return;
        }
        let mut own = LocalReplica { id, region, ..Default::default() };
        let mut is_unheard = true;
        match self.slots.remove(&region) {
            Some(Slot::Unborn { .. }) => {
                // The log has its birth already, and all that it promised.
                let group = self.groups().remove(&id).expect("it was found at the start");
                own.state = group.newest_state();
                own.log = group.entries;
                own.log.retain(|index, _| *index > FIRST);
                is_unheard = false;
                self.count("born at last");
            }
            Some(Slot::Replica(other)) => {
                own.state = other.state;
                self.count("children taken over");
            }
            Some(Slot::Held { replica, vote }) => {
                own.held_vote = (replica == id).then_some(vote);
                self.count("children made");
            }
            _ => self.count("children made"),
        }
        own.state.term = own.state.term.max(5);
        own.state.commit = own.state.commit.max(FIRST);
        (own.is_initialised, own.applied, own.is_unheard) = (true, FIRST, is_unheard);
        (own.start, own.end) = (start, end);
        self.slots.insert(region, Slot::Replica(own));
        if is_unheard {
            self.unheard.push(split);
        }
    }
}
