//! Operations as the search sees them: the values that they need and leave, by number.

/// A value by number, 0 for "nothing".
pub(super) type ValueNumber = u32;
/// Any of the values that no read observed.
pub(super) const UNOBSERVED: ValueNumber = ValueNumber::MAX;

/// The value that an operation needs the register to hold, and the one that it leaves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RegisterStep {
    Write(ValueNumber),
    Read(ValueNumber),
    Swap {
        expected: ValueNumber,
        value: ValueNumber,
    },
    /// A swap that found something else.
    Miss {
        expected: ValueNumber,
        previous: ValueNumber,
    },
    /// A value that is gone from then on, if it was there.
    Expire(ValueNumber),
}

impl RegisterStep {
    /// The value that the register must hold before it, and the one that it may leave.
    pub(super) fn values(self) -> (Option<ValueNumber>, Option<ValueNumber>) {
        match self {
            Self::Write(value) => (None, Some(value)),
            Self::Read(seen) => (Some(seen), None),
            Self::Swap { expected, value } => (Some(expected), Some(value)),
            Self::Miss { previous, .. } => (Some(previous), None),
            Self::Expire(_) => (None, Some(0)),
        }
    }

    pub(super) fn apply(self, held: ValueNumber) -> Option<ValueNumber> {
        match self {
            Self::Write(value) => Some(value),
            Self::Read(seen) => (seen == held).then_some(held),
            Self::Swap { expected, value } => (expected == held).then_some(value),
            Self::Miss { expected, previous } => {
                (previous == held && expected != held).then_some(held)
            }
            Self::Expire(value) => Some(if value == held { 0 } else { held }),
        }
    }

    /// Whether it may come next and would change nothing, now or later.
    pub(super) fn is_neutral(self, held: ValueNumber, uses: &ValueUses) -> bool {
        match self {
            // A value that has not been written yet must not lose its end.
            Self::Expire(value) => value != held && uses.writers_of(value) == 0,
            Self::Read(_) | Self::Miss { .. } => self.apply(held).is_some(),
            Self::Write(value) => value == UNOBSERVED && held == UNOBSERVED,
            Self::Swap { .. } => false,
        }
    }
}

/// One operation as the search sees it.
pub(super) struct SearchOp {
    /// Its place in the caller's list.
    pub(super) source: usize,
    pub(super) called: u64,
    /// `None` for an operation without an answer.
    pub(super) returned: Option<u64>,
    pub(super) step: RegisterStep,
    /// The nearest earlier operation without an answer and with the same step.
    pub(super) twin: Option<usize>,
}

/// Of the operations that are not placed, how many need a value and how many can write it.
pub(super) struct ValueUses {
    /// Those with an answer: the others need not be placed.
    observers: Vec<u32>,
    writers: Vec<u32>,
}

impl ValueUses {
    pub(super) fn new(values: usize, items: &[SearchOp]) -> Self {
        let mut uses = Self { observers: vec![0; values], writers: vec![0; values] };
        items.iter().for_each(|item| uses.change(item, |count| *count += 1));
        uses
    }

    pub(super) fn change(&mut self, item: &SearchOp, by: impl Fn(&mut u32)) {
        let (needed, left) = item.step.values();
        let needed = needed.filter(|_| item.returned.is_some());
        // A value that no read observed has no place here.
        needed.and_then(|value| self.observers.get_mut(value as usize)).into_iter().for_each(&by);
        left.and_then(|value| self.writers.get_mut(value as usize)).into_iter().for_each(&by);
    }

    /// The operations that are not placed and can write the value.
    fn writers_of(&self, value: ValueNumber) -> u32 {
        self.writers.get(value as usize).copied().unwrap_or(0)
    }

    /// Whether no order goes on with `item` overwriting `held`: another operation has to observe
    /// that, and it will not be written again.
    pub(super) fn is_missed(&self, held: ValueNumber, item: &SearchOp) -> bool {
        let at = |counts: &[u32]| counts.get(held as usize).copied().unwrap_or(0);
        let observes = item.returned.is_some() && item.step.values().0 == Some(held);
        at(&self.observers) > u32::from(observes) && at(&self.writers) == 0
    }
}
