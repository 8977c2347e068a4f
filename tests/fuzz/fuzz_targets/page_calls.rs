//! Any transactions against a map, on a tree with pages of any length, while the file is
//! defragmented and cut off: what is published is seen, what is aborted is not, a crash returns to
//! what was durable, and so does a dense copy.
#![no_main]

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use flotilla_pagestore::tools::PageFile;
use flotilla_pagestore::{CommitDurability, Options, PageStore, Savepoint, TreeOptions, WriteTxn};
use flotilla_vfs::FileSystem;
use flotilla_vfs::fault::FaultFs;
use libfuzzer_sys::fuzz_target;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

const FILE: &str = "/pages";
const COPY: &str = "/copy";

/// Steps so small that a file of some pages is cut off.
fn open_at(fs: &FaultFs, path: &str) -> PageStore {
    let options = Options::default().growth_bytes(8 << 10).trim_bytes(8 << 10).redo_bytes(64 << 10);
    PageStore::open_with(Arc::new(fs.clone()), Path::new(path), options).unwrap()
}

fn open(fs: &FaultFs) -> PageStore {
    open_at(fs, FILE)
}

fn compare(store: &PageStore, model: &Model) {
    let tree = store.read().tree("t").unwrap().unwrap();
    let all = tree.range(..).copied();
    let found: Model = all.map(Result::unwrap).collect();
    assert!(found == *model, "{} rows instead of {}", found.len(), model.len());
    store.check().unwrap();
}

/// A key of a few bytes or many; a value of none to several pages.
fn row(a: u8, b: u8) -> (Vec<u8>, Vec<u8>) {
    let key = vec![a / 8; if a % 8 == 0 { usize::from(b) * 30 } else { usize::from(a % 8) }];
    (key, vec![b; usize::from(b) * usize::from(b % 5) * 17])
}

/// One call about the tree, or about the transaction as a whole.
fn step(
    (store, txn): (&PageStore, &mut WriteTxn<'_>),
    model: &mut Model,
    points: &mut Vec<(Savepoint, Model)>,
    call: &[u8],
) {
    let (key, value) = row(call[1], call[2]);
    match call[0] % 12 {
        0..4 => {
            txn.tree("t").unwrap().put(&key, &value).unwrap();
            model.insert(key, value);
        }
        4 | 5 => {
            let deleted = txn.tree("t").unwrap().delete(&key).unwrap();
            assert_eq!(deleted, model.remove(&key).is_some());
        }
        6 => {
            let (end, _) = row(call[2], call[1]);
            let before = model.len();
            model.retain(|k, _| *k < key || *k >= end);
            let removed = txn.tree("t").unwrap().delete_range(&key, Some(&end)).unwrap();
            assert_eq!(removed as usize, before - model.len());
        }
        7 => points.push((txn.savepoint(), model.clone())),
        8 if !points.is_empty() => {
            points.truncate(usize::from(call[1]) % points.len() + 1);
            let (point, then) = points.last().unwrap();
            txn.rollback_to(point).unwrap();
            model.clone_from(then);
        }
        9 => {
            let part = txn.tree("t").unwrap().split_off(&key).unwrap();
            let moved = model.split_off(&key);
            assert_eq!(part.len(), moved.len() as u64);
            if call[2] & 1 == 0 {
                txn.tree("t").unwrap().append(&part).unwrap();
                model.extend(moved);
            }
        }
        10 => {
            let options = TreeOptions::default().page_units(txn.tree("t").unwrap().page_units());
            let mut builder = store.tree_builder_with(options).unwrap();
            let built: Model =
                (0..call[2] % 60).map(|i| ([&key[..], &[i]].concat(), value.clone())).collect();
            built.iter().for_each(|(key, value)| builder.push(key, value).unwrap());
            let end = [&key[..], &[0xff]].concat();
            let tree = builder.finish().unwrap();
            txn.tree("t").unwrap().ingest(&key, Some(&end), tree).unwrap();
            model.retain(|k, _| *k < key || *k >= end);
            model.extend(built);
        }
        _ => {
            let tree = txn.tree("t").unwrap();
            let count = tree.count(Bound::Included(&key), Bound::Unbounded).unwrap();
            assert_eq!(count as usize, model.range(key..).count());
            let nth = tree.nth(u64::from(call[2])).unwrap().map(|(key, _)| key);
            assert_eq!(nth.as_ref(), model.keys().nth(call[2].into()));
        }
    }
}

/// Moves pages, and trims the spare space that checkpoints have found, as `call` says.
fn shrink(store: &PageStore, call: u8) {
    if call & 3 == 0 {
        store.defragment(1 << (12 + (call >> 4))).unwrap();
    }
    if call & 0xc == 0 {
        for _ in 0..=call >> 4 {
            if !store.trim_punch().unwrap() {
                break;
            }
        }
    }
}

/// A dense copy of a file that no store has open holds the same, in pages of the same length.
fn compact(fs: &FaultFs, model: &Model, page_units: u32) {
    let disk: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let file = PageFile::open(fs, Path::new(FILE)).unwrap();
    assert_eq!(file.check(&mut |_| ()).problems, []);
    // The last one, if there is one: a power loss may even bring it back.
    let _ = disk.remove(Path::new(COPY));
    let made = file.compact(&disk, Path::new(COPY), &mut |_| ()).unwrap();
    assert_eq!((made.trees, made.keys), (1, model.len() as u64));
    let copy = open_at(fs, COPY);
    compare(&copy, model);
    assert_eq!(copy.read().tree("t").unwrap().unwrap().page_units(), page_units);
}

fuzz_target!(|data: &[u8]| {
    let fs = FaultFs::new(1);
    let mut store = open(&fs);
    let (mut published, mut durable) = (Model::new(), Model::new());
    let page_units = u32::from(data.first().copied().unwrap_or_default()) % 15 + 1;
    let mut txn = store.write().unwrap();
    txn.create_tree("t", TreeOptions::default().page_units(page_units)).unwrap();
    txn.publish().unwrap();
    store.checkpoint().unwrap();
    for part in data.chunks(24) {
        let mut model = published.clone();
        let mut points = Vec::new();
        let mut txn = store.write().unwrap();
        for call in part[1..].chunks_exact(3) {
            step((&store, &mut txn), &mut model, &mut points, call);
        }
        // Not a call any more, but more to choose from.
        let more = part.get(23).copied().unwrap_or(0xff);
        if part[0] & 1 == 0 {
            let is_synced = more & 0x81 == 0;
            txn.commit(if is_synced { CommitDurability::Sync } else { CommitDurability::Memory })
                .unwrap();
            published = model;
            if is_synced {
                durable = published.clone();
            }
        } else {
            drop(txn);
        }
        if part[0] & 0xc0 == 0 {
            store.reclaim(1 << 16).unwrap();
        }
        shrink(&store, more);
        if part[0] & 6 == 0 {
            store.checkpoint().unwrap();
            durable = published.clone();
        }
        if part[0] & 0x38 == 0 {
            drop(store);
            fs.power_loss(u64::from(part[0]));
            if more & 0x12 == 0 {
                compact(&fs, &durable, page_units);
            }
            store = open(&fs);
            published = durable.clone();
        }
        compare(&store, &published);
        assert_eq!(store.read().tree("t").unwrap().unwrap().page_units(), page_units);
    }
});
