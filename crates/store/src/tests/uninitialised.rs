//! Replicas without data: their votes survive crashes, checkpoints and purges, and a split takes
//! them over.

use flotilla_raftlog::LogEngine;
use flotilla_region::{
    AdminCommand, BirthOrigin, Envelope, KeyRange, Message, NotAdmitted, ReplicaBirth, SPLIT_INDEX,
    SplitChild, SplitCommand, UninitialisedReplica,
};

use super::*;

/// A region that is split off from region 2.
pub(super) const CHILD: u64 = 8;

pub(super) fn born_by_message(region: u64, peer: PeerId, hard_state: HardState) -> ReplicaBirth {
    let (region, origin) = (RegionId(region), BirthOrigin::Message);
    ReplicaBirth { region, peer, hard_state, origin }
}

pub(super) fn born_by_split(index: u64) -> ReplicaBirth {
    let parent_hard_state = hard_state(1, 0, index);
    let (parent, index) = ((RegionId(2), peer(2)), Index(index));
    ReplicaBirth {
        region: RegionId(CHILD),
        peer: peer(CHILD),
        hard_state: RecoveredReplica::hard_state_of_split(),
        origin: BirthOrigin::Split { parent, parent_hard_state, index },
    }
}

/// The keys below `c` become region 8.
pub(super) fn split_entry(index: u64) -> LogEntry {
    let peers = vec![peer(CHILD), PeerId(CHILD * 100 + 2)];
    let child = SplitChild { id: RegionId(CHILD), end: "c".into(), peers };
    let epoch = Epoch { conf_version: 1, version: 1 };
    entry(index, 1, AdminCommand::Split(SplitCommand { epoch, children: vec![child] }).encode())
}

/// A vote for the child's other replica.
pub(super) fn vote(term: u64) -> HardState {
    hard_state(term, CHILD * 100 + 2, 0)
}

/// The first vote, in the step that makes the replica.
pub(super) fn vote_first(store: &Store, term: u64) {
    let write = write(CHILD, vote(term), &[]);
    let birth = born_by_message(CHILD, peer(CHILD), vote(term));
    store.write_log(&[write], &[birth], &[], &[]).wait().unwrap();
}

fn vote_again(store: &Store, term: u64) {
    store.write_log(&[write(CHILD, vote(term), &[])], &[], &[], &[]).wait().unwrap();
}

pub(super) fn start(fs: &FaultFs) -> (Store, RecoveredReplicas) {
    begin_all(try_directory(fs, config()).unwrap(), &regions()).unwrap()
}

pub(super) fn crash(fs: &FaultFs, store: Store) -> (Store, RecoveredReplicas) {
    drop(store);
    fs.power_loss(3);
    start(fs)
}

/// Whether the log holds anything of a replica. No store may have the directory open.
pub(super) fn is_in_log(fs: &FaultFs, peer: PeerId) -> bool {
    let dir = Path::new("/data/store/log");
    let (log, _) = LogEngine::open_with(Arc::new(fs.clone()), dir, config().log).unwrap();
    log.group(peer.0).is_some()
}

fn the_child(term: u64) -> UninitialisedReplica {
    UninitialisedReplica { region: RegionId(CHILD), peer: peer(CHILD), hard_state: vote(term) }
}

/// Writes until the segments that hold something of the child are old, and purges the log.
fn purge_all(store: &Store) {
    let first = store.read().applied(RegionId(3)).unwrap().0 + 1;
    for index in first..first + 40 {
        let value = "v".repeat(400);
        run(store, 3, &[ops(index, &[put("k", &value)])]);
    }
    store.checkpoint().unwrap();
    compact(store, 3, first + 40, 1);
    store.purge_log().unwrap();
}

#[test]
fn a_vote_without_data_survives_a_crash() {
    let fs = FaultFs::new(0);
    let (store, _) = start(&fs);
    vote_first(&store, 7);
    let (store, found) = crash(&fs, store);
    assert_eq!(found.uninitialised, [the_child(7)]);
    assert_eq!((found.unborn.len(), found.replicas.len()), (0, 4));
    store.check().unwrap();
    vote_again(&store, 9);
    let (_, found) = crash(&fs, store);
    assert_eq!(found.uninitialised, [the_child(9)]);
}

#[test]
fn a_birth_by_a_message_is_synced_though_no_write_asks_for_it() {
    // With any part of the unsynced bytes gone.
    for seed in 0..16 {
        let fs = FaultFs::new(seed);
        let (store, _) = start(&fs);
        let birth = born_by_message(CHILD, peer(CHILD), vote(7));
        store.write_log(&[], &[birth], &[], &[]).wait().unwrap();
        drop(store);
        fs.power_loss(seed);
        assert_eq!(start(&fs).1.uninitialised, [the_child(7)], "seed {seed}");
    }
}

#[test]
fn the_log_may_forget_a_vote_that_a_root_has() {
    let fs = FaultFs::new(0);
    let (store, _) = start(&fs);
    vote_first(&store, 7);
    purge_all(&store);
    assert_eq!(store.check().unwrap().uninitialised, 1);
    drop(store);
    assert!(!is_in_log(&fs, peer(CHILD)), "the log has forgotten it");
    fs.power_loss(3);
    let (store, found) = start(&fs);
    assert_eq!(found.uninitialised, [the_child(7)]);
    // Its birth is not in the log any more, but in its row.
    vote_again(&store, 9);
    let (store, found) = crash(&fs, store);
    assert_eq!(found.uninitialised, [the_child(9)]);
    purge_all(&store);
    let (store, found) = crash(&fs, store);
    assert_eq!(found.uninitialised, [the_child(9)]);
    store.check().unwrap();
}

#[test]
#[should_panic(expected = "a second vote in one term")]
fn no_vote_is_taken_back() {
    let fs = FaultFs::new(0);
    let (store, _) = start(&fs);
    vote_first(&store, 7);
    let (store, _) = crash(&fs, store);
    drop(store.write_log(&[write(CHILD, hard_state(7, 801, 0), &[])], &[], &[], &[]));
}

#[test]
#[should_panic(expected = "entries of a replica that has no data")]
fn a_replica_without_data_has_no_entries() {
    let fs = FaultFs::new(0);
    let (store, _) = start(&fs);
    vote_first(&store, 7);
    drop(store.write_log(&[write(CHILD, vote(7), &[ops(1, &[])])], &[], &[], &[]));
}

/// Applies the split, and writes the birth unless it is lost.
pub(super) fn split(store: &Store, is_written: bool) {
    append(store, 2, &[split_entry(1)], 1);
    store.apply(&[task(2, &[split_entry(1)])]).unwrap();
    if is_written {
        // With the next write of the replica, which is synced.
        let next = write(3, hard_state(1, 0, 0), &[]);
        store.write_log(&[next], &[born_by_split(1)], &[], &[]).wait().unwrap();
    }
}

#[test]
fn a_split_takes_a_vote_over() {
    // Where the vote lies before the split, whether the birth is written, and whether a root has
    // the split.
    for case in 0..12 {
        let (vote_is_in, is_written, is_rooted) = (case % 3, case / 3 % 2 == 1, case / 6 == 1);
        let at = format!("vote in {vote_is_in}, birth {is_written}, split in a root {is_rooted}");
        let fs = FaultFs::new(0);
        let (store, _) = start(&fs);
        vote_first(&store, 7);
        match vote_is_in {
            0 => {}
            1 => drop(store.checkpoint().unwrap()),
            _ => purge_all(&store),
        }
        split(&store, is_written);
        let voted = HardState { commit: SPLIT_INDEX, ..vote(7) };
        if is_rooted {
            store.checkpoint().unwrap();
        }
        if is_written {
            store.check().unwrap_or_else(|error| panic!("{at}: {error}"));
        }
        let (store, found) = crash(&fs, store);
        let of_child = found.replicas.iter().find(|found| found.descriptor.id.0 == CHILD);
        match (&found.unborn[..], of_child) {
            ([unborn], None) if is_written && !is_rooted => {
                assert_eq!((unborn.hard_state, unborn.parent), (voted, RegionId(2)), "{at}");
                assert_eq!(found.uninitialised, [], "{at}");
            }
            // Applying was not heard of: it happens again, or never, if no one commits the entry.
            ([], None) if !is_written && !is_rooted => {
                assert_eq!(found.uninitialised, [the_child(7)], "{at}");
            }
            ([], Some(child)) if is_rooted => {
                assert_eq!((child.hard_state, found.uninitialised.len()), (voted, 0), "{at}");
            }
            other => panic!("{at}: {other:?}"),
        }
        if !is_rooted {
            store.apply(&[task(2, &[split_entry(1)])]).unwrap();
            store.write_log(&[], &[born_by_split(1)], &[], &[]).wait().unwrap();
        }
        store.checkpoint().unwrap();
        let report = store.check().unwrap_or_else(|error| panic!("{at}: {error}"));
        assert_eq!((report.uninitialised, report.regions), (0, 5), "{at}");
        let (_, found) = crash(&fs, store);
        let child = found.replicas.iter().find(|found| found.descriptor.id.0 == CHILD).unwrap();
        assert_eq!(child.hard_state, voted, "{at}");
    }
}

#[test]
fn a_vote_from_before_the_split_was_heard_of_counts() {
    let fs = FaultFs::new(0);
    let (store, _) = start(&fs);
    vote_first(&store, 3);
    split(&store, true);
    // The replica's shard has not heard of the split.
    vote_again(&store, 8);
    let voted = HardState { commit: SPLIT_INDEX, ..vote(8) };
    let (_, found) = crash(&fs, store);
    assert_eq!(found.unborn[0].hard_state, voted);
}

#[test]
fn a_late_birth_by_a_message_does_not_hide_that_of_a_split() {
    let fs = FaultFs::new(0);
    let (store, _) = start(&fs);
    split(&store, true);
    let late = hard_state(6, CHILD * 100 + 2, 0);
    let late = born_by_message(CHILD, peer(CHILD), late);
    store.write_log(&[], &[late], &[], &[]).wait().unwrap();
    let entries = [entry(6, 6, data(&[(2, &[put("a", "1")])]))];
    let voted = hard_state(6, CHILD * 100 + 2, 5);
    store.write_log(&[write(CHILD, voted, &entries)], &[], &[], &[]).wait().unwrap();
    let (_, found) = crash(&fs, store);
    assert_eq!(found.uninitialised, []);
    assert_eq!((found.unborn[0].last, found.unborn[0].hard_state), (Index(6), voted));
}

#[test]
fn a_replica_that_is_no_member_goes_when_a_split_makes_the_region() {
    for is_in_root in [false, true] {
        let fs = FaultFs::new(0);
        let (store, _) = start(&fs);
        let stray = PeerId(799);
        let birth = born_by_message(CHILD, stray, hard_state(9, 802, 0));
        store.write_log(&[], &[birth], &[], &[]).wait().unwrap();
        if is_in_root {
            store.checkpoint().unwrap();
        }
        split(&store, true);
        store.checkpoint().unwrap();
        assert_eq!(store.check().unwrap().uninitialised, 0);
        let (store, found) = crash(&fs, store);
        assert_eq!(found.uninitialised, []);
        let child = found.replicas.iter().find(|found| found.descriptor.id.0 == CHILD).unwrap();
        assert_eq!(child.hard_state, RecoveredReplica::hard_state_of_split(), "not the stray's");
        drop(store);
        assert!(!is_in_log(&fs, stray));
    }
}

#[test]
fn two_replicas_of_a_region_without_data_are_refused() {
    let fs = FaultFs::new(0);
    let (store, _) = start(&fs);
    vote_first(&store, 7);
    let birth = born_by_message(CHILD, PeerId(899), vote(7));
    store.write_log(&[], &[birth], &[], &[]).wait().unwrap();
    drop(store);
    let error = begin_all(try_directory(&fs, config()).unwrap(), &regions()).unwrap_err();
    assert!(error.to_string().contains("region 8 has a second replica 899"), "{error}");
}

/// A message for a replica of a region, maybe with the region's range.
pub(super) fn message(
    region: u64,
    to: PeerId,
    range: Option<(&'static str, &'static str)>,
) -> Envelope {
    Envelope {
        region: RegionId(region),
        from: Peer { id: PeerId(region * 100 + 2), store: StoreId(2) },
        to: Peer { id: to, store: HERE },
        epoch: Epoch::default(),
        gc_floor: Index(0),
        range: range.map(|(start, end)| {
            Box::new(KeyRange { space: Space::Raw, start: start.into(), end: end.into() })
        }),
        message: Message::default(),
    }
}

#[test]
fn a_message_is_admitted_where_no_region_holds_its_range() {
    let fs = FaultFs::new(0);
    let some = [region(2, Space::Raw, "d", "h"), region(3, Space::Raw, "k", "p")];
    let (store, _) = try_begin(&fs, config(), &some).unwrap();
    let message = |range| message(CHILD, peer(CHILD), range);
    let admit = |range| store.admit(&message(range)).unwrap();
    for free in [("", "d"), ("h", "k"), ("p", ""), ("hh", "i")] {
        assert_eq!(admit(Some(free)), Ok(()), "{free:?}");
    }
    for held in [("", ""), ("a", "dd"), ("e", "f"), ("g", "z"), ("k", "l"), ("z", "a")] {
        assert_eq!(admit(Some(held)), Err(NotAdmitted::Held), "{held:?}");
    }
    assert_eq!(admit(None), Err(NotAdmitted::Held), "a message without a range");
    let system = KeyRange { space: Space::System, start: "d".into(), end: "e".into() };
    let system = Envelope { range: Some(Box::new(system)), ..message(None) };
    assert_eq!(store.admit(&system).unwrap(), Ok(()));
}
