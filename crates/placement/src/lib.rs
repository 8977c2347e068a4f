//! Where replicas and leaders are, the cluster's ids and its timestamps, without IO or a clock.
//!
//! The node that leads the system region owns one of each state machine here and drives it: events
//! and the time go in, rows to write come out.
//!
//! - [`ClusterView`] knows stores, regions and leaders from the heartbeats of the stores.
//! - [`LedRegions`] makes these heartbeats, on every store.
//! - [`LeaderBalance`] proposes transfers of leadership, so that each store leads as many regions.
//! - [`Repairer`] decides which stores should have the replicas of a region, and [`ReplicaPlan`]
//!   the steps that bring them there.
//! - [`TermFollower`] decides when a store begins and ends to lead placement.
//! - [`clock_deviation`] says how far the clock of a store is from those of the others.
//! - [`check_loss`] says whether a store may be declared lost.
//! - [`Keyspaces`] are the named parts of the key space under TiKV's API V2.
//! - [`IdAllocator`] hands out numbers that are unique in the cluster.
//! - [`Tso`] hands out timestamps that never go back.
//!
//! `IdAllocator` and `Tso` survive a change of leader by the same means, a [`HighWatermark`]: a row
//! of the system region that only grows, and only by a compare-and-swap. A leader uses the numbers
//! below the watermark that it has raised itself; the next leader starts at the watermark that it
//! reads.

mod clock_deviation;
mod cluster_view;
mod id_allocator;
mod keyspaces;
mod leader_balance;
mod led_regions;
mod loss_check;
mod repairer;
mod replica_plan;
mod restore_mark;
mod route_table;
pub mod rows;
mod term_follower;
mod tso;
mod watermark;

pub use clock_deviation::clock_deviation;
pub use cluster_view::{
    ClusterView, Config, LeaderStatus, RegionHeartbeat, RegionRoute, StoreInfo, StoreStanding,
};
pub use id_allocator::{BLOCK_COUNT, FLOOR, IdAllocator};
pub use keyspaces::{
    DEFAULT_KEYSPACE, KEYSPACES_MAX, Keyspace, KeyspaceRefusal, Keyspaces, MalformedKeyspaces,
};
pub use leader_balance::{
    LeaderBalance, LeaderBalanceLimits, LeaderScatter, LeaderStep, LeaderStepState,
};
pub use led_regions::{KnownRegion, LedRegions};
pub use loss_check::{LOSS_SILENCE_MS, LossRefusal, check_loss};
pub use repairer::{
    ExitRefusal, OperatorState, RepairLimits, RepairReason, RepairRefusal, Repairer, ReplicaStep,
    StepAnswer,
};
pub use replica_plan::{MembershipStep, NEW_REPLICAS_MAX, PlanObstacle, PlannedStep, ReplicaPlan};
pub use restore_mark::{RestoreMark, RestoreRefusal};
pub use route_table::{RegionInfo, ReplicaInfo, ReplicaRole};
pub use rows::{RowError, RowSwap, SwapResult};
pub use term_follower::{TERM_RETRY_MS, TermFollower, TermStep};
pub use tso::{LOGICAL_END, Timestamp, Tso, TsoError, WINDOW_MS};
pub use watermark::HighWatermark;
