//! Readers, the writer and the checkpoint on threads. No test waits for a clock.

use std::sync::atomic::{AtomicBool, Ordering};

use super::{disk, in_both_modes, open};
use crate::{PageStore, Snapshot};

const KEYS: u64 = 400;

/// Writes `round` under every key of two trees, with values that a page does not hold together.
fn write_round(store: &PageStore, round: u64) {
    let mut txn = store.write().unwrap();
    for name in ["first", "second"] {
        let mut tree = txn.tree(name).unwrap();
        for key in (round % 7..KEYS).step_by(7) {
            tree.put(&key.to_be_bytes(), &value(round)).unwrap();
        }
        tree.put(b"long", &vec![round as u8; 9000]).unwrap();
    }
    txn.set_commit_metadata(&round.to_be_bytes());
    txn.publish().unwrap();
}

fn value(round: u64) -> Vec<u8> {
    round.to_be_bytes().repeat(40)
}

/// Proves that both trees are of the round that the mark names.
fn assert_whole(snapshot: &Snapshot) {
    let Ok(round) = <[u8; 8]>::try_from(snapshot.commit_metadata()) else { return };
    let round = u64::from_be_bytes(round);
    for name in ["first", "second"] {
        let tree = snapshot.tree(name).unwrap().expect("both are made in round 0");
        assert_eq!(tree.get(b"long").unwrap().unwrap(), vec![round as u8; 9000]);
        let mut entries = tree.range(..b"long".as_slice());
        while let Some((key, found)) = entries.next().unwrap() {
            let key = u64::from_be_bytes(key.try_into().unwrap());
            let wrote = round - (round + 7 - key % 7) % 7;
            assert_eq!(found, value(wrote), "key {key} in round {round}");
        }
    }
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn readers_see_whole_rounds_during_writes_and_checkpoints() {
    in_both_modes(read_while_writing);
}

fn read_while_writing(open: &dyn Fn() -> PageStore) {
    let store = open();
    for round in 0..7 {
        write_round(&store, round);
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Also if the writer panics: else the others would go on for ever.
        let _end = SetOnDrop(&done);
        for _ in 0..2 {
            scope.spawn(|| {
                let mut held = Vec::new();
                while !done.load(Ordering::Relaxed) {
                    let snapshot = store.read();
                    assert_whole(&snapshot);
                    held.push(snapshot);
                    if held.len() == 4 {
                        assert_whole(&held.swap_remove(0));
                    }
                }
            });
        }
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let checkpoint = store.checkpoint().unwrap();
                assert!(checkpoint.txid <= store.read().txid());
            }
        });
        for round in 7..150 {
            write_round(&store, round);
            if round % 50 == 0 {
                store.check().unwrap();
            }
        }
    });
    store.check().unwrap();
    store.checkpoint().unwrap();
    let stats = store.stats();
    assert_eq!((stats.root_count, stats.pending_bytes), (1, 0), "all snapshots have ended");
    drop(store);
    assert_whole(&open().read());
}

#[test]
fn scan_in_the_middle_holds_nobody_up() {
    let store = open(&disk(1));
    for round in 0..7 {
        write_round(&store, round);
    }
    store.checkpoint().unwrap();
    let tree = store.read().tree("first").unwrap().unwrap();
    let mut scan = tree.range(..b"long".as_slice());
    let mut count = 0;
    // All in one thread: whoever waited for the scan would wait for ever.
    for round in 7..50 {
        for _ in 0..5 {
            scan.next().unwrap().unwrap();
            count += 1;
        }
        write_round(&store, round);
        assert_whole(&store.read());
        if round % 5 == 0 {
            store.checkpoint().unwrap();
        }
        let txn = store.write().unwrap();
        store.checkpoint().unwrap();
        drop(txn);
    }
    assert_eq!(count + scan.copied().count() as u64, KEYS);
}
