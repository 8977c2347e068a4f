//! The Flotilla process: threads, gRPC, configuration, and the command line.
//!
//! Everything that decides lives in the crates below this one; here are the things that a
//! simulator cannot test, and they are kept thin: threads, sockets, the clock and the command line.
//!
//! [`Node::start`] runs one store, [`playground::Playground`] a small cluster.

mod accept;
pub mod bench;
pub mod clock;
mod commons;
pub mod config;
pub mod ctl;
mod diagnosis;
pub mod fail_stop;
pub mod failure;
mod health;
mod letters;
mod log_queue;
pub mod log_tool;
pub mod logging;
mod mailbox;
mod membership;
pub mod metrics;
mod node;
mod offline;
mod opening;
pub mod page_tool;
mod patience;
pub mod pd;
pub mod play;
pub mod playground;
mod port;
pub mod router;
mod routes;
pub mod serve;
mod server;
pub mod service;
mod shards;
mod shared;
mod signals;
mod slices;
mod start;
mod status;
#[cfg(test)]
mod test_store;
mod threads;
mod tickets;
mod tool;
mod transport;
mod workers;

pub use config::NodeConfig;
pub use node::Node;
pub use port::Port;
pub use start::StartError;
pub use transport::TransportCounts;

/// The version of this build.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
