//! A whole cluster in one thread, from one seed.
//!
//! The cores, the stores and both engines are the real ones; the disks, the network, the clocks and
//! the clients are simulated, and everything that happens follows from a seed. See
//! `docs/simulation.md`.

mod agenda;
mod audit;
pub mod checker;
mod clock;
mod faults;
mod hands;
mod layout;
mod machine;
mod network;
mod oracle;
mod packet;
mod questions;
mod reach;
mod request;
mod run;
mod task;
mod terms;
mod trace;
mod truth;
mod workload;
mod world;

pub use reach::Reach;
pub use run::{Options, Report, run};
pub use workload::Tally;
pub use world::Counts;
