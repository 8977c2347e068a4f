//! Maintenance thread: checkpoints when they are due, and throttled writers.

use std::sync::Arc;
use std::time::Duration;

use flotilla_vfs::fault::FaultFs;

use super::{disk, path};
use crate::{CommitDurability, Error, Options, PageStore};

const SECOND: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(600);

fn open(fs: &FaultFs, options: Options) -> PageStore {
    PageStore::open(Arc::new(fs.clone()), &path(), options).unwrap()
}

fn options() -> Options {
    Options::default().redo_bytes(64 << 10).checkpoint_interval(None)
}

fn try_put(
    store: &PageStore,
    key: u64,
    len: usize,
    durability: CommitDurability,
) -> Result<u64, Error> {
    let mut txn = store.write()?;
    txn.tree("t")?.put(&key.to_be_bytes(), &vec![1; len])?;
    txn.commit(durability)
}

fn put(store: &PageStore, key: u64, len: usize) -> u64 {
    try_put(store, key, len, CommitDurability::Memory).unwrap()
}

#[test]
fn checkpoints_are_made_by_time() {
    let store = open(&disk(1), options().checkpoint_interval(Some(5 * SECOND)));
    assert!(!store.maintain(100 * SECOND).unwrap(), "nothing has changed");
    let txid = put(&store, 1, 10);
    assert!(!store.maintain(100 * SECOND).unwrap());
    assert!(!store.maintain(104 * SECOND).unwrap());
    assert!(store.maintain(105 * SECOND).unwrap());
    assert_eq!(store.durable().txid, txid);
    assert!(!store.maintain(200 * SECOND).unwrap());
}

#[test]
fn checkpoints_are_made_by_size_and_by_the_redo_area() {
    let store = open(&disk(1), options().dirty_bytes(100_000, 1 << 30));
    put(&store, 1, 50_000);
    assert!(!store.maintain(SECOND).unwrap());
    put(&store, 2, 50_000);
    assert!(store.maintain(SECOND).unwrap());
    assert_eq!(store.stats().dirty_bytes, 0);
    let checkpoints = store.stats().checkpoint_count;
    for key in 0..200 {
        try_put(&store, key % 3, 300, CommitDurability::Sync).unwrap();
        store.maintain(SECOND).unwrap();
        assert!(store.stats().redo_bytes <= 33 << 10, "half of the area");
    }
    assert!((3..10).contains(&(store.stats().checkpoint_count - checkpoints)));
}

#[test]
fn trash_is_given_back() {
    let store = open(&disk(1), options());
    let mut txn = store.write().unwrap();
    for key in 0..3000_u64 {
        txn.tree("t").unwrap().put(&key.to_be_bytes(), &[1; 900]).unwrap();
    }
    txn.publish().unwrap();
    store.checkpoint().unwrap();
    let mut txn = store.write().unwrap();
    txn.tree("t").unwrap().delete_range(b"", None).unwrap();
    txn.publish().unwrap();
    assert!(store.stats().deferred_free_bytes > 1 << 20);
    let writer = store.write().unwrap();
    // A writer may wait for a checkpoint: who makes these must not wait for him.
    assert!(!store.maintain(SECOND).unwrap());
    drop(writer);
    let mut steps = 0;
    while store.maintain(2 * SECOND).unwrap() {
        steps += 1;
    }
    assert!(store.stats().deferred_free_bytes == 0 && steps > 1, "{steps}");
    store.check().unwrap();
}

#[test]
fn writers_wait_for_the_thread_and_memory_keeps_its_limit() {
    let hard = 600_000;
    let store = open(&disk(1), options().dirty_bytes(200_000, hard));
    let maintenance = store.maintain_in_background().unwrap();
    for key in 0..400 {
        put(&store, key, 20_000);
        // A transaction that began below the limit may go above it.
        assert!(store.dirty_bytes() < hard + 100_000, "{}", store.dirty_bytes());
    }
    let last = store.read().txid();
    assert!(store.wait_for_checkpoint(1, LONG).unwrap().txid >= 1);
    assert!(store.wait_for_checkpoint(last + 1, Duration::ZERO).is_none());
    drop(maintenance);
    // No thread makes checkpoints any more, so no writer waits for them.
    for key in 0..100 {
        put(&store, key, 20_000);
    }
    assert!(store.dirty_bytes() > hard);
    store.check().unwrap();
}

#[test]
fn slow_checkpoint_hurries_if_somebody_waits_for_it() {
    let options = options().dirty_bytes(1 << 20, 1 << 30).checkpoint_bytes_per_second(1);
    let store = open(&disk(1), options);
    let maintenance = store.maintain_in_background().unwrap();
    for key in 0..200 {
        put(&store, key, 20_000);
    }
    // It would take a month.
    let done = store.checkpoint().unwrap();
    assert_eq!(done.txid, 200);
    for key in 0..200 {
        put(&store, key, 20_000);
    }
    drop(maintenance);
    store.check().unwrap();
}

#[test]
fn full_disk_is_told_to_writers_and_they_go_on_when_there_is_room() {
    let fs = disk(1);
    let store = open(&fs, options().dirty_bytes(200_000, 400_000));
    put(&store, 0, 10);
    store.checkpoint().unwrap();
    let maintenance = store.maintain_in_background().unwrap();
    fs.set_capacity(Some(0));
    let refused = (0..1000).find_map(|key| {
        try_put(&store, key, 20_000, CommitDurability::Memory).err().map(|error| (key, error))
    });
    let (key, error) = refused.expect("memory is limited");
    assert!(matches!(error, Error::NoSpace), "{error}");
    assert_eq!(
        store.read().tree("t").unwrap().unwrap().len(),
        key,
        "all or nothing, and reads go on"
    );
    fs.set_capacity(None);
    while try_put(&store, key, 20_000, CommitDurability::Memory).is_err() {
        std::thread::yield_now();
    }
    drop(maintenance);
    store.check().unwrap();
}

#[test]
fn thread_ends_with_the_store_and_on_failure() {
    let fs = disk(1);
    let store = open(&fs, options().dirty_bytes(1000, 1 << 20));
    let maintenance = store.maintain_in_background().unwrap();
    put(&store, 0, 10);
    drop(store);
    drop(maintenance);
    let store = open(&fs, options().dirty_bytes(1000, 1 << 20));
    let _maintenance = store.maintain_in_background().unwrap();
    fs.fail_syncs(true);
    let error = (0..).find_map(|key| try_put(&store, key, 2000, CommitDurability::Memory).err());
    assert!(matches!(error, Some(Error::Poisoned)), "{error:?}");
}

#[test]
fn one_may_wait_for_ever() {
    let store = open(&disk(1), options());
    let txid = put(&store, 1, 10);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| store.wait_for_checkpoint(txid, Duration::MAX));
        store.checkpoint().unwrap();
        assert_eq!(waits.join().unwrap().map(|checkpoint| checkpoint.txid), Some(txid));
    });
}

#[test]
fn nobody_waits_for_a_checkpoint_that_will_not_come() {
    let fs = disk(1);
    let store = open(&fs, options());
    let txid = put(&store, 1, 10);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| store.wait_for_checkpoint(txid, LONG));
        fs.fail_syncs(true);
        store.checkpoint().unwrap_err();
        assert_eq!(waits.join().unwrap(), None);
    });
}

#[test]
fn an_idle_store_is_scrubbed_a_busy_one_is_not_and_rot_is_reported() {
    let fs = disk(1);
    let store = open(&fs, options().scrub_interval(Some(LONG)));
    for key in 0..100 {
        put(&store, key, 20_000);
    }
    store.checkpoint().unwrap();
    let span_bytes = store.stats().span_bytes;
    let reads = || store.stats().reads;
    let mut now = SECOND;
    // Eight steps make a pass: the first is due after 75 s, but something is published each second.
    for second in 0..100 {
        put(&store, 1000, 10);
        assert!(!store.maintain(now + second * SECOND).unwrap());
    }
    assert_eq!(reads().scrubbed_bytes, 0);
    store.checkpoint().unwrap();
    now += 100 * SECOND;
    let begun = now;
    while reads().scrub_passes == 0 {
        let before = reads().scrubbed_bytes;
        let is_done = store.maintain(now).unwrap();
        let read = reads().scrubbed_bytes - before;
        assert!((read > 0) == is_done && read < 400_000, "{read} bytes in one step");
        now += SECOND;
    }
    let (took, bytes) = (now - begun, reads().scrubbed_bytes);
    assert!(bytes > span_bytes / 2 && took > LONG / 2 && took < 2 * LONG, "{bytes}, {took:?}");
    // Of a long value in the middle of the file.
    let at = span_bytes / 2 / 4096 * 4096 + 60;
    fs.flip_bit(&path(), at, 3);
    let mut step = || {
        now += SECOND;
        store.maintain(now)
    };
    let error = (0..1000).find_map(|_| step().err()).expect("a pass takes 600 s");
    assert!(
        matches!(error, Error::Corrupt { page, .. } if page.abs_diff(at / 4096) < 5),
        "{error}"
    );
    assert_eq!(reads().scrub_errors, 1);
    assert!((0..100).any(|_| step().is_err()), "it is reported until it is mended");
    assert_eq!((reads().scrub_errors, reads().scrub_passes), (2, 1));
    fs.flip_bit(&path(), at, 3);
    assert!((0..600).all(|_| step().is_ok()));
    assert_eq!((reads().scrub_errors, reads().scrub_passes), (2, 2));
}
