//! Space and memory of a store: how much it takes, and when it is freed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{disk, in_both_modes, open, path};
use crate::page::layout::{GROUP_UNITS, HEAD_UNITS};
use crate::page::{UNIT_BYTES, UNIT_COUNT_MAX};
use crate::space::freelist::Freelist;
use crate::{Error, KEY_BYTES_MAX, NAME_BYTES_MAX, Options, PageStore, VALUE_BYTES_MAX};

fn put(store: &PageStore, key: u32, value: &[u8]) {
    let mut txn = store.write().unwrap();
    txn.tree("t").unwrap().put(&key.to_be_bytes(), value).unwrap();
    txn.publish().unwrap();
}

#[test]
fn pages_that_die_young_are_used_again_at_once() {
    let fs = disk(1);
    let store = open(&fs);
    put(&store, 1, b"x");
    store.checkpoint().unwrap();
    let (writes, span_bytes) = (fs.operations(), store.stats().span_bytes);
    for i in 0..1000 {
        put(&store, i % 10, &i.to_be_bytes());
    }
    let stats = store.stats();
    assert_eq!(fs.operations(), writes, "publishing touches no file");
    assert!(stats.span_bytes <= span_bytes + 4 * 4096, "{stats:?}");
    assert_eq!(stats.dirty_bytes, 2 * 4096, "a leaf and the catalogue");
    assert_eq!(stats.pending_bytes, 2 * 4096, "what the durable root needs");
    store.checkpoint().unwrap();
    assert_eq!(store.stats().pending_bytes, 0);
    store.check().unwrap();
}

#[test]
fn old_snapshot_pins_only_what_it_sees() {
    let store = open(&disk(1));
    for i in 0..500 {
        put(&store, i, &[1; 100]);
    }
    let old = store.read();
    let used = store.check().unwrap().used_bytes;
    for i in 0..3000 {
        put(&store, i % 500, &[2; 100]);
        if i % 700 == 0 {
            store.checkpoint().unwrap();
        }
    }
    store.checkpoint().unwrap();
    let stats = store.stats();
    assert!(stats.pending_bytes <= used + 4096 && stats.pending_bytes > 0, "{stats:?} {used}");
    drop(old.clone());
    assert_eq!(store.stats().pending_bytes, stats.pending_bytes);
    drop(old);
    assert_eq!(store.stats().pending_bytes, 0);
    store.check().unwrap();
}

/// Puts as many values of a unit each.
fn fill(store: &PageStore, value: u8) {
    let mut txn = store.write().unwrap();
    for key in 0..5000_u32 {
        txn.tree("t").unwrap().put(&key.to_be_bytes(), &[value; 2000]).unwrap();
    }
    txn.publish().unwrap();
}

/// The count of ended things that a transaction of one put may look at.
const LOOKED_AT_MAX: u64 = 64 + 64 + 4 * 10;

#[test]
fn who_pinned_much_is_let_go_a_part_at_a_time() {
    in_both_modes(|open| {
        let store = open();
        fill(&store, 1);
        store.checkpoint().unwrap();
        let old = store.read();
        fill(&store, 2);
        store.checkpoint().unwrap();
        let waiting = || store.shared().space.lock().pending.units();
        let all = waiting();
        assert!(all > 5000, "{all}");
        drop(old);
        let mut transactions = 0;
        while waiting() > 10 {
            let before = waiting();
            put(&store, 1, b"x");
            let freed = before.saturating_sub(waiting());
            assert!(freed <= LOOKED_AT_MAX, "{freed}");
            transactions += 1;
        }
        // The pages of the last checkpoint are looked at as well.
        assert!(transactions > all / LOOKED_AT_MAX && transactions < all / 32, "{transactions}");
        let free = store.stats().free_bytes;
        assert!(free >= all * 4096, "{free} of {all} units");
        store.check().unwrap();
    });
}

#[test]
fn what_a_checkpoint_wrote_is_let_go_a_part_at_a_time() {
    let store = open(&disk(1));
    fill(&store, 1);
    store.checkpoint().unwrap();
    let retired = || store.shared().space.lock().retired_bytes();
    let all = retired();
    assert!(all >= 5000 * 2000, "the last root may still be read: {all}");
    put(&store, 1, b"x");
    let left = retired();
    assert!(left < all && left + LOOKED_AT_MAX * 4096 >= all, "{left} of {all}");
    for _ in 0..5000 / 64 + 5 {
        put(&store, 1, b"x");
    }
    assert_eq!(retired(), 0);
    store.check().unwrap();
}

#[test]
fn dropped_transaction_leaves_nothing() {
    let store = open(&disk(1));
    put(&store, 1, b"x");
    let before = store.check().unwrap();
    let mut txn = store.write().unwrap();
    for i in 0..2000_u32 {
        txn.tree("t").unwrap().put(&i.to_be_bytes(), &vec![7; i as usize * 3]).unwrap();
    }
    txn.tree("other").unwrap().put(b"a", b"b").unwrap();
    txn.tree("t").unwrap().delete_range(b"", None).unwrap();
    drop(txn);
    let after = store.check().unwrap();
    assert_eq!((after.used_bytes, after.pending_bytes), (before.used_bytes, before.pending_bytes));
    assert_eq!(store.read().tree_names().unwrap(), ["t"]);
    let txid = store.read().txid();
    assert_eq!(store.write().unwrap().publish().unwrap(), txid, "nothing to publish");
}

#[test]
fn emptied_tree_gives_everything_back() {
    let store = open(&disk(1));
    put(&store, 1, b"x");
    let before = store.check().unwrap();
    let mut txn = store.write().unwrap();
    let mut tree = txn.tree("t").unwrap();
    for i in 0..3000_u32 {
        tree.put(&i.to_be_bytes(), &[7; 90]).unwrap();
    }
    for i in (2..3000_u32).rev() {
        assert!(tree.delete(&i.to_be_bytes()).unwrap());
    }
    assert!(!tree.delete(&5_u32.to_be_bytes()).unwrap());
    assert!(tree.delete(&0_u32.to_be_bytes()).unwrap());
    txn.publish().unwrap();
    let after = store.check().unwrap();
    assert_eq!((after.used_bytes, after.key_count), (before.used_bytes, 1));
}

#[test]
fn cache_keeps_its_limit() {
    let fs = disk(1);
    let store = open(&fs);
    let mut txn = store.write().unwrap();
    for i in 0..30_000_u32 {
        txn.tree("t").unwrap().put(&i.to_be_bytes(), &[7; 100]).unwrap();
    }
    txn.publish().unwrap();
    store.checkpoint().unwrap();
    drop(store);
    let options = Options::default().cache_bytes(1 << 20);
    let store = PageStore::open_with(Arc::new(fs), &path(), options).unwrap();
    let tree = store.read().tree("t").unwrap().unwrap();
    for i in 0..30_000_u32 {
        assert!(tree.get(&(i.wrapping_mul(7919) % 30_000).to_be_bytes()).unwrap().is_some());
        assert!(store.stats().reads.cached_bytes <= (1 << 20) + 4096);
    }
    let reads = store.stats().reads.read_count;
    assert!(reads > 1000, "{reads} reads: the cache was never full");
    for _ in 0..100 {
        tree.get(&5_u32.to_be_bytes()).unwrap();
    }
    assert!(store.stats().reads.read_count <= reads + 4, "what is read again and again stays");
}

#[test]
fn limits_are_refused_precisely() {
    let store = open(&disk(1));
    let mut txn = store.write().unwrap();
    let mut tree = txn.tree("t").unwrap();
    let longest = vec![b'k'; KEY_BYTES_MAX];
    tree.put(&longest, &vec![1; VALUE_BYTES_MAX]).unwrap();
    tree.put(b"", b"").unwrap();
    let too_long = tree.put(&[&longest[..], b"k"].concat(), b"");
    assert!(matches!(too_long, Err(Error::TooLarge { what: "a key", .. })));
    let too_long = tree.put(b"k", &vec![1; VALUE_BYTES_MAX + 1]);
    assert!(matches!(too_long, Err(Error::TooLarge { what: "a value", .. })));
    assert_eq!(tree.get(&longest).unwrap().unwrap().len(), VALUE_BYTES_MAX);
    assert!(txn.tree(&"n".repeat(NAME_BYTES_MAX + 1)).is_err());
    txn.publish().unwrap();
    let mut txn = store.write().unwrap();
    txn.set_commit_metadata(&[1; 65]);
    assert!(matches!(txn.publish(), Err(Error::TooLarge { what: "a mark", .. })));
    store.checkpoint().unwrap();
    assert_eq!(store.check().unwrap().extent_count, 1);
}

#[test]
fn second_opener_is_turned_away() {
    let fs = disk(1);
    let store = open(&fs);
    assert!(matches!(super::try_open(&fs), Err(Error::Locked)));
    let snapshot = store.read();
    drop(store);
    assert!(matches!(super::try_open(&fs), Err(Error::Locked)), "a snapshot is still held");
    drop(snapshot);
    open(&fs);
}

#[test]
fn redo_area_without_room_for_a_directory_is_let_go() {
    let fs = disk(1);
    let options = Options::default().growth_bytes(64 << 10).redo_bytes(64 << 10);
    let store = PageStore::open_with(Arc::new(fs), &path(), options).unwrap();
    put(&store, 1, b"x");
    let shared = store.shared();
    let (end, used, reserved) = {
        let mut space = shared.space.lock();
        let before = (space.freelist.end(), space.used_units(0));
        // All up to the limit of a file is in use but as many units as the area has.
        let area = space.allocate(16).unwrap();
        let group = (GROUP_UNITS - HEAD_UNITS) as u32;
        for units in [group].into_iter().chain((0..15).rev().map(|bit| 1 << bit)) {
            while space.allocate(units).is_ok() {}
        }
        space.release(area);
        let far = UNIT_COUNT_MAX * 2 * UNIT_BYTES as u64;
        (before.0, before.1, shared.counters.file_bytes.swap(far, Ordering::Relaxed))
    };
    let error = store.sync().unwrap_err();
    assert!(matches!(error, Error::Io(_)), "{error}");
    {
        let mut space = shared.space.lock();
        assert_eq!((space.freelist.free_units(), space.used_units(0)), (16, used));
        space.freelist = Freelist::restore(&space.published, end);
        shared.counters.file_bytes.store(reserved, Ordering::Relaxed);
    }
    assert_eq!(store.sync().unwrap(), store.read().txid());
    assert!(shared.redo.ring_use().is_some());
    store.check().unwrap();
}
