//! A checkpoint that is reported as durable is durable: with the power gone before any of its
//! operations and after, the store must have at least that much, with any entries applied while it
//! was made.

use std::sync::Arc;

use flotilla_vfs::fault::FaultFs;
use flotilla_vfs::hooked::{HookedFs, Operation};
use parking_lot::Mutex;

use super::expected_state::{ReplicaState, stored_rows};
use super::*;

/// The expected state of the store while it works.
#[derive(Default)]
struct Known {
    /// Operations since the checkpoint began; none are counted before.
    count: Option<u64>,
    /// To apply one more entry with, at its operation.
    store: Option<Arc<Store>>,
    /// The least state that region 2 and the others must have after a crash now.
    expected: ReplicaState,
    has_applied: bool,
}

const ENTRIES: u64 = 6;
/// The number of entries that are applied before the checkpoint; the next one is applied while it
/// is made.
const APPLIED: usize = 4;

fn entries() -> Vec<LogEntry> {
    let value = |index: u64| format!("{index}-{}", "v".repeat(3000));
    let keys = |index: u64| [format!("c{}", index % 3), "d".to_owned()];
    let entry = |index| keys(index).map(|key| put(&key, &value(index)));
    (1..=ENTRIES).map(|index| ops(index, &entry(index))).collect()
}

/// Opens a disk as a crash left it and looks at region 2.
fn look(crashed: FaultFs, expected: &ReplicaState, at: &str) {
    let (store, recovered) = try_open(&crashed).unwrap_or_else(|error| panic!("{at}: {error}"));
    let found = recovered.iter().find(|found| found.descriptor.id == RegionId(2)).unwrap();
    assert!(
        found.applied.0.0 >= expected.durable,
        "{at}: {} was told to be durable, {} is",
        expected.durable,
        found.applied.0
    );
    expected.check(found, &stored_rows(&store, 2));
    store.check().unwrap_or_else(|error| panic!("{at}: {error}"));
}

/// Makes a checkpoint, with an entry applied before its operation `at`, and lets the log forget the
/// entries which that covers. Before each operation and at the end it checks the state that a crash
/// would leave. Returns whether the checkpoint has as many operations.
fn checkpoint(at: u64) -> bool {
    let fs = FaultFs::new(at);
    let known: Arc<Mutex<Known>> = Arc::default();
    let (seen, disk) = (Arc::clone(&known), fs.clone());
    let hook = move |operation| {
        if !matches!(operation, Operation::Write | Operation::Sync) {
            return;
        }
        let (count, acting) = {
            let mut known = seen.lock();
            let Some(count) = &mut known.count else { return };
            *count += 1;
            let count = *count;
            (count, if count == at { known.store.take() } else { None })
        };
        if let Some(store) = acting {
            let more = &entries()[APPLIED..=APPLIED];
            store.apply(&[task(2, more)]).unwrap();
            let mut known = seen.lock();
            known.expected.apply(more);
            known.has_applied = true;
        }
        let expected = seen.lock().expected.clone();
        look(disk.crashed(count), &expected, &format!("applied at {at}, cut before {count}"));
    };
    let disk = Arc::new(HookedFs::new(Arc::new(fs.clone()), hook));
    let seed = StartSeed { uuid: StoreUuid(7), nonce: 9 };
    let opened = StoreDirectory::open(disk, Path::new("/data/store"), config(), seed);
    let (store, _) = begin(opened.unwrap(), &regions()).unwrap();
    let store = Arc::new(store);
    let all = entries();
    let write = write(2, hard_state(1, 0, ENTRIES), &all);
    let mut expected = ReplicaState::default();
    expected.queue(&write);
    store.write_log(std::slice::from_ref(&write), &[], &[], &[]).wait().unwrap();
    expected.ack(&write);
    store.apply(&[task(2, &all[..APPLIED])]).unwrap();
    expected.apply(&all[..APPLIED]);
    *known.lock() =
        Known { count: Some(0), store: Some(Arc::clone(&store)), expected, has_applied: false };

    let told = store.checkpoint().unwrap();
    let told = told.replicas.into_iter().find(|replica| replica.region == RegionId(2)).unwrap();
    let applied = told.applied;
    assert!(applied.0 >= APPLIED as u64, "told of {applied} only");
    let has_applied = {
        let mut known = known.lock();
        known.expected.durable = applied.0;
        known.expected.compact(applied.0 + 1);
        known.store = None;
        known.has_applied
    };
    let expected = || known.lock().expected.clone();
    for seed in 0..4 {
        look(fs.crashed(seed), &expected(), &format!("applied at {at}, after the checkpoint"));
    }
    compact(&store, 2, applied.0 + 1, 1);
    store.purge_log().unwrap();
    // The store does nothing more when it ends.
    known.lock().count = None;
    drop(store);
    fs.power_loss(at);
    look(fs, &expected(), &format!("applied at {at}, and compacted"));
    has_applied
}

#[test]
fn what_a_checkpoint_tells_is_there_after_a_crash_at_any_operation() {
    let operations = (1..).take_while(|at| checkpoint(*at)).count();
    assert!(operations > 5, "a checkpoint has {operations} operations");
}
