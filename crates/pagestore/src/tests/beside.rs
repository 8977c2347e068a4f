//! Commits and reservations concurrent with each operation of a checkpoint, and a power loss at a
//! later one.

use std::sync::{Arc, Mutex};

use flotilla_vfs::FileSystem;
use flotilla_vfs::hooked::{HookedFs, Operation};

use super::{disk, path};
use crate::checkpoint::reservation::Reservation;
use crate::page::UNIT_BYTES;
use crate::{CommitDurability, Options, PageStore};

fn open(fs: Arc<dyn FileSystem>) -> PageStore {
    let options = Options::default().growth_bytes(64 << 10).redo_bytes(64 << 10);
    PageStore::open_with(fs, &path(), options).unwrap()
}

fn value(key: u8) -> Vec<u8> {
    vec![key; 9000]
}

fn put(store: &PageStore, key: u8, value: &[u8], durability: CommitDurability) {
    let mut txn = store.write().unwrap();
    txn.tree("t").unwrap().put(&[key], value).unwrap();
    txn.commit(durability).unwrap();
}

fn assert_has(store: &PageStore, key: u8, value: &[u8]) {
    let tree = store.read().tree("t").unwrap().unwrap();
    assert_eq!(tree.get(&[key]).unwrap().as_deref(), Some(value), "key {key}");
}

/// The state of the checkpoint that is under way.
#[derive(Default)]
struct Known {
    /// Operations so far.
    count: u64,
    /// The other thread has still to act.
    store: Option<PageStore>,
    has_acted: bool,
}

/// Runs `prepare`, and then a checkpoint, as often as that has operations: `act` happens right
/// before one of them, and a crash is looked at before each one that follows, and after the last.
fn beside_each_operation(prepare: fn(&PageStore), act: fn(&PageStore), look: fn(&PageStore)) {
    for at in 1.. {
        let fs = disk(at);
        let known: Arc<Mutex<Known>> = Arc::default();
        let (seen, disk) = (Arc::clone(&known), fs.clone());
        let hook = move |operation| {
            if !matches!(operation, Operation::Write | Operation::Sync) {
                return;
            }
            let acting = {
                let mut known = seen.lock().unwrap();
                known.count += 1;
                if known.count == at { known.store.take() } else { None }
            };
            if let Some(store) = acting {
                act(&store);
                seen.lock().unwrap().has_acted = true;
            }
            let (has_acted, count) = {
                let known = seen.lock().unwrap();
                (known.has_acted, known.count)
            };
            if has_acted {
                look(&open(Arc::new(disk.crashed(count))));
            }
        };
        let store = open(Arc::new(HookedFs::new(Arc::new(fs.clone()), hook)));
        prepare(&store);
        *known.lock().unwrap() = Known { store: Some(store.clone()), ..Known::default() };
        store.checkpoint().unwrap();
        let Known { has_acted, count, .. } = std::mem::take(&mut *known.lock().unwrap());
        store.check().unwrap();
        drop(store);
        if !has_acted {
            assert!(count > 3, "a checkpoint has {count} operations");
            break;
        }
        fs.power_loss(at);
        look(&open(Arc::new(fs)));
    }
}

#[test]
fn what_the_durable_root_needs_is_not_free_before_the_next_one_is_durable() {
    let prepare = |store: &PageStore| {
        for key in 0..4 {
            put(store, key, &value(key), CommitDurability::Memory);
            store.checkpoint().unwrap();
        }
        // All pages of before are replaced.
        put(store, 0, &value(0), CommitDurability::Memory);
    };
    let act = |store: &PageStore| {
        // Each free unit is written to, as by who builds trees.
        let units = store.shared().space.lock().freelist.free_units();
        let mut claim = Reservation::new(Arc::clone(store.shared()));
        for _ in 0..units {
            let at = claim.take(1).unwrap().start * UNIT_BYTES as u64;
            store.shared().page_reader.file().write_at(&[0xee; UNIT_BYTES], at).unwrap();
        }
    };
    let look = |store: &PageStore| {
        (0..4).for_each(|key| assert_has(store, key, &value(key)));
        store.check().unwrap();
    };
    beside_each_operation(prepare, act, look);
}

#[test]
fn commits_during_a_checkpoint_are_durable() {
    let prepare = |store: &PageStore| {
        for key in 0..3 {
            put(store, key, b"old", CommitDurability::Sync);
        }
        put(store, 0, b"published", CommitDurability::Memory);
    };
    let act = |store: &PageStore| {
        put(store, 1, b"new", CommitDurability::Sync);
        put(store, 2, b"new", CommitDurability::Sync);
    };
    let look = |store: &PageStore| {
        assert_has(store, 0, b"published");
        (1..3).for_each(|key| assert_has(store, key, b"new"));
        store.check().unwrap();
    };
    beside_each_operation(prepare, act, look);
}
