//! The replica plan: the next step that brings the replicas of a region to the stores that should
//! have them.
//!
//! Order (`docs/many-regions.md`, "Changes of members"): surplus learners go; the leader leaves the
//! voters that are to go; learners come; votes change, all of them in one step; the joint
//! configuration is left; the former voters go. The leader goes first, for it is the leader that
//! sends the data: one that goes in between gives up a snapshot that is on its way. And where
//! placement's own region is moved, a plan ends with its maker's term. Nothing is remembered
//! between steps: the plan of a half-moved region is that of the region as it is.
//!
//! Whether a learner has the data is for the leader to say: it refuses its vote until then.

use std::collections::BTreeSet;

use crate::route_table::{RegionInfo, ReplicaInfo, ReplicaRole};

/// The most learners of a region that the plan makes at a time.
pub const NEW_REPLICAS_MAX: usize = 2;

/// A change of a region's replicas, or of its leader, that placement asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembershipStep {
    /// A learner comes. It needs an id that was never used.
    Add {
        /// Its store.
        store: u64,
    },
    /// Learners get votes, voters become learners: two and more by a joint configuration.
    Vote {
        /// The learners.
        promoted: Vec<u64>,
        /// The voters.
        demoted: Vec<u64>,
    },
    /// The joint configuration becomes its new half.
    LeaveJoint,
    /// Another voter leads, for the leader's vote is to go.
    TransferLeader {
        /// The voter.
        to: ReplicaInfo,
    },
    /// A learner goes.
    Remove {
        /// The learner.
        replica: u64,
    },
}

/// The result of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlannedStep {
    /// The region has its replicas.
    Done,
    /// This is to be done next.
    Next(MembershipStep),
    /// Nothing can be done.
    Blocked(PlanObstacle),
}

/// Why no step is possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanObstacle {
    /// The leader's vote is to go, and no voter that stays can lead.
    #[error("no voter that stays can take over from the leader")]
    NoSuccessor,
    /// A group of two stops when either dies.
    #[error("a region of two voters stops when either dies")]
    TwoVoters,
    /// All votes would go.
    #[error("none of its voters stays")]
    NoVoter,
}

/// How a region is brought to its stores.
#[derive(Clone, Copy, Debug)]
pub struct ReplicaPlan<'a> {
    /// The stores that should have a voter each.
    pub wanted: &'a BTreeSet<u64>,
    /// The stores that may lead.
    pub able: &'a BTreeSet<u64>,
    /// How often the present step was asked for: another successor is tried each time.
    pub attempt: usize,
}

impl ReplicaPlan<'_> {
    /// The next step for `region`, as `leader` leads it.
    #[must_use]
    pub fn next_step(&self, region: &RegionInfo, leader: ReplicaInfo) -> PlannedStep {
        let of = |role| region.replicas.iter().filter(move |replica| replica.role == role);
        if region.is_joint() {
            let is_outgoing = of(ReplicaRole::Outgoing).any(|replica| replica.id == leader.id);
            // It would lead without a vote once the joint configuration is left.
            let step = if is_outgoing {
                return self.transfer(region, leader);
            } else {
                MembershipStep::LeaveJoint
            };
            return PlannedStep::Next(step);
        }
        let is_wanted = |replica: &&ReplicaInfo| self.wanted.contains(&replica.store);
        if let Some(surplus) = of(ReplicaRole::Learner).find(|replica| !is_wanted(replica)) {
            return PlannedStep::Next(MembershipStep::Remove { replica: surplus.id });
        }
        let voters = of(ReplicaRole::Voter).count();
        let demoted: Vec<u64> = of(ReplicaRole::Voter)
            .filter(|replica| !is_wanted(replica))
            .map(|replica| replica.id)
            .collect();
        let leader_goes = demoted.contains(&leader.id);
        let transfer = || self.transfer(region, leader);
        if leader_goes && matches!(transfer(), PlannedStep::Next(_)) {
            return transfer();
        }
        let promoted: Vec<u64> =
            of(ReplicaRole::Learner).filter(is_wanted).map(|replica| replica.id).collect();
        if promoted.len() < NEW_REPLICAS_MAX
            && let Some(store) = self.wanted.iter().find(|store| region.on(**store).is_none())
        {
            return PlannedStep::Next(MembershipStep::Add { store: *store });
        }
        if promoted.is_empty() && demoted.is_empty() {
            return PlannedStep::Done;
        }
        let left = voters + promoted.len() - demoted.len();
        match left {
            0 => return PlannedStep::Blocked(PlanObstacle::NoVoter),
            2 if voters != 2 => return PlannedStep::Blocked(PlanObstacle::TwoVoters),
            _ => {}
        }
        if leader_goes {
            return transfer();
        }
        PlannedStep::Next(MembershipStep::Vote { promoted, demoted })
    }

    /// Away from a leader whose vote goes, to one that keeps its own.
    fn transfer(&self, region: &RegionInfo, leader: ReplicaInfo) -> PlannedStep {
        let stays = |replica: &&ReplicaInfo| {
            let keeps_vote = match replica.role {
                ReplicaRole::Voter => region.is_joint() || self.wanted.contains(&replica.store),
                ReplicaRole::Incoming => true,
                ReplicaRole::Learner | ReplicaRole::Outgoing => false,
            };
            keeps_vote && replica.id != leader.id && self.able.contains(&replica.store)
        };
        let successors: Vec<_> = region.replicas.iter().filter(stays).collect();
        match successors.get(self.attempt % successors.len().max(1)) {
            Some(to) => PlannedStep::Next(MembershipStep::TransferLeader { to: **to }),
            None => PlannedStep::Blocked(PlanObstacle::NoSuccessor),
        }
    }
}

impl MembershipStep {
    /// By how much the region's version of its replicas grows: by each replica whose role changes.
    #[must_use]
    pub fn growth(&self, region: &RegionInfo) -> u64 {
        match self {
            Self::Add { .. } | Self::Remove { .. } => 1,
            Self::Vote { promoted, demoted } => (promoted.len() + demoted.len()) as u64,
            Self::LeaveJoint => {
                let is_between = |replica: &&ReplicaInfo| {
                    matches!(replica.role, ReplicaRole::Incoming | ReplicaRole::Outgoing)
                };
                region.replicas.iter().filter(is_between).count() as u64
            }
            Self::TransferLeader { .. } => 0,
        }
    }

    /// Whether the region is joint behind it: it leaves that by itself, too.
    #[must_use]
    pub fn is_joint(&self) -> bool {
        matches!(self, Self::Vote { promoted, demoted } if promoted.len() + demoted.len() > 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [u64; 7] = [1, 2, 3, 4, 5, 6, 7];

    fn region(replicas: &[(u64, ReplicaRole)]) -> RegionInfo {
        let replicas = replicas.iter().map(|(store, role)| ReplicaInfo {
            id: 200 + store,
            store: *store,
            role: *role,
        });
        RegionInfo { id: 2, replicas: replicas.collect(), ..RegionInfo::default() }
    }

    fn voters(stores: &[u64]) -> RegionInfo {
        region(&stores.iter().map(|store| (*store, ReplicaRole::Voter)).collect::<Vec<_>>())
    }

    /// Carries a step out, as a region does.
    fn apply(region: &mut RegionInfo, leader: &mut ReplicaInfo, step: &MembershipStep) {
        use ReplicaRole::{Incoming, Learner, Outgoing, Voter};
        let is_joint = step.is_joint();
        match step {
            MembershipStep::Add { store } => {
                assert!(region.on(*store).is_none());
                let id = 200 + *store;
                region.replicas.push(ReplicaInfo { id, store: *store, role: Learner });
            }
            MembershipStep::Vote { promoted, demoted } => {
                assert!(!demoted.contains(&leader.id), "the leader keeps its vote");
                for replica in &mut region.replicas {
                    if promoted.contains(&replica.id) {
                        assert_eq!(replica.role, Learner);
                        replica.role = if is_joint { Incoming } else { Voter };
                    } else if demoted.contains(&replica.id) {
                        assert_eq!(replica.role, Voter);
                        replica.role = if is_joint { Outgoing } else { Learner };
                    }
                }
            }
            MembershipStep::LeaveJoint => {
                for replica in &mut region.replicas {
                    replica.role = match replica.role {
                        Incoming | Voter => Voter,
                        Outgoing | Learner => Learner,
                    };
                }
            }
            MembershipStep::TransferLeader { to } => *leader = *to,
            MembershipStep::Remove { replica } => {
                let at = region.replicas.iter().position(|other| other.id == *replica).unwrap();
                assert_eq!(region.replicas.remove(at).role, Learner, "only a learner goes");
            }
        }
        let count = |role| region.replicas.iter().filter(|replica| replica.role == role).count();
        assert_ne!(count(Voter) + count(Incoming), 2, "a group of two: {region:?}");
        assert!(count(Learner) <= NEW_REPLICAS_MAX + 2);
    }

    /// All steps from one set of stores to another.
    fn walk(from: &[u64], leader: u64, wanted: &[u64]) -> Vec<MembershipStep> {
        let mut region = voters(from);
        let mut leader = region.on(leader).unwrap();
        let (wanted, able) = (wanted.iter().copied().collect(), BTreeSet::from(ALL));
        let plan = ReplicaPlan { wanted: &wanted, able: &able, attempt: 0 };
        let mut steps = vec![];
        loop {
            match plan.next_step(&region, leader) {
                PlannedStep::Done => break,
                PlannedStep::Next(step) => {
                    apply(&mut region, &mut leader, &step);
                    steps.push(step);
                }
                PlannedStep::Blocked(why) => panic!("{why}"),
            }
            assert!(steps.len() < 20, "{steps:?}");
        }
        let held: BTreeSet<u64> = region.replicas.iter().map(|replica| replica.store).collect();
        assert_eq!(held, wanted);
        steps
    }

    #[test]
    fn a_move_begins_with_a_learner_and_ends_with_the_removal() {
        let steps = walk(&[1, 2, 3], 2, &[2, 3, 4]);
        let expected = [
            MembershipStep::Add { store: 4 },
            MembershipStep::Vote { promoted: vec![204], demoted: vec![201] },
            MembershipStep::LeaveJoint,
            MembershipStep::Remove { replica: 201 },
        ];
        assert_eq!(steps, expected);
    }

    #[test]
    fn the_leader_goes_before_its_vote_and_before_the_data() {
        let steps = walk(&[1, 2, 3], 1, &[2, 3, 4]);
        assert!(matches!(steps[0], MembershipStep::TransferLeader { to } if to.store == 2));
        assert_eq!(steps[1], MembershipStep::Add { store: 4 });
        assert!(matches!(steps[2], MembershipStep::Vote { .. }));
    }

    #[test]
    fn a_second_attempt_names_another_successor() {
        let (wanted, able) = (BTreeSet::from([2, 3, 4]), BTreeSet::from(ALL));
        let plan = ReplicaPlan { wanted: &wanted, able: &able, attempt: 1 };
        let region = voters(&[1, 2, 3]);
        let step = plan.next_step(&region, region.on(1).unwrap());
        let PlannedStep::Next(MembershipStep::TransferLeader { to }) = step else {
            panic!("{step:?}")
        };
        assert_eq!(to.store, 3);
    }

    #[test]
    fn one_becomes_three_and_three_five_with_all_votes_at_once() {
        let votes = |steps: Vec<MembershipStep>| {
            let is_vote = |step: &MembershipStep| matches!(step, MembershipStep::Vote { .. });
            steps.into_iter().filter(is_vote).collect::<Vec<_>>()
        };
        let vote = |promoted, demoted| vec![MembershipStep::Vote { promoted, demoted }];
        assert_eq!(votes(walk(&[1], 1, &[1, 2, 3])), vote(vec![202, 203], vec![]));
        assert_eq!(votes(walk(&[1, 2, 3], 3, &[1, 2, 3, 4, 5])), vote(vec![204, 205], vec![]));
        assert_eq!(votes(walk(&[1, 2, 3, 4, 5], 1, &[1, 4, 5])), vote(vec![], vec![202, 203]));
        assert_eq!(votes(walk(&[1, 2, 3], 1, &[2])), vote(vec![], vec![201, 203]));
    }

    #[test]
    fn no_step_makes_a_group_of_two_or_of_none() {
        let able = BTreeSet::from(ALL);
        let blocked = |from: &[u64], wanted: &[u64]| {
            let region = voters(from);
            let wanted = wanted.iter().copied().collect();
            let plan = ReplicaPlan { wanted: &wanted, able: &able, attempt: 0 };
            plan.next_step(&region, region.on(1).unwrap())
        };
        let two = PlannedStep::Blocked(PlanObstacle::TwoVoters);
        assert_eq!(blocked(&[1, 2, 3], &[1, 2]), two);
        assert_eq!(blocked(&[1, 2, 3], &[]), PlannedStep::Blocked(PlanObstacle::NoVoter));
        // The only voter has no successor: the way is over three.
        let mut moved = voters(&[1]);
        moved.replicas.push(ReplicaInfo { id: 204, store: 4, role: ReplicaRole::Learner });
        let wanted = BTreeSet::from([4]);
        let plan = ReplicaPlan { wanted: &wanted, able: &able, attempt: 0 };
        let step = plan.next_step(&moved, moved.on(1).unwrap());
        assert_eq!(step, PlannedStep::Blocked(PlanObstacle::NoSuccessor));
        // A group of two that is there already gets its third voter.
        let steps = walk_from_two();
        assert_eq!(steps, [MembershipStep::Add { store: 3 }]);
    }

    fn walk_from_two() -> Vec<MembershipStep> {
        let (wanted, able) = (BTreeSet::from([1, 2, 3]), BTreeSet::from(ALL));
        let plan = ReplicaPlan { wanted: &wanted, able: &able, attempt: 0 };
        let region = voters(&[1, 2]);
        match plan.next_step(&region, region.on(1).unwrap()) {
            PlannedStep::Next(step) => vec![step],
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_half_moved_region_is_finished_or_undone() {
        use ReplicaRole::{Incoming, Learner, Outgoing, Voter};
        let able = BTreeSet::from(ALL);
        let next = |region: &RegionInfo, leader: u64, wanted: &[u64]| {
            let wanted = wanted.iter().copied().collect();
            let plan = ReplicaPlan { wanted: &wanted, able: &able, attempt: 0 };
            plan.next_step(region, region.on(leader).unwrap())
        };
        let joint = region(&[(1, Outgoing), (2, Voter), (3, Voter), (4, Incoming)]);
        assert_eq!(next(&joint, 2, &[2, 3, 4]), PlannedStep::Next(MembershipStep::LeaveJoint));
        // Also if the region is wanted elsewhere by now.
        assert_eq!(next(&joint, 2, &[1, 2, 3]), PlannedStep::Next(MembershipStep::LeaveJoint));
        // An outgoing leader would lead without a vote.
        let step = next(&joint, 1, &[2, 3, 4]);
        assert!(
            matches!(&step, PlannedStep::Next(MembershipStep::TransferLeader { to }) if to.store == 2),
            "{step:?}"
        );
        let learner = region(&[(1, Voter), (2, Voter), (3, Voter), (4, Learner)]);
        let removed = PlannedStep::Next(MembershipStep::Remove { replica: 204 });
        assert_eq!(next(&learner, 1, &[1, 2, 3]), removed);
    }

    #[test]
    fn the_version_grows_by_each_role() {
        let before = voters(&[1, 2, 3]);
        let joint = region(&[
            (1, ReplicaRole::Outgoing),
            (2, ReplicaRole::Voter),
            (4, ReplicaRole::Incoming),
        ]);
        let vote = MembershipStep::Vote { promoted: vec![4], demoted: vec![1] };
        assert_eq!((vote.growth(&before), vote.is_joint()), (2, true));
        assert_eq!(MembershipStep::LeaveJoint.growth(&joint), 2);
        let alone = MembershipStep::Vote { promoted: vec![4], demoted: vec![] };
        assert_eq!((alone.growth(&before), alone.is_joint()), (1, false));
    }
}
