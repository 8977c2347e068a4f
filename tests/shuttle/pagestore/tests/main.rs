//! Readers, writers and the checkpoint in many orders: a model checker decides at each lock, each
//! look at the page table and each sleep which thread runs next. Bytes that a reader has borrowed
//! must stay as they were, though their buffers are written, taken out of the table, and used again
//! for other pages. Of the threads that commit none hangs, and a commit that was reported durable
//! survives a power loss.
//!
//! `PAGESTORE_SCHEDULES` is the count of orders that each scenario is tried in.

use std::path::Path;
use std::sync::Arc;

use flotilla_pagestore::{CommitDurability, Error, Options, PageStore, Snapshot};
use flotilla_vfs::FileSystem;
use flotilla_vfs::fault::FaultFs;
use flotilla_vfs::hooked::{HookedFs, Operation};
use flotilla_vfs::os::OsFs;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::thread;

const KEYS: [&[u8]; 3] = [b"a", b"b", b"long"];

fn schedules() -> usize {
    let count = std::env::var("PAGESTORE_SCHEDULES");
    count.map_or(1000, |count| count.parse().expect("a number of schedules"))
}

fn value(key: &[u8], round: u8) -> Vec<u8> {
    vec![round; if key == b"long" { 5000 } else { 50 }]
}

/// Writes `round` under every key, in two trees.
fn write_round(store: &PageStore, round: u8) {
    let mut txn = store.write().expect("nothing has failed");
    for name in ["t", "u"] {
        let mut tree = txn.tree(name).expect("pages are whole");
        for key in KEYS {
            tree.put(key, &value(key, round)).expect("pages are whole");
        }
    }
    txn.set_commit_metadata(&[round]);
    txn.publish().expect("nothing has failed");
}

/// Borrows all there is, lets others go on, and looks again.
fn look(snapshot: &Snapshot) {
    let round = snapshot.commit_metadata()[0];
    let trees = ["t", "u"].map(|name| snapshot.tree(name).expect("pages are whole"));
    let trees = trees.map(|tree| tree.expect("made in round 1"));
    let mut borrowed = Vec::new();
    for tree in &trees {
        for key in KEYS {
            let found = tree.get(key).expect("pages are whole").expect("put in round 1");
            borrowed.push((key, found));
        }
    }
    for _ in 0..3 {
        thread::yield_now();
        for (key, found) in &borrowed {
            assert!(**found == value(key, round), "{key:?} of round {round}: {:?}", &found[..8]);
        }
    }
}

/// Two readers beside the writer and the checkpoint.
fn scenario(fs: Arc<dyn FileSystem>, path: &Path) {
    let options = Options::default().growth_bytes(0).redo_bytes(0);
    let store = PageStore::open_with(fs, path, options).expect("it opens");
    write_round(&store, 1);
    let spawn = |act: fn(&PageStore)| {
        let store = store.clone();
        thread::spawn(move || act(&store))
    };
    let threads = [
        spawn(|store| (2..5).for_each(|round| write_round(store, round))),
        spawn(|store| {
            for _ in 0..2 {
                store.checkpoint().expect("the disk is well");
            }
        }),
        spawn(|store| {
            for _ in 0..2 {
                look(&store.read());
            }
        }),
        spawn(|store| {
            let first = store.read();
            look(&store.read());
            look(&first);
        }),
    ];
    for thread in threads {
        thread.join().expect("nothing was wrong");
    }
    look(&store.read());
    store.checkpoint().expect("the disk is well");
    write_round(&store, 9);
    assert_eq!(store.stats().reads.retired_bytes, 0, "all readers have ended");
    store.check().expect("every page has one owner");
}

fn run(scheduler: impl Scheduler + 'static, act: impl Fn() + Send + Sync + 'static) {
    let mut config = shuttle::Config::new();
    config.stack_size = 1 << 20;
    config.max_steps = shuttle::MaxSteps::FailAfter(1_000_000);
    shuttle::Runner::new(scheduler, config).run(act);
}

fn in_memory() {
    let fs = FaultFs::new(1);
    scenario(Arc::new(fs), Path::new("/pages"));
}

#[test]
fn borrowed_pages_stay_in_any_order() {
    run(RandomScheduler::new(schedules()), in_memory);
}

#[test]
fn borrowed_pages_stay_in_orders_with_few_changes() {
    run(PctScheduler::new(3, schedules()), in_memory);
}

#[test]
fn borrowed_pages_stay_on_a_mapped_file() {
    run(RandomScheduler::new(schedules() / 10), || {
        let dir = tempfile::tempdir().expect("the system's directory can be written");
        scenario(Arc::new(OsFs::new()), &dir.path().join("pages"));
    });
}

/// A store with a redo area, on a disk at which others may come in before each write and each sync.
fn with_redo(disk: &FaultFs) -> PageStore {
    let let_others_in = |operation| {
        if matches!(operation, Operation::Write | Operation::Sync) {
            thread::yield_now();
        }
    };
    let fs = Arc::new(HookedFs::new(Arc::new(disk.clone()), let_others_in));
    let options = Options::default().growth_bytes(0).redo_bytes(64 << 10);
    let store = PageStore::open_with(fs, Path::new("/pages"), options).expect("it opens");
    commit(&store, b"first").expect("the disk is well");
    store
}

fn commit(store: &PageStore, key: &[u8]) -> Result<u64, Error> {
    let mut txn = store.write()?;
    txn.tree("t")?.put(key, key)?;
    txn.commit(CommitDurability::Sync)
}

/// Proves that each key is there, and found, if the power goes now.
fn assert_durable(disk: &FaultFs, keys: &[Vec<u8>]) {
    let disk = disk.crashed(keys.len() as u64);
    disk.fail_syncs(false);
    let fs = Arc::new(disk);
    let options = Options::default().growth_bytes(0).redo_bytes(64 << 10);
    let store = PageStore::open_with(fs, Path::new("/pages"), options).expect("it opens");
    let tree = store.read().tree("t").expect("pages are whole").expect("it is there");
    for key in keys {
        let found = tree.get(key).expect("pages are whole");
        assert_eq!(found.as_deref(), Some(&key[..]), "it was told to be durable");
    }
    store.check().expect("every page has one owner");
}

/// Threads that commit, one that syncs what it has published, and the checkpoint. With `fails` the
/// disk refuses syncs after a while.
fn committing(fails: bool) {
    let disk = FaultFs::new(1);
    let store = with_redo(&disk);
    let committer = |name: u8| {
        let (store, disk) = (store.clone(), disk.clone());
        thread::spawn(move || {
            let mut told = vec![b"first".to_vec()];
            for i in 0..2 {
                let key = vec![name, i];
                match commit(&store, &key) {
                    Ok(txid) => assert!(store.durable_txid() >= txid, "{key:?}"),
                    Err(_) if fails => break,
                    Err(error) => panic!("{error}"),
                }
                told.push(key);
                assert_durable(&disk, &told);
            }
            told
        })
    };
    let mut threads = vec![committer(b'a'), committer(b'b'), committer(b'c')];
    let (other, its_disk) = (store.clone(), disk.clone());
    threads.push(thread::spawn(move || {
        let published = other.write().and_then(|mut txn| {
            txn.tree("t")?.put(b"published", b"published")?;
            txn.publish()
        });
        let synced = published.and_then(|txid| other.sync().map(|durable| (txid, durable)));
        match synced {
            Ok((txid, durable)) => assert!(durable >= txid, "{durable} instead of {txid}"),
            Err(_) if fails => return Vec::new(),
            Err(error) => panic!("{error}"),
        }
        assert_durable(&its_disk, &[b"published".to_vec()]);
        vec![b"published".to_vec()]
    }));
    let (other, its_disk) = (store.clone(), disk.clone());
    threads.push(thread::spawn(move || {
        let made = other.checkpoint();
        assert!(made.is_ok() || fails, "{made:?}");
        its_disk.fail_syncs(fails);
        Vec::new()
    }));
    let told: Vec<Vec<u8>> =
        threads.into_iter().flat_map(|thread| thread.join().expect("nothing was wrong")).collect();
    disk.fail_syncs(false);
    if !fails {
        assert_eq!(store.durable_txid(), store.read().txid());
        store.check().expect("every page has one owner");
    }
    assert_durable(&disk, &told);
}

/// One thread commits while one checkpoint has something to write. Without other threads, and with
/// little to do, it often happens that a commit goes all its way between two steps of the
/// checkpoint.
fn committing_beside_a_checkpoint() {
    let disk = FaultFs::new(1);
    let store = with_redo(&disk);
    let mut txn = store.write().expect("nothing has failed");
    txn.tree("t").and_then(|mut tree| tree.put(b"published", b"published")).expect("put");
    txn.publish().expect("nothing has failed");
    let other = store.clone();
    let checkpoint = thread::spawn(move || {
        other.checkpoint().expect("the disk is well");
    });
    commit(&store, b"a").expect("the disk is well");
    checkpoint.join().expect("nothing was wrong");
    assert_durable(&disk, &[b"first", &b"published"[..], b"a"].map(<[u8]>::to_vec));
}

#[test]
fn commits_beside_a_checkpoint_are_durable() {
    run(RandomScheduler::new(schedules()), committing_beside_a_checkpoint);
    run(PctScheduler::new(2, 3 * schedules()), committing_beside_a_checkpoint);
}

#[test]
fn commits_are_durable_in_any_order() {
    run(RandomScheduler::new(schedules()), || committing(false));
}

#[test]
fn commits_are_durable_in_orders_with_few_changes() {
    run(PctScheduler::new(3, schedules()), || committing(false));
}

#[test]
fn nobody_waits_for_a_disk_that_fails() {
    run(RandomScheduler::new(schedules()), || committing(true));
    run(PctScheduler::new(3, schedules()), || committing(true));
}
