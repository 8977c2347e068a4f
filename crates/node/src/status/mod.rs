//! What a node says of itself: its counts, its replicas, and what lasts too long.
//!
//! `server` answers operators and tools, `metrics` gathers what all parts count, `health` looks
//! each second at connections and leaders and logs what lasts too long. Nothing here changes
//! anything.

pub(crate) mod health;
mod health_monitor;
pub mod metrics;
pub(crate) mod server;
