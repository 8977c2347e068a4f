//! The embedded placement driver.
//!
//! It lives on the store that leads the system region and follows that leadership: `duty` takes
//! it up and lays it down, `pd_leader` is what a leader holds during one term, `reporter` on every
//! store tells the leader which regions the store leads. `service` answers clients, by `lookup`;
//! `reports` takes in what the stores say; `extras` are small services that clients expect
//! beside it. `context` is what they share, `placement` puts them together.

mod context;
mod convert;
mod election;
mod errors;
mod heartbeat_receiver;
mod heartbeat_sender;
mod heartbeat_sessions;
mod leader;
mod lookup;
mod placement_driver;
mod service;
mod stubs;

pub use context::PdConfig;
pub use placement_driver::PlacementDriver;
