//! Values whose time ends while requests about them are under way.

use flotilla_kv::raw::RawOp;

use super::{DATA, Scenario};
use crate::request::RequestBody;
use crate::wall_clock;

/// Microseconds of the run within which a request has come to its store.
const ON_THE_WAY_US: u64 = 3_000;
/// Microseconds of the run that a value lives which is put for a second.
const SECOND_US: u64 = wall_clock::run_us(1_000);
/// Microseconds of the run between two settings of the clocks.
const SET_US: u64 = 150_000;

/// C41: a swap is in the log, and not yet applied, when the time of its value ends, and a read
/// comes behind it. The swap goes by its own time and finds the value; the read has left the value
/// out by its clock, and must not answer so: the swap is before it.
#[test]
fn c41_a_read_looks_again_once_the_log_has_its_time() {
    let mut case = Scenario::new(41);
    let (region, key, leader) = (case.region(DATA), case.key(0), case.leader);
    // No clock is set in between.
    let now = case.world.now();
    case.run(SET_US - now % SET_US + ON_THE_WAY_US);
    let put = RawOp::Put { key: key.clone(), value: "first".into(), ttl_s: 1 };
    let asked = case.world.now();
    let put = case.ask(leader, &region, RequestBody::Write(vec![put]));
    case.served(put);
    let [one, other] = case.followers;
    for store in [leader, one, other] {
        case.world.slow_syncs(store, SET_US);
    }
    let until = |case: &mut Scenario, at: u64| {
        let now = case.world.now();
        assert!(now < at, "the put took until {now}, and {at} is next");
        case.run(at - now);
    };
    until(&mut case, asked + SECOND_US - ON_THE_WAY_US);
    let swap = RawOp::CompareAndSwap {
        key: key.clone(),
        expected: Some("first".into()),
        value: Some("second".into()),
        ttl_s: 0,
    };
    let swap = case.ask(leader, &region, RequestBody::Write(vec![swap]));
    until(&mut case, asked + SECOND_US + ON_THE_WAY_US);
    let logged = case.world.nodes()[leader].coverage().reads.logged_times;
    let read = case.ask(leader, &region, RequestBody::Get(key));
    case.served(swap);
    case.served(read);
    let again = case.world.nodes()[leader].coverage().reads.logged_times;
    assert_eq!(again, logged + 1, "the read has left the value out at first");
    case.finish();
}
