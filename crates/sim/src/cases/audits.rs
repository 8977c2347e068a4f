//! The end of a run: nothing goes wrong in the audit, and the audit itself is bounded.

use super::{DATA, Scenario};
use crate::audit;
use crate::run;

/// A loss of power that is planned when the faults end does not come: the audit would wait for
/// stores that are down.
#[test]
fn no_power_is_lost_behind_the_last_fault() {
    let mut case = Scenario::new(31);
    (0..3).for_each(|store| case.world.lose_power(store, 20));
    let crashes = case.world.counts().crashes;
    run::conclude(&mut case.world).unwrap();
    assert_eq!(case.world.counts().crashes, crashes);
}

/// All stores are down for a while, and refuse at once, and there are more keys than events between
/// two looks: the audit asks for each some ten times, not once a microsecond.
#[test]
fn the_audit_waits_before_it_asks_again() {
    let mut case = Scenario::with_keys(32, 40);
    (0..3).for_each(|store| case.world.lose_power_for(store, 30_000));
    let (region, key) = (case.region(DATA), case.key(0));
    let first = case.put(case.leader, &region, &key);
    audit::reads(&mut case.world).unwrap();
    let last = case.put(case.leader, &region, &key);
    let keys = case.world.workload().keys().count() as u64;
    let asked = last.0 - first.0;
    assert!(asked < 100 * keys, "{asked} requests for {keys} keys");
}
