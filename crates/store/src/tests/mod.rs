//! A store on a faulty disk, and the short forms that its tests speak in.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use flotilla_kv::ColumnFamily;
use flotilla_kv::raw::{self, RawOp};
use flotilla_region::entry_data;
use flotilla_region::{
    ApplyTask, Committed, Compaction, Descriptor, EntryKind, Epoch, HardState, Index, LogEntry,
    LogWrite, Peer, PeerId, RecoveredReplica, RegionId, RemovedPeers, Space, StoreId, Term, Ticket,
};
use flotilla_vfs::fault::FaultFs;

use crate::{
    ApplyOutcome, CheckpointedReplica, Config, Error, LogConfig, PageOptions, RecoveredReplicas,
    RegionSnapshot, ScanRequest, StartSeed, Store, StoreDirectory,
};
use flotilla_identity::{
    BootstrapPlan, BootstrapWrite, ClusterSettings, ClusterSpec, IdentityState, StoreUuid,
};

mod apply;
mod checkpoint_report;
mod comparisons;
mod crash;
mod damage;
mod end_crash;
mod ends;
mod expected_state;
mod expiry;
mod families;
mod identity;
mod log_purge;
mod membership;
mod model;
mod page_maintenance;
mod quorum_recovery;
mod read;
mod recovery;
mod row_read_ahead;
mod snapshot_crash;
mod snapshots;
mod splits;
mod uninitialised;

const HERE: StoreId = StoreId(1);
const CLUSTER: u64 = 77;

type Row = (Bytes, Bytes);

/// Small segments, so that they come and go.
fn config() -> Config {
    Config {
        log: LogConfig::default().segment_bytes(4 << 10).salt(Some(1)),
        pages: PageOptions::default().growth_bytes(64 << 10),
        ..Config::default()
    }
}

/// A region with a replica here and one elsewhere.
fn region(id: u64, space: Space, start: &'static str, end: &'static str) -> Descriptor {
    let peer = |store| Peer { id: PeerId(id * 100 + store), store: StoreId(store) };
    Descriptor {
        removed: RemovedPeers::default(),
        id: RegionId(id),
        space,
        start: start.into(),
        end: end.into(),
        epoch: Epoch { conf_version: 1, version: 1 },
        peers: vec![peer(1).into(), peer(2).into()],
    }
}

/// The system region, and three that share the clients' keys.
fn regions() -> Vec<Descriptor> {
    vec![
        region(1, Space::System, "", ""),
        region(2, Space::Raw, "", "h"),
        region(3, Space::Raw, "h", "p"),
        region(4, Space::Raw, "p", ""),
    ]
}

fn try_open(fs: &FaultFs) -> Result<(Store, Vec<RecoveredReplica>), Error> {
    try_open_with(fs, config())
}

fn try_open_with(fs: &FaultFs, config: Config) -> Result<(Store, Vec<RecoveredReplica>), Error> {
    try_begin(fs, config, &regions())
}

/// Opens the directory and, if it is no member's yet, makes it one of a cluster of these regions.
fn try_begin(
    fs: &FaultFs,
    config: Config,
    regions: &[Descriptor],
) -> Result<(Store, Vec<RecoveredReplica>), Error> {
    begin(try_directory(fs, config)?, regions)
}

fn begin(
    directory: StoreDirectory,
    regions: &[Descriptor],
) -> Result<(Store, Vec<RecoveredReplica>), Error> {
    let (store, recovered) = begin_all(directory, regions)?;
    assert_eq!(recovered.unborn, [], "no split is applied here");
    assert_eq!(recovered.uninitialised, [], "no message has made a replica");
    Ok((store, recovered.replicas))
}

fn begin_all(
    mut directory: StoreDirectory,
    regions: &[Descriptor],
) -> Result<(Store, RecoveredReplicas), Error> {
    if directory.identity().state == IdentityState::New {
        let plan = Box::new(plan(directory.identity().uuid, regions));
        directory.write(&BootstrapWrite::Form { plan, place: 0 })?;
    }
    if !directory.identity().is_member() {
        directory.write(&BootstrapWrite::Member)?;
    }
    Store::start(directory)
}

fn try_directory(fs: &FaultFs, config: Config) -> Result<StoreDirectory, Error> {
    // Of no meaning, and another one each time.
    let nonce = fs.operations() + 1;
    let seed = StartSeed { uuid: StoreUuid(7), nonce };
    StoreDirectory::open(Arc::new(fs.clone()), Path::new("/data/store"), config, seed)
}

/// A cluster of this store and another one.
fn plan(uuid: StoreUuid, regions: &[Descriptor]) -> BootstrapPlan {
    let spec = ClusterSpec {
        stores: ClusterSpec::parse_stores("s1=h:1,s2=h:2").unwrap(),
        settings: ClusterSettings::default(),
        regions: 3,
        split_keys: vec![],
        cluster_id: 0,
    };
    let uuids = vec![uuid, StoreUuid(8)];
    BootstrapPlan { cluster_id: CLUSTER, round: 1, uuids, spec, regions: regions.to_vec() }
}

fn open(fs: &FaultFs) -> (Store, Vec<RecoveredReplica>) {
    try_open(fs).unwrap_or_else(|error| panic!("the store does not open: {error}"))
}

fn peer(region: u64) -> PeerId {
    PeerId(region * 100 + HERE.0)
}

fn put(key: &str, value: &str) -> RawOp {
    RawOp::put(key.to_owned().into(), value.to_owned().into())
}

fn delete(key: &str) -> RawOp {
    RawOp::Delete { key: key.to_owned().into() }
}

fn delete_range(start: &str, end: Option<&str>) -> RawOp {
    let end = end.map(|end| end.to_owned().into());
    RawOp::DeleteRange { start: start.to_owned().into(), end }
}

fn swap(key: &str, expected: Option<&str>, value: Option<&str>) -> RawOp {
    let bytes = |text: Option<&str>| text.map(|text| Bytes::from(text.to_owned()));
    let key = Bytes::from(key.to_owned());
    RawOp::CompareAndSwap { key, expected: bytes(expected), value: bytes(value), ttl_s: 0 }
}

/// The data of an entry with these proposals, each under a version of the range.
fn data(proposals: &[(u8, &[RawOp])]) -> Bytes {
    data_at(0, proposals)
}

/// As [`data`], proposed at this time.
fn data_at(time_ms: u64, proposals: &[(u8, &[RawOp])]) -> Bytes {
    data_in(ColumnFamily::Default, time_ms, proposals)
}

/// As [`data_at`], for keys of this column family.
fn data_in(family: ColumnFamily, time_ms: u64, proposals: &[(u8, &[RawOp])]) -> Bytes {
    let mut data = vec![1];
    for (version, ops) in proposals {
        let command = raw::encode_in(family, time_ms, ops);
        data.push(*version);
        let mut len = command.len();
        while len >= 0x80 {
            data.push(len as u8 | 0x80);
            len >>= 7;
        }
        data.push(len as u8);
        data.extend_from_slice(&command);
    }
    data.into()
}

fn entry(index: u64, term: u64, data: Bytes) -> LogEntry {
    LogEntry { index: Index(index), term: Term(term), kind: EntryKind::Normal, data }
}

/// An entry with one proposal under version 1.
pub(crate) fn ops(index: u64, ops: &[RawOp]) -> LogEntry {
    entry(index, 1, data(&[(1, ops)]))
}

fn hard_state(term: u64, vote: u64, commit: u64) -> HardState {
    let vote = Some(PeerId(vote)).filter(|peer| peer.0 > 0);
    HardState { term: Term(term), vote, commit: Index(commit) }
}

fn write(region: u64, hard_state: HardState, entries: &[LogEntry]) -> LogWrite {
    LogWrite {
        region: RegionId(region),
        peer: peer(region),
        number: 1,
        hard_state: Some(hard_state),
        entries: entries.to_vec(),
        sync: true,
        reset: None,
    }
}

/// Writes one region's entries, committed up to `commit`, and waits for them.
fn append(store: &Store, region: u64, entries: &[LogEntry], commit: u64) {
    let term = entries.last().map_or(1, |entry| entry.term.0);
    store
        .write_log(&[write(region, hard_state(term, 0, commit), entries)], &[], &[], &[])
        .wait()
        .unwrap();
}

fn compact(store: &Store, region: u64, first: u64, term_before: u64) {
    let (first, term_before) = (Index(first), Term(term_before));
    let compaction =
        Compaction { region: RegionId(region), peer: peer(region), first, term_before };
    store.write_log(&[], &[], &[compaction], &[]).wait().unwrap();
}

/// A task whose proposals have the tickets `10 * index`, and so on.
fn task(region: u64, entries: &[LogEntry]) -> ApplyTask {
    let committed = entries.iter().map(|entry| {
        let count = entry_data::proposals(&entry.data).count() as u64;
        let tickets = (0..count).map(|i| Ticket(10 * entry.index.0 + i)).collect();
        Committed { entry: entry.clone(), tickets }
    });
    ApplyTask { region: RegionId(region), entries: committed.collect() }
}

/// Logs and applies one region's entries and returns the outcomes.
fn run(store: &Store, region: u64, entries: &[LogEntry]) -> Vec<ApplyOutcome> {
    append(store, region, entries, entries.last().unwrap().index.0);
    let applied = store.apply(&[task(region, entries)]).unwrap();
    applied.outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

fn view(store: &Store, region: u64) -> RegionSnapshot {
    store.read().region(RegionId(region), None).unwrap()
}

fn get(store: &Store, region: u64, key: &str) -> Option<Bytes> {
    view(store, region).get(key.as_bytes()).unwrap()
}

fn scan_all() -> ScanRequest {
    ScanRequest {
        start: Bytes::new(),
        end: Bytes::new(),
        limit: u64::MAX,
        reverse: false,
        key_only: false,
        bytes_max: u64::MAX,
    }
}

fn rows(store: &Store, region: u64) -> Vec<Row> {
    view(store, region).scan(&scan_all()).unwrap().rows
}
