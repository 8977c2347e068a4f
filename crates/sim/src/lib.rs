//! A whole cluster in one thread, from one seed.
//!
//! The cores, the stores and both engines are the real ones; the disks, the network, the clocks and
//! the clients are simulated, and everything that happens follows from a seed. See
//! `docs/simulation.md`.

mod audit;
#[cfg(test)]
mod cases;
pub mod checker;
mod clock;
mod coverage;
mod event_queue;
mod executor;
mod expiry;
mod fault;
mod faults;
mod layout;
mod membership_planner;
mod network;
mod node;
mod options;
mod packet;
mod placement_watch;
mod reference_model;
mod region_cache;
mod request;
mod request_generator;
mod run;
mod settings_planner;
mod split_planner;
mod task;
mod terms;
mod trace;
mod transfer_planner;
mod tso_oracle;
mod wall_clock;
mod workload;
mod world;

pub use coverage::Coverage;
pub use options::Options;
pub use run::{SimReport, run};
pub use workload::ClientCounts;
pub use world::EventCounts;
