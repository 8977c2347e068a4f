//! The throttle of the rewriter: background writes must not delay the writers of the log.
//!
//! The bytes of a rewrite are synced by the next sync of any writer, which waits for them. So after
//! a step the throttle waits for that sync, if others sync at all, and then pauses in proportion to
//! the time that the step has taken with it: a writer never finds more than one step before it, and
//! mostly none. Without other writers there is no pause, nor if there is no room and writers wait
//! for purge. The further the log is above its target length, the shorter the pause: so a purge
//! that falls behind catches up.

use crate::commit::group_commit::GroupCommit;
use crate::config::Config;
use crate::error::Error;
use flotilla_base::sync::atomic::Ordering;
use flotilla_base::sync::thread;
use std::time::{Duration, Instant};

/// The length of a pause, in times of the step before it.
const PAUSE_FACTOR: u32 = 1;
/// A disk that hung for a while is no reason for a long pause afterwards.
const PAUSE_MAX: Duration = Duration::from_millis(20);
/// Pauses end when the log is above its limit by this part of it, but not before this many
/// segments: a purge works in segments, and is never nearer to the limit than that.
const EXCESS_PART: u64 = 4;
const EXCESS_SEGMENTS: u64 = 4;

/// How much of the pauses is left: all at the limit, none far above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThrottleLevel {
    excess_bytes: u64,
    excess_bytes_max: u64,
}

impl ThrottleLevel {
    /// The level for a log whose segments take `file_bytes`.
    pub(crate) fn of(config: &Config, file_bytes: u64) -> ThrottleLevel {
        let limit = config.purge_above_bytes;
        let segments = EXCESS_SEGMENTS * config.segment_bytes;
        ThrottleLevel {
            excess_bytes: file_bytes.saturating_sub(limit),
            excess_bytes_max: (limit / EXCESS_PART).max(segments),
        }
    }

    /// The pause after a step of this length.
    fn pause(self, step: Duration) -> Duration {
        debug_assert!(self.excess_bytes_max > 0, "the pause would be no number");
        let left = self.excess_bytes_max.saturating_sub(self.excess_bytes);
        let part = left as f64 / self.excess_bytes_max as f64;
        (step * PAUSE_FACTOR).min(PAUSE_MAX).mul_f64(part)
    }
}

/// The state at the last step.
#[derive(Debug, Default)]
pub(crate) struct RewriteThrottle {
    last_lsn: u64,
    syncs: u64,
}

impl RewriteThrottle {
    /// To be called after a step that began at `begin` and wrote the frame `lsn`.
    ///
    /// # Errors
    ///
    /// Those of a sync.
    pub(crate) fn pause(
        &mut self,
        group_commit: &GroupCommit,
        begin: Instant,
        lsn: u64,
        throttle_level: ThrottleLevel,
    ) -> Result<(), Error> {
        // Frames that follow one another: no other thread has written in between.
        let is_alone = self.last_lsn + 1 == lsn;
        self.last_lsn = lsn;
        if is_alone || group_commit.pool.is_short_of_room() {
            return Ok(());
        }
        let syncs = group_commit.counters.syncs.load(Ordering::Relaxed);
        if syncs != self.syncs {
            match group_commit.wait(&group_commit.sync()) {
                // With that many bytes queued another writer syncs anyway.
                Ok(_) | Err(Error::Busy { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        // The throttle's own sync is no reason to sync again.
        self.syncs = group_commit.counters.syncs.load(Ordering::Relaxed).max(syncs);
        let pause = throttle_level.pause(begin.elapsed());
        if !pause.is_zero() {
            thread::sleep(pause);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_shrink_as_the_log_grows_above_its_limit() {
        let config =
            Config { segment_bytes: 1000, purge_above_bytes: 100_000, ..Config::default() };
        let step = Duration::from_millis(8);
        let pauses = [0, 100_000, 105_000, 112_500, 120_000, 125_000, 1_000_000]
            .map(|bytes| ThrottleLevel::of(&config, bytes).pause(step).as_micros());
        assert_eq!(pauses, [8000, 8000, 6400, 4000, 1600, 0, 0]);
        // A step on a disk that hung.
        let slow = Duration::from_secs(5);
        assert_eq!(ThrottleLevel::of(&config, 100_000).pause(slow), PAUSE_MAX);
        assert_eq!(ThrottleLevel::of(&config, 112_500).pause(slow), PAUSE_MAX / 2);
    }

    #[test]
    fn a_low_limit_leaves_a_few_segments_of_leisure() {
        let config = Config { segment_bytes: 1000, purge_above_bytes: 0, ..Config::default() };
        let pauses = [0, 2000, 4000, u64::MAX].map(|bytes| {
            ThrottleLevel::of(&config, bytes).pause(Duration::from_millis(4)).as_millis()
        });
        assert_eq!(pauses, [4, 2, 0, 0]);
    }
}
