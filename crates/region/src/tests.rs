//! Stories between the replicas of a region, in a cluster of three that runs in one thread.

mod chaos;
mod cluster;
mod elections;
mod garbage;
mod installs;
mod logs;
mod machine;
mod promises;
mod reads;
mod single;
mod snapshots;
mod splits;
mod transfers;
mod uninitialised;
mod writes;
