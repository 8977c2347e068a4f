//! Memory that only old snapshots need goes to a temporary file, and no reader sees a difference.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flotilla_vfs::FileSystem;
use flotilla_vfs::fault::TemporaryFault;
use flotilla_vfs::hooked::{HookedFs, Operation};
use flotilla_vfs::os::OsFs;

use crate::{Error, Options, PageStore, Tree, ValueRef};

type Rows = BTreeMap<u32, Vec<u8>>;

fn open(dir: &std::path::Path, old_version_bytes: u64) -> PageStore {
    let options = Options::default().old_version_bytes(old_version_bytes).checkpoint_interval(None);
    PageStore::open_with(Arc::new(OsFs::new()), &dir.join("pages"), options).unwrap()
}

/// Changes rows by some transactions, of short values and of long ones.
fn change(store: &PageStore, rows: &mut Rows, rng: &mut fastrand::Rng, count: u32) {
    for _ in 0..count {
        let mut txn = store.write().unwrap();
        let mut tree = txn.tree("t").unwrap();
        for _ in 0..40 {
            let key = rng.u32(..6000);
            let len = if rng.u8(..20) == 0 { rng.usize(3000..20_000) } else { 300 };
            let value = vec![rng.u8(..); len];
            tree.put(&key.to_be_bytes(), &value).unwrap();
            rows.insert(key, value);
        }
        txn.publish().unwrap();
    }
}

fn assert_is(tree: &Tree, rows: &Rows) {
    let mut range = tree.range(..);
    for (key, value) in rows {
        let (found, bytes) = range.next().unwrap().expect("another row");
        assert_eq!((found, bytes), (&key.to_be_bytes()[..], &value[..]));
    }
    assert!(range.next().unwrap().is_none());
}

#[test]
fn old_snapshots_see_the_same_when_their_memory_is_spilled() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 0);
    let (mut rows, mut rng) = (Rows::new(), fastrand::Rng::with_seed(1));
    change(&store, &mut rows, &mut rng, 100);
    store.checkpoint().unwrap();
    let mut held: Vec<(Tree, Rows)> = Vec::new();
    for _ in 0..8 {
        held.push((store.read().tree("t").unwrap().unwrap(), rows.clone()));
        change(&store, &mut rows, &mut rng, 60);
        held.push((store.read().tree("t").unwrap().unwrap(), rows.clone()));
        change(&store, &mut rows, &mut rng, 60);
        store.checkpoint().unwrap();
    }
    // Borrowed before the rest is spilled, and looked at behind it.
    let borrowed: Vec<(ValueRef<'_>, &Vec<u8>)> = (held.iter())
        .flat_map(|(tree, rows)| {
            let some = rows.iter().step_by(50);
            some.map(|(key, value)| (tree.get(&key.to_be_bytes()).unwrap().unwrap(), value))
        })
        .collect();
    for _ in 0..4 {
        change(&store, &mut rows, &mut rng, 60);
        store.checkpoint().unwrap();
    }
    let spill = store.stats().spill;
    assert!(spill.spilled_bytes > 20 << 20 && spill.error_count == 0, "{spill:?}");
    assert!(spill.old_version_bytes < spill.spilled_bytes, "{spill:?}");
    assert!(std::fs::exists(dir.path().join("pages.spill")).is_ok_and(|exists| !exists));
    assert!(borrowed.iter().all(|(found, value)| **found == value[..]));
    drop(borrowed);
    for (tree, rows) in &held {
        assert_is(tree, rows);
    }
    store.check().unwrap();
    // Every other one first: what the others see stays.
    let mut number = 0;
    held.retain(|_| {
        number += 1;
        number % 2 == 0
    });
    change(&store, &mut rows, &mut rng, 60);
    store.checkpoint().unwrap();
    for (tree, rows) in &held {
        assert_is(tree, rows);
    }
    drop(held);
    for _ in 0..3 {
        change(&store, &mut rows, &mut rng, 60);
        store.checkpoint().unwrap();
    }
    assert_is(&store.read().tree("t").unwrap().unwrap(), &rows);
    assert_eq!((store.stats().spill.spilled_bytes, store.stats().spill.file_bytes), (0, 0));
    store.check().unwrap();
}

#[test]
fn readers_and_writers_go_on_while_memory_is_spilled() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 0);
    let (mut rows, mut rng) = (Rows::new(), fastrand::Rng::with_seed(2));
    change(&store, &mut rows, &mut rng, 100);
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut held = std::collections::VecDeque::new();
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    let tree = store.read().tree("t").unwrap().unwrap();
                    let seen = sums(&tree);
                    held.push_back((tree, seen));
                    if held.len() > 6 {
                        let (tree, seen) = held.pop_front().unwrap();
                        assert_eq!(sums(&tree), seen);
                    }
                }
            });
        }
        scope.spawn(|| {
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                store.checkpoint().unwrap();
            }
        });
        let mut changes = 0;
        // The other threads may not have run yet.
        while changes < 40 || store.stats().spill.written_bytes == 0 {
            assert!(changes < 100_000, "nothing is spilled");
            change(&store, &mut rows, &mut rng, 20);
            changes += 1;
            std::thread::yield_now();
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_is(&store.read().tree("t").unwrap().unwrap(), &rows);
    store.check().unwrap();
}

fn sums(tree: &Tree) -> (u64, u64) {
    let (mut range, mut sum, mut count) = (tree.range(..), 0, 0);
    while let Some((_, value)) = range.next().unwrap() {
        sum += value.iter().map(|&byte| u64::from(byte)).sum::<u64>();
        count += 1;
    }
    (sum, count)
}

#[test]
#[cfg(not(any(miri, shuttle)))]
fn few_pages_are_spilled_if_none_may_stay_unless_the_disk_refuses_it() {
    let fs = super::disk(1);
    if !fs.can_remap() {
        return;
    }
    let options = Options::default().old_version_bytes(0).checkpoint_interval(None);
    let store = PageStore::open_with(Arc::new(fs.clone()), &super::path(), options).unwrap();
    let (mut rows, mut rng) = (Rows::new(), fastrand::Rng::with_seed(6));
    let mut held = Vec::new();
    for (count, fault) in TemporaryFault::ALL.into_iter().enumerate() {
        for _ in 0..2 {
            fs.fail_temporary(Some(fault));
            change(&store, &mut rows, &mut rng, 1);
            held.push((store.read().tree("t").unwrap().unwrap(), rows.clone()));
            change(&store, &mut rows, &mut rng, 1);
            store.checkpoint().unwrap();
        }
        let refused = store.stats().spill;
        assert!(refused.error_count > count as u64, "{fault:?}: {refused:?}");
        held.iter().for_each(|(tree, rows)| assert_is(tree, rows));
        fs.fail_temporary(None);
        change(&store, &mut rows, &mut rng, 1);
        store.checkpoint().unwrap();
        let spill = store.stats().spill;
        assert_eq!(spill.error_count, refused.error_count);
        assert!(spill.written_bytes > refused.written_bytes, "{fault:?}: {spill:?}");
        held.iter().for_each(|(tree, rows)| assert_is(tree, rows));
    }
    let spill = store.stats().spill;
    // Pages that the last checkpoint has written stay until the next transaction.
    assert!(spill.old_version_bytes < 1 << 20 && spill.spilled_bytes > 0, "{spill:?}");
    store.check().unwrap();
    drop(held);
    for _ in 0..2 {
        change(&store, &mut rows, &mut rng, 1);
        store.checkpoint().unwrap();
    }
    assert_eq!(store.stats().spill.file_bytes, 0);
    assert_is(&store.read().tree("t").unwrap().unwrap(), &rows);
}

#[test]
fn without_old_snapshots_nothing_is_spilled() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 0);
    let (mut rows, mut rng) = (Rows::new(), fastrand::Rng::with_seed(3));
    for _ in 0..5 {
        change(&store, &mut rows, &mut rng, 100);
        store.checkpoint().unwrap();
        store.maintain(Duration::ZERO).unwrap();
    }
    assert_eq!(store.stats().spill.written_bytes, 0);
}

/// A checkpoint leaves the buffers that it has written to the readers of the last state: they go
/// with the next one, and are not old.
#[test]
fn what_readers_of_the_last_state_may_have_borrowed_is_not_spilled() {
    let dir = tempfile::tempdir().unwrap();
    let acting: Arc<Mutex<Option<PageStore>>> = Arc::default();
    let of_hook = Arc::clone(&acting);
    let fs = HookedFs::new(Arc::new(OsFs::new()), move |operation| {
        let acts =
            if operation == Operation::Write { of_hook.lock().unwrap().take() } else { None };
        if let Some(store) = acts {
            change(&store, &mut Rows::new(), &mut fastrand::Rng::with_seed(6), 1);
        }
    });
    let options = Options::default().old_version_bytes(0).checkpoint_interval(None);
    let store = PageStore::open_with(Arc::new(fs), &dir.path().join("pages"), options).unwrap();
    let (mut rows, mut rng) = (Rows::new(), fastrand::Rng::with_seed(5));
    change(&store, &mut rows, &mut rng, 100);
    // A transaction is published while it writes, and none behind it.
    *acting.lock().unwrap() = Some(store.clone());
    store.checkpoint().unwrap();
    assert!(acting.lock().unwrap().is_none() && store.stats().reads.retired_bytes > 1 << 20);
    store.checkpoint().unwrap();
    let spill = store.stats().spill;
    assert_eq!((spill.written_bytes, spill.old_version_bytes), (0, 0));
    // Others are published, but a reader still holds it.
    let held = store.read().tree("t").unwrap().unwrap();
    let seen = sums(&held);
    for _ in 0..2 {
        change(&store, &mut rows, &mut rng, 60);
        store.checkpoint().unwrap();
    }
    assert!(store.stats().spill.spilled_bytes > 1 << 20, "{:?}", store.stats().spill);
    assert_eq!(sums(&held), seen);
}

#[test]
fn an_open_transaction_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 0);
    let (mut rows, mut rng) = (Rows::new(), fastrand::Rng::with_seed(4));
    change(&store, &mut rows, &mut rng, 100);
    store.checkpoint().unwrap();
    let held = store.read().tree("t").unwrap().unwrap();
    change(&store, &mut rows, &mut rng, 100);
    let other = store.read().tree("t").unwrap().unwrap();
    change(&store, &mut rows, &mut rng, 100);
    // Its pages lie in slabs that the checkpoint closes, and it goes on writing to them.
    let mut txn = store.write().unwrap();
    txn.tree("t").unwrap().put(&0_u32.to_be_bytes(), &[1; 300]).unwrap();
    store.checkpoint().unwrap();
    assert_eq!(store.stats().spill.written_bytes, 0, "it writes to the slabs");
    txn.tree("t").unwrap().put(&0_u32.to_be_bytes(), &[2; 300]).unwrap();
    rows.insert(0, vec![2; 300]);
    txn.publish().unwrap();
    assert_is(&store.read().tree("t").unwrap().unwrap(), &rows);
    change(&store, &mut rows, &mut rng, 100);
    store.checkpoint().unwrap();
    assert!(store.stats().spill.spilled_bytes > 0, "{:?}", store.stats().spill);
    assert_is(&store.read().tree("t").unwrap().unwrap(), &rows);
    assert!(held.len() <= other.len());
    store.check().unwrap();
}

#[test]
fn oldest_snapshot_is_ended_when_old_ones_hold_too_much_of_the_disk() {
    let fs = super::disk(1);
    let options = Options::default().old_version_disk_bytes(1 << 20).checkpoint_interval(None);
    let store = PageStore::open_with(Arc::new(fs), &super::path(), options).unwrap();
    let (mut rows, mut rng) = (Rows::new(), fastrand::Rng::with_seed(5));
    change(&store, &mut rows, &mut rng, 20);
    store.checkpoint().unwrap();
    let views = [(); 3].map(|()| {
        let tree = store.read().tree("t").unwrap().unwrap();
        let seen = rows.clone();
        change(&store, &mut rows, &mut rng, 20);
        (tree, seen)
    });
    store.checkpoint().unwrap();
    let key = views[0].1.keys().next().unwrap();
    let borrowed = views[0].0.get(&key.to_be_bytes()).unwrap().unwrap();
    let at = |ms| store.maintain(Duration::from_millis(ms)).unwrap();
    let ended = || store.stats().spill.ended_snapshots;
    for second in 0..10 {
        at(second * 1000);
        assert_eq!(ended(), 0, "none is old enough after {second} s");
    }
    at(10_000);
    assert_eq!(ended(), 1);
    at(10_500);
    assert_eq!(ended(), 1, "its holder has a second to drop it");
    // Each read is refused, and what was borrowed before is what it was.
    let (first, seen) = &views[0];
    let txid = first.snapshot.txid();
    let too_old = |error: Error| matches!(error, Error::SnapshotTooOld { txid: of } if of == txid);
    assert!(first.get(&key.to_be_bytes()).is_err_and(too_old));
    assert!(first.range(..).next().is_err_and(too_old));
    assert!(first.snapshot.tree("t").is_err_and(too_old));
    assert_eq!(*borrowed, seen[key][..]);
    assert_is(&views[1].0, &views[1].1);
    let [(first, _), others @ ..] = views;
    drop(first);
    // The others still hold too much.
    store.checkpoint().unwrap();
    for second in 11..20 {
        at(second * 1000);
    }
    assert_eq!(ended(), 3);
    drop(others);
    store.checkpoint().unwrap();
    change(&store, &mut rows, &mut rng, 20);
    store.checkpoint().unwrap();
    assert_is(&store.read().tree("t").unwrap().unwrap(), &rows);
    let held = store.read().tree("t").unwrap().unwrap();
    for second in 30..50 {
        at(second * 1000);
    }
    assert_eq!(ended(), 3, "the last published state is never ended");
    assert_is(&held, &rows);
    store.check().unwrap();
}
