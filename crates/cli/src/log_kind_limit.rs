//! The bound on lines of one kind: an event that comes a thousand times a second must not push all
//! others out of the log (decision 51, `docs/decisions/0051-keys-stay-out-of-logs.md`).
//!
//! A kind is a place in the code. Each has so many lines in a window of time; those beyond are
//! counted, and the log says how many they were and how the first of them read.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;

/// Lines of one kind in one window.
const LINES_MAX: u64 = 100;

/// The length of a window, which begins with the first line of its kind.
const WINDOW: Duration = Duration::from_secs(10);

/// The budgets of all kinds. There are no more of them than places in the code that log.
#[derive(Debug)]
pub(crate) struct KindLimit<K = Identifier> {
    kinds: HashMap<K, KindBudget>,
    /// Kinds of which lines were left out that nothing says yet.
    unsaid: usize,
}

#[derive(Debug)]
struct KindBudget {
    began: Instant,
    lines: u64,
    left_out: Option<LeftOut>,
}

/// Lines that were left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeftOut {
    pub(crate) count: u64,
    /// The first of them.
    pub(crate) first: String,
}

impl<K> Default for KindLimit<K> {
    fn default() -> Self {
        Self { kinds: HashMap::new(), unsaid: 0 }
    }
}

impl<K: Eq + Hash> KindLimit<K> {
    /// Whether a line of this kind may be written now. If not, it is counted; `words` makes its
    /// text, once in a window.
    pub(crate) fn admits(&mut self, kind: K, now: Instant, words: impl FnOnce() -> String) -> bool {
        let new = || KindBudget { began: now, lines: 0, left_out: None };
        let budget = self.kinds.entry(kind).or_insert_with(new);
        // With lines left out the window ends when they are said.
        if budget.left_out.is_none() && budget.is_over(now) {
            *budget = new();
        }
        budget.lines += 1;
        if budget.lines <= LINES_MAX {
            return true;
        }
        match &mut budget.left_out {
            Some(left_out) => left_out.count += 1,
            None => {
                budget.left_out = Some(LeftOut { count: 1, first: words() });
                self.unsaid += 1;
            }
        }
        false
    }

    /// The lines that were left out in windows that are over, or in all of them at the end.
    pub(crate) fn take_left_out(&mut self, now: Instant, is_end: bool) -> Vec<LeftOut> {
        if self.unsaid == 0 {
            return Vec::new();
        }
        let mut taken = Vec::new();
        for budget in self.kinds.values_mut().filter(|budget| is_end || budget.is_over(now)) {
            if let Some(left_out) = budget.left_out.take() {
                taken.push(left_out);
                self.unsaid -= 1;
            }
        }
        taken.sort_by(|a, b| a.first.cmp(&b.first));
        taken
    }
}

impl KindBudget {
    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.began) >= WINDOW
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_one_kind_are_bounded_and_those_left_out_are_counted() {
        let (loud, quiet) = ("loud", "quiet");
        let start = Instant::now();
        let mut limit = KindLimit::default();
        let mut admitted = 0;
        for number in 0..1_000 {
            admitted += u64::from(limit.admits(loud, start, || format!("line {number}")));
        }
        assert_eq!(admitted, LINES_MAX);
        assert!(limit.admits(quiet, start, String::new), "each kind has its own bound");
        assert_eq!(limit.take_left_out(start, false), [], "the window is not over");
        let left_out = LeftOut { count: 900, first: "line 100".to_owned() };
        assert_eq!(limit.take_left_out(start + WINDOW, false), [left_out]);
        assert_eq!(limit.take_left_out(start + WINDOW, true), [], "it is said once");
        assert!(limit.admits(loud, start + WINDOW, String::new), "a new window");
        for _ in 0..LINES_MAX {
            limit.admits(loud, start + WINDOW, || "again".to_owned());
        }
        let left_out = LeftOut { count: 1, first: "again".to_owned() };
        assert_eq!(limit.take_left_out(start + WINDOW, true), [left_out], "the end says all");
    }
}
