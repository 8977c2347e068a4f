//! The embedded placement driver.
//!
//! It lives on the store that leads the system region and follows that leadership: `duty` takes
//! it up and lays it down, `office` is what a leader holds during one term, `reporter` on every
//! store tells the leader which regions the store leads. `service` answers clients, by `lookup`;
//! `reports` takes in what the stores say; `extras` are small services that clients expect
//! beside it. `driver` is what they share, `placement` puts them together.

mod convert;
mod driver;
mod duty;
mod extras;
mod lookup;
mod office;
mod placement;
mod reporter;
mod reports;
mod service;
mod sessions;
mod words;

pub use driver::Settings;
pub use placement::Placement;
