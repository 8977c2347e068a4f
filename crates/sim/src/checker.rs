//! Linearizability checker for registers: one order of all operations must explain every answer.
//!
//! Each key is a register by itself, so a history is checked key by key. [`History`] collects the
//! calls of clients and their answers; [`check`] decides one register. `search.rs` holds the
//! search.
//!
//! An operation without an answer may have taken effect at any time after its call, or never. An
//! operation that surely had no effect does not belong into a history; take it out with
//! [`History::forget`].
//!
//! Moments are any numbers that grow with real time. Two operations overlap unless one returned at
//! a moment strictly before the other's call: equal moments count as overlapping.

use std::collections::BTreeMap;
use std::fmt::Debug;
mod bit_set;
mod history_list;
mod register;
mod search;
mod search_op;
#[cfg(test)]
mod tests;

pub use register::{
    RegisterAction, RegisterAnswer, RegisterOp, RegisterValue, Violation, held_after,
};

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
pub fn check(operations: &[RegisterOp]) -> Result<(), Violation> {
    search::search(operations)
}

/// Names one operation of a [`History`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OperationId(usize);

/// The calls of clients on many registers, named by `K`, and their answers.
#[derive(Clone, Debug)]
pub struct History<K> {
    operations: Vec<Option<(K, RegisterOp)>>,
}

impl<K> Default for History<K> {
    fn default() -> Self {
        Self { operations: Vec::new() }
    }
}

/// The numbers of registers and operations that [`History::check`] has checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckedCounts {
    /// Registers.
    pub keys: u64,
    /// Operations in all.
    pub operations: u64,
    /// Of these, operations whose fate is unknown.
    pub unknown: u64,
}

impl<K: Ord + Clone + Debug> History<K> {
    /// Notes a call.
    pub fn call(
        &mut self,
        key: K,
        client: u64,
        called: u64,
        action: RegisterAction,
    ) -> OperationId {
        self.operations.push(Some((key, RegisterOp { client, called, action, returned: None })));
        OperationId(self.operations.len() - 1)
    }

    /// Notes the answer to a call.
    ///
    /// # Panics
    ///
    /// If the operation was answered or forgotten before.
    pub fn answer(&mut self, id: OperationId, returned: u64, answer: RegisterAnswer) {
        let (_, operation) = self.operations[id.0].as_mut().expect("not forgotten before");
        assert!(operation.returned.is_none(), "answered twice: {operation}");
        operation.returned = Some((returned, answer));
    }

    /// Takes out an operation that surely had no effect.
    pub fn forget(&mut self, id: OperationId) {
        // The slot stays: the ids of later operations are places in this list.
        self.operations[id.0] = None;
    }

    /// Checks every register.
    ///
    /// # Errors
    ///
    /// The first register, in the order of keys, whose history is not accepted.
    pub fn check(&self) -> Result<CheckedCounts, (K, Violation)> {
        let mut registers: BTreeMap<&K, Vec<RegisterOp>> = BTreeMap::new();
        let mut checked = CheckedCounts::default();
        for (key, operation) in self.operations.iter().flatten() {
            checked.operations += 1;
            // Counted, because a history of unknown fates only is always accepted and proves
            // nothing.
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
