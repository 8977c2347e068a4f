//! gRPC in, router out: TiKV's RawKV service.
//!
//! A request passes `check` (may it be said at all?), `claim` (what does it claim about its
//! region?) and `range` (what does it mean within the region's borders?), goes to the region by
//! the router, and its answer or its failure (`errors`) goes back. `reads` and `writes` are where
//! that happens for each kind of request; `read_scheduler` keeps long reads from holding up others; `wire`
//! is the gRPC service over them, and `batch` its stream that carries many requests. Answers are
//! bytes early: `rows` encodes what a scan finds, `pieces` the message around it, and `block_in_place` keeps
//! that from holding up others.

mod batch_commands;
mod block_in_place;
mod chunked_body;
mod errors;
mod grpc;
mod range;
mod read_scheduler;
mod reads;
mod request_context;
mod row_encoder;
mod service;
mod validate;
mod writes;

pub use grpc::RawKvServer;
pub use read_scheduler::ReadSchedulerConfig;
pub use service::{RawKv, RawKvLimits};
