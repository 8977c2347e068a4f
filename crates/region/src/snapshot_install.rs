//! A snapshot of another store on its way into the rows and the log of a replica here.
//!
//! Installing is silent (R15): from the taking of the snapshot until the log is emptied behind it,
//! the replica takes no message, does not tick and writes nothing else. The steps: *staged*, until
//! nothing of the replica is under way; *rooting*, until a durable root has the rows; *resetting*,
//! until the log is emptied, durably. The acknowledgement leaves after the last.

use crate::effects::{InstallTask, LogReset, LogWrite};
use crate::entry::HardState;
use crate::ids::{PeerId, RegionId, StageId};
use crate::message::{Envelope, SnapshotHead};

/// A snapshot that has arrived whole.
pub(crate) struct StagedSnapshot {
    /// Its message, which has a head.
    pub(crate) envelope: Envelope,
    pub(crate) stage: StageId,
}

/// How far the snapshot is. At most one is under way for a replica.
#[derive(Default)]
pub(crate) enum SnapshotInstall {
    #[default]
    Idle,
    /// It waits until nothing of the replica is under way.
    Staged(Box<StagedSnapshot>),
    /// The rows are put in; no root has them yet.
    Rooting(Box<Installing>),
    /// A root has them; the log is not emptied yet.
    Rooted(Box<Installing>),
    /// The log is being emptied.
    Resetting(Box<Installing>),
}

/// A snapshot that is installed.
pub(crate) struct Installing {
    pub(crate) envelope: Envelope,
    pub(crate) stage: StageId,
    pub(crate) head: SnapshotHead,
    pub(crate) hard_state: HardState,
}

impl SnapshotInstall {
    pub(crate) fn is_staged(&self) -> bool {
        matches!(self, Self::Staged(_))
    }

    /// Whether the replica has to be silent.
    pub(crate) fn is_installing(&self) -> bool {
        matches!(self, Self::Rooting(_) | Self::Rooted(_) | Self::Resetting(_))
    }

    /// Lets a snapshot wait. Returns the stage of the one that waited before, which is not needed.
    pub(crate) fn stage(&mut self, staged: StagedSnapshot) -> Option<StageId> {
        assert!(!self.is_installing(), "a snapshot waits behind one that is installed");
        match std::mem::replace(self, Self::Staged(Box::new(staged))) {
            Self::Staged(older) => Some(older.stage),
            _ => None,
        }
    }

    /// Takes out the one that waits.
    pub(crate) fn take_staged(&mut self) -> Option<StagedSnapshot> {
        if !self.is_staged() {
            return None;
        }
        match std::mem::take(self) {
            Self::Staged(staged) => Some(*staged),
            _ => unreachable!("seen just now"),
        }
    }

    /// Begins to install: returns what the driver has to do.
    pub(crate) fn begin(
        &mut self,
        peer: PeerId,
        staged: StagedSnapshot,
        hard_state: HardState,
    ) -> InstallTask {
        assert!(matches!(self, Self::Idle), "two snapshots are installed at a time");
        let StagedSnapshot { mut envelope, stage } = staged;
        let head = *envelope.message.snapshot.take().expect("the filter asks for a head");
        assert_eq!(hard_state.commit, head.index, "the rows hold what is committed");
        assert!(head.term <= hard_state.term, "a log beyond the replica's own term");
        let task = InstallTask { peer, stage, head: head.clone(), hard_state };
        *self = Self::Rooting(Box::new(Installing { envelope, stage, head, hard_state }));
        task
    }

    /// A root has the rows of this stage.
    ///
    /// # Panics
    ///
    /// If it is not the one that is installed.
    pub(crate) fn rooted(&mut self, stage: StageId) {
        let Self::Rooting(installing) = std::mem::take(self) else {
            panic!("snapshot {stage} is durable, but none is installed")
        };
        assert_eq!(installing.stage, stage, "another snapshot than the one that is installed");
        *self = Self::Rooted(installing);
    }

    /// The write that empties the log, once it is time for it.
    pub(crate) fn take_reset(&mut self, region: RegionId, peer: PeerId) -> Option<LogWrite> {
        if !matches!(self, Self::Rooted(_)) {
            return None;
        }
        let Self::Rooted(installing) = std::mem::take(self) else { unreachable!("seen just now") };
        let SnapshotHead { index, term, .. } = installing.head;
        let write = LogWrite {
            region,
            peer,
            number: 0,
            hard_state: Some(installing.hard_state),
            entries: vec![],
            sync: true,
            reset: Some(LogReset { index, term }),
        };
        *self = Self::Resetting(installing);
        Some(write)
    }

    /// Ends it if the log was being emptied, which is durable now.
    pub(crate) fn end(&mut self) -> Option<Installing> {
        if !matches!(self, Self::Resetting(_)) {
            return None;
        }
        match std::mem::take(self) {
            Self::Resetting(installing) => Some(*installing),
            _ => unreachable!("seen just now"),
        }
    }
}
