//! Checkpoints whose pieces the disk refuses.

use std::sync::Arc;

use flotilla_vfs::hooked::{HookedFs, Operation};

use super::{disk, path};
use crate::{CommitDurability, Error, Options, PageStore};

fn put(store: &PageStore, key: u64, durability: CommitDurability) -> Result<u64, Error> {
    let mut txn = store.write()?;
    txn.tree("t")?.put(&key.to_be_bytes(), &[7; 1000])?;
    txn.commit(durability)
}

/// The disk fails while the pieces of a checkpoint go to it, and is well when the checkpoint syncs:
/// that sync knows nothing of what was dropped, as the kernel tells of an error once.
#[test]
fn a_failed_piece_of_a_checkpoint_poisons() {
    let disk = disk(6);
    let faults = disk.clone();
    let fs = HookedFs::new(Arc::new(disk.clone()), move |operation| match operation {
        Operation::WriteBack => faults.fail_syncs(true),
        Operation::Sync => faults.fail_syncs(false),
        _ => {}
    });
    let store = PageStore::open_with(Arc::new(fs), &path(), Options::default()).unwrap();
    put(&store, 0, CommitDurability::Sync).unwrap();
    for key in 1..3_000 {
        put(&store, key, CommitDurability::Memory).unwrap();
    }
    let failed = store.checkpoint();
    assert!(matches!(failed, Err(Error::Io(_))), "{failed:?}");
    assert!(matches!(put(&store, 1, CommitDurability::Memory), Err(Error::Poisoned)));
    assert!(matches!(store.checkpoint(), Err(Error::Poisoned)));
    drop(store);
    disk.fail_syncs(false);
    disk.power_loss(1);
    let store = PageStore::open_with(Arc::new(disk), &path(), Options::default()).unwrap();
    let snapshot = store.read();
    let tree = snapshot.tree("t").unwrap().unwrap();
    assert!(tree.get(&0u64.to_be_bytes()).unwrap().is_some());
    store.check().unwrap();
}
