//! Settings that leases rest on change while the cluster runs.

use flotilla_identity::{SettingChange, TickChange};
use flotilla_region::RegionSettings;

use super::{DATA, Scenario};
use crate::layout;
use crate::request::RequestBody;
use crate::world::SimWorld;

/// Shorter than the first, that of `Config::default`.
const TICK_MS: u64 = 15;

/// C42: a store is away when the tick is changed. The others drop their leases and keep their tick
/// until it has come back and said that it has none either; then all have the new tick, and leases.
#[test]
fn c42_a_change_of_the_tick_waits_for_a_store_that_is_away() {
    let mut case = Scenario::new(70);
    let home = case.world.leading(layout::SYSTEM).expect("there is one");
    let away = case.followers.into_iter().find(|store| *store != home).expect("one of two");
    case.world.end_process(away, 3_000_000);
    case.world.change_setting(SettingChange::TickMs(TICK_MS));
    case.run(2_500_000);
    assert_eq!(case.world.settings_row().tick_change, TickChange::LeasesOff { next_ms: TICK_MS });
    for store in (0..3).filter(|store| *store != away) {
        let settings = in_force(&case.world, store);
        assert_eq!((settings.tick_ms, settings.leases), (50, false), "store {store}");
    }
    let by_lease = by_lease(&case);
    get(&mut case);
    assert_eq!(self::by_lease(&case), by_lease, "a leader reads alone");
    case.until("the new tick", |world| {
        (0..3).all(|store| {
            let seen = world.nodes()[store].settings_in_force();
            seen.is_some_and(|(_, settings)| settings.tick_ms == TICK_MS && settings.leases)
        })
    });
    // One asks for the lease, the other is served by it.
    (0..2).for_each(|_| get(&mut case));
    assert!(self::by_lease(&case) > by_lease, "leases are off for good");
    case.finish();
}

/// C42b: each store loses power in turn while the steps are taken: what one has told placement is
/// on its disk, so no start brings the former tick, or leases, back.
#[test]
fn c42b_stores_that_lose_power_come_back_with_what_they_have_told() {
    let mut case = Scenario::new(71);
    let mut store = 0;
    for tick_ms in [TICK_MS, 90, 30] {
        case.world.change_setting(SettingChange::TickMs(tick_ms));
        while case.world.settings_row().tick_change != TickChange::Settled {
            // At another moment each time, and after the leases of the former tick.
            case.run(800_000 + 170_000 * (store as u64 % 5));
            case.world.lose_power_for(store % 3, 50_000);
            case.until("all stores", SimWorld::is_whole);
            store += 1;
            assert!(store < 60, "the steps come to no end");
        }
        let settled = |world: &SimWorld| {
            let mut seen = (0..3).map(|store| world.nodes()[store].settings_in_force());
            seen.all(|it| it.is_some_and(|(_, it)| it.tick_ms == tick_ms && it.leases))
        };
        case.until("the tick", settled);
    }
    assert!(store >= 3, "no store lost power meanwhile");
    case.finish();
}

/// C42c: a leader cannot hear of a change, and goes on to serve under its lease with the followers
/// that it reaches. They keep the tick that its lease rests on; so when it is cut off from them as
/// well, no other leads before its lease is over.
#[test]
fn c42c_a_leader_that_does_not_hear_of_a_change_serves_no_stale_read() {
    let mut case = Scenario::new(72);
    let (leader, region, key) = (case.leader, case.region(DATA), case.key(0));
    let home = case.world.leading(layout::SYSTEM).expect("there is one");
    assert_ne!(home, leader, "placement would hear itself");
    let put = case.put(leader, &region, &key);
    case.served(put);
    case.world.cut_link(home, leader);
    case.world.cut_link(leader, home);
    case.world.change_setting(SettingChange::TickMs(TICK_MS));
    case.run(1_500_000);
    assert!(in_force(&case.world, leader).leases, "it has heard");
    assert_eq!(case.world.leading(DATA), Some(leader), "it still leads");
    let reads: Vec<_> = (0..4)
        .map(|_| {
            case.run(100_000);
            case.ask(leader, &region, RequestBody::Get(key.clone()))
        })
        .collect();
    for read in reads {
        case.served(read);
    }
    case.world.cut_off(leader);
    let others = case.followers;
    case.until("another leader", |world| others.iter().any(|store| world.leads(*store, DATA)));
    let next = others.into_iter().find(|store| case.world.leads(*store, DATA));
    let newer = case.put(next.expect("there is one"), &region, &key);
    // The former leader does not know: what it serves now would be stale.
    let read = case.ask(leader, &region, RequestBody::Get(key));
    case.served(newer);
    case.refused(read);
    case.world.mend();
    case.until("the new tick", |world| {
        (0..3).all(|store| {
            let settings = in_force(world, store);
            settings.tick_ms == TICK_MS && settings.leases
        })
    });
    case.finish();
}

fn in_force(world: &SimWorld, store: usize) -> RegionSettings {
    world.nodes()[store].settings_in_force().expect("it runs").1
}

fn by_lease(case: &Scenario) -> u64 {
    case.world.core_stats(case.leader).reads_by_lease
}

fn get(case: &mut Scenario) {
    let (region, key) = (case.region(DATA), case.key(0));
    let leader = case.world.leading(DATA).expect("there is one");
    let read = case.ask(leader, &region, RequestBody::Get(key));
    case.served(read);
}
