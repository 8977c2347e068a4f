//! An append-only log engine for many raft groups.
