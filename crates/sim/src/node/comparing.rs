//! Comparisons of a store with the reference model, and with itself.

#[cfg(test)]
use flotilla_region::Descriptor;
#[cfg(test)]
use flotilla_region::Stats;
use flotilla_region::{Index, PeerId, RegionId};
use flotilla_store::{Error, PagesError, Store};

use super::SimNode;
use crate::executor;
#[cfg(test)]
use crate::executor::TaskDelays;
use crate::layout;
use crate::reference_model::{CheckFailure, ReferenceModel};
use crate::task::StopReason;

#[cfg(test)]
impl SimNode {
    /// Sets how long things take until the next start.
    pub(crate) fn set_delays(&mut self, delays: TaskDelays) {
        self.running.as_mut().expect("the script knows that it runs").executor.set_delays(delays);
    }

    /// Streams of snapshots, both ways; none if it does not run.
    pub(crate) fn streams(&self) -> usize {
        self.running.as_ref().map_or(0, |running| running.streams.count())
    }

    /// A region as the core has it.
    pub(crate) fn descriptor(&self, region: RegionId) -> Option<&Descriptor> {
        self.running.as_ref()?.shard.descriptor(region)
    }

    /// The counters of the core.
    pub(crate) fn core_stats(&self) -> Stats {
        self.running.as_ref().expect("the script knows that it runs").shard.stats()
    }
}

impl SimNode {
    /// A replica's applied index and the hash of its rows.
    pub(crate) fn digest(&self, region: RegionId) -> Result<(Index, u64), CheckFailure> {
        let running = self.running.as_ref().ok_or("the store is down")?;
        running.executor.store().region_digest(region).map_err(|error| error.to_string())
    }

    /// Proves the page store whole.
    pub(crate) fn check(&self) -> Result<(), CheckFailure> {
        if self.running.is_none() {
            return Ok(());
        }
        self.left_over().map(|_| ())
    }

    /// Proves the store whole. How many replicas are without data and ranges are promised; `None`
    /// if it has lost the space of damaged pages, which it does until it is compacted.
    fn left_over(&self) -> Result<Option<(u64, u64)>, CheckFailure> {
        let running = self.running.as_ref().ok_or("the store is down")?;
        match running.executor.store().check() {
            Ok(report) => Ok(Some((report.uninitialised, report.promised))),
            Err(Error::Pages(PagesError::Corrupt {
                what: "neither reachable nor free", ..
            })) if self.disk.is_rotten => Ok(None),
            Err(error) => Err(format!("store {}: {error}", layout::id(self.place))),
        }
    }

    /// Tells the reference model of the ends that a start has found in the root. The power may have
    /// gone before the core heard of that root.
    pub(super) fn note_tombstones(
        &self,
        store: &Store,
        reference_model: &mut ReferenceModel,
    ) -> Result<(), StopReason> {
        // The newest disk has no end of an older one's.
        if self.is_swapped() {
            return Ok(());
        }
        let (view, here) = (store.read(), layout::id(self.place));
        let regions: Vec<_> = reference_model.descriptors().map(|region| region.id).collect();
        for region in regions {
            let ended = view.tombstone(region).map_err(|error| self.stop(&error))?;
            if ended > PeerId(0) {
                reference_model.note_ended(here, region, ended);
            }
        }
        Ok(())
    }

    /// Checks that the replicas here are those that their regions list, in the core and in the
    /// rows.
    pub(crate) fn has_wanted(&self, reference_model: &ReferenceModel) -> Result<(), CheckFailure> {
        let running = self.running.as_ref().ok_or("the store is down")?;
        let store = layout::id(self.place);
        let rows = running.executor.store().descriptors().map_err(|error| error.to_string())?;
        let rows = rows.iter().map(|row| (row.id, row.peer_on(store).map(|peer| peer.id)));
        let shard = &running.shard;
        let slots = shard.regions().map(|id| (id, shard.status(id).map(|status| status.peer)));
        for (region, peer) in rows.chain(slots) {
            let newest = reference_model.descriptor(region);
            let listed = newest.and_then(|it| it.peer_on(store)).map(|peer| peer.id);
            if peer != listed {
                return Err(format!("store {store} has {peer:?} of region {region}: {newest:?}"));
            }
        }
        Ok(())
    }

    /// Checks that no snapshot is under way, and that no replica is without data or has lost rows.
    pub(crate) fn has_nothing_left(&self) -> Result<(), CheckFailure> {
        let running = self.running.as_ref().ok_or("the store is down")?;
        let store = layout::id(self.place);
        let damaged = self.damaged_replicas();
        if damaged > 0 {
            return Err(format!("store {store}: {damaged} replicas have lost rows"));
        }
        let left = (running.streams.count(), self.left_over()?.unwrap_or_default());
        if left == (0, (0, 0)) {
            return Ok(());
        }
        Err(format!("store {store}: streams, replicas without data, promised ranges are {left:?}"))
    }

    /// Compares a region's rows with what its log makes of them.
    pub(crate) fn compare(
        &self,
        region: RegionId,
        reference_model: &ReferenceModel,
    ) -> Result<(), StopReason> {
        let Some(running) = &self.running else { return Ok(()) };
        #[cfg(test)]
        if self.spare_disks.is_altered {
            return Ok(());
        }
        let broken = |what: String| {
            let store = layout::id(self.place);
            StopReason::CheckFailure(format!("store {store}, region {region}: {what}"))
        };
        let store = running.executor.store();
        let view = store.read();
        let found = view.region(region, None).and_then(|region| executor::rows(&region));
        let digest = store.region_digest(region);
        // Rows are lost; whether anybody is told others is looked at where they are read.
        let is_lost = found.as_ref().is_err_and(executor::is_damage)
            || matches!(digest, Err(Error::Pages(PagesError::Corrupt { .. })));
        if self.disk.is_rotten && is_lost {
            return Ok(());
        }
        // The power may go at a read of this walk as at any other.
        let found = found.map_err(|error| self.unread(&error))?;
        let (index, _) = digest.map_err(|error| self.stop(&error))?;
        let expected = reference_model.descriptor_at(region, index);
        let here = view.region(region, None).map_err(|error| self.unread(&error))?;
        if expected != Some(here.descriptor()) {
            let here = here.descriptor();
            return Err(broken(format!("at index {index} it is {here:?} and not {expected:?}")));
        }
        let mut expected = reference_model.rows(region, index);
        let same = found.iter().all(|(key, value)| expected.next() == Some((key, value)));
        if same && expected.next().is_none() {
            return Ok(());
        }
        let expected: Vec<_> = reference_model.rows(region, index).collect();
        Err(broken(format!("at index {index} it holds {found:?} and not {expected:?}")))
    }

    /// Compares all regions of the rows, and that they do not overlap.
    pub(super) fn compare_all(&self, reference_model: &ReferenceModel) -> Result<(), StopReason> {
        let Some(running) = &self.running else { return Ok(()) };
        let regions = running.executor.store().descriptors();
        let regions = regions.map_err(|error| self.stop(&error))?;
        layout::check_disjoint(regions.iter()).map_err(StopReason::CheckFailure)?;
        regions.iter().try_for_each(|region| self.compare(region.id, reference_model))
    }
}
