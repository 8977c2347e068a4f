//! gRPC in, router out: TiKV's RawKV service.
//!
//! A request passes `check` (may it be said at all?), `claim` (what does it claim about its
//! region?) and `range` (what does it mean within the region's borders?), goes to the region by
//! the router, and its answer or its failure (`errors`) goes back. `reads` and `writes` are where
//! that happens for each kind of request; `places` keeps long reads from holding up others; `tikv` is
//! the gRPC service over them, `batch` its stream that carries many requests, and `wire` turns their
//! answers into bytes.

mod batch;
mod check;
mod claim;
mod errors;
mod places;
mod range;
mod rawkv;
mod reads;
mod tikv;
mod wire;
mod writes;

pub use places::PlacesConfig;
pub use rawkv::{Limits, RawKv};
pub use wire::RawKvServer;
