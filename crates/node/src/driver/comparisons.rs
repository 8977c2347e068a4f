//! Comparisons of the replicas of regions: the last verdict about each, and the word that a digest
//! is to be computed.

use std::collections::{BTreeMap, BTreeSet};

use flotilla_region::{ConsistencyVerdict, Index, RegionChange, RegionId};
use flotilla_store::AppliedReplica;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

/// The last verdicts, as entries that were applied here say.
pub(crate) struct Comparisons {
    latest: Mutex<LatestVerdicts>,
    /// Counts the verdicts.
    verdicts: watch::Sender<u64>,
    digest_due: Notify,
}

/// One for each region with a replica here at most.
#[derive(Default)]
struct LatestVerdicts {
    by_region: BTreeMap<RegionId, ConsistencyVerdict>,
    /// Those that were not taken yet.
    new: BTreeSet<RegionId>,
}

impl Comparisons {
    pub(crate) fn new() -> Self {
        let (latest, digest_due) = (Mutex::default(), Notify::new());
        Self { latest, verdicts: watch::Sender::new(0), digest_due }
    }

    /// Entries were applied. Never waits.
    pub(super) fn note_applied(&self, replicas: &[AppliedReplica]) {
        for AppliedReplica { region, changes, .. } in replicas {
            for change in changes {
                match change {
                    RegionChange::DigestDue { .. } => self.digest_due.notify_one(),
                    RegionChange::Compared { verdict, .. } => self.note(*region, verdict),
                    _ => {}
                }
            }
        }
    }

    fn note(&self, region: RegionId, verdict: &ConsistencyVerdict) {
        let (compared, replicas) = (verdict.compared(), verdict.replicas.len());
        if verdict.has_difference() {
            tracing::error!(%region, "the replicas of a region differ: {verdict}");
        } else {
            tracing::debug!(%region, compared, replicas, "the replicas of a region are equal");
        }
        let mut latest = self.latest.lock();
        latest.by_region.insert(region, verdict.clone());
        latest.new.insert(region);
        drop(latest);
        self.verdicts.send_modify(|count| *count += 1);
    }

    /// Waits until an entry has asked for a digest since the last call.
    pub(crate) async fn digest_due(&self) {
        self.digest_due.notified().await;
    }

    /// Wakes when there is another verdict.
    pub(crate) fn verdicts(&self) -> watch::Receiver<u64> {
        self.verdicts.subscribe()
    }

    /// The regions that have a verdict since the last call, and whether all replicas took part.
    pub(crate) fn take_new(&self) -> Vec<(RegionId, bool)> {
        let LatestVerdicts { by_region, new } = &mut *self.latest.lock();
        let taken = std::mem::take(new).into_iter();
        taken.filter_map(|region| Some((region, by_region.get(&region)?.is_complete()))).collect()
    }

    /// The replica of a region here has ended.
    pub(super) fn forget(&self, region: RegionId) {
        self.latest.lock().by_region.remove(&region);
    }

    /// The last verdict about a region, if it is about this entry or a later one.
    pub(super) fn verdict_at(&self, region: RegionId, index: Index) -> Option<ConsistencyVerdict> {
        let latest = self.latest.lock();
        latest.by_region.get(&region).filter(|verdict| verdict.index >= index).cloned()
    }
}

#[cfg(test)]
mod tests {
    use flotilla_region::{ComparedReplica, Peer, PeerId, StoreId};

    use super::*;

    #[tokio::test]
    async fn the_last_verdict_of_a_region_is_known_and_a_due_digest_wakes() {
        let comparisons = Comparisons::new();
        let verdict = |index| {
            let peer = Peer { id: PeerId(101), store: StoreId(1) };
            let replicas = vec![ComparedReplica { peer, digest: Some(5), differs: false }];
            ConsistencyVerdict { index: Index(index), replicas }
        };
        let applied = |region, changes| AppliedReplica {
            region: RegionId(region),
            peer: PeerId(101),
            index: Index(9),
            changes,
            written_bytes: 0,
            size: None,
            is_damaged: false,
        };
        let compared = |index| RegionChange::Compared { index: Index(9), verdict: verdict(index) };
        let mut verdicts = comparisons.verdicts();
        comparisons.note_applied(&[
            applied(2, vec![compared(4), RegionChange::DigestDue { index: Index(6) }]),
            applied(3, vec![compared(5)]),
        ]);
        comparisons.digest_due().await;
        verdicts.changed().await.unwrap();
        let at = |index| comparisons.verdict_at(RegionId(2), Index(index));
        assert_eq!((at(3), at(5)), (Some(verdict(4)), None));
        comparisons.forget(RegionId(2));
        assert_eq!(comparisons.take_new(), [(RegionId(3), true)]);
        assert_eq!((at(3), comparisons.take_new()), (None, vec![]));
    }
}
