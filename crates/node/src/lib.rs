//! One node of a cluster: threads, gRPC services, configuration.
//!
//! Everything that decides lives in the crates below this one; here are the things that a
//! simulator cannot test, and they are kept thin: threads, sockets and the clock.
//!
//! [`Node::start`] runs one store.

mod accept;
pub mod clock;
mod commons;
pub mod config;
pub mod failure;
mod health;
mod letters;
mod mailbox;
mod membership;
pub mod metrics;
mod node;
mod opening;
mod patience;
pub mod pd;
pub mod router;
mod routes;
mod server;
pub mod service;
mod shards;
mod shared;
mod slices;
mod start;
mod status;
#[cfg(test)]
mod test_store;
mod threads;
mod tickets;
mod transport;
mod workers;

pub use config::NodeConfig;
pub use node::Node;
pub use slices::shorten_time_slices;
pub use start::{StartError, bind};
pub use transport::TransportCounts;

/// The version of this build.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
