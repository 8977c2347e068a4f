//! One replica of a key range and a shard of many, without IO.

mod applying;
mod codec;
pub mod command;
mod compaction;
mod config;
mod consensus;
mod convert;
mod descriptor;
mod effects;
mod entry;
mod epoch;
mod error;
mod event;
mod fetches;
mod ids;
mod invariants;
mod lease;
mod message;
mod peer;
mod proposals;
mod reading;
mod reads;
mod ready;
mod recovered;
mod screen;
mod shard;
mod status;
mod step;
mod timers;
mod window;

pub use codec::Malformed;
pub use config::{Config, InvalidConfig, ReadConfig, WindowConfig};
pub use descriptor::{Descriptor, Epoch, Peer, Space};
pub use effects::{
    ApplyTask, Committed, Compaction, Effects, LogFetch, LogWrite, ReadGrant, RoleChange,
};
pub use entry::{EntryKind, HardState, LogEntry};
pub use error::{Reject, Unfit};
pub use event::{Event, Guard, KeySpan};
pub use ids::{Index, PeerId, RegionId, StoreId, Term, Ticket, Time};
pub use message::{Envelope, Message, MessageKind};
pub use recovered::Recovered;
pub use shard::Shard;
pub use status::{Dropped, Role, Stats, Status};

#[cfg(test)]
mod tests;
