//! The terms that the replicas of a store have on disk: a replica may send messages in no later
//! one.
//!
//! A replica that sent a message in a term and forgets the term in a crash may vote in it a second
//! time. Only pre-vote requests and their responses name a term that the sender is not in.

use std::collections::BTreeMap;

use flotilla_region::{BirthOrigin, Envelope, LogWrite, MessageKind, PeerId, ReplicaBirth, Term};

use crate::reference_model::CheckFailure;

/// The terms that the log of a store holds, by replica: a later one of a region begins anew.
#[derive(Debug, Default)]
pub(crate) struct SyncedTerms {
    synced: BTreeMap<PeerId, Term>,
}

impl SyncedTerms {
    /// Notes a term that was found at the start, or that a batch of the log has made durable.
    pub(crate) fn note(&mut self, peer: PeerId, term: Term) {
        let synced = self.synced.entry(peer).or_default();
        *synced = term.max(*synced);
    }

    /// Whether a term of a replica is on disk.
    pub(crate) fn has(&self, peer: PeerId, term: Term) -> bool {
        self.synced.get(&peer).is_some_and(|synced| *synced >= term)
    }

    /// Checks that a message may leave.
    pub(crate) fn check(&self, envelope: &Envelope) -> Result<(), CheckFailure> {
        let (kind, term) = (envelope.message.kind, envelope.message.term);
        if matches!(kind, MessageKind::RequestPreVote | MessageKind::RequestPreVoteResponse) {
            return Ok(());
        }
        let synced = self.synced.get(&envelope.from.id).copied().unwrap_or_default();
        if term <= synced {
            return Ok(());
        }
        let (region, from) = (envelope.region, envelope.from);
        Err(format!("region {region}: {from:?} sends {kind:?} in {term}, its log has {synced}"))
    }
}

/// The term that each write of a batch brings to the disk, if it is synced at all.
pub(crate) fn of(writes: &[LogWrite], births: &[ReplicaBirth]) -> Vec<(PeerId, Term)> {
    // The batch is synced as a whole or not at all.
    let is_by_message = |birth: &ReplicaBirth| birth.origin == BirthOrigin::Message;
    if !(writes.iter().any(|write| write.sync) || births.iter().any(is_by_message)) {
        return Vec::new();
    }
    let term = |write: &LogWrite| Some((write.peer, write.hard_state?.term));
    let born = births.iter().map(|birth| (birth.peer, birth.hard_state.term));
    writes.iter().filter_map(term).chain(born).collect()
}
