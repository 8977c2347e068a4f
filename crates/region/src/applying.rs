//! Committed entries that the driver was given and has not applied yet.

use raft::eraftpb::Entry;

use crate::consensus::Consensus;
use crate::damage::ReplicaDamage;
use crate::ids::Index;
use crate::log_window::LogWindow;

pub(crate) struct ApplyProgress {
    /// The last entry that was given to the driver.
    handed_out: Index,
    /// Bytes of those that it has not applied.
    lag_bytes: u64,
    /// Whether rows are lost, so that entries change none.
    pub(crate) damage: ReplicaDamage,
}

impl ApplyProgress {
    /// For a replica that was found with `applied`.
    pub(crate) fn new(applied: Index, is_damaged: bool) -> Self {
        Self { handed_out: applied, lag_bytes: 0, damage: ReplicaDamage::new(is_damaged) }
    }

    /// A snapshot of this entry is in the rows.
    pub(crate) fn restart(&mut self, applied: Index) {
        // As much as before, if the rows were damaged.
        assert!(applied >= self.handed_out, "{} was handed out, before {applied}", self.handed_out);
        (self.handed_out, self.lag_bytes) = (applied, 0);
    }

    /// Whether the driver has applied all that was handed out.
    pub(crate) fn is_done(&self, applied: Index) -> bool {
        assert!(applied <= self.handed_out, "{applied} is applied, and was not handed out");
        self.handed_out == applied
    }

    pub(crate) fn handed_out(&self) -> Index {
        self.handed_out
    }

    /// Whether the entries that wait to be applied exceed `bytes_max`, so that no more are taken
    /// in.
    pub(crate) fn lags(&self, bytes_max: u64) -> bool {
        self.lag_bytes > bytes_max
    }

    /// These entries go to the driver.
    pub(crate) fn hand_out(&mut self, entries: &[Entry], window: &LogWindow) {
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else { return };
        assert_eq!(first.index, self.handed_out.0 + 1, "a gap in what is committed");
        self.handed_out = Index(last.index);
        self.lag_bytes += window.bytes_between(Index(first.index), self.handed_out);
    }

    /// The driver has applied them up to `index`.
    pub(crate) fn complete(&mut self, index: Index, consensus: &mut Consensus) {
        let before = consensus.applied_index();
        assert!(index > before, "apply index goes from {before} to {index}");
        let handed_out = self.handed_out;
        assert!(index <= handed_out, "{index} is applied, but only {handed_out} was handed out");
        // Before raft is told, which lets the window forget the entries.
        self.lag_bytes -= consensus.window().bytes_between(Index(before.0 + 1), index);
        consensus.applied(index);
    }

    /// Checks the count of bytes.
    pub(crate) fn check(&self, consensus: &Consensus) {
        let low = Index(consensus.applied_index().0 + 1);
        let bytes = consensus.window().bytes_between(low, self.handed_out);
        assert_eq!(self.lag_bytes, bytes, "bytes that wait to be applied");
    }
}
