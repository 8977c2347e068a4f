//! Work on the rows of whole replicas: installing and ending them, roots for that, and looks at
//! replicas that are not here.

use flotilla_region::{ApplyTask, EndTask, Envelope, Event, InstallTask, StageId};
use flotilla_store::Error;

use super::{ASK_US_MAX, Executor};
use crate::task::{Outbox, Task};

/// Work that changes rows, in the order of the core's effects.
#[derive(Debug)]
pub(crate) enum RowWork {
    Entries(ApplyTask),
    Install(Box<InstallTask>),
    Discard(StageId),
    End(EndTask),
}

/// How far an installation or an end has come: the power may go behind each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InstallArrow {
    /// Raft has taken the snapshot.
    HandedOut,
    /// The rows are in memory.
    Published,
    /// A root has them.
    Rooted,
    /// The batch that empties the log waits for its sync.
    ResetQueued,
    /// It is synced, and the core has not heard of it.
    ResetSynced,
    /// The core has ended a replica.
    EndHandedOut,
    /// Its rows are gone from memory.
    EndPublished,
    /// A root has the end.
    EndRooted,
    /// The batch that removes the log waits for the disk.
    RemovalQueued,
    /// It is written.
    RemovalWritten,
}

impl InstallArrow {
    pub(crate) const ALL: [Self; 5] =
        [Self::HandedOut, Self::Published, Self::Rooted, Self::ResetQueued, Self::ResetSynced];
    /// Those of ends.
    pub(crate) const ENDS: [Self; 5] = [
        Self::EndHandedOut,
        Self::EndPublished,
        Self::EndRooted,
        Self::RemovalQueued,
        Self::RemovalWritten,
    ];
}

impl Executor {
    /// The last arrow that an installation has passed since this was asked.
    pub(crate) fn take_arrow(&mut self) -> Option<InstallArrow> {
        self.arrow.take()
    }

    /// Carries out a snapshot's task, which has come to its turn.
    pub(super) fn install(&mut self, task: &InstallTask, out: &mut Outbox) -> Result<(), Error> {
        let installed = self.store.install(task)?;
        self.tell_damaged(installed.damaged, out);
        self.coverage.snapshots.installed += 1;
        self.arrow = Some(InstallArrow::Published);
        // Asked for at once: the replica is silent until a root has the rows.
        out.tasks.push((self.rng.u64(1..=ASK_US_MAX), Task::Checkpoint));
        Ok(())
    }

    /// Ends a replica, whose turn has come. Returns the task if rows are gone.
    pub(super) fn end(
        &mut self,
        task: EndTask,
        out: &mut Outbox,
    ) -> Result<Option<EndTask>, Error> {
        let mut ended = self.store.end(&task)?;
        self.tell_damaged(std::mem::take(&mut ended.damaged), out);
        self.coverage.ends.tasks += 1;
        self.coverage.ends.replicas += ended.replicas.len() as u64;
        self.coverage.ends.without_replica += u64::from(ended.replicas.is_empty());
        self.arrow = Some(InstallArrow::EndPublished);
        // Asked for at once: the slot has no successor until a root has the end.
        out.tasks.push((self.rng.u64(1..=ASK_US_MAX), Task::Checkpoint));
        out.ended.extend(ended.region.as_ref().map(|_| task.region));
        Ok(ended.region.map(|_| task))
    }

    /// Drops a stage that is not wanted.
    pub(super) fn discard(&mut self, stage: StageId) {
        self.coverage.snapshots.discarded += 1;
        self.store.discard_stage(stage);
    }

    /// Makes a checkpoint out of its time.
    pub(crate) fn checkpoint(&mut self, out: &mut Outbox) -> Result<(), Error> {
        let durable = self.store.checkpoint()?;
        self.report_checkpoint(durable, out)
    }

    /// Looks whether the store has an objection to a replica.
    pub(crate) fn admit(&mut self, envelope: Envelope, out: &mut Outbox) -> Result<(), Error> {
        let event = match self.store.admit(&envelope)? {
            Ok(()) => Event::Admitted(envelope),
            Err(why) => {
                self.coverage.snapshots.not_admitted += 1;
                Event::NotAdmitted { envelope, why }
            }
        };
        out.tasks.push((self.notify_delay_us(), Task::Post(vec![event])));
        Ok(())
    }
}
