//! The store: carries out the decisions of regions on one machine's disk.
//!
//! A [`StoreDirectory`] is an opened data directory that may not belong to a cluster yet; that of a
//! member becomes a [`Store`].
//!
//! A [`Store`] owns a data directory with two engines: the log, where entries and hard states of
//! all replicas become durable before a message promises them, and the pages, where committed
//! entries become rows. The pages are written in checkpoints only; later entries are applied again
//! from the log after a crash.
//!
//! - [`Store::write_log`] carries out `Effects::log` and `Effects::compact`: one batch.
//! - [`Store::fetch`] answers `Effects::fetches`.
//! - [`Store::apply`] carries out `Effects::apply`: many regions, one transaction.
//! - [`Store::read`] serves `Answers::reads` on a snapshot.
//! - [`Store::open_snapshot`] reads what `Effects::snapshots` sends; [`Store::begin_stage`] and the
//!   calls below it receive it; [`Store::install`] carries out `Effects::installs`.
//! - [`Store::end`] carries out `Effects::ends`.
//! - [`Store::compute_digest`] computes, part by part, what entries have asked for that compare
//!   replicas.
//! - [`Store::admit`] answers `Effects::unknown`.
//! - [`Store::maintain`], which makes the checkpoints, and [`Store::purge_log`] are the driver's to
//!   call, now and then.
//!
//! It decides nothing about consensus, starts no threads (`docs/decisions/0003-who-flushes.md`) and
//! reads no clock. `docs/durability.md` has the rules that make every crash safe.

mod apply;
mod check;
mod checkpoint;
mod cluster_copies;
mod config;
mod damage;
mod data_range;
mod digest;
mod digest_job;
mod directory;
mod end;
mod error;
mod expired;
mod inconsistent_regions;
mod log_purge;
mod log_reader;
mod log_scrub;
mod maintenance;
mod quorum_recovery;
mod range_map;
mod read_time;
mod recovery;
mod region_ranges;
mod region_size;
mod schema;
mod snapshot;
mod snapshot_read;
mod space_view;
mod stats;
mod store;
mod store_group;
mod store_log;
#[cfg(test)]
mod tests;

pub use apply::{Applied, AppliedReplica, ApplyOutcome, ApplyReject};
pub use check::StoreCheckReport;
pub use checkpoint::{CheckpointReport, CheckpointedReplica};
pub use config::Config;
pub use damage::{DamagedReplica, Quarantine};
pub use digest::DIGEST_VERSION;
pub use digest_job::{DigestReport, DigestStep};
pub use directory::{StartSeed, StoreDirectory};
pub use end::Ended;
pub use error::{Error, ReadError};
pub use expired::{ExpiredPart, ExpiredRange};
pub use flotilla_pagestore::{
    DirtyLimits, Error as PagesError, Options as PageOptions, Pacer, ReadMode as PageReadMode,
    SpaceCell, StoreSpaceMap,
};
pub use flotilla_raftlog::{
    Commit, Config as LogConfig, Error as LogError, LogMaintenance, PurgeReport, Receipt,
    RecoveryReport, SegmentState, SegmentStats,
};
pub use maintenance::StoreMaintenance;
pub use quorum_recovery::{
    DirectoryRecovery, LostRange, PlanRefusal, PlannedRegion, RecoveryPlan, SurvivingReplica,
    SurvivorReport, SystemRows, plan_recovery, recover_directory, survivor_report,
};
pub use read_time::WATERMARK_AHEAD_MS;
pub use recovery::RecoveredReplicas;
pub use snapshot::{
    Installed, SnapshotChunk, SnapshotEnd, SnapshotReader, SnapshotRow, StageError, StageOffer,
};
pub use snapshot_read::{RegionSnapshot, ScanRequest, ScanResult, SizedValue, StoreSnapshot};
pub use space_view::{LogSegments, SegmentHolder, TreeSize};
pub use stats::Stats;
pub use store::Store;
