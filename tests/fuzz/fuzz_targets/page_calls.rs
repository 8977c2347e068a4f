//! Any transactions against a map: what is published is seen, what is aborted is not, and a crash
//! returns to the last checkpoint.
#![no_main]

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use flotilla_pagestore::{Options, PageStore};
use flotilla_vfs::fault::FaultFs;
use libfuzzer_sys::fuzz_target;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn open(fs: &FaultFs) -> PageStore {
    PageStore::open(Arc::new(fs.clone()), Path::new("/pages"), Options::default()).unwrap()
}

fn compare(store: &PageStore, model: &Model) {
    let found: Model = match store.read().tree("t").unwrap() {
        None => Model::new(),
        Some(tree) => tree
            .range(Bound::Unbounded, Bound::Unbounded)
            .copied()
            .map(Result::unwrap)
            .collect(),
    };
    assert!(found == *model, "{} rows instead of {}", found.len(), model.len());
    store.check().unwrap();
}

/// A key of a few bytes or many; a value of none to several pages.
fn row(a: u8, b: u8) -> (Vec<u8>, Vec<u8>) {
    let key = vec![a / 8; if a % 8 == 0 { usize::from(b) * 30 } else { usize::from(a % 8) }];
    (key, vec![b; usize::from(b) * usize::from(b % 5) * 17])
}

fuzz_target!(|data: &[u8]| {
    let fs = FaultFs::new(1);
    let mut store = open(&fs);
    let (mut published, mut durable) = (Model::new(), Model::new());
    for part in data.chunks(24) {
        let mut model = published.clone();
        let mut txn = store.write().unwrap();
        let mut tree = txn.tree("t").unwrap();
        for call in part[1..].chunks_exact(3) {
            let (key, value) = row(call[1], call[2]);
            match call[0] % 4 {
                0 | 1 => {
                    tree.put(&key, &value).unwrap();
                    model.insert(key, value);
                }
                2 => assert_eq!(tree.delete(&key).unwrap(), model.remove(&key).is_some()),
                _ => {
                    let (end, _) = row(call[2], call[1]);
                    let before = model.len();
                    model.retain(|k, _| *k < key || *k >= end);
                    let removed = tree.delete_range(&key, Some(&end)).unwrap();
                    assert_eq!(removed as usize, before - model.len());
                }
            }
        }
        if part[0] & 1 == 0 {
            txn.publish().unwrap();
            published = model;
        } else {
            drop(txn);
        }
        if part[0] & 6 == 0 {
            store.checkpoint().unwrap();
            durable = published.clone();
        }
        if part[0] & 0x38 == 0 {
            drop(store);
            fs.power_loss(u64::from(part[0]));
            store = open(&fs);
            published = durable.clone();
        }
        compare(&store, &published);
    }
});
