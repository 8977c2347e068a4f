//! Snapshots that a leader sends: which one is pending for each follower, and which followers get
//! none for a while.
//!
//! Raft wants the outcome of each snapshot reported, or the follower stays paused; but of the
//! pending one only: the end of an older stream says nothing about a later one. A follower whose
//! snapshot failed gets no other for a second, and twice as long after each further failure.

use std::collections::BTreeMap;

use crate::ids::{PeerId, Term, Time};

/// The first rest after a failure.
const REST_MS_MIN: u64 = 1000;
/// The longest.
const REST_MS_MAX: u64 = 30_000;

#[derive(Default)]
pub(crate) struct SnapshotSends {
    last_number: u64,
    /// The last one of each follower: its number, and the term of the leader that sends it.
    pending: BTreeMap<PeerId, (u64, Term)>,
    failed: BTreeMap<PeerId, Rest>,
}

struct Rest {
    ms: u64,
    /// None once it is over: only its length is remembered.
    until: Option<Time>,
}

impl SnapshotSends {
    /// A snapshot goes to a follower: its number.
    pub(crate) fn begin(&mut self, to: PeerId, term: Term) -> u64 {
        self.last_number += 1;
        let before = self.pending.insert(to, (self.last_number, term));
        let before = before.map_or(Term(0), |(_, term)| term);
        assert!(before <= term, "a snapshot of term {term} after one of term {before}");
        self.last_number
    }

    /// Whether this one is the pending one, of a leader that still leads.
    pub(crate) fn is_pending(&self, to: PeerId, number: u64, term: Term) -> bool {
        self.pending.get(&to) == Some(&(number, term))
    }

    /// A snapshot has ended. Returns whether it was the pending one, of a leader that still leads.
    pub(crate) fn end(&mut self, to: PeerId, number: u64, term: Term, ok: bool, now: Time) -> bool {
        let was_pending = self.is_pending(to, number, term);
        if was_pending {
            self.pending.remove(&to);
            if ok {
                self.failed.remove(&to);
            } else {
                self.rest(to, now);
            }
        }
        was_pending
    }

    fn rest(&mut self, to: PeerId, now: Time) {
        let ms = self.failed.get(&to).map_or(REST_MS_MIN, |rest| (2 * rest.ms).min(REST_MS_MAX));
        self.failed.insert(to, Rest { ms, until: Some(now.after_ms(ms)) });
    }

    /// Whether the follower gets no snapshot now.
    pub(crate) fn is_held_off(&self, to: PeerId) -> bool {
        self.failed.get(&to).is_some_and(|rest| rest.until.is_some())
    }

    /// Members may have gone: keeps what is known of those for which `is_listed` holds.
    pub(crate) fn retain(&mut self, is_listed: impl Fn(PeerId) -> bool) {
        self.pending.retain(|peer, _| is_listed(*peer));
        self.failed.retain(|peer, _| is_listed(*peer));
    }

    /// Time has passed.
    pub(crate) fn tick(&mut self, now: Time) {
        for rest in self.failed.values_mut() {
            rest.until = rest.until.filter(|until| now < *until);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TO: PeerId = PeerId(2);
    const TERM: Term = Term(5);

    #[test]
    fn only_the_pending_one_of_this_term_is_reported() {
        let mut sends = SnapshotSends::default();
        let first = sends.begin(TO, TERM);
        let second = sends.begin(TO, TERM);
        assert!(second > first);
        assert!(!sends.end(TO, first, TERM, false, Time(0)), "an older stream");
        assert!(!sends.end(TO, second, Term(6), false, Time(0)), "of an earlier term");
        assert!(!sends.is_held_off(TO));
        assert!(sends.end(TO, second, TERM, true, Time(0)));
        assert!(!sends.end(TO, second, TERM, true, Time(0)), "once");
    }

    #[test]
    fn rests_double_up_to_a_bound_and_a_success_ends_them() {
        let mut sends = SnapshotSends::default();
        let mut now = Time(0);
        for ms in [1000, 2000, 4000, 8000, 16_000, 30_000, 30_000] {
            let number = sends.begin(TO, TERM);
            assert!(sends.end(TO, number, TERM, false, now));
            sends.tick(now.after_ms(ms - 1));
            assert!(sends.is_held_off(TO), "{ms}");
            now = now.after_ms(ms);
            sends.tick(now);
            assert!(!sends.is_held_off(TO), "{ms}");
        }
        let number = sends.begin(TO, TERM);
        assert!(sends.end(TO, number, TERM, true, now));
        let number = sends.begin(TO, TERM);
        assert!(sends.end(TO, number, TERM, false, now));
        sends.tick(now.after_ms(1000));
        assert!(!sends.is_held_off(TO), "it begins anew");
    }
}
