//! One node of a cluster: threads, gRPC services, configuration.
//!
//! The crates below this one decide; here are the things that a simulator cannot test, and they are
//! kept thin: threads, sockets and the clock.
//!
//! [`Node::start`] runs one store. The command line is `flotilla-cli`, which nothing here knows.
//!
//! Code map, from the top; a folder uses those below it and never one above:
//!
//! - `node`: assembles one node, starts it and ends it in order. Never decides anything itself.
//! - `services`: puts together what is served on the one port.
//! - `status/`: owns the counters, the answers to operators, the status page and the health log.
//!   Never changes state.
//! - `pd/`: owns the placement driver: the leader's term, region heartbeats, and PD's services.
//!   Never writes but through the system region's log.
//! - `service/rawkv/`: owns TiKV's RawKV protocol, its limits and its errors. Never reads the store
//!   without a grant of the region.
//! - `transport/`: owns the streams between stores and their send queues. Never waits for room and
//!   never repeats a message: raft does.
//! - `membership/`: owns the way from an empty directory to a member, and handshakes. Never
//!   decides: the rules are those of `flotilla_identity`.
//! - `start`: opens a listener, a directory and the store in it. Never runs a thread.
//! - `access`: owns the roles that requests need. Never knows who has which.
//! - `net/`: owns sockets and TLS: limits on connections that come in, dialling those that go out.
//!   Never knows the services.
//! - `config/`: owns every setting: name, unit, default, range, meaning. Never changes one while a
//!   node runs.
//! - `online_settings`: puts into effect those that may change while a node runs.
//! - `driver/`: owns the threads of shards and workers, mailboxes and work queues, admission
//!   control and tickets. Never opens a socket, and a shard's thread never waits for a disk.
//! - `wall_clock`, `expiry_sweeper`: the clock by which rows expire, and the task that has those
//!   removed that have. Never decides which have: the store does, by the time of an entry.
//! - `data_access`, `leader_log`: two lines of the log: who else can read the store's data, and
//!   which regions have another leader.
//! - `consistency_checker`: the tasks that have the replicas of regions compared, and compute
//!   digests for that. Never decides which differ: an entry does, on each replica alike.
//! - `disk_reserve`: the file that is given up when the disk has no room. Never decides when.
//! - `border_codec`: the borders of regions on the wire of clients. Never used between stores.
//! - `failure`, `clock`, `sched`, `drop_notify`, `in_flight`: fail-stop, time, time slices of
//!   threads, the wait for the last holder of the store, and work that operators see in flight.

mod access;
mod border_codec;
pub mod clock;
pub mod config;
mod consistency_checker;
mod data_access;
mod descriptor_proto;
mod disk_reserve;
mod driver;
mod drop_notify;
mod expiry_sweeper;
pub mod failure;
mod in_flight;
mod leader_log;
mod membership;
mod net;
mod node;
mod online_settings;
pub mod pd;
mod sched;
pub mod service;
mod services;
mod settings_follower;
mod start;
mod status;
#[cfg(test)]
mod test_store;
mod transport;
mod verdict_proto;
mod wall_clock;

pub use config::{FirstStart, NodeConfig};
pub use driver::router;
pub use failure::EndKind;
pub use net::security::NodeSecurity;
pub use node::Node;
pub use online_settings::ReloadedSettings;
pub use sched::set_sched_slice;
pub use start::{StartError, bind};
pub use status::metrics;
pub use status::process_log::ProcessLog;
pub use transport::TransportCounts;

/// The version of TiKV that clients are told: some of them ask for one that has what they want, as
/// the Java client does under API V2, which began with this one.
pub(crate) const TIKV_VERSION: &str = "6.1.0";

/// The version of this build.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
