//! Status of a node: its counters, its replicas, and its health.
//!
//! `server` answers operators and tools, `http` as TiKV's status server does, `metrics` gathers the
//! counters of all parts, `health` samples connections and leaders each second, and
//! `health_monitor` decides which trouble is logged. Nothing here changes state.

pub(crate) mod health;
mod health_monitor;
pub(crate) mod http;
pub mod metrics;
pub(crate) mod server;
