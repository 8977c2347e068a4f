//! The age of snapshots, and the end of those that hold too much disk space.
//!
//! A snapshot of a root was taken while the root was the last published one. So if a later root was
//! seen at some time, all snapshots of the earlier ones are at least as old as that. No clock is
//! asked when a snapshot is taken, or when a transaction is published.
//!
//! A snapshot that was ended gets an error at its next read of a page. Nothing that it sees is
//! released before it is dropped, so bytes that it has borrowed stay.

use std::collections::VecDeque;
use std::time::Duration;

/// No younger snapshot is ended.
const AGE_MIN: Duration = Duration::from_secs(10);

/// The time between two samples, and between the ends of two snapshots: the holder of the first
/// shall have time to drop it.
const STEP: Duration = Duration::from_secs(1);

/// Samples of the last published transaction.
#[derive(Debug, Default)]
pub(crate) struct SnapshotAges {
    samples: VecDeque<(Duration, u64)>,
    ended_at: Option<Duration>,
}

impl SnapshotAges {
    /// Notes the last published transaction at `now`.
    pub(crate) fn note(&mut self, now: Duration, txid: u64) {
        let last = self.samples.back().map(|(at, _)| *at);
        if last.is_none_or(|at| now.saturating_sub(at) >= STEP) {
            self.samples.push_back((now, txid));
        }
        // The newest sample that is old enough, and those behind it.
        let is_old = |at: &Duration| now.saturating_sub(*at) >= AGE_MIN;
        while self.samples.get(1).is_some_and(|(at, _)| is_old(at)) {
            self.samples.pop_front();
        }
    }

    /// Whether a snapshot of transaction `txid` may be ended at `now`. If so, the next one may be
    /// a step later.
    pub(crate) fn may_end(&mut self, now: Duration, txid: u64) -> bool {
        let Some((at, newest)) = self.samples.front() else { return false };
        let is_aged = now.saturating_sub(*at) >= AGE_MIN && txid < *newest;
        let is_due = self.ended_at.is_none_or(|at| now.saturating_sub(at) >= STEP);
        if is_aged && is_due {
            self.ended_at = Some(now);
        }
        is_aged && is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn no_snapshot_is_ended_before_it_is_ten_seconds_old() {
        let mut ages = SnapshotAges::default();
        for second in 0..60 {
            let now = second * SECOND;
            // Ten transactions a second; a snapshot of the last one may have been taken just now.
            ages.note(now, 10 * u64::from(second));
            let age_of = |txid: u64| i64::from(second) - (txid as i64 + 10) / 10;
            for txid in 0..10 * u64::from(second) {
                let mut ages = SnapshotAges { samples: ages.samples.clone(), ended_at: None };
                let may_end = ages.may_end(now, txid);
                assert_eq!(may_end, age_of(txid) >= 10, "{txid} after {second} s");
            }
            assert!(ages.samples.len() <= 12);
        }
        assert!(ages.may_end(60 * SECOND, 5));
        assert!(
            !ages.may_end(60 * SECOND + SECOND / 2, 6),
            "the first one has not yet been dropped"
        );
        assert!(ages.may_end(61 * SECOND, 6));
    }

    #[test]
    fn rare_looks_make_no_snapshot_look_older() {
        let mut ages = SnapshotAges::default();
        ages.note(SECOND, 5);
        assert!(!ages.may_end(SECOND, 4));
        ages.note(100 * SECOND, 5000);
        assert!(ages.may_end(100 * SECOND, 4) && !ages.may_end(102 * SECOND, 6));
    }
}
