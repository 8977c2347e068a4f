//! One replica of a key range and a shard of many, without IO.

mod codec;
pub mod command;
mod config;
mod descriptor;
mod effects;
mod entry;
mod error;
mod event;
mod ids;
mod message;
mod recovered;
mod status;

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
pub use status::{Dropped, Role, Stats, Status};
