//! Members that change: the hands of these scripts, and moves with nothing that goes wrong but the
//! order of things.

use flotilla_region::{
    Descriptor, MembershipChange, NoticeKind, Peer, PeerId, PeerRole, RegionId, Term, Ticket,
};

use super::{DATA, Scenario};
use crate::coverage::MembershipCoverage;
use crate::layout;
use crate::request::RequestState;
use crate::world::SimWorld;

/// Within this time the ends of replicas are confirmed, whatever was lost.
pub(super) const CONFIRMED_US: u64 = 70_000_000;
/// Between two tries of a change.
const TRY_US: u64 = 50_000;
/// Tries of a change are fewer than this.
const TRIES_MAX: usize = 200;

pub(super) fn vote(promoted: &[PeerId], demoted: &[PeerId]) -> MembershipChange {
    let (promoted, demoted) = (promoted.to_vec(), demoted.to_vec());
    MembershipChange::Vote { promoted, demoted }
}

/// The store that leads a region in the latest term.
pub(super) fn latest_leader(world: &SimWorld, region: RegionId) -> Option<usize> {
    let leads = |store: &usize| world.leads(*store, region);
    let term = |store: &usize| world.nodes()[*store].status(region).map(|status| status.term);
    (0..world.nodes().len()).filter(leads).max_by_key(term)
}

impl Scenario {
    /// The replica of a region on a store, as the newest form lists it.
    pub(super) fn listed(&self, region: RegionId, store: usize) -> Option<PeerId> {
        self.region(region).peer_on(layout::id(store)).map(|peer| peer.id)
    }

    pub(super) fn id_on(&self, store: usize) -> PeerId {
        self.listed(DATA, store).expect("it is listed")
    }

    pub(super) fn role_on(&self, region: RegionId, store: usize) -> Option<PeerRole> {
        let id = self.listed(region, store)?;
        self.region(region).listed(id).map(|peer| peer.role)
    }

    pub(super) fn latest_leader(&self, region: RegionId) -> Option<usize> {
        latest_leader(&self.world, region)
    }

    /// Asks for a change of the region as it is, once.
    pub(super) fn change_once(&mut self, region: RegionId, change: MembershipChange) -> Ticket {
        let described = self.region(region);
        let leader = self.latest_leader(region).unwrap_or(self.leader);
        self.world.ask_for_change(&described, leader, change)
    }

    /// Asks for a change until it is made.
    pub(super) fn change(&mut self, region: RegionId, change: &MembershipChange) {
        for _ in 0..TRIES_MAX {
            let ticket = self.change_once(region, change.clone());
            if self.answered(ticket) == RequestState::Served {
                return;
            }
            self.run(TRY_US);
        }
        panic!("{change:?} is not made of {:?}", self.region(region));
    }

    /// Asks for a change until it is committed, and does not wait for its answer.
    pub(super) fn commit(&mut self, region: RegionId, change: &MembershipChange) -> Ticket {
        let before = self.region(region).epoch;
        for _ in 0..TRIES_MAX {
            let ticket = self.change_once(region, change.clone());
            let is_open = |world: &SimWorld| {
                let state = world.workload().request(ticket).state;
                matches!(state, RequestState::Sent | RequestState::Waiting)
            };
            let is_made = |world: &SimWorld| {
                world.reference_model().descriptor(region).is_some_and(|it| it.epoch != before)
            };
            self.until("the entry", |world| is_made(world) || !is_open(world));
            if is_made(&self.world) {
                return ticket;
            }
            self.run(TRY_US);
        }
        panic!("{change:?} is not made of {:?}", self.region(region));
    }

    /// Hands the lead of a region over.
    pub(super) fn hand_over(&mut self, region: RegionId, store: usize) {
        for _ in 0..TRIES_MAX {
            if self.latest_leader(region) == Some(store) {
                return;
            }
            if let Some(leader) = self.latest_leader(region) {
                let described = self.region(region);
                let to = described.peer_on(layout::id(store));
                let transfer = self.world.ask_for_transfer(&described, leader, to);
                self.answered(transfer);
            }
            self.run(TRY_US);
        }
        panic!("store {store} does not lead region {region}");
    }

    /// A learner on a store.
    pub(super) fn add(&mut self, region: RegionId, store: usize) -> PeerId {
        for _ in 0..TRIES_MAX {
            let peer = Peer { id: self.world.new_peer(), store: layout::id(store) };
            let ticket = self.change_once(region, MembershipChange::Add(peer));
            if self.answered(ticket) == RequestState::Served {
                return peer.id;
            }
            self.run(TRY_US);
        }
        panic!("no learner on store {store}: {:?}", self.region(region));
    }

    /// Waits until a store has a replica of a region with all rows.
    pub(super) fn has_data(&mut self, region: RegionId, store: usize) {
        self.until("the rows", |world| world.nodes()[store].status(region).is_some());
    }

    /// Waits until a region is in one configuration.
    pub(super) fn has_left(&mut self, region: RegionId) {
        self.until("the leaving", |world| {
            world.reference_model().descriptor(region).is_some_and(|region| !region.is_joint())
        });
    }

    /// Takes the vote of the replica on a store, and then the replica.
    pub(super) fn drop_replica(&mut self, region: RegionId, store: usize) -> PeerId {
        let id = self.listed(region, store).expect("it is listed");
        if self.role_on(region, store) == Some(PeerRole::Voter) {
            self.change(region, &vote(&[], &[id]));
        }
        self.change(region, &MembershipChange::Remove(id));
        id
    }

    /// Moves the replica of a region from one store to another, in the order of the steps.
    pub(super) fn move_replica(&mut self, region: RegionId, from: usize, to: usize) -> PeerId {
        let (old, new) = (self.listed(region, from).expect("it is there"), self.add(region, to));
        self.change(region, &vote(&[new], &[old]));
        self.has_left(region);
        self.change(region, &MembershipChange::Remove(old));
        new
    }

    /// Waits until all ends of replicas of a region are confirmed.
    pub(super) fn all_confirmed(&mut self, region: RegionId) {
        self.until_in(CONFIRMED_US, "the ends", |world| {
            let region = world.reference_model().descriptor(region);
            region.is_some_and(|region| region.removed.unconfirmed.is_empty())
        });
    }

    /// Waits until a store has ended so many replicas.
    pub(super) fn has_ended(&mut self, store: usize, ends: u64) {
        self.until_in(CONFIRMED_US, "the end", |world| {
            world.nodes()[store].coverage().membership.ended >= ends
        });
    }

    pub(super) fn membership(&self) -> MembershipCoverage {
        let mut sum = MembershipCoverage::default();
        self.world.nodes().iter().for_each(|node| sum += node.coverage().membership);
        sum
    }

    pub(super) fn term(&self, store: usize, region: RegionId) -> Term {
        self.status(store, region).expect("it is there").term
    }

    pub(super) fn refused_change(&mut self, change: MembershipChange) {
        let before = self.region(DATA);
        let ticket = self.change_once(DATA, change);
        self.refused(ticket);
        assert_eq!(self.region(DATA), before, "nothing has changed");
    }

    /// The region takes a write, asked of its latest leader until it does.
    pub(super) fn takes_a_write(&mut self, region: RegionId) {
        for _ in 0..TRIES_MAX {
            if let Some(leader) = self.latest_leader(region) {
                let described = self.region(region);
                let key = self.world.workload().keys_in(&described).pop().expect("it has some");
                let put = self.put(leader, &described, &key);
                if self.answered(put) == RequestState::Served {
                    return;
                }
            }
            self.run(TRY_US);
        }
        panic!("region {region} takes no write");
    }

    /// The voters, by store.
    pub(super) fn voters(&self, region: RegionId) -> Vec<usize> {
        let described: Descriptor = self.region(region);
        let voters = described.peers.iter().filter(|peer| peer.role == PeerRole::Voter);
        let mut voters: Vec<_> = voters.map(|peer| layout::place(peer.store)).collect();
        voters.sort_unstable();
        voters
    }
}

/// A replica moves in the order of the steps; the one that it leaves ends, and its place is free.
#[test]
fn a_replica_moves_and_the_old_one_ends() {
    let mut case = Scenario::wide(200, 4);
    let [from, _] = case.followers;
    case.puts(DATA, 3);
    case.move_replica(DATA, from, 3);
    case.all_confirmed(DATA);
    assert!(!case.voters(DATA).contains(&from) && case.voters(DATA).contains(&3));
    assert!(case.status(from, DATA).is_none() && case.membership().ended >= 1);
    // And back: the store has the region again, as another replica.
    let new = case.move_replica(DATA, 3, from);
    case.all_confirmed(DATA);
    case.takes_a_write(DATA);
    case.all_are_level(DATA);
    assert_eq!(case.status(from, DATA).unwrap().peer, new);
    case.finish();
}

/// C14: all members are replaced, each while one of the first is away. When it comes back, it
/// knows none of the region's members, and ends.
#[test]
fn c14_the_whole_membership_is_replaced_while_a_replica_is_away() {
    let mut case = Scenario::wide(201, 6);
    let [away, other] = case.followers;
    let first = case.leader;
    case.world.cut_off(away);
    case.move_replica(DATA, away, 3);
    case.move_replica(DATA, other, 4);
    case.hand_over(DATA, 3);
    case.leader = 3;
    case.move_replica(DATA, first, 5);
    assert_eq!(case.voters(DATA), [3, 4, 5]);
    let leader = case.latest_leader(DATA).unwrap();
    let term = case.term(leader, DATA);
    assert!(case.status(away, DATA).is_some(), "it has heard of nothing");
    case.world.mend();
    case.all_confirmed(DATA);
    assert!(case.status(away, DATA).is_none());
    assert_eq!(case.term(leader, DATA), term, "the replica that is gone disturbed nothing");
    case.takes_a_write(DATA);
    case.finish();
}

/// C14b: the leader is a replica that was added while a follower was away. The follower does not
/// know it, and takes the entries that say who it is from it.
#[test]
fn c14b_a_follower_hears_of_its_leader_from_the_leader() {
    let mut case = Scenario::wide(214, 4);
    let [away, other] = case.followers;
    case.world.cut_off(away);
    let new = case.move_replica(DATA, other, 3);
    case.hand_over(DATA, 3);
    case.leader = 3;
    case.takes_a_write(DATA);
    let strangers = case.world.core_stats(away).dropped.strangers;
    let knows = |world: &SimWorld| {
        let descriptor = world.nodes()[away].descriptor(DATA);
        descriptor.is_some_and(|region| region.listed(new).is_some())
    };
    assert!(!knows(&case.world), "it has heard of nothing");
    case.world.mend();
    case.until("the leader", knows);
    case.all_are_level(DATA);
    assert_eq!(case.latest_leader(DATA), Some(3));
    let dropped = case.world.core_stats(away).dropped.strangers - strangers;
    assert_eq!(dropped, 0, "messages of its leader are taken");
    case.all_confirmed(DATA);
    case.finish();
}

/// C10: a replica that was removed while it was away returns, and asks a member and one that was
/// removed and has ended for votes. It is told that it is gone.
#[test]
fn c10_a_removed_replica_asks_for_votes() {
    let mut case = Scenario::wide(202, 5);
    let [away, ended] = case.followers;
    case.world.cut_off(away);
    case.move_replica(DATA, away, 3);
    case.move_replica(DATA, ended, 4);
    case.has_ended(ended, 1);
    let leader = case.latest_leader(DATA).unwrap();
    let term = case.term(leader, DATA);
    case.world.mend();
    for _ in 0..4 {
        case.world.campaign(away, DATA).expect("nothing is done yet");
        case.run(300_000);
    }
    case.all_confirmed(DATA);
    assert!(case.status(away, DATA).is_none(), "it has ended");
    assert!(case.status(ended, DATA).is_none(), "it was not made again");
    assert_eq!(case.term(leader, DATA), term);
    case.finish();
}

/// The leader never reaches the store of a replica that it has removed. The replica asks who it
/// is, and a follower says that it is gone.
#[test]
fn a_replica_that_hears_of_no_leader_asks_and_ends() {
    let mut case = Scenario::wide(203, 4);
    let [away, _] = case.followers;
    case.world.cut_off(away);
    case.move_replica(DATA, away, 3);
    case.world.mend();
    let leader = case.latest_leader(DATA).unwrap();
    case.world.cut_link(leader, away);
    case.has_ended(away, 1);
    assert_eq!(case.latest_leader(DATA), Some(leader), "it has asked, and not campaigned");
    case.world.mend();
    case.all_confirmed(DATA);
    case.finish();
}

/// C15: a replica has an id of a newer block; then one of an older block is refused, on whatever
/// store, and the region has only what it had.
#[test]
fn c15_an_id_of_an_older_block_is_refused() {
    let mut case = Scenario::wide(204, 5);
    let older = case.world.new_peer();
    let newer = PeerId(older.0 + 1_000_000);
    case.change(DATA, &MembershipChange::Add(Peer { id: newer, store: layout::id(3) }));
    case.refused_change(MembershipChange::Add(Peer { id: older, store: layout::id(4) }));
    // When the replica is gone as well: its id is the floor.
    case.change(DATA, &MembershipChange::Remove(newer));
    case.all_confirmed(DATA);
    case.refused_change(MembershipChange::Add(Peer { id: older, store: layout::id(4) }));
    case.refused_change(MembershipChange::Add(Peer { id: newer, store: layout::id(4) }));
    let next = Peer { id: PeerId(newer.0 + 1), store: layout::id(3) };
    case.change(DATA, &MembershipChange::Add(next));
    case.has_data(DATA, 3);
    case.finish();
}

/// C19: the leader keeps its vote and its place; of two voters the other one may go.
#[test]
fn c19_the_leader_is_not_demoted_and_two_become_one() {
    let mut case = Scenario::wide(205, 4);
    let leader = case.leader;
    let (here, [one, other]) = (case.id_on(leader), case.followers);
    case.refused_change(vote(&[], &[here]));
    case.refused_change(MembershipChange::Remove(here));
    let voter = case.id_on(one);
    case.refused_change(MembershipChange::Remove(voter));
    case.drop_replica(DATA, one);
    assert_eq!(case.voters(DATA).len(), 2);
    case.drop_replica(DATA, other);
    assert_eq!(case.voters(DATA), [leader]);
    case.refused_change(vote(&[], &[here]));
    case.takes_a_write(DATA);
    case.all_confirmed(DATA);
    case.finish();
}

/// C19b: no second replica on a store, also if two are asked for at the same moment.
#[test]
fn c19b_a_store_has_one_replica_of_a_region() {
    let mut case = Scenario::wide(206, 4);
    let [one, _] = case.followers;
    let id = case.world.new_peer();
    case.refused_change(MembershipChange::Add(Peer { id, store: layout::id(one) }));
    let add = |case: &mut Scenario| {
        let id = PeerId(case.region(DATA).floor().0 + 5 + case.world.new_peer().0);
        case.change_once(DATA, MembershipChange::Add(Peer { id, store: layout::id(3) }))
    };
    let tickets = [add(&mut case), add(&mut case)];
    let states = tickets.map(|ticket| case.answered(ticket));
    let served = states.iter().filter(|state| **state == RequestState::Served).count();
    assert_eq!(served, 1, "{states:?}");
    case.has_data(DATA, 3);
    // As long as its end is not confirmed, the place is taken.
    case.world.cut_off(3);
    case.drop_replica(DATA, 3);
    let id = PeerId(case.region(DATA).floor().0 + 1);
    case.refused_change(MembershipChange::Add(Peer { id, store: layout::id(3) }));
    case.world.mend();
    case.all_confirmed(DATA);
    case.change(DATA, &MembershipChange::Add(Peer { id, store: layout::id(3) }));
    case.finish();
}

/// C20: changes while another is not applied, and beside a transfer: each comes back, and none is
/// told of what did not happen.
#[test]
fn c20_a_change_that_raft_does_not_take_comes_back() {
    for seed in 207..211 {
        let mut case = Scenario::wide(seed, 5);
        let (leader, [one, other]) = (case.leader, case.followers);
        case.world.slow_applying(leader, 200_000);
        let tickets: Vec<_> = [one, other, 3, 4]
            .into_iter()
            .map(|store| {
                let id = case.listed(DATA, store);
                let change = match id {
                    Some(id) => vote(&[], &[id]),
                    None => {
                        let id = case.world.new_peer();
                        MembershipChange::Add(Peer { id, store: layout::id(store) })
                    }
                };
                let ticket = case.change_once(DATA, change);
                case.run(300);
                ticket
            })
            .collect();
        let (region, to) = (case.region(DATA), case.region(DATA).peer_on(layout::id(one)));
        let transfer = case.world.ask_for_transfer(&region, leader, to);
        let states: Vec<_> = tickets.into_iter().map(|ticket| case.answered(ticket)).collect();
        case.answered(transfer);
        let served = states.iter().filter(|state| **state == RequestState::Served).count();
        assert!(served <= 1 && !states.contains(&RequestState::Lost), "{states:?}");
        case.finish();
    }
}

/// A notice is checked as it leaves: one about a member is found.
#[test]
fn a_notice_about_a_member_is_a_lie() {
    let case = Scenario::wide(212, 4);
    let id = case.id_on(case.leader);
    let notice = flotilla_region::Notice {
        region: DATA,
        from: layout::id(case.leader),
        to: layout::id(3),
        kind: NoticeKind::Gone,
        peer: id,
        epoch: case.region(DATA).epoch,
    };
    assert!(case.world.reference_model().check_notice(&notice).is_err());
}
