//! Membership: from an empty directory to a member, and a member's handshakes with the others.
//!
//! The rules are in `flotilla_identity`. Here are their clocks, sockets and threads: `bootstrap`
//! drives the protocol until the directory is a member's (`bootstrap_client` asks,
//! `bootstrap_server` answers), `become_member` puts that together. `join` is the other way there,
//! into a cluster that runs (`join_client` asks, `join_server` answers for a store without a
//! cluster). `waiting_server` serves until then. `handshakes` is the state of a running member,
//! `convert` reads and writes the wire.

mod become_member;
mod bootstrap;
mod bootstrap_client;
mod bootstrap_server;
mod convert;
mod handshakes;
mod join;
mod join_client;
mod join_server;
mod settings_copy;
mod waiting_server;

pub(crate) use become_member::become_member;
pub(crate) use convert::{
    WireQuestion, bootstrap_from_wire, bootstrap_response_to_wire, labels_from_wire,
    labels_to_wire, run_from_wire, run_to_wire, state_to_wire, uuid_from_wire, uuid_to_wire,
};
pub(crate) use handshakes::{GivenPlace, HandshakeError, KnownStore, Membership};
pub(crate) use join::{check_contacts, join_cluster};
