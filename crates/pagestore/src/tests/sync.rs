//! Commits that are durable when they return, whatever happens then.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use flotilla_vfs::fault::FaultFs;
use flotilla_vfs::hooked::{HookedFs, Operation};
use flotilla_vfs::{FileSystem, OpenMode};

use super::model::{Maps, Taste, assert_same, change};
use super::{disk, path};
use crate::page::UNIT_BYTES;
use crate::redo::{RedoRecorder, frame};
use crate::{CommitDurability, Error, Options, PageStore, WriteTxn};

fn options() -> Options {
    Options::default().growth_bytes(64 << 10).redo_bytes(64 << 10)
}

fn try_open(fs: &FaultFs) -> Result<PageStore, Error> {
    PageStore::open_with(Arc::new(fs.clone()), &path(), options())
}

fn open(fs: &FaultFs) -> PageStore {
    try_open(fs).expect("the disk is well")
}

fn put(
    store: &PageStore,
    key: u64,
    value: &[u8],
    durability: CommitDurability,
) -> Result<u64, Error> {
    let mut txn = store.write()?;
    txn.tree("t")?.put(&key.to_be_bytes(), value)?;
    txn.commit(durability)
}

fn get(store: &PageStore, key: u64) -> Option<Vec<u8>> {
    let snapshot = store.read();
    let tree = snapshot.tree("t").unwrap()?;
    tree.get(&key.to_be_bytes()).unwrap().map(|value| value.to_vec())
}

/// All that was published, and the transaction that each left; and up to where it is durable.
struct Known {
    published: Vec<(u64, Maps)>,
    durable: u64,
}

impl Known {
    fn new() -> Known {
        Known { published: vec![(0, Maps::new())], durable: 0 }
    }

    /// Proves that what was opened was published, and is no less than what is durable.
    fn recover(&mut self, store: &PageStore) {
        let found = store.read().txid();
        assert!(found >= self.durable, "{found} lacks what was acknowledged, {}", self.durable);
        let state = self.published.iter().find(|state| state.0 == found);
        let (txid, maps) = state.expect("it was published").clone();
        assert_same(&store.read(), &maps);
        assert_eq!(store.read().commit_metadata(), commit_metadata(txid));
        assert_eq!(store.durable_txid(), found);
        store.check().unwrap();
        self.durable = found;
        self.published = vec![(txid, maps)];
    }
}

fn commit_metadata(txid: u64) -> Vec<u8> {
    if txid == 0 { Vec::new() } else { (txid / 3).to_be_bytes().to_vec() }
}

/// Commits in each way, and makes checkpoints, until something fails or the script is done.
fn run(store: &PageStore, known: &mut Known, taste: Taste, rng: &mut fastrand::Rng) -> bool {
    let mut maps = known.published.last().unwrap().1.clone();
    for _ in 0..12 {
        if rng.u32(..6) == 0 {
            match store.checkpoint() {
                Ok(checkpoint) => known.durable = checkpoint.txid,
                Err(Error::Io(_)) => return false,
                Err(error) => panic!("{error}"),
            }
        }
        if rng.u32(..8) == 0 {
            match store.sync() {
                Ok(durable) => known.durable = durable,
                Err(Error::Io(_)) => return false,
                Err(error) => panic!("{error}"),
            }
        }
        let mut txn = store.write().expect("nothing has failed yet");
        let txid = txn.txid();
        for _ in 0..rng.u32(1..3) {
            let name = ["a", "b"][rng.usize(..2)];
            let map = maps.entry(name.to_owned()).or_default();
            let mut tree = taste.tree(&mut txn, name);
            for _ in 0..rng.u32(1..15) {
                change(&mut tree, map, taste, rng);
            }
        }
        surgery(&mut txn, &mut maps, taste, rng);
        txn.set_commit_metadata(&commit_metadata(txid));
        known.published.push((txid, maps.clone()));
        let durability = [CommitDurability::Memory, CommitDurability::Sync][rng.usize(..2)];
        match txn.commit(durability) {
            Ok(committed) if committed < txid => {
                assert_eq!(known.published.pop().unwrap().1, known.published.last().unwrap().1);
            }
            Ok(committed) => assert_eq!(committed, txid),
            Err(Error::Io(_)) => return false,
            Err(error) => panic!("{error}"),
        }
        if durability == CommitDurability::Sync {
            known.durable = store.read().txid();
            assert_eq!(store.durable_txid(), known.durable);
        }
    }
    true
}

/// Now and then a tree gets another name, or goes, or something is undone.
fn surgery(txn: &mut WriteTxn<'_>, maps: &mut Maps, taste: Taste, rng: &mut fastrand::Rng) {
    match rng.u32(..12) {
        0 => {
            let removed = txn.delete_tree("a").unwrap();
            assert_eq!(removed, maps.remove("a").map(|map| map.len() as u64));
        }
        1 if maps.contains_key("b") && !maps.contains_key("c") => {
            assert!(txn.rename_tree("b", "c").unwrap());
            let map = maps.remove("b").unwrap();
            maps.insert("c".to_owned(), map);
        }
        2 => {
            let point = txn.savepoint();
            let mut undone = maps.get("a").cloned().unwrap_or_default();
            change(&mut txn.tree("a").unwrap(), &mut undone, taste, rng);
            txn.delete_tree("b").unwrap();
            txn.rollback_to(&point).unwrap();
        }
        3 => {
            if let Some(map) = maps.get_mut("c") {
                change(&mut txn.tree("c").unwrap(), map, taste, rng);
            }
        }
        _ => {}
    }
}

#[test]
fn power_goes_at_every_operation() {
    for seed in [1, 3, 8] {
        let taste = Taste::of(seed);
        for cut in 1.. {
            let mut rng = fastrand::Rng::with_seed(seed);
            let fs = disk(seed);
            fs.cut_power_after(cut);
            let mut known = Known::new();
            let done = match try_open(&fs) {
                Ok(store) => run(&store, &mut known, taste, &mut rng),
                Err(_) => false,
            };
            for life in 0..3 {
                fs.power_loss(seed << 32 | cut << 8 | life);
                fs.cut_power_after(rng.u64(1..20));
                if let Ok(store) = try_open(&fs) {
                    known.recover(&store);
                    run(&store, &mut known, taste, &mut rng);
                    continue;
                }
                // It went while the store was opened.
                fs.power_loss(cut);
                known.recover(&open(&fs));
            }
            fs.power_loss(cut);
            known.recover(&open(&fs));
            if done {
                break;
            }
        }
    }
}

#[test]
fn process_ends_at_any_time() {
    for seed in 0..12 {
        let taste = Taste::of(seed);
        let mut rng = fastrand::Rng::with_seed(seed);
        let fs = disk(seed);
        let mut known = Known::new();
        for life in 0..6 {
            let store = open(&fs);
            known.recover(&store);
            assert!(run(&store, &mut known, taste, &mut rng));
            drop(store);
            if life % 2 == 1 {
                // Data that the process has seen after the open survives a power loss too.
                drop(open(&fs));
                fs.power_loss(seed);
            }
        }
    }
}

#[test]
fn many_threads_lose_nothing() {
    for seed in 0..30 {
        let fs = disk(seed);
        let store = open(&fs);
        put(&store, 0, b"first", CommitDurability::Sync).unwrap();
        fs.cut_power_after(fs.operations() + 5 + seed * 7);
        let acknowledged: Vec<Vec<u64>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..6)
                .map(|thread| {
                    let store = &store;
                    scope.spawn(move || {
                        let keys = (0..200).map(|i| thread * 1000 + i);
                        // Some with values that soon fill the area.
                        let value = vec![7; if thread < 3 { 20 } else { 900 }];
                        keys.take_while(|&key| {
                            put(store, key, &value, CommitDurability::Sync).is_ok()
                        })
                        .collect()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        // A write or a sync that failed has poisoned the store. Where the file could not be made
        // longer nothing was published, and it is as it was.
        assert!(put(&store, 9_999, b"last", CommitDurability::Sync).is_err());
        drop(store);
        fs.power_loss(seed);
        let store = open(&fs);
        store.check().unwrap();
        for key in acknowledged.into_iter().flatten() {
            assert!(get(&store, key).is_some(), "key {key} is lost, seed {seed}");
        }
    }
}

#[test]
fn commits_go_on_while_checkpoints_are_made() {
    let fs = disk(5);
    let store = open(&fs);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let checkpoints = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                store.checkpoint().unwrap();
            }
        });
        let threads = (0..4_u64).map(|thread| {
            let store = &store;
            scope.spawn(move || {
                for i in 0..150 {
                    let durability =
                        if i % 3 == 0 { CommitDurability::Memory } else { CommitDurability::Sync };
                    put(store, thread * 1000 + i, &i.to_be_bytes(), durability).unwrap();
                }
            })
        });
        threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
        store.sync().unwrap();
        done.store(true, Ordering::Relaxed);
        checkpoints.join().unwrap();
    });
    drop(store);
    fs.power_loss(1);
    let store = open(&fs);
    store.check().unwrap();
    for key in (0..4_u64).flat_map(|thread| (0..150).map(move |i| thread * 1000 + i)) {
        assert_eq!(get(&store, key).unwrap(), (key % 1000).to_be_bytes());
    }
}

#[test]
fn synced_commit_costs_one_sync_and_no_checkpoint() {
    let fs = disk(1);
    let store = open(&fs);
    put(&store, 0, b"makes the area", CommitDurability::Sync).unwrap();
    let (checkpoints, syncs) = (store.stats().checkpoint_count, fs.stats().syncs);
    for key in 0..50 {
        put(&store, key, b"value", CommitDurability::Memory).unwrap();
        put(&store, key, b"value", CommitDurability::Sync).unwrap();
    }
    assert_eq!(store.stats().checkpoint_count, checkpoints);
    assert_eq!(fs.stats().syncs, syncs + 50);
    assert_eq!(store.sync().unwrap(), store.read().txid());
    assert_eq!(fs.stats().syncs, syncs + 50, "there is nothing to sync");
    assert!(store.durable().txid < store.durable_txid());
}

#[test]
fn what_does_not_fit_into_the_area_is_durable_by_checkpoints() {
    let fs = disk(1);
    let mut store = open(&fs);
    put(&store, 0, b"makes the area", CommitDurability::Sync).unwrap();
    // Longer than a frame may be; more than is kept for those who do not wait; no more than a
    // little.
    for (values, len, is_too_much) in [(1, 40_000, true), (30, 1000, true), (1, 10, false)] {
        let checkpoints = store.stats().checkpoint_count;
        for key in 0..values {
            put(&store, key, &vec![1; len], CommitDurability::Memory).unwrap();
        }
        let txid = put(&store, 77, &vec![2; len], CommitDurability::Sync).unwrap();
        assert_eq!(store.durable_txid(), txid);
        assert_eq!(store.stats().checkpoint_count > checkpoints, is_too_much, "{values} of {len}");
        drop(store);
        fs.power_loss(1);
        store = open(&fs);
        assert_eq!(get(&store, 77).unwrap(), vec![2; len]);
        assert_eq!(get(&store, values - 1).unwrap(), vec![1; len]);
    }
}

#[test]
fn without_an_area_a_synced_commit_is_a_checkpoint() {
    let fs = disk(1);
    let open =
        || PageStore::open_with(Arc::new(fs.clone()), &path(), options().redo_bytes(0)).unwrap();
    let store = open();
    for key in 0..5 {
        let txid = put(&store, key, b"value", CommitDurability::Sync).unwrap();
        assert_eq!((store.durable_txid(), store.durable().txid), (txid, txid));
    }
    drop(store);
    fs.power_loss(1);
    assert_eq!(get(&open(), 4).unwrap(), b"value");
}

#[test]
fn full_disk_refuses_before_anything_is_seen() {
    let fs = disk(3);
    let store = open(&fs);
    put(&store, 0, b"in memory", CommitDurability::Memory).unwrap();
    fs.set_capacity(Some(store.stats().file_bytes + 4096));
    for _ in 0..2 {
        let refused = put(&store, 1, b"durable", CommitDurability::Sync);
        assert!(matches!(refused, Err(Error::NoSpace)), "{refused:?}");
        assert_eq!((store.read().txid(), get(&store, 1)), (1, None));
        store.check().unwrap();
    }
    fs.set_capacity(None);
    put(&store, 1, b"durable", CommitDurability::Sync).unwrap();
    // The area is there, so commits go on when the disk is full, as long as it has room.
    fs.set_capacity(Some(0));
    let mut acknowledged = 1;
    let error =
        (2..1000).find_map(|key| match put(&store, key, &[1; 500], CommitDurability::Sync) {
            Ok(_) => {
                acknowledged = key;
                None
            }
            Err(error) => Some(error),
        });
    assert!(matches!(error, Some(Error::NoSpace)) && acknowledged > 50, "{acknowledged}");
    assert!(get(&store, acknowledged + 1).is_none());
    fs.set_capacity(None);
    put(&store, acknowledged + 1, b"", CommitDurability::Sync).unwrap();
    drop(store);
    fs.power_loss(1);
    let store = open(&fs);
    assert!((0..=acknowledged + 1).all(|key| get(&store, key).is_some()));
    store.check().unwrap();
}

#[test]
fn failed_append_poisons() {
    for fails_sync in [false, true] {
        let fs = disk(6);
        let store = open(&fs);
        put(&store, 0, b"value", CommitDurability::Sync).unwrap();
        put(&store, 1, b"value", CommitDurability::Sync).unwrap();
        fs.fail_syncs(fails_sync);
        fs.fail_writes(!fails_sync);
        assert!(matches!(put(&store, 2, b"value", CommitDurability::Sync), Err(Error::Io(_))));
        fs.fail_syncs(false);
        fs.fail_writes(false);
        assert!(matches!(put(&store, 3, b"", CommitDurability::Memory), Err(Error::Poisoned)));
        assert!(matches!(store.sync(), Err(Error::Poisoned)));
        assert!(matches!(store.checkpoint(), Err(Error::Poisoned)));
        assert!(get(&store, 1).is_some(), "reads go on");
        drop(store);
        fs.power_loss(1);
        let store = open(&fs);
        assert!(get(&store, 0).is_some() && get(&store, 1).is_some() && get(&store, 3).is_none());
        store.check().unwrap();
    }
}

#[test]
fn flipped_bits_of_the_area_are_found_but_in_the_last_frame() {
    let fs = disk(2);
    let store = open(&fs);
    for key in 0..6 {
        put(&store, key, &[9; 700], CommitDurability::Sync).unwrap();
    }
    let used = store.stats().span_bytes;
    drop(store);
    let (mut found, mut unseen, mut torn) = (0, 0, 0);
    for at in (0..used).step_by(149) {
        let bit = (at % 8) as u8;
        fs.flip_bit(&path(), at, bit);
        match try_open(&fs) {
            Err(Error::Corrupt { .. }) => found += 1,
            Err(error) => panic!("byte {at}: {error}"),
            Ok(store) => match store.check() {
                Err(error) => {
                    assert!(matches!(error, Error::Corrupt { .. }), "byte {at}: {error}");
                    found += 1;
                }
                Ok(_) => {
                    let last = (0..6).take_while(|&key| get(&store, key).is_some()).count();
                    // The last frame cannot be told from one that a power loss cut off.
                    assert!(last >= 5, "byte {at}: {last} of 6 values");
                    torn += u64::from(last == 5);
                    unseen += u64::from(last == 6);
                }
            },
        }
        fs.flip_bit(&path(), at, bit);
    }
    assert!(found > 20 && unseen > 20 && (1..20).contains(&torn), "{found} {unseen} {torn}");
    assert_eq!(open(&fs).read().txid(), 6);
}

/// Runs until the process is killed before operation `cut` on the file; true if it came to its end.
fn run_killed(fs: &FaultFs, known: &mut Known, cut: u64, seed: u64) -> bool {
    let count = AtomicU64::new(0);
    let hooked = HookedFs::new(Arc::new(fs.clone()), move |operation| {
        let changes = matches!(operation, Operation::Write | Operation::Sync);
        if changes && count.fetch_add(1, Ordering::Relaxed) == cut {
            std::panic::resume_unwind(Box::new("killed"));
        }
    });
    let killed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let store = PageStore::open_with(Arc::new(hooked), &path(), options()).unwrap();
        let mut rng = fastrand::Rng::with_seed(seed);
        assert!(run(&store, known, Taste::of(seed), &mut rng));
    }));
    killed.is_ok()
}

#[test]
fn what_was_seen_after_a_kill_outlives_the_power() {
    for seed in [0, 4] {
        for cut in 0.. {
            let fs = disk(seed);
            let mut known = Known::new();
            let done = run_killed(&fs, &mut known, cut, seed);
            // It sees what the killed process wrote and did not live to sync.
            known.recover(&open(&fs));
            fs.power_loss(cut);
            known.recover(&open(&fs));
            if done {
                break;
            }
        }
    }
}

/// The first frame of a ring, with a record that transaction `txid` would leave if it put a key
/// that no transaction puts.
fn forged_frame(txid: u64) -> Vec<u8> {
    let mut recorder = RedoRecorder::new(Vec::new(), 400);
    recorder.tree("t");
    recorder.put(&9_u64.to_be_bytes(), b"forged");
    let mut frame = frame::SectorBuffer::default();
    frame::encode(&mut frame, 0, 0, txid, recorder.finish(txid).unwrap());
    frame.bytes().to_vec()
}

#[test]
fn what_lay_where_the_area_is_made_is_no_frame() {
    let fs = disk(1);
    let store = open(&fs);
    // The transaction that makes the area is the fourth.
    let forged = forged_frame(5);
    put(&store, 0, &forged.repeat(1024), CommitDurability::Memory).unwrap();
    store.checkpoint().unwrap();
    for key in [0, 1] {
        put(&store, key, b"", CommitDurability::Memory).unwrap();
        store.checkpoint().unwrap();
    }
    let mut before = vec![0; store.stats().file_bytes as usize];
    fs.open(&path(), OpenMode::Read).unwrap().read_exact_at(&mut before, 0).unwrap();
    let made = put(&store, 2, b"makes the area", CommitDurability::Sync).unwrap();
    let at = store.shared().redo.ring_use().unwrap().span.start as usize * UNIT_BYTES;
    assert_eq!((made, &before[at..at + forged.len()]), (4, &forged[..]));
    drop(store);
    fs.power_loss(1);
    let store = open(&fs);
    assert_eq!((store.read().txid(), get(&store, 9)), (made, None));
    put(&store, 3, b"value", CommitDurability::Sync).unwrap();
    drop(store);
    fs.power_loss(2);
    let store = open(&fs);
    assert_eq!((store.read().txid(), get(&store, 9)), (made + 1, None));
    assert_eq!(get(&store, 3).unwrap(), b"value");
    store.check().unwrap();
}

#[test]
fn transaction_without_a_record_during_a_checkpoint_is_no_hole() {
    let fs = disk(1);
    let meanwhile: Arc<Mutex<Option<PageStore>>> = Arc::default();
    let armed = Arc::clone(&meanwhile);
    let hooked = HookedFs::new(Arc::new(fs.clone()), move |operation| {
        // Too long for a record, while the checkpoint is on its way.
        if operation == Operation::Sync
            && let Some(store) = armed.lock().unwrap().take()
        {
            put(&store, 1, &[1; 40_000], CommitDurability::Memory).unwrap();
        }
    });
    let store = PageStore::open_with(Arc::new(hooked), &path(), options()).unwrap();
    put(&store, 0, b"makes the area", CommitDurability::Sync).unwrap();
    put(&store, 0, b"changes something", CommitDurability::Memory).unwrap();
    *meanwhile.lock().unwrap() = Some(store.clone());
    let txid = store.checkpoint().unwrap().txid;
    assert_eq!(store.read().txid(), txid + 1, "it was published meanwhile");
    put(&store, 2, b"value", CommitDurability::Sync).unwrap();
    drop(store);
    fs.power_loss(1);
    let store = open(&fs);
    assert_eq!((store.read().txid(), get(&store, 1).unwrap().len()), (txid + 2, 40_000));
    assert_eq!(get(&store, 2).unwrap(), b"value");
}

#[test]
fn what_the_checkpoint_has_is_not_carried_out_again() {
    let fs = disk(1);
    let meanwhile: Arc<Mutex<Option<PageStore>>> = Arc::default();
    let armed = Arc::clone(&meanwhile);
    let hooked = HookedFs::new(Arc::new(fs.clone()), move |operation| {
        // Keeps the record of the transaction before, which the checkpoint has, in the queue.
        if operation == Operation::Sync
            && let Some(store) = armed.lock().unwrap().take()
        {
            put(&store, 1, b"meanwhile", CommitDurability::Memory).unwrap();
        }
    });
    let store = PageStore::open_with(Arc::new(hooked), &path(), options()).unwrap();
    put(&store, 0, b"makes the area", CommitDurability::Sync).unwrap();
    put(&store, 0, b"in the checkpoint", CommitDurability::Memory).unwrap();
    *meanwhile.lock().unwrap() = Some(store.clone());
    let txid = store.checkpoint().unwrap().txid;
    put(&store, 2, b"value", CommitDurability::Sync).unwrap();
    drop(store);
    fs.power_loss(1);
    let store = open(&fs);
    assert_eq!(store.durable().txid, txid);
    assert_eq!(store.read().txid(), txid + 2, "each transaction has the number that it had");
    assert_eq!(get(&store, 1).unwrap(), b"meanwhile");
}

#[test]
fn a_long_checkpoint_goes_to_the_disk_in_pieces_and_a_short_one_at_once() {
    let write_backs = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&write_backs);
    let fs = HookedFs::new(Arc::new(disk(1)), move |operation| {
        count.fetch_add(u64::from(operation == Operation::WriteBack), Ordering::Relaxed);
    });
    let store = PageStore::open_with(Arc::new(fs), &path(), Options::default()).unwrap();
    let checkpoint_of = |keys: std::ops::Range<u64>| {
        let mut txn = store.write().unwrap();
        let mut tree = txn.tree("t").unwrap();
        keys.for_each(|key| tree.put(&key.to_be_bytes(), &[7; 1000]).unwrap());
        txn.commit(CommitDurability::Memory).unwrap();
        let before = write_backs.load(Ordering::Relaxed);
        store.checkpoint().unwrap();
        write_backs.load(Ordering::Relaxed) - before
    };
    // Of each piece that is full: it is handed to the disk, and the one before is waited for.
    let long = checkpoint_of(0..4_000);
    assert!((6..=10).contains(&long), "{long} calls for 4 MB");
    assert_eq!(checkpoint_of(0..10), 0, "a few pages are no piece");
}
