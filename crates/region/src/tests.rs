//! Stories between the replicas of a region, in a cluster of three that runs in one thread.

mod chaos;
mod cluster;
mod comparisons;
mod damage;
pub(crate) mod disks;
mod elections;
mod garbage;
mod installs;
mod logs;
mod machine;
mod member_chaos;
mod members;
mod promises;
mod reads;
mod removals;
mod single;
mod snapshots;
mod splits;
mod transfers;
mod uninitialised;
mod writes;
