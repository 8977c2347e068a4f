//! A random walk over the group, and the calm at its end: from any state, with one store dead, the
//! others come to a leader that commits, to one configuration and to the same log.

use crate::configuration::{Change, Configuration, IdSet, ReplicaId};
use crate::group::{Checked, ModelGroup, STORES, WalkCounts};
use crate::rules::BrokenRule;
use crate::store::{ModelReplica, ModelStore, Slot};

/// Exchanges within which a calm group settles.
const ROUNDS_MAX: usize = 24;

/// One walk of `steps` steps. An error names the rule that was found broken.
pub(crate) fn walk(broken: Option<BrokenRule>, seed: u64, steps: usize) -> (WalkCounts, Checked) {
    let mut group = ModelGroup::new(broken, seed, false);
    let found = group.walk((seed / 4).is_multiple_of(2), steps);
    (group.counts, found)
}

/// The steps of a walk, to be read.
pub(crate) fn trace(broken: Option<BrokenRule>, seed: u64, steps: usize) -> String {
    let mut group = ModelGroup::new(broken, seed, true);
    let found = group.walk((seed / 4).is_multiple_of(2), steps);
    let trace = group.trace.expect("it was asked for");
    format!("{}\n{found:?}", trace.join("\n"))
}

impl ModelGroup {
    fn walk(&mut self, is_restless: bool, steps: usize) -> Checked {
        if !is_restless {
            self.campaign(0, 10)?;
        }
        for _ in 0..steps {
            self.step(is_restless)?;
            self.check()?;
        }
        self.end_in_calm()
    }

    /// One step. Half of the walks are restless, with elections and crashes; in the other half the
    /// changes come far.
    fn step(&mut self, is_restless: bool) -> Checked {
        // Mostly the leader of the latest term acts, and sometimes one that was deposed unheard.
        let latest = self.stores.iter().filter_map(|store| Some(store.replica()?.term)).max();
        let latest = latest.filter(|_| self.rng.u8(..5) > 0).unwrap_or(0);
        let leads = |own: &ModelReplica| own.leads && own.term >= latest;
        let has_lagging = self.lagging < STORES;
        let (campaigns, crashes) = match is_restless {
            true => (14, 8),
            false if has_lagging => (3, 2),
            false => (1, 1),
        };
        let drawn = self.rng.u8(..100);
        if drawn < campaigns {
            let heard = self.rng.u8(1..10);
            if has_lagging && self.rng.bool() {
                return self.campaign(self.lagging, heard);
            }
            return self.at_one(|_| true, |group, at| group.campaign(at, heard));
        }
        if drawn < campaigns + crashes {
            let likely = self.stores.iter().position(ModelStore::loses_by_a_crash);
            let likely = likely.filter(|_| self.rng.bool());
            let at = likely.unwrap_or_else(|| self.rng.usize(..STORES));
            self.crash(at);
            return Ok(());
        }
        match self.rng.u8(..100) {
            0..=32 => self.at_one(leads, Self::replicate_to_one),
            33..=49 => self.at_one(leads, Self::commit),
            50..=67 => self.at_one(leads, Self::propose_change),
            68..=88 => self.at_one(|own| own.applied < own.commit, Self::apply),
            89..=93 => self.at_one(|own| own.is_initialised, Self::tell_gone),
            94 => {
                self.late_message();
                Ok(())
            }
            95 => {
                let leaves = self.rng.u8(..4) == 0;
                self.step_parent(leaves);
                Ok(())
            }
            _ => {
                let at = self.rng.usize(..STORES);
                self.write_root(at);
                Ok(())
            }
        }
    }

    /// Does something at one of the stores whose replica it fits.
    fn at_one(
        &mut self,
        fits: impl Fn(&ModelReplica) -> bool,
        act: impl FnOnce(&mut Self, usize) -> Checked,
    ) -> Checked {
        let fits = |at: &usize| self.stores[*at].replica().is_some_and(&fits);
        let fitting = (0..STORES).filter(fits).collect::<Vec<_>>();
        match self.rng.choice(fitting) {
            Some(at) => act(self, at),
            None => Ok(()),
        }
    }

    fn replicate_to_one(&mut self, at: usize) -> Checked {
        let Some(leader) = self.leader_at(at) else { return Ok(()) };
        let members = self.applied_configuration(&leader).members();
        let others = members.iter().filter(|id| *id != leader.id);
        let Some(to) = self.rng.choice(others.collect::<Vec<_>>()) else { return Ok(()) };
        if self.store_of[&to] == self.lagging && self.rng.u8(..20) > 0 {
            return Ok(());
        }
        let len = leader.log.len();
        let end = if self.rng.bool() { len } else { self.rng.usize(..=len) };
        self.replicate(at, to, end)
    }

    fn propose_change(&mut self, at: usize) -> Checked {
        let Some(leader) = self.leader_at(at).filter(|leader| self.may_propose(leader)) else {
            return Ok(());
        };
        let configuration = self.applied_configuration(&leader);
        if !self.may_change(&leader, &configuration) {
            return Ok(());
        }
        let change = match configuration.is_joint() {
            true => Some(Change::LeaveJoint),
            false => match self.rng.u8(..5) {
                0 | 1 => self.add_learner(&configuration),
                2 => self
                    .rng
                    .choice(configuration.learners.iter().collect::<Vec<_>>())
                    .map(Change::RemoveLearner),
                _ => self.enter_joint(&leader, &configuration),
            },
        };
        if let Some(change) = change {
            self.propose(at, change);
        }
        Ok(())
    }

    /// Whether a leader proposes changes. One that has no vote, or will have none after the joint
    /// configuration, only transfers: it may not even be the one that proposed this. Raft panics
    /// when a leader applies its own removal.
    fn may_change(&self, leader: &ModelReplica, configuration: &Configuration) -> bool {
        let keeps_vote = configuration.voters.contains(leader.id);
        keeps_vote || self.breaks(BrokenRule::LeaderGivesUpItsVote)
    }

    fn add_learner(&mut self, configuration: &Configuration) -> Option<Change> {
        if configuration.learners.len() >= 2 {
            return None;
        }
        let members = configuration.members();
        let has_member = |at: &usize| members.iter().any(|id| self.store_of[&id] == *at);
        let may_share = self.breaks(BrokenRule::SecondMemberOnStore);
        let free = (0..STORES).filter(|at| may_share || !has_member(at)).collect::<Vec<_>>();
        let at = self.rng.choice(free)?;
        let is_free = |id: &ReplicaId| !self.store_of.contains_key(id);
        let known = match self.breaks(BrokenRule::IdsMayShrink) {
            true => 4,
            false => configuration.floor + 1,
        };
        // Ids come from blocks of several stores: they have gaps, and a later one may be lower.
        let ids = (known..known.saturating_add(12).min(64)).filter(is_free).collect::<Vec<_>>();
        let id = self.rng.choice(ids)?;
        self.store_of.insert(id, at);
        Some(Change::AddLearner(id))
    }

    fn enter_joint(
        &mut self,
        leader: &ModelReplica,
        configuration: &Configuration,
    ) -> Option<Change> {
        let is_ready = |id: &ReplicaId| {
            let own = self.stores[self.store_of[id]].replica().filter(|own| own.id == *id);
            own.is_some_and(|own| own.is_initialised && own.log.len() >= leader.commit)
        };
        let blind = self.breaks(BrokenRule::PromotedWithoutData);
        let ready = configuration.learners.iter().filter(|id| blind || is_ready(id));
        let ready = ready.collect::<Vec<_>>();
        let may_go =
            |id: &ReplicaId| *id != leader.id || self.breaks(BrokenRule::LeaderGivesUpItsVote);
        let going = configuration.voters.iter().filter(may_go).collect::<Vec<_>>();
        let wants_all = self.rng.bool();
        let promoted = if wants_all { ready.len() } else { self.rng.usize(..=ready.len()) };
        let demoted = self.rng.usize(..=going.len());
        let voters = configuration.voters.len() + promoted - demoted;
        let is_size = voters % 2 == 1 || self.breaks(BrokenRule::TwoVoters) && voters == 2;
        if !is_size || promoted + demoted == 0 {
            return None;
        }
        let promoted = self.rng.choose_multiple(ready, promoted);
        let demoted = self.rng.choose_multiple(going, demoted);
        Some(Change::EnterJoint { promoted: IdSet::of(&promoted), demoted: IdSet::of(&demoted) })
    }

    /// A replica tells another one, which its members no longer list, that it is gone.
    fn tell_gone(&mut self, at: usize) -> Checked {
        let Some(own) = self.stores[at].replica() else { return Ok(()) };
        let configuration = self.applied_configuration(own);
        let gone = self.store_of.keys().copied();
        let gone = gone.filter(|id| self.may_tell_gone(&configuration, *id));
        if let Some(id) = self.rng.choice(gone.collect::<Vec<_>>()) {
            self.hear_gone(id);
        }
        Ok(())
    }

    /// Whether a replica may be told that it is gone. One that is there has asked. For one that is
    /// not, the floor alone does not do: an id that was spent on a proposal without a decision may
    /// be above that of a member.
    pub(crate) fn may_tell_gone(&self, configuration: &Configuration, id: ReplicaId) -> bool {
        let there = self.stores[self.store_of[&id]].replica();
        let has_asked = there.is_some_and(|there| there.id == id);
        let was_listed = configuration.listed.contains(id) || self.breaks(BrokenRule::SpentIdsEnd);
        configuration.is_gone(id) && (has_asked || was_listed)
    }

    /// A message of long ago, for any replica that was a member once.
    fn late_message(&mut self) {
        let floor = self.configuration(&self.committed).floor;
        let once = self.store_of.keys().copied().filter(|id| *id <= floor);
        if let Some(id) = self.rng.choice(once.collect::<Vec<_>>()) {
            self.reach(id, 0);
        }
    }

    /// A store that never had the replica keeps the tombstone all the same.
    pub(crate) fn hear_gone(&mut self, id: ReplicaId) {
        self.note(|| format!("the store of {id} hears that it is gone"));
        let at = self.store_of[&id];
        if self.down[at] {
            return;
        }
        let store = &mut self.stores[at];
        match &store.slot {
            Slot::Replica(own) if own.id == id => self.end(at),
            Slot::Absent | Slot::Held(_) => store.tombstone = store.tombstone.max(id),
            Slot::Replica(_) | Slot::Unborn | Slot::Ending(_) => {}
        }
    }

    /// Nothing fails any more, but that one store may be dead.
    fn end_in_calm(&mut self) -> Checked {
        let leading = (0..STORES).find(|at| self.leader_at(*at).is_some());
        // A leader knows first that an entry is committed, a candidate that there is a later term.
        let dead = match self.rng.u8(..3) {
            0 => leading.unwrap_or(STORES),
            1 => self.candidate,
            _ => self.rng.usize(..=STORES),
        };
        if dead < STORES && self.survives(dead) {
            self.down[dead] = true;
            self.counts.calm_with_a_dead_store += 1;
            self.note(|| format!("store {dead} is dead"));
        }
        self.calm()
    }

    /// Elections, replication and roots until the group has settled.
    pub(crate) fn calm(&mut self) -> Checked {
        for round in 0..ROUNDS_MAX {
            self.settle_stores()?;
            let leader = self.calm_leader(round)?;
            self.check()?;
            if let Some(at) = leader
                && self.lead_to_the_end(at)?
            {
                return Ok(());
            }
        }
        let leads = (0..STORES).any(|at| !self.down[at] && self.leader_at(at).is_some());
        let rule = if leads { "never settles" } else { "no leader any more" };
        Err(format!("{rule}: {:?}", self.configuration(&self.committed)))
    }

    /// Whether the group may lose this store. All configurations must be able to that a replica
    /// decides by, or may come to decide by: the leader of a change knows first that it is
    /// committed, and its successor commits it if it has it.
    fn survives(&self, dead: usize) -> bool {
        let alive = |configuration: &Configuration| {
            let mut alive = configuration.electors();
            for id in alive.iter().filter(|id| self.store_of[id] == dead) {
                alive = alive.without(IdSet::of(&[id]));
            }
            alive.is_majority_of(configuration.voters)
                && alive.is_majority_of(configuration.outgoing)
        };
        let members = self.configuration(&self.committed).members();
        let replicas = self.stores.iter().filter_map(|store| store.replica());
        let mut replicas = replicas.filter(|own| own.is_initialised && members.contains(own.id));
        let is_survived = |own: &ModelReplica| {
            let mut ends = own.commit..=own.log.len();
            ends.all(|end| alive(&self.configuration(&own.log[..end])))
        };
        replicas.all(is_survived) && alive(&self.configuration(&self.committed))
    }

    fn settle_stores(&mut self) -> Checked {
        self.step_parent(false);
        self.step_parent(false);
        let down = self.down;
        for at in (0..STORES).filter(|at| !down[*at]) {
            while self.stores[at].replica().is_some_and(|own| own.applied < own.commit) {
                self.apply(at)?;
            }
            self.write_root(at);
        }
        Ok(())
    }

    /// The leader of the latest term, after an election if there is none.
    fn calm_leader(&mut self, round: usize) -> Result<Option<usize>, String> {
        let leading = |group: &Self| {
            let alive = (0..STORES).filter(|at| !group.down[*at]);
            let leading = alive.filter_map(|at| Some((group.leader_at(at)?.term, at)));
            leading.max().map(|(_, at)| at)
        };
        for next in 0..STORES {
            if leading(self).is_some() {
                break;
            }
            let at = (round + next) % STORES;
            if !self.down[at] {
                self.hear_terms(at);
                self.campaign(at, 10)?;
            }
        }
        Ok(leading(self))
    }

    /// A candidate learns the terms of its voters, as from the refusals of raft's pre-votes. Else
    /// one whose vote it needs may stay ahead for ever, by campaigns among voters of an old
    /// configuration.
    fn hear_terms(&mut self, at: usize) {
        let Some(own) = self.stores[at].replica() else { return };
        let electors = self.applied_configuration(own).electors();
        let voters = electors.iter().filter(|id| !self.down[self.store_of[id]]);
        let voters = voters.filter_map(|id| self.stores[self.store_of[&id]].replica());
        let latest = voters.map(|voter| voter.term).max().unwrap_or(0);
        if let Some(own) = self.stores[at].replica_mut() {
            own.see_term(latest);
        }
    }

    /// A leader sends everything to all, commits, leaves a joint configuration. Whether all is
    /// done.
    fn lead_to_the_end(&mut self, at: usize) -> Result<bool, String> {
        for _ in 0..2 {
            let Some(leader) = self.leader_at(at) else { return Ok(false) };
            for to in self.applied_configuration(&leader).members().iter() {
                if to != leader.id {
                    self.replicate(at, to, leader.log.len())?;
                }
            }
            self.commit(at)?;
            self.settle_stores()?;
        }
        let Some(leader) = self.leader_at(at) else { return Ok(false) };
        let configuration = self.applied_configuration(&leader);
        if !self.may_change(&leader, &configuration) {
            // It transfers to a voter that stays.
            for id in configuration.voters.iter() {
                self.campaign(self.store_of[&id], 10)?;
            }
            return Ok(false);
        }
        if configuration.is_joint() && leader.applied == leader.log.len() {
            self.propose(at, Change::LeaveJoint);
            return Ok(false);
        }
        let has_all = |id: ReplicaId| {
            let there = self.store_of[&id];
            let own = self.stores[there].replica().filter(|own| own.id == id);
            self.down[there] || own.is_some_and(|own| own.log == leader.log)
        };
        let is_whole = leader.applied == leader.log.len() && !configuration.is_joint();
        Ok(is_whole && configuration.members().iter().all(has_all))
    }
}
