//! The group on its stores: elections, the log and changes of members, each a step that is durable
//! where it says so. A rule that is broken comes back as an error.

use std::collections::BTreeMap;

use fastrand::Rng;

use crate::configuration::{Change, Configuration, Entry, IdSet, ReplicaId};
use crate::rules::BrokenRule;
use crate::store::{ModelReplica, ModelStore, ParentHere, Slot, VoteRequest};

pub(crate) const STORES: usize = 4;
/// Entries of the longest log, so that a walk ends.
const ENTRIES_MAX: usize = 24;

/// The rule that a step found broken.
pub(crate) type Checked = Result<(), String>;

/// How often each thing happened that the model is there for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WalkCounts {
    pub(crate) elections: usize,
    pub(crate) joint_elections: usize,
    pub(crate) changes: usize,
    pub(crate) snapshots: usize,
    pub(crate) votes_without_data: usize,
    pub(crate) ends: usize,
    pub(crate) refused_by_tombstone: usize,
    pub(crate) held: usize,
    pub(crate) held_votes_given: usize,
    pub(crate) children_made: usize,
    pub(crate) children_taken_over: usize,
    pub(crate) children_dead: usize,
    pub(crate) unborn: usize,
    pub(crate) crashes: usize,
    pub(crate) calm_with_a_dead_store: usize,
}

impl WalkCounts {
    fn all(&mut self) -> [(&'static str, &mut usize); 15] {
        [
            ("elections", &mut self.elections),
            ("elections in a joint configuration", &mut self.joint_elections),
            ("changes", &mut self.changes),
            ("snapshots", &mut self.snapshots),
            ("votes without data", &mut self.votes_without_data),
            ("ends", &mut self.ends),
            ("messages refused by a tombstone", &mut self.refused_by_tombstone),
            ("held slots", &mut self.held),
            ("held votes that were given", &mut self.held_votes_given),
            ("children made", &mut self.children_made),
            ("children taken over", &mut self.children_taken_over),
            ("children not made", &mut self.children_dead),
            ("unborn children", &mut self.unborn),
            ("crashes", &mut self.crashes),
            ("calms with a dead store", &mut self.calm_with_a_dead_store),
        ]
    }

    pub(crate) fn add(&mut self, other: &Self) {
        let mut other = *other;
        for ((_, own), (_, more)) in self.all().into_iter().zip(other.all()) {
            *own += *more;
        }
    }

    /// A model in which something never happens proves nothing about it.
    pub(crate) fn assert_all_happened(mut self) {
        for (what, count) in self.all() {
            assert!(*count > 0, "{what}: never");
        }
    }
}

/// One state of the group.
pub(crate) struct ModelGroup {
    pub(crate) stores: Vec<ModelStore>,
    pub(crate) rng: Rng,
    pub(crate) broken: Option<BrokenRule>,
    pub(crate) counts: WalkCounts,
    /// Steps so far, if they are wanted.
    pub(crate) trace: Option<Vec<String>>,
    /// The store of each number that was ever given out.
    pub(crate) store_of: BTreeMap<ReplicaId, usize>,
    pub(crate) founders: Configuration,
    /// The leader of each term.
    leaders: BTreeMap<u32, ReplicaId>,
    /// The entries that some leader committed.
    pub(crate) committed: Vec<Entry>,
    /// The replicas whose end was confirmed.
    pub(crate) confirmed_gone: IdSet,
    /// The stores that nothing reaches, and that do nothing.
    pub(crate) down: [bool; STORES],
    /// The store that hears of its leaders less than others; in a third of the walks.
    pub(crate) lagging: usize,
    /// The store of the last candidate.
    pub(crate) candidate: usize,
}

impl ModelGroup {
    /// A group of one or three founders. The third one may be missing on its store, which has to
    /// apply the split that makes it.
    pub(crate) fn new(broken: Option<BrokenRule>, seed: u64, has_trace: bool) -> Self {
        let (founders, third): (&[ReplicaId], _) = match seed % 4 {
            0 => (&[1, 2, 3], Some(ParentHere::Holds)),
            1 => (&[1, 2, 3], None),
            2 => (&[1, 2, 3], Some(ParentHere::Arriving)),
            _ => (&[1], None),
        };
        let mut stores = vec![ModelStore::default(); STORES];
        let mut store_of = BTreeMap::new();
        for &id in founders {
            let at = usize::from(id) - 1;
            store_of.insert(id, at);
            stores[at] = match third.filter(|_| id == 3) {
                Some(parent) => ModelStore::before_split(parent),
                None => ModelStore::founded(id),
            };
        }
        Self {
            stores,
            rng: Rng::with_seed(seed),
            broken,
            counts: WalkCounts::default(),
            trace: has_trace.then(Vec::new),
            store_of,
            founders: Configuration::of_founders(founders),
            leaders: BTreeMap::new(),
            committed: Vec::new(),
            confirmed_gone: IdSet::default(),
            down: [false; STORES],
            lagging: if seed.is_multiple_of(3) { (seed / 3) as usize % STORES } else { STORES },
            candidate: STORES,
        }
    }

    pub(crate) fn breaks(&self, rule: BrokenRule) -> bool {
        self.broken == Some(rule)
    }

    pub(crate) fn note(&mut self, step: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(step());
        }
    }

    pub(crate) fn configuration(&self, entries: &[Entry]) -> Configuration {
        self.founders.after(entries, self.broken)
    }

    /// The configuration that a replica has applied.
    pub(crate) fn applied_configuration(&self, replica: &ModelReplica) -> Configuration {
        self.configuration(&replica.log[..replica.applied])
    }

    pub(crate) fn leader_at(&self, at: usize) -> Option<ModelReplica> {
        self.stores[at].replica().filter(|replica| replica.leads).cloned()
    }

    /// Writes a store's replica to its log, unless the broken rule forbids it.
    pub(crate) fn write_log(&mut self, at: usize) {
        let is_initialised = self.stores[at].replica().is_some_and(|own| own.is_initialised);
        if is_initialised || !self.breaks(BrokenRule::VoteBeforeBirth) {
            self.stores[at].write_log();
        }
    }

    /// Whether a message for `to`, from a replica with this configuration, meets it on its store.
    /// It may be made, and an older one may end.
    pub(crate) fn reach(&mut self, to: ReplicaId, version: usize) -> Option<usize> {
        let at = self.store_of[&to];
        if self.down[at] {
            return None;
        }
        let (own, is_initialised, own_version) = match &self.stores[at].slot {
            Slot::Replica(own) => {
                (own.id, own.is_initialised, self.applied_configuration(own).version)
            }
            Slot::Absent | Slot::Held(_) => return self.reach_empty_slot(at, to),
            Slot::Unborn | Slot::Ending(_) => return None,
        };
        if own == to {
            return Some(at);
        }
        // A replica with data ends only by a message of a later configuration.
        if own < to && (!is_initialised || own_version < version) {
            self.end(at);
        }
        None
    }

    fn reach_empty_slot(&mut self, at: usize, to: ReplicaId) -> Option<usize> {
        let store = &mut self.stores[at];
        if to <= store.tombstone {
            self.counts.refused_by_tombstone += 1;
            return None;
        }
        if store.parent == ParentHere::Holds {
            if matches!(store.slot, Slot::Absent) {
                store.slot = Slot::Held(None);
                self.counts.held += 1;
            }
            return None;
        }
        store.slot = Slot::Replica(ModelReplica::uninitialised(to));
        self.note(|| format!("store {at} has {to} without data"));
        Some(at)
    }

    /// Ends the replica of a store.
    pub(crate) fn end(&mut self, at: usize) {
        let Some(own) = self.stores[at].replica() else { return };
        let (id, is_initialised) = (own.id, own.is_initialised);
        let store = &mut self.stores[at];
        if is_initialised || self.broken != Some(BrokenRule::UninitialisedEndForgotten) {
            store.tombstone = store.tombstone.max(id);
        } else {
            store.log.remove(&id);
        }
        store.slot = Slot::Ending(id);
        match self.broken {
            Some(BrokenRule::LogGoneBeforeRoot) => {
                store.log.remove(&id);
            }
            Some(BrokenRule::EndConfirmedBeforeRoot) => self.confirmed_gone.insert(id),
            _ => {}
        }
        self.counts.ends += 1;
        self.note(|| format!("store {at} ends {id}"));
    }

    pub(crate) fn write_root(&mut self, at: usize) {
        if let Some(ended) = self.stores[at].write_root() {
            self.confirmed_gone.insert(ended);
        }
    }

    /// Lets a replica ask for votes. Each voter hears it with `heard` of ten chances.
    pub(crate) fn campaign(&mut self, at: usize, heard: u8) -> Checked {
        let own = self.stores[at].replica().filter(|_| !self.down[at]);
        let Some(own) = own.cloned() else { return Ok(()) };
        let configuration = self.applied_configuration(&own);
        let unapplied = &own.log[own.applied..own.commit];
        let has_change = unapplied.iter().any(|entry| entry.change != Change::None);
        let may_campaign = !has_change || self.breaks(BrokenRule::CampaignBeforeApplied);
        if !own.is_initialised || own.leads || !may_campaign {
            return Ok(());
        }
        if !configuration.electors().contains(own.id) {
            return Ok(());
        }
        let term = own.term + 1;
        self.candidate = at;
        let candidate = self.stores[at].replica_mut().expect("it was there above");
        (candidate.term, candidate.vote) = (term, own.id);
        self.write_log(at);
        let mut votes = IdSet::of(&[own.id]);
        for to in configuration.electors().iter().filter(|to| *to != own.id) {
            if self.rng.u8(..10) >= heard {
                continue;
            }
            let commit = match self.breaks(BrokenRule::VotesWithoutCommit) {
                true => (0, 0),
                false => own.commit_info(),
            };
            let request = VoteRequest { to, candidate: own.id, term, last: own.last(), commit };
            let Some((is_granted, known)) = self.ask_vote(request, configuration.version) else {
                continue;
            };
            let candidate = self.stores[at].replica_mut().expect("only others were asked");
            if is_granted {
                votes.insert(to);
                continue;
            }
            let (before, has) = (candidate.commit, candidate.log.len());
            candidate.see_commit(known);
            let news = &candidate.log[before..candidate.commit.min(has)];
            if news.iter().any(|entry| entry.change != Change::None) {
                // raft's candidate steps down; its quorum may be another one now.
                self.write_log(at);
                return Ok(());
            }
        }
        self.write_log(at);
        match configuration.is_quorum(votes, self.broken) {
            true => self.lead(at, configuration),
            false => Ok(()),
        }
    }

    /// Asks for one vote. `None` if no answer comes; else whether it is granted, and what the voter
    /// knows to be committed.
    fn ask_vote(&mut self, request: VoteRequest, version: usize) -> Option<(bool, (usize, u32))> {
        let Some(at) = self.reach(request.to, version) else {
            let at = self.store_of[&request.to];
            if !self.down[at]
                && let Slot::Held(kept) = &mut self.stores[at].slot
            {
                *kept = Some(request);
            }
            return None;
        };
        let voter = self.stores[at].replica_mut().expect("it was reached");
        voter.see_term(request.term);
        let may_vote = voter.vote == 0 || voter.vote == request.candidate;
        let is_current = voter.term == request.term && !voter.leads;
        let is_granted = is_current && may_vote && request.last >= voter.last();
        if is_granted {
            voter.vote = request.candidate;
            self.counts.votes_without_data += usize::from(!voter.is_initialised);
        } else {
            voter.see_commit(request.commit);
        }
        let known = voter.commit_info();
        self.write_log(at);
        let known = if self.breaks(BrokenRule::VotesWithoutCommit) { (0, 0) } else { known };
        Some((is_granted, known))
    }

    fn lead(&mut self, at: usize, configuration: Configuration) -> Checked {
        let leader = self.stores[at].replica_mut().expect("it campaigned");
        let (id, term) = (leader.id, leader.term);
        leader.leads = true;
        leader.log.push(Entry { term, change: Change::None });
        self.write_log(at);
        self.counts.elections += 1;
        self.counts.joint_elections += usize::from(configuration.is_joint());
        self.note(|| format!("{id} leads term {term} by {configuration:?}"));
        match *self.leaders.entry(term).or_insert(id) {
            first if first == id => Ok(()),
            first => Err(format!("two leaders of a term: {first} and {id} of term {term}")),
        }
    }

    /// A leader sends one member a part of its log, or a snapshot if that has no data.
    pub(crate) fn replicate(&mut self, at: usize, to: ReplicaId, end: usize) -> Checked {
        let Some(leader) = self.leader_at(at) else { return Ok(()) };
        let configuration = self.applied_configuration(&leader);
        let Some(there) = self.reach(to, configuration.version) else { return Ok(()) };
        let follower = self.stores[there].replica_mut().expect("it was reached");
        if follower.term > leader.term {
            let term = follower.term;
            let is_silent = self.broken == Some(BrokenRule::UninitialisedHidesItsTerm);
            if follower.is_initialised || !is_silent {
                let deposed = self.stores[at].replica_mut().expect("it led above");
                deposed.see_term(term);
                self.write_log(at);
            }
            return Ok(());
        }
        follower.see_term(leader.term);
        if !follower.is_initialised {
            return self.install(there, &leader);
        }
        let end = end.max(follower.commit.min(leader.log.len()));
        let pairs = follower.log.iter().zip(&leader.log[..end]);
        let same = pairs.take_while(|(own, sent)| own == sent).count();
        if same < end.min(follower.log.len()) {
            if same < follower.commit {
                return Err(format!("committed entry lost: {to} would drop entry {}", same + 1));
            }
            follower.log.truncate(same);
        }
        if follower.log.len() < end {
            follower.log = leader.log[..end].to_vec();
        }
        follower.commit = follower.commit.max(leader.commit.min(end));
        self.write_log(there);
        Ok(())
    }

    /// A replica without data gets it, with the configuration; a root has it before anything else.
    fn install(&mut self, at: usize, leader: &ModelReplica) -> Checked {
        let store = &mut self.stores[at];
        let replica = store.replica_mut().expect("it was reached");
        replica.is_initialised = true;
        replica.log = leader.log[..leader.applied].to_vec();
        (replica.commit, replica.applied) = (leader.applied, leader.applied);
        // The range is taken: the parent's snapshot from before the split finds it held.
        store.parent = ParentHere::Past;
        self.write_log(at);
        self.write_root(at);
        self.counts.snapshots += 1;
        Ok(())
    }

    /// A leader commits the entries of its term that a quorum has.
    pub(crate) fn commit(&mut self, at: usize) -> Checked {
        let Some(leader) = self.leader_at(at) else { return Ok(()) };
        let configuration = self.applied_configuration(&leader);
        for index in (leader.commit + 1..=leader.log.len()).rev() {
            let entry = leader.log[index - 1];
            if entry.term != leader.term {
                break;
            }
            let mut having = IdSet::default();
            for id in configuration.electors().iter() {
                let other = self.stores[self.store_of[&id]].replica();
                let other = other.filter(|other| other.id == id && other.is_initialised);
                if other.is_some_and(|other| other.log.get(index - 1) == Some(&entry)) {
                    having.insert(id);
                }
            }
            if configuration.is_quorum(having, self.broken) {
                let (id, term) = (leader.id, leader.term);
                self.note(|| format!("{id} commits {index} in term {term}"));
                self.stores[at].replica_mut().expect("it leads").commit = index;
                return self.remember_committed(&leader, index);
            }
        }
        Ok(())
    }

    fn remember_committed(&mut self, leader: &ModelReplica, index: usize) -> Checked {
        for (place, entry) in leader.log[..index].iter().enumerate() {
            match self.committed.get(place) {
                None => self.committed.push(*entry),
                Some(known) if known == entry => {}
                Some(known) => {
                    let index = place + 1;
                    return Err(format!("committed entry lost: {index}: {known:?}, now {entry:?}"));
                }
            }
        }
        Ok(())
    }

    /// Whether a leader may propose a change: it has applied an entry of its term, and no change
    /// waits to be applied.
    pub(crate) fn may_propose(&self, leader: &ModelReplica) -> bool {
        let applied = &leader.log[..leader.applied];
        let has_own = applied.last().is_some_and(|entry| entry.term == leader.term);
        let mut rest = leader.log[leader.applied..].iter();
        has_own && rest.all(|entry| entry.change == Change::None) && leader.log.len() < ENTRIES_MAX
    }

    pub(crate) fn propose(&mut self, at: usize, change: Change) {
        let Some(leader) = self.stores[at].replica_mut() else { return };
        let (id, term) = (leader.id, leader.term);
        leader.log.push(Entry { term, change });
        self.write_log(at);
        self.counts.changes += usize::from(change != Change::None);
        self.note(|| format!("{id} proposes {change:?}"));
    }

    /// A replica applies its next committed entry, and ends if that removes it.
    pub(crate) fn apply(&mut self, at: usize) -> Checked {
        let Some(own) = self.stores[at].replica_mut() else { return Ok(()) };
        if !own.is_initialised || own.applied >= own.commit {
            return Ok(());
        }
        own.applied += 1;
        let own = own.clone();
        let entry = own.log[own.applied - 1];
        if self.committed.get(own.applied - 1) != Some(&entry) {
            return Err(format!(
                "committed entry lost: {} applies another {}",
                own.id, own.applied
            ));
        }
        let configuration = self.applied_configuration(&own);
        self.note(|| format!("{} applies {} {entry:?}", own.id, own.applied));
        if configuration.is_gone(own.id) {
            if own.leads {
                return Err(format!("leader {} applies its own removal", own.id));
            }
            self.write_log(at);
            self.end(at);
        } else if own.leads && entry.change != Change::None {
            self.check_quorum_with_data(&configuration)?;
        }
        Ok(())
    }

    fn check_quorum_with_data(&self, configuration: &Configuration) -> Checked {
        let has_data = |id: &ReplicaId| self.stores[self.store_of[id]].has_data(*id);
        let mut with_data = IdSet::default();
        configuration.electors().iter().filter(has_data).for_each(|id| with_data.insert(id));
        let halves = [configuration.voters, configuration.outgoing];
        match halves.iter().all(|half| with_data.is_majority_of(*half)) {
            true => Ok(()),
            false => Err(format!("commits wait for a snapshot: {configuration:?}")),
        }
    }

    /// The rules that hold in every state.
    pub(crate) fn check(&self) -> Checked {
        for (at, store) in self.stores.iter().enumerate() {
            let Some(own) = store.replica() else { continue };
            if self.confirmed_gone.contains(own.id) || own.id <= store.root.tombstone {
                return Err(format!("{} is back on store {at} after its end", own.id));
            }
        }
        for id in self.configuration(&self.committed).members().iter() {
            let store = &self.stores[self.store_of[&id]];
            let is_there = store.replica().is_some_and(|own| own.id == id);
            if store.root.tombstone >= id && !is_there {
                return Err(format!("member {id} is refused for ever"));
            }
        }
        Ok(())
    }

    /// A held vote is given once the split has made the replica.
    pub(crate) fn give_held_vote(&mut self, request: VoteRequest) {
        let version = self.founders.version;
        if let Some((true, _)) = self.ask_vote(request, version) {
            self.counts.held_votes_given += 1;
        }
    }
}
