//! Members that greet each other, around the real handshake: an older copy of a disk is not taken
//! by those who heard its later state, and sound stores always come to take each other.

mod histories;
mod members;
mod refusals;
