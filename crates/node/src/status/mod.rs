//! Status of a node: its counters, its replicas, and its health.
//!
//! `reader` reads the state of all parts, `metrics` gathers their counters. `server` answers
//! operators and tools by gRPC; `http` answers by plain HTTP, `prometheus` makes the text of a
//! scrape, with the figures of `process_stats`, `settings_http` has the settings, and `tikv_http`
//! answers as TiKV's status server does. `page` is the status page for browsers, with its
//! documents. `process_log` is the logger of the process. `health` samples connections and leaders
//! each second, and `health_monitor` decides which trouble is logged. Nothing here changes the
//! state of a store.

pub(crate) mod health;
mod health_monitor;
pub(crate) mod http;
pub mod metrics;
pub(crate) mod page;
pub(crate) mod process_log;
mod process_stats;
mod prometheus;
pub(crate) mod reader;
pub(crate) mod server;
pub(crate) mod settings_http;
pub(crate) mod tikv_http;
