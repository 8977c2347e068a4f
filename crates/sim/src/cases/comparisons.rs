//! Replicas whose rows differ are found by a comparison, and named.

use flotilla_kv::raw::RawOp;
use flotilla_region::{ConsistencyVerdict, DigestComparison, Index, StoreId};

use super::{DATA, Scenario};
use crate::layout;
use crate::request::{RequestBody, RequestState};
use crate::world::SimWorld;

/// A comparison gives up waiting for a replica after ten seconds.
const PATIENCE_US: u64 = 40_000_000;
/// The rows that a key has: a byte of flags, then the value.
const ROW: &[u8] = b"\0right";
const ALTERED: &[u8] = b"\0wrong";

/// A row on all replicas, in a root of each.
fn with_a_row(seed: u64) -> Scenario {
    let mut case = Scenario::with_roots(seed);
    let (region, key) = (case.region(DATA), case.key(0));
    let put = RawOp::put(key, ROW[1..].to_vec().into());
    let put = case.ask(case.leader, &region, RequestBody::Write(vec![put]));
    case.served(put);
    case.all_are_level(DATA);
    case.run(1_000_000);
    case
}

/// Changes the row on the disk of a store, and waits until the store is back.
fn alter(case: &mut Scenario, store: usize, row: &[u8]) {
    case.world.allow_differences();
    let key = case.key(0);
    case.world.end_process(store, 300_000);
    case.world.alter_row(store, &key, row);
    case.until("the store", SimWorld::is_whole);
    case.until("a leader", |world| {
        world.leading(DATA).is_some_and(|leader| world.knows_leader(leader, store, DATA))
    });
    case.all_are_level(DATA);
}

/// Has the replicas compared, and returns the verdict that all stores of `of` come to.
fn compare(case: &mut Scenario, of: &[usize]) -> ConsistencyVerdict {
    let (region, leader) = (case.region(DATA), case.world.leading(DATA).expect("one leads"));
    let before = last(&case.world, leader);
    let asked = case.ask(leader, &region, RequestBody::Compare);
    case.served(asked);
    case.until_in(PATIENCE_US, "a verdict", |world| {
        of.iter().all(|store| last(world, *store) > before)
    });
    let (_, comparison) = comparisons(&case.world).pop().expect("there is one");
    comparison.verdict(&region)
}

fn comparisons(world: &SimWorld) -> Vec<(Index, DigestComparison)> {
    world.reference_model().comparisons(DATA).to_vec()
}

/// The entry of the last verdict that a store has applied.
fn last(world: &SimWorld, store: usize) -> Option<Index> {
    let applied = world.nodes()[store].status(DATA)?.applied;
    let verdicts = comparisons(world).into_iter().map(|(index, _)| index);
    verdicts.filter(|index| *index <= applied).max()
}

fn differing(verdict: &ConsistencyVerdict) -> Vec<StoreId> {
    let differing = verdict.replicas.iter().filter(|replica| replica.differs);
    differing.map(|replica| replica.peer.store).collect()
}

/// C40: a row of one follower has other bytes, and right checksums. The comparison names its store,
/// and all stores know of it, over a start, until the row is right again and all were compared.
#[test]
fn c40_a_follower_with_another_row_is_named_until_it_has_the_right_one() {
    let mut case = with_a_row(31);
    let all = [0, 1, 2];
    let verdict = compare(&mut case, &all);
    assert!(verdict.is_complete() && !verdict.has_difference(), "{verdict}");
    let [odd, other] = case.followers;
    alter(&mut case, odd, ALTERED);
    let verdict = compare(&mut case, &all);
    assert_eq!(differing(&verdict), [layout::id(odd)], "{verdict}");
    for store in all {
        let known = case.world.nodes()[store].inconsistent();
        assert_eq!(known.get(&DATA), Some(&verdict), "store {store}");
    }
    // Without it there is no difference, which clears nothing.
    case.run(1_000_000);
    case.world.cut_off(odd);
    let leader = case.leader;
    let part = compare(&mut case, &[leader, other]);
    assert_eq!((part.compared(), part.has_difference()), (2, false), "{part}");
    let knows = |case: &Scenario, store: usize| {
        case.world.nodes()[store].inconsistent().contains_key(&DATA)
    };
    assert!(knows(&case, leader) && knows(&case, other));
    case.world.mend();
    case.world.lose_power_for(other, 300_000);
    case.until("the other store", SimWorld::is_whole);
    case.all_are_level(DATA);
    assert!(knows(&case, other), "over a start");
    alter(&mut case, odd, ROW);
    let verdict = compare(&mut case, &all);
    assert!(verdict.is_complete() && !verdict.has_difference(), "{verdict}");
    assert!(all.iter().all(|store| case.world.nodes()[*store].inconsistent().is_empty()));
}

/// C40b: the leader's row is the one that differs: it leads the comparison that names it.
#[test]
fn c40b_a_leader_with_another_row_is_named() {
    let mut case = with_a_row(32);
    let odd = case.leader;
    alter(&mut case, odd, ALTERED);
    let region = case.region(DATA);
    if case.world.leading(DATA) != Some(odd) {
        let leader = case.world.leading(DATA).expect("one leads");
        let to = region.peer_on(layout::id(odd)).map(|peer| peer.id);
        // Until the leader has heard that it lacks nothing.
        let mut state = RequestState::Refused;
        for _ in 0..10 {
            case.run(200_000);
            let transfer = case.ask(leader, &region, RequestBody::Transfer(to));
            state = case.answered(transfer);
            if state == RequestState::Served {
                break;
            }
        }
        assert_eq!(state, RequestState::Served);
        case.until("the lead", |world| world.leading(DATA) == Some(odd));
    }
    let verdict = compare(&mut case, &[0, 1, 2]);
    assert_eq!(differing(&verdict), [layout::id(odd)], "{verdict}");
}

/// C40c: the leader is cut off behind the entry that asks for digests. The next leader hears of
/// them again, and comes to the verdict without it.
#[test]
fn c40c_a_comparison_outlives_its_leader() {
    let mut case = with_a_row(33);
    let [odd, other] = case.followers;
    alter(&mut case, odd, ALTERED);
    let (region, leader) = (case.region(DATA), case.world.leading(DATA).expect("one leads"));
    let asked = case.ask(leader, &region, RequestBody::Compare);
    case.served(asked);
    // Until the followers have applied it, too.
    case.all_are_level(DATA);
    case.world.cut_off(leader);
    let left: Vec<_> = [leader, odd, other].into_iter().filter(|it| *it != leader).collect();
    case.until_in(PATIENCE_US, "a verdict of the next leader", |world| {
        left.iter().all(|store| last(world, *store).is_some())
    });
    let (_, comparison) = comparisons(&case.world).pop().expect("there is one");
    let verdict = comparison.verdict(&region);
    if leader != odd {
        assert!(verdict.has_difference(), "{verdict}");
    }
}
