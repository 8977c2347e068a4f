//! The engine through its public face, on a disk that can be told to fail.

mod api;
mod awaits;
mod copies;
mod corruption;
mod crash;
mod faults;
mod hooked;
mod kit;
mod limits;
mod maintain;
mod oracle;
mod purge;
mod read_only;
mod reads;
mod replace;
mod threads;
mod verify;
