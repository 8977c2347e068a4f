//! Operations around damage: pages are taken out, and replicas are marked.

use flotilla_pagestore::Error as PagesError;
use flotilla_region::{ApplyTask, EndTask, InstallTask, PeerId, RegionId};

use super::Store;
use crate::apply::{self, Applied, ApplyPlace};
use crate::damage::{self, DamagedReplica, Quarantine};
use crate::end::{self, Ended};
use crate::error::Error;
#[cfg(doc)]
use crate::error::ReadError;
use crate::snapshot::{self, ClearedRange, CompleteStage};

impl Store {
    /// Applies, and takes out the damaged pages that are in the way.
    pub(super) fn apply_undamaged(&self, tasks: &[ApplyTask]) -> Result<Applied, Error> {
        let place = ApplyPlace {
            store: self.identity.store,
            pages: &self.pages,
            log: &self.log,
            ranges: &self.ranges,
            damaged: &self.damaged,
            row_read_ahead: &self.row_read_ahead,
        };
        let (applied, damaged) = self.past_damage(|at| apply::apply(place, tasks, at))?;
        Ok(Applied { damaged, ..applied })
    }

    /// Makes room for a snapshot; and the replicas of other regions that have lost rows.
    pub(super) fn clear_undamaged(
        &self,
        staged: &CompleteStage,
        task: &InstallTask,
    ) -> Result<(ClearedRange<'_>, Vec<DamagedReplica>), Error> {
        let store = self.identity.store;
        let (cleared, damaged) =
            self.past_damage(|_| snapshot::clear(&self.pages, &self.ranges, store, staged, task))?;
        Ok((cleared, damage::others(damaged, task.head.descriptor.id)))
    }

    /// Ends a replica.
    pub(super) fn end_undamaged(&self, task: &EndTask) -> Result<Ended, Error> {
        let (places, store) = ((&self.ranges, &self.stages), self.identity.store);
        let (ended, damaged) =
            self.past_damage(|_| end::end(&self.pages, &self.log, places, store, task))?;
        Ok(Ended { damaged: damage::others(damaged, task.region), ..ended })
    }

    /// Does `work` in a transaction, again and again until no damaged page is in its way; and the
    /// replicas that have lost rows. `work` may say which region it is at.
    fn past_damage<T>(
        &self,
        mut work: impl FnMut(&mut Option<RegionId>) -> Result<T, Error>,
    ) -> Result<(T, Vec<DamagedReplica>), Error> {
        let mut damaged = vec![];
        loop {
            let mut at = None;
            match work(&mut at) {
                Err(Error::Pages(error @ PagesError::Corrupt { page, .. })) => {
                    let found = self.quarantine(page, at)?;
                    if !found.was_found {
                        return Err(error.into());
                    }
                    damaged.extend(found.replicas);
                }
                done => return Ok((done?, damaged)),
            }
        }
    }

    /// A page was found damaged, as [`Error::Pages`] or [`ReadError::Pages`] names it: while `of`
    /// was read, or by maintenance. Takes it out of its tree and marks the replicas that have lost
    /// rows: from then on they serve nothing, and only their regions change. Their shards are to
    /// hear of it, and a snapshot of another replica mends them ([`Store::install`]). The marks are
    /// durable with the next checkpoint; before that a crash brings the damaged page back.
    ///
    /// Reads all branches of the trees; and all rows of the region, or of all, if a long value is
    /// damaged. Appliers wait meanwhile for the former.
    ///
    /// # Errors
    ///
    /// The page is one that the whole store needs, or the only replica of a region is damaged:
    /// then the store cannot go on.
    pub fn quarantine(&self, page: u64, of: Option<RegionId>) -> Result<Quarantine, Error> {
        let store = self.identity.store;
        let found = damage::quarantine(&self.pages, &self.damaged, store, page, of)?;
        self.counters.damaged_pages.add(u64::from(found.was_found));
        found.replicas.iter().for_each(|replica| self.sizes.forget(replica.region));
        Ok(found)
    }

    /// An entry in the log of a replica here was found damaged: marks the replica as for a damaged
    /// page, for a snapshot takes the place of its log, too. None if it is not here with rows, or
    /// no other store has one of its region.
    ///
    /// # Errors
    ///
    /// The page store failed.
    pub fn give_up_log(&self, peer: PeerId) -> Result<Option<DamagedReplica>, Error> {
        damage::give_up_log(&self.pages, &self.damaged, self.identity.store, peer)
    }
}
