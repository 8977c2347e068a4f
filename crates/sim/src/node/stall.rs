//! A stall at the worst moment: between reading the clock and handing out the effects of the step.

use flotilla_region::{Effects, Envelope, MessageKind, RegionId, Shard, StoreId, Term};

use crate::reference_model::{CheckFailure, ReferenceModel};
use crate::task::Outbox;

/// A standstill inside a step, and what the step is compared with afterwards.
#[derive(Default)]
pub(super) struct Stall {
    /// For how long, in the next step that grants a read under a lease, or answers a follower's.
    pub(super) us: Option<u64>,
    /// The regions' terms before the step: leases that it has used are of these.
    terms: Vec<(RegionId, Term)>,
}

impl Stall {
    /// A step begins.
    pub(super) fn note_terms(&mut self, shard: &Shard) {
        let terms = shard.regions().filter_map(|region| Some((region, shard.status(region)?.term)));
        self.terms.clear();
        self.terms.extend(terms);
    }

    /// Whether the store stands still now that the step has granted what it has.
    pub(super) fn begins(&mut self, effects: &Effects, out: &mut Outbox) -> bool {
        let is_answer =
            |envelope: &Envelope| envelope.message.kind == MessageKind::ReadIndexResponse;
        let uses_lease = effects.answers.reads.iter().any(|grant| grant.by_lease)
            || effects.messages.iter().any(is_answer);
        if self.us.is_some() && uses_lease {
            // Only where a lease may serve a read: elsewhere a pause does the same.
            out.stall_us = self.us.take();
        }
        out.stall_us.is_some()
    }

    /// Whether anything is served by a lease while another has led since.
    pub(super) fn check(
        &self,
        store: StoreId,
        effects: &Effects,
        reference_model: &ReferenceModel,
    ) -> Result<(), CheckFailure> {
        for grant in effects.answers.reads.iter().filter(|grant| grant.by_lease) {
            let region = grant.region;
            let before = self.terms.iter().find(|(id, _)| *id == region);
            let term = before.map(|(_, term)| *term).unwrap_or_default();
            if let Some((later, other)) = reference_model.leader_after(region, term) {
                return Err(format!(
                    "store {store} serves region {region} by a lease of term {term}, and store \
                     {other} has led since in term {later}"
                ));
            }
        }
        Ok(())
    }
}
