//! A crash, the start after it, and the rules that hold behind each start.

use std::collections::{BTreeMap, BTreeSet};

use crate::log::{Birth, Item, VoteState};
use crate::rules::BrokenRule;
use crate::store::{LocalReplica, ModelStore, Slot};
use crate::truth::{FIRST, Index, Operation, RegionId, ReplicaId};

/// The rule that was found broken.
pub(crate) type Checked = Result<(), String>;

/// The log's part of one replica.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogGroup {
    region: RegionId,
    /// Where it begins after it was emptied.
    begin: Index,
    pub(crate) entries: BTreeMap<Index, Operation>,
    /// The newest hard state, and the batch that has it.
    state: Option<(usize, VoteState)>,
    birth: Option<Birth>,
}

impl LogGroup {
    pub(crate) fn newest_state(&self) -> VoteState {
        self.state.map_or_else(VoteState::default, |(_, state)| state)
    }

    fn is_by_split(&self) -> bool {
        matches!(self.birth, Some(Birth::Split(..)))
    }
}

impl ModelStore {
    /// The groups of the log.
    pub(crate) fn groups(&self) -> BTreeMap<ReplicaId, LogGroup> {
        let mut groups: BTreeMap<ReplicaId, LogGroup> = BTreeMap::new();
        for (lsn, log) in self.log.items() {
            let group = groups.entry(log.replica).or_default();
            group.region = log.region;
            match log.item {
                Item::Entry(index, operation) => {
                    group.entries.insert(index, operation);
                }
                Item::State(state) => group.state = Some((lsn, state)),
                Item::Birth(birth) => group.birth = Some(birth),
                Item::Reset(begin) => {
                    group.begin = begin;
                    group.entries.clear();
                }
            }
        }
        groups
    }

    /// The power goes, and the store starts on what is durable.
    pub(crate) fn crash(&mut self) -> Checked {
        let kept = self.rng.usize(self.log.synced..=self.log.batches.len());
        self.log.batches.truncate(kept);
        self.log.synced = kept;
        self.note(|| "crash".to_owned());
        self.count("crashes");
        if kept < self.root.checkpoint_lsn {
            return Err("no start: the log ends below the checkpoint".to_owned());
        }
        self.rows = self.root.rows.clone();
        self.tombstones = self.root.tombstones.clone();
        self.slots.clear();
        self.unheard.clear();
        let groups = self.groups();
        let mut replicas = self.root.replicas.clone();
        if !self.breaks(BrokenRule::BirthHiddenByRow) {
            // A row without data is none, if a split has made the replica a child since.
            let is_child = |id: &ReplicaId| groups.get(id).is_some_and(LogGroup::is_by_split);
            replicas.retain(|id, row| row.is_initialised || !is_child(id));
        }
        let with_row: BTreeSet<_> = replicas.keys().copied().collect();
        for row in replicas.into_values() {
            let group = groups.get(&row.id).cloned().unwrap_or_default();
            let own = self.recover(row, group)?;
            self.occupy(own.region, Slot::Replica(own))?;
        }
        for (id, group) in groups.iter().filter(|(id, _)| !with_row.contains(id)) {
            self.open_without_row(*id, group)?;
        }
        self.log.synced = self.log.batches.len();
        self.check()
    }

    fn occupy(&mut self, region: RegionId, slot: Slot) -> Checked {
        match self.slots.insert(region, slot) {
            None => Ok(()),
            Some(other) => Err(format!("no start: region {region} has another replica: {other:?}")),
        }
    }

    /// A replica with a row.
    fn recover(&mut self, row: LocalReplica, group: LogGroup) -> Result<LocalReplica, String> {
        let mut own = row;
        let newer = group.state.filter(|(lsn, _)| *lsn >= self.root.checkpoint_lsn);
        let row_commit = own.state.commit;
        if let Some((_, state)) = newer {
            own.state = state;
        }
        if !own.is_initialised {
            return Ok(own);
        }
        own.state.commit = own.state.commit.max(row_commit).max(own.applied);
        let first = group.entries.keys().next().copied();
        let connects = group.begin == own.applied
            || first.is_none_or(|first| first == own.applied + 1)
            || group.entries.contains_key(&own.applied);
        if connects {
            own.log = group.entries;
            own.log.retain(|index, _| *index > own.applied);
        } else if first.is_some_and(|first| first > own.applied + 1) {
            return Err(format!("no start: a hole in the log of {}", own.id));
        } else {
            self.log.write(vec![own.item(Item::Reset(own.applied)), own.state_item()]);
            self.count("logs reset at a start");
        }
        match own.state.commit > own.last() {
            true => Err(format!("no start: {} has committed more than its log has", own.id)),
            false => Ok(own),
        }
    }

    /// A group of the log without a row, before any message is taken.
    fn open_without_row(&mut self, id: ReplicaId, group: &LogGroup) -> Checked {
        let region = group.region;
        if id <= self.tombstone(region) {
            // The last step of an end.
            for batch in &mut self.log.batches {
                batch.retain(|log| log.replica != id);
            }
            return Ok(());
        }
        let Some(birth) = group.birth else {
            return Err(format!("no start: {id} has neither rows nor a birth"));
        };
        let state = group.newest_state();
        let without_data = LocalReplica { id, region, state, ..Default::default() };
        let (parent, index) = match birth {
            Birth::Message => return self.occupy(region, Slot::Replica(without_data)),
            Birth::Split(parent, index) => (parent, index),
        };
        let is_parent = |slot: &&Slot| match slot {
            Slot::Replica(own) => own.id == parent && own.is_initialised && own.applied < index,
            Slot::Unborn { replica, .. } => *replica == parent,
            Slot::Held { .. } | Slot::Ending(_) => false,
        };
        let commit = match self.slots.values().find(is_parent) {
            Some(Slot::Replica(own)) => own.state.commit,
            Some(_) => self.groups()[&parent].newest_state().commit,
            None => return Err(format!("no start: {id} has no parent here that makes it")),
        };
        if commit < index {
            return Err(format!("no start: {parent} may never apply the split of {id}"));
        }
        let last = group.entries.keys().last().copied().unwrap_or(FIRST);
        if state.commit > last {
            return Err(format!("no start: {id} has committed more than its log has"));
        }
        self.count("unborn");
        if self.breaks(BrokenRule::UnbornTakesMessages) {
            return self.occupy(region, Slot::Replica(without_data));
        }
        self.occupy(region, Slot::Unborn { replica: id, parent })
    }

    /// Applies all that is committed: no child is unborn then.
    pub(crate) fn apply_committed(&mut self) -> Checked {
        while let Some(region) =
            self.pick(|own| own.is_free() && own.is_initialised && own.applied < own.state.commit)
        {
            self.apply(region);
        }
        while !self.unheard.is_empty() {
            self.hear_split();
        }
        let mut slots = self.slots.values();
        match slots.find(|slot| matches!(slot, Slot::Unborn { .. })) {
            Some(slot) => Err(format!("never born: {slot:?}")),
            None => self.check(),
        }
    }

    /// The rules that hold in every state.
    pub(crate) fn check(&self) -> Checked {
        self.check_rows()?;
        let is_unborn = |slot: &Slot| matches!(slot, Slot::Unborn { .. });
        let has_unborn = self.slots.values().any(is_unborn);
        let groups = if has_unborn { self.groups() } else { BTreeMap::new() };
        let mut here: BTreeMap<ReplicaId, (VoteState, Index, BTreeSet<Index>)> = BTreeMap::new();
        for slot in self.slots.values() {
            match slot {
                Slot::Replica(own) => {
                    let entries = own.log.keys().copied().collect();
                    here.insert(own.id, (own.state, own.applied, entries));
                }
                Slot::Unborn { replica, .. } => {
                    let group = &groups[replica];
                    let entries = group.entries.keys().copied().collect();
                    here.insert(*replica, (group.newest_state(), 0, entries));
                }
                Slot::Held { .. } | Slot::Ending(_) => {}
            }
        }
        if let Some(id) = self.promises.gone.iter().find(|id| here.contains_key(id)) {
            return Err(format!("{id} was said to be gone, and is back"));
        }
        for (id, votes) in &self.promises.votes {
            let (term, vote) = votes.last_key_value().expect("it voted");
            let Some((state, ..)) = here.get(id) else {
                if !self.has_ended(*id) {
                    return Err(format!("{id} has voted, and is not there"));
                }
                continue;
            };
            if state.term < *term || state.term == *term && state.vote != *vote {
                return Err(format!("{id} forgot its vote of term {term}"));
            }
        }
        for (id, promised) in &self.promises.entries {
            let Some((_, applied, entries)) = here.get(id) else {
                if !promised.is_empty() && !self.has_ended(*id) {
                    return Err(format!("{id} has acknowledged entries, and is not there"));
                }
                continue;
            };
            let is_lost = |index: &&Index| *index > applied && !entries.contains(index);
            if let Some(index) = promised.iter().find(is_lost) {
                return Err(format!("{id} lost entry {index}, which it acknowledged"));
            }
        }
        Ok(())
    }

    fn has_ended(&self, id: ReplicaId) -> bool {
        let mut slots = self.slots.values();
        let is_ending = slots.any(|slot| matches!(slot, Slot::Ending(own) if own.id == id));
        is_ending || self.tombstones.values().any(|tombstone| *tombstone >= id)
    }

    fn check_rows(&self) -> Checked {
        let mut owners = BTreeMap::new();
        for own in self.replicas().filter(|own| own.is_initialised) {
            let truth = &self.truth[&own.region];
            let (end, rows) = truth.at(own.applied);
            if (own.start, own.end) != (truth.start, end) {
                return Err(format!("{} has the range of another index", own.id));
            }
            for key in own.start..own.end {
                if let Some(other) = owners.insert(key, own.id) {
                    return Err(format!("key {key} is of {other} and of {}", own.id));
                }
            }
            let range = self.rows.range(own.start..own.end);
            if !range.eq(rows.iter()) {
                return Err(format!("{} has other rows than at {}", own.id, own.applied));
            }
        }
        match self.rows.keys().find(|key| !owners.contains_key(key)) {
            Some(key) => Err(format!("key {key} is of no region")),
            None => Ok(()),
        }
    }
}
