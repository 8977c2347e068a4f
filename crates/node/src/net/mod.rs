//! Sockets: connections that come in, with limits on all of them, and those that go out.
//!
//! `listen` serves one listener, `accept` takes its connections, `connect_throttle` slows down
//! those of an address with too many of them, `caller` is one such address, `connection_counts` and
//! `log_limit` tell the operator; `handshakes` makes those of TLS;
//! `connection` must open in time, `client_frames` follows how far it has come and weighs frames,
//! which `frame_turns` hands on in short turns, and `frame_throttle` slows down where they have no
//! request; `write_turns` are those of answers, `turn_gate` is between two turns; `unfetched_room`
//! bounds long answers that no client fetches, and `staged_end` ends what waits for it;
//! `server_stop` has the stages of the server's own end, `security` a node's certificates.
//! `answer` makes answers of plain HTTP, `refusal` those to calls that are not served;
//! `call_deadline` ends calls whose time is over; `unfinished_messages` bounds messages that come
//! in parts, `bounded_calls` those of a service; `dial` connects to other stores. Nothing here
//! knows what is served.

mod accept;
pub(crate) mod answer;
pub(crate) mod bounded_calls;
pub(crate) mod call_deadline;
mod caller;
mod client_frames;
mod connect_throttle;
pub(crate) mod connection;
pub(crate) mod connection_counts;
pub(crate) mod dial;
mod frame_throttle;
mod frame_turns;
pub(crate) mod handshakes;
pub(crate) mod listen;
mod log_limit;
pub(crate) mod refusal;
pub(crate) mod security;
pub(crate) mod server_stop;
mod staged_end;
mod turn_gate;
pub(crate) mod unfetched_room;
pub(crate) mod unfinished_messages;
mod write_turns;
