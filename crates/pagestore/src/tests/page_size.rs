//! Trees with pages of any length: what is kept, what is refused, and where values lie.

use std::sync::Arc;

use super::{disk, in_both_modes, open, path, try_open};
use crate::page::PageSize;
use crate::tools::{PageFile, repair};
use crate::{CommitDurability, Error, KEY_BYTES_MAX, PageStore, TreeOptions, WriteTxn};

fn options(units: u32) -> TreeOptions {
    TreeOptions::default().page_units(units)
}

fn page_units(store: &PageStore, name: &str) -> u32 {
    store.read().tree(name).unwrap().unwrap().page_units()
}

/// Makes a tree of one transaction.
fn fill(txn: &mut WriteTxn<'_>, name: &str, units: u32, keys: std::ops::Range<u32>) {
    let mut tree = txn.create_tree(name, options(units)).unwrap();
    for key in keys {
        tree.put(&key.to_be_bytes(), &[7; 60]).unwrap();
    }
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let store = open(&disk(1));
    let mut txn = store.write().unwrap();
    for units in [0, 16, 257, u32::MAX] {
        let refused = txn.create_tree("t", options(units)).map(|_| ());
        assert!(matches!(refused, Err(Error::PageUnits { units: u }) if u == units));
        let refused = store.tree_builder_with(options(units)).map(|_| ());
        assert!(matches!(refused, Err(Error::PageUnits { units: u }) if u == units));
    }
    fill(&mut txn, "t", 3, 0..1000);
    let refused = txn.create_tree("t", options(3)).map(|_| ());
    assert!(matches!(refused, Err(Error::TreeExists { name }) if name == "t"));
    fill(&mut txn, "other", 2, 1000..2000);
    let part = txn.tree("other").unwrap().split_off(&1500_u32.to_be_bytes()).unwrap();
    let none = txn.tree("other").unwrap().split_off(&9000_u32.to_be_bytes()).unwrap();
    for part in [&part, &none] {
        let refused = txn.tree("t").unwrap().append(part);
        assert!(matches!(refused, Err(Error::PageUnitsDiffer { tree: 3, part: 2 })), "{refused:?}");
    }
    let mut builder = store.tree_builder();
    builder.push(b"a", b"b").unwrap();
    let built = builder.finish().unwrap();
    let refused = txn.tree("t").unwrap().ingest(b"", None, built);
    assert!(matches!(refused, Err(Error::PageUnitsDiffer { tree: 3, part: 1 })), "{refused:?}");
    assert_eq!(txn.tree("t").unwrap().len(), 1000);
    // A built tree that was refused elsewhere still goes into a tree that it fits.
    txn.create_tree("alike", options(2)).unwrap().append(&part).unwrap();
    txn.publish().unwrap();
    let report = store.check().unwrap();
    assert_eq!((report.tree_count, report.key_count, report.reservation_bytes), (3, 2000, 0));
}

#[test]
fn length_is_kept_as_long_as_the_tree_is_there() {
    let fs = disk(2);
    let mut store = open(&fs);
    let mut txn = store.write().unwrap();
    fill(&mut txn, "t", 5, 0..3000);
    let point = txn.savepoint();
    txn.delete_tree("t").unwrap();
    fill(&mut txn, "t", 7, 0..10);
    txn.rollback_to(&point).unwrap();
    assert_eq!(txn.tree("t").unwrap().page_units(), 5);
    txn.tree("default").unwrap().put(b"key", b"value").unwrap();
    txn.commit(CommitDurability::Sync).unwrap();
    for round in 0..3 {
        let mut txn = store.write().unwrap();
        // Made, changed, renamed and emptied, in the redo area alone or in a checkpoint.
        let (old, new) = (["t", "u"][round % 2], ["u", "t"][round % 2]);
        assert!(txn.rename_tree(old, new).unwrap());
        txn.tree(new).unwrap().delete_range(b"", None).unwrap();
        txn.tree(new).unwrap().put(b"key", &[round as u8; 5 * 1024]).unwrap();
        fill(&mut txn, &format!("new{round}"), 15, 0..2000);
        txn.commit(CommitDurability::Sync).unwrap();
        if round == 1 {
            store.checkpoint().unwrap();
        }
        drop(store);
        fs.power_loss(round as u64);
        store = open(&fs);
        assert_eq!(page_units(&store, new), 5);
        assert_eq!(page_units(&store, &format!("new{round}")), 15);
        assert_eq!(page_units(&store, "default"), 1);
        assert_eq!(store.check().unwrap().extent_count, 0, "a quarter of 5 units lies in the page");
    }
    let mut txn = store.write().unwrap();
    txn.delete_tree("new0").unwrap();
    assert_eq!(txn.tree("new0").unwrap().page_units(), 1, "it is another tree");
}

#[test]
fn a_quarter_of_a_page_and_nearly_half_a_unit_lie_in_it() {
    for units in 1..=15 {
        let store = open(&disk(3));
        let mut txn = store.write().unwrap();
        let mut tree = txn.create_tree("t", options(units)).unwrap();
        let most = (units as usize * 1024).max(1920);
        // Of the longest keys one leaf may have one only, and a branch four.
        for i in 0..40_u8 {
            let key = vec![i; KEY_BYTES_MAX - usize::from(i % 3)];
            tree.put(&key, &vec![i; most]).unwrap();
            tree.put(&key[..9], &vec![i; most]).unwrap();
        }
        let longer = vec![1; most + 1];
        tree.put(b"one", &longer).unwrap();
        tree.put(b"two", &longer).unwrap();
        let mut builder = store.tree_builder_with(options(units)).unwrap();
        builder.push(b"z1", &longer[1..]).unwrap();
        builder.push(b"z2", &longer).unwrap();
        let built = builder.finish().unwrap();
        tree.ingest(b"z", Some(b"z3"), built).unwrap();
        txn.publish().unwrap();
        store.checkpoint().unwrap();
        assert_eq!(store.check().unwrap().extent_count, 3, "{units} units");
        let tree = store.read().tree("t").unwrap().unwrap();
        assert_eq!(tree.get(&[7; 9]).unwrap().unwrap(), vec![7; most]);
        for key in [&b"one"[..], b"two", b"z2"] {
            assert_eq!(tree.get(key).unwrap().unwrap(), longer);
        }
        let mut txn = store.write().unwrap();
        txn.tree("t").unwrap().delete_range(b"", None).unwrap();
        txn.publish().unwrap();
        store.check().unwrap();
    }
}

#[test]
fn longer_pages_make_lower_trees_of_fewer_pages() {
    let fs = disk(4);
    let store = open(&fs);
    let mut txn = store.write().unwrap();
    for units in [1, 4, 15] {
        fill(&mut txn, &format!("{units:02}"), units, 0..30_000);
    }
    txn.publish().unwrap();
    store.checkpoint().unwrap();
    drop(store);
    let file = PageFile::open(&fs, &path()).unwrap();
    assert_eq!(file.check(&mut |_| ()).problems, []);
    let info = file.info();
    let depths: Vec<_> = info.trees.iter().map(|tree| (tree.page_units, tree.depth)).collect();
    assert_eq!(depths, [(1, Some(3)), (4, Some(2)), (15, Some(2))]);
    for tree in &info.trees {
        let page = file.page(tree.root).unwrap();
        assert_eq!((page.units, page.damage), (tree.page_units, None));
        assert!((2..4 << 20).contains(&tree.bytes), "{tree:?}");
    }
}

#[test]
fn pages_of_each_length_are_read_written_and_moved() {
    in_both_modes(|open| {
        for units in [2, 3, 15] {
            let mut store = open();
            let name = format!("t{units}");
            let mut txn = store.write().unwrap();
            fill(&mut txn, &name, units, 0..4000);
            fill(&mut txn, "gone", 1, 0..20_000);
            txn.publish().unwrap();
            store.checkpoint().unwrap();
            let held = store.read();
            for round in 0..20_u32 {
                let mut txn = store.write().unwrap();
                let mut tree = txn.tree(&name).unwrap();
                for key in (round..4000).step_by(37) {
                    tree.put(&key.to_be_bytes(), &[round as u8; 80]).unwrap();
                }
                if round == 5 {
                    txn.delete_tree("gone").unwrap();
                }
                txn.publish().unwrap();
                if round % 4 == 3 {
                    store.checkpoint().unwrap();
                }
            }
            let mut all = held.tree(&name).unwrap().unwrap();
            assert_eq!(values(&all), vec![vec![7; 60]; 4000]);
            drop(held);
            let expected = values(&store.read().tree(&name).unwrap().unwrap());
            while store.reclaim(1 << 20).unwrap() > 0 {}
            while !store.defragment(1 << 20).unwrap().is_done {
                store.checkpoint().unwrap();
            }
            store.checkpoint().unwrap();
            let mut scrub = crate::Scrub::new();
            while !scrub.is_done() {
                store.scrub(&mut scrub, 1 << 20).unwrap();
            }
            drop(all);
            drop(store);
            store = open();
            store.check().unwrap();
            all = store.read().tree(&name).unwrap().unwrap();
            assert!(values(&all) == expected, "{units} units");
        }
    });
}

fn values(tree: &crate::Tree) -> Vec<Vec<u8>> {
    let all = tree.range(..).copied();
    all.map(|entry| entry.unwrap().1).collect()
}

/// A tree whose catalogue entry says that its pages are longer than they are is no tree that the
/// store has made. It is named, and its keys are not lost.
#[test]
fn page_that_is_shorter_than_its_tree_says_is_named() {
    let fs = disk(5);
    let store = open(&fs);
    let mut txn = store.write().unwrap();
    fill(&mut txn, "t", 2, 0..1000);
    txn.tree("t").unwrap().entry.page_size = PageSize::new(3).unwrap();
    txn.publish().unwrap();
    store.checkpoint().unwrap();
    let shorter = "it is shorter than pages of its tree";
    assert!(matches!(store.check(), Err(Error::Corrupt { what, .. }) if what == shorter));
    drop(store);
    let problems = PageFile::open(&fs, &path()).unwrap().check(&mut |_| ()).problems;
    assert!(!problems.is_empty() && problems.iter().all(|p| p.what == shorter), "{problems:?}");
    let (new, arc) = (path().with_file_name("new"), Arc::new(fs.clone()) as _);
    let report = repair(&arc, &path(), &new, false, &mut |_| ()).unwrap();
    assert_eq!((report.keys, report.rescued_keys), (1000, 0));
    let store = PageStore::open_with(arc, &new, crate::Options::default()).unwrap();
    assert_eq!((store.check().unwrap().key_count, page_units(&store, "t")), (1000, 3));
}

#[test]
fn each_flipped_byte_of_a_long_page_is_found() {
    let fs = disk(6);
    let store = open(&fs);
    let mut txn = store.write().unwrap();
    fill(&mut txn, "t", 3, 0..120);
    txn.publish().unwrap();
    store.checkpoint().unwrap();
    let good = values(&store.read().tree("t").unwrap().unwrap());
    drop(store);
    let file = PageFile::open(&fs, &path()).unwrap();
    let root = file.info().trees[0].root;
    assert_eq!((file.page(root).unwrap().units, file.page(root).unwrap().level), (3, 0));
    drop(file);
    for at in 0..3 * 4096 {
        fs.flip_bit(&path(), root * 4096 + at, (at % 8) as u8);
        let store = try_open(&fs).unwrap();
        let is_named = |error| matches!(error, Error::Corrupt { page, .. } if page == root);
        let tree = store.read().tree("t").unwrap().unwrap();
        assert!(tree.get(b"key").is_err_and(is_named), "byte {at}");
        assert!(store.scrub(&mut crate::Scrub::new(), 1 << 20).is_err_and(is_named), "byte {at}");
        fs.flip_bit(&path(), root * 4096 + at, (at % 8) as u8);
    }
    let store = open(&fs);
    assert!(values(&store.read().tree("t").unwrap().unwrap()) == good);
}
