//! Ends of replicas: R12, R16 and R17, each without a crash or with one at the place that counts.
//! `end_crash.rs` has all other places.

use flotilla_region::{AdminCommand, EndTask, NotAdmitted, SplitChild, SplitCommand};

use super::membership::{change_entry, demote, remove, run_admin};
use super::snapshots::{offer, send, sender};
use super::uninitialised::{
    CHILD, born_by_message, born_by_split, crash, is_in_log, message, split, split_entry, start,
    vote_first,
};
use super::*;
use crate::StageOffer;

pub(super) fn end_of(region: u64, peer: u64) -> EndTask {
    EndTask { region: RegionId(region), peer: PeerId(peer) }
}

/// Ends a replica for good.
fn end(store: &Store, region: u64, peer: u64) {
    let task = end_of(region, peer);
    store.end(&task).unwrap();
    assert_eq!(store.checkpoint().unwrap().ended, [task]);
    store.write_log(&[], &[], &[], &[task.peer]).wait().unwrap();
}

fn admit(store: &Store, region: u64, peer: u64, range: (&'static str, &'static str)) -> String {
    let admitted = store.admit(&message(region, PeerId(peer), Some(range))).unwrap();
    format!("{admitted:?}")
}

fn rejected(why: NotAdmitted) -> String {
    format!("{:?}", Err::<(), _>(why))
}

#[test]
fn an_end_takes_the_rows_and_leaves_a_tombstone() {
    let fs = FaultFs::new(0);
    let (store, _) = start(&fs);
    run(&store, 2, &[ops(1, &[put("a", "1"), put("g", "2")])]);
    run(&store, 3, &[ops(1, &[put("h", "3")])]);
    let ended = store.end(&end_of(2, 201)).unwrap();
    assert_eq!((ended.rows_removed, &ended.replicas[..]), (2, &[PeerId(201)][..]));
    assert_eq!(ended.region, Some(region(2, Space::Raw, "", "h")));
    assert!(store.read().region(RegionId(2), None).is_err(), "reads find no region");
    let report = store.check().unwrap();
    assert_eq!((report.regions, report.rows, report.tombstones), (3, 1, 1));
    assert_eq!(admit(&store, 2, 201, ("", "h")), rejected(NotAdmitted::Gone));
    assert_eq!(admit(&store, 2, 200, ("", "h")), rejected(NotAdmitted::Gone));
    // A later replica may come, and its range is free since the end was published (R16).
    assert_eq!(admit(&store, 2, 203, ("", "h")), "Ok(())");
    assert_eq!(admit(&store, 9, 901, ("b", "c")), "Ok(())");
    let report = store.checkpoint().unwrap();
    assert_eq!(report.ended, [end_of(2, 201)]);
    assert!(report.replicas.iter().all(|replica| replica.region != RegionId(2)));
    assert_eq!(store.checkpoint().unwrap().ended, [], "it is told once");
    assert_eq!(store.stats().replicas_ended, 1);
}

#[test]
fn an_end_that_is_asked_for_again_is_told_again() {
    let fs = FaultFs::new(0);
    let (store, _) = start(&fs);
    end(&store, 2, 201);
    let again = store.end(&end_of(2, 201)).unwrap();
    assert_eq!((again.replicas.len(), again.region), (0, None));
    assert_eq!(store.checkpoint().unwrap().ended, [end_of(2, 201)]);
    // Its log is gone already.
    store.write_log(&[], &[], &[], &[PeerId(201)]).wait().unwrap();
    let (store, _) = crash(&fs, store);
    store.end(&end_of(2, 201)).unwrap();
    assert_eq!(store.checkpoint().unwrap().ended, [end_of(2, 201)]);
    assert_eq!(store.check().unwrap().tombstones, 1);
}

#[test]
fn a_replica_that_never_was_here_is_kept_from_being_made() {
    let fs = FaultFs::new(0);
    let (store, _) = start(&fs);
    end(&store, 9, 905);
    let (store, found) = crash(&fs, store);
    assert_eq!(found.replicas.len(), 4);
    assert_eq!(admit(&store, 9, 905, ("b", "c")), rejected(NotAdmitted::Gone));
    // R13b: no id above it.
    assert_eq!(admit(&store, 9, 906, ("b", "c")), rejected(NotAdmitted::Held));
}

#[test]
fn the_end_of_an_earlier_replica_leaves_the_later_one() {
    let fs = FaultFs::new(0);
    let (store, _) = start(&fs);
    run(&store, 2, &[ops(1, &[put("a", "1")])]);
    let ended = store.end(&end_of(2, 200)).unwrap();
    assert_eq!((ended.region, ended.replicas.len()), (None, 0));
    assert_eq!(get(&store, 2, "a").unwrap(), "1");
    store.check().unwrap();
    store.checkpoint().unwrap();
    let (store, found) = crash(&fs, store);
    assert_eq!(found.replicas.len(), 4);
    // That of a later one ends the earlier one, with its log.
    store.end(&end_of(2, 210)).unwrap();
    store.checkpoint().unwrap();
    store.write_log(&[], &[], &[], &[PeerId(210)]).wait().unwrap();
    store.check().unwrap();
    drop(store);
    assert!(!is_in_log(&fs, PeerId(201)));
}

#[test]
fn before_a_root_has_the_end_a_start_finds_the_replica_whole() {
    let fs = FaultFs::new(0);
    let (store, _) = start(&fs);
    run(&store, 2, &[ops(1, &[put("a", "1")])]);
    store.checkpoint().unwrap();
    run(&store, 2, &[ops(2, &[put("b", "2")])]);
    let voted = hard_state(7, 202, 2);
    store.write_log(&[write(2, voted, &[])], &[], &[], &[]).wait().unwrap();
    store.end(&end_of(2, 201)).unwrap();
    let (store, found) = crash(&fs, store);
    let found = found.replicas.iter().find(|found| found.descriptor.id.0 == 2).unwrap();
    assert_eq!((found.last, found.hard_state), (Index(2), voted));
    assert_eq!(rows(&store, 2).len(), 1);
    // It ends again.
    end(&store, 2, 201);
    let (store, found) = crash(&fs, store);
    assert_eq!(found.replicas.len(), 3);
    store.check().unwrap();
}

#[test]
fn a_log_that_a_crash_has_left_goes_at_the_next_start() {
    // With its own removal applied or not, with a birth in the log or none, as a root left it.
    for case in 0..4 {
        let fs = FaultFs::new(0);
        let (store, _) = start(&fs);
        let ended = match case {
            // No birth, and entries that only the log has.
            0 => {
                run(&store, 2, &[ops(1, &[put("a", "1")])]);
                store.checkpoint().unwrap();
                run(&store, 2, &[ops(2, &[put("b", "1")])]);
                end_of(2, 201)
            }
            1 => {
                run_admin(
                    &store,
                    &[change_entry(1, 1, demote(201)), change_entry(2, 2, remove(201))],
                );
                end_of(2, 201)
            }
            // A child of a split.
            2 => {
                split(&store, true);
                end_of(CHILD, 801)
            }
            // No data, and no row.
            _ => {
                vote_first(&store, 7);
                end_of(CHILD, 801)
            }
        };
        store.end(&ended).unwrap();
        store.check().unwrap_or_else(|error| panic!("case {case}: {error}"));
        store.checkpoint().unwrap();
        store.check().unwrap_or_else(|error| panic!("case {case}, in a root: {error}"));
        drop(store);
        fs.power_loss(case);
        assert!(is_in_log(&fs, ended.peer), "case {case}");
        let (store, found) = start(&fs);
        let here = found.replicas.iter().map(|found| found.peer);
        assert!(here.into_iter().all(|peer| peer != ended.peer), "case {case}");
        assert_eq!((found.unborn.len(), found.uninitialised.len()), (0, 0), "case {case}");
        store.check().unwrap_or_else(|error| panic!("case {case}, started: {error}"));
        drop(store);
        assert!(!is_in_log(&fs, ended.peer), "case {case}");
    }
}

#[test]
#[should_panic(expected = "would be removed before a root has its end")]
fn no_log_goes_before_a_root_has_the_end() {
    let (store, _) = start(&FaultFs::new(0));
    run(&store, 2, &[ops(1, &[put("a", "1")])]);
    store.end(&end_of(2, 201)).unwrap();
    drop(store.write_log(&[], &[], &[], &[PeerId(201)]));
}

#[test]
#[should_panic(expected = "which has not ended")]
fn no_log_goes_of_a_replica_that_is_here() {
    let (store, _) = start(&FaultFs::new(0));
    drop(store.write_log(&[], &[], &[], &[PeerId(201)]));
}

#[test]
#[should_panic(expected = "a write of replica 201, which has ended")]
fn nothing_is_written_behind_an_end() {
    let (store, _) = start(&FaultFs::new(0));
    store.end(&end_of(2, 201)).unwrap();
    drop(store.write_log(&[write(2, hard_state(1, 0, 0), &[])], &[], &[], &[]));
}

#[test]
#[should_panic(expected = "a replica ends before the split that makes")]
fn a_parent_with_unborn_children_does_not_end() {
    let fs = FaultFs::new(0);
    let (store, _) = start(&fs);
    split(&store, true);
    let (store, found) = crash(&fs, store);
    assert_eq!(found.unborn.len(), 1);
    drop(store.end(&end_of(2, 201)));
}

#[test]
fn a_tombstone_below_a_parent_with_unborn_children_takes_nothing() {
    let fs = FaultFs::new(0);
    let (store, _) = start(&fs);
    split(&store, true);
    let (store, found) = crash(&fs, store);
    assert_eq!(found.unborn.len(), 1);
    let ended = store.end(&end_of(2, 200)).unwrap();
    assert_eq!((ended.region, ended.replicas.len()), (None, 0));
    assert_eq!(store.checkpoint().unwrap().ended, [end_of(2, 200)]);
    assert_eq!(admit(&store, 2, 200, ("a", "b")), rejected(NotAdmitted::Gone));
    store.check().unwrap();
}

/// A split makes another replica in the slot of one without data, whose last vote is on its way to
/// the disk: it lies before the removal of its log.
#[test]
fn a_vote_on_its_way_may_come_behind_the_end_of_a_replica_without_data() {
    let fs = FaultFs::new(0);
    let (store, _) = start(&fs);
    vote_first(&store, 7);
    store.end(&end_of(CHILD, 801)).unwrap();
    let late = LogWrite {
        region: RegionId(CHILD),
        peer: PeerId(801),
        ..write(2, hard_state(9, 802, 0), &[])
    };
    store.write_log(&[late], &[], &[], &[]).wait().unwrap();
    assert_eq!(store.checkpoint().unwrap().ended, [end_of(CHILD, 801)]);
    store.check().unwrap();
    store.write_log(&[], &[], &[], &[PeerId(801)]).wait().unwrap();
    let (store, found) = crash(&fs, store);
    assert_eq!(found.uninitialised, []);
    store.check().unwrap();
    drop(store);
    assert!(!is_in_log(&fs, PeerId(801)));
}

#[test]
fn an_end_drops_the_stage_of_its_replica_and_no_later_one() {
    let from = sender(4);
    let sent = send(&from, 2, 4 << 10);
    let (store, _) = start(&FaultFs::new(0));
    let StageOffer::Go(stage) = offer(&store, &sent) else { panic!("its range is its own") };
    store.end(&end_of(2, 200)).unwrap();
    assert_eq!(store.check().unwrap().promised, 1);
    store.end(&end_of(2, 201)).unwrap();
    assert_eq!(store.check().unwrap().promised, 0);
    let chunk = store.stage_chunk(stage, sent.chunks[0].clone());
    assert!(chunk.unwrap_err().to_string().contains("stage"), "it is gone");
    let late = store.begin_stage(PeerId(201), &sent.head, sent.total).unwrap_err();
    assert!(late.to_string().contains("has ended here"), "{late}");
    assert_eq!(store.check().unwrap().promised, 0);
    assert_eq!(admit(&store, 9, 901, ("b", "c")), "Ok(())");
}

/// Applies the split of region 2, and says whether it has made the child here.
fn makes_child(store: &Store, index: u64) -> bool {
    run(store, 2, &[ops(index - 1, &[put("a", "child"), put("d", "parent")])]);
    let entry = split_entry(index);
    append(store, 2, std::slice::from_ref(&entry), index);
    let applied = store.apply(&[task(2, std::slice::from_ref(&entry))]).unwrap();
    let [flotilla_region::RegionChange::Split { regions, .. }] = &applied.replicas[0].changes[..]
    else {
        panic!("{applied:?}")
    };
    assert_eq!(regions.parent.start, "c");
    let is_made = !regions.children.is_empty();
    if is_made {
        store.write_log(&[], &[born_by_split(index)], &[], &[]).wait().unwrap();
    }
    let expected: &[Row] = &[("d".into(), "parent".into())];
    assert_eq!(rows(store, 2), expected);
    assert_eq!(store.read().region(RegionId(CHILD), None).is_ok(), is_made);
    let report = store.check().unwrap();
    assert_eq!((report.regions, report.rows), if is_made { (5, 2) } else { (4, 1) });
    is_made
}

#[test]
fn a_split_does_not_make_a_child_that_has_ended() {
    for (ended, is_made) in [(800, true), (801, false), (805, false)] {
        let fs = FaultFs::new(0);
        let (store, _) = start(&fs);
        vote_first(&store, 7);
        end(&store, CHILD, ended);
        assert_eq!(makes_child(&store, 2), is_made, "tombstone {ended}");
        // The range is free for a later replica, unless the split has made this one.
        let later = admit(&store, CHILD, 806, ("", "c"));
        assert_eq!(later == "Ok(())", !is_made, "tombstone {ended}");
        let (store, found) = crash(&fs, store);
        assert_eq!((found.uninitialised.len(), found.unborn.len()), (0, usize::from(is_made)));
        store.apply(&[task(2, &[ops(1, &[]), split_entry(2)])]).unwrap();
        if is_made {
            store.write_log(&[], &[born_by_split(2)], &[], &[]).wait().unwrap();
        }
        store.checkpoint().unwrap();
        let (store, found) = crash(&fs, store);
        assert_eq!(found.replicas.len(), if is_made { 5 } else { 4 }, "tombstone {ended}");
        store.check().unwrap();
    }
}

#[test]
fn a_split_does_not_take_the_slot_of_a_later_replica() {
    let voted = hard_state(9, 802, 0);
    for is_in_row in [false, true] {
        let fs = FaultFs::new(0);
        let (store, _) = start(&fs);
        let later = born_by_message(CHILD, PeerId(805), voted);
        store.write_log(&[], &[later], &[], &[]).wait().unwrap();
        if is_in_row {
            store.checkpoint().unwrap();
        }
        assert!(!makes_child(&store, 2));
        store.checkpoint().unwrap();
        let (store, found) = crash(&fs, store);
        assert_eq!(found.replicas.len(), 4);
        let [later] = &found.uninitialised[..] else { panic!("{:?}", found.uninitialised) };
        assert_eq!((later.peer, later.hard_state), (PeerId(805), voted));
        store.check().unwrap();
    }
}

/// The later replica's birth was still on its way when the split was applied.
#[test]
fn a_child_beside_a_later_replica_ends_also_if_a_crash_comes_first() {
    let voted = hard_state(9, 802, 0);
    for crashes in [false, true] {
        let fs = FaultFs::new(0);
        let (store, _) = start(&fs);
        assert!(makes_child(&store, 2));
        let later = born_by_message(CHILD, PeerId(805), voted);
        store.write_log(&[], &[later], &[], &[]).wait().unwrap();
        // Its vote counts, so a root has it before the log may forget it.
        store.checkpoint().unwrap();
        assert_eq!(store.check().unwrap().uninitialised, 1);
        let store = if crashes {
            crash(&fs, store).0
        } else {
            end(&store, CHILD, 801);
            store
        };
        let report = store.check().unwrap();
        assert_eq!((report.regions, report.rows, report.uninitialised), (4, 1, 1));
        let (store, found) = crash(&fs, store);
        assert_eq!(found.replicas.len(), 4);
        assert_eq!(found.uninitialised[0].hard_state, voted);
        drop(store);
        assert!(!is_in_log(&fs, PeerId(801)));
    }
}

#[test]
fn a_removed_parent_makes_no_children_here() {
    let fs = FaultFs::new(0);
    let (store, _) = start(&fs);
    run(&store, 2, &[ops(1, &[put("a", "child"), put("d", "parent")])]);
    let child = SplitChild { id: RegionId(CHILD), end: "c".into(), peers: vec![PeerId(802)] };
    let epoch = Epoch { conf_version: 3, version: 1 };
    let split = AdminCommand::Split(SplitCommand { epoch, children: vec![child] });
    let applied = run_admin(
        &store,
        &[
            change_entry(2, 1, demote(201)),
            change_entry(3, 2, remove(201)),
            entry(4, 1, split.encode()),
        ],
    );
    let [replica] = &applied.replicas[..] else { panic!("{applied:?}") };
    assert_eq!((replica.peer, replica.changes.len()), (PeerId(201), 3));
    let report = store.check().unwrap();
    assert_eq!((report.regions, report.rows), (4, 1));
    let (store, _) = {
        store.checkpoint().unwrap();
        crash(&fs, store)
    };
    end(&store, 2, 201);
    assert_eq!(store.check().unwrap().rows, 0);
}

/// Puts a row into the pages of a store that is closed.
fn put_row(fs: &FaultFs, tree: &str, region: u64, row: &[u8]) {
    let path = Path::new("/data/store/pages");
    let fs = Arc::new(fs.clone());
    let pages = flotilla_pagestore::PageStore::open_with(fs, path, config().pages).unwrap();
    let mut txn = pages.write().unwrap();
    txn.tree(tree).unwrap().put(&region.to_be_bytes(), row).unwrap();
    txn.publish().unwrap();
    pages.checkpoint().unwrap();
}

#[test]
fn a_start_refuses_a_replica_beside_its_tombstone() {
    for (region, row, expected) in [
        (2, &[1, 0xc9, 1, 0][..], "region 2: replica 201 has ended, and has rows"),
        (CHILD, &[1, 0xa1, 6, 0], "region 8: replica 801 has ended, and has a row without data"),
        (9, &[1, 7, 1, 9], "the tombstone of region 9 is malformed"),
    ] {
        let fs = FaultFs::new(0);
        let (store, _) = start(&fs);
        vote_first(&store, 7);
        store.checkpoint().unwrap();
        drop(store);
        put_row(&fs, "tomb", region, row);
        let error = begin_all(try_directory(&fs, config()).unwrap(), &regions()).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}
