//! The log against openraft's own suite, with many groups, when the power goes, under real nodes.

mod crash;
mod groups;
mod kit;
mod machine;
mod raft;
mod suite;
