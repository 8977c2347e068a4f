//! The schedule of the bootstrap's questions, and of their repetition.

use flotilla_region::Time;

use crate::bootstrap::{Bootstrap, QuestionToken};
use crate::messages::BootstrapRequest;

/// From an answer that did not help to the next question.
const RETRY_MS: u64 = 200;

/// A question without an answer is given up after this. A founder whose plan is not kept by all
/// after as long asks for a new round.
const ANSWER_TIMEOUT_MS: u64 = 2_000;

/// A store that is listed alone listens so long for stores that dial its address as members of
/// another cluster. Members dial each second, and give an attempt up after two.
const LISTEN_MS: u64 = 4_000;

/// One store's questions under way.
#[derive(Clone, Debug)]
pub struct BootstrapSchedule {
    begins: Time,
    phase: Option<(QuestionToken, bool)>,
    phase_since: Time,
    asked: Vec<Option<Time>>,
    is_answered: Vec<bool>,
}

impl BootstrapSchedule {
    /// The schedule of a store that starts at `now`. `listens`: whether a store that is listed
    /// alone first waits for stores that know its address.
    #[must_use]
    pub fn new(now: Time, bootstrap: &Bootstrap, listens: bool) -> Self {
        let stores = bootstrap.spec().stores.len();
        let begins = if stores == 1 && listens { now.after_ms(LISTEN_MS) } else { now };
        Self {
            begins,
            phase: None,
            phase_since: now,
            asked: vec![None; stores],
            is_answered: vec![false; stores],
        }
    }

    /// Whether a founder may draw its plan: a store that is listed alone has listened.
    #[must_use]
    pub fn may_begin(&self, now: Time) -> bool {
        now >= self.begins
    }

    /// The questions that are due, each with the place it goes to. The returned ones count as
    /// asked: [`BootstrapSchedule::answered`] must follow, or they time out.
    pub fn due(
        &mut self,
        now: Time,
        bootstrap: &mut Bootstrap,
    ) -> Vec<(usize, QuestionToken, BootstrapRequest)> {
        let is_timed_out = now >= self.phase_since.after_ms(ANSWER_TIMEOUT_MS);
        if bootstrap.is_forming_as_founder() && is_timed_out {
            // A store may have emptied its directory since it promised: only a new round learns its
            // new uuid.
            bootstrap.ask_anew(0);
        }
        let phase = Some((bootstrap.token(), bootstrap.is_forming_as_founder()));
        if phase != self.phase {
            self.phase = phase;
            self.phase_since = now;
            // Answers to all that was asked before are void now, so everything is due at once.
            self.asked.fill(None);
        }
        let token = bootstrap.token();
        let mut due = bootstrap.questions();
        due.retain(|(place, _)| self.is_due(now, *place));
        for (place, _) in &due {
            self.asked[*place] = Some(now);
            self.is_answered[*place] = false;
        }
        due.into_iter().map(|(place, request)| (place, token, request)).collect()
    }

    fn is_due(&self, now: Time, place: usize) -> bool {
        // A store that answers is merely not ready; one that is silent may still work on the first
        // question.
        let pause_ms = if self.is_answered[place] { RETRY_MS } else { ANSWER_TIMEOUT_MS };
        self.asked[place].is_none_or(|asked| now >= asked.after_ms(pause_ms))
    }

    /// The store at `place` has answered, or cannot be reached: it may be asked again soon.
    pub fn answered(&mut self, place: usize) {
        self.is_answered[place] = true;
    }
}
