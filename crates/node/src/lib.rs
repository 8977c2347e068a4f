//! The Flotilla process: threads, gRPC, configuration, and the command line.
//!
//! Everything that decides lives in the crates below this one; here are the things that a
//! simulator cannot test, and they are kept thin: threads, sockets, the clock and the command line.

pub mod clock;
pub mod failure;
mod mailbox;
pub mod router;
mod routes;
mod tickets;
