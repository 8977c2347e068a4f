//! Online defragmentation: pages move, and nothing is lost meanwhile.

use std::collections::BTreeMap;

use super::{disk, open, try_open};
use crate::shared::defrag_cursor::{DefragCursor, DefragPart};
use crate::tree::RelocateBudget;
use crate::{Error, PageStore, TreeOptions};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// Puts many keys into two trees and deletes most of them, so that the file is full of holes.
fn holes(store: &PageStore, seed: u64, rounds: u32) -> Map {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut map = Map::new();
    for round in 0..rounds {
        let mut txn = store.write().unwrap();
        for i in 0..300_u32 {
            let key = (i * 7919 % 300 + round * 300).to_be_bytes();
            let len = if i % 10 == 0 { rng.usize(1100..20_000) } else { rng.usize(..400) };
            let value = vec![rng.u8(..); len];
            txn.tree(["a", "b"][i as usize % 2]).unwrap().put(&key, &value).unwrap();
            map.insert(key.to_vec(), value);
        }
        txn.publish().unwrap();
        store.checkpoint().unwrap();
    }
    let mut txn = store.write().unwrap();
    for key in map.keys() {
        // The later ones mostly stay, so that what is left lies at the end.
        let number = u32::from_be_bytes(key[..].try_into().unwrap());
        if rng.u32(..rounds * 300) > number / 2 {
            let name = if txn.tree("a").unwrap().delete(key).unwrap() { "a" } else { "b" };
            assert!(name == "a" || txn.tree("b").unwrap().delete(key).unwrap());
        }
    }
    let mut left = Map::new();
    for (key, value) in map {
        let there = ["a", "b"].map(|name| txn.tree(name).unwrap().get(&key).unwrap().is_some());
        if there.contains(&true) {
            left.insert(key, value);
        }
    }
    txn.publish().unwrap();
    store.checkpoint().unwrap();
    left
}

fn assert_same(store: &PageStore, map: &Map) {
    let snapshot = store.read();
    let mut count = 0;
    for name in ["a", "b"] {
        let Some(tree) = snapshot.tree(name).unwrap() else { continue };
        let mut all = tree.range(..);
        while let Some((key, value)) = all.next().unwrap() {
            assert_eq!(map.get(key).map(Vec::as_slice), Some(value));
            count += 1;
        }
    }
    assert_eq!(count, map.len());
}

/// All that checkpoints have found to be spare goes back to the file system.
fn trim_punch(store: &PageStore) -> Result<(), Error> {
    while store.trim_punch()? {}
    Ok(())
}

/// Used bytes and the length of the file.
fn sizes(store: &PageStore) -> (u64, u64) {
    (store.check().unwrap().used_bytes, store.stats().file_bytes)
}

#[test]
fn file_ends_near_what_is_used() {
    for seed in 0..4 {
        let store = open(&disk(seed));
        let mut map = holes(&store, seed, 12);
        let (used, before) = sizes(&store);
        assert!(before > 2 * used, "{before} {used}");
        let reader = store.read();
        let mut calls = 0;
        let mut moved = 0;
        loop {
            let report = store.defragment(40_000).unwrap();
            // A call goes over its budget by one value at most.
            assert!(report.moved_bytes <= 40_000 + 20_000 + 4096, "{report:?}");
            moved += report.moved_bytes;
            calls += 1;
            assert!(calls < 2000, "{report:?}");
            if calls % 8 == 0 {
                // Others write meanwhile.
                let mut txn = store.write().unwrap();
                let (key, value) = (vec![9, calls as u8], vec![7; 3000]);
                txn.tree("a").unwrap().put(&key, &value).unwrap();
                txn.publish().unwrap();
                map.insert(key, value);
                store.checkpoint().unwrap();
            }
            if report.is_done {
                assert_eq!(report.left_bytes, 0, "{report:?}");
                break;
            }
        }
        assert!(moved > 0 && calls > 3, "{calls} calls moved {moved} bytes");
        assert_same(&store, &map);
        store.check().unwrap();
        drop(reader);
        store.checkpoint().unwrap();
        store.checkpoint().unwrap();
        trim_punch(&store).unwrap();
        let (used, file) = sizes(&store);
        // The step of growth, 64 KiB, and room for the largest directory are reserved behind it.
        assert!(file <= used + used / 5 + (200 << 10), "{file} bytes for {used}");
        assert!(store.defragment(1 << 30).unwrap().is_done);
        assert!(store.defragment(1 << 30).unwrap().is_done);
        assert_same(&store, &map);
    }
}

#[test]
fn nothing_is_done_where_nothing_is_gained() {
    let store = open(&disk(1));
    let mut txn = store.write().unwrap();
    txn.tree("a").unwrap().put(b"k", &[1; 90_000]).unwrap();
    txn.publish().unwrap();
    store.checkpoint().unwrap();
    let txid = store.read().txid();
    let report = store.defragment(1 << 20).unwrap();
    assert!(report.is_done && report.moved_bytes == 0 && report.left_bytes == 0, "{report:?}");
    assert_eq!(store.read().txid(), txid);
}

fn defragment(store: &PageStore) -> Result<(), Error> {
    for call in 0..400 {
        let done = store.defragment(60_000)?.is_done;
        if call % 3 == 2 || done {
            store.checkpoint()?;
            // Some of it now, the rest whenever.
            store.trim_punch()?;
        }
        if done {
            break;
        }
    }
    store.checkpoint()?;
    store.checkpoint()?;
    trim_punch(store)
}

#[test]
fn power_goes_while_pages_move() {
    for cut in 1.. {
        let fs = disk(cut);
        let store = open(&fs);
        let map = holes(&store, 5, 3);
        let before = store.stats().file_bytes;
        fs.cut_power_after(cut);
        let done = defragment(&store).is_ok();
        let trimmed =
            store.stats().trim_punch.trimmed_bytes > 0 && store.stats().file_bytes < before;
        assert!(!done || trimmed, "{:?}", store.stats());
        drop(store);
        fs.power_loss(cut);
        let store = try_open(&fs).unwrap();
        store.check().unwrap();
        assert_same(&store, &map);
        // It goes on from wherever it was.
        defragment(&store).unwrap();
        store.check().unwrap();
        assert_same(&store, &map);
        if done {
            break;
        }
    }
}

#[test]
fn trees_without_pages_are_not_all_looked_at_in_one_step() {
    let store = open(&disk(5));
    let mut txn = store.write().unwrap();
    for i in 0..50 {
        txn.create_tree(&format!("t/{i:02}"), TreeOptions::default()).unwrap();
    }
    txn.publish().unwrap();
    let mut txn = store.write().unwrap();
    let mut at = DefragCursor { part: DefragPart::Trees(String::new()), key: Vec::new() };
    for step in 1..5 {
        let mut budget = RelocateBudget { limit: u64::MAX, bytes: 1, pages: 10, moved_bytes: 0 };
        at = txn.relocate(at, &mut budget).unwrap().expect("there are more");
        let last = format!("t/{:02}\0", step * 10 - 1);
        assert!(matches!(&at.part, DefragPart::Trees(from) if *from == last), "{at:?}");
    }
}
