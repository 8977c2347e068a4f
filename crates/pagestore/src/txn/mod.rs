//! Transactions: the one writer, snapshots of readers, savepoints, and the replay of redo records.

pub(crate) mod key_counts;
pub(crate) mod replay;
pub(crate) mod snapshot;
pub(crate) mod split_join;
pub(crate) mod tree_mut;
pub(crate) mod txn_state;
pub(crate) mod write_txn;
