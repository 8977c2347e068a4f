//! Operations on whole trees and ranges against maps: what they leave, what they cost, and that
//! every page is given back in the end.

use std::ops::Bound;
use std::sync::Arc;

use super::model::{Maps, Taste, assert_same, bound, change, within};
use super::{disk, open, path};
use crate::{
    CommitDurability, Error, Options, PageStore, Savepoint, Tree, TreeMut, TreeOptions, WriteTxn,
};

/// Puts keys of one tree, as many as make it a few levels high.
fn fill(store: &PageStore, name: &str, keys: std::ops::Range<u32>, value: &[u8]) {
    let mut txn = store.write().unwrap();
    let mut tree = txn.tree(name).unwrap();
    for key in keys {
        tree.put(&key.to_be_bytes(), value).unwrap();
    }
    txn.publish().unwrap();
}

/// Counts, ranks and sizes of one tree.
fn assert_counts(tree: &Tree, map: &super::model::Map, taste: Taste, rng: &mut fastrand::Rng) {
    for _ in 0..4 {
        let (low, high) = (bound(taste.key(rng), rng), bound(taste.key(rng), rng));
        let keys: Vec<_> = map.keys().filter(|key| within(key, &low, &high)).collect();
        let (low, high) = (low.as_ref().map(Vec::as_slice), high.as_ref().map(Vec::as_slice));
        assert_eq!(tree.count(low, high).unwrap(), keys.len() as u64);
        match tree.split_key(low, high).unwrap() {
            None => assert!(keys.len() < 2),
            Some(key) => assert!(keys[1..].contains(&&key)),
        }
        assert!(tree.bytes(low, high).unwrap() <= tree.bytes(Bound::Unbounded, high).unwrap());
    }
    let n = rng.usize(..=map.len());
    let found = tree.nth(n as u64).unwrap().map(|(key, value)| (key, value.to_vec()));
    assert_eq!(found.as_ref().map(|(k, v)| (k, v)), map.iter().nth(n));
}

/// One step of a transaction; `points` are the savepoints that can be gone back to.
fn step(
    txn: &mut WriteTxn<'_>,
    maps: &mut Maps,
    points: &mut Vec<(Savepoint, Maps)>,
    taste: Taste,
    rng: &mut fastrand::Rng,
) {
    let name = ["a", "b", "c"][rng.usize(..3)];
    match rng.u32(..20) {
        0 => points.push((txn.savepoint(), maps.clone())),
        1 if !points.is_empty() => {
            points.truncate(rng.usize(..points.len()) + 1);
            let (point, then) = points.last().unwrap();
            txn.rollback_to(point).unwrap();
            maps.clone_from(then);
        }
        2 => {
            let keys = maps.remove(name).map(|map| map.len() as u64);
            assert_eq!(txn.delete_tree(name).unwrap(), keys);
        }
        3 => {
            let to = ["a", "b", "c"][rng.usize(..3)];
            let renamed = txn.rename_tree(name, to);
            if name != to && maps.contains_key(to) {
                assert!(matches!(renamed, Err(Error::TreeExists { .. })));
            } else {
                let map = maps.remove(name);
                assert_eq!(renamed.unwrap(), map.is_some());
                maps.extend(map.map(|map| (to.to_owned(), map)));
            }
        }
        4 => {
            let mut tree = taste.tree(txn, name);
            let map = maps.entry(name.to_owned()).or_default();
            for i in 0..rng.u32(..2000) {
                let key = format!("many/{:05}", i * 7 % 3000).into_bytes();
                tree.put(&key, &[i as u8; 30]).unwrap();
                map.insert(key, vec![i as u8; 30]);
            }
        }
        6 => move_keys(txn, maps, name, taste, rng),
        7 => {
            let mut tree = taste.tree(txn, name);
            let map = maps.entry(name.to_owned()).or_default();
            let (key, value) = (taste.key(rng), taste.value(rng));
            let old = map.get(&key).cloned();
            if rng.bool() {
                assert_eq!(tree.insert(&key, &value).unwrap(), old.is_none());
                map.entry(key).or_insert(value);
            } else if rng.bool() {
                tree.put(&key, &value).unwrap();
                map.insert(key, value);
            } else {
                let found = tree.replace(&key, &value).unwrap();
                assert_eq!(found.as_deref(), old.as_deref());
                map.insert(key, value);
            }
        }
        5 => {
            let mut tree = taste.tree(txn, name);
            let map = maps.entry(name.to_owned()).or_default();
            let ends = [rng.u32(..3000), rng.u32(..3000)].map(|i| format!("many/{i:05}"));
            let [start, end] = ends.map(String::into_bytes);
            let before = map.len();
            map.retain(|key, _| *key < start || *key >= end);
            let removed = tree.delete_range(&start, Some(&end)).unwrap();
            assert_eq!(removed, (before - map.len()) as u64);
        }
        _ => {
            let mut tree = taste.tree(txn, name);
            let map = maps.entry(name.to_owned()).or_default();
            for _ in 0..rng.u32(..30) {
                change(&mut tree, map, taste, rng);
            }
        }
    }
}

/// Takes the keys from one on off a tree and puts them behind another, if that can be.
fn move_keys(
    txn: &mut WriteTxn<'_>,
    maps: &mut Maps,
    name: &str,
    taste: Taste,
    rng: &mut fastrand::Rng,
) {
    let key = taste.key(rng);
    let mut tree = taste.tree(txn, name);
    let (part, page_units) = (tree.split_off(&key).unwrap(), tree.page_units());
    let moved = maps.entry(name.to_owned()).or_default().split_off(&key);
    assert_eq!(part.len(), moved.len() as u64);
    assert_eq!(txn.tree(name).unwrap().len(), maps[name].len() as u64);
    let to = ["a", "b", "c"][rng.usize(..3)];
    let mut tree = taste.tree(txn, to);
    let map = maps.entry(to.to_owned()).or_default();
    let fits = map.last_key_value().zip(moved.first_key_value()).is_none_or(|(a, b)| a.0 < b.0);
    let is_alike = tree.page_units() == page_units;
    let appended = tree.append(&part);
    if fits && is_alike {
        appended.unwrap();
        map.extend(moved);
        assert!(matches!(tree.append(&part), Err(Error::Foreign { .. })));
    } else {
        match is_alike {
            true => assert!(matches!(appended, Err(Error::OutOfOrder { .. }))),
            false => assert!(matches!(appended, Err(Error::PageUnitsDiffer { .. }))),
        }
        if rng.bool() {
            txn.tree(name).unwrap().append(&part).unwrap();
            maps.get_mut(name).unwrap().extend(moved);
        }
    }
}

#[test]
fn trees_of_all_heights_are_joined() {
    let store = open(&disk(1));
    let lens = [(1, 1), (1, 9000), (9000, 1), (9000, 9000), (60, 9000), (9000, 60), (0, 5)];
    for (i, (left, right)) in lens.into_iter().cycle().take(2 * lens.len()).enumerate() {
        let mut txn = store.write().unwrap();
        let page_units = if i < lens.len() { 1 } else { 2 };
        txn.create_tree("t", TreeOptions::default().page_units(page_units)).unwrap();
        fill_draft(&mut txn, "t", left + right);
        let mut tree = txn.tree("t").unwrap();
        let part = tree.split_off(&left.to_be_bytes()).unwrap();
        assert_eq!((tree.len(), part.len()), (u64::from(left), u64::from(right)));
        tree.append(&part).unwrap();
        assert_eq!(
            tree.count(Bound::Unbounded, Bound::Unbounded).unwrap(),
            u64::from(left + right)
        );
        txn.publish().unwrap();
        store.check().unwrap();
        assert_eq!(store.read().tree("t").unwrap().unwrap().len(), u64::from(left + right));
        let mut txn = store.write().unwrap();
        txn.delete_tree("t").unwrap();
        txn.publish().unwrap();
    }
    let mut txn = store.write().unwrap();
    fill_draft(&mut txn, "t", 20_000);
    txn.publish().unwrap();
    store.checkpoint().unwrap();
    let mut txn = store.write().unwrap();
    let part = txn.tree("t").unwrap().split_off(&7000_u32.to_be_bytes()).unwrap();
    txn.tree("u").unwrap().append(&part).unwrap();
    txn.publish().unwrap();
    assert!(store.stats().dirty_bytes < 20 * 4096, "{:?}", store.stats());
    assert_eq!(store.stats().deferred_free_bytes, 0);
    assert_eq!(store.check().unwrap().key_count, 20_000);
    let lost = store.write().unwrap().tree("t").unwrap().split_off(b"").unwrap();
    let mut txn = store.write().unwrap();
    let appended = txn.tree("v").unwrap().append(&lost);
    assert!(matches!(appended, Err(Error::Foreign { .. })), "it is of an aborted transaction");
}

#[test]
fn surgery_agrees_with_maps() {
    for seed in 0..12 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let taste = Taste::of(seed);
        let fs = disk(seed);
        let mut store = open(&fs);
        let (mut maps, mut durable) = (Maps::new(), Maps::new());
        let mut held = None;
        for _ in 0..40 {
            match rng.u32(..12) {
                0..7 => {
                    let mut draft = maps.clone();
                    let mut points = Vec::new();
                    let mut txn = store.write().unwrap();
                    for _ in 0..rng.u32(..12) {
                        step(&mut txn, &mut draft, &mut points, taste, &mut rng);
                    }
                    if rng.u32(..4) > 0 {
                        txn.publish().unwrap();
                        maps = draft;
                    }
                }
                7 => {
                    store.reclaim(rng.u64(..1 << 20)).unwrap();
                }
                8 | 9 => {
                    store.checkpoint().unwrap();
                    durable = maps.clone();
                }
                10 => held = Some((store.read(), maps.clone())),
                _ => {
                    held = None;
                    drop(store);
                    store = open(&fs);
                    maps = durable.clone();
                }
            }
            let snapshot = store.read();
            assert_same(&snapshot, &maps);
            for (name, map) in &maps {
                let tree = snapshot.tree(name).unwrap().unwrap();
                assert_counts(&tree, map, taste, &mut rng);
            }
            if let Some((snapshot, maps)) = &held {
                assert_same(snapshot, maps);
            }
            store.check().unwrap();
        }
        drop(held);
        give_all_back(&store, &maps);
    }
}

/// Reclaims all trash and proves that nothing but the trees and their catalogue takes space.
fn give_all_back(store: &PageStore, maps: &Maps) {
    while store.stats().deferred_free_bytes > 0 {
        assert!(store.reclaim(1 << 16).unwrap() > 0);
    }
    store.checkpoint().unwrap();
    let report = store.check().unwrap();
    assert_eq!((report.deferred_free_bytes, report.pending_bytes), (0, 0));
    let snapshot = store.read();
    let sizes = maps.keys().map(|name| {
        let tree = snapshot.tree(name).unwrap().unwrap();
        tree.bytes(Bound::Unbounded, Bound::Unbounded).unwrap()
    });
    // The catalogue and the directory of free space come on top.
    assert!(report.used_bytes <= sizes.sum::<u64>() + 2 * 4096, "{report:?}");
}

#[test]
fn large_range_goes_with_few_pages() {
    let store = open(&disk(1));
    fill(&store, "t", 0..60_000, &[7; 60]);
    store.checkpoint().unwrap();
    let before = store.stats();
    let mut txn = store.write().unwrap();
    let mut tree = txn.tree("t").unwrap();
    let (start, end) = (100_u32.to_be_bytes(), 59_900_u32.to_be_bytes());
    assert_eq!(tree.delete_range(&start, Some(&end)).unwrap(), 59_800);
    assert_eq!(tree.len(), 200);
    txn.publish().unwrap();
    let after = store.stats();
    assert!(after.deferred_free_bytes > 2 << 20, "{after:?}");
    assert!(after.dirty_bytes <= 16 * 4096, "{after:?}");
    assert!(after.pending_bytes <= 400 * 4096, "{after:?}");
    assert_eq!(
        after.reads.read_count, before.reads.read_count,
        "no leaf was read to be given back"
    );
    store.check().unwrap();
    let mut sum = 0;
    while store.stats().deferred_free_bytes > 0 {
        let freed = store.reclaim(64 << 10).unwrap();
        assert!((4096..=1 << 20).contains(&freed), "{freed} bytes at once");
        sum += freed;
    }
    assert!(sum >= after.deferred_free_bytes);
    store.checkpoint().unwrap();
    assert_eq!(store.check().unwrap().key_count, 200);
    assert!(store.stats().free_bytes > 3 << 20);
}

#[test]
fn part_that_is_given_back_at_once_is_a_setting() {
    let trash_of = |options: Options| {
        let store = PageStore::open_with(Arc::new(disk(1)), &path(), options).unwrap();
        fill(&store, "t", 0..12_000, &[7; 60]);
        let mut txn = store.write().unwrap();
        txn.tree("t").unwrap().delete_range(&100_u32.to_be_bytes(), None).unwrap();
        txn.publish().unwrap();
        let deferred_free_bytes = store.stats().deferred_free_bytes;
        store.reclaim(u64::MAX).unwrap();
        assert_eq!(store.stats().deferred_free_bytes, 0);
        store.check().unwrap();
        deferred_free_bytes
    };
    assert_eq!(trash_of(Options::default()), 0);
    let none = trash_of(Options::default().reclaim_at_once_bytes(0));
    assert!(none > 800 << 10, "{none}");
    // The topmost page, and a branch page below it with its leaves.
    let some = trash_of(Options::default().reclaim_at_once_bytes(8192));
    assert!(some > 100 << 10 && some < none - (100 << 10), "{some} of {none}");
}

#[test]
fn trash_outlives_a_crash_and_is_given_back_after_it() {
    let fs = disk(1);
    let store = open(&fs);
    fill(&store, "t", 0..30_000, &[7; 60]);
    fill(&store, "long", 0..500, &[7; 5000]);
    let mut txn = store.write().unwrap();
    assert_eq!(txn.delete_tree("t").unwrap(), Some(30_000));
    assert_eq!(txn.delete_tree("long").unwrap(), Some(500));
    assert_eq!(txn.delete_tree("none").unwrap(), None);
    txn.publish().unwrap();
    store.checkpoint().unwrap();
    let deferred_free_bytes = store.stats().deferred_free_bytes;
    assert!(deferred_free_bytes > 2 << 20);
    drop(store);
    fs.power_loss(1);
    let store = open(&fs);
    assert_eq!(store.stats().deferred_free_bytes, deferred_free_bytes);
    assert_eq!(store.check().unwrap().deferred_free_bytes, deferred_free_bytes);
    assert_eq!(store.reclaim(u64::MAX).unwrap(), deferred_free_bytes);
    give_all_back(&store, &Maps::new());
}

#[test]
fn surgery_is_durable_when_it_is_synced() {
    let fs = disk(1);
    let store = open(&fs);
    fill(&store, "t", 0..30_000, &[7; 60]);
    fill(&store, "u", 0..30_000, &[7; 60]);
    store.checkpoint().unwrap();
    store.write().unwrap().commit(CommitDurability::Sync).unwrap();
    let sync = |change: &dyn Fn(&mut WriteTxn<'_>)| {
        let mut txn = store.write().unwrap();
        change(&mut txn);
        txn.commit(CommitDurability::Sync).unwrap();
    };
    sync(&|txn| {
        let part = txn.tree("u").unwrap().split_off(&100_u32.to_be_bytes()).unwrap();
        txn.tree("w").unwrap().append(&part).unwrap();
    });
    sync(&|txn| {
        let mut tree = txn.tree("t").unwrap();
        assert_eq!(tree.delete_range(&10_u32.to_be_bytes(), None).unwrap(), 29_990);
    });
    sync(&|txn| {
        let point = txn.savepoint();
        fill_draft(txn, "none", 10);
        txn.rollback_to(&point).unwrap();
        assert!(txn.rename_tree("u", "v").unwrap());
    });
    sync(&|txn| assert_eq!(txn.delete_tree("w").unwrap(), Some(29_900)));
    sync(&|txn| txn.tree("t").unwrap().put(b"z", &[3; 9000]).unwrap());
    drop(store);
    fs.power_loss(1);
    let store = open(&fs);
    store.check().unwrap();
    let snapshot = store.read();
    assert_eq!(snapshot.tree_names().unwrap(), ["t", "v"]);
    let tree = snapshot.tree("t").unwrap().unwrap();
    assert_eq!((tree.len(), snapshot.tree("v").unwrap().unwrap().len()), (11, 100));
    assert!(store.stats().deferred_free_bytes > 0);
    assert_eq!(tree.get(b"z").unwrap().unwrap(), [3; 9000]);
}

#[test]
fn transactions_give_back_more_than_they_take() {
    for page_units in [1, 15] {
        let store = open(&disk(1));
        let mut txn = store.write().unwrap();
        txn.create_tree("t", TreeOptions::default().page_units(page_units)).unwrap();
        txn.publish().unwrap();
        for round in 0..60_u32 {
            let mut txn = store.write().unwrap();
            let mut tree = txn.tree("t").unwrap();
            tree.delete_range(b"", None).unwrap();
            for key in 0..5000_u32 {
                tree.put(&(key * 7 + round).to_be_bytes(), &[7; 100]).unwrap();
            }
            txn.publish().unwrap();
        }
        let stats = store.stats();
        assert!(stats.span_bytes < 5 << 20, "{stats:?}");
        store.check().unwrap();
    }
}

#[test]
fn rotten_garbage_stops_nobody_and_is_named() {
    let fs = disk(1);
    let store = open(&fs);
    fill(&store, "t", 0..30_000, &[7; 60]);
    fill(&store, "u", 0..10, &[7; 60]);
    store.checkpoint().unwrap();
    drop(store);
    let store = open(&fs);
    let mut txn = store.write().unwrap();
    txn.delete_tree("t").unwrap();
    txn.publish().unwrap();
    store.checkpoint().unwrap();
    let deferred_free_bytes = store.stats().deferred_free_bytes;
    drop(store);
    let span_bytes = open(&fs).stats().span_bytes;
    let mut found = 0;
    for unit in 2..span_bytes / 4096 {
        fs.flip_bit(&super::path(), unit * 4096 + 2000, 3);
        let Ok(store) = super::try_open(&fs) else {
            fs.flip_bit(&super::path(), unit * 4096 + 2000, 3);
            continue;
        };
        if store.stats().deferred_free_bytes == deferred_free_bytes
            && store.read().tree("u").is_ok()
        {
            match store.reclaim(u64::MAX) {
                Ok(_) => {}
                Err(Error::Corrupt { page, .. }) => {
                    assert_eq!(page, unit);
                    found += 1;
                    for key in 0..100_u32 {
                        let mut txn = store.write().unwrap();
                        txn.tree("v").unwrap().put(&key.to_be_bytes(), b"v").unwrap();
                        txn.publish().unwrap();
                    }
                    assert!(matches!(store.check(), Err(Error::Corrupt { .. })));
                }
                Err(error) => panic!("{error}"),
            }
        }
        drop(store);
        fs.flip_bit(&super::path(), unit * 4096 + 2000, 3);
    }
    assert!(found >= 2, "{found} found");
}

fn put(tree: &mut TreeMut<'_>, key: &str, value: &str) {
    tree.put(key.as_bytes(), value.as_bytes()).unwrap();
}

#[test]
fn savepoints_bring_back_trees_mark_and_space() {
    let store = open(&disk(1));
    fill(&store, "t", 0..5000, &[1; 100]);
    let mut txn = store.write().unwrap();
    put(&mut txn.tree("t").unwrap(), "before", "1");
    txn.set_commit_metadata(b"first");
    let first = txn.savepoint();
    txn.set_commit_metadata(b"second");
    put(&mut txn.tree("t").unwrap(), "before", "2");
    txn.tree("t").unwrap().put(b"long", &[1; 9000]).unwrap();
    let second = txn.savepoint();
    assert_eq!(txn.tree("t").unwrap().delete_range(b"", None).unwrap(), 5002);
    fill_draft(&mut txn, "new", 3000);
    txn.rollback_to(&second).unwrap();
    assert_eq!(txn.tree("t").unwrap().get(b"long").unwrap().unwrap(), [1; 9000]);
    assert_eq!(txn.tree("t").unwrap().get(b"before").unwrap().unwrap(), b"2");
    txn.rollback_to(&first).unwrap();
    assert!(matches!(txn.rollback_to(&second), Err(Error::Foreign { .. })));
    fill_draft(&mut txn, "t", 500);
    txn.rollback_to(&first).unwrap();
    assert_eq!(txn.tree("t").unwrap().len(), 5001);
    assert_eq!(txn.tree("t").unwrap().get(b"before").unwrap().unwrap(), b"1");
    txn.publish().unwrap();
    let snapshot = store.read();
    assert_eq!(
        (snapshot.commit_metadata(), snapshot.tree_names().unwrap()),
        (&b"first"[..], vec!["t".into()])
    );
    store.checkpoint().unwrap();
    assert_eq!(store.check().unwrap().key_count, 5001);
    let mut other = store.write().unwrap();
    assert!(matches!(other.rollback_to(&first), Err(Error::Foreign { .. })));
}

fn fill_draft(txn: &mut WriteTxn<'_>, name: &str, keys: u32) {
    let mut tree = txn.tree(name).unwrap();
    for key in 0..keys {
        tree.put(&key.to_be_bytes(), &[3; 60]).unwrap();
    }
}
