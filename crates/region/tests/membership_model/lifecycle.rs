//! Steps of the stores themselves: they apply the split that makes the child, crash, start again.

use crate::configuration::ReplicaId;
use crate::group::ModelGroup;
use crate::rules::BrokenRule;
use crate::store::{Birth, LogGroup, ModelReplica, ParentHere, Slot};

/// The store and the number of the child that the split makes.
const CHILD: (usize, ReplicaId) = (2, 3);

impl ModelGroup {
    /// The parent of the group does its next thing on the store that has not applied the split.
    pub(crate) fn step_parent(&mut self, leaves: bool) {
        let (at, id) = CHILD;
        if self.down[at] {
            return;
        }
        let store = &mut self.stores[at];
        match store.parent {
            ParentHere::Past => return,
            ParentHere::Arriving => {
                // Its snapshot counts by a root, like any.
                store.parent = if leaves { ParentHere::Past } else { ParentHere::Holds };
                self.write_root(at);
                return;
            }
            ParentHere::Holds if leaves && !matches!(store.slot, Slot::Unborn) => {
                store.parent = ParentHere::Past;
                if matches!(store.slot, Slot::Held(_)) {
                    store.slot = Slot::Absent;
                }
                return;
            }
            ParentHere::Holds => {}
        }
        if !matches!(self.stores[at].slot, Slot::Ending(_)) {
            self.apply_split(at, id);
        }
    }

    /// Applies the split, for the first time or again.
    fn apply_split(&mut self, at: usize, id: ReplicaId) {
        let store = &mut self.stores[at];
        store.parent = ParentHere::Past;
        let is_dead = id <= store.tombstone && self.broken != Some(BrokenRule::DeadChildMade);
        let mut kept = None;
        match &mut store.slot {
            Slot::Replica(other) if other.id == id => {
                // A replica without data that its range's owner made meanwhile: term and vote stay.
                other.is_initialised = true;
                self.counts.children_taken_over += 1;
            }
            Slot::Replica(_) => {
                // A later replica: the child was removed before it came.
                self.counts.children_dead += 1;
                return;
            }
            _ if is_dead => {
                store.slot = Slot::Absent;
                self.counts.children_dead += 1;
                return;
            }
            Slot::Unborn => {
                let replica = store.log[&id].replica.clone();
                store.slot = Slot::Replica(replica);
                self.counts.unborn += 1;
            }
            slot => {
                if let Slot::Held(request) = slot {
                    kept = *request;
                }
                *slot = Slot::Replica(ModelReplica::founder(id));
                self.counts.children_made += 1;
            }
        }
        let child = store.replica_mut().expect("it was made above");
        child.see_term(1);
        let replica = child.clone();
        // The log has the birth, and before it that the split is committed: it is applied again
        // after any crash.
        store.log.insert(id, LogGroup { birth: Birth::Split, replica });
        self.note(|| format!("store {at} applies the split"));
        if let Some(request) = kept.filter(|request| request.to == id) {
            self.give_held_vote(request);
        }
    }

    /// The store's process ends, and starts again on its log and its last root.
    pub(crate) fn crash(&mut self, at: usize) {
        self.note(|| format!("store {at} crashes"));
        self.counts.crashes += 1;
        let reads_births = !self.breaks(BrokenRule::BirthNotRead);
        let broken = self.broken;
        let store = &mut self.stores[at];
        store.tombstone = store.root.tombstone;
        store.parent = store.root.parent;
        store.slot = Slot::Absent;
        let is_unborn =
            |group: &LogGroup, parent| group.birth == Birth::Split && parent != ParentHere::Past;
        let unborn = store.log.get(&CHILD.1).filter(|group| is_unborn(group, store.parent));
        if let Some(group) = unborn {
            store.slot = Slot::Unborn;
            if broken == Some(BrokenRule::UnbornTakesMessages) {
                let (term, vote) = (group.replica.term, group.replica.vote);
                let own = ModelReplica::uninitialised(CHILD.1);
                store.slot = Slot::Replica(ModelReplica { term, vote, ..own });
            }
        } else if let Some((id, is_initialised, applied)) = store.root.replica {
            let group = store.log.get(&id).map(|group| group.replica.clone());
            // A group that the log gave up too early: the replica has forgotten everything.
            let group = group.unwrap_or_else(|| ModelReplica::uninitialised(id));
            let commit = match broken {
                Some(BrokenRule::CommitForgotten) => applied,
                _ => group.commit.max(applied),
            };
            let is_initialised = is_initialised && group.is_initialised;
            let replica = ModelReplica { is_initialised, applied, commit, ..group };
            let replica = if is_initialised {
                replica
            } else {
                ModelReplica { applied: 0, commit: 0, log: vec![], ..replica }
            };
            store.slot = Slot::Replica(replica);
        } else {
            let mut born = store.log.values().rev();
            let born = born.find(|group| group.replica.id > store.root.tombstone);
            if let Some(group) = born.filter(|_| reads_births) {
                store.slot = Slot::Replica(group.replica.clone());
            }
        }
        let tombstone = store.tombstone;
        store.log.retain(|id, _| *id > tombstone);
    }
}
