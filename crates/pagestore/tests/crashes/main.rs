//! Random calls of everything that a store can do, and a crash before each operation on the disk:
//! the file that it leaves is opened, compared with what it may be, and checked whole.
//!
//! `PAGES_SEEDS` is how many histories are tried; the default is for `cargo test`.

mod held;
mod oracle;

use std::panic;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use fastrand::Rng;
use flotilla_pagestore::{CommitDurability, Options, PageStore};
use flotilla_vfs::FileSystem;
use flotilla_vfs::fault::FaultFs;
use flotilla_vfs::hooked::{HookedFs, Operation};
use held::{HeldSnapshots, SnapshotBounds, SpillCounts};
use oracle::{State, Taste};

const STEPS: usize = 24;
/// Steps of a history whose snapshots are spilled: some must be held over two checkpoints.
const SPILL_STEPS: usize = 60;
/// How many different crashes are looked at before each operation.
const CRASHES: u64 = 2;
/// Of so many stores that are opened after a crash one is written to, and crashes again.
const SECOND_LIVES_ARE_ONE_IN: u64 = 5;

/// So many histories spill something, and so many meet refusals of it and ends of snapshots.
const SEEDS_THAT_SPILL: u64 = 6;
const SEEDS_OF_ALL: u64 = 100;

/// The states that a crash may leave: from the last one that is known to be durable to the
/// last that was published, or is about to be. A store's mark is the number of its state.
struct Known {
    states: Vec<Arc<State>>,
    durable: usize,
}

fn disk(seed: u64) -> FaultFs {
    let disk = FaultFs::new(seed);
    disk.create_dir_all(Path::new("/data")).expect("made");
    disk
}

fn options(seed: u64) -> Options {
    let redo_bytes = [0, 64 << 10, 256 << 10][seed as usize % 3];
    Options::default()
        .growth_bytes(64 << 10)
        .trim_bytes(64 << 10)
        .redo_bytes(redo_bytes)
        .checkpoint_interval(None)
}

fn open(fs: Arc<dyn FileSystem>, options: Options) -> PageStore {
    PageStore::open_with(fs, Path::new("/data/pages"), options).expect("it opens")
}

fn number_of(commit_metadata: &[u8]) -> usize {
    commit_metadata.try_into().map_or(0, u64::from_be_bytes) as usize
}

/// Opens what a crash has left and proves that it is one of the states that it may be.
fn look(disk: &FaultFs, known: &Mutex<Known>, crash: u64) {
    let store = open(Arc::new(disk.clone()), options(crash >> 32));
    let snapshot = store.read();
    let number = number_of(snapshot.commit_metadata());
    let state = {
        let known = known.lock().expect("whole");
        assert!(number >= known.durable, "state {number} instead of {} or later", known.durable);
        Arc::clone(&known.states[number])
    };
    state.assert_is(&snapshot);
    drop(snapshot);
    store.check().expect("whole");
    if !crash.is_multiple_of(SECOND_LIVES_ARE_ONE_IN) {
        return;
    }
    // A second life on top of what was left behind, and its crash.
    let mut txn = store.write().expect("nothing has failed");
    txn.tree("second life").expect("made").put(b"key", &[1; 3000]).expect("put");
    txn.commit(CommitDurability::Sync).expect("committed");
    drop(store);
    disk.power_loss(crash);
    let store = open(Arc::new(disk.clone()), options(crash >> 32));
    let tree = store.read().tree("second life").expect("read").expect("it was committed");
    assert_eq!(tree.get(b"key").expect("read").as_deref(), Some(&[1; 3000][..]));
    store.check().expect("whole");
}

/// Looks at crashes before each operation on the disk, and counts them.
fn hook(
    disk: FaultFs,
    known: Arc<Mutex<Known>>,
    seed: u64,
    count: Arc<AtomicU64>,
) -> impl Fn(Operation) + Send + Sync {
    move |operation| {
        if matches!(operation, Operation::Read | Operation::Open | Operation::List) {
            return;
        }
        for _ in 0..CRASHES {
            let crash = count.fetch_add(1, Ordering::Relaxed);
            let crash = seed << 32 | crash;
            look(&disk.crashed(crash), &known, crash);
        }
    }
}

/// One history. Returns how many crashes were looked at, and what was spilled.
fn history(seed: u64) -> (u64, SpillCounts) {
    let disk = disk(seed);
    let known = Arc::new(Mutex::new(Known { states: vec![Arc::default()], durable: 0 }));
    let count = Arc::new(AtomicU64::new(0));
    let hook = hook(disk.clone(), Arc::clone(&known), seed, Arc::clone(&count));
    let fs: Arc<dyn FileSystem> = Arc::new(HookedFs::new(Arc::new(disk.clone()), hook));
    let bounds = SnapshotBounds::of(seed);
    let options = bounds.map_or_else(|| options(seed), |bounds| bounds.set(options(seed)));
    let mut rng = Rng::with_seed(seed);
    let mut store = open(Arc::clone(&fs), options.clone());
    let mut held = HeldSnapshots::default();
    for _ in 0..if bounds.is_some() { SPILL_STEPS } else { STEPS } {
        match rng.u8(..20) {
            0 => {
                held.end(&store);
                drop(store);
                store = open(Arc::clone(&fs), options.clone());
                let mut known = known.lock().expect("whole");
                let number = number_of(store.read().commit_metadata());
                known.states.truncate(number + 1);
            }
            1 | 2 => checkpoint(&store, &known),
            3 => {
                store.sync().expect("the disk is well");
                let mut known = known.lock().expect("whole");
                known.durable = known.states.len() - 1;
            }
            4 => drop(store.reclaim(1 << rng.u8(12..20)).expect("reclaimed")),
            5 | 6 => drop(store.defragment(1 << rng.u8(12..20)).expect("moved")),
            7 => {
                let state = known.lock().expect("whole").states.last().cloned();
                held.take(&store, state.expect("there is one"));
            }
            8 => held.drop_one(&store, &mut rng),
            9..=11 if bounds.is_some() => {
                held.checkpoint_beneath(&mut rng, || checkpoint(&store, &known));
                held.assert_all(&store);
            }
            12 | 13 if bounds.is_some() => held.maintain(&store, &mut rng),
            14 if bounds.is_some() => held.inject(&disk, &mut rng),
            _ => {
                write(&store, &known, seed, &mut rng);
                if bounds.is_some() && rng.bool() {
                    let state = known.lock().expect("whole").states.last().cloned();
                    held.take(&store, state.expect("there is one"));
                }
            }
        }
    }
    held.assert_all(&store);
    store.check().expect("whole");
    held.end(&store);
    (count.load(Ordering::Relaxed), held.counts())
}

fn checkpoint(store: &PageStore, known: &Mutex<Known>) {
    let checkpoint = store.checkpoint().expect("the disk is well");
    known.lock().expect("whole").durable = number_of(&checkpoint.commit_metadata);
}

fn write(store: &PageStore, known: &Mutex<Known>, seed: u64, rng: &mut Rng) {
    let (mut state, number) = {
        let known = known.lock().expect("whole");
        let last = known.states.last().expect("there is one");
        (State::clone(last), known.states.len())
    };
    let mut txn = store.write().expect("nothing has failed");
    state.change(store, &mut txn, Taste::of(seed), rng);
    txn.set_commit_metadata(&(number as u64).to_be_bytes());
    known.lock().expect("whole").states.push(Arc::new(state));
    if rng.u8(..3) == 0 {
        txn.commit(CommitDurability::Sync).expect("the disk is well");
        known.lock().expect("whole").durable = number;
    } else {
        txn.publish().expect("published");
    }
}

#[test]
fn a_crash_anywhere_leaves_what_was_promised() {
    let seeds = std::env::var("PAGES_SEEDS").map_or(12, |seeds| seeds.parse().expect("a number"));
    let first = std::env::var("PAGES_SEED").map_or(1, |seed| seed.parse().expect("a number"));
    let (next, count) = (AtomicU64::new(first), AtomicU64::new(0));
    let spilled = Mutex::new(SpillCounts::default());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + seeds {
                        break;
                    }
                    match panic::catch_unwind(|| history(seed)) {
                        Ok((crashes, spills)) => {
                            count.fetch_add(crashes, Ordering::Relaxed);
                            *spilled.lock().expect("whole") += spills;
                        }
                        Err(fault) => {
                            eprintln!("PAGES_SEED={seed} repeats it");
                            panic::resume_unwind(fault);
                        }
                    };
                }
            });
        }
    });
    let count = count.load(Ordering::Relaxed);
    let spilled = spilled.into_inner().expect("whole");
    println!("{seeds} histories, {count} crashes, 0 violations; {spilled:?}");
    assert!(count >= seeds * 20, "hardly anything was tried");
    if seeds >= SEEDS_THAT_SPILL && cfg!(target_os = "linux") {
        assert!(spilled.written_bytes > 0 && spilled.read > 0, "nothing was spilled");
    }
    if seeds >= SEEDS_OF_ALL && cfg!(target_os = "linux") {
        assert!(spilled.refused > 0 && spilled.ended > 0, "{spilled:?}: a corner was not reached");
    }
}
