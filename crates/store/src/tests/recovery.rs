//! Tests of recovery: what a store restores when it is opened again, and what it refuses to open.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flotilla_raftlog::{Durability, Entry, LogBatch, LogEngine};
use flotilla_region::{Index, LogFetch, PeerId, RecoveredReplica, RegionId, Space, Term};
use flotilla_vfs::fault::FaultFs;

use super::*;
use crate::StoreMaintenance;
use flotilla_vfs::{FileSystem, OpenMode};

fn filled(i: u64) -> flotilla_region::LogEntry {
    ops(i, &[put(&format!("e{i}"), &"v".repeat(200))])
}

/// Regions 2 to 4 begin with what they recovered as.
fn of(recovered: &[RecoveredReplica], region: u64) -> &RecoveredReplica {
    recovered.iter().find(|r| r.descriptor.id == RegionId(region)).unwrap()
}

/// Works directly on the store's log.
fn with_log(fs: &FaultFs, change: impl FnOnce(&mut LogBatch)) {
    let dir = Path::new("/data/store/log");
    let (engine, _) = LogEngine::open_with(Arc::new(fs.clone()), dir, config().log).unwrap();
    let mut batch = LogBatch::new();
    change(&mut batch);
    engine.write(batch, Durability::Synced).wait().unwrap();
}

fn logged(index: u64, term: u64) -> Entry {
    Entry { index, term, kind: 0, data: Bytes::new() }
}

/// Ten entries of region 2, of which `applied` are durably applied.
fn store_with_ten(fs: &FaultFs, applied: u64) {
    let (store, _) = open(fs);
    let entries: Vec<_> = (1..=10).map(filled).collect();
    append(&store, 2, &entries, 10);
    store.apply(&[task(2, &entries[..applied as usize])]).unwrap();
    store.checkpoint().unwrap();
}

#[test]
fn the_first_start_begins_with_the_regions_that_have_a_replica_here() {
    let fs = FaultFs::new(0);
    let mut elsewhere = region(5, Space::Raw, "x", "");
    elsewhere.peers.remove(0);
    let mut all = regions();
    all[3].end = "x".into();
    all.push(elsewhere);
    let (store, recovered) = try_begin(&fs, config(), &all).unwrap();
    assert_eq!(store.descriptors().unwrap(), all[..4]);
    let fresh: Vec<_> =
        all[..4].iter().map(|d| RecoveredReplica::fresh(d.clone(), peer(d.id.0))).collect();
    assert_eq!(recovered, fresh);
    drop(store);
    fs.power_loss(1);
    // Later, what the settings say of the first regions is not read any more.
    let (store, recovered) = open(&fs);
    assert_eq!((store.descriptors().unwrap(), recovered), (all[..4].to_vec(), fresh));
}

#[test]
fn wrong_first_regions_are_refused() {
    let mut cases = vec![];
    let mut case = |name: &str, change: fn(&mut Vec<flotilla_region::Descriptor>)| {
        let mut all = regions();
        change(&mut all);
        cases.push((name.to_owned(), all));
    };
    case("there twice", |all| all[1].id = RegionId(1));
    case("there twice", |all| all[1].peers[0].id = PeerId(301));
    case("is 0", |all| all[1].id = RegionId(0));
    case("is 0", |all| all[1].peers[0].id = PeerId(0));
    case("overlap", |all| all[1].end = "i".into());
    case("overlap", |all| all[1].end = Bytes::new());
    case("ends before it starts", |all| all[2].end = "h".into());
    for (what, all) in cases {
        let error = try_begin(&FaultFs::new(0), config(), &all).unwrap_err().to_string();
        assert!(error.contains(&what), "{error} does not say {what}");
    }
}

#[test]
fn everything_above_the_applied_index_is_found_again() {
    let fs = FaultFs::new(0);
    store_with_ten(&fs, 4);
    fs.power_loss(1);
    let (store, recovered) = open(&fs);
    let two = of(&recovered, 2);
    assert_eq!(two.applied, (Index(4), Term(1)));
    assert_eq!(two.hard_state, hard_state(1, 0, 10));
    assert_eq!((two.truncated, two.last), ((Index(0), Term(0)), Index(10)));
    assert_eq!(two.terms, [(Index(1), Term(1))]);
    assert_eq!(two.tail, (5..=10).map(filled).collect::<Vec<_>>());
    assert_eq!(rows(&store, 2).len(), 4);
    store.apply(&[task(2, &two.tail)]).unwrap();
    assert_eq!(rows(&store, 2).len(), 10);
    let fetch = LogFetch {
        region: RegionId(2),
        peer: peer(2),
        context: 0,
        low: Index(2),
        high: Index(6),
        bytes_max: 1,
    };
    assert_eq!(store.fetch(&fetch).unwrap(), [filled(2)]);
    let whole = LogFetch { bytes_max: u64::MAX, ..fetch };
    assert_eq!(store.fetch(&whole).unwrap(), (2..6).map(filled).collect::<Vec<_>>());
    store.check().unwrap();
}

#[test]
fn a_compacted_log_still_tells_the_term_before_it() {
    let fs = FaultFs::new(0);
    store_with_ten(&fs, 6);
    let (store, _) = open(&fs);
    compact(&store, 2, 7, 1);
    let error = store
        .fetch(&LogFetch {
            region: RegionId(2),
            peer: peer(2),
            context: 0,
            low: Index(6),
            high: Index(8),
            bytes_max: 1,
        })
        .unwrap_err();
    assert!(matches!(error, Error::Log(_)), "{error}");
    drop(store);
    let (_, recovered) = open(&fs);
    let two = of(&recovered, 2);
    assert_eq!(two.truncated, (Index(6), Term(1)));
    assert_eq!(two.terms, [(Index(7), Term(1))]);
    assert_eq!(two.tail.len(), 4);
}

#[test]
#[should_panic(expected = "the log would begin at 8, but only 6 is durable")]
fn the_log_keeps_what_no_durable_root_has_applied() {
    let fs = FaultFs::new(0);
    store_with_ten(&fs, 6);
    let (store, recovered) = open(&fs);
    store.apply(&[task(2, &of(&recovered, 2).tail)]).unwrap();
    compact(&store, 2, 8, 1);
}

#[test]
fn the_newest_hard_state_wins_wherever_it_is() {
    let fs = FaultFs::new(0);
    let (store, _) = open(&fs);
    let vote = |term, whom| write(3, hard_state(term, whom, 0), &[]);
    store.write_log(&[vote(5, 302)], &[], &[], &[]).wait().unwrap();
    store.checkpoint().unwrap();
    drop(store);
    // The log has lost it, the pages have it.
    with_log(&fs, |batch| batch.remove_group(peer(3).0));
    let (store, recovered) = open(&fs);
    assert_eq!(of(&recovered, 3).hard_state, hard_state(5, 302, 0));
    // The log has a newer one.
    store.write_log(&[vote(6, 301)], &[], &[], &[]).wait().unwrap();
    drop(store);
    fs.power_loss(1);
    let (_, recovered) = open(&fs);
    assert_eq!(of(&recovered, 3).hard_state, hard_state(6, 301, 0));
}

#[test]
fn what_is_applied_counts_as_committed() {
    let fs = FaultFs::new(0);
    let (store, _) = open(&fs);
    append(&store, 2, &[filled(1), filled(2)], 0);
    store.apply(&[task(2, &[filled(1)])]).unwrap();
    store.checkpoint().unwrap();
    drop(store);
    let (_, recovered) = open(&fs);
    assert_eq!(of(&recovered, 2).hard_state.commit, Index(1));
}

#[test]
fn a_log_apart_from_the_applied_state_is_reset() {
    let shorter = |batch: &mut LogBatch| {
        batch.remove_group(peer(2).0);
        batch.append(peer(2).0, &[logged(1, 1), logged(2, 1)]);
        batch.put(peer(2).0, b"hs", &hard_state(8, 202, 2).encode());
    };
    let other_way = |batch: &mut LogBatch| {
        batch.remove_group(peer(2).0);
        batch.append(peer(2).0, &[9, 10, 11].map(|index| logged(index, 7)));
        batch.put(peer(2).0, b"hs", &hard_state(8, 202, 9).encode());
    };
    for change in [shorter, other_way] {
        let fs = FaultFs::new(0);
        store_with_ten(&fs, 10);
        with_log(&fs, change);
        for _ in 0..2 {
            let (_, recovered) = open(&fs);
            let two = of(&recovered, 2);
            assert_eq!(two.hard_state, hard_state(8, 202, 10), "term and vote are kept");
            assert_eq!((two.truncated, two.last), ((Index(10), Term(1)), Index(10)));
            assert_eq!((two.terms.len(), two.tail.len()), (0, 0));
        }
        let (store, _) = open(&fs);
        let next = write(2, hard_state(8, 202, 10), &[entry(11, 8, Bytes::new())]);
        store.write_log(&[next], &[], &[], &[]).wait().unwrap();
        drop(store);
        let (store, recovered) = open(&fs);
        let two = of(&recovered, 2);
        assert_eq!((two.truncated, two.last), ((Index(10), Term(1)), Index(11)));
        assert_eq!(two.terms, [(Index(11), Term(8))]);
        store.check().unwrap();
    }
}

#[test]
fn a_log_with_a_hole_above_the_applied_state_is_refused() {
    let fs = FaultFs::new(0);
    store_with_ten(&fs, 4);
    with_log(&fs, |batch| batch.compact_to(peer(2).0, 7, 1));
    let error = try_open(&fs).unwrap_err().to_string();
    assert_eq!(error, "corrupt data: region 2: the log begins at 7, but only 4 is applied");
}

#[test]
fn a_log_that_lost_committed_entries_is_refused() {
    let fs = FaultFs::new(0);
    store_with_ten(&fs, 4);
    with_log(&fs, |batch| batch.put(peer(2).0, b"hs", &hard_state(1, 0, 11).encode()));
    let error = try_open(&fs).unwrap_err().to_string();
    assert_eq!(error, "corrupt data: region 2: entry 11 is committed, but the log ends at 10");
}

#[test]
fn engines_that_lost_each_other_are_refused() {
    let fs = FaultFs::new(0);
    store_with_ten(&fs, 10);
    let log = Path::new("/data/store/log");
    for name in fs.list(log).unwrap() {
        fs.remove(&log.join(name)).unwrap();
    }
    let error = try_open(&fs).unwrap_err().to_string();
    assert!(error.contains("but not its log"), "{error}");

    let fs = FaultFs::new(0);
    store_with_ten(&fs, 10);
    fs.remove(Path::new("/data/store/pages")).unwrap();
    let error = try_open(&fs).unwrap_err().to_string();
    assert!(error.contains("but not its pages"), "{error}");
}

#[test]
fn the_log_of_idle_regions_shrinks_to_nothing() {
    let fs = FaultFs::new(0);
    let (store, _) = open(&fs);
    // Region 3 votes and writes once, and sleeps; region 2 goes on.
    store.write_log(&[write(3, hard_state(4, 302, 0), &[])], &[], &[], &[]).wait().unwrap();
    run(&store, 4, &[ops(1, &[put("z", "1")])]);
    for i in 1..=100 {
        run(&store, 2, &[filled(i)]);
    }
    store.checkpoint().unwrap();
    compact(&store, 2, 101, 1);
    compact(&store, 4, 2, 1);
    let purged = store.purge_log().unwrap();
    assert!(purged.segments > 3, "{purged:?}");
    assert!(
        purged.blocking_groups.iter().all(|holder| holder.group == 0),
        "{:?}",
        purged.blocking_groups
    );
    assert_eq!(store.stats().log.segments, 1);
    store.check().unwrap();
    // A compaction that comes late does no harm.
    compact(&store, 2, 100, 1);
    compact(&store, 4, 1, 0);
    drop(store);
    let log = Path::new("/data/store/log");
    let (engine, _) = LogEngine::open_with(Arc::new(fs.clone()), log, config().log).unwrap();
    assert!(engine.group(peer(3).0).is_none() && engine.group(peer(4).0).is_none());
    drop(engine);
    for _ in 0..2 {
        fs.power_loss(3);
        let (store, recovered) = open(&fs);
        assert_eq!(of(&recovered, 3).hard_state, hard_state(4, 302, 0));
        assert_eq!(of(&recovered, 2).hard_state, hard_state(1, 0, 100));
        assert_eq!(of(&recovered, 2).truncated, (Index(100), Term(1)));
        assert_eq!(of(&recovered, 2).last, Index(100));
        drop(store);
    }
    let (store, _) = open(&fs);
    run(&store, 2, &[filled(101), filled(102)]);
    store.checkpoint().unwrap();
    fs.power_loss(4);
    let (store, recovered) = open(&fs);
    let two = of(&recovered, 2);
    assert_eq!((two.applied, two.truncated), ((Index(102), Term(1)), (Index(100), Term(1))));
    store.check().unwrap();
}

#[test]
fn a_vote_that_is_on_its_way_is_not_forgotten() {
    let fs = FaultFs::new(0);
    let (store, _) = open(&fs);
    store.write_log(&[write(3, hard_state(4, 302, 0), &[])], &[], &[], &[]).wait().unwrap();
    for i in 1..=100 {
        run(&store, 2, &[filled(i)]);
    }
    store.checkpoint().unwrap();
    compact(&store, 2, 101, 1);
    // Queued, not yet written, when the purge finds region 3's old vote in the oldest segment.
    let vote = store.write_log(&[write(3, hard_state(5, 301, 0), &[])], &[], &[], &[]);
    store.purge_log().unwrap();
    vote.wait().unwrap();
    fs.power_loss(1);
    let (_, recovered) = open(&fs);
    assert_eq!(of(&recovered, 3).hard_state, hard_state(5, 301, 0));
}

#[test]
fn a_full_disk_is_told_and_got_over() {
    let fs = FaultFs::new(0);
    let (store, _) = open(&fs);
    let big = "v".repeat(100 << 10);
    run(&store, 2, &[ops(1, &[put("a", "small")])]);
    store.checkpoint().unwrap();
    for i in 2..20 {
        run(&store, 2, &[ops(i, &[put(&format!("b{i}"), &big)])]);
    }
    fs.set_capacity(Some(1));
    assert!(store.checkpoint().is_err());
    assert_eq!(get(&store, 2, "b7").unwrap(), big, "reads go on");
    fs.set_capacity(None);
    let (region, applied, installed) = (RegionId(2), Index(19), None);
    let report = store.checkpoint().unwrap();
    assert_eq!(report.replicas, [CheckpointedReplica { region, applied, installed }]);
    fs.power_loss(0);
    let (store, recovered) = open(&fs);
    assert_eq!(of(&recovered, 2).applied.0, Index(19));
    assert_eq!(get(&store, 2, "b7").unwrap(), big);
}

#[test]
fn a_failed_sync_stops_the_log_and_the_checkpoint() {
    let fs = FaultFs::new(0);
    let (store, _) = open(&fs);
    run(&store, 2, &[filled(1)]);
    fs.fail_syncs(true);
    let write = write(2, hard_state(1, 0, 1), &[filled(2)]);
    assert!(store.write_log(std::slice::from_ref(&write), &[], &[], &[]).wait().is_err());
    fs.fail_syncs(false);
    assert!(
        store.write_log(&[write], &[], &[], &[]).wait().is_err(),
        "a second try proves nothing"
    );
    assert!(store.checkpoint().is_err(), "nor does a checkpoint");
    assert_eq!(get(&store, 2, "e1").unwrap().len(), 200, "reads go on");
    fs.power_loss(0);
    let (_, recovered) = open(&fs);
    assert_eq!(of(&recovered, 2).tail[0], filled(1));
}

#[test]
fn checkpoints_are_wanted_by_size_and_idle_ones_cost_nothing() {
    let fs = FaultFs::new(0);
    let dir = Path::new("/data/store");
    let pages = config().pages.dirty_bytes(1 << 20, 4 << 20).checkpoint_interval(None);
    let small = crate::Config { checkpoint_log_bytes: 10_000, pages, ..config() };
    let opened = try_open_with(&fs, small);
    let (store, _) = opened.unwrap();
    let is_checkpoint_made = || loop {
        match store.maintain(Duration::ZERO).unwrap() {
            StoreMaintenance::Checkpointed(_) => return true,
            StoreMaintenance::Rest { .. } => return false,
            _ => {}
        }
    };
    assert!(!is_checkpoint_made());
    let entries: Vec<_> = (1..50).map(filled).collect();
    append(&store, 2, &entries, 49);
    assert!(store.needs_maintenance() && is_checkpoint_made(), "for the log's sake");
    assert!(!is_checkpoint_made());
    let big = ops(1, &[put("i", &"v".repeat(2 << 20))]);
    store.apply(&[task(2, &entries), task(3, &[big])]).unwrap();
    assert!(store.needs_maintenance() && is_checkpoint_made(), "for the pages' sake");
    let operations = fs.operations();
    assert_eq!(store.checkpoint().unwrap().replicas, []);
    assert_eq!(fs.operations(), operations, "there was nothing to do");
    let file = fs.open(&dir.join("pages"), OpenMode::Read).unwrap();
    assert!(file.len().unwrap() > 2 << 20);
    assert_eq!(store.stats().checkpoints, 2);
}
