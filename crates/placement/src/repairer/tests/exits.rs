//! Stores that are drained, and stores that leave.

use super::*;

fn standing(is_draining: bool, is_leaving: bool) -> StoreStanding {
    StoreStanding { is_draining, is_leaving, ..StoreStanding::default() }
}

#[test]
fn a_drained_store_keeps_its_replicas_and_gets_none() {
    let mut cluster = Cluster::new(5, 30, &[1, 2, 3], 3);
    cluster.view.note_standing(1, standing(true, false));
    cluster.view.note_standing(4, standing(true, false));
    cluster.settle();
    assert!(cluster.counts()[&1] > 0);
    assert_eq!(cluster.counts()[&4], 0);
    let reached = |step: &ReplicaStep, store| match step.step {
        MembershipStep::Add { store: to } => to == store,
        MembershipStep::TransferLeader { to } => to.store == store,
        _ => false,
    };
    assert!(cluster.steps.iter().all(|step| !reached(step, 1) && !reached(step, 4)));
    cluster.view.note_standing(4, standing(false, false));
    cluster.settle();
    assert!(cluster.counts()[&4] > 0, "it takes part again");
}

#[test]
fn a_store_is_drained_only_if_another_one_can_lead() {
    let mut cluster = Cluster::new(2, 1, &[1], 1);
    cluster.run(1_000);
    let check = |cluster: &Cluster, store| {
        cluster.repairer.check_drain(cluster.now_ms, &cluster.view, store)
    };
    assert_eq!(check(&cluster, 1), Ok(()));
    cluster.view.note_standing(2, standing(true, false));
    assert_eq!(check(&cluster, 1), Err(ExitRefusal::NoSuccessor));
    assert_eq!(check(&cluster, 2), Ok(()));
}

#[test]
fn a_store_leaves_only_if_regions_keep_their_number_of_replicas() {
    for (stores, setting, expected) in [
        (1, 1, Err((0, 1))),
        (2, 3, Ok(())),
        (2, 1, Ok(())),
        (3, 3, Err((2, 3))),
        (3, 1, Ok(())),
        (4, 3, Ok(())),
        (4, 5, Ok(())),
        (5, 3, Ok(())),
        (5, 5, Err((4, 5))),
        (6, 5, Ok(())),
    ] {
        let mut cluster = Cluster::new(stores, 1, &[1], setting);
        cluster.run(1_000);
        let found = cluster.repairer.check_leave(cluster.now_ms, &cluster.view, stores);
        let refused = |(staying, count)| ExitRefusal::ReplicaCount { staying, count };
        assert_eq!(found, expected.map_err(refused), "{stores} stores, setting {setting}");
    }
    // One of four leaves already, or is lost: the next one would be one too many.
    for gone in [standing(false, true), StoreStanding { is_lost: true, ..StoreStanding::default() }]
    {
        let mut cluster = Cluster::new(4, 1, &[1], 3);
        cluster.run(1_000);
        cluster.view.note_standing(2, gone);
        let refused = cluster.repairer.check_leave(cluster.now_ms, &cluster.view, 4).unwrap_err();
        assert_eq!(refused, ExitRefusal::ReplicaCount { staying: 2, count: 3 });
        assert!(refused.to_string().starts_with("2 stores would stay, and regions have 3"));
    }
    let mut paused = Cluster::new(4, 1, &[1], 3);
    paused.repairer.set_paused(true);
    let refused = paused.repairer.check_leave(1_000, &paused.view, 4);
    assert_eq!(refused, Err(ExitRefusal::Paused));
}

#[test]
fn a_store_has_left_when_no_region_and_not_itself_knows_of_a_replica() {
    let mut cluster = Cluster::new(4, 12, &[1, 2, 3], 3);
    cluster.settle();
    let emptied =
        |cluster: &Cluster| cluster.repairer.emptied(cluster.now_ms, &cluster.view, cluster.here);
    assert_eq!(emptied(&cluster), [], "none leaves");
    cluster.view.note_standing(1, standing(false, true));
    cluster.run(LOOK_MS);
    assert_eq!(emptied(&cluster), [], "it has replicas");
    cluster.settle();
    assert_eq!(cluster.counts()[&1], 0);
    assert_eq!(emptied(&cluster), [1]);
    // It still has one that no region lists any more.
    cluster.view.note_replicas(1, 1);
    assert_eq!(emptied(&cluster), []);
    // It was stopped before that was gone.
    cluster.dead.insert(1);
    cluster.run(LIMITS.target_silent_ms + 4 * LOOK_MS);
    assert_eq!(emptied(&cluster), [1]);
}

#[test]
fn where_one_replica_is_set_three_stores_become_two_and_no_region_goes_over_two() {
    let mut cluster = Cluster::new(3, 6, &[1, 2, 3], 3);
    cluster.settle();
    cluster.repairer.set_replicas(1);
    cluster.settle();
    let check = |cluster: &Cluster, store| {
        cluster.repairer.check_leave(cluster.now_ms, &cluster.view, store)
    };
    assert_eq!(check(&cluster, 1), Ok(()));
    cluster.view.note_standing(1, standing(false, true));
    cluster.settle();
    assert_eq!(cluster.counts().get(&1).copied().unwrap_or_default(), 0);
    assert!((1..=7).all(|id| cluster.stores_of(id).len() == 1), "that of placement, too");
    let refused = check(&cluster, cluster.stores_of(2)[0]).unwrap_err();
    assert!(matches!(refused, ExitRefusal::OnlyReplica(_)), "{refused}");
}

#[test]
fn no_store_has_left_while_a_region_is_not_known() {
    let mut cluster = Cluster::new(4, 12, &[1, 2, 3], 3);
    cluster.run(1_000);
    cluster.repairer.set_paused(true);
    cluster.view.note_standing(4, standing(false, true));
    let emptied =
        |cluster: &Cluster| cluster.repairer.emptied(cluster.now_ms, &cluster.view, cluster.here);
    assert_eq!(emptied(&cluster), [], "the term is young");
    cluster.run(LIMITS.settle_ms);
    assert_eq!(emptied(&cluster), [4]);
    // The next leader of placement, of which nothing but the store itself has heard.
    let infos = (1..=4).map(|id| StoreInfo { id, ..StoreInfo::default() });
    cluster.view = ClusterView::new(Config::default(), infos);
    cluster.view.note_standing(4, standing(false, true));
    cluster.view.note_replicas(4, 0);
    assert_eq!(emptied(&cluster), []);
    cluster.view.note_system(cluster.regions[0].info.clone());
    assert_eq!(emptied(&cluster), []);
}

#[test]
fn a_store_that_a_region_lists_has_not_left_whatever_it_says() {
    let mut cluster = Cluster::new(4, 12, &[1, 2, 3], 3);
    cluster.settle();
    cluster.repairer.set_paused(true);
    cluster.view.note_standing(1, standing(false, true));
    cluster.view.note_replicas(1, 0);
    let (now_ms, here) = (cluster.now_ms, cluster.here);
    assert_eq!(cluster.repairer.emptied(now_ms, &cluster.view, here), []);
}
