//! Maintenance of a store, one action at a time: the page store's policy says what comes next, and
//! the checkpoint is the store's own.
//!
//! Where an action changes pages it is a transaction like any other, so a crash takes back what no
//! checkpoint has, and nothing of it has to be replayed from the log.

use std::time::Duration;

use flotilla_pagestore::{Error as PagesError, MaintenanceAction, MaintenanceOutcome, PageStore};
use flotilla_raftlog::Error as LogError;

use crate::checkpoint::CheckpointReport;
use crate::damage::DamagedReplica;
use crate::error::Error;
use crate::stats::MaintenanceCounters;

/// The result of one call of [`Store::maintain`](crate::Store::maintain).
#[derive(Debug)]
pub enum StoreMaintenance {
    /// A checkpoint was made: the replicas of which the durable root has more than the last one.
    /// The log can be purged once the regions have heard of it.
    Checkpointed(CheckpointReport),
    /// An action was done or found a writer in its way, and there may be more.
    Progress,
    /// As [`StoreMaintenance::Progress`], and the step may have kept the disk busy: a caller that
    /// loops rests for some times as long as this one took.
    SpaceReturned,
    /// The disk could not read what the scrub wanted: no read has met it yet, and it may pass. A
    /// page that can be read and is corrupt is an error instead.
    ScrubUnreadable(PagesError),
    /// The scrub found an entry of the log that is damaged or cannot be read. Counted as a failed
    /// read; nothing needs the entry now, and the next start may.
    LogUnreadable {
        /// The error.
        error: LogError,
        /// The replica whose entry is damaged, if another store has one: it is marked as for a
        /// damaged page, and gets a snapshot in place of its log.
        replica: Option<DamagedReplica>,
    },
    /// There is nothing to do before this time, unless something changes.
    Rest {
        /// A time as it was given to the call; none: not before something changes.
        until: Option<Duration>,
    },
}

impl MaintenanceCounters {
    /// Carries out an action that is no checkpoint.
    pub(crate) fn run(
        &self,
        pages: &PageStore,
        now: Duration,
        action: MaintenanceAction,
    ) -> Result<StoreMaintenance, Error> {
        match pages.run_maintenance(now, action) {
            Ok(MaintenanceOutcome::TrimmedOrPunched) => return Ok(StoreMaintenance::SpaceReturned),
            Ok(MaintenanceOutcome::Reclaimed { bytes }) => self.reclaimed_bytes.add(bytes),
            Ok(MaintenanceOutcome::Moved { bytes }) => self.moved_bytes.add(bytes),
            Ok(_) => {}
            Err(error @ PagesError::Io(_)) if matches!(action, MaintenanceAction::Scrub { .. }) => {
                return Ok(StoreMaintenance::ScrubUnreadable(error));
            }
            Err(error) => return Err(error.into()),
        }
        Ok(StoreMaintenance::Progress)
    }
}
