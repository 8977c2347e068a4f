//! When the questions of the bootstrap are asked and asked again; time is driven by hand.

use flotilla_identity::{
    Bootstrap, BootstrapRequest, BootstrapResponse, BootstrapSchedule, BootstrapWrite,
    ClusterSettings, ClusterSpec, StoreIdentity, StoreRegistry, StoreRun, StoreUuid, member_answer,
};
use flotilla_region::Time;

fn at_ms(ms: u64) -> Time {
    Time::default().after_ms(ms)
}

fn bootstrap(place: usize, stores: usize) -> Bootstrap {
    let list = &["a=h:1", "b=h:2", "c=h:3"][..stores];
    let stores = ClusterSpec::parse_stores(&list.join(",")).expect("a list of names and addresses");
    let settings = ClusterSettings::default();
    let spec = ClusterSpec { stores, settings, regions: 1, split_keys: vec![], cluster_id: 0 };
    let identity = StoreIdentity::new(StoreUuid(place as u128 + 1), StoreRun::default());
    Bootstrap::new(identity, spec, place, Vec::new())
}

/// The places that are asked at a time.
fn asked(schedule: &mut BootstrapSchedule, bootstrap: &mut Bootstrap, ms: u64) -> Vec<usize> {
    schedule.due(at_ms(ms), bootstrap).into_iter().map(|(place, _, _)| place).collect()
}

#[test]
fn silence_is_waited_for_longer_than_an_answer_that_does_not_help() {
    let mut own = bootstrap(1, 3);
    let mut schedule = BootstrapSchedule::new(at_ms(0), &own, true);
    assert_eq!(asked(&mut schedule, &mut own, 0), [0, 2]);
    schedule.answered(2);
    assert_eq!(asked(&mut schedule, &mut own, 199), []);
    assert_eq!(asked(&mut schedule, &mut own, 200), [2]);
    assert_eq!(asked(&mut schedule, &mut own, 1_999), []);
    assert_eq!(asked(&mut schedule, &mut own, 2_000), [0]);
}

#[test]
fn a_write_makes_all_questions_due() {
    let mut own = bootstrap(1, 3);
    let mut schedule = BootstrapSchedule::new(at_ms(0), &own, true);
    assert_eq!(asked(&mut schedule, &mut own, 0), [0, 2]);
    let token = own.token();
    own.written(&BootstrapWrite::Promise(1));
    assert_ne!(own.token(), token);
    assert_eq!(asked(&mut schedule, &mut own, 1), [0, 2]);
}

#[test]
fn a_founder_whose_plan_is_not_kept_asks_for_another_round() {
    let mut own = bootstrap(0, 2);
    let mut schedule = BootstrapSchedule::new(at_ms(0), &own, true);
    let due = schedule.due(at_ms(0), &mut own);
    let promise = BootstrapResponse::Promised { uuid: StoreUuid(2), round: 1 };
    assert_eq!(own.hear(1, due[0].1, &promise), Ok(None));
    let plan = own.advance(9).unwrap();
    own.written(&plan);
    for ms in [100, 2_099] {
        schedule.due(at_ms(ms), &mut own);
        assert!(own.is_forming_as_founder(), "after {ms} ms");
    }
    let due = schedule.due(at_ms(2_100), &mut own);
    assert!(matches!(&due[..], [(1, _, BootstrapRequest::Prepare { round: 2, .. })]));
}

#[test]
fn a_store_that_is_listed_alone_listens_first() {
    let lone = BootstrapSchedule::new(at_ms(10), &bootstrap(0, 1), true);
    assert!(!lone.may_begin(at_ms(4_009)) && lone.may_begin(at_ms(4_010)));
    let meant_alone = BootstrapSchedule::new(at_ms(10), &bootstrap(0, 1), false);
    assert!(meant_alone.may_begin(at_ms(10)));
    let listed = BootstrapSchedule::new(at_ms(10), &bootstrap(0, 3), true);
    assert!(listed.may_begin(at_ms(10)));
}

/// Three stores between which each message is lost with a chance of `lost` in 10: after how many
/// milliseconds all are members.
fn begins_after_ms(seed: u64, lost: u8) -> u64 {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut stores: Vec<_> = (0..3).map(|place| bootstrap(place, 3)).collect();
    let mut schedules: Vec<_> =
        stores.iter().map(|own| BootstrapSchedule::new(at_ms(0), own, true)).collect();
    let mut registry = StoreRegistry::default();
    for ms in (0..120_000).step_by(20) {
        for place in 0..3 {
            let mut own = stores[place].clone();
            for (to, token, request) in schedules[place].due(at_ms(ms), &mut own) {
                if random.u8(0..10) < lost {
                    continue;
                }
                let response = answer(&mut stores[to], &registry, &request);
                if random.u8(0..10) < lost {
                    continue;
                }
                schedules[place].answered(to);
                if let Some(write) = own.hear(to, token, &response).expect("no store lost anything")
                {
                    own.written(&write);
                }
            }
            while let Some(write) = own.advance(9) {
                if let BootstrapWrite::Form { plan, .. } = &write {
                    registry = StoreRegistry::of_plan(plan);
                }
                own.written(&write);
            }
            stores[place] = own;
        }
        if stores.iter().all(Bootstrap::is_member) {
            return ms;
        }
    }
    panic!("seed {seed}: no cluster: {stores:?}");
}

fn answer(
    store: &mut Bootstrap,
    registry: &StoreRegistry,
    request: &BootstrapRequest,
) -> BootstrapResponse {
    if store.is_member() {
        return member_answer(store.identity(), registry, request);
    }
    let (write, response) = store.answer(request);
    if let Some(write) = write {
        store.written(&write);
    }
    response
}

#[test]
fn a_cluster_begins_at_once_and_over_a_bad_network_soon() {
    assert!(begins_after_ms(0, 0) <= 300);
    let slowest = (0..200).map(|seed| begins_after_ms(seed, 1)).max();
    println!("one of ten messages lost: {slowest:?} ms at most");
    assert!(slowest <= Some(60_000), "{slowest:?}");
}
