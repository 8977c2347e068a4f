//! Requests that were admitted before a split, and are carried out after it.

use bytes::Bytes;
use flotilla_kv::raw::RawOp;
use flotilla_region::{Descriptor, Index, Ticket};

use super::{DATA, Scenario};
use crate::request::{ClientRequest, RequestBody, RequestOwner};

/// C8: a range deletion, a batch and a scan are admitted before a split, and their turn comes after
/// it. None has an effect, or sees anything; each is served by the regions that there are then.
#[test]
fn c8_requests_are_overtaken_by_a_split() {
    let mut case = Scenario::new(10);
    let (leader, before) = (case.leader, case.region(DATA));
    for nth in 0..4 {
        let key = case.key(nth);
        let put = case.put(leader, &before, &key);
        case.served(put);
    }
    // The split is committed and not applied while they are admitted.
    case.world.slow_applying(leader, 50_000);
    let (split, child) = case.split(leader);
    case.run(5_000);
    let requests = overtaken(&mut case, &before);
    case.run(10_000);
    assert_eq!(case.world.core_stats(leader).splits, 0, "all were there before the split");
    case.served(split);
    for ticket in requests {
        case.refused(ticket);
    }
    let values: Vec<Bytes> = rows(&case).into_iter().map(|(_, value)| value).collect();
    assert_eq!(values.len(), 4, "nothing is deleted");
    assert!(values.iter().all(|value| value.starts_with(b"put at")), "nothing is replaced");
    case.until("a leader of the child", |world| world.leading(child) == Some(leader));
    for region in [case.region(child), case.region(DATA)] {
        let scan = case.ask(leader, &region, RequestBody::Scan);
        case.served(scan);
    }
    case.finish();
}

fn overtaken(case: &mut Scenario, route: &Descriptor) -> [Ticket; 3] {
    let (first, last) = (case.key(0), case.key(3));
    let range = RawOp::DeleteRange { start: first.clone(), end: Some(last.clone()) };
    let put = |key: &Bytes| RawOp::put(key.clone(), b"too late".as_slice().into());
    let batch = vec![put(&first), put(&last)];
    let bodies = [RequestBody::Write(vec![range]), RequestBody::Write(batch), RequestBody::Scan];
    bodies.map(|body| case.ask(case.leader, route, body))
}

/// The rows of all regions, as the log makes them.
fn rows(case: &Scenario) -> Vec<(Bytes, Bytes)> {
    let model = case.world.reference_model();
    let newest = Index(u64::MAX);
    let rows = model.descriptors().flat_map(|region| model.rows(region.id, newest));
    let data = rows.filter(|((_, key), _)| case.world.workload().keys().any(|known| known == key));
    data.map(|((_, key), value)| (key.clone(), value.clone())).collect()
}

/// C9: a follower's read is asked before a split, and its turn comes after it. It is refused, with
/// the region as it is then: the child may have newer values by now.
#[test]
fn c9_a_read_of_a_follower_is_overtaken_by_a_split() {
    let mut case = Scenario::new(11);
    let (leader, [slow, _], before) = (case.leader, case.followers, case.region(DATA));
    let key = case.key(0);
    let put = case.put(leader, &before, &key);
    case.served(put);
    case.run(50_000);
    case.world.slow_applying(slow, 200_000);
    let (split, child) = case.split(leader);
    case.served(split);
    case.until("a leader of the child", |world| world.leading(child).is_some());
    let newer = case.put(leader, &case.region(child), &key);
    case.served(newer);
    let reads = [0, 3].map(|nth| {
        let body = RequestBody::Get(case.key(nth));
        let mut get = ClientRequest::new(RequestOwner::Auditor, &before, slow, body);
        get.follower = true;
        case.world.send(get)
    });
    case.run(20_000);
    assert_eq!(case.world.core_stats(slow).splits, 0, "it is admitted before the split");
    for read in reads {
        case.refused(read);
    }
    assert_eq!(case.world.nodes()[slow].coverage().splits.reads_turned_back, 2);
    case.finish();
}

/// A request whose region has no leader waits at its store. Once there is one it is served there,
/// or refused with the leader's name; without one it is refused in time.
#[test]
fn a_request_waits_for_a_leader() {
    let mut case = Scenario::new(62);
    let (leader, followers, region) = (case.leader, case.followers, case.region(DATA));
    let key = case.key(0);
    case.world.end_process(leader, 60_000_000);
    let knows_none = |world: &crate::world::SimWorld| {
        let mut known = followers.iter().map(|store| world.nodes()[*store].status(DATA));
        known.all(|status| status.is_some_and(|status| status.leader.is_none()))
    };
    case.until("no leader", knows_none);
    let puts = followers.map(|store| case.put(store, &region, &key));
    case.until("the next leader", |world| world.leading(DATA).is_some_and(|it| it != leader));
    let next = case.world.leading(DATA).expect("there is one");
    for (store, put) in followers.into_iter().zip(puts) {
        let is_served = case.answered(put) == crate::request::RequestState::Served;
        assert_eq!(is_served, store == next, "store {store} of {followers:?}");
    }
    let waits = followers.map(|store| case.world.nodes()[store].coverage().driver.waits);
    assert!(waits.iter().all(|waits| waits.requests > 0 && waits.retried > 0), "{waits:?}");
    // Alone it cannot lead any more.
    let other = followers.into_iter().find(|store| *store != next).expect("there are two");
    case.world.end_process(other, 60_000_000);
    case.until("no leader", |world| !world.leads(next, DATA));
    let (put, asked) = (case.put(next, &region, &key), case.world.now());
    case.refused(put);
    let waited_us = case.world.now() - asked;
    assert!((900_000..1_200_000).contains(&waited_us), "{waited_us}");
}
