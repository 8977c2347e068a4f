//! The scrub of the log: its entries are read again, a piece at a time, so that damage is found
//! while other replicas still have what it hit.

use std::time::Duration;

use flotilla_raftlog::{Error as LogError, LogEngine};
use parking_lot::Mutex;

use crate::error::Error;
use crate::stats::Counter;

/// Bytes of entries that one step reads, one entry more at worst.
const PIECE_BYTES: u64 = 1 << 20;

/// Groups that one step looks at; most logs of idle regions are empty.
const PIECE_GROUPS: usize = 64;

/// The progress of the scrub.
#[derive(Debug, Default)]
pub(crate) struct LogScrub {
    position: Mutex<ScrubPosition>,
    pub(crate) scrubbed_bytes: Counter,
}

/// The entry at which the next step begins, and when that is due.
#[derive(Clone, Copy, Debug, Default)]
struct ScrubPosition {
    group: u64,
    index: u64,
    due: Duration,
}

/// A part of a group's entries that was read.
struct ScrubbedPiece {
    bytes: Result<u64, Error>,
    /// Its part of the group's entries.
    share: f64,
    /// The index of the next piece; none if the group has no more.
    next: Option<u64>,
}

impl LogScrub {
    /// Reads the next piece if it is due at `now`, so that all are read within `interval`, of which
    /// each group has an equal part. Returns when the next one is due.
    ///
    /// # Errors
    ///
    /// An entry of this group is damaged or cannot be read. The next step goes on behind it.
    pub(crate) fn step(
        &self,
        engine: &LogEngine,
        interval: Duration,
        now: Duration,
    ) -> Result<Duration, (u64, Error)> {
        let mut position = self.position.lock();
        if now < position.due {
            return Ok(position.due);
        }
        let groups = engine.group_ids();
        let begin = groups.partition_point(|group| *group < position.group);
        let (mut bytes, mut shares) = (0, 0.0);
        for group in groups[begin..].iter().take(PIECE_GROUPS) {
            let from = if *group == position.group { position.index } else { 0 };
            let piece = read_piece(engine, *group, from, PIECE_BYTES - bytes);
            (position.group, position.index) = match piece.next {
                Some(index) => (*group, index),
                None => (*group + 1, 0),
            };
            bytes += piece.bytes.map_err(|error| (*group, error))?;
            shares += piece.share;
            if piece.next.is_some() || bytes >= PIECE_BYTES {
                break;
            }
        }
        if groups.last().is_none_or(|last| position.group > *last) {
            (position.group, position.index) = (0, 0);
        }
        self.scrubbed_bytes.add(bytes);
        let of_all = if groups.is_empty() { 1.0 } else { shares / groups.len() as f64 };
        position.due = now + interval.mul_f64(of_all.min(1.0));
        Ok(position.due)
    }
}

/// Reads a group's entries from the index `from` on.
fn read_piece(engine: &LogEngine, group: u64, from: u64, bytes_max: u64) -> ScrubbedPiece {
    let empty = ScrubbedPiece { bytes: Ok(0), share: 1.0, next: None };
    let Some(log) = engine.group(group) else { return empty };
    let (first, end) = (log.first_index(), log.last_index() + 1);
    let from = from.max(first);
    if from >= end {
        return empty;
    }
    let piece = |bytes, next| ScrubbedPiece {
        bytes,
        share: (next - from) as f64 / (end - first) as f64,
        next: (next < end).then_some(next),
    };
    let read = log.entries(from..end, bytes_max).or_else(|error| match error {
        // Of several entries any may be damaged: the next step goes on behind the very one.
        LogError::Corrupt { .. } | LogError::Io(_) => log.entries(from..from + 1, 0),
        error => Err(error),
    });
    match read {
        Ok(entries) => {
            let bytes = entries.iter().map(|entry| entry.data.len() as u64).sum();
            piece(Ok(bytes), from + entries.len() as u64)
        }
        // The log has lost entries meanwhile, by a compaction or a new leader.
        Err(LogError::Compacted { .. } | LogError::Unavailable { .. }) => empty,
        Err(error) => piece(Err(error.into()), from + 1),
    }
}
