//! Store identity: the members of a cluster, and the proof that a store is the one it claims to be.
//!
//! A store's name and address are claims; its *identity* is a random number that its data
//! directory got when it was empty, the [`StoreUuid`]. This crate holds the rules that keep an
//! empty, older or foreign directory, or a store with other settings, from taking part in raft.
//! It takes events and returns decisions; files, sockets and clocks are its drivers'.
//!
//! - [`StoreIdentity`]: what a directory says about itself, with the count of its starts.
//! - [`ClusterSettings`]: the values on which any two stores must agree; one is the [`ApiVersion`].
//!   [`SettingsRollout`] decides about changes of them, [`TickChange`] about those of the tick.
//! - [`StoreRegistry`]: all stores of the cluster; one row of the system region is authoritative.
//!   [`StateChange`] is an operator's word about one of them.
//! - [`Bootstrap`]: how a list of empty stores becomes a cluster, once. Two phases as in Paxos: a
//!   founder asks all listed stores to promise a round, then sends all of them one plan.
//! - [`Join`]: how a store becomes a member of a cluster that runs; the decision of placement's
//!   leader about it is [`StoreRegistry::register`].
//! - [`Handshake`]: what members tell each other before the first raft message of a start.
//!
//! A store's own memory is not trusted: a store that acknowledged something is remembered by the
//! receivers of the acknowledgement, and they reject an older copy of its disk.

mod api_version;
mod bootstrap;
mod codec;
mod first_regions;
mod founder;
mod handshake;
mod handshake_refusal;
mod join;
mod join_refusal;
mod messages;
mod register_refusal;
mod registration;
mod registry;
mod schedule;
mod settings;
mod settings_rollout;
mod spec;
mod state_change;
mod store_identity;
mod tick_change;

pub use api_version::{ApiVersion, UnknownApiVersion};
pub use bootstrap::{Bootstrap, BootstrapWrite, QuestionToken, member_answer};
pub use first_regions::{REGIONS_MAX, STORES_MAX, SYSTEM_REGION, first_campaigner, first_regions};
pub use handshake::{Handshake, HelloDecision, KnownRun, PeerWrite, RunHistory, StoreHello};
pub use handshake_refusal::HandshakeRefusal;
pub use join::{Join, JoinAnswer, JoinQuestion, JoinStep, JoinTarget, JoinWrite};
pub use join_refusal::{JoinRefusal, StoreReach};
pub use messages::{BootstrapRefusal, BootstrapRequest, BootstrapResponse};
pub use register_refusal::{REGISTERED_STORES_MAX, RegisterRefusal};
pub use registration::{RegisterRequest, Registration, check_labels, is_address};
pub use registry::{LevelRefusal, RunReport, StoreRecord, StoreRegistry, StoreState};
pub use schedule::BootstrapSchedule;
pub use settings::{ClusterSettings, GivenSettings, SettingConflict};
pub use settings_rollout::{SettingChange, SettingsRollout};
pub use spec::{BootstrapPlan, ClusterSpec, InitialStore, InvalidList};
pub use state_change::{StateChange, StateRefusal};
pub use store_identity::{
    IdentityState, LogIdentity, MemberId, StoreIdentity, StoreRun, StoreUuid,
};
pub use tick_change::TickChange;

/// The feature level of this version. Leaders propose nothing that the lowest level of the
/// cluster's stores does not know.
pub const FEATURE_LEVEL: u64 = 7;

/// The level from which on a store applies entries that split a region.
pub const SPLIT_LEVEL: u64 = 2;

/// The level from which on a store applies entries that change the members of a region, and reads
/// their roles.
pub const MEMBERSHIP_LEVEL: u64 = 3;

/// The level from which on a store takes part in transfers of leadership: an earlier one ends the
/// stream at the call to take over, and refuses the vote that follows it.
pub const TRANSFER_LEVEL: u64 = 3;

/// The level from which on a store applies entries in which rows expire.
pub const EXPIRY_LEVEL: u64 = 4;

/// The level from which on a store applies entries for other column families than the default one.
pub const COLUMN_FAMILY_LEVEL: u64 = 5;

/// The level from which on a store applies entries that compare replicas, and takes their digests.
pub const COMPARISON_LEVEL: u64 = 6;

/// The level from which on a store takes up settings of the cluster while it runs, says so, and
/// drops its leases when they change.
pub const SETTINGS_LEVEL: u64 = 7;

/// The schema of the rows that this version writes.
pub const SCHEMA_VERSION: u64 = 8;
