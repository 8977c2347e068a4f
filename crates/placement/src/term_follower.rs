//! When a store begins and ends to lead placement: it follows the leadership of the system region,
//! and its driver carries out one step after the other.
//!
//! A term is begun once the rows are read under it, which may fail: then it is tried again a little
//! later, if the store still leads in it. A store that leads no more, or leads in a later term,
//! ends the one that it holds before anything else: its rows are another's.

/// Backoff after a term could not be begun, or had to end.
pub const TERM_RETRY_MS: u64 = 100;

/// The term that a store leads placement in, and those that it tries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TermFollower {
    held: Option<u64>,
    /// The outcome is awaited.
    beginning: Option<u64>,
    not_before_ms: u64,
}

/// The next step of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TermStep {
    /// To end this term, and to ask again.
    End(u64),
    /// To begin this term, and to say how that went.
    Begin(u64),
    /// To ask again when the leadership changes, or at this time if there is one.
    Rest(Option<u64>),
}

impl TermFollower {
    /// The next step, if the store is elected in this term of the system region, or in none.
    pub fn next(&mut self, now_ms: u64, elected: Option<u64>) -> TermStep {
        if let Some(term) = self.held.take_if(|held| Some(*held) != elected) {
            return TermStep::End(term);
        }
        let is_busy = self.held.is_some() || self.beginning.is_some();
        let Some(term) = elected.filter(|_| !is_busy) else { return TermStep::Rest(None) };
        if now_ms < self.not_before_ms {
            return TermStep::Rest(Some(self.not_before_ms));
        }
        self.beginning = Some(term);
        TermStep::Begin(term)
    }

    /// The term that was to be begun has begun, or could not be.
    pub fn note_begun(&mut self, now_ms: u64, has_begun: bool) {
        let term = self.beginning.take();
        assert!(term.is_some(), "no term was to be begun");
        if has_begun {
            self.held = term;
        } else {
            self.not_before_ms = now_ms + TERM_RETRY_MS;
        }
    }

    /// A row was not as this store has left it: the term has ended.
    pub fn note_broken(&mut self, now_ms: u64) {
        self.held = None;
        self.not_before_ms = now_ms + TERM_RETRY_MS;
    }

    /// The term in which the store leads placement.
    #[must_use]
    pub fn held(&self) -> Option<u64> {
        self.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_is_begun_once_and_ends_before_the_next_begins() {
        let mut follower = TermFollower::default();
        assert_eq!(follower.next(0, None), TermStep::Rest(None));
        assert_eq!(follower.next(1, Some(5)), TermStep::Begin(5));
        assert_eq!(follower.next(2, Some(5)), TermStep::Rest(None), "the outcome is awaited");
        assert_eq!(follower.next(2, Some(6)), TermStep::Rest(None), "of a later one as well");
        follower.note_begun(3, true);
        assert_eq!(follower.held(), Some(5));
        assert_eq!(follower.next(4, Some(6)), TermStep::End(5));
        assert_eq!(follower.next(4, Some(6)), TermStep::Begin(6));
        follower.note_begun(5, true);
        assert_eq!(follower.next(6, None), TermStep::End(6));
        assert_eq!((follower.next(7, None), follower.held()), (TermStep::Rest(None), None));
    }

    #[test]
    fn a_term_that_fails_is_tried_again_later_and_only_if_it_still_is_the_term() {
        let mut follower = TermFollower::default();
        assert_eq!(follower.next(0, Some(5)), TermStep::Begin(5));
        follower.note_begun(10, false);
        let retry = 10 + TERM_RETRY_MS;
        assert_eq!(follower.next(11, Some(5)), TermStep::Rest(Some(retry)));
        assert_eq!(follower.next(12, None), TermStep::Rest(None));
        assert_eq!(follower.next(retry, Some(7)), TermStep::Begin(7));
        follower.note_begun(retry, true);
        follower.note_broken(500);
        assert_eq!(follower.held(), None);
        assert_eq!(follower.next(501, Some(7)), TermStep::Rest(Some(500 + TERM_RETRY_MS)));
        assert_eq!(follower.next(500 + TERM_RETRY_MS, Some(7)), TermStep::Begin(7));
    }

    /// Every history of nine events: the term that is held is the one that was elected when its
    /// step was last asked for, and no two terms are begun at once.
    #[test]
    fn every_short_history_ends_with_the_elected_term() {
        const EVENTS: u32 = 5;
        for mut history in 0..EVENTS.pow(9) {
            let (mut follower, mut elected, mut begun) = (TermFollower::default(), None, None);
            for now_ms in (0..).step_by(60).take(9) {
                match history % EVENTS {
                    0 => elected = None,
                    1 => elected = Some(elected.unwrap_or_default() + 1),
                    2 if begun.take().is_some() => follower.note_begun(now_ms, true),
                    3 if begun.take().is_some() => follower.note_begun(now_ms, false),
                    4 if follower.held().is_some() => follower.note_broken(now_ms),
                    _ => {}
                }
                history /= EVENTS;
                let mut step = follower.next(now_ms, elected);
                if let TermStep::End(_) = step {
                    step = follower.next(now_ms, elected);
                }
                match step {
                    TermStep::End(term) => panic!("term {term} ends twice"),
                    TermStep::Begin(term) => {
                        assert_eq!((begun.replace(term), Some(term)), (None, elected));
                    }
                    TermStep::Rest(until) => assert!(until.is_none_or(|until| until > now_ms)),
                }
                assert!(follower.held().is_none() || follower.held() == elected);
            }
            // In peace the store comes to lead in the term that it is elected in.
            for now_ms in (1000..).step_by(200).take(4) {
                if begun.take().is_some() {
                    follower.note_begun(now_ms, true);
                }
                if let TermStep::Begin(term) = follower.next(now_ms, elected) {
                    begun = Some(term);
                }
            }
            assert_eq!(follower.held(), elected);
        }
    }
}
