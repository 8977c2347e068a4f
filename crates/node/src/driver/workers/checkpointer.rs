//! The checkpointer: follows the store's maintenance policy, so that applied state becomes durable
//! now and then and the log before it can be purged.

use std::sync::Arc;
use std::time::{Duration, Instant};

use flotilla_pagestore::Error as PagesError;
use flotilla_region::{EndTask, Event};
use flotilla_store::{
    CheckpointReport, CheckpointedReplica, DirtyLimits, Error, Pacer, Store, StoreMaintenance,
};
use parking_lot::{Condvar, Mutex};

use super::checkpoint_log::CheckpointLog;
use crate::driver::latencies::Latencies;
use crate::driver::shard_message::Mailboxes;
use crate::driver::workers::page_damage::PageDamage;
use crate::drop_notify::DropNotify;
use crate::failure::NodeFailure;

/// After an action that may have slowed others at the disk, the rest is this many times as long.
const RESTS: u32 = 9;
/// The longest of these rests.
const REST_MAX: Duration = Duration::from_millis(250);

/// Dirty bytes may be so many times as much while a full disk refuses checkpoints.
const FULL_DISK_FACTOR: u64 = 2;

/// After a checkpoint that a full disk has refused.
const REFUSED_REST: Duration = Duration::from_millis(100);

/// A throttled applier looks this often whether fewer dirty bytes are in memory.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Wakes the checkpointer when there is work, and throttles the applier. A store at rest makes no
/// checkpoints.
pub(crate) struct CheckpointSignal {
    /// Times are counted from here.
    start: Instant,
    state: Mutex<SignalState>,
    wake: Condvar,
}

#[derive(Default)]
struct SignalState {
    /// The checkpointer was told of a change since the last checkpoint: the policy knows since when
    /// there are some.
    changed: bool,
    /// The checkpointer was told that work should not wait for its time.
    urgent: bool,
    /// A checkpoint is asked for, whatever the policy says.
    demanded: bool,
    /// The checkpointer should look at the store.
    woken: bool,
    stopped: bool,
    /// Made until now.
    checkpoints: u64,
    /// The rate at which applying may go on.
    pacer: Pacer,
    /// How long applying was held back since that was asked last.
    throttled: Duration,
    /// A full disk has refused the last checkpoint.
    is_refused: bool,
}

impl CheckpointSignal {
    /// Nothing to do.
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), state: Mutex::default(), wake: Condvar::new() }
    }

    /// Entries were applied; `urgent` if maintenance should not wait for its time. Wakes the
    /// checkpointer for the first change after a checkpoint and when it becomes urgent, not for
    /// each.
    pub(crate) fn changed(&self, urgent: bool) {
        let mut state = self.state.lock();
        if !state.changed || (urgent && !state.urgent) {
            (state.changed, state.woken) = (true, true);
            state.urgent |= urgent;
            self.wake.notify_all();
        }
    }

    /// Something waits for a durable root: the next checkpoint comes at once. If a full disk
    /// refuses it, the one after that comes in its time.
    pub(crate) fn demand(&self) {
        let mut state = self.state.lock();
        (state.demanded, state.changed, state.urgent, state.woken) = (true, true, true, true);
        self.wake.notify_all();
    }

    /// Whether a checkpoint was asked for since this was asked last.
    fn take_demand(&self) -> bool {
        std::mem::take(&mut self.state.lock().demanded)
    }

    /// A checkpoint was made, which has written `bytes` in `took`.
    fn checkpointed(&self, bytes: u64, took: Duration) {
        let mut state = self.state.lock();
        state.checkpoints += 1;
        // The checkpointer looks at the store after this call, so no change is missed.
        (state.changed, state.is_refused) = (false, false);
        state.pacer.note_checkpoint(bytes, took);
        self.wake.notify_all();
    }

    /// A full disk has refused a checkpoint. Returns whether it is the first one.
    fn refused(&self) -> bool {
        let mut state = self.state.lock();
        self.wake.notify_all();
        !std::mem::replace(&mut state.is_refused, true)
    }

    /// Rests for `time`, or until work is urgent.
    fn rest(&self, time: Duration) {
        let end = Instant::now() + time;
        let mut state = self.state.lock();
        let mut is_over = false;
        while !(is_over || state.urgent || state.stopped) {
            is_over = self.wake.wait_until(&mut state, end).timed_out();
        }
    }

    /// The write throttle: blocks the applier as long as its next transaction has to wait, so that
    /// applying adds no more dirty bytes than checkpoints take away. The nearer the dirty bytes
    /// come to their hard limit, the longer it waits; at the limit until a checkpoint has written
    /// some of them, or the checkpointer is stopped.
    ///
    /// A full disk refuses checkpoints. Then the hard limit is higher: puts are refused by then,
    /// and the reads of what is committed need it applied. Beyond that it waits until there is
    /// room.
    pub(crate) fn throttle(&self, limits: DirtyLimits, dirty_bytes: impl Fn() -> u64) {
        let (mut asked, mut held_since) = (None, None);
        let mut state = self.state.lock();
        while !state.stopped {
            let (dirty, now) = (dirty_bytes(), self.start.elapsed());
            let left = match state.is_refused {
                true if dirty < limits.hard_bytes.saturating_mul(FULL_DISK_FACTOR) => {
                    Some(Duration::ZERO)
                }
                _ => state.pacer.left(limits, dirty, now),
            };
            if left == Some(Duration::ZERO) {
                state.pacer.begin(dirty, now);
                let held = held_since.map(|since: Duration| now.saturating_sub(since));
                state.throttled += held.unwrap_or_default();
                return;
            }
            held_since = held_since.or(Some(now));
            // Once for each checkpoint: one that a full disk refused is retried in its time.
            if left.is_none() && asked != Some(state.checkpoints) {
                asked = Some(state.checkpoints);
                (state.urgent, state.woken) = (true, true);
                self.wake.notify_all();
            }
            self.wake.wait_for(&mut state, left.unwrap_or(LOOK_EVERY).min(LOOK_EVERY));
        }
    }

    /// Ends the checkpointer, without a last checkpoint.
    pub(crate) fn stop(&self) {
        self.state.lock().stopped = true;
        self.wake.notify_all();
    }

    /// How long applying was held back since this was asked last.
    fn take_throttled(&self) -> Duration {
        std::mem::take(&mut self.state.lock().throttled)
    }

    fn is_stopped(&self) -> bool {
        self.state.lock().stopped
    }

    /// Waits until there may be work: until it is woken or stopped, or `until` has come.
    fn wait(&self, until: Option<Duration>) {
        let until = until.map(|until| self.start + until);
        let mut state = self.state.lock();
        let mut is_over = false;
        while !(is_over || state.woken || state.stopped) {
            match until {
                Some(until) => is_over = self.wake.wait_until(&mut state, until).timed_out(),
                None => self.wake.wait(&mut state),
            }
        }
        (state.woken, state.urgent) = (false, false);
    }
}

/// The checkpointer's thread, before it runs.
pub(crate) struct Checkpointer {
    pub(crate) store: Arc<DropNotify<Store>>,
    pub(crate) damage: PageDamage,
    pub(crate) signal: Arc<CheckpointSignal>,
    pub(crate) mailboxes: Mailboxes,
    pub(crate) latencies: Arc<Latencies>,
    pub(crate) failure: NodeFailure,
}

impl Checkpointer {
    /// Runs until it is stopped, a checkpoint fails or a page is found corrupt.
    pub(crate) fn run(self) {
        let mut log = CheckpointLog::new(Instant::now());
        self.run_until_stopped(&mut log);
        self.tell(&mut log, true);
    }

    /// Logs what a line is due about.
    fn tell(&self, log: &mut CheckpointLog, is_end: bool) {
        if let Some(tally) = log.take(Instant::now(), is_end) {
            tally.log(self.signal.take_throttled());
        }
    }

    fn run_until_stopped(&self, log: &mut CheckpointLog) {
        while !self.signal.is_stopped() {
            self.tell(log, false);
            let Err(error) = self.step(log) else { continue };
            // Nothing was written, and nothing is lost: the log has everything. The pages stay in
            // memory until there is room.
            if error.is_no_space() {
                if self.signal.refused() {
                    tracing::warn!("the disk is full: checkpoints wait for room");
                }
                self.signal.rest(REFUSED_REST);
                continue;
            }
            // One that the scrub, a deferred free or a move of pages has met.
            if let Error::Pages(corrupt @ PagesError::Corrupt { page, .. }) = &error {
                if self.damage.found_by_maintenance(*page, corrupt) {
                    continue;
                }
                return;
            }
            self.failure.report(&format!("a checkpoint failed: {error}"));
            return;
        }
    }

    /// One action, or a wait for the next.
    fn step(&self, log: &mut CheckpointLog) -> Result<(), Error> {
        let (dirty_bytes, began) = (self.store.dirty_bytes(), Instant::now());
        if self.signal.take_demand() {
            let durable = self.store.checkpoint()?;
            self.note_checkpoint(dirty_bytes, began.elapsed(), log);
            return self.complete(durable, log);
        }
        match self.store.maintain(self.signal.start.elapsed())? {
            StoreMaintenance::Checkpointed(durable) => {
                self.note_checkpoint(dirty_bytes, began.elapsed(), log);
                self.complete(durable, log)?;
            }
            // Nothing waits for this action: the rest leaves the disk to writers.
            StoreMaintenance::SpaceReturned => {
                self.signal.rest((began.elapsed() * RESTS).min(REST_MAX));
            }
            StoreMaintenance::LogUnreadable { error, replica } => {
                tracing::error!("the scrub has found an entry of the log that is lost: {error}");
                self.damage.tell(replica);
            }
            StoreMaintenance::ScrubUnreadable(error) => {
                tracing::warn!("the scrub of the pages cannot read the disk: {error}");
            }
            StoreMaintenance::Progress => {}
            StoreMaintenance::Rest { until } => self.signal.wait(until),
        }
        Ok(())
    }

    /// A checkpoint was made, which has written `bytes` in `took`.
    fn note_checkpoint(&self, bytes: u64, took: Duration, log: &mut CheckpointLog) {
        tracing::debug!(bytes, ms = took.as_millis(), "a checkpoint was made");
        log.note(bytes, took);
        self.signal.checkpointed(bytes, took);
        self.latencies.checkpoint.observe(took);
    }

    /// Notifies the shards of a checkpoint, and purges what earlier ones have made superfluous: the
    /// shards answer this checkpoint with compactions, which are written before the next.
    fn complete(&self, durable: CheckpointReport, log: &mut CheckpointLog) -> Result<(), Error> {
        self.mailboxes.complete_all(durable.replicas.into_iter().map(|replica| {
            let CheckpointedReplica { region, applied, installed } = replica;
            Event::Checkpointed { region, applied, installed }
        }));
        let ended = |EndTask { region, peer }| Event::Ended { region, peer };
        self.mailboxes.complete_all(durable.ended.into_iter().map(ended));
        // After the checkpoint: what it made durable is what the log may lose.
        let purged = self.store.purge_log()?;
        if purged.segments > 0 {
            tracing::debug!(segments = purged.segments, bytes = purged.bytes, "log purged");
            log.note_purge(purged.segments, purged.bytes);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    const LIMITS: DirtyLimits = DirtyLimits { soft_bytes: 1000, hard_bytes: 3000 };

    /// Whether the checkpointer would look at the store now.
    fn is_woken(signal: &CheckpointSignal) -> bool {
        let is_woken = signal.state.lock().woken;
        signal.wait(Some(Duration::ZERO));
        is_woken
    }

    #[test]
    fn a_change_wakes_once_for_each_checkpoint_and_when_it_becomes_urgent() {
        let signal = CheckpointSignal::new();
        assert!(!is_woken(&signal), "a store at rest");
        signal.changed(false);
        assert!(is_woken(&signal));
        signal.changed(false);
        assert!(!is_woken(&signal), "the policy knows since when there are changes");
        signal.changed(true);
        assert!(is_woken(&signal));
        signal.checkpointed(0, Duration::ZERO);
        assert!(!is_woken(&signal));
        signal.changed(false);
        assert!(is_woken(&signal));
    }

    #[test]
    fn a_demand_wakes_and_is_taken_once() {
        let signal = CheckpointSignal::new();
        assert!(!signal.take_demand());
        signal.changed(true);
        assert!(!signal.take_demand(), "a change that is urgent is for the policy to judge");
        signal.demand();
        assert!(is_woken(&signal) && signal.take_demand() && !signal.take_demand());
    }

    #[test]
    fn an_applier_goes_on_beyond_the_limit_while_a_full_disk_refuses_checkpoints() {
        let signal = CheckpointSignal::new();
        assert!(signal.refused() && !signal.refused(), "told once");
        signal.throttle(LIMITS, || 5999);
        std::thread::scope(|scope| {
            let applier = scope.spawn(|| signal.throttle(LIMITS, || 6000));
            signal.wait(None);
            assert!(!applier.is_finished(), "it has a bound all the same");
            signal.stop();
            applier.join().unwrap();
        });
        let signal = CheckpointSignal::new();
        assert!(signal.refused());
        signal.checkpointed(0, Duration::ZERO);
        assert!(signal.refused(), "a checkpoint was made in between");
    }

    #[test]
    fn a_sleeping_checkpointer_is_woken_by_a_change_by_its_time_and_by_the_stop() {
        let signal = CheckpointSignal::new();
        let sleep = |until| {
            std::thread::scope(|scope| {
                let sleeper = scope.spawn(|| signal.wait(until));
                if until.is_none() {
                    signal.changed(true);
                }
                sleeper.join().unwrap();
            })
        };
        sleep(None);
        sleep(Some(Duration::ZERO));
        signal.stop();
        sleep(Some(Duration::from_secs(3600)));
        assert!(signal.is_stopped());
    }

    #[test]
    fn a_stalled_applier_asks_once_for_each_checkpoint_and_goes_on_when_there_is_room() {
        let signal = CheckpointSignal::new();
        let dirty = AtomicU64::new(3000);
        std::thread::scope(|scope| {
            let applier = scope.spawn(|| signal.throttle(LIMITS, || dirty.load(Ordering::SeqCst)));
            for left in [3000, 1000] {
                // Urgent; the first of the two checkpoints does not suffice.
                signal.wait(None);
                assert!(
                    !signal.state.lock().woken,
                    "one that a full disk refused is retried in its time"
                );
                dirty.store(left, Ordering::SeqCst);
                signal.checkpointed(2000, Duration::ZERO);
            }
            applier.join().unwrap();
        });
        // Full for good, but stopped.
        std::thread::scope(|scope| {
            let applier = scope.spawn(|| signal.throttle(LIMITS, || 3000));
            signal.stop();
            applier.join().unwrap();
        });
    }

    #[test]
    fn an_applier_between_the_limits_rests_and_asks_for_nothing() {
        let signal = CheckpointSignal::new();
        let limits = DirtyLimits { soft_bytes: 64 << 20, hard_bytes: 256 << 20 };
        // Writing the bytes above the soft limit now takes days.
        signal.checkpointed(1 << 20, Duration::from_secs(3600));
        let (dirty, looks) = (AtomicU64::new(200 << 20), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let applier = scope.spawn(|| {
                signal.throttle(limits, || {
                    looks.fetch_add(1, Ordering::SeqCst);
                    dirty.load(Ordering::SeqCst)
                });
            });
            while looks.load(Ordering::SeqCst) < 2 {
                assert!(!applier.is_finished(), "it went on without a rest");
                std::thread::yield_now();
            }
            dirty.store(64 << 20, Ordering::SeqCst);
            applier.join().unwrap();
        });
        assert!(!is_woken(&signal), "no checkpoint was asked for");
    }

    #[test]
    fn a_rest_ends_when_work_is_urgent() {
        let signal = CheckpointSignal::new();
        signal.rest(Duration::ZERO);
        std::thread::scope(|scope| {
            let resting = scope.spawn(|| signal.rest(Duration::from_secs(3600)));
            signal.changed(false);
            signal.changed(true);
            resting.join().unwrap();
        });
    }
}
