//! Misbehaving clients. Each case gets a precise answer, memory stays bounded, and a well-behaved
//! client goes on being served.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

mod background;
mod batches;
#[path = "../tls/certificates.rs"]
mod certificates;
mod claims;
mod connections;
mod floods;
mod frames;
mod messages;
mod placement;
#[path = "../processes/mod.rs"]
mod processes;
mod ranges;
mod sizes;
mod steady_load;
mod stolen_time;
mod target;
mod tunnel;
mod unfinished;
