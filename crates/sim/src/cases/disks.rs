//! Full disks, on one store, on most, and on all.

use flotilla_kv::raw::RawOp;
use flotilla_region::{DiskUsage, RegionId, Ticket};

use super::{DATA, Scenario};
use crate::coverage::DiskCoverage;
use crate::layout;
use crate::node::DiskFill;
use crate::request::RequestBody;
use crate::world::SimWorld;

/// Leaders leave a full disk within this.
const LEAVE_US: u64 = 3_000_000;

fn fill(case: &mut Scenario, store: usize, usage: DiskUsage) {
    case.world.fill_disk(store, DiskFill::soft(usage));
}

/// A store has heard of these disks. Followers hear of their leader alone.
fn knows(case: &mut Scenario, store: usize, usages: [DiskUsage; 3]) {
    case.until("what stores say of their disks", |world| {
        let known = |other| world.nodes()[store].known_usage(other);
        (0..).zip(usages).all(|(other, usage)| known(other) == Some(usage))
    });
}

fn put(case: &mut Scenario, store: usize) -> Ticket {
    let (region, key) = (case.region(DATA), case.key(0));
    case.put(store, &region, &key)
}

fn delete(case: &mut Scenario, store: usize) -> Ticket {
    let (region, key) = (case.region(DATA), case.key(0));
    case.ask(store, &region, RequestBody::Write(vec![RawOp::Delete { key }]))
}

fn read(case: &mut Scenario, store: usize) -> Ticket {
    let (region, key) = (case.region(DATA), case.key(0));
    case.ask(store, &region, RequestBody::Get(key))
}

fn disks(world: &SimWorld, store: usize) -> DiskCoverage {
    world.nodes()[store].coverage().driver.disks
}

fn leads_nothing(world: &SimWorld, store: usize) -> bool {
    let regions = [RegionId(1), DATA];
    regions.into_iter().all(|region| world.leading(region).is_some_and(|leader| leader != store))
}

/// C43: the disk of the store that leads is full. Its leaders leave within three seconds, puts go
/// on elsewhere, and it follows. It comes back without a restart.
#[test]
fn c43_leaders_leave_a_full_disk_and_it_follows() {
    let mut case = Scenario::new(42);
    let leader = case.leader;
    let starts = case.world.nodes()[leader].incarnation();
    fill(&mut case, leader, DiskUsage::Full);
    let refused = put(&mut case, leader);
    case.refused(refused);
    case.until_in(LEAVE_US, "other leaders", |world| leads_nothing(world, leader));
    let next = case.world.leading(DATA).expect("it leads");
    let taken = put(&mut case, next);
    case.served(taken);
    case.all_are_level(DATA);
    assert!(disks(&case.world, leader).transfers > 0);
    fill(&mut case, leader, DiskUsage::Normal);
    let region = case.region(DATA);
    let back = region.peer_on(layout::id(leader));
    let back = case.ask(next, &region, RequestBody::Transfer(back.map(|peer| peer.id)));
    case.served(back);
    let taken = put(&mut case, leader);
    case.served(taken);
    assert_eq!(case.world.nodes()[leader].incarnation(), starts, "it did not restart");
    case.finish();
}

/// C43b: two disks of three are full. The third store leads, and refuses puts: no majority could
/// keep them. Deletions and reads go on.
#[test]
fn c43b_puts_are_refused_where_most_disks_are_full() {
    let mut case = Scenario::new(43);
    let leader = case.leader;
    let [full, well] = case.followers;
    fill(&mut case, leader, DiskUsage::Full);
    fill(&mut case, full, DiskUsage::Exhausted);
    case.until_in(LEAVE_US, "a leader with room", |world| world.leads(well, DATA));
    let mut usages = [DiskUsage::Normal; 3];
    (usages[leader], usages[full]) = (DiskUsage::Full, DiskUsage::Exhausted);
    knows(&mut case, well, usages);
    let (refused, read) = (put(&mut case, well), read(&mut case, well));
    case.refused(refused);
    case.served(read);
    let deleted = delete(&mut case, well);
    case.served(deleted);
    fill(&mut case, full, DiskUsage::Normal);
    usages[full] = DiskUsage::Normal;
    knows(&mut case, well, usages);
    let taken = put(&mut case, well);
    case.served(taken);
    case.finish();
}

/// C43c: all disks are exhausted. Reads, deletions and elections go on, and so do puts once one
/// more than half has room.
#[test]
fn c43c_deletions_heal_where_all_disks_are_full() {
    let mut case = Scenario::with_roots(44);
    let (leader, [one, other]) = (case.leader, case.followers);
    // The leader last: it would leave as long as it knows of no other full disk.
    let mut usages = [DiskUsage::Exhausted; 3];
    usages[leader] = DiskUsage::Normal;
    for store in [one, other] {
        fill(&mut case, store, DiskUsage::Exhausted);
    }
    knows(&mut case, leader, usages);
    fill(&mut case, leader, DiskUsage::Exhausted);
    case.run(1_000_000);
    assert_eq!(case.world.leading(DATA), Some(leader), "none is better");
    let (refused, read_there) = (put(&mut case, leader), read(&mut case, leader));
    case.refused(refused);
    case.served(read_there);
    case.world.end_process(leader, 2_000_000);
    case.until("another leader", |world| world.leading(DATA).is_some_and(|next| next != leader));
    let next = case.world.leading(DATA).expect("it leads");
    let deleted = delete(&mut case, next);
    case.served(deleted);
    case.until("the store", SimWorld::is_whole);
    let refused = put(&mut case, next);
    case.refused(refused);
    for store in [leader, one, other] {
        fill(&mut case, store, DiskUsage::Normal);
    }
    let next = case.world.leading(DATA).expect("it leads");
    knows(&mut case, next, [DiskUsage::Normal; 3]);
    let taken = put(&mut case, next);
    case.served(taken);
    case.finish();
}

/// C43d: the disk of a follower is exhausted. It takes no entries, the region goes on without it,
/// and it catches up by itself when it has room. Its reserve was given up, and is made again.
#[test]
fn c43d_an_exhausted_follower_comes_back_without_a_restart() {
    let mut case = Scenario::with_roots(45);
    let [full, _] = case.followers;
    let starts = case.world.nodes()[full].incarnation();
    fill(&mut case, full, DiskUsage::Exhausted);
    let before = case.status(full, DATA).expect("it is there").last;
    case.puts(DATA, 20);
    case.run(2_000_000);
    assert_eq!(case.status(full, DATA).expect("it is there").last, before);
    assert!(disks(&case.world, full).entries_refused > 0);
    assert_eq!(disks(&case.world, full).reserves_released, 1);
    fill(&mut case, full, DiskUsage::Normal);
    case.all_are_level(DATA);
    assert_eq!(case.world.nodes()[full].incarnation(), starts);
    case.finish();
}

/// C43e: the disk of a follower is almost full. It gets no snapshot, and gets one as soon as there
/// is room.
#[test]
fn c43e_no_snapshot_comes_to_a_disk_that_is_almost_full() {
    let mut case = Scenario::with_short_logs(46);
    let [full, _] = case.followers;
    case.fall_behind(full);
    fill(&mut case, full, DiskUsage::AlmostFull);
    case.world.mend();
    case.until("a refused snapshot", |world| disks(world, full).snapshots_refused > 0);
    case.run(500_000);
    let installed = |case: &Scenario| case.world.nodes()[full].coverage().snapshots.installed;
    assert_eq!(installed(&case), 0);
    fill(&mut case, full, DiskUsage::Normal);
    case.all_are_level(DATA);
    assert!(installed(&case) > 0);
    case.finish();
}
