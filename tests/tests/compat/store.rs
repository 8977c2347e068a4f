//! A member's data directory: identity, registry, settings, regions, their logs and rows. The
//! process died with entries in the log that no root has applied, and was started before.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use flotilla_identity::{
    BootstrapPlan, BootstrapWrite, ClusterSettings, ClusterSpec, IdentityState, PeerWrite,
    StoreRun, StoreUuid,
};
use flotilla_kv::ColumnFamily;
use flotilla_kv::raw::{self, RawOp};
use flotilla_region::{
    AdminCommand, ApplyTask, BirthOrigin, Committed, Compaction, Descriptor, DigestComparison,
    EndTask, EntryKind, Epoch, HardState, Index, LogEntry, LogWrite, MembershipChange,
    MembershipCommand, Peer, PeerId, PeerRole, RecoveredReplica, RegionId, RegionPeer,
    RemovedPeers, ReplicaBirth, Space, StoreId, Term, UninitialisedReplica,
};
use flotilla_store::{
    Config, LogConfig, PageOptions, RecoveredReplicas, StartSeed, Store, StoreDirectory,
};
use flotilla_vfs::os::OsFs;

use crate::{copy_of, is_written_alike, noise};

/// The older ones are read, the newest one is read and written.
const FIXTURES: [&str; 10] = [
    "store", "store-2", "store-3", "store-4", "store-5", "store-6", "store-7", "store-8",
    "store-9", "store-10",
];
const NEWEST: &str = FIXTURES[9];
/// The time of the first entry with one, and the time to live of each sixth row.
const TIME_MS: u64 = 1_800_000_000_000;
const TTL_S: u64 = 1_000_000;
const STARTS: u64 = 2;

fn directory(dir: &Path, nonce: u64) -> StoreDirectory {
    let config = Config {
        log: LogConfig::default().segment_bytes(16 << 10).recovery_threads(1).salt(Some(7)),
        pages: PageOptions::default().growth_bytes(64 << 10),
        ..Config::default()
    };
    let seed = StartSeed { uuid: StoreUuid(0x1234_5678_9abc_def0), nonce };
    StoreDirectory::open(Arc::new(OsFs::new()), dir, config, seed).unwrap()
}

fn region(id: u64, space: Space, start: &'static str, end: &'static str) -> Descriptor {
    let peer = |store| Peer { id: PeerId(id * 100 + store), store: StoreId(store) };
    Descriptor {
        removed: RemovedPeers::default(),
        id: RegionId(id),
        space,
        start: start.into(),
        end: end.into(),
        epoch: Epoch { conf_version: 1, version: 1 },
        peers: vec![peer(1).into(), peer(2).into(), peer(3).into()],
    }
}

fn regions() -> Vec<Descriptor> {
    vec![
        region(1, Space::System, "", ""),
        region(2, Space::Raw, "", "m"),
        region(3, Space::Raw, "m", ""),
    ]
}

fn plan(uuid: StoreUuid) -> BootstrapPlan {
    let spec = ClusterSpec {
        stores: ClusterSpec::parse_stores("s1=h:1,s2=h:2,s3=h:3").unwrap(),
        settings: ClusterSettings::default(),
        regions: 2,
        split_keys: vec![],
        cluster_id: 0,
    };
    let uuids = vec![uuid, StoreUuid(8), StoreUuid(9)];
    BootstrapPlan { cluster_id: 77, round: 1, uuids, spec, regions: regions() }
}

fn row(region: u64, index: u64) -> (Bytes, Bytes) {
    let start = if region == 2 { "a" } else { "m" };
    let key = format!("{start}/{:03}", index % 40);
    (key.into(), noise(region << 16 | index, 150).into())
}

/// Whether some rows of a fixture expire.
fn has_expiry(fixture: &str) -> bool {
    FIXTURES[5..].contains(&fixture)
}

/// The column family of an entry: there was one before the seventh fixture.
fn family(fixture: &str, index: u64) -> ColumnFamily {
    let is_other = FIXTURES[6..].contains(&fixture) && index.is_multiple_of(11);
    if is_other { ColumnFamily::Write } else { ColumnFamily::Default }
}

/// The commands of two comparisons of the replicas of a region, in the eighth fixture: of the first
/// a root has the verdict, of the second only the log.
fn comparison(fixture: &str, region: u64, index: u64) -> Option<AdminCommand> {
    let peer = |store| PeerId(region * 100 + store);
    let digests = vec![(peer(1), 5), (peer(2), 5), (peer(3), index)];
    match index {
        _ if !FIXTURES[7..].contains(&fixture) => None,
        58 | 88 => Some(AdminCommand::ComputeDigest { version: 1 }),
        59 | 89 => {
            let index = Index(index - 1);
            Some(AdminCommand::VerifyDigests(DigestComparison { index, digests }))
        }
        _ => None,
    }
}

/// The entry behind which the replicas of a region were found to differ.
fn verdicts(fixture: &str, last: u64) -> Vec<(u64, u64)> {
    let has_verdict = |region: &u64| comparison(fixture, *region, 59).is_some();
    [2, 3].into_iter().filter(has_verdict).map(|region| (region, last)).collect()
}

fn known_verdicts(store: &Store) -> Vec<(u64, u64)> {
    let known = store.inconsistent_regions().into_iter();
    known.map(|(region, verdict)| (region.0, verdict.index.0)).collect()
}

/// One proposal under version 1: a put, and every tenth time a range that goes.
fn entry(fixture: &str, region: u64, index: u64) -> LogEntry {
    if let Some(command) = comparison(fixture, region, index) {
        let (kind, data) = (EntryKind::Normal, command.encode());
        return LogEntry { index: Index(index), term: Term(3), kind, data };
    }
    let (key, value) = row(region, index);
    let expires = has_expiry(fixture) && index.is_multiple_of(6);
    let mut ops = vec![RawOp::Put { key, value, ttl_s: if expires { TTL_S } else { 0 } }];
    if index.is_multiple_of(10) {
        ops.push(RawOp::DeleteRange { start: row(region, 5).0, end: Some(row(region, 8).0) });
    }
    if expires && index.is_multiple_of(12) {
        ops.push(RawOp::RaiseWatermark);
    }
    let time_ms = if expires { TIME_MS + index } else { 0 };
    let command = raw::encode_in(family(fixture, index), time_ms, &ops);
    let len = command.len();
    assert!((0x80..0x4000).contains(&len), "a length of two bytes");
    let mut data = vec![1, 1, len as u8 | 0x80, (len >> 7) as u8];
    data.extend_from_slice(&command);
    LogEntry { index: Index(index), term: Term(3), kind: EntryKind::Normal, data: data.into() }
}

fn apply(store: &Store, region: u64, entries: &[LogEntry]) {
    let committed =
        |entry: &LogEntry| Committed { entry: entry.clone(), tickets: Default::default() };
    let entries = entries.iter().map(committed).collect();
    store.apply(&[ApplyTask { region: RegionId(region), entries }]).unwrap();
}

/// The votes of replicas that messages have made: of the first a root has the row, of the second
/// only the log knows. Stores before the fourth fixture had none.
fn uninitialised(fixture: &str) -> Vec<UninitialisedReplica> {
    if FIXTURES[..3].contains(&fixture) {
        return vec![];
    }
    vec![voter(8, 300), voter(9, 7)]
}

fn voter(region: u64, term: u64) -> UninitialisedReplica {
    let vote = Some(PeerId(region * 100 + 2));
    let hard_state = HardState { term: Term(term), vote, commit: Index(0) };
    UninitialisedReplica { region: RegionId(region), peer: PeerId(region * 100 + 1), hard_state }
}

/// The members of the system region change: replica 103 goes, 104 on a fourth store comes. The root
/// has the first two changes, and with them the joint configuration. Raft's own fields of an entry
/// stand before the command.
fn member_entries() -> [LogEntry; 5] {
    let change = |index, conf_version, raft: &[u8], change| {
        let epoch = Epoch { conf_version, version: 1 };
        let command = AdminCommand::Membership(MembershipCommand { epoch, change });
        let context = command.encode();
        let data = [raft, &[0x1a, context.len() as u8], &context].concat().into();
        LogEntry { index: Index(index), term: Term(3), kind: EntryKind::ConfChangeV2, data }
    };
    let (old, new) = (PeerId(103), Peer { id: PeerId(104), store: StoreId(4) });
    let vote = MembershipChange::Vote { promoted: vec![new.id], demoted: vec![old] };
    let raft_vote = [0x08, 2, 0x12, 4, 8, 0, 16, 104, 0x12, 4, 8, 2, 16, 103];
    let (index, term, kind) = (Index(5), Term(3), EntryKind::Normal);
    [
        change(1, 1, &[0x12, 4, 8, 2, 16, 104], MembershipChange::Add(new)),
        change(2, 2, &raft_vote, vote),
        change(3, 4, &[], MembershipChange::LeaveJoint),
        change(4, 6, &[0x12, 4, 8, 1, 16, 103], MembershipChange::Remove(old)),
        LogEntry { index, term, kind, data: AdminCommand::Forget(old).encode() },
    ]
}

/// The system region behind its first two changes, and behind all.
fn changed_members() -> [Descriptor; 2] {
    let listed = |of: u64, role| RegionPeer { id: PeerId(100 + of), store: StoreId(of), role };
    let with = |conf_version, peers: &[(u64, PeerRole)]| Descriptor {
        epoch: Epoch { conf_version, version: 1 },
        peers: peers.iter().map(|(of, role)| listed(*of, *role)).collect(),
        ..region(1, Space::System, "", "")
    };
    let (voter, incoming, outgoing) = (PeerRole::Voter, PeerRole::Incoming, PeerRole::Outgoing);
    [
        with(4, &[(1, voter), (2, voter), (3, outgoing), (4, incoming)]),
        with(7, &[(1, voter), (2, voter), (4, voter)]),
    ]
}

/// Replicas that have ended: one that never was here, and one that has voted, whose log is left.
fn ended() -> [EndTask; 2] {
    let of = |region| EndTask { region: RegionId(region), peer: PeerId(region * 100 + 1) };
    [of(10), of(11)]
}

fn vote(store: &Store, found: UninitialisedReplica) {
    let UninitialisedReplica { region, peer, hard_state } = found;
    let birth = ReplicaBirth { region, peer, hard_state, origin: BirthOrigin::Message };
    store.write_log(&[], &[birth], &[], &[]).wait().unwrap();
}

fn write_members(store: &Store, range: std::ops::Range<usize>) {
    let entries = member_entries()[range].to_vec();
    let hard_state = HardState { term: Term(3), vote: Some(PeerId(102)), commit: Index(2) };
    let write = LogWrite {
        region: RegionId(1),
        peer: PeerId(101),
        number: entries[0].index.0,
        hard_state: Some(hard_state),
        entries,
        sync: true,
        reset: None,
    };
    store.write_log(&[write], &[], &[], &[]).wait().unwrap();
}

fn write(dir: &Path) {
    let mut first = directory(dir, 101);
    assert_eq!(first.identity().state, IdentityState::New);
    let plan = Box::new(plan(first.identity().uuid));
    first.write(&BootstrapWrite::Form { plan, place: 0 }).unwrap();
    first.write(&BootstrapWrite::Member).unwrap();
    drop(first);
    let (store, _) = Store::start(directory(dir, 102)).unwrap();
    let run = StoreRun { starts: 4, nonce: 5 };
    let address = "moved:2".to_owned();
    store.remember_peer(&PeerWrite { store: StoreId(2), run, address }).unwrap();
    for index in 1..=90 {
        for id in [2, 3] {
            let commit = Index(index - 1);
            let write = LogWrite {
                region: RegionId(id),
                peer: PeerId(id * 100 + 1),
                number: index,
                hard_state: Some(HardState {
                    term: Term(3),
                    vote: Some(PeerId(id * 100 + 2)),
                    commit,
                }),
                entries: vec![entry(NEWEST, id, index)],
                sync: true,
                reset: None,
            };
            store.write_log(&[write], &[], &[], &[]).wait().unwrap();
            if index <= 80 {
                apply(&store, id, &[entry(NEWEST, id, index)]);
            }
        }
        if index == 50 {
            vote(&store, uninitialised(NEWEST)[0]);
        }
        if index == 55 {
            write_members(&store, 0..2);
            apply(&store, 1, &member_entries()[..2]);
            vote(&store, voter(11, 5));
            ended().iter().for_each(|task| drop(store.end(task).unwrap()));
        }
        if index == 70 {
            vote(&store, uninitialised(NEWEST)[1]);
            write_members(&store, 2..5);
        }
        if index == 60 {
            store.checkpoint().unwrap();
            let compaction = Compaction {
                region: RegionId(2),
                peer: PeerId(201),
                first: Index(51),
                term_before: Term(3),
            };
            store.write_log(&[], &[], &[compaction], &[]).wait().unwrap();
            store.purge_log().unwrap();
        }
    }
}

/// The rows of a column family of a region after the entries up to `last`.
fn rows(fixture: &str, of: ColumnFamily, region: u64, last: u64) -> Vec<(Bytes, Bytes)> {
    let mut rows = std::collections::BTreeMap::new();
    let is_put = |index: &u64| comparison(fixture, region, *index).is_none();
    for index in (1..=last).filter(is_put).filter(|index| family(fixture, *index) == of) {
        let (key, value) = row(region, index);
        rows.insert(key, value);
        if index.is_multiple_of(10) {
            for gone in 5..8 {
                rows.remove(&row(region, gone).0);
            }
        }
    }
    rows.into_iter().collect()
}

fn scan(store: &Store, family: ColumnFamily, region: u64) -> Vec<(Bytes, Bytes)> {
    let request = flotilla_store::ScanRequest {
        start: Bytes::new(),
        end: Bytes::new(),
        limit: u64::MAX,
        reverse: false,
        key_only: false,
        bytes_max: u64::MAX,
    };
    let view = store.read().region(RegionId(region), None).unwrap();
    view.in_family(family).unwrap().scan(&request).unwrap().rows
}

fn is_found(fixture: &str, store: &Store, region: u64, last: u64) {
    for of in ColumnFamily::ALL {
        let expected = rows(fixture, of, region, last);
        assert_eq!(scan(store, of, region), expected, "region {region}, {of}");
    }
}

/// Rows expire at the times of their entries, and by the watermark of the last one that names one.
fn expire(fixture: &str, store: &Store, region: u64) {
    let view = || store.read().region(RegionId(region), None).unwrap();
    let (last, gone) = (row(region, 84).0, TIME_MS + 84 + 1000 * TTL_S);
    assert_eq!(view().at(gone - 1).ttl_s(&last).unwrap(), Some(1));
    assert_eq!(view().at(gone).ttl_s(&last).unwrap(), None);
    // By the watermark alone.
    assert_eq!(view().at(0).ttl_s(&last).unwrap(), Some(TTL_S));
    // The last entry of each key decides.
    let is_put = |index: &u64| comparison(fixture, region, *index).is_none();
    let puts = (1..=90).filter(is_put);
    let of_family = puts.filter(|index| family(fixture, *index) == ColumnFamily::Default);
    let last: std::collections::BTreeMap<_, u64> =
        of_family.map(|index| (row(region, index).0, index)).collect();
    let expiring = last.values().filter(|index| index.is_multiple_of(6));
    assert_eq!(view().expiring_rows().unwrap(), expiring.count() as u64);
}

#[test]
fn a_store_is_read() {
    FIXTURES.into_iter().for_each(is_read);
}

fn is_read(fixture: &str) {
    let dir = copy_of(fixture);
    let directory = directory(dir.path(), 103);
    let identity = directory.identity().clone();
    assert_eq!(
        (identity.cluster_id, identity.store, identity.name.as_str()),
        (77, StoreId(1), "s1")
    );
    assert_eq!(identity.uuid, StoreUuid(0x1234_5678_9abc_def0));
    assert_eq!(identity.run, StoreRun { starts: STARTS + 1, nonce: 103 });
    let (registry, settings) = directory.copies().unwrap();
    let named: Vec<_> = registry.stores.iter().map(|store| store.name.as_str()).collect();
    assert_eq!((named, settings), (vec!["s1", "s2", "s3"], ClusterSettings::default()));

    let (store, found) = Store::start(directory).unwrap();
    let RecoveredReplicas { replicas: recovered, unborn, uninitialised: without_data } = found;
    assert_eq!((unborn, without_data), (vec![], uninitialised(fixture)));
    let starts: Vec<_> = store.history().runs.keys().copied().collect();
    assert_eq!(starts, [1, 2, 3]);
    let [peer] = &store.peer_runs().unwrap()[..] else { panic!("one other store was heard") };
    assert_eq!((peer.run.starts, peer.address.as_str()), (4, "moved:2"));
    let has_members = FIXTURES[4..].contains(&fixture);
    let mut expected = regions();
    if has_members {
        let [joint, last] = changed_members();
        expected[0] = joint;
        assert_eq!(store.descriptors().unwrap(), expected);
        assert_eq!(recovered[0].tail, member_entries()[2..]);
        apply(&store, 1, &member_entries()[2..]);
        expected[0] = last;
    }
    assert_eq!(store.descriptors().unwrap(), expected);
    assert_eq!(known_verdicts(&store), verdicts(fixture, 58), "in the root");
    for id in [2, 3] {
        let is_this = |replica: &&RecoveredReplica| replica.descriptor.id == RegionId(id);
        let replica = recovered.iter().find(is_this).unwrap();
        let vote = Some(PeerId(id * 100 + 2));
        assert_eq!(replica.hard_state, HardState { term: Term(3), vote, commit: Index(89) });
        assert_eq!(replica.applied, (Index(60), Term(3)));
        assert_eq!(replica.truncated.0, Index(if id == 2 { 50 } else { 0 }));
        is_found(fixture, &store, id, 60);
        let tail: Vec<_> = (61..=90).map(|index| entry(fixture, id, index)).collect();
        assert_eq!(replica.tail, tail, "region {id}");
        apply(&store, id, &tail);
        is_found(fixture, &store, id, 90);
        if has_expiry(fixture) {
            expire(fixture, &store, id);
        }
    }
    assert_eq!(known_verdicts(&store), verdicts(fixture, 88));
    let report = store.check().unwrap();
    assert_eq!(report.uninitialised, uninitialised(fixture).len().min(1) as u64, "in the root");
    store.checkpoint().unwrap();
    let report = store.check().unwrap();
    assert_eq!(report.uninitialised, uninitialised(fixture).len() as u64);
    assert_eq!(report.tombstones, if has_members { ended().len() as u64 } else { 0 });
}

#[test]
fn a_store_is_written_byte_for_byte() {
    is_written_alike(NEWEST, write);
}
