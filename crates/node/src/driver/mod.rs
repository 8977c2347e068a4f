//! The threads of a node, and the queues and tables between them.
//!
//! A shard's thread (`shard_thread`) steps its regions with the messages of its `mailbox`, and
//! hands effects to the `workers`; `router` carries a request to its region and back, with
//! `admission` control before it and `tickets` behind it; `routes` is the routing table. `split`
//! splits regions, at the `split_pace` of the store and with ids of the `id_pool`; `splitter` has
//! those split that ask for it by `split_wishes`; `reroute` is for requests that a split has
//! overtaken; `transfer` has leaders hand over, `membership_change` has replicas changed,
//! `joint_changes` knows the regions between two configurations, `comparisons` the last verdicts
//! about replicas, for which `comparison` asks, `disk_view` how full the disks are. `threads`
//! starts and ends the threads, `context` has the handles that they share; `latencies` has the
//! histograms of requests, `slow_log` the lines about slow ones. Sockets are not known here:
//! messages to other stores go to a [`shard_thread::MessageSink`].

pub(crate) mod admission;
mod comparison;
pub(crate) mod comparisons;
pub(crate) mod context;
pub(crate) mod disk_view;
pub(crate) mod id_pool;
pub(crate) mod joint_changes;
pub(crate) mod latencies;
pub(crate) mod mailbox;
mod membership_change;
pub(crate) mod reroute;
pub mod router;
pub(crate) mod routes;
pub(crate) mod shard_message;
pub(crate) mod shard_thread;
mod slow_log;
mod split;
pub(crate) mod split_pace;
pub(crate) mod split_wishes;
pub(crate) mod splitter;
pub(crate) mod threads;
pub(crate) mod tickets;
mod transfer;
pub(crate) mod workers;
