//! The timestamp oracle: timestamps that never go back, across changes of clocks and leaders.
//!
//! A timestamp is a number of milliseconds and a counter within it. The leader may hand out only
//! what lies below the end of a window that it has written ahead; the next leader starts at the
//! end that it reads. Two leaders can therefore never hand out the same timestamp, and the later
//! one is always ahead.
//!
//! The driver has one duty: after [`Tso::take`] it must make sure that it still led *then*, by a
//! linearizable read of the system region, before it gives the timestamp away. Else a leader that
//! was deposed without knowing would answer below the timestamps of its successor.
//!
//! Invariants:
//! - `(physical, logical)` grows with each timestamp and `logical` stays below 2^18.
//! - `physical` lies below the end of the written window.

use crate::rows::{RowError, RowSwap, SwapResult, TSO_KEY};
use crate::watermark::HighWatermark;
use thiserror::Error;

/// How far ahead of the clock the window is written. A new leader may have to jump so far ahead.
pub const WINDOW_MS: u64 = 3_000;
/// One more than the greatest counter within a millisecond: clients pack it into 18 bits.
pub const LOGICAL_END: u64 = 1 << 18;

/// A point in the cluster's time, ordered like its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    /// Milliseconds since 1970, roughly: never behind the clock, ahead of it after a change of
    /// leader or when the clock went back.
    pub physical_ms: u64,
    /// The last counter of the batch: it ends here and has `count` members.
    pub logical: u64,
}

/// Why no timestamp can be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TsoError {
    /// The window must be written first: write what [`Tso::wants`] says and ask again.
    #[error("the window of timestamps is not written yet")]
    NotYet,
    /// A batch must have between 1 and 2^18 - 1 members.
    #[error("a batch of {0} timestamps was asked for; 1 to 262143 are possible")]
    Count(u64),
}

/// The clock of one leader.
#[derive(Clone, Debug)]
pub struct Tso {
    watermark: HighWatermark,
    physical_ms: u64,
    logical: u64,
    /// The end of the window that this leader has written; 0 before the first.
    window_end_ms: u64,
}

impl Tso {
    /// The clock of a new leader, which has read the row [`TSO_KEY`] in a linearizable way.
    ///
    /// # Errors
    ///
    /// The row is not a number.
    pub fn recover(row: Option<&[u8]>) -> Result<Self, RowError> {
        let watermark = HighWatermark::recover(TSO_KEY, row, 0)?;
        Ok(Self { watermark, physical_ms: 0, logical: 0, window_end_ms: 0 })
    }

    /// Takes `count` timestamps of one millisecond; `now_ms` is what the clock says.
    ///
    /// # Errors
    ///
    /// [`TsoError::NotYet`] until the window is written; [`TsoError::Count`] for a batch that does
    /// not fit into a millisecond.
    pub fn take(&mut self, now_ms: u64, count: u64) -> Result<Timestamp, TsoError> {
        if count == 0 || count >= LOGICAL_END {
            return Err(TsoError::Count(count));
        }
        let (mut physical_ms, mut logical) = (self.physical_ms, self.logical);
        if now_ms > physical_ms {
            (physical_ms, logical) = (now_ms, 0);
        }
        // The counter of this millisecond is exhausted: time runs ahead of the clock, never back.
        if logical + count >= LOGICAL_END {
            (physical_ms, logical) = (physical_ms + 1, 0);
        }
        // The next leader begins at the end of the written window: beyond it, both could hand out
        // the same.
        if physical_ms >= self.window_end_ms {
            return Err(TsoError::NotYet);
        }
        logical += count;
        let taken = Timestamp { physical_ms, logical };
        let before = Timestamp { physical_ms: self.physical_ms, logical: self.logical };
        assert!(taken > before, "time went back from {before:?} to {taken:?}");
        // Only now: a refusal above leaves the clock where it was.
        (self.physical_ms, self.logical) = (physical_ms, logical);
        Ok(taken)
    }

    /// Hands out no timestamp below `floor_ms` from now on: those were given by a cluster whose
    /// backup is restored. The window has to be written anew.
    pub fn raise_floor(&mut self, floor_ms: u64) {
        if self.physical_ms < floor_ms {
            self.watermark.raise_floor(floor_ms);
            self.window_end_ms = 0;
        }
    }

    /// The row to write now, if the window is about to run out.
    pub fn wants(&mut self, now_ms: u64) -> Option<RowSwap> {
        let from_ms = now_ms.max(self.physical_ms);
        // The next window is asked for when half of this one is left, so that no request has to
        // wait for it.
        if self.window_end_ms > from_ms.saturating_add(WINDOW_MS / 2) {
            return None;
        }
        // Above the watermark, even if the clock went back: a former leader has used what lies
        // below.
        let to_ms = from_ms.max(self.watermark.end()).checked_add(WINDOW_MS)?;
        self.watermark.raise(to_ms)
    }

    /// Learns what became of the row.
    ///
    /// # Errors
    ///
    /// The row is not what this clock may find; the leader must stop.
    pub fn complete(&mut self, result: SwapResult) -> Result<(), RowError> {
        if let Some(window) = self.watermark.complete(result)? {
            // The gap between our last window and this one is not ours: it belongs to another
            // leader, or was reserved by a write of our own whose result was lost.
            if window.start > self.window_end_ms && window.start > self.physical_ms {
                (self.physical_ms, self.logical) = (window.start, 0);
            }
            self.window_end_ms = window.end;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
