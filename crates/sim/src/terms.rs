//! Which term each replica of a store has on disk: it may speak in no later one.
//!
//! A replica that was heard in a term and forgets it in a crash may vote in it a second time. Only
//! who asks whether it would be elected, and who answers that, names a term that it is not in.

use std::collections::BTreeMap;

use flotilla_region::{Envelope, LogWrite, MessageKind, RegionId, Term};

use crate::reference_model::CheckFailure;

/// The terms that the log of a store holds, by region.
#[derive(Debug, Default)]
pub(crate) struct SyncedTerms {
    synced: BTreeMap<RegionId, Term>,
}

impl SyncedTerms {
    /// What was found at the start, or what a batch of the log has brought to the disk.
    pub(crate) fn note(&mut self, region: RegionId, term: Term) {
        let synced = self.synced.entry(region).or_default();
        *synced = term.max(*synced);
    }

    /// Checks that a message may leave.
    pub(crate) fn check(&self, envelope: &Envelope) -> Result<(), CheckFailure> {
        let (kind, term) = (envelope.message.kind, envelope.message.term);
        if matches!(kind, MessageKind::RequestPreVote | MessageKind::RequestPreVoteResponse) {
            return Ok(());
        }
        let synced = self.synced.get(&envelope.region).copied().unwrap_or_default();
        if term <= synced {
            return Ok(());
        }
        let (region, from) = (envelope.region, envelope.from);
        Err(format!("region {region}: {from:?} sends {kind:?} in {term}, its log has {synced}"))
    }
}

/// The term that each write of a batch brings to the disk, if it is synced at all.
pub(crate) fn of(writes: &[LogWrite]) -> Vec<(RegionId, Term)> {
    if !writes.iter().any(|write| write.sync) {
        return Vec::new();
    }
    let term = |write: &LogWrite| Some((write.region, write.hard_state?.term));
    writes.iter().filter_map(term).collect()
}
