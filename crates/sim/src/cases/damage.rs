//! Pages that are not what was written: their replicas are built anew from other stores, in place.

use flotilla_region::{RegionId, Ticket};

use super::{DATA, Scenario};
use crate::executor::InstallArrow;
use crate::layout;
use crate::request::RequestBody;
use crate::world::SimWorld;

/// A damaged replica has new rows within this.
const HEALED_US: u64 = 20_000_000;

/// Rows on all replicas, in a root of each.
fn with_rows(mut case: Scenario) -> Scenario {
    for nth in 0..3 {
        let (region, key) = (case.region(DATA), case.key(nth));
        let put = case.put(case.leader, &region, &key);
        case.served(put);
    }
    case.all_are_level(DATA);
    case.run(1_000_000);
    case
}

/// A bit of the leaf that has a key flips on the disk of a store, which starts again.
fn rot(case: &mut Scenario, store: usize, nth: usize) {
    let key = case.key(nth);
    case.world.end_process(store, 300_000);
    case.world.rot(store, &key);
    case.until("the store", SimWorld::is_whole);
    case.until("a leader", |world| {
        world.leading(DATA).is_some_and(|leader| world.knows_leader(leader, store, DATA))
    });
}

fn put(case: &mut Scenario, region: RegionId, nth: usize) -> Ticket {
    let (region, key) = (case.region(region), case.key(nth));
    let leader = case.world.leading(region.id).expect("one leads");
    case.put(leader, &region, &key)
}

/// Waits until no replica of a store is damaged, and looks whether one was.
fn heals(case: &mut Scenario, store: usize) {
    case.until("the damage", |world| world.core_stats(store).snapshots_requested > 0);
    case.until_in(HEALED_US, "new rows", |world| {
        world.nodes()[store].damaged_replicas() == 0
            && world.core_stats(store).snapshots_installed > 0
    });
    assert_eq!(case.world.nodes()[store].coverage().ends.replicas, 0, "it is the same replica");
}

/// C44: a page of a follower is damaged. An entry for it meets that; the follower gets all rows of
/// the region anew, as the same replica, and no client notices.
#[test]
fn c44_a_damaged_follower_is_built_anew_in_place() {
    let mut case = with_rows(Scenario::without_scrub(50));
    let [rotten, _] = case.followers;
    rot(&mut case, rotten, 0);
    let starts = case.world.nodes()[rotten].incarnation();
    let before = put(&mut case, DATA, 0);
    case.served(before);
    heals(&mut case, rotten);
    let behind = put(&mut case, DATA, 0);
    case.served(behind);
    case.all_are_level(DATA);
    assert_eq!(case.world.nodes()[rotten].incarnation(), starts, "the store went on");
    case.finish();
}

/// C44b: a page of the leader is damaged. The read that meets it is refused; another one leads, and
/// the former leader gets its rows.
#[test]
fn c44b_a_damaged_leader_hands_over() {
    let mut case = with_rows(Scenario::without_scrub(51));
    let (rotten, region) = (case.leader, case.region(DATA));
    let key = case.key(0);
    case.world.end_process(rotten, 300_000);
    case.world.rot(rotten, &key);
    case.until("the store", SimWorld::is_whole);
    case.until("a leader", |world| world.leading(DATA).is_some());
    let next = case.world.leading(DATA).expect("one leads");
    // Before it has read anything.
    if next != rotten {
        case.until("its word", |world| world.knows_leader(next, rotten, DATA));
        case.world.call_to_campaign(DATA, next, rotten);
    }
    case.until("the lead", |world| world.leads(rotten, DATA));
    let read = case.ask(rotten, &region, RequestBody::Get(key.clone()));
    case.refused(read);
    case.until("another leader", |world| {
        world.leading(DATA).is_some_and(|leader| leader != rotten)
    });
    let next = case.world.leading(DATA).expect("one leads");
    let read = case.ask(next, &region, RequestBody::Get(key));
    case.served(read);
    heals(&mut case, rotten);
    case.all_are_level(DATA);
    case.finish();
}

/// C44c: two regions share the damaged page. Both are built anew, each for itself.
#[test]
fn c44c_all_regions_of_a_damaged_page_are_built_anew() {
    let mut case = with_rows(Scenario::without_scrub(52));
    let (split, child) = case.split(case.leader);
    case.served(split);
    case.until("a leader of the child", |world| world.leading(child).is_some());
    case.all_are_level(DATA);
    case.all_are_level(child);
    case.run(1_000_000);
    let [rotten, _] = case.followers;
    rot(&mut case, rotten, 0);
    case.until("a leader of the child", |world| world.leading(child).is_some());
    let one = put(&mut case, child, 0);
    case.served(one);
    case.until("the damage", |world| world.nodes()[rotten].damaged_replicas() == 2);
    heals(&mut case, rotten);
    case.until("both", |world| world.core_stats(rotten).snapshots_installed == 2);
    let other = put(&mut case, DATA, 1);
    case.served(other);
    case.all_are_level(DATA);
    case.all_are_level(child);
    case.finish();
}

/// C44d: the third store is away, so the region needs the acknowledgements of the damaged one. It
/// goes on, and heals.
#[test]
fn c44d_a_damaged_replica_votes_and_acknowledges() {
    let mut case = with_rows(Scenario::without_scrub(53));
    let [rotten, away] = case.followers;
    rot(&mut case, rotten, 0);
    let leader = case.world.leading(DATA).expect("one leads");
    if leader != case.leader {
        let (region, to) = (case.region(DATA), layout::id(case.leader));
        let to = region.peer_on(to).map(|peer| peer.id);
        let back = case.ask(leader, &region, RequestBody::Transfer(to));
        case.served(back);
    }
    case.world.cut_off(away);
    let first = put(&mut case, DATA, 0);
    case.served(first);
    heals(&mut case, rotten);
    let second = put(&mut case, DATA, 1);
    case.served(second);
    case.world.mend();
    case.all_are_level(DATA);
    case.finish();
}

/// C44e: the power goes at each arrow of the installation. The store has the mark, or the damaged
/// page, or the new rows.
#[test]
fn c44e_the_power_goes_while_new_rows_come() {
    let arrows = [
        InstallArrow::HandedOut,
        InstallArrow::Rooted,
        InstallArrow::ResetQueued,
        InstallArrow::ResetSynced,
    ];
    for (seed, arrow) in (54..).zip(arrows) {
        let mut case = with_rows(Scenario::without_scrub(seed));
        let [rotten, _] = case.followers;
        rot(&mut case, rotten, 0);
        case.world.cut_at_arrow(rotten, arrow);
        let one = put(&mut case, DATA, 0);
        case.served(one);
        case.until("the cut", |world| !world.is_whole());
        case.until("the store", SimWorld::is_whole);
        case.until_in(HEALED_US, "new rows", |world| {
            let (node, leader) = (&world.nodes()[rotten], world.leading(DATA));
            let applied = |store: usize| world.nodes()[store].status(DATA).map(|it| it.applied);
            node.damaged_replicas() == 0
                && leader.is_some_and(|leader| applied(leader) == applied(rotten))
        });
        let one = put(&mut case, DATA, 0);
        case.served(one);
        case.all_are_level(DATA);
        case.finish();
    }
}

/// C44f: no client reads or writes. The scrub finds the damage.
#[test]
fn c44f_a_scrub_finds_damage_in_an_idle_store() {
    let mut case = with_rows(Scenario::with_roots(58));
    let [rotten, _] = case.followers;
    rot(&mut case, rotten, 0);
    heals(&mut case, rotten);
    case.all_are_level(DATA);
    case.finish();
}
