//! The counters of all stores before and after a load.

use flotilla_proto::peers::StatsResponse;
use tokio::task::JoinSet;

use crate::tool::{ClusterTarget, Error};

/// Counts of all stores together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoreCounts {
    pub(crate) stores: u64,
    pub(crate) writes_acknowledged: u64,
    pub(crate) log_syncs: u64,
    pub(crate) log_batches: u64,
    pub(crate) log_bytes: u64,
    pub(crate) entries_applied: u64,
    pub(crate) page_transactions: u64,
    pub(crate) page_bytes: u64,
    pub(crate) checkpoints: u64,
    pub(crate) frames_sent: u64,
    pub(crate) frame_bytes_sent: u64,
}

impl StoreCounts {
    /// Asks all stores; those that do not answer are left out, and `stores` says so.
    pub(crate) async fn read(target: &ClusterTarget) -> Result<StoreCounts, Error> {
        let mut asking = JoinSet::new();
        for store in target.stores().await? {
            let observer = target.observer(&store.store.unwrap_or_default().address)?;
            asking.spawn(async move { observer.stats().await });
        }
        let mut counts = StoreCounts::default();
        asking.join_all().await.iter().flatten().for_each(|stats| counts.add(stats));
        Ok(counts)
    }

    fn add(&mut self, stats: &StatsResponse) {
        let (requests, raft) = (stats.requests.unwrap_or_default(), stats.raft.unwrap_or_default());
        let (log, pages) = (stats.log.unwrap_or_default(), stats.pages.unwrap_or_default());
        self.stores += 1;
        self.writes_acknowledged += requests.writes_acknowledged;
        self.log_syncs += log.syncs;
        self.log_batches += log.batches;
        self.log_bytes += log.bytes_written;
        self.entries_applied += raft.entries_applied;
        self.page_transactions += pages.transactions;
        self.page_bytes += pages.written_bytes;
        self.checkpoints += pages.checkpoints;
        self.frames_sent += raft.frames_sent;
        self.frame_bytes_sent += raft.frame_bytes_sent;
    }

    /// The increase since `before`. `None` if a store has come or gone or has started anew
    /// meanwhile: the difference would mean nothing.
    pub(crate) fn since(self, before: StoreCounts) -> Option<StoreCounts> {
        let minus = |now: u64, then: u64| now.checked_sub(then);
        (self.stores == before.stores).then_some(())?;
        Some(StoreCounts {
            stores: self.stores,
            writes_acknowledged: minus(self.writes_acknowledged, before.writes_acknowledged)?,
            log_syncs: minus(self.log_syncs, before.log_syncs)?,
            log_batches: minus(self.log_batches, before.log_batches)?,
            log_bytes: minus(self.log_bytes, before.log_bytes)?,
            entries_applied: minus(self.entries_applied, before.entries_applied)?,
            page_transactions: minus(self.page_transactions, before.page_transactions)?,
            page_bytes: minus(self.page_bytes, before.page_bytes)?,
            checkpoints: minus(self.checkpoints, before.checkpoints)?,
            frames_sent: minus(self.frames_sent, before.frames_sent)?,
            frame_bytes_sent: minus(self.frame_bytes_sent, before.frame_bytes_sent)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_refused_if_a_store_went_or_began_anew() {
        let before = StoreCounts { stores: 3, log_syncs: 10, ..StoreCounts::default() };
        let after = StoreCounts { stores: 3, log_syncs: 17, ..StoreCounts::default() };
        assert_eq!(after.since(before).unwrap().log_syncs, 7);
        assert_eq!(before.since(after), None);
        assert_eq!(StoreCounts { stores: 2, ..after }.since(before), None);
    }
}
