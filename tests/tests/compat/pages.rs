//! The page store: trees of short and long pages, values of all lengths, a checkpoint, and commits
//! in the redo area that no checkpoint has.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use flotilla_pagestore::{CommitDurability, Options, PageStore, TreeOptions};
use flotilla_vfs::os::OsFs;

use crate::{copy_of, is_written_alike, noise};

/// The older one is read, the newer one is read and written.
const FIXTURES: [&str; 3] = ["pages", "pages-2", "pages-3"];

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

fn open(dir: &Path) -> PageStore {
    let options = Options::default().growth_bytes(64 << 10).redo_bytes(64 << 10);
    PageStore::open_with(Arc::new(OsFs::new()), &dir.join("pages"), options).unwrap()
}

fn key(number: u64) -> Vec<u8> {
    format!("key {number:05}").into_bytes()
}

/// Most are short; some lie by themselves, one over many pages.
fn value(number: u64, version: u64) -> Vec<u8> {
    let len = match number {
        77 => 60_000,
        n if n % 50 == 0 => 3_000,
        n => n as usize % 90,
    };
    noise(number << 8 | version, len)
}

fn write(dir: &Path) {
    let store = open(dir);
    let mut txn = store.write().unwrap();
    let mut short = txn.tree("short").unwrap();
    for number in 0..1_000 {
        short.put(&key(number), &value(number, 1)).unwrap();
    }
    let mut long = txn.create_tree("long", TreeOptions::default().page_units(4)).unwrap();
    for number in 0..400 {
        long.put(&key(number), &value(number, 2)).unwrap();
    }
    txn.tree("dropped").unwrap().put(b"a", b"b").unwrap();
    txn.set_commit_metadata(b"the first");
    txn.commit(CommitDurability::Sync).unwrap();
    store.checkpoint().unwrap();

    let mut txn = store.write().unwrap();
    let mut short = txn.tree("short").unwrap();
    for number in (0..1_000).step_by(3) {
        short.delete(&key(number)).unwrap();
    }
    short.delete_range(&key(500), Some(&key(600))).unwrap();
    txn.delete_tree("dropped").unwrap();
    txn.publish().unwrap();
    store.checkpoint().unwrap();

    // Only the redo area has these.
    for round in 0..3 {
        let mut txn = store.write().unwrap();
        let mut long = txn.tree("long").unwrap();
        for number in 0..5 {
            long.put(&key(round * 100 + number), &value(number, 3 + round)).unwrap();
        }
        txn.set_commit_metadata(format!("round {round}").as_bytes());
        txn.commit(CommitDurability::Sync).unwrap();
    }
}

fn short_rows() -> Rows {
    let is_kept = |number: &u64| !number.is_multiple_of(3) && !(500..600).contains(number);
    (0..1_000).filter(is_kept).map(|number| (key(number), value(number, 1))).collect()
}

fn long_rows() -> Rows {
    let mut rows: Rows = (0..400).map(|number| (key(number), value(number, 2))).collect();
    for round in 0..3 {
        rows.extend((0..5).map(|n| (key(round * 100 + n), value(n, 3 + round))));
    }
    rows
}

#[test]
fn a_page_file_is_read() {
    FIXTURES.into_iter().for_each(is_read);
}

fn is_read(fixture: &str) {
    let dir = copy_of(fixture);
    let store = open(dir.path());
    let snapshot = store.read();
    assert_eq!(snapshot.commit_metadata(), b"round 2");
    assert_eq!(snapshot.tree_names().unwrap(), ["long", "short"]);
    for (name, expected, units) in [("short", short_rows(), 1), ("long", long_rows(), 4)] {
        let tree = snapshot.tree(name).unwrap().unwrap();
        assert_eq!((tree.len(), tree.page_units()), (expected.len() as u64, units), "{name}");
        let mut found = Rows::new();
        let mut rows = tree.range(..);
        while let Some((key, value)) = rows.next().unwrap() {
            found.insert(key.to_vec(), value.to_vec());
        }
        assert_eq!(found, expected, "{name}");
    }
    store.check().unwrap();
}

#[test]
fn a_page_file_is_written_byte_for_byte() {
    is_written_alike(FIXTURES[2], write);
}
