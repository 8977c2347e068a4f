//! Tests of data directories: the identity of an empty one, and the refusal of damaged ones.

use flotilla_identity::{
    ClusterSettings, JoinWrite, PeerWrite, SCHEMA_VERSION, SettingChange, StoreIdentity,
    StoreRecord, StoreRegistry, StoreRun,
};
use flotilla_raftlog::{Durability, LogBatch, LogEngine, PurgeReport};

use flotilla_vfs::FileSystem as _;

use super::*;
use crate::schema::{self, STORE_GROUP};
use crate::store_group;
use crate::store_log::StoreLog;

fn directory(fs: &FaultFs) -> StoreDirectory {
    try_directory(fs, config()).unwrap()
}

fn refused(fs: &FaultFs) -> String {
    match try_directory(fs, config()) {
        Err(Error::WrongDirectory(what)) => what,
        other => panic!("{other:?} is no refusal"),
    }
}

/// Puts a row of the identity into the pages of a store that is closed.
fn put_identity(fs: &FaultFs, row: &[u8]) {
    let path = Path::new("/data/store/pages");
    let fs = Arc::new(fs.clone());
    let pages = flotilla_pagestore::PageStore::open_with(fs, path, config().pages).unwrap();
    let mut txn = pages.write().unwrap();
    txn.tree("ident").unwrap().put(b"identity", row).unwrap();
    txn.publish().unwrap();
    pages.checkpoint().unwrap();
}

/// Joins the log of one disk and the pages of another.
fn halves(log: &FaultFs, pages: &FaultFs) -> FaultFs {
    let whole = FaultFs::new(0);
    whole.replace_below(Path::new("/data/store/pages"), pages);
    whole.replace_below(Path::new("/data/store/log"), log);
    whole
}

/// A copy of a disk as it is now.
fn copy(fs: &FaultFs) -> FaultFs {
    halves(fs, fs)
}

#[test]
fn an_empty_directory_gets_an_identity_and_keeps_it() {
    let fs = FaultFs::new(0);
    let first = directory(&fs).identity().clone();
    assert_eq!((first.uuid, first.run.starts), (StoreUuid(7), 1));
    fs.power_loss(1);
    let second = directory(&fs).identity().clone();
    assert_eq!(second.run.starts, 2);
    assert_eq!(StoreIdentity { run: first.run, ..second }, first);
}

fn join_write() -> JoinWrite {
    let record = StoreRecord {
        id: StoreId(1_000_000),
        name: "s4".to_owned(),
        address: "h:4".to_owned(),
        uuid: StoreUuid(7),
        ..StoreRecord::default()
    };
    JoinWrite {
        cluster_id: 77,
        store: record.id,
        name: record.name.clone(),
        registry: StoreRegistry { version: 4, level: 1, stores: vec![record] },
        settings: ClusterSettings { replicas: 5, ..ClusterSettings::default() },
    }
}

/// Case C36f: once it has joined, it is that store after every crash, or it has not joined.
#[test]
fn a_store_that_joined_is_a_member_without_replicas_from_one_root_on() {
    let (fs, write) = (FaultFs::new(0), join_write());
    directory(&fs);
    fs.power_loss(1);
    let mut opened = directory(&fs);
    opened.join(&write).unwrap();
    drop(opened);
    fs.power_loss(2);
    let opened = directory(&fs);
    let identity = opened.identity();
    assert!(identity.is_member());
    assert_eq!((identity.cluster_id, identity.store), (77, write.store));
    assert_eq!((identity.uuid, identity.run.starts), (StoreUuid(7), 3));
    assert_eq!(opened.copies().unwrap(), (write.registry.clone(), write.settings));
    assert_eq!(opened.own_address().unwrap().as_deref(), Some("h:4"));
    let (store, recovered) = Store::start(opened).unwrap();
    assert!(recovered.replicas.is_empty() && recovered.uninitialised.is_empty());
    // Its memory of others and its writes from now on outlive it as well.
    store.checkpoint().unwrap();
    drop(store);
    fs.power_loss(3);
    assert_eq!(directory(&fs).identity().run.starts, 4);
}

#[test]
fn starts_are_remembered_with_the_end_of_the_log_that_they_found() {
    let fs = FaultFs::new(0);
    let mut ends = vec![];
    for starts in 1..=3 {
        let (store, _) = open(&fs);
        assert_eq!(store.identity().run.starts, starts);
        append(&store, 2, &[ops(starts, &[put("a", "b")])], 0);
        ends.push(store.log_end());
    }
    let (store, _) = open(&fs);
    let runs = &store.history().runs;
    assert_eq!(runs.len(), 4);
    for (starts, end) in (2..).zip(ends) {
        assert_eq!(runs[&starts].1, end, "start {starts}");
    }
}

#[test]
fn only_the_last_thousand_starts_are_kept() {
    let fs = FaultFs::new(0);
    let mut opened = directory(&fs);
    let before = StoreRun { starts: 1_002, nonce: 5 };
    opened.identity.run = before;
    let mut txn = opened.pages.write().unwrap();
    for starts in 3..=1_002 {
        let (key, record) = (schema::start_key(starts), schema::encode_start((5, starts)));
        txn.tree(schema::IDENT).unwrap().put(&key, &record).unwrap();
    }
    txn.tree(schema::IDENT).unwrap().delete(&schema::start_key(1)).unwrap();
    txn.publish().unwrap();
    opened.history.runs.insert(before.starts, (5, before.starts));
    opened.count_start().unwrap();
    drop(opened);
    let opened = directory(&fs);
    assert_eq!(opened.identity().run.starts, 1_003);
    let kept: Vec<u64> = opened.history.runs.keys().copied().collect();
    assert_eq!(kept, (4..=1_003).collect::<Vec<_>>());
}

#[test]
fn a_half_that_is_missing_or_of_another_day_is_refused() {
    let fs = FaultFs::new(0);
    drop(open(&fs));
    let early = copy(&fs);
    for _ in 0..2 {
        let (store, _) = open(&fs);
        append(&store, 2, &[ops(1, &[put("a", "b")])], 0);
    }
    let empty = FaultFs::new(0);
    assert!(refused(&halves(&empty, &fs)).contains("but not its log"));
    assert!(refused(&halves(&fs, &empty)).contains("but not its pages"));
    // An older copy of the log ends below the mark, or is of another start.
    assert!(refused(&halves(&early, &fs)).contains("not of the same day"));
    assert!(refused(&halves(&fs, &early)).contains("not of the same day"));
    let other = FaultFs::new(1);
    let seed = StartSeed { uuid: StoreUuid(9), nonce: 1 };
    let other_fs = Arc::new(other.clone());
    drop(StoreDirectory::open(other_fs, Path::new("/data/store"), config(), seed).unwrap());
    assert!(refused(&halves(&other, &fs)).contains("bring the two back that belong together"));
    assert_eq!(directory(&fs).identity().run.starts, 4);
}

/// Of the same start, or of the one before, but from before a vote that only the newest root has.
#[test]
fn pages_that_are_older_than_the_log_relies_on_are_refused() {
    let fs = FaultFs::new(0);
    let (store, _) = open(&fs);
    let early = copy(&fs);
    store.write_log(&[write(4, hard_state(3, 402, 0), &[])], &[], &[], &[]).wait().unwrap();
    for index in 1..=40 {
        run(&store, 2, &[ops(index, &[put("key", &"v".repeat(400))])]);
    }
    store.checkpoint().unwrap();
    compact(&store, 2, 41, 1);
    assert!(store.purge_log().unwrap().segments > 2, "the vote holds no segment any more");
    drop(store);
    assert!(refused(&halves(&fs, &early)).contains("older than the log relies on"));
    drop(open(&fs));
    assert!(refused(&halves(&fs, &early)).contains("older than the log relies on"));
}

#[test]
fn a_start_that_died_between_the_halves_is_repeated() {
    let fs = FaultFs::new(0);
    drop(open(&fs));
    let before = copy(&fs);
    drop(open(&fs));
    // The log has counted a start that the pages have not.
    let cut = halves(&fs, &before);
    let (store, _) = open(&cut);
    assert_eq!(store.identity().run.starts, 2);
    assert_ne!(store.identity().run, open(&fs).0.identity().run);
}

#[test]
fn a_first_start_that_died_before_its_pages_keeps_its_number() {
    let fs = FaultFs::new(0);
    drop(directory(&fs));
    let cut = halves(&fs, &FaultFs::new(0));
    let seed = StartSeed { uuid: StoreUuid(9), nonce: 5 };
    let path = Path::new("/data/store");
    let opened = StoreDirectory::open(Arc::new(cut.clone()), path, config(), seed).unwrap();
    assert_eq!(opened.identity().uuid, StoreUuid(7));
    drop(opened);
    // A member's log alone is no such start, however little it holds.
    drop(open(&fs));
    assert!(refused(&halves(&fs, &FaultFs::new(0))).contains("but not its pages"));
}

#[test]
fn a_directory_of_format_1_is_refused_in_words() {
    let fs = FaultFs::new(0);
    fs.create_dir_all(Path::new("/data/store")).unwrap();
    put_identity(&fs, &[&[1][..], &[0; 16]].concat());
    assert!(refused(&fs).contains("format 1"));
}

#[test]
fn a_start_raises_the_schema_and_a_later_one_is_refused() {
    let fs = FaultFs::new(0);
    let (store, _) = open(&fs);
    let identity = store.identity().clone();
    drop(store);
    put_identity(&fs, &StoreIdentity { schema: SCHEMA_VERSION - 1, ..identity.clone() }.encode());
    let opened = directory(&fs);
    assert_eq!(opened.identity().schema, SCHEMA_VERSION);
    let run = opened.identity().run;
    drop(opened);
    put_identity(&fs, &StoreIdentity { schema: SCHEMA_VERSION + 1, run, ..identity }.encode());
    assert!(refused(&fs).contains("written by a later version"));
}

#[test]
fn an_earlier_plan_is_replaced_whole() {
    let fs = FaultFs::new(0);
    let mut opened = directory(&fs);
    let uuid = opened.identity().uuid;
    let mut first = plan(uuid, &regions());
    opened.write(&BootstrapWrite::Form { plan: Box::new(first.clone()), place: 0 }).unwrap();
    first.round = 2;
    first.cluster_id = 78;
    first.regions = regions()[..2].to_vec();
    first.spec.settings.replicas = 1;
    opened.write(&BootstrapWrite::Form { plan: Box::new(first.clone()), place: 0 }).unwrap();
    opened.write(&BootstrapWrite::Member).unwrap();
    let (registry, settings) = opened.copies().unwrap();
    assert_eq!((registry, settings.replicas), (StoreRegistry::of_plan(&first), 1));
    let (store, RecoveredReplicas { replicas: recovered, .. }) = Store::start(opened).unwrap();
    assert_eq!(store.member_id().cluster_id, 78);
    assert_eq!(recovered.len(), 2);
}

/// Writes some segments of region 2's log, and purges them.
fn write_and_purge(store: &Store) -> PurgeReport {
    for index in 1..=40 {
        let value = "v".repeat(400);
        run(store, 2, &[ops(index, &[put("key", &value)])]);
    }
    store.checkpoint().unwrap();
    compact(store, 2, 41, 1);
    let purged = store.purge_log().unwrap();
    assert!(purged.segments > 2, "{purged:?}");
    purged
}

#[test]
fn starts_of_others_are_remembered_through_purges_and_hold_no_segment() {
    let fs = FaultFs::new(0);
    let (store, _) = open(&fs);
    let run_3 = StoreRun { starts: 3, nonce: 4 };
    let write = PeerWrite { store: StoreId(2), run: run_3, address: "h:2".to_owned() };
    store.remember_peer(&write).unwrap();
    let purged = write_and_purge(&store);
    assert!(purged.blocking_groups.iter().all(|holder| holder.group != STORE_GROUP), "{purged:?}");
    drop(store);
    fs.power_loss(3);
    let (store, _) = open(&fs);
    assert_eq!(store.peer_runs().unwrap(), [write]);
}

#[test]
fn a_start_that_is_on_its_way_to_the_log_is_not_overwritten_by_what_was_there() {
    let (engine, _) =
        LogEngine::open_with(Arc::new(FaultFs::new(0)), Path::new("/log"), config().log).unwrap();
    let log = StoreLog::new(engine, 0).unwrap();
    let told = |starts| {
        let run = StoreRun { starts, nonce: 4 };
        PeerWrite { store: StoreId(2), run, address: "h:2".to_owned() }
    };
    log.remember_peer(&told(3)).unwrap();
    let queued = store_group::put_peer_run(log.engine(), &told(4));
    log.rewrite_own_group().unwrap();
    queued.wait().unwrap();
    assert_eq!(store_group::peer_runs(log.engine()).unwrap(), [told(4)]);
}

#[test]
fn the_own_address_is_that_of_the_last_start() {
    let fs = FaultFs::new(0);
    assert_eq!(directory(&fs).own_address().unwrap(), None);
    let (store, _) = open(&fs);
    drop(store);
    assert_eq!(directory(&fs).own_address().unwrap().unwrap(), "h:1", "by the plan");
    let (store, _) = open(&fs);
    let run = store.identity().run;
    store.remember_peer(&PeerWrite { store: HERE, run, address: "moved:1".to_owned() }).unwrap();
    drop(store);
    fs.power_loss(1);
    assert_eq!(directory(&fs).own_address().unwrap().unwrap(), "moved:1");
}

#[test]
fn the_own_copies_survive_a_checkpoint() {
    let fs = FaultFs::new(0);
    let (store, _) = open(&fs);
    let mut registry = StoreRegistry::of_plan(&plan(StoreUuid(7), &regions()));
    registry.version = 5;
    store.keep_registry(&registry).unwrap();
    store.checkpoint().unwrap();
    drop(store);
    fs.power_loss(2);
    let (found, settings) = directory(&fs).copies().unwrap();
    assert_eq!((found, settings), (registry, ClusterSettings::default()));
}

#[test]
fn changed_settings_are_durable_at_once_and_outlive_purges() {
    let fs = FaultFs::new(0);
    let (store, _) = open(&fs);
    let first = ClusterSettings::default();
    let changed = first.with_change(SettingChange::TickMs(100)).unwrap();
    store.keep_settings(&changed).unwrap();
    drop(store);
    fs.power_loss(1);
    assert_eq!(directory(&fs).copies().unwrap().1, changed);
    let (store, _) = open(&fs);
    write_and_purge(&store);
    drop(store);
    fs.power_loss(2);
    assert_eq!(directory(&fs).copies().unwrap().1, changed);
    let (store, _) = open(&fs);
    let back = changed.with_change(SettingChange::TickMs(50)).unwrap();
    store.keep_settings(&back).unwrap();
    drop(store);
    fs.power_loss(3);
    assert_eq!(directory(&fs).copies().unwrap().1, back);
}

#[test]
fn replicas_in_the_log_of_no_member_are_refused() {
    let fs = FaultFs::new(0);
    drop(directory(&fs));
    let log = Path::new("/data/store/log");
    let (engine, _) = LogEngine::open_with(Arc::new(fs.clone()), log, config().log).unwrap();
    let mut batch = LogBatch::new();
    batch.put(101, b"hs", b"x");
    engine.write(batch, Durability::Synced).wait().unwrap();
    drop(engine);
    assert!(refused(&fs).contains("of no cluster"));
}
