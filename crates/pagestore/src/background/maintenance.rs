//! Maintenance: checkpoints when they are due, deferred frees, trim and punch, the scrub; step by
//! step for a caller, or in a thread of its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::background::{defragment, trim_punch};
use crate::checkpoint::{self, CheckpointScope};
use crate::error::{Error, Result};
use crate::page::UNIT_BYTES;
use crate::shared::StoreShared;
use crate::shared::maintenance_policy::{MaintenanceAction, MaintenanceInputs, MaintenanceOutcome};
use crate::shared::scrub_progress::Scrub;
use crate::shared::write_throttle::DiskFull;
use crate::txn::write_txn::WriteTxn;

/// The interval at which the thread looks for work without a notification.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The interval at which a resting checkpoint looks whether it still may rest.
const REST_MAX: Duration = Duration::from_millis(20);

/// A checkpoint under a rate limit syncs after this many bytes, so that a concurrent commit finds a
/// short queue at the disk.
const SYNC_BYTES: u64 = 8 << 20;

/// The maintenance thread of a store. It stops when this is dropped, which waits for the step that
/// is under way, or when the store is.
#[derive(Debug)]
#[must_use = "the thread stops when this is dropped"]
pub struct MaintenanceThread {
    is_over: Arc<AtomicBool>,
    shared: Weak<StoreShared>,
    thread: Option<JoinHandle<()>>,
}

/// The next action, by the policy, of a store that takes writes.
pub(crate) fn next(
    shared: &StoreShared,
    now: Duration,
    is_urgent: bool,
) -> Result<MaintenanceAction> {
    shared.refuse_if_poisoned()?;
    // Before all else: a transaction that needs the memory would take the time.
    shared.make_slabs();
    shared.reclaim_all_ended();
    shared.end_oldest_snapshot(now);
    let inputs = inputs(shared, is_urgent);
    let action = shared.background.policy.lock().next(now, &inputs, &shared.options);
    if matches!(action, MaintenanceAction::Rest { .. }) && !inputs.has_changes {
        let idle = shared.space.lock().page_alloc.quiet_slabs(shared.current().txid, now);
        drop(idle);
    }
    Ok(action)
}

fn inputs(shared: &StoreShared, is_urgent: bool) -> MaintenanceInputs {
    let bytes = |units: u64| units * UNIT_BYTES as u64;
    let current = shared.current();
    let mut inputs = MaintenanceInputs {
        txid: current.txid,
        has_changes: current.txid != shared.durable.read().txid,
        is_urgent,
        dirty_bytes: shared.grown_bytes(),
        redo_bytes: shared.redo.bytes(),
        deferred_free_bytes: bytes(current.deferred_free.units),
        ..MaintenanceInputs::default()
    };
    let space = shared.space.lock();
    inputs.has_spare = space.tail.is_cut || space.holes.chosen_units() > 0;
    inputs.free_bytes = bytes(space.freelist.free_units());
    inputs.span_bytes = bytes(space.freelist.end());
    inputs
}

/// Carries an action out.
pub(crate) fn run(
    shared: &Arc<StoreShared>,
    now: Duration,
    action: MaintenanceAction,
) -> Result<MaintenanceOutcome> {
    let mut is_round_over = false;
    let outcome = match action {
        MaintenanceAction::Checkpoint => {
            checkpoint(shared).map(|()| MaintenanceOutcome::Checkpointed)
        }
        MaintenanceAction::Reclaim { bytes } => reclaim(shared, bytes),
        MaintenanceAction::TrimPunch => trim_punch::step(shared).map(|done| match done {
            true => MaintenanceOutcome::TrimmedOrPunched,
            false => MaintenanceOutcome::Nothing,
        }),
        MaintenanceAction::Defragment { bytes } => {
            defragment::try_step(shared, bytes).map(|progress| match progress {
                Some(progress) => {
                    is_round_over = progress.is_done;
                    MaintenanceOutcome::Moved { bytes: progress.moved_bytes }
                }
                None => MaintenanceOutcome::Nothing,
            })
        }
        MaintenanceAction::Scrub { bytes } => scrub(shared, bytes),
        MaintenanceAction::Rest { .. } => Ok(MaintenanceOutcome::Nothing),
    };
    let mut policy = shared.background.policy.lock();
    match &outcome {
        Ok(outcome) => policy.note(now, action, *outcome, is_round_over),
        // Without a wait the next action would be the same one, over and over.
        Err(Error::NoSpace) => policy.note_full(),
        Err(_) => {}
    }
    drop(policy);
    outcome
}

/// The next action, carried out.
pub(crate) fn step(shared: &Arc<StoreShared>, now: Duration) -> Result<MaintenanceOutcome> {
    let action = next(shared, now, false)?;
    match run(shared, now, action) {
        // The spare space of the file may be the room that is missing.
        Err(Error::NoSpace) if trim_punch::step(shared)? => {
            Ok(MaintenanceOutcome::TrimmedOrPunched)
        }
        outcome => outcome,
    }
}

/// Frees deferred pages. Nothing if a writer is in the way: the holder of the writer lock may wait
/// for a checkpoint, which only the thread of this call makes.
fn reclaim(shared: &Arc<StoreShared>, bytes: u64) -> Result<MaintenanceOutcome> {
    let Some(mut txn) = WriteTxn::try_begin(shared)? else {
        return Ok(MaintenanceOutcome::Nothing);
    };
    let (units, met) = txn.reclaim(bytes.div_ceil(UNIT_BYTES as u64))?;
    txn.publish()?;
    if met.is_err() {
        // Reported once; a check, and a caller of `reclaim`, see the error again.
        shared.background.policy.lock().note_unreadable();
    }
    met.map(|()| match units * UNIT_BYTES as u64 {
        0 => MaintenanceOutcome::Nothing,
        bytes => MaintenanceOutcome::Reclaimed { bytes },
    })
}

/// Goes on with the scrub; after the last page another pass begins.
fn scrub(shared: &StoreShared, bytes: u64) -> Result<MaintenanceOutcome> {
    let counters = &shared.counters;
    let mut scrub = shared.background.scrub.lock();
    let before = scrub.bytes();
    let outcome = scrub.step(shared, bytes);
    counters.scrubbed_bytes.fetch_add(scrub.bytes() - before, Ordering::Relaxed);
    counters.scrub_errors.fetch_add(u64::from(outcome.is_err()), Ordering::Relaxed);
    if scrub.is_done() {
        *scrub = Scrub::new();
        counters.scrub_passes.fetch_add(1, Ordering::Relaxed);
    }
    outcome.map(|()| MaintenanceOutcome::Scrubbed)
}

/// A checkpoint under the rate limit.
fn checkpoint(shared: &StoreShared) -> Result<()> {
    let began = Instant::now();
    let mut written = 0;
    let mut synced = 0;
    let mut pace = |bytes: u64| {
        written += bytes;
        shared.background.write_throttle.progress();
        shared.make_slabs();
        if written - synced >= SYNC_BYTES {
            synced = written;
            shared.page_reader.file().sync()?;
        }
        while let Some(rest) = rest(shared, began, written) {
            shared.make_slabs();
            shared.background.notify.rest(rest.min(REST_MAX));
        }
        Ok(())
    };
    let outcome = checkpoint::run_paced(shared, CheckpointScope::Pages, &mut pace);
    match &outcome {
        Ok(()) => shared.background.write_throttle.ended(Ok((written, began.elapsed()))),
        Err(Error::NoSpace) => shared.background.write_throttle.ended(Err(DiskFull)),
        Err(_) => {}
    }
    outcome
}

/// How long a checkpoint that wrote `written` bytes has to rest to keep its rate limit. Not at all
/// if a caller waits for it.
fn rest(shared: &StoreShared, began: Instant, written: u64) -> Option<Duration> {
    let options = &shared.options;
    let per_second = options.checkpoint_bytes_per_second;
    if per_second == 0 || shared.background.notify.is_urgent() {
        return None;
    }
    if options.limits().fraction(shared.dirty_bytes()) > 0.25 {
        return None;
    }
    let (used, all) = shared.redo.bytes();
    if all > 0 && used > all / 4 * 3 {
        return None;
    }
    let due = Duration::from_secs_f64(written as f64 / per_second as f64);
    due.checked_sub(began.elapsed())
}

impl MaintenanceThread {
    pub(crate) fn start(shared: &Arc<StoreShared>) -> Result<MaintenanceThread> {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        // From now on writers are throttled, however long the thread takes to start.
        let joined = ThrottleAttachment::new(shared);
        let thread = std::thread::Builder::new()
            .name("page-maintenance".to_owned())
            .spawn(move || run_thread(&over, &joined))?;
        Ok(MaintenanceThread { is_over, shared: Arc::downgrade(shared), thread: Some(thread) })
    }
}

impl Drop for MaintenanceThread {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        let shared = self.shared.upgrade();
        let _urgent = shared.as_ref().map(|shared| shared.background.notify.urge());
        if let Some(thread) = self.thread.take() {
            // If it panicked, the panic was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// Writers are throttled for this thread's checkpoints until it is dropped.
struct ThrottleAttachment(Weak<StoreShared>);

impl ThrottleAttachment {
    fn new(shared: &Arc<StoreShared>) -> ThrottleAttachment {
        shared.background.write_throttle.attach();
        ThrottleAttachment(Arc::downgrade(shared))
    }
}

impl Drop for ThrottleAttachment {
    fn drop(&mut self) {
        if let Some(shared) = self.0.upgrade() {
            shared.background.write_throttle.detach();
        }
    }
}

fn run_thread(is_over: &AtomicBool, ThrottleAttachment(weak): &ThrottleAttachment) {
    let began = Instant::now();
    let mut seen = 0;
    while !is_over.load(Ordering::Acquire) {
        // The last handle of the store is gone, so the thread ends.
        let Some(shared) = weak.upgrade() else { return };
        let stepped = Instant::now();
        match step(&shared, began.elapsed()) {
            Ok(MaintenanceOutcome::TrimmedOrPunched) => {
                seen = shared.background.notify.wait(seen, trim_punch::rest(stepped.elapsed()));
            }
            Err(_) if is_end(&shared) => return,
            Ok(MaintenanceOutcome::Nothing) | Err(_) => {
                seen = shared.background.notify.wait(seen, LOOK_EVERY)
            }
            Ok(_) => {}
        }
    }
}

/// Whether nothing can be done after an error until the store is opened again; the next writer is
/// told. Else the step is tried again: a full disk may have room then, and deferred frees that
/// cannot be read are left alone.
fn is_end(shared: &StoreShared) -> bool {
    shared.refuse_if_poisoned().is_err()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use flotilla_vfs::FileSystem;
    use flotilla_vfs::fault::FaultFs;

    use super::*;
    use crate::{Options, PageStore};

    const TIME: Duration = Duration::from_secs(1);

    #[test]
    fn only_a_store_that_takes_no_more_writes_ends_the_thread() {
        let fs = FaultFs::new(1);
        fs.create_dir_all(Path::new("/data")).unwrap();
        let options = Options::default().checkpoint_interval(Some(Duration::ZERO));
        let open = || {
            let fs = Arc::new(fs.clone());
            PageStore::open_with(fs, Path::new("/data/pages"), options.clone()).unwrap()
        };
        let store = open();
        let mut txn = store.write().unwrap();
        for key in 0..3000_u64 {
            txn.tree("t").unwrap().put(&key.to_be_bytes(), &[1; 900]).unwrap();
        }
        txn.publish().unwrap();
        let mut txn = store.write().unwrap();
        txn.tree("t").unwrap().delete_range(b"", None).unwrap();
        txn.publish().unwrap();
        store.checkpoint().unwrap();
        drop(store);
        let store = open();
        fs.cut_power_after(1);
        fs.create_dir_all(Path::new("/data/other")).unwrap_err();
        // A page that the disk cannot read; the store is well.
        let error = step(store.shared(), TIME).unwrap_err();
        assert!(matches!(error, Error::Io(_)), "{error}");
        assert!(!is_end(store.shared()));
        let mut txn = store.write().unwrap();
        txn.set_commit_metadata(b"m");
        txn.publish().unwrap();
        let error = step(store.shared(), TIME).unwrap_err();
        assert!(matches!(error, Error::Io(_)), "{error}");
        assert!(is_end(store.shared()), "a checkpoint failed");
    }

    #[test]
    #[cfg(not(any(miri, shuttle)))]
    fn thread_is_called_to_make_memory_ready() {
        let fs = FaultFs::new(1);
        fs.create_dir_all(Path::new("/data")).unwrap();
        let options = Options::default().checkpoint_interval(None);
        let store = PageStore::open_with(Arc::new(fs), Path::new("/data/pages"), options).unwrap();
        let shared = store.shared();
        let fill = |first: u64| {
            let mut txn = store.write().unwrap();
            for key in first..first + 2000 {
                txn.tree("t").unwrap().put(&key.to_be_bytes(), &[1; 900]).unwrap();
            }
            txn.publish().unwrap();
        };
        let (rung, at_once) = (|| shared.background.notify.wait(0, Duration::ZERO), Duration::ZERO);
        fill(0);
        assert_eq!(rung(), 1);
        assert!(shared.space.lock().page_alloc.wants_slab().is_some());
        fill(2000);
        assert_eq!(rung(), 1, "it knows");
        assert_eq!(step(shared, at_once).unwrap(), MaintenanceOutcome::Nothing);
        assert_eq!(shared.space.lock().page_alloc.wants_slab(), None, "they are ready");
        let mut first = 4000;
        while rung() == 1 {
            assert!(first < 20_000, "a slab of 511 pages was taken from, and nobody was called");
            fill(first);
            first += 1000;
        }
        // While it makes a checkpoint as well.
        checkpoint(shared).unwrap();
        assert_eq!(shared.space.lock().page_alloc.wants_slab(), None);
        // A caller that makes its own checkpoints, by a call of its own or by a checkpoint.
        for by_checkpoint in [false, true] {
            while !store.needs_maintenance() {
                assert!(first < 40_000, "a slab was taken from, and nobody was asked for more");
                fill(first);
                first += 1000;
            }
            if by_checkpoint {
                drop(store.checkpoint().unwrap())
            } else {
                let _ = store.next_maintenance(at_once, false).unwrap();
            }
            assert!(!store.needs_maintenance(), "{by_checkpoint}");
        }
    }

    #[test]
    #[cfg(not(any(miri, shuttle)))]
    fn long_values_lie_in_slabs_that_were_ready_and_these_go() {
        let fs = FaultFs::new(1);
        fs.create_dir_all(Path::new("/data")).unwrap();
        let options = Options::default().checkpoint_interval(None);
        let store = PageStore::open_with(Arc::new(fs), Path::new("/data/pages"), options).unwrap();
        let shared = store.shared();
        let value = |i: u64, round: u8| vec![round ^ i as u8; 12_000 + i as usize % 300];
        let ready = || shared.space.lock().page_alloc.ready_for_values_count();
        for round in 0..6 {
            for i in 0..250_u64 {
                let mut txn = store.write().unwrap();
                let mut tree = txn.tree("t").unwrap();
                let (key, value) = (i.to_be_bytes(), value(i, round));
                tree.put(&key, &value).unwrap();
                txn.publish().unwrap();
            }
            let before = ready();
            assert_eq!(step(shared, Duration::ZERO).unwrap(), MaintenanceOutcome::Nothing);
            // After a checkpoint the memory of before is used again.
            assert!(ready() == 4, "{round}");
            assert!(
                !(1..=3).contains(&round) || (before == 4) == (round == 3),
                "{round}: {before}"
            );
            let tree = store.read().tree("t").unwrap().unwrap();
            for i in 0..250_u64 {
                assert_eq!(tree.get(&i.to_be_bytes()).unwrap().unwrap(), value(i, round));
            }
            drop(tree);
            if round % 3 == 2 {
                store.checkpoint().unwrap();
                store.check().unwrap();
            }
        }
        // Pages that a checkpoint has written stay until the root that was read meanwhile is no
        // longer the last.
        let mut txn = store.write().unwrap();
        txn.set_commit_metadata(b"m");
        txn.publish().unwrap();
        assert_eq!(step(shared, Duration::ZERO).unwrap(), MaintenanceOutcome::Nothing);
        assert_eq!(ready(), 4);
        let txid = shared.current().txid;
        let quiet = |now| shared.space.lock().page_alloc.quiet_slabs(txid, now).len();
        assert_eq!(quiet(TIME), 0);
        assert!(quiet(TIME * 62) > 4, "those that are ready, and those that were in use");
        assert_eq!((ready(), shared.space.lock().page_alloc.wants_slab()), (0, None));
    }
}
