//! TiKV's RawKV service: gRPC in, router out.
//!
//! A request passes `validate` (TiKV's limits), `request_context` (its claims about the region) and
//! `range` (its range within the region's borders), goes to the region by the router, and its
//! answer or its failure (`errors`) goes back. `reads`, `checksum`, `writes`, `destroy_range`,
//! `splits` and `locks` do that for each kind of request; `refused` has the answers to those that
//! are not served; `read_scheduler` keeps long reads from holding up short ones; `grpc` is the
//! service over them, `batch_commands` its stream that carries many requests, `service` what they
//! share, `rpc_durations` how long each call takes. Answers are encoded early: `row_encoder`
//! encodes the rows of a scan, `chunked_body` the message around them; `bounded_answer` finds room
//! for long ones.

mod batch_commands;
mod bounded_answer;
mod checksum;
mod chunked_body;
mod destroy_range;
mod errors;
mod grpc;
mod locks;
mod range;
mod read_scheduler;
mod reads;
mod refused;
mod request_context;
mod row_encoder;
mod rpc_durations;
mod service;
mod splits;
mod validate;
mod writes;

pub use grpc::RawKvServer;
pub use read_scheduler::ReadSchedulerConfig;
pub(crate) use rpc_durations::RpcDurations;
pub use service::{RawKv, RawKvLimits};
