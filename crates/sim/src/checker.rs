//! Linearizability of registers: is there one order of all operations that explains every answer?
//!
//! Each key is a register by itself, so a history is checked key by key. [`History`] collects what
//! clients asked and were told; [`check`] decides one register. `search.rs` holds the search.
//!
//! What an operation without an answer means: it may have taken effect at any time after its call,
//! or never. An operation that surely had no effect does not belong into a history; take it out
//! with [`History::forget`].
//!
//! Moments are any numbers that grow with real time. Two operations overlap unless one returned at
//! a moment strictly before the other's call: equal moments count as overlapping.

use std::collections::BTreeMap;
use std::fmt::{self, Debug};

use bytes::Bytes;

mod marks;
mod places;
mod search;
#[cfg(test)]
mod tests;

/// What a register holds; `None` is "nothing".
pub type Value = Option<Bytes>;

/// What a client asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Tell me the value.
    Get,
    /// Replace the value.
    Put(Bytes),
    /// Remove the value.
    Delete,
    /// Replace the value by `value` if it is `expected`.
    Swap {
        /// What the register must hold.
        expected: Value,
        /// What it holds then.
        value: Value,
    },
}

/// What a client was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A put or a delete took effect.
    Done,
    /// A get saw this.
    Seen(Value),
    /// A swap took effect, or did not; before it the register held `previous`.
    Swapped {
        /// Whether the value was replaced.
        succeeded: bool,
        /// What the register held.
        previous: Value,
    },
}

/// One call on one register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Who asked; only printed.
    pub client: u64,
    /// The moment of the call.
    pub called: u64,
    /// What was asked.
    pub action: Action,
    /// The moment of the answer and the answer; `None` if its fate is unknown.
    pub returned: Option<(u64, Answer)>,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {} at {}: {:?} -> ", self.client, self.called, self.action)?;
        match &self.returned {
            None => f.write_str("unknown"),
            Some((at, answer)) => write!(f, "{answer:?} at {at}"),
        }
    }
}

/// Why a register's history is not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// No order explains the answers.
    Impossible {
        /// The first operation that no order could place.
        stuck: Box<Operation>,
        /// How many operations the best order placed before it.
        placed: usize,
        /// What the register held then.
        held: Value,
        /// The operations that overlap the stuck one, and the last few before it.
        around: Vec<Operation>,
    },
    /// The search was given up after this many steps; nothing is known.
    Undecided {
        /// Steps taken.
        steps: u64,
    },
    /// An answer does not belong to its question, such as a put that "saw" something.
    Mismatch(Box<Operation>),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mismatch(operation) => write!(f, "the answer is of another kind: {operation}"),
            Self::Undecided { steps } => write!(f, "undecided after {steps} steps"),
            Self::Impossible { stuck, placed, held, around } => {
                write!(
                    f,
                    "not linearizable: after {placed} operations the register held {held:?}, \
                     and nothing explains [{stuck}]"
                )?;
                around.iter().try_for_each(|operation| write!(f, "\n    {operation}"))
            }
        }
    }
}

/// Decides whether `operations` on one register, empty at first, can be put into an order that
/// respects real time and explains every answer.
///
/// Takes time about linear in the number of operations if few overlap, and grows with 2 to the
/// number that do.
///
/// # Errors
///
/// [`Violation::Impossible`] if there is no such order; [`Violation::Undecided`] if too many
/// operations overlap; [`Violation::Mismatch`] for an answer of another kind than its question.
pub fn check(operations: &[Operation]) -> Result<(), Violation> {
    search::search(operations)
}

/// What a register holds right after an answered operation.
#[must_use]
pub fn held_after(action: &Action, answer: &Answer) -> Value {
    match (action, answer) {
        (_, Answer::Seen(value)) => value.clone(),
        (Action::Put(value), _) => Some(value.clone()),
        (Action::Swap { value, .. }, Answer::Swapped { succeeded: true, .. }) => value.clone(),
        (_, Answer::Swapped { previous, .. }) => previous.clone(),
        (Action::Get | Action::Delete | Action::Swap { .. }, Answer::Done) => None,
    }
}

/// Names one operation of a [`History`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OperationId(usize);

/// What clients asked of many registers, named by `K`, and what they were told.
#[derive(Clone, Debug)]
pub struct History<K> {
    operations: Vec<Option<(K, Operation)>>,
}

impl<K> Default for History<K> {
    fn default() -> Self {
        Self { operations: Vec::new() }
    }
}

/// What [`History::check`] looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Registers.
    pub keys: u64,
    /// Operations in all.
    pub operations: u64,
    /// Of these, operations whose fate is unknown.
    pub unknown: u64,
}

impl<K: Ord + Clone + Debug> History<K> {
    /// Notes a call.
    pub fn call(&mut self, key: K, client: u64, called: u64, action: Action) -> OperationId {
        self.operations.push(Some((key, Operation { client, called, action, returned: None })));
        OperationId(self.operations.len() - 1)
    }

    /// Notes the answer to a call.
    ///
    /// # Panics
    ///
    /// If the operation was answered or forgotten before.
    pub fn answer(&mut self, id: OperationId, returned: u64, answer: Answer) {
        let (_, operation) = self.operations[id.0].as_mut().expect("not forgotten before");
        assert!(operation.returned.is_none(), "answered twice: {operation}");
        operation.returned = Some((returned, answer));
    }

    /// Takes out an operation that surely had no effect.
    pub fn forget(&mut self, id: OperationId) {
        self.operations[id.0] = None;
    }

    /// Checks every register.
    ///
    /// # Errors
    ///
    /// The first register, in the order of keys, whose history is not accepted.
    pub fn check(&self) -> Result<Checked, (K, Violation)> {
        let mut registers: BTreeMap<&K, Vec<Operation>> = BTreeMap::new();
        let mut checked = Checked::default();
        for (key, operation) in self.operations.iter().flatten() {
            checked.operations += 1;
            checked.unknown += u64::from(operation.returned.is_none());
            registers.entry(key).or_default().push(operation.clone());
        }
        checked.keys = registers.len() as u64;
        for (key, operations) in registers {
            check(&operations).map_err(|violation| (key.clone(), violation))?;
        }
        Ok(checked)
    }
}
