//! Keeps work that nobody waits for from standing in the way of those who write.
//!
//! What was written is also to be synced, by whoever syncs next. So after a step this waits for that
//! sync, if others sync at all, and then rests for some times as long as the step has taken with it:
//! others never find more than one step before them, and mostly none. If nobody else writes there is
//! nobody to wait for, and if there is no room they wait for this.

use crate::error::Error;
use crate::group_commit::GroupCommit;
use crate::sync::atomic::Ordering;
use crate::sync::thread;
use std::time::{Duration, Instant};

/// How long it rests, for each time that a step has taken.
const REST_FACTOR: u32 = 1;
/// A disk that hangs is no reason to rest for long once it does not any more.
const REST_MAX: Duration = Duration::from_millis(20);

/// What was seen at the last step.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    last_lsn: u64,
    syncs: u64,
}

impl Pace {
    /// To be called after a step that began at `begin` and wrote the frame `lsn`.
    ///
    /// # Errors
    ///
    /// Those of a sync.
    pub(crate) fn rest(
        &mut self,
        group_commit: &GroupCommit,
        begin: Instant,
        lsn: u64,
    ) -> Result<(), Error> {
        let is_alone = self.last_lsn + 1 == lsn;
        self.last_lsn = lsn;
        if is_alone || group_commit.stock.is_short_of_room() {
            return Ok(());
        }
        let syncs = group_commit.counters.syncs.load(Ordering::Relaxed);
        if syncs != self.syncs {
            match group_commit.wait(&group_commit.sync()) {
                // With so much queued somebody syncs anyway.
                Ok(_) | Err(Error::Busy { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        // Its own sync is no reason to sync again.
        self.syncs = group_commit.counters.syncs.load(Ordering::Relaxed).max(syncs);
        thread::sleep((begin.elapsed() * REST_FACTOR).min(REST_MAX));
        Ok(())
    }
}
