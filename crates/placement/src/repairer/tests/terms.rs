//! Terms of placement that have just begun: stores may not have reported yet.

use super::*;

#[test]
fn nothing_is_begun_in_a_young_term() {
    let mut cluster = Cluster::new(3, 4, &[1], 3);
    cluster.run(LIMITS.settle_ms - LOOK_MS);
    assert_eq!(cluster.steps, [], "replicas are missing");
    cluster.run(4 * LOOK_MS);
    assert_ne!(cluster.steps, []);
}

#[test]
fn in_a_young_term_a_refusal_for_want_of_reports_may_pass() {
    let mut cluster = Cluster::new(4, 1, &[1, 2, 3], 3);
    let (now_ms, here) = (cluster.now_ms, cluster.here);
    let refused = cluster.repairer.begin(now_ms, &cluster.view, here, 2, (&[4], &[1]));
    let refused = refused.unwrap_err();
    assert_eq!(refused, RepairRefusal::UnknownRegion(2));
    assert!(cluster.repairer.may_pass(0, &refused));
    assert!(!cluster.repairer.may_pass(LIMITS.settle_ms, &refused));
    assert!(!cluster.repairer.may_pass(0, &RepairRefusal::Two));
    cluster.run(1_000);
    let again = cluster.repairer.begin(cluster.now_ms, &cluster.view, here, 2, (&[4], &[1]));
    assert_eq!(again, Ok(()));
}
