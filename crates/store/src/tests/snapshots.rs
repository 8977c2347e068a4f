//! Snapshots between two stores: read from a view, staged beside the rows, installed whole.

use std::time::Duration;

use flotilla_region::{InstallTask, LogReset, RegionSize, SPLIT_INDEX, SnapshotHead, StageId};

use super::uninitialised::{CHILD, born_by_message, born_by_split, split_entry};
use super::*;
use crate::{SnapshotChunk, SnapshotEnd, StageError, StageOffer};

/// A snapshot as it goes over the network.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) head: SnapshotHead,
    pub(super) total: RegionSize,
    pub(super) chunks: Vec<Bytes>,
    pub(super) end: SnapshotEnd,
}

pub(super) fn send(store: &Store, region: u64, chunk_bytes: usize) -> Sent {
    let mut reader = store.open_snapshot(RegionId(region)).unwrap();
    let mut chunks = vec![];
    while let Some(SnapshotChunk { number, bytes }) = reader.next_chunk(chunk_bytes).unwrap() {
        assert_eq!(number, chunks.len() as u64);
        chunks.push(bytes);
    }
    Sent { head: reader.head().clone(), total: reader.total(), chunks, end: reader.end() }
}

/// Begins a stage of a replica here.
pub(super) fn offer(store: &Store, sent: &Sent) -> StageOffer {
    let to = peer(sent.head.descriptor.id.0);
    store.begin_stage(to, &sent.head, sent.total).unwrap()
}

fn begin_sent(store: &Store, sent: &Sent) -> StageId {
    match offer(store, sent) {
        StageOffer::Go(stage) => stage,
        other => panic!("{other:?}"),
    }
}

pub(super) fn receive(store: &Store, sent: &Sent) -> StageId {
    let stage = begin_sent(store, sent);
    for chunk in &sent.chunks {
        store.stage_chunk(stage, chunk.clone()).unwrap();
    }
    store.finish_stage(stage, sent.end).unwrap();
    stage
}

pub(super) fn install_task(sent: &Sent, stage: StageId, hard_state: HardState) -> InstallTask {
    let (peer, head) = (peer(sent.head.descriptor.id.0), sent.head.clone());
    InstallTask {
        peer,
        stage,
        head,
        hard_state: HardState { commit: sent.head.index, ..hard_state },
    }
}

/// The batch behind the root that has a snapshot.
pub(super) fn reset(sent: &Sent, hard_state: HardState) -> LogWrite {
    let SnapshotHead { index, term, ref descriptor } = sent.head;
    let hard_state = HardState { commit: index, ..hard_state };
    LogWrite { reset: Some(LogReset { index, term }), ..write(descriptor.id.0, hard_state, &[]) }
}

/// Receives and installs a snapshot, with a root and the reset of the log.
fn take(store: &Store, sent: &Sent, hard_state: HardState) {
    let stage = receive(store, sent);
    let installed = store.install(&install_task(sent, stage, hard_state)).unwrap();
    assert_eq!((installed.rows, installed.index), (sent.end.rows, sent.head.index));
    let told = store.checkpoint().unwrap();
    let region = sent.head.descriptor.id;
    let told = told.replicas.into_iter().find(|replica| replica.region == region).unwrap();
    assert_eq!((told.applied, told.installed), (sent.head.index, Some(stage)));
    store.write_log(&[reset(sent, hard_state)], &[], &[], &[]).wait().unwrap();
}

/// A store with rows in region 2: short and long ones, some of them gone again.
pub(super) fn sender(entries: u64) -> Store {
    let (store, _) = open(&FaultFs::new(0));
    for index in 1..=entries {
        let value = "v".repeat(if index % 7 == 0 { 30_000 } else { 200 });
        let key = |n: u64| format!("{}{n:04}", ["a", "d", "g"][n as usize % 3]);
        run(&store, 2, &[ops(index, &[put(&key(index), &value), delete(&key(index / 2))])]);
    }
    store
}

fn digest(store: &Store, region: u64) -> (Index, u64) {
    store.region_digest(RegionId(region)).unwrap()
}

fn reserved_bytes(store: &Store) -> u64 {
    store.check().unwrap().pages.reservation_bytes
}

#[test]
fn a_snapshot_takes_the_place_of_a_replica_while_others_are_applied() {
    let from = sender(120);
    let fs = FaultFs::new(0);
    let (to, _) = open(&fs);
    run(&to, 2, &[ops(1, &[put("a", "old"), put("gzz", "old")])]);
    let before = from.open_snapshot(RegionId(2)).unwrap();
    run(&from, 2, &[ops(121, &[put("b", "later")])]);
    assert_eq!(before.head().index, Index(120), "a view");
    let chunks = |bytes_max| send(&from, 2, bytes_max).chunks;
    assert_eq!(chunks(usize::MAX).len(), 1);
    assert!(chunks(60_000).iter().all(|chunk| chunk.len() < 60_000 + 32));
    let sent = send(&from, 2, 4 << 10);
    assert!(sent.chunks.len() > 10, "{} chunks", sent.chunks.len());
    assert_eq!(chunks(1).len() as u64, sent.end.rows, "one row at least");
    assert_eq!(sent.total.keys, sent.end.rows);
    let stage = begin_sent(&to, &sent);
    for (index, chunk) in (1..).zip(&sent.chunks) {
        to.stage_chunk(stage, chunk.clone()).unwrap();
        run(&to, 3, &[ops(index, &[put(&format!("k{index}"), "beside")])]);
        if index % 8 == 0 {
            to.checkpoint().unwrap();
        }
    }
    to.finish_stage(stage, sent.end).unwrap();
    assert_eq!(get(&to, 2, "a").unwrap(), "old", "not before it is installed");
    let elected = hard_state(4, 0, 0);
    let installed = to.install(&install_task(&sent, stage, elected)).unwrap();
    assert_eq!((installed.rows_removed, installed.region), (2, RegionId(2)));
    assert_eq!(digest(&to, 2), digest(&from, 2));
    to.check().unwrap();
    let told = to.checkpoint().unwrap();
    let told: Vec<_> = told.replicas.iter().filter_map(|replica| replica.installed).collect();
    assert_eq!(told, [stage]);
    to.write_log(&[reset(&sent, elected)], &[], &[], &[]).wait().unwrap();
    assert_eq!(to.check().unwrap().promised, 0);
    let next = ops(122, &[put("c", "next")]);
    let next = LogEntry { term: Term(4), ..next };
    run(&to, 2, std::slice::from_ref(&next));
    run(&from, 2, std::slice::from_ref(&next));
    assert!(to.checkpoint().unwrap().replicas.iter().all(|replica| replica.installed.is_none()));
    assert_eq!(to.stats().snapshots_installed, 1);
    drop(to);
    fs.power_loss(1);
    let (to, found) = open(&fs);
    assert_eq!(digest(&to, 2), digest(&from, 2));
    assert_eq!(found[1].truncated, (Index(121), Term(1)));
    to.check().unwrap();
    let rows = (1..=sent.chunks.len()).map(|index| format!("k{index}"));
    assert!(rows.into_iter().all(|key| get(&to, 3, &key).is_some()), "rows of another region");
}

#[test]
fn a_region_without_rows_has_a_snapshot_and_one_without_entries_has_none() {
    let (from, _) = open(&FaultFs::new(0));
    let none = from.open_snapshot(RegionId(2)).unwrap_err();
    assert!(matches!(none, crate::ReadError::NothingApplied), "{none}");
    let none = from.open_snapshot(RegionId(77)).unwrap_err();
    assert!(matches!(none, crate::ReadError::RegionNotFound), "{none}");
    run(&from, 2, &[ops(1, &[])]);
    let (to, _) = open(&FaultFs::new(0));
    take(&to, &send(&from, 2, 1000), hard_state(1, 0, 0));
    assert_eq!(digest(&to, 2), digest(&from, 2));
    to.check().unwrap();
}

/// Chunks and an end that do not belong to what was offered, with the error that names it.
fn wrong_streams(sent: &Sent) -> Vec<(&'static str, Vec<Bytes>, SnapshotEnd)> {
    let (chunks, end) = (&sent.chunks, sent.end);
    let all = || chunks.clone();
    let with = |change: fn(&mut Vec<Bytes>)| {
        let mut chunks = all();
        change(&mut chunks);
        chunks
    };
    let damaged = with(|chunks| {
        let mut bytes = chunks[3].to_vec();
        *bytes.last_mut().unwrap() ^= 1;
        chunks[3] = bytes.into();
    });
    let cut = with(|chunks| chunks[3] = chunks[3].slice(..chunks[3].len() - 1));
    vec![
        ("the checksum of chunk 3 does not hold", damaged, end),
        ("the checksum of chunk 3 does not hold", cut, end),
        ("malformed chunk of a snapshot", with(|chunks| chunks[3] = Bytes::new()), end),
        ("chunk 2 came where 3 was due", with(|chunks| chunks.insert(3, chunks[2].clone())), end),
        ("chunk 4 came where 3 was due", with(|chunks| chunks.swap(3, 4)), end),
        ("but SnapshotEnd", with(|chunks| drop(chunks.pop())), end),
        ("but SnapshotEnd", all(), SnapshotEnd { rows: end.rows + 1, ..end }),
        ("but SnapshotEnd", all(), SnapshotEnd { bytes: end.bytes + 1, ..end }),
        ("but SnapshotEnd", all(), SnapshotEnd { digest: end.digest ^ 1, ..end }),
    ]
}

#[test]
fn a_wrong_stream_is_refused_and_its_pages_are_free() {
    let sent = send(&sender(60), 2, 4 << 10);
    let (to, _) = open(&FaultFs::new(0));
    for (text, chunks, end) in wrong_streams(&sent) {
        let stage = begin_sent(&to, &sent);
        let staged = chunks.iter().try_for_each(|chunk| to.stage_chunk(stage, chunk.clone()));
        let error = staged.and_then(|()| to.finish_stage(stage, end)).unwrap_err();
        assert!(error.to_string().contains(text), "{error}, not {text}");
        let gone = to.finish_stage(stage, end).unwrap_err();
        assert!(matches!(gone, StageError::NotFound(_)), "{gone}");
        assert_eq!((reserved_bytes(&to), to.check().unwrap().promised), (0, 0), "{text}");
    }
    let stage = receive(&to, &sent);
    assert!(reserved_bytes(&to) > 0);
    let again = to.finish_stage(stage, sent.end).unwrap_err();
    assert!(matches!(again, StageError::Whole(_)), "{again}");
    assert_eq!(reserved_bytes(&to), 0, "a mistake of the driver ends the stage");
    let stage = receive(&to, &sent);
    to.discard_stage(stage);
    to.discard_stage(stage);
    assert_eq!((reserved_bytes(&to), to.check().unwrap().promised), (0, 0));
    assert_eq!(digest(&to, 2).0, Index(0));
}

type RawRow<'a> = (&'a [u8], &'a [u8]);

/// A chunk of these rows, as a sender without checks would make it.
fn chunk(rows: &[RawRow<'_>]) -> Bytes {
    let mut builder = crate::snapshot::ChunkBuilder::new(0, ColumnFamily::Default, 0);
    rows.iter().for_each(|(key, row)| builder.push(key, row));
    builder.finish().bytes
}

#[test]
fn rows_that_cannot_be_of_the_region_are_refused() {
    let from = sender(3);
    let sent = send(&from, 2, 4 << 10);
    let (to, _) = open(&FaultFs::new(0));
    let long = vec![b'a'; flotilla_pagestore::KEY_BYTES_MAX + 1];
    let wrong: [(&str, &[RawRow<'_>]); 7] = [
        ("is not in the region", &[(b"a", b"\0"), (b"h", b"\0")]),
        ("is not above the one before", &[(b"b", b"\0"), (b"a", b"\0")]),
        ("is not above the one before", &[(b"b", b"\0"), (b"b", b"\0")]),
        ("unknown flags", &[(b"a", b"\x02")]),
        ("no time at which it expires", &[(b"a", b"\x01v")]),
        ("over the limit", &[(&long, b"\0")]),
        ("more than the 2 rows", &[(b"a", b"\0"), (b"b", b"\0"), (b"c", b"\0"), (b"d", b"\0")]),
    ];
    let total = RegionSize { keys: 2, ..sent.total };
    for (text, rows) in wrong {
        let StageOffer::Go(stage) = to.begin_stage(peer(2), &sent.head, total).unwrap() else {
            panic!("{text}")
        };
        let error = to.stage_chunk(stage, chunk(rows)).unwrap_err();
        assert!(error.to_string().contains(text), "{error}, not {text}");
        assert_eq!(reserved_bytes(&to), 0, "{text}");
    }
}

#[test]
fn a_head_that_no_replica_here_could_start_from_is_refused() {
    let sent = send(&sender(3), 2, 4 << 10);
    let (to, _) = open(&FaultFs::new(0));
    let head = || sent.head.clone();
    let with = |change: fn(&mut Descriptor)| {
        let mut head = head();
        change(&mut head.descriptor);
        head
    };
    let doubled = with(|region| region.peers.push(region.peers[1]));
    let elsewhere = with(|region| region.peers[0].store = StoreId(9));
    let wrong = [
        (SnapshotHead { index: Index(0), ..head() }, "of no entry"),
        (SnapshotHead { term: Term(0), ..head() }, "of no entry"),
        (with(|region| region.start = "x".into()), "no keys"),
        (elsewhere, "no such replica"),
        (doubled, "doubled"),
    ];
    for (head, text) in wrong {
        let error = to.begin_stage(peer(2), &head, sent.total).unwrap_err();
        assert!(error.to_string().contains(text), "{error}, not {text}");
    }
    let error = to.begin_stage(PeerId(299), &sent.head, sent.total).unwrap_err();
    assert!(error.to_string().contains("no such replica"), "{error}");
}

#[test]
fn a_store_takes_four_snapshots_at_a_time_and_one_of_a_region() {
    let all: Vec<_> = ["b", "c", "d", "e", "f", "g"].windows(2).zip(2..).collect();
    let all: Vec<_> = all.iter().map(|(k, id)| region(*id, Space::Raw, k[0], k[1])).collect();
    let (from, _) = try_begin(&FaultFs::new(0), config(), &all).unwrap();
    let (to, _) = try_begin(&FaultFs::new(0), config(), &[]).unwrap();
    let sent: Vec<_> = (2..7)
        .map(|id| {
            run(&from, id, &[ops(1, &[])]);
            send(&from, id, 1000)
        })
        .collect();
    let first = begin_sent(&to, &sent[0]);
    assert_eq!(offer(&to, &sent[0]), StageOffer::Busy);
    for sent in &sent[1..4] {
        begin_sent(&to, sent);
    }
    assert_eq!(offer(&to, &sent[4]), StageOffer::Busy);
    assert_eq!(to.check().unwrap().promised, 4);
    to.discard_stage(first);
    begin_sent(&to, &sent[4]);
    // A range that was promised is no other region's.
    let mut wide = sent[0].clone();
    wide.head.descriptor.id = RegionId(9);
    wide.head.descriptor.peers[0].id = peer(9);
    wide.head.descriptor.end = "d".into();
    assert_eq!(offer(&to, &wide), StageOffer::Busy);
    to.discard_stage(StageId(2));
    wide.head.descriptor.end = "e".into();
    assert_eq!(offer(&to, &wide), StageOffer::Held(RegionId(4)));
}

/// Region 2 of a store that splits it: before and after, and its child.
fn split_sender() -> (Store, Sent, Sent, Sent) {
    let from = sender(40);
    let before = send(&from, 2, 4 << 10);
    append(&from, 2, &[split_entry(41)], 41);
    from.apply(&[task(2, &[split_entry(41)])]).unwrap();
    from.write_log(&[], &[born_by_split(41)], &[], &[]).wait().unwrap();
    let (after, child) = (send(&from, 2, 4 << 10), send(&from, CHILD, 4 << 10));
    (from, before, after, child)
}

#[test]
fn a_parent_that_has_shrunk_and_its_child_come_one_after_the_other() {
    let (from, before, after, child) = split_sender();
    let fs = FaultFs::new(0);
    let (to, _) = open(&fs);
    let elected = hard_state(6, 202, 0);
    take(&to, &before, hard_state(1, 202, 0));
    let (rows_before, rows_after) = (before.end.rows, after.end.rows);
    assert!(rows_before > rows_after && rows_after > 0 && child.end.rows > 0);
    // The child's range is the parent's here.
    assert_eq!(offer(&to, &child), StageOffer::Held(RegionId(2)));
    let birth = born_by_message(CHILD, peer(CHILD), hard_state(6, 802, 0));
    to.write_log(&[], &[birth], &[], &[]).wait().unwrap();
    let stage = receive(&to, &after);
    assert_eq!(offer(&to, &child), StageOffer::Held(RegionId(2)), "not published yet");
    let installed = to.install(&install_task(&after, stage, elected)).unwrap();
    assert_eq!(installed.rows_removed, rows_before, "those beyond its range as well");
    assert_eq!(to.check().unwrap().rows, rows_after);
    // Free as soon as it is published: one root may have both.
    let child_stage = receive(&to, &child);
    let voted = hard_state(6, 802, 0);
    to.install(&install_task(&child, child_stage, voted)).unwrap();
    to.check().unwrap();
    let told = to.checkpoint().unwrap();
    let told: Vec<_> = told.replicas.iter().filter_map(|replica| replica.installed).collect();
    assert_eq!(told, [stage, child_stage]);
    to.write_log(&[reset(&after, elected), reset(&child, voted)], &[], &[], &[]).wait().unwrap();
    let report = to.check().unwrap();
    assert_eq!((report.uninitialised, report.regions, report.promised), (0, 5, 0));
    for region in [2, CHILD] {
        assert_eq!(digest(&to, region), digest(&from, region));
    }
    drop(to);
    fs.power_loss(0);
    let (_, found) = open(&fs);
    let child = found.iter().find(|found| found.descriptor.id.0 == CHILD).unwrap();
    assert_eq!(child.hard_state, HardState { commit: SPLIT_INDEX, ..voted });
}

#[test]
fn a_range_that_was_split_off_meanwhile_is_refused_in_the_transaction() {
    let (_, mut before, ..) = split_sender();
    // As if raft had taken one from before a split that is applied here.
    before.head.index = Index(60);
    let (to, _) = open(&FaultFs::new(0));
    let stage = receive(&to, &before);
    assert_eq!(to.check().unwrap().promised, 1);
    append(&to, 2, &[split_entry(1)], 1);
    to.apply(&[task(2, &[split_entry(1)])]).unwrap();
    to.write_log(&[], &[born_by_split(1)], &[], &[]).wait().unwrap();
    assert_eq!(to.check().unwrap().promised, 0, "the child holds a part of it");
    let error = to.install(&install_task(&before, stage, hard_state(1, 0, 0))).unwrap_err();
    let is_held = matches!(error, Error::RangeHeld { region: RegionId(2), holder: RegionId(8) });
    assert!(is_held, "{error}");
    assert_eq!(reserved_bytes(&to), 0);
}

/// A store that has put a snapshot in, without a root.
fn installed() -> (Store, Sent, StageId) {
    let sent = send(&sender(10), 2, 4 << 10);
    let (to, _) = open(&FaultFs::new(0));
    let stage = receive(&to, &sent);
    to.install(&install_task(&sent, stage, hard_state(1, 0, 0))).unwrap();
    (to, sent, stage)
}

#[test]
#[should_panic(expected = "the log is reset to 10, but only 0 is durable")]
fn the_log_is_not_reset_before_a_root_has_the_snapshot() {
    let (to, sent, _) = installed();
    drop(to.write_log(&[reset(&sent, hard_state(1, 0, 0))], &[], &[], &[]));
}

#[test]
#[should_panic(expected = "a write between a snapshot and the reset of the log")]
fn nothing_is_written_between_a_snapshot_and_the_reset() {
    let (to, ..) = installed();
    drop(to.write_log(&[write(2, hard_state(3, 202, 10), &[])], &[], &[], &[]));
}

#[test]
#[should_panic(expected = "no stage is whole")]
fn a_stage_is_installed_once() {
    let (to, sent, stage) = installed();
    let _ = to.install(&install_task(&sent, stage, hard_state(1, 0, 0)));
}

#[test]
#[should_panic(expected = "the hard state went back")]
fn a_snapshot_takes_no_vote_back() {
    let sent = send(&sender(10), 2, 4 << 10);
    let (to, _) = open(&FaultFs::new(0));
    to.write_log(&[write(2, hard_state(4, 202, 0), &[])], &[], &[], &[]).wait().unwrap();
    let stage = receive(&to, &sent);
    let _ = to.install(&install_task(&sent, stage, hard_state(3, 0, 0)));
}

#[test]
#[should_panic(expected = "a snapshot is installed before the split that makes")]
fn a_replica_with_unborn_children_takes_no_snapshot() {
    let (_, _, after, _) = split_sender();
    let fs = FaultFs::new(0);
    let (to, _) = open(&fs);
    append(&to, 2, &[split_entry(1)], 1);
    to.apply(&[task(2, &[split_entry(1)])]).unwrap();
    to.write_log(&[], &[born_by_split(1)], &[], &[]).wait().unwrap();
    drop(to);
    let directory = try_directory(&fs, config()).unwrap();
    let (to, found) = begin_all(directory, &regions()).unwrap();
    assert_eq!(found.unborn.len(), 1);
    let stage = receive(&to, &after);
    let _ = to.install(&install_task(&after, stage, hard_state(1, 0, 0)));
}

#[test]
fn the_size_of_an_installed_region_is_told_with_the_next_bytes() {
    let (to, sent, _) = installed();
    to.checkpoint().unwrap();
    let reset = reset(&sent, hard_state(1, 0, 0));
    to.write_log(&[reset], &[], &[], &[]).wait().unwrap();
    let entry = ops(11, &[put("c-new", "v")]);
    append(&to, 2, std::slice::from_ref(&entry), 11);
    let size = to.apply(&[task(2, &[entry])]).unwrap().replicas[0].size.unwrap();
    assert!(size.keys > 1, "{size:?}");
}

#[test]
fn a_full_disk_ends_the_stage_and_nothing_else() {
    let sent = send(&sender(120), 2, 4 << 10);
    let fs = FaultFs::new(0);
    let (to, _) = open(&fs);
    fs.set_capacity(Some(to.stats().pages.file_bytes + (64 << 10)));
    let stage = begin_sent(&to, &sent);
    let staged = sent.chunks.iter().try_for_each(|chunk| to.stage_chunk(stage, chunk.clone()));
    let error = staged.and_then(|()| to.finish_stage(stage, sent.end)).unwrap_err();
    assert!(matches!(error, StageError::NoSpace), "{error}");
    assert_eq!(to.check().unwrap().promised, 0);
    fs.set_capacity(None);
    take(&to, &sent, hard_state(1, 0, 0));
    to.check().unwrap();
}

#[test]
fn a_view_that_was_ended_has_a_name() {
    let fs = FaultFs::new(0);
    let pages = config().pages.old_version_disk_bytes(64 << 10);
    let (from, _) = try_open_with(&fs, Config { pages, ..config() }).unwrap();
    let value = "v".repeat(3000);
    let fill = |from: &Store, index: u64| {
        let rows: Vec<_> = (0..40).map(|n| put(&format!("a{n:02}"), &value)).collect();
        run(from, 2, &[ops(index, &rows)]);
        from.checkpoint().unwrap();
    };
    fill(&from, 1);
    let mut reader = from.open_snapshot(RegionId(2)).unwrap();
    reader.next_chunk(4 << 10).unwrap().unwrap();
    (2..12).for_each(|index| fill(&from, index));
    for second in 0..20 {
        from.maintain(Duration::from_secs(second)).unwrap();
    }
    let error = reader.next_chunk(4 << 10).unwrap_err();
    assert!(matches!(error, crate::ReadError::SnapshotTooOld), "{error}");
}
