//! The counters of all stores before and after a load.

use flotilla_proto::peers::StatsResponse;
use tokio::task::JoinSet;

use crate::tool::{ClusterTarget, Error, metric};

/// The metrics that are counted: heading of the row, key for programs, group and name.
pub(super) const COUNTED: [(&str, &str, &str, &str); 10] = [
    ("puts acknowledged", "writes_acknowledged", "requests", "writes_acknowledged"),
    ("log syncs", "log_syncs", "log", "syncs"),
    ("log batches", "log_batches", "log", "batches"),
    ("log bytes", "log_bytes", "log", "written_bytes"),
    ("raft entries applied", "entries_applied", "store", "entries_applied"),
    ("page store transactions", "page_transactions", "store", "applies"),
    ("page bytes written", "page_bytes_written", "pages", "written_bytes"),
    ("checkpoints", "checkpoints", "store", "checkpoints"),
    ("frames sent", "frames_sent", "transport", "frames_sent"),
    ("frame bytes sent", "frame_bytes_sent", "transport", "sent_bytes"),
];

/// Counts of all stores together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoreCounts {
    pub(crate) stores: u64,
    /// In the order of [`COUNTED`].
    pub(crate) counts: [u64; COUNTED.len()],
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

    /// Adds a store. Leaves it out if it is of a version that does not report every metric.
    fn add(&mut self, stats: &StatsResponse) {
        let counts = COUNTED.map(|(.., group, name)| metric(stats, group, name));
        if counts.iter().all(Option::is_some) {
            self.stores += 1;
            self.counts.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count.unwrap_or(0));
        }
    }

    /// The increase since `before`. `None` if a store has come or gone or has started anew
    /// meanwhile: the difference would mean nothing.
    pub(crate) fn since(mut self, before: StoreCounts) -> Option<StoreCounts> {
        (self.stores == before.stores).then_some(())?;
        for (count, before) in self.counts.iter_mut().zip(before.counts) {
            *count = count.checked_sub(before)?;
        }
        Some(self)
    }

    /// Each count with its heading and its key.
    pub(super) fn rows(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        COUNTED.iter().zip(self.counts).map(|((heading, key, ..), count)| (*heading, *key, count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_refused_if_a_store_went_or_began_anew() {
        let before = StoreCounts { stores: 3, counts: [10; COUNTED.len()] };
        let after = StoreCounts { stores: 3, counts: [17; COUNTED.len()] };
        assert_eq!(after.since(before).unwrap().counts, [7; COUNTED.len()]);
        assert_eq!(before.since(after), None);
        assert_eq!(StoreCounts { stores: 2, ..after }.since(before), None);
    }
}
