//! The threads of a node and all that passes between them.
//!
//! A shard's thread (`shard_thread`) steps its regions, with what `mailbox` has for it, and hands
//! effects to the `workers`; `router` is the way of a request to its region and back, with
//! `admission` before it and `tickets` behind it; `routes` is what is known of leaders. `threads`
//! starts and ends them, `context` is what they share. Sockets are not known here: what goes to
//! other stores goes to an [`shard_thread::MessageSink`].

pub(crate) mod admission;
pub(crate) mod context;
pub(crate) mod mailbox;
pub mod router;
pub(crate) mod routes;
pub(crate) mod shard_message;
pub(crate) mod shard_thread;
pub(crate) mod threads;
pub(crate) mod tickets;
pub(crate) mod workers;
