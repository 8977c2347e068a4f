//! The maintenance policy: which piece of background work comes next. It is pure: the time and the
//! figures come in, an action goes out (`docs/decisions/0021`).
//!
//! Each driver follows it: the thread of this crate, an embedder's own, and a simulation. The order
//! of urgency is: a checkpoint, for which throttled writers may wait; deferred frees; spare space
//! of the file; defragmentation, which costs writes and gains only space; the scrub.
//!
//! Moved pages are dirty until a checkpoint writes them, so a budget holds between two checkpoints.
//! The file can be truncated after the next two checkpoints; only then the result of a round of
//! defragmentation is known, and another round begins when the free space has grown by as much as
//! one truncation would return.

use std::time::Duration;

use crate::config::Options;

/// Bytes of deferred frees in one action.
const RECLAIM_BYTES: u64 = 1 << 20;

/// Bytes that one action moves.
const DEFRAGMENT_BYTES: u64 = 1 << 20;

/// Checkpoints behind a round of defragmentation until its file is truncated.
const ROUND_CHECKPOINTS: u32 = 3;

/// Bytes that one step of the scrub reads: a checkpoint waits for no more than that.
const SCRUB_BYTES: u64 = 256 << 10;

/// The shortest time between two of them: 25 MiB a second.
const SCRUB_PACE_MIN: Duration = Duration::from_millis(10);

/// A store is idle if nothing was published for this time.
const IDLE: Duration = Duration::from_secs(1);

/// In a store that is not idle a step of the scrub waits for this many times its interval: a store
/// that is never idle shall be scrubbed as well.
const SCRUB_WAITS: u32 = 8;

/// The time after which an action is tried again that found the writer lock taken.
const LOCK_RETRY: Duration = Duration::from_millis(5);

/// The time after which an action is tried again that the full disk refused.
const FULL_RETRY: Duration = Duration::from_secs(1);

/// The next piece of background work of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MaintenanceAction {
    /// A checkpoint is due.
    Checkpoint,
    /// Free about this many bytes of the deferred ones.
    Reclaim {
        /// Bytes of pages and long values.
        bytes: u64,
    },
    /// Give a piece of spare space back to the file system.
    TrimPunch,
    /// Move about this many bytes from the end of the file to free places before it.
    Defragment {
        /// Bytes of pages and long values.
        bytes: u64,
    },
    /// Read about this many bytes of the file again, to find bit rot.
    Scrub {
        /// Bytes of pages and long values.
        bytes: u64,
    },
    /// Nothing before this time, unless something changes. None: nothing until something changes.
    Rest {
        /// A time as it was given to [`PageStore::next_maintenance`].
        ///
        /// [`PageStore::next_maintenance`]: crate::PageStore::next_maintenance
        until: Option<Duration>,
    },
}

/// The result of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MaintenanceOutcome {
    /// There was nothing to do, or a writer was in the way.
    Nothing,
    /// A checkpoint was made.
    Checkpointed,
    /// Deferred pages were freed.
    Reclaimed {
        /// Their bytes.
        bytes: u64,
    },
    /// A piece of the file went back to the file system, which may have blocked other threads.
    TrimmedOrPunched,
    /// Pages were moved.
    Moved {
        /// Their bytes.
        bytes: u64,
    },
    /// A part of the file was read again, and is whole.
    Scrubbed,
}

/// The figures that the next action depends on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MaintenanceInputs {
    /// The last published transaction.
    pub(crate) txid: u64,
    /// A transaction is published that is not in the last checkpoint.
    pub(crate) has_changes: bool,
    /// The caller wants a checkpoint for changes of its own.
    pub(crate) is_urgent: bool,
    /// Bytes that are in memory only, and those that were replaced since the last checkpoint and
    /// that snapshots need.
    pub(crate) dirty_bytes: u64,
    /// The used bytes of the redo area, and its length.
    pub(crate) redo_bytes: (u64, u64),
    /// Bytes of deferred frees.
    pub(crate) deferred_free_bytes: u64,
    /// A checkpoint has left space to be truncated or punched.
    pub(crate) has_spare: bool,
    /// Free bytes of the file, and the end of what is in use.
    pub(crate) free_bytes: u64,
    pub(crate) span_bytes: u64,
}

/// The state of the policy.
#[derive(Debug, Default)]
pub(crate) struct MaintenancePolicy {
    /// The first time at which it saw a change since the last checkpoint.
    changed_at: Option<Duration>,
    /// The disk refused an action; what needs room may be tried again at the time.
    is_full: bool,
    full_until: Option<Duration>,
    /// The writer lock was taken; transactions of its own wait until then.
    locked_until: Option<Duration>,
    /// A subtree of the deferred frees cannot be read, so all of them stay.
    is_deferred_free_unreadable: bool,
    defragmentation: DefragRounds,
    scrub: ScrubPace,
}

/// How far defragmentation has come.
#[derive(Debug, Default)]
struct DefragRounds {
    /// A round has begun.
    is_moving: bool,
    /// Bytes moved since the last checkpoint.
    moved_bytes: u64,
    /// Checkpoints to wait for before another round begins.
    wait_checkpoints: u32,
    /// Free bytes below which no round begins.
    free_bytes_min: u64,
}

/// When the scrub took its last step, and whether the store is idle.
#[derive(Debug, Default)]
struct ScrubPace {
    /// The last step, or the first look.
    stepped_at: Option<Duration>,
    /// The last transaction that was seen, and when first.
    published: (u64, Duration),
}

impl MaintenancePolicy {
    /// The next action at `now`, the time since any moment that stays the same.
    pub(crate) fn next(
        &mut self,
        now: Duration,
        inputs: &MaintenanceInputs,
        options: &Options,
    ) -> MaintenanceAction {
        if std::mem::take(&mut self.is_full) {
            self.full_until = Some(now + FULL_RETRY);
        }
        self.full_until = self.full_until.filter(|until| now < *until);
        self.locked_until = self.locked_until.filter(|until| now < *until);
        self.changed_at = inputs.has_changes.then(|| self.changed_at.unwrap_or(now));

        if self.is_checkpoint_due(now, inputs, options) {
            return MaintenanceAction::Checkpoint;
        }
        // Transactions of its own need the writer lock, and room for the pages that they replace.
        let may_write = self.locked_until.is_none() && self.full_until.is_none();
        if inputs.deferred_free_bytes > 0 && !self.is_deferred_free_unreadable && may_write {
            return MaintenanceAction::Reclaim { bytes: RECLAIM_BYTES };
        }
        if inputs.has_spare {
            return MaintenanceAction::TrimPunch;
        }
        if let Some(bytes) = self.defragmentation.budget(inputs, options)
            && may_write
        {
            return MaintenanceAction::Defragment { bytes };
        }
        let scrub_due = self.scrub.due(now, inputs, options);
        if scrub_due.is_some_and(|due| due <= now) {
            self.scrub.stepped_at = Some(now);
            return MaintenanceAction::Scrub { bytes: SCRUB_BYTES };
        }
        let due = self.changed_at.zip(options.checkpoint_interval).map(|(at, time)| at + time);
        let times = [self.full_until.or(due), self.locked_until, scrub_due];
        MaintenanceAction::Rest { until: times.into_iter().flatten().min() }
    }

    /// Above the soft limit in memory, with half of the redo area in use, after the interval with
    /// changes, or because the caller wants one.
    fn is_checkpoint_due(
        &self,
        now: Duration,
        inputs: &MaintenanceInputs,
        options: &Options,
    ) -> bool {
        if self.full_until.is_some() {
            return false;
        }
        let Some(changed_at) = self.changed_at else { return inputs.is_urgent };
        let (used, all) = inputs.redo_bytes;
        debug_assert!(used <= all, "{used} bytes of a redo area of {all}");
        let age = now.saturating_sub(changed_at);
        options.checkpoint_interval.is_some_and(|interval| age >= interval)
            || inputs.is_urgent
            || inputs.dirty_bytes >= options.dirty_soft_bytes
            || all > 0 && 2 * used >= all
    }

    /// Notes the end of an action that [`MaintenancePolicy::next`] asked for.
    pub(crate) fn note(
        &mut self,
        now: Duration,
        action: MaintenanceAction,
        outcome: MaintenanceOutcome,
        is_round_over: bool,
    ) {
        match (action, outcome) {
            (
                MaintenanceAction::Reclaim { .. } | MaintenanceAction::Defragment { .. },
                MaintenanceOutcome::Nothing,
            ) => self.locked_until = Some(now + LOCK_RETRY),
            (_, MaintenanceOutcome::Moved { bytes }) => {
                let rounds = &mut self.defragmentation;
                rounds.moved_bytes += bytes;
                rounds.is_moving = !is_round_over;
                if is_round_over {
                    rounds.wait_checkpoints = ROUND_CHECKPOINTS;
                }
            }
            _ => {}
        }
    }

    /// A subtree of the deferred frees cannot be read.
    pub(crate) fn note_unreadable(&mut self) {
        self.is_deferred_free_unreadable = true;
    }

    /// The subtrees that cannot be read were given up.
    pub(crate) fn note_readable(&mut self) {
        self.is_deferred_free_unreadable = false;
    }

    /// The full disk refused an action. Nothing was written, and it may be tried again.
    pub(crate) fn note_full(&mut self) {
        self.is_full = true;
    }

    /// A checkpoint was made, by whichever caller, and left this much free space.
    pub(crate) fn note_checkpoint(&mut self, free_bytes: u64, options: &Options) {
        self.changed_at = None;
        let rounds = &mut self.defragmentation;
        rounds.moved_bytes = 0;
        if rounds.wait_checkpoints > 0 {
            rounds.wait_checkpoints -= 1;
            rounds.free_bytes_min = free_bytes + options.trim_bytes;
        }
    }
}

impl DefragRounds {
    /// The bytes to be moved now, if any.
    fn budget(&self, inputs: &MaintenanceInputs, options: &Options) -> Option<u64> {
        let left = options.defragment_bytes.saturating_sub(self.moved_bytes);
        let free = inputs.free_bytes;
        let may_begin = self.wait_checkpoints == 0
            && free >= self.free_bytes_min.max(options.trim_bytes)
            && free as f64 >= options.defragment_free_ratio_min * inputs.span_bytes as f64;
        (left > 0 && (self.is_moving || may_begin)).then_some(left.min(DEFRAGMENT_BYTES))
    }
}

impl ScrubPace {
    /// When the next step is due: steps of equal length and at equal intervals make a pass.
    fn due(
        &mut self,
        now: Duration,
        inputs: &MaintenanceInputs,
        options: &Options,
    ) -> Option<Duration> {
        if self.published.0 != inputs.txid {
            self.published = (inputs.txid, now);
        }
        let steps = inputs.span_bytes.div_ceil(SCRUB_BYTES).max(1);
        let pace = options.scrub_interval? / u32::try_from(steps).unwrap_or(u32::MAX);
        let pace = pace.max(SCRUB_PACE_MIN);
        // The first look does nothing: all stores of a cluster may have started just now.
        let stepped_at = *self.stepped_at.get_or_insert(now);
        let idle_at = self.published.1 + IDLE;
        let latest = stepped_at.saturating_add(pace.saturating_mul(SCRUB_WAITS));
        Some(stepped_at.saturating_add(pace).max(idle_at).min(latest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const REST: MaintenanceAction = MaintenanceAction::Rest { until: None };

    fn options() -> Options {
        Options::default().dirty_bytes(1000, 2000).checkpoint_interval(None).scrub_interval(None)
    }

    fn inputs(dirty_bytes: u64, used: u64) -> MaintenanceInputs {
        let redo_bytes = (used, 100);
        MaintenanceInputs { has_changes: true, dirty_bytes, redo_bytes, ..Default::default() }
    }

    #[test]
    fn size_redo_area_and_caller_ask_for_a_checkpoint_at_once() {
        let next = |inputs| MaintenancePolicy::default().next(SECOND, &inputs, &options());
        let (due, changed) = (MaintenanceAction::Checkpoint, inputs(0, 0));
        assert_eq!(next(inputs(999, 49)), REST);
        assert_eq!(next(inputs(1000, 0)), due);
        assert_eq!(next(inputs(0, 50)), due);
        assert_eq!(next(MaintenanceInputs { is_urgent: true, ..changed }), due);
        let of_the_caller = MaintenanceInputs { is_urgent: true, ..Default::default() };
        assert_eq!(next(of_the_caller), due);
        let no_area = MaintenanceInputs { redo_bytes: (0, 0), ..changed };
        assert_eq!(next(no_area), REST);
        assert_eq!(next(MaintenanceInputs { has_changes: false, ..inputs(1000, 50) }), REST);
    }

    #[test]
    fn the_interval_counts_from_the_first_change() {
        let options = options().checkpoint_interval(Some(5 * SECOND));
        let mut policy = MaintenancePolicy::default();
        let changed = inputs(0, 0);
        let unchanged = MaintenanceInputs { has_changes: false, ..changed };
        let until = |seconds| MaintenanceAction::Rest { until: Some(seconds * SECOND) };
        assert_eq!(policy.next(100 * SECOND, &unchanged, &options), REST);
        assert_eq!(policy.next(200 * SECOND, &changed, &options), until(205));
        assert_eq!(policy.next(204 * SECOND, &changed, &options), until(205));
        let due = policy.next(205 * SECOND, &changed, &options);
        assert_eq!(due, MaintenanceAction::Checkpoint);
        policy.note_checkpoint(0, &options);
        assert_eq!(policy.next(206 * SECOND, &changed, &options), until(211), "young changes");
        assert_eq!(policy.next(207 * SECOND, &unchanged, &options), REST);
        assert_eq!(policy.next(211 * SECOND, &changed, &options), until(216));
    }

    #[test]
    fn a_full_disk_is_tried_again_and_other_work_goes_on() {
        let mut policy = MaintenancePolicy::default();
        let deferred_free_bytes = 1 << 20;
        let full = MaintenanceInputs { deferred_free_bytes, ..inputs(1000, 0) };
        let spare = MaintenanceInputs { has_spare: true, ..full };
        assert_eq!(policy.next(SECOND, &spare, &options()), MaintenanceAction::Checkpoint);
        policy.note_full();
        let trim = policy.next(SECOND, &spare, &options());
        assert_eq!(trim, MaintenanceAction::TrimPunch, "it may be the room that is missing");
        let rest = policy.next(SECOND, &full, &options());
        assert_eq!(rest, MaintenanceAction::Rest { until: Some(2 * SECOND) });
        let due = policy.next(2 * SECOND, &full, &options());
        assert_eq!(due, MaintenanceAction::Checkpoint);
    }

    #[test]
    fn deferred_frees_wait_for_the_writer_lock_and_end_with_an_unreadable_page() {
        let mut policy = MaintenancePolicy::default();
        let deferred = MaintenanceInputs { deferred_free_bytes: 1, ..Default::default() };
        let reclaim = MaintenanceAction::Reclaim { bytes: RECLAIM_BYTES };
        assert_eq!(policy.next(SECOND, &deferred, &options()), reclaim);
        policy.note(SECOND, reclaim, MaintenanceOutcome::Nothing, false);
        let later = SECOND + LOCK_RETRY;
        let rest = MaintenanceAction::Rest { until: Some(later) };
        assert_eq!(policy.next(SECOND, &deferred, &options()), rest);
        assert_eq!(policy.next(later, &deferred, &options()), reclaim);
        policy.note_unreadable();
        assert_eq!(policy.next(later, &deferred, &options()), REST);
    }

    #[test]
    fn defragmentation_keeps_its_budget_and_waits_for_the_truncation() {
        let options = options().defragment(3 << 20, 0.5).trim_bytes(1 << 20);
        let mut policy = MaintenancePolicy::default();
        let half_free =
            MaintenanceInputs { free_bytes: 8 << 20, span_bytes: 16 << 20, ..Default::default() };
        let mut rounds = Vec::new();
        for is_over in [false, false, true, false] {
            let action = policy.next(SECOND, &half_free, &options);
            rounds.push(action);
            let outcome = MaintenanceOutcome::Moved { bytes: 1 << 20 };
            if action != REST {
                policy.note(SECOND, action, outcome, is_over);
            }
        }
        let moves = MaintenanceAction::Defragment { bytes: 1 << 20 };
        assert_eq!(rounds, [moves, moves, moves, REST]);
        for _ in 0..ROUND_CHECKPOINTS {
            assert_eq!(policy.next(SECOND, &half_free, &options), REST);
            policy.note_checkpoint(half_free.free_bytes, &options);
        }
        assert_eq!(policy.next(SECOND, &half_free, &options), REST, "nothing is to be gained");
        let freer = MaintenanceInputs { free_bytes: 9 << 20, ..half_free };
        assert_eq!(policy.next(SECOND, &freer, &options), moves);
        let fuller = MaintenanceInputs { free_bytes: 7 << 20, ..half_free };
        assert_eq!(policy.next(SECOND, &fuller, &options), REST);
    }

    #[test]
    fn the_scrub_waits_for_all_else_and_for_an_idle_store_but_not_for_ever() {
        // Four steps, 10 s apart.
        let options = options().scrub_interval(Some(40 * SECOND));
        let mut policy = MaintenancePolicy::default();
        let idle = |txid| MaintenanceInputs { txid, span_bytes: 4 * SCRUB_BYTES, ..inputs(0, 0) };
        let step = MaintenanceAction::Scrub { bytes: SCRUB_BYTES };
        let until = |seconds| MaintenanceAction::Rest { until: Some(seconds * SECOND) };
        assert_eq!(policy.next(5 * SECOND, &idle(7), &options), until(15), "the first look");
        assert_eq!(policy.next(15 * SECOND, &idle(7), &options), step);
        assert_eq!(policy.next(15 * SECOND, &idle(7), &options), until(25));
        let spare = MaintenanceInputs { has_spare: true, ..idle(7) };
        assert_eq!(policy.next(25 * SECOND, &spare, &options), MaintenanceAction::TrimPunch);
        let due = MaintenanceInputs { is_urgent: true, ..idle(7) };
        assert_eq!(policy.next(25 * SECOND, &due, &options), MaintenanceAction::Checkpoint);
        // Another transaction each second: 8 times 10 s after the last step it is taken anyhow.
        for second in 25..95 {
            let busy = idle(u64::from(second));
            assert_eq!(policy.next(second * SECOND, &busy, &options), until(second + 1));
        }
        assert_eq!(policy.next(95 * SECOND, &idle(95), &options), step);
        assert_eq!(policy.next(106 * SECOND, &idle(95), &options), step, "idle again");
        let none = options.scrub_interval(None);
        assert_eq!(policy.next(1000 * SECOND, &idle(95), &none), REST);
        let fast = none.scrub_interval(Some(Duration::ZERO));
        assert_eq!(policy.next(1000 * SECOND, &idle(95), &fast), step);
        let rest = MaintenanceAction::Rest { until: Some(1000 * SECOND + SCRUB_PACE_MIN) };
        assert_eq!(policy.next(1000 * SECOND, &idle(95), &fast), rest, "the rate has a bound");
    }
}
