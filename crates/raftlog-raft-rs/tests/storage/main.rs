//! The storage against the rules of raft-rs' trait, and under nodes whose disks lose power.

mod cluster;
mod fetches;
mod kit;
mod ready;
mod rules;
