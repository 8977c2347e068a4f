//! The line of the log about checkpoints: one for all of a minute.

use std::time::{Duration, Instant};

/// Between two lines.
const LINE_INTERVAL: Duration = Duration::from_secs(60);

/// The checkpoints since the last line, and what came with them.
#[derive(Debug)]
pub(super) struct CheckpointLog {
    /// When the last line was made.
    said: Instant,
    tally: CheckpointTally,
}

/// The checkpoints of some time, and what came with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CheckpointTally {
    count: u64,
    bytes: u64,
    longest: Duration,
    purged_segments: u64,
    purged_bytes: u64,
}

impl CheckpointLog {
    /// The first line comes a minute after `now`.
    pub(super) fn new(now: Instant) -> Self {
        Self { said: now, tally: CheckpointTally::default() }
    }

    /// A checkpoint was made, which has written `bytes` in `took`.
    pub(super) fn note(&mut self, bytes: u64, took: Duration) {
        self.tally.count += 1;
        self.tally.bytes += bytes;
        self.tally.longest = self.tally.longest.max(took);
    }

    /// Files of the log were purged.
    pub(super) fn note_purge(&mut self, segments: u64, bytes: u64) {
        self.tally.purged_segments += segments;
        self.tally.purged_bytes += bytes;
    }

    /// The checkpoints that a line is due about, after a minute or at the end.
    pub(super) fn take(&mut self, now: Instant, is_end: bool) -> Option<CheckpointTally> {
        let is_due = is_end || now.saturating_duration_since(self.said) >= LINE_INTERVAL;
        if !is_due || self.tally.count == 0 {
            return None;
        }
        self.said = now;
        Some(std::mem::take(&mut self.tally))
    }
}

impl CheckpointTally {
    /// Logs it; `throttled` is how long applying was held back meanwhile.
    pub(super) fn log(self, throttled: Duration) {
        tracing::info!(
            count = self.count,
            bytes = self.bytes,
            longest_ms = self.longest.as_millis(),
            log_purged_segments = self.purged_segments,
            log_purged_bytes = self.purged_bytes,
            throttled_ms = throttled.as_millis(),
            "checkpoints were made"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checkpoints_of_a_minute_are_told_together() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut log = CheckpointLog::new(start);
        log.note(100, Duration::from_millis(3));
        log.note(50, Duration::from_millis(2));
        log.note_purge(1, 64);
        assert_eq!(log.take(at(59), false), None);
        let told = log.take(at(60), false).expect("a minute is over");
        let expected = CheckpointTally {
            count: 2,
            bytes: 150,
            longest: Duration::from_millis(3),
            purged_segments: 1,
            purged_bytes: 64,
        };
        assert_eq!(told, expected);
        assert_eq!(log.take(at(200), false), None, "there is nothing new");
        log.note(1, Duration::ZERO);
        assert!(log.take(at(61), false).is_none() && log.take(at(62), true).is_some());
    }
}
