//! One node of a cluster: threads, gRPC services, configuration.
//!
//! Everything that decides lives in the crates below this one; here are the things that a
//! simulator cannot test, and they are kept thin: threads, sockets and the clock.
//!
//! [`Node::start`] runs one store. The command line is `flotilla-cli`, which nothing here knows.
//!
//! Code map, from the top; a folder uses those below it and never one above:
//!
//! - `node`: assembles one node, starts it and ends it in order. Never decides anything itself.
//! - `status/`: owns the counts, the answers to operators and the health lines. Never changes state.
//! - `pd/`: owns the placement driver: its leader's term of office, heartbeats of regions, and PD's
//!   services. Never writes but through the system region's log.
//! - `service/rawkv/`: owns TiKV's RawKV protocol, its limits and its words. Never asks the store
//!   without a grant of the region.
//! - `transport/`: owns the streams between stores and their queues. Never waits for room and never
//!   repeats a message: raft does.
//! - `membership/`: owns the way from an empty directory to a member, and handshakes. Never takes a
//!   decision: the rules are `flotilla_identity`'s.
//! - `start`: opens a listener, a directory and the store in it. Never runs a thread.
//! - `net/`: owns sockets: limits on connections that come in, dialling those that go out. Never
//!   knows what is served.
//! - `config/`: owns every setting: name, unit, default, range. Never reads one at run time.
//! - `driver/`: owns the threads of shards and workers, their mailboxes and queues, admission
//!   control and tickets. Never opens a socket, and a shard's thread never waits for a disk.
//! - `failure`, `clock`, `sched`, `drop_notify`: fail-stop, time, time slices of threads, and the
//!   wait for the last holder of the store.

pub mod clock;
pub mod config;
mod driver;
mod drop_notify;
pub mod failure;
mod membership;
mod net;
mod node;
pub mod pd;
mod sched;
pub mod service;
mod start;
mod status;
#[cfg(test)]
mod test_store;
mod transport;

pub use config::NodeConfig;
pub use driver::router;
pub use node::Node;
pub use sched::set_sched_slice;
pub use start::{StartError, bind};
pub use status::metrics;
pub use transport::TransportCounts;

/// The version of this build.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
