//! Handshakes of members, around the real code: an older copy of a disk is not accepted by members
//! that know its later state, and sound stores always come to accept each other.

mod histories;
mod members;
mod refusals;
