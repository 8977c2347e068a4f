//! Where replicas and leaders are, the cluster's ids and its timestamps, without IO or a clock.
//!
//! The node that leads the system region owns one of each machine here and drives it: events and
//! the time go in, rows to write come out.
//!
//! - [`Cluster`] knows stores, regions and leaders from the reports of the stores.
//! - [`Ids`] hands out numbers that nobody else in the cluster gets.
//! - [`Tso`] hands out timestamps that never go back.
//!
//! `Ids` and `Tso` survive a change of leader by the same means, a [`Mark`]: a row of the system
//! region that only grows, and only by a compare-and-swap. A leader uses what lies below the mark
//! that it has raised itself; the next leader starts at the mark that it reads.

mod cluster;
mod ids;
mod mark;
mod routes;
pub mod rows;
mod tso;

pub use cluster::{Cluster, Config, Route, Sighting, Store, Trust};
pub use ids::{BLOCK_COUNT, FLOOR, Ids};
pub use mark::Mark;
pub use routes::{Region, Replica};
pub use rows::{RowError, RowSwap, Settled};
pub use tso::{LOGICAL_END, Timestamp, Tso, TsoError, WINDOW_MS};
