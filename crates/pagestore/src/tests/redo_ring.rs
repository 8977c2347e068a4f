//! The redo ring begins short and becomes longer with use, and no commit is lost meanwhile.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use flotilla_vfs::fault::FaultFs;
use flotilla_vfs::hooked::{HookedFs, Operation};
use flotilla_vfs::os::OsFs;

use super::{disk, path};
use crate::{CommitDurability, Error, Options, PageStore};

const VALUE: [u8; 3000] = [7; 3000];

fn options(redo_bytes: u64) -> Options {
    Options::default().growth_bytes(64 << 10).redo_bytes(redo_bytes).checkpoint_interval(None)
}

fn put(store: &PageStore, key: u32) -> Result<u64, Error> {
    let mut txn = store.write()?;
    txn.tree("t")?.put(&key.to_be_bytes(), &VALUE)?;
    txn.commit(CommitDurability::Sync)
}

fn ring_bytes(store: &PageStore) -> u64 {
    store.shared().redo.ring_use().map_or(0, |ring| ring.span.bytes())
}

fn assert_has(store: &PageStore, keys: &BTreeSet<u32>) {
    let snapshot = store.read();
    for key in keys {
        let tree = snapshot.tree("t").unwrap().expect("it was committed");
        let found = tree.get(&key.to_be_bytes()).unwrap();
        assert_eq!(found.as_deref(), Some(&VALUE[..]), "key {key}");
    }
    store.check().unwrap();
}

#[test]
fn store_with_one_key_is_small() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pages");
    let store = PageStore::open_with(Arc::new(OsFs::new()), &path, Options::default()).unwrap();
    put(&store, 1).unwrap();
    assert_eq!(ring_bytes(&store), 512 << 10);
    store.checkpoint().unwrap();
    let len = std::fs::metadata(&path).unwrap().len();
    assert!(len <= 3_000_000, "{len} bytes for one key");
}

#[test]
fn ring_is_doubled_as_long_as_commits_fill_it() {
    let fs = disk(1);
    let open = || PageStore::open_with(Arc::new(fs.clone()), &path(), options(1 << 20)).unwrap();
    let mut store = open();
    let (mut lengths, mut keys) = (Vec::new(), BTreeSet::new());
    for key in 0..1000 {
        put(&store, key).unwrap();
        keys.insert(key);
        let len = ring_bytes(&store);
        if lengths.last() != Some(&len) {
            lengths.push(len);
            store.check().unwrap();
        }
        if key % 97 == 0 {
            drop(store);
            fs.power_loss(u64::from(key));
            store = open();
        }
        // It finds a checkpoint due when half of the ring is in use.
        store.maintain(std::time::Duration::ZERO).unwrap();
    }
    assert_eq!(lengths, [64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20]);
    assert_has(&store, &keys);
    let reserved = store.check().unwrap().reservation_bytes;
    assert_eq!(reserved, 0, "the rings before were given back");
}

#[test]
fn idle_use_leaves_it_short() {
    let fs = disk(1);
    let store = PageStore::open_with(Arc::new(fs.clone()), &path(), options(1 << 20)).unwrap();
    for key in 0..200 {
        put(&store, key).unwrap();
        if key % 5 == 0 {
            store.checkpoint().unwrap();
        }
    }
    assert_eq!(ring_bytes(&store), 64 << 10);
}

#[test]
fn commit_that_does_not_fit_makes_it_longer_at_once() {
    let fs = disk(1);
    let store = PageStore::open_with(Arc::new(fs.clone()), &path(), options(32 << 20)).unwrap();
    let mut checkpoints = Vec::new();
    for key in 0..4_u32 {
        let mut txn = store.write().unwrap();
        txn.tree("t").unwrap().put(&key.to_be_bytes(), &[1; 400_000]).unwrap();
        txn.commit(CommitDurability::Sync).unwrap();
        checkpoints.push(store.stats().checkpoint_count);
    }
    // The first makes the ring, the second finds it too short.
    assert_eq!((checkpoints, ring_bytes(&store)), (vec![1, 2, 2, 2], 2 << 20));
}

#[test]
fn full_disk_leaves_the_log_where_it_is() {
    let fs = disk(1);
    let store = PageStore::open_with(Arc::new(fs.clone()), &path(), options(1 << 20)).unwrap();
    let mut keys = BTreeSet::new();
    for key in 0..12 {
        put(&store, key).unwrap();
        keys.insert(key);
    }
    fs.set_capacity(Some(store.stats().file_bytes + (96 << 10)));
    store.checkpoint().unwrap();
    assert_eq!((ring_bytes(&store), store.stats().redo_bytes), (64 << 10, 0));
    put(&store, 12).unwrap();
    keys.insert(12);
    drop(store);
    fs.power_loss(1);
    let store = PageStore::open_with(Arc::new(fs), &path(), options(1 << 20)).unwrap();
    assert_has(&store, &keys);
}

/// Commits before each sync that the store makes of its own.
struct Concurrent {
    store: Option<PageStore>,
    next: u32,
    acknowledged: BTreeSet<u32>,
}

#[test]
fn commits_survive_though_the_power_goes_while_the_log_moves() {
    let mut longest = 0;
    for cut in 1.. {
        let fs = disk(cut);
        fs.cut_power_after(cut);
        let state = Concurrent { store: None, next: 1000, acknowledged: BTreeSet::new() };
        let state = Arc::new(Mutex::new(state));
        let done = run_until_cut(&fs, &state, &mut longest);
        fs.power_loss(cut);
        let acknowledged = std::mem::take(&mut state.lock().unwrap().acknowledged);
        let store = PageStore::open_with(Arc::new(fs.clone()), &path(), options(256 << 10));
        let store = store.unwrap();
        assert_has(&store, &acknowledged);
        put(&store, 5000).unwrap();
        drop(store);
        fs.power_loss(cut + 1);
        let store = PageStore::open_with(Arc::new(fs), &path(), options(256 << 10)).unwrap();
        assert_has(&store, &acknowledged);
        assert_has(&store, &BTreeSet::from([5000]));
        if done {
            break;
        }
    }
    assert_eq!(longest, 256 << 10);
}

fn run_until_cut(fs: &FaultFs, state: &Arc<Mutex<Concurrent>>, longest: &mut u64) -> bool {
    let armed = Arc::clone(state);
    let hooked = HookedFs::new(Arc::new(fs.clone()), move |operation| {
        // Not before the syncs of its own commits.
        let Ok(mut state) = armed.try_lock() else { return };
        let Some(store) = state.store.clone().filter(|_| operation == Operation::Sync) else {
            return;
        };
        state.next += 1;
        let key = state.next;
        if put(&store, key).is_ok() {
            state.acknowledged.insert(key);
        }
    });
    let Ok(store) = PageStore::open_with(Arc::new(hooked), &path(), options(256 << 10)) else {
        return false;
    };
    for key in 0..40 {
        if put(&store, key).is_err() {
            return false;
        }
        state.lock().unwrap().acknowledged.insert(key);
        *longest = ring_bytes(&store).max(*longest);
        if 2 * store.stats().redo_bytes >= ring_bytes(&store) {
            state.lock().unwrap().store = Some(store.clone());
            let outcome = store.checkpoint();
            state.lock().unwrap().store = None;
            if outcome.is_err() {
                return false;
            }
        }
    }
    true
}
