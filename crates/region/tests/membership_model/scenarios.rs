//! Histories step by step, where a walk would need too much luck: the shortest ways to a broken
//! rule.

use crate::configuration::{Change, IdSet, ReplicaId};
use crate::group::{Checked, ModelGroup, STORES};
use crate::rules::BrokenRule;
use crate::store::ModelReplica;

/// Seeds of [`ModelGroup::new`]: three founders with data, and two beside one that has none yet.
const WHOLE: u64 = 1;
const THIRD_ARRIVES: u64 = 2;

impl ModelGroup {
    fn replica(&self, id: ReplicaId) -> &ModelReplica {
        self.stores[self.store_of[&id]].replica().expect("it is there")
    }

    fn elect(&mut self, id: ReplicaId) -> Checked {
        self.campaign(self.store_of[&id], 10)?;
        assert!(self.replica(id).leads, "{:?}", self.stores);
        Ok(())
    }

    /// Sends a leader's whole log to `others`.
    fn send(&mut self, leader: ReplicaId, others: &[ReplicaId]) -> Checked {
        let at = self.store_of[&leader];
        let end = self.replica(leader).log.len();
        others.iter().try_for_each(|to| self.replicate(at, *to, end))
    }

    /// Commits what a leader has, and lets all that it reaches apply it.
    fn spread(&mut self, leader: ReplicaId) -> Checked {
        for _ in 0..2 {
            let members = self.applied_configuration(self.replica(leader)).members();
            let others = members.iter().filter(|id| *id != leader).collect::<Vec<_>>();
            self.send(leader, &others)?;
            self.commit(self.store_of[&leader])?;
        }
        (0..STORES).try_for_each(|at| self.apply_all(at))
    }

    fn apply_all(&mut self, at: usize) -> Checked {
        while self.stores[at].replica().is_some_and(|own| own.applied < own.commit) {
            self.apply(at)?;
        }
        Ok(())
    }

    fn change(&mut self, leader: ReplicaId, change: Change) {
        self.propose(self.store_of[&leader], change);
    }

    /// Replica 3 leads and replaces 1 by 4; it proposes to leave the joint configuration.
    fn until_leave_is_proposed(broken: Option<BrokenRule>) -> Result<Self, String> {
        let mut group = Self::new(broken, WHOLE, false);
        group.elect(3)?;
        group.spread(3)?;
        group.store_of.insert(4, 3);
        group.change(3, Change::AddLearner(4));
        group.spread(3)?;
        group.send(3, &[4])?;
        let (promoted, demoted) = (IdSet::of(&[4]), IdSet::of(&[1]));
        group.change(3, Change::EnterJoint { promoted, demoted });
        group.spread(3)?;
        group.spread(3)?;
        group.change(3, Change::LeaveJoint);
        Ok(group)
    }
}

/// The old voter knows that the joint configuration is left, and has the longest log; the voters
/// that stay do not know, and need its vote. If its refusal bears no commit index, none is elected.
fn demoted_knows_more(broken: Option<BrokenRule>) -> Checked {
    let mut group = ModelGroup::until_leave_is_proposed(broken)?;
    group.send(3, &[1, 2, 4])?;
    group.commit(2)?;
    group.apply_all(2)?;
    group.change(3, Change::None);
    group.send(3, &[1])?;
    group.down[2] = true;
    group.calm()
}

#[test]
fn refusals_bear_the_commit_index() {
    demoted_knows_more(None).expect("the others elect a leader");
    let found = demoted_knows_more(Some(BrokenRule::VotesWithoutCommit)).expect_err("stuck");
    assert!(found.starts_with("no leader any more"), "{found}");
}

/// A replica without data has voted in a term that the leader has not heard of, and the candidate
/// is gone.
fn voted_above_the_leader(broken: Option<BrokenRule>) -> Checked {
    let mut group = ModelGroup::new(broken, THIRD_ARRIVES, false);
    group.step_parent(true);
    group.elect(1)?;
    group.down[0] = true;
    group.elect(2)?;
    group.down = [false, true, false, false];
    group.calm()
}

#[test]
fn a_replica_without_data_tells_its_term() {
    voted_above_the_leader(None).expect("a leader of a later term");
    let rule = BrokenRule::UninitialisedHidesItsTerm;
    let found = voted_above_the_leader(Some(rule)).expect_err("stuck");
    assert!(found.starts_with("never settles"), "{found}");
}

/// The old voter has the entry that takes its vote, does not know that it will be committed, and is
/// elected. So a leader may lose its vote by a change that it did not propose; it must transfer.
#[test]
fn a_leader_loses_its_vote_by_a_change_of_its_predecessor() {
    let mut group = ModelGroup::until_leave_is_proposed(None).expect("no rule is broken");
    let mut run = || -> Checked {
        group.send(3, &[1, 4])?;
        group.down[2] = true;
        group.elect(1)?;
        group.spread(1)?;
        let own = group.replica(1);
        assert!(own.leads && !group.applied_configuration(own).electors().contains(1));
        group.calm()
    };
    run().expect("it transfers");
    assert!(!group.replica(1).leads);
}

/// Id 15 is spent on a proposal of a leader that is deposed. A later leader adds 14 on the same
/// store and 26 on another one: then 15 is at most the floor, and no member, and was never one.
fn spent_id_above_a_member(broken: Option<BrokenRule>) -> Checked {
    let mut group = ModelGroup::new(broken, WHOLE, false);
    group.elect(1)?;
    group.spread(1)?;
    group.store_of.extend([(14, 3), (15, 3), (26, 2)]);
    group.change(1, Change::AddLearner(15));
    group.down = [true, false, false, true];
    group.elect(2)?;
    group.spread(2)?;
    let demoted = IdSet::of(&[1, 3]);
    let enter = Change::EnterJoint { promoted: IdSet::default(), demoted };
    let rest = [Change::LeaveJoint, Change::RemoveLearner(3)];
    let added = [Change::AddLearner(14), Change::AddLearner(26)];
    for change in [enter].into_iter().chain(rest).chain(added) {
        group.change(2, change);
        group.spread(2)?;
    }
    group.down = [false; STORES];
    let configuration = group.applied_configuration(group.replica(2));
    assert!(configuration.is_gone(15));
    if group.may_tell_gone(&configuration, 15) {
        group.hear_gone(15);
    }
    group.write_root(3);
    group.check()?;
    group.calm()
}

#[test]
fn a_spent_id_leaves_no_tombstone() {
    spent_id_above_a_member(None).expect("14 is a member");
    let found = spent_id_above_a_member(Some(BrokenRule::SpentIdsEnd)).expect_err("refused");
    assert_eq!(found, "member 14 is refused for ever");
}
