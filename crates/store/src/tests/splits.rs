//! Splits: rows of new regions, and what a crash leaves of a birth.

use flotilla_region::{
    AdminCommand, BirthOrigin, NewReplica, RegionChange, ReplicaBirth, SPLIT_INDEX, SPLIT_TERM,
    SplitChild, SplitCommand, UnbornReplica,
};

use super::*;
use crate::{ApplyReject, ReadError};

pub(super) const CHILD: u64 = 8;
/// The entry of the split in the log of region 2.
const SPLIT_AT: u64 = 3;

/// Region 2 gives all keys below `border` to region 8.
fn split_command(border: &'static str, version: u64) -> AdminCommand {
    let peers = vec![peer(CHILD), PeerId(CHILD * 100 + 2)];
    let child = SplitChild { id: RegionId(CHILD), end: border.into(), peers };
    AdminCommand::Split(SplitCommand {
        epoch: Epoch { conf_version: 1, version },
        children: vec![child],
    })
}

pub(super) fn split_entry(index: u64) -> LogEntry {
    entry(index, 1, split_command("d", 1).encode())
}

/// Applies an entry with a command of region 2, which has ticket 99.
fn apply_admin(store: &Store, entry: LogEntry) -> (ApplyOutcome, Vec<RegionChange>) {
    append(store, 2, std::slice::from_ref(&entry), entry.index.0);
    let entries = vec![Committed { entry, tickets: vec![Ticket(99)] }];
    let mut applied = store.apply(&[ApplyTask { region: RegionId(2), entries }]).unwrap();
    assert_eq!(applied.outcomes[0].0, Ticket(99));
    (applied.outcomes.remove(0).1, applied.replicas.remove(0).changes)
}

/// The birth of the child, as the region tells it.
fn birth(commit: u64) -> ReplicaBirth {
    birth_at(SPLIT_AT, commit)
}

fn birth_at(split_at: u64, commit: u64) -> ReplicaBirth {
    ReplicaBirth {
        region: RegionId(CHILD),
        peer: peer(CHILD),
        hard_state: RecoveredReplica::hard_state_of_split(),
        origin: BirthOrigin::Split {
            parent: (RegionId(2), peer(2)),
            parent_hard_state: hard_state(1, 0, commit),
            index: Index(split_at),
        },
    }
}

#[test]
fn the_new_region_has_its_rows_and_the_old_one_the_rest() {
    let (store, _) = open(&FaultFs::new(0));
    run(&store, 2, &[ops(1, &[put("a", "1"), put("e", "2")])]);
    let before = store.read();
    let (outcome, changes) = apply_admin(&store, split_entry(2));
    assert_eq!(outcome, ApplyOutcome::Done);
    let [RegionChange::Split { index, regions, .. }] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!((*index, regions.children.len()), (Index(2), 1));
    assert_eq!(view(&store, CHILD).descriptor(), &regions.children[0]);
    assert_eq!(view(&store, 2).descriptor(), &regions.parent);
    assert_eq!(get(&store, CHILD, "a").unwrap(), "1");
    assert_eq!(get(&store, 2, "e").unwrap(), "2");
    let wrong = view(&store, 2).get(b"a").unwrap_err();
    assert!(matches!(wrong, ReadError::KeyNotInRegion { .. }), "{wrong:?}");
    let old = store.read().region(RegionId(2), Some(1)).unwrap_err();
    assert!(matches!(old, ReadError::EpochNotMatch(_)), "a read that was granted before");
    assert_eq!(before.region(RegionId(2), Some(1)).unwrap().get(b"a").unwrap().unwrap(), "1");
    store.write_log(&[], &[birth_at(2, 2)], &[], &[]).wait().unwrap();
    store.check().unwrap();
    assert_eq!(store.region_digest(RegionId(CHILD)).unwrap().0, SPLIT_INDEX);
}

/// A row that is gone before a split stays gone after it, by whatever clock the next leader goes.
#[test]
fn the_new_region_goes_on_from_the_watermark_and_the_times_of_the_old_one() {
    let (store, _) = open(&FaultFs::new(0));
    let put = |key: &'static str| RawOp::Put { key: key.into(), value: "v".into(), ttl_s: 5 };
    let time_ms = 7_000;
    let ops = [put("a"), put("e"), RawOp::RaiseWatermark];
    run(&store, 2, &[entry(1, 1, data_at(time_ms, &[(1, &ops)]))]);
    apply_admin(&store, split_entry(2));
    for (region, key) in [(CHILD, b"a"), (2, b"e")] {
        assert_eq!(store.read().state(RegionId(region)).unwrap().watermark_ms, time_ms);
        assert_eq!(view(&store, region).expiring_rows().unwrap(), 1);
        let at = |now_ms| view(&store, region).at(now_ms).get(key).unwrap();
        assert!(at(11_999).is_some() && at(12_000).is_none());
    }
    store.write_log(&[], &[birth_at(2, 2)], &[], &[]).wait().unwrap();
    store.check().unwrap();
}

#[test]
fn proposals_and_splits_of_another_version_have_no_effect() {
    let (store, _) = open(&FaultFs::new(0));
    apply_admin(&store, split_entry(1));
    let outcomes = run(&store, 2, &[ops(2, &[put("e", "1")])]);
    let [ApplyOutcome::Rejected(ApplyReject::EpochNotMatch { current })] = &outcomes[..] else {
        panic!("{outcomes:?}");
    };
    assert_eq!(current[0].epoch.version, 2);
    let (outcome, changes) = apply_admin(&store, entry(3, 1, split_command("e", 1).encode()));
    assert!(matches!(outcome, ApplyOutcome::Rejected(ApplyReject::EpochNotMatch { .. })));
    assert_eq!(changes, []);
    let (outcome, _) = apply_admin(&store, entry(4, 1, split_command("z", 2).encode()));
    assert!(matches!(outcome, ApplyOutcome::Rejected(ApplyReject::InvalidSplit(_))));
    let again = entry(5, 1, split_command("e", 2).encode());
    append(&store, 2, std::slice::from_ref(&again), 5);
    let error = store.apply(&[task(2, &[again])]).unwrap_err();
    assert!(error.to_string().contains("region 2 splits off 8, which is here"), "{error}");
}

#[test]
fn entries_around_a_split_in_one_task_see_each_its_own_range() {
    let (store, _) = open(&FaultFs::new(0));
    let new = entry(4, 1, data(&[(2, &[put("e", "3")])]));
    let entries = [ops(1, &[put("a", "1")]), split_entry(2), ops(3, &[put("e", "2")]), new];
    append(&store, 2, &entries, 4);
    let applied = store.apply(&[task(2, &entries)]).unwrap();
    assert_eq!((applied.entries, applied.replicas[0].index), (4, Index(4)));
    let outcomes: Vec<_> = applied.outcomes.iter().map(|(_, outcome)| outcome).collect();
    assert!(matches!(
        outcomes[..],
        [ApplyOutcome::Done, ApplyOutcome::Done, ApplyOutcome::Rejected(_), ApplyOutcome::Done]
    ));
    assert_eq!(get(&store, 2, "e").unwrap(), "3");
}

#[test]
#[should_panic(expected = "more tickets than commands")]
fn a_split_has_one_ticket() {
    let (store, _) = open(&FaultFs::new(0));
    let entry = split_entry(1);
    append(&store, 2, std::slice::from_ref(&entry), 1);
    let entries = vec![Committed { entry, tickets: vec![Ticket(1), Ticket(2)] }];
    let _ = store.apply(&[ApplyTask { region: RegionId(2), entries }]);
}

/// The history that is cut off: how far it came.
#[derive(Debug, Default)]
struct Progress {
    /// The split is in the log and may be applied.
    split_logged: bool,
    /// The child's vote and entries may be known to others.
    child_vote: Option<HardState>,
    child_entries: u64,
    /// The child is in a durable root, applied up to there.
    child_durable: u64,
    has_child_rows: bool,
}

fn child_entry(index: u64) -> LogEntry {
    entry(index, 6, data(&[(2, &[put(&format!("c{index}"), "child")])]))
}

/// Splits region 2 and lets the child vote, write, apply, until the disk fails. With `late` the
/// child does so before any checkpoint has the split.
fn work(fs: &FaultFs, late: bool, at: &mut Progress) -> Result<(), Error> {
    let directory = try_directory(fs, config())?;
    let (store, _) = begin_all(directory, &regions())?;
    let first = [ops(1, &[put("a", "1")]), ops(2, &[put("e", "2")])];
    store.write_log(&[write(2, hard_state(1, 0, 2), &first)], &[], &[], &[]).wait()?;
    store.apply(&[task(2, &first)])?;
    if !late {
        store.checkpoint()?;
    }
    let split = split_entry(SPLIT_AT);
    at.split_logged = true;
    // Nothing is synced of its commit but by the birth.
    let logged = write(2, hard_state(1, 0, 2), std::slice::from_ref(&split));
    store.write_log(&[logged], &[], &[], &[]).wait()?;
    store.apply(&[task(2, &[split])])?;
    at.has_child_rows = true;
    let birth = store.write_log(&[], &[birth(SPLIT_AT)], &[], &[]);
    let voted = HardState { vote: Some(PeerId(802)), ..hard_state(6, 0, SPLIT_INDEX.0) };
    let vote = store.write_log(&[write(CHILD, voted, &[])], &[], &[], &[]);
    vote.wait()?;
    at.child_vote = Some(voted);
    birth.wait()?;
    for index in 6..10 {
        let entries = [child_entry(index)];
        let written = write(CHILD, HardState { commit: Index(index), ..voted }, &entries);
        store.write_log(&[written], &[], &[], &[]).wait()?;
        at.child_entries = index;
        store.apply(&[task(CHILD, &entries)])?;
        if index == 8 {
            let durable = store.checkpoint()?.replicas;
            let child = durable.iter().find(|replica| replica.region == RegionId(CHILD));
            at.child_durable = child.expect("it was applied since").applied.0;
            let (first, term_before) = (Index(9), Term(6));
            let (region, peer) = (RegionId(CHILD), peer(CHILD));
            let compaction = Compaction { region, peer, first, term_before };
            store.write_log(&[], &[], &[compaction], &[]).wait()?;
            store.purge_log()?;
        }
    }
    Ok(())
}

/// Opens what the crash left, applies all that is committed, and looks for what was promised.
/// Returns the number of replicas that only the log had.
fn inspect(fs: &FaultFs, progress: &Progress, at: &str) -> usize {
    let directory = try_directory(fs, config()).unwrap_or_else(|error| panic!("{at}: {error}"));
    let (store, found) =
        begin_all(directory, &regions()).unwrap_or_else(|error| panic!("{at}: {error}"));
    let parent = of(&found, 2).clone();
    let committed = (parent.hard_state.commit.0 - parent.applied.0.0) as usize;
    let mut made = None;
    if committed > 0 {
        let applied = store.apply(&[task(2, &parent.tail[..committed])]).unwrap();
        for change in &applied.replicas[0].changes {
            let RegionChange::Split { regions, .. } = change else { panic!("{change:?}") };
            made = Some(NewReplica {
                descriptor: regions.children[0].clone(),
                peer: peer(CHILD),
                campaigns: false,
                is_damaged: false,
            });
        }
    }
    let (hard_state, last, applied) = match (&found.unborn[..], &made) {
        ([unborn], Some(_)) => {
            let UnbornReplica { hard_state, last, ref tail, .. } = *unborn;
            // The birth is written again: it must not take the vote back.
            store.write_log(&[], &[birth(parent.hard_state.commit.0)], &[], &[]).wait().unwrap();
            let committed = (hard_state.commit.0 - SPLIT_INDEX.0) as usize;
            if committed > 0 {
                store.apply(&[task(CHILD, &tail[..committed])]).unwrap();
            }
            (hard_state, last, SPLIT_INDEX)
        }
        ([], Some(_)) => {
            store.write_log(&[], &[birth(parent.hard_state.commit.0)], &[], &[]).wait().unwrap();
            (RecoveredReplica::hard_state_of_split(), SPLIT_INDEX, SPLIT_INDEX)
        }
        ([], None) => {
            let child = found.replicas.iter().find(|found| found.descriptor.id.0 == CHILD);
            let Some(child) = child else {
                assert_eq!(progress.child_vote, None, "{at}: the child is lost");
                return 0;
            };
            let committed = (child.hard_state.commit.0 - child.applied.0.0) as usize;
            if committed > 0 {
                store.apply(&[task(CHILD, &child.tail[..committed])]).unwrap();
            }
            (child.hard_state, child.last, child.applied.0)
        }
        (unborn, None) => panic!("{at}: {unborn:?}, and its split is not applied again"),
        (unborn, Some(_)) => panic!("{at}: {unborn:?}"),
    };
    assert!(applied.0 >= progress.child_durable.min(9), "{at}: applied {applied}");
    if let Some(vote) = progress.child_vote {
        assert_eq!((hard_state.term, hard_state.vote), (vote.term, vote.vote), "{at}");
    }
    assert!(last.0 >= progress.child_entries, "{at}: acknowledged {progress:?}, has {last}");
    for index in 6..=progress.child_entries {
        let value = get(&store, CHILD, &format!("c{index}"));
        assert!(value.is_some() || index > hard_state.commit.0, "{at}: entry {index}");
    }
    assert_eq!(get(&store, CHILD, "a").unwrap(), "1", "{at}");
    assert_eq!(get(&store, 2, "e").unwrap(), "2", "{at}");
    store.check().unwrap_or_else(|error| panic!("{at}: {error}"));
    store.checkpoint().unwrap();
    store.purge_log().unwrap();
    store.check().unwrap_or_else(|error| panic!("{at}, after a checkpoint: {error}"));
    found.unborn.len()
}

fn of(found: &RecoveredReplicas, region: u64) -> &RecoveredReplica {
    found.replicas.iter().find(|found| found.descriptor.id == RegionId(region)).unwrap()
}

#[test]
fn the_power_may_go_at_any_operation_of_a_split() {
    for late in [false, true] {
        let whole = FaultFs::new(0);
        let mut progress = Progress::default();
        work(&whole, late, &mut progress).unwrap();
        assert!(progress.split_logged && progress.has_child_rows && progress.child_durable == 8);
        let operations = whole.operations();
        let mut unborn = 0;
        for cut in 1..=operations {
            for seed in 0..4 {
                let fs = FaultFs::new(0);
                fs.cut_power_after(cut);
                let mut progress = Progress::default();
                assert!(work(&fs, late, &mut progress).is_err(), "cut at {cut}");
                fs.power_loss(seed * 1000 + cut);
                let at = format!("late {late}, cut at operation {cut}, seed {seed}");
                // The next start is cut off as well, each time somewhere else.
                fs.cut_power_after(cut % 7 + seed + 1);
                let _ = try_directory(&fs, config())
                    .and_then(|directory| begin_all(directory, &regions()));
                fs.power_loss(seed);
                unborn += inspect(&fs, &progress, &at);
                fs.power_loss(seed + 1);
                inspect(&fs, &progress, &at);
            }
        }
        assert!(unborn > 20, "only {unborn} starts found a replica that was not born");
    }
}

#[test]
fn split_keys_cut_a_region_into_parts_of_about_the_same_size() {
    let (store, _) = open(&FaultFs::new(0));
    let value = "v".repeat(500);
    let rows: Vec<_> = (0..400).map(|n| put(&format!("c{n:04}"), &value)).collect();
    let others = [put("i", "of another region")];
    run(&store, 2, &[ops(1, &rows)]);
    run(&store, 3, &[ops(1, &others)]);
    let region = view(&store, 2);
    let size = region.size().unwrap();
    assert_eq!(size.keys, 400);
    assert!((200_000..400_000).contains(&size.bytes), "{size:?}");
    for parts in [2, 3, 5, 16] {
        let keys = region.split_keys(parts, 1).unwrap();
        assert_eq!(keys.len(), parts - 1);
        let number = |key: &Bytes| format!("{:0<4}", str::from_utf8(&key[1..]).unwrap());
        let starts = keys.iter().map(|key| number(key).parse::<usize>().unwrap());
        let borders: Vec<_> = [0].into_iter().chain(starts).chain([400]).collect();
        let sizes: Vec<_> = borders.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let fair = 400 / parts;
        assert!(sizes.iter().all(|size| (fair / 2..=fair * 2).contains(size)), "{sizes:?}");
    }
    assert_eq!(view(&store, 4).size().unwrap().keys, 0);
    assert_eq!(view(&store, 4).split_keys(4, 1).unwrap(), Vec::<Bytes>::new(), "no rows");
    assert_eq!(view(&store, 3).split_keys(4, 1).unwrap(), Vec::<Bytes>::new(), "one row");
}

#[test]
fn a_log_of_an_unknown_replica_is_refused() {
    let fs = FaultFs::new(0);
    let (store, _) = open(&fs);
    let stray = LogWrite { peer: PeerId(999), ..write(2, hard_state(1, 0, 0), &[]) };
    store.write_log(&[stray], &[], &[], &[]).wait().unwrap();
    drop(store);
    let error = try_open(&fs).unwrap_err().to_string();
    assert!(error.contains("the log has a replica 999 that no region has"), "{error}");
}

#[test]
fn a_birth_that_the_rows_should_have_is_refused() {
    let fs = FaultFs::new(0);
    let (store, _) = open(&fs);
    let entries: Vec<_> = (1..=SPLIT_AT).map(|index| ops(index, &[])).collect();
    run(&store, 2, &entries);
    store.checkpoint().unwrap();
    store.write_log(&[], &[birth(SPLIT_AT)], &[], &[]).wait().unwrap();
    drop(store);
    let error = try_open(&fs).unwrap_err().to_string();
    assert!(error.contains("region 8 was split off from 2 by its entry 3"), "{error}");
    assert_eq!(SPLIT_TERM, Term(5));
}

#[test]
fn a_size_is_told_with_the_first_bytes_and_not_with_the_next() {
    let (store, _) = open(&FaultFs::new(0));
    let size = |entry: LogEntry| {
        append(&store, 2, std::slice::from_ref(&entry), entry.index.0);
        store.apply(&[task(2, &[entry])]).unwrap().replicas[0].size
    };
    assert!(size(ops(1, &[delete("c0")])).is_none(), "no byte is put");
    assert_eq!(size(ops(2, &[put("c1", "v")])).unwrap().keys, 1);
    assert!(size(ops(3, &[put("c2", "v")])).is_none());
    // The split is not held up by a look, and what is known is not of the new range.
    assert!(size(split_entry(4)).is_none());
    let behind = |index: u64, key| entry(index, 1, data(&[(2, &[put(key, "v")])]));
    assert_eq!(size(behind(5, "e")).unwrap().keys, 1);
    assert!(size(behind(6, "f")).is_none());
}
