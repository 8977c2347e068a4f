//! Damaged pages: which replicas lose rows by them, and that nothing is served or applied without
//! those rows.

use std::time::Duration;

use flotilla_pagestore::tools::PageFile;
use flotilla_vfs::{FileSystem as _, OpenMode};

use flotilla_region::EndTask;

use super::snapshots::{install_task, receive, send};
use super::*;
use crate::{DamagedReplica, PagesError, Quarantine, ReadError, StoreMaintenance};

const UNIT_BYTES: u64 = 4096;

fn damaged(region: u64) -> DamagedReplica {
    DamagedReplica { region: RegionId(region), peer: peer(region) }
}

/// Flips a bit of the newest leaf that has the key.
fn spoil(fs: &FaultFs, key: &str) {
    let path = Path::new("/data/store/pages");
    let file = PageFile::open(fs, path).unwrap();
    let units = fs.open(path, OpenMode::Read).unwrap().len().unwrap() / UNIT_BYTES;
    let pages = (0..units).filter_map(|unit| file.page(unit).ok());
    let has_key = |cell: &flotilla_pagestore::tools::CellDump| cell.key == key.as_bytes();
    let leaves = pages.filter(|it| it.kind == "leaf" && it.cells.iter().any(has_key));
    let leaf = leaves.max_by_key(|page| page.created_txid).unwrap();
    fs.flip_bit(path, leaf.page * UNIT_BYTES + 99, 2);
}

/// Rows of three regions, some hundred each, durable.
fn filled() -> FaultFs {
    let fs = FaultFs::new(0);
    let (store, _) = open(&fs);
    for (region, first) in [(2, 'a'), (3, 'i'), (4, 'q')] {
        for index in 1..=40 {
            let puts: Vec<_> = (0..10)
                .map(|n| put(&format!("{first}{:04}", index * 10 + n), &"v".repeat(50)))
                .collect();
            run(&store, region, &[ops(index, &puts)]);
        }
    }
    store.checkpoint().unwrap();
    fs
}

/// Does what is to be done, up to a damaged page.
fn maintained(store: &Store) -> Option<u64> {
    loop {
        match store.maintain(Duration::ZERO) {
            Err(Error::Pages(PagesError::Corrupt { page, .. })) => return Some(page),
            done => {
                if let StoreMaintenance::Rest { .. } = done.unwrap() {
                    return None;
                }
            }
        }
    }
}

/// The page that a read of this key meets.
fn met(store: &Store, region: u64, key: &str) -> u64 {
    match view(store, region).get(key.as_bytes()) {
        Err(ReadError::Pages(PagesError::Corrupt { page, .. })) => page,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_damaged_replica_serves_nothing_until_a_snapshot_has_replaced_its_rows() {
    let source = open(&filled()).0;
    let fs = filled();
    spoil(&fs, "i0200");
    let (store, _) = open(&fs);
    let page = met(&store, 3, "i0200");
    let found = store.quarantine(page, Some(RegionId(3))).unwrap();
    assert_eq!(found, Quarantine { was_found: true, replicas: vec![damaged(3)] });
    assert_eq!((store.stats().damaged_pages, store.stats().damaged_replicas), (1, 1));
    let refused = |store: &Store| store.read().region(RegionId(3), None).unwrap_err();
    assert!(matches!(refused(&store), ReadError::Damaged));
    assert_eq!(get(&store, 2, "a0200"), Some("v".repeat(50).into()), "others go on");
    // The entry is passed over: what came of it is known elsewhere.
    append(&store, 3, &[ops(41, &[put("i0200", "new")])], 41);
    let applied = store.apply(&[task(3, &[ops(41, &[put("i0200", "new")])])]).unwrap();
    assert_eq!((applied.entries, applied.outcomes.len(), applied.undecided.len()), (1, 0, 1));
    let [replica] = &applied.replicas[..] else { panic!("{applied:?}") };
    assert_eq!((replica.peer, replica.index), (damaged(3).peer, Index(41)));
    assert!(replica.is_damaged && replica.written_bytes == 0, "{replica:?}");
    // Another look finds nothing more, and the mark outlives a start.
    assert_eq!(store.quarantine(page, Some(RegionId(3))).unwrap(), Quarantine::default());
    store.checkpoint().unwrap();
    store.check().unwrap();
    drop(store);
    let (store, recovered) = open(&fs);
    let marked = |found: &&RecoveredReplica| found.is_damaged;
    let marked: Vec<_> = recovered.iter().filter(marked).map(|it| it.descriptor.id.0).collect();
    assert_eq!(marked, [3]);
    assert!(matches!(refused(&store), ReadError::Damaged));
    // A snapshot of as much as is applied will do, where nothing was written since.
    append(&source, 3, &[ops(41, &[put("i0200", "new")])], 41);
    source.apply(&[task(3, &[ops(41, &[put("i0200", "new")])])]).unwrap();
    let sent = send(&source, 3, 1 << 16);
    let stage = receive(&store, &sent);
    store.install(&install_task(&sent, stage, hard_state(1, 0, 0))).unwrap();
    assert_eq!(get(&store, 3, "i0200"), Some("new".into()));
    assert_eq!(rows(&store, 3), rows(&source, 3));
    assert_eq!(store.stats().damaged_replicas, 0);
}

#[test]
fn a_snapshot_of_as_much_as_is_applied_mends() {
    let source = open(&filled()).0;
    let fs = filled();
    spoil(&fs, "i0200");
    let (store, _) = open(&fs);
    store.quarantine(met(&store, 3, "i0200"), Some(RegionId(3))).unwrap();
    let sent = send(&source, 3, 1 << 16);
    let stage = receive(&store, &sent);
    store.install(&install_task(&sent, stage, hard_state(1, 0, 0))).unwrap();
    assert_eq!(rows(&store, 3), rows(&source, 3));
    store.checkpoint().unwrap();
    store.check().unwrap();
}

/// A store whose only leaf has rows of three regions, and a flipped bit.
fn with_shared_leaf() -> Store {
    let fs = FaultFs::new(0);
    let (store, _) = open(&fs);
    for (region, key) in [(2, "a"), (3, "i"), (4, "q")] {
        run(&store, region, &[ops(1, &[put(key, "v")])]);
    }
    store.checkpoint().unwrap();
    drop(store);
    spoil(&fs, "i");
    open(&fs).0
}

/// The snapshot is the first to meet the page.
#[test]
fn installing_takes_a_damaged_page_out_and_tells_of_other_regions() {
    let source = open(&FaultFs::new(0)).0;
    run(&source, 3, &[ops(1, &[put("i", "v")]), ops(2, &[put("i", "new")])]);
    let sent = send(&source, 3, 1 << 16);
    let store = with_shared_leaf();
    let stage = receive(&store, &sent);
    let installed = store.install(&install_task(&sent, stage, hard_state(1, 0, 0))).unwrap();
    assert_eq!(installed.damaged, [damaged(2), damaged(4)]);
    assert_eq!(rows(&store, 3), rows(&source, 3));
    assert_eq!(store.stats().damaged_replicas, 2);
    store.checkpoint().unwrap();
    store.check().unwrap();
}

#[test]
fn an_end_takes_a_damaged_page_out_and_tells_of_other_regions() {
    let store = with_shared_leaf();
    let task = EndTask { region: RegionId(3), peer: damaged(3).peer };
    assert_eq!(store.end(&task).unwrap().damaged, [damaged(2), damaged(4)]);
    assert_eq!(store.stats().damaged_replicas, 2);
    store.checkpoint().unwrap();
    store.check().unwrap();
}

#[test]
fn applying_takes_a_damaged_page_out_and_goes_on_with_other_regions() {
    let fs = filled();
    spoil(&fs, "i0200");
    let (store, _) = open(&fs);
    let (one, other) = (ops(41, &[put("i0200", "new")]), ops(41, &[put("a0001", "new")]));
    append(&store, 3, std::slice::from_ref(&one), 41);
    append(&store, 2, std::slice::from_ref(&other), 41);
    let applied = store.apply(&[task(2, &[other]), task(3, &[one])]).unwrap();
    assert_eq!(applied.damaged, [damaged(3)]);
    let are_damaged = applied.replicas.iter().map(|it| (it.region.0, it.is_damaged));
    assert_eq!(are_damaged.collect::<Vec<_>>(), [(2, false), (3, true)]);
    assert_eq!(get(&store, 2, "a0001"), Some("new".into()));
}

/// A split of a damaged region: nothing says which part has lost rows, so both have.
#[test]
fn a_damaged_region_splits_into_damaged_ones() {
    let fs = filled();
    spoil(&fs, "a0200");
    let (store, _) = open(&fs);
    store.quarantine(met(&store, 2, "a0200"), Some(RegionId(2))).unwrap();
    let split = splits::split_entry(41);
    append(&store, 2, std::slice::from_ref(&split), 41);
    let applied = store.apply(&[task(2, &[split])]).unwrap();
    assert_eq!((applied.outcomes.len(), applied.undecided.len()), (1, 0), "{applied:?}");
    let child = RegionId(splits::CHILD);
    assert_eq!(store.stats().damaged_replicas, 2);
    let is_damaged = |store: &Store, region| {
        matches!(store.read().region(region, None), Err(ReadError::Damaged))
    };
    assert!(is_damaged(&store, RegionId(2)) && is_damaged(&store, child));
    store.checkpoint().unwrap();
    drop(store);
    let (store, recovered) = open(&fs);
    let damaged = recovered.iter().filter(|it| it.is_damaged).map(|it| it.descriptor.id);
    assert_eq!(damaged.collect::<Vec<_>>(), [RegionId(2), child]);
    store.check().unwrap();
}

/// Rows that were removed are not missed: only their space is.
#[test]
fn a_damaged_page_of_removed_rows_is_given_up() {
    let fs = FaultFs::new(0);
    let pages = config().pages.reclaim_at_once_bytes(0);
    let config = Config { pages, ..config() };
    let (store, _) = try_open_with(&fs, config.clone()).unwrap();
    // So long that the leaves have to be read, for they name other pages.
    let value = "v".repeat(10_000);
    let rows: Vec<_> = (0..400).map(|n| put(&format!("a{n:04}"), &value)).collect();
    run(&store, 2, &[ops(1, &rows)]);
    store.checkpoint().unwrap();
    run(&store, 2, &[ops(2, &[delete_range("a0010", Some("a0390"))])]);
    store.checkpoint().unwrap();
    assert!(store.stats().pages.deferred_free_bytes > 0, "it is freed later");
    drop(store);
    spoil(&fs, "a0200");
    let (store, _) = try_open_with(&fs, config).unwrap();
    let met = maintained(&store).expect("it is read to be freed");
    assert_eq!(
        store.quarantine(met, None).unwrap(),
        Quarantine { was_found: true, replicas: vec![] }
    );
    assert_eq!(maintained(&store), None);
    assert_eq!(store.stats().pages.deferred_free_bytes, 0, "all else is free");
    assert_eq!(store.quarantine(met, None).unwrap(), Quarantine::default());
    assert_eq!(self::rows(&store, 2).len(), 20);
}

#[test]
fn a_page_of_two_regions_damages_both() {
    let store = with_shared_leaf();
    let found = store.quarantine(met(&store, 3, "i"), None).unwrap();
    assert_eq!(found.replicas, [damaged(2), damaged(3), damaged(4)]);
    // Each is replaced for itself.
    store.checkpoint().unwrap();
    store.check().unwrap();
}

#[test]
fn a_long_value_damages_its_region_alone() {
    let fs = FaultFs::new(0);
    let (store, _) = open(&fs);
    run(&store, 2, &[ops(1, &[put("a", "v")])]);
    run(&store, 3, &[ops(1, &[put("i", &"long".repeat(9_000))])]);
    store.checkpoint().unwrap();
    drop(store);
    let path = Path::new("/data/store/pages");
    let file = fs.open(path, OpenMode::Read).unwrap();
    let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let at = bytes.windows(8).position(|window| window == b"longlong").unwrap();
    fs.flip_bit(path, at as u64 + 5_000, 0);
    let (store, _) = open(&fs);
    let page = met(&store, 3, "i");
    for of in [None, Some(RegionId(3))] {
        let found = store.quarantine(page, of).unwrap();
        assert_eq!(found, Quarantine { was_found: true, replicas: vec![damaged(3)] });
    }
    assert_eq!(get(&store, 2, "a"), Some("v".into()));
}

#[test]
fn the_only_replica_of_a_region_is_not_given_up() {
    let fs = FaultFs::new(0);
    let alone = |id, space| {
        let mut region = region(id, space, "", "");
        region.peers.truncate(1);
        region
    };
    let regions = [alone(1, Space::System), alone(2, Space::Raw)];
    let (store, _) = try_begin(&fs, config(), &regions).unwrap();
    run(&store, 2, &[ops(1, &[put("a", "v")])]);
    store.checkpoint().unwrap();
    drop(store);
    spoil(&fs, "a");
    let (store, _) = try_begin(&fs, config(), &regions).unwrap();
    let refused = store.quarantine(met(&store, 2, "a"), None).unwrap_err();
    let expected = "a page of region 2 is damaged, and no other store has a replica";
    assert!(refused.to_string().starts_with(expected), "{refused}");
    assert_eq!(store.stats().damaged_pages, 0);
}

#[test]
fn no_damaged_replica_becomes_the_only_one_by_a_recovery() {
    let fs = filled();
    spoil(&fs, "i0200");
    let (store, _) = open(&fs);
    store.quarantine(met(&store, 3, "i0200"), Some(RegionId(3))).unwrap();
    store.checkpoint().unwrap();
    drop(store);
    let disk: Arc<dyn flotilla_vfs::FileSystem> = Arc::new(fs);
    let refused = crate::survivor_report(&disk, Path::new("/data/store"), &config(), 9);
    let refused = refused.unwrap_err().to_string();
    assert!(refused.starts_with("the replica of region 3 here has lost rows"), "{refused}");
}
