//! The sequential specification of a register: its actions, its answers, and violations.

use std::fmt::{self, Debug};

use bytes::Bytes;

/// The value of a register; `None` is "nothing".
pub type RegisterValue = Option<Bytes>;

/// The request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegisterAction {
    /// Tell me the value.
    Get,
    /// Replace the value.
    Put(Bytes),
    /// Remove the value.
    Delete,
    /// Replace the value by `value` if it is `expected`.
    Swap {
        /// The value that the register must hold.
        expected: RegisterValue,
        /// The new value.
        value: RegisterValue,
    },
    /// Remove this value, if it is there: its time has come. No client asks for it.
    Expire(Bytes),
}

/// The answer to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegisterAnswer {
    /// A put or a delete took effect, or a value has had its time.
    Done,
    /// A get saw this.
    Seen(RegisterValue),
    /// A swap took effect, or did not; before it the register held `previous`.
    Swapped {
        /// Whether the value was replaced.
        succeeded: bool,
        /// The former value.
        previous: RegisterValue,
    },
}

/// One call on one register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisterOp {
    /// The client; only printed.
    pub client: u64,
    /// The moment of the call.
    pub called: u64,
    /// The request.
    pub action: RegisterAction,
    /// The moment of the answer and the answer; `None` if its fate is unknown.
    pub returned: Option<(u64, RegisterAnswer)>,
}

impl fmt::Display for RegisterOp {
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
        stuck: Box<RegisterOp>,
        /// How many operations the best order placed before it.
        placed: usize,
        /// The value of the register then.
        held: RegisterValue,
        /// The operations that overlap the stuck one, and the last few before it.
        around: Vec<RegisterOp>,
    },
    /// The search was given up after this many steps; nothing is known.
    Undecided {
        /// Steps taken.
        steps: u64,
    },
    /// An answer does not belong to its question, such as a put that "saw" something.
    Mismatch(Box<RegisterOp>),
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

/// The value of a register right after an answered operation.
#[must_use]
pub fn held_after(action: &RegisterAction, answer: &RegisterAnswer) -> RegisterValue {
    match (action, answer) {
        (_, RegisterAnswer::Seen(value)) => value.clone(),
        (RegisterAction::Put(value), _) => Some(value.clone()),
        (RegisterAction::Swap { value, .. }, RegisterAnswer::Swapped { succeeded: true, .. }) => {
            value.clone()
        }
        (_, RegisterAnswer::Swapped { previous, .. }) => previous.clone(),
        (
            RegisterAction::Get
            | RegisterAction::Delete
            | RegisterAction::Swap { .. }
            | RegisterAction::Expire(_),
            RegisterAnswer::Done,
        ) => None,
    }
}
