//! Leaders that hand over: to replicas that cannot take over, in vain, and beside reads.

use flotilla_region::{Peer, RegionId, Role, Ticket};

use super::{DATA, Scenario};
use crate::layout;
use crate::request::{RequestBody, RequestState};

/// Within this time a message leaves its queue.
const SEND_US: u64 = 150;

impl Scenario {
    fn peer(&self, store: usize) -> Peer {
        self.region(DATA).peer_on(layout::id(store)).expect("each store has a replica")
    }

    fn transfer(&mut self, from: usize, to: usize) -> Ticket {
        let (region, to) = (self.region(DATA), self.peer(to));
        self.world.ask_for_transfer(&region, from, Some(to))
    }

    fn get(&mut self, store: usize, follower: bool) -> Ticket {
        let (region, key) = (self.region(DATA), self.key(1));
        let mut request = crate::request::ClientRequest::new(
            crate::request::RequestOwner::Auditor,
            &region,
            store,
            RequestBody::Get(key),
        );
        request.follower = follower;
        self.world.send(request)
    }

    fn put_anew(&mut self, store: usize) -> Ticket {
        let (region, key) = (self.region(DATA), self.key(1));
        self.put(store, &region, &key)
    }

    fn leads(&self, store: usize) -> bool {
        self.status(store, DATA).is_some_and(|status| status.role == Role::Leader)
    }

    /// The leader has a lease: it has just served a read alone.
    fn earn_lease(&mut self) {
        let leader = self.leader;
        for _ in 0..3 {
            let get = self.get(leader, false);
            self.served(get);
        }
        assert!(self.world.core_stats(leader).reads_by_lease > 0);
    }
}

/// C21: a replica that is down, then one that is back and far behind, do not get the lead; the
/// region serves all the while. When it has caught up, it does.
#[test]
fn c21_the_lead_goes_to_no_replica_that_is_down_or_behind() {
    let mut case = Scenario::new(21);
    let (leader, [away, other]) = (case.leader, case.followers);
    case.world.end_process(away, 2_000_000);
    case.run(500_000);
    let down = case.transfer(leader, away);
    case.refused(down);
    let (region, key) = (case.region(DATA), case.key(1));
    for round in 0..100_u8 {
        let value = vec![round; 2_000].into();
        let put = flotilla_kv::raw::RawOp::put(key.clone(), value);
        let put = case.ask(leader, &region, RequestBody::Write(vec![put]));
        case.served(put);
    }
    let last = case.status(leader, DATA).unwrap().last;
    case.until("the store", |world| world.nodes()[away].status(DATA).is_some());
    let mut refused = 0;
    while case.status(away, DATA).is_none_or(|status| status.persisted < last) {
        let transfer = case.transfer(leader, away);
        refused += u32::from(case.answered(transfer) == RequestState::Refused);
        assert!(case.leads(leader));
    }
    assert!(refused > 0, "it had caught up at once");
    case.run(500_000);
    let transfer = case.transfer(leader, away);
    case.served(transfer);
    case.until("the next leader", |world| world.leading(DATA) == Some(away));
    let put = case.put_anew(away);
    case.served(put);
    let back = case.transfer(away, other);
    case.served(back);
    case.finish();
}

/// R22: the leader has called for the election and hears of nothing; it serves no read alone.
#[test]
fn r22_a_leader_that_was_replaced_by_its_own_wish_serves_nothing_by_its_lease() {
    let mut case = Scenario::new(22);
    let (leader, [next, _]) = (case.leader, case.followers);
    case.earn_lease();
    let by_lease = case.world.core_stats(leader).reads_by_lease;
    let transfer = case.transfer(leader, next);
    case.until("the call", |world| world.core_stats(leader).transfers_begun == 1);
    // The word is under way, and nothing that is sent from now on arrives.
    case.run(SEND_US);
    case.world.cut_off(leader);
    case.until("the next leader", |world| {
        let status = world.nodes()[next].status(DATA);
        status.is_some_and(|status| status.role == Role::Leader)
    });
    let put = case.put_anew(next);
    case.served(put);
    assert!(case.leads(leader), "it has heard of nothing");
    let stale = case.get(leader, false);
    case.refused(stale);
    assert_eq!(case.world.core_stats(leader).reads_by_lease, by_lease);
    // The leader had no other outcome to tell.
    case.refused(transfer);
    case.world.mend();
    case.finish();
}

/// C22: the transfer fails because the votes come late, the old leader reads, and then they come.
#[test]
fn c22_the_votes_of_a_transfer_come_when_it_has_failed() {
    let mut case = Scenario::new(23);
    let (leader, [next, other]) = (case.leader, case.followers);
    case.earn_lease();
    let by_lease = case.world.core_stats(leader).reads_by_lease;
    let term = case.status(leader, DATA).unwrap().term;
    case.world.slow_down(next, 700_000);
    let transfer = case.transfer(leader, next);
    case.refused(transfer);
    assert!(case.leads(leader), "the votes are under way");
    // With the vote of the third store, which confirms the leader meanwhile.
    while case.status(other, DATA).unwrap().term == term {
        let get = case.get(leader, false);
        case.answered(get);
        if case.status(next, DATA).is_some_and(|status| status.role == Role::Candidate) {
            case.run(500);
        }
        // The leader must not hear of the election.
        if case.status(leader, DATA).is_some_and(|status| status.term > term) {
            break;
        }
    }
    assert_eq!(case.world.core_stats(leader).reads_by_lease, by_lease);
    case.world.mend();
    case.until("a leader", |world| world.leading(DATA).is_some());
    case.run(1_000_000);
    let now = case.world.leading(DATA).unwrap();
    let put = case.put_anew(now);
    case.served(put);
    let get = case.get(now, false);
    case.served(get);
    case.finish();
}

/// C22: the same, and the old leader is cut off before the votes come: it reads beside its
/// successor.
#[test]
fn c22_the_old_leader_reads_beside_the_one_that_late_votes_elect() {
    let mut case = Scenario::new(24);
    let (leader, [next, _]) = (case.leader, case.followers);
    case.earn_lease();
    case.world.slow_down(next, 640_000);
    // Its own vote is asked for in vain, or the leader would hear of the election.
    case.world.cut_link(next, leader);
    let transfer = case.transfer(leader, next);
    case.refused(transfer);
    for _ in 0..3 {
        let get = case.get(leader, false);
        case.served(get);
    }
    case.world.cut_off(leader);
    case.world.hear_at_once(next);
    case.until("the next leader", |world| {
        let status = world.nodes()[next].status(DATA);
        status.is_some_and(|status| status.role == Role::Leader)
    });
    let put = case.put_anew(next);
    case.served(put);
    assert!(case.leads(leader), "it has heard of nothing");
    let stale = case.get(leader, false);
    case.refused(stale);
    case.world.mend();
    case.finish();
}

/// C23: a follower asks for a read index before a transfer, and again after it.
#[test]
fn c23_a_follower_reads_across_a_transfer() {
    let mut case = Scenario::new(25);
    let (leader, [next, other]) = (case.leader, case.followers);
    case.earn_lease();
    let mut gets = vec![case.get(other, true)];
    let transfer = case.transfer(leader, next);
    for _ in 0..40 {
        gets.push(case.get(other, true));
        gets.push(case.get(leader, true));
        case.run(500);
    }
    case.served(transfer);
    let put = case.put_anew(next);
    case.served(put);
    gets.push(case.get(other, true));
    gets.push(case.get(leader, true));
    let served = gets.into_iter().filter(|get| case.answered(*get) == RequestState::Served).count();
    assert!(served > 40, "{served} of 83");
    case.finish();
}

/// C6: a split in flight is applied before the lead goes, and a transfer in flight is over before a
/// split begins.
#[test]
fn c6_a_split_and_a_transfer_of_the_same_moment() {
    for seed in 30..34 {
        let mut case = Scenario::new(seed);
        let (leader, [next, _]) = (case.leader, case.followers);
        case.world.slow_applying(leader, 50_000);
        let (split, child) = case.split(leader);
        case.run(2_000);
        let early = case.transfer(leader, next);
        case.refused(early);
        case.served(split);
        case.until("a leader of the child", |world| world.leading(child).is_some());
        case.run(300_000);
        let transfer = case.transfer(leader, next);
        let (region, end) = (case.region(DATA), case.key(2));
        case.run(1_000);
        let (late, never) = case.split_at(leader, &region, &end);
        case.served(transfer);
        let done = case.answered(late) == RequestState::Served;
        assert_eq!(done, case.exists(never), "as it was told");
        assert!(!done, "it was proposed beside a transfer");
        case.until("the next leader", |world| world.leading(DATA) == Some(next));
        assert_eq!(parts(&case), 2);
        case.finish();
    }
}

fn parts(case: &Scenario) -> usize {
    let all = case.world.reference_model().descriptors();
    all.filter(|region| region.id != RegionId(1)).count()
}
