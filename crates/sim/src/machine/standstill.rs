//! A store that stands still at the worst moments: its machine is suspended, or its thread is not
//! given a processor between reading the clock and handing out what the step has granted.

use flotilla_region::{Effects, RegionId, Shard, Term};

use crate::agenda::Moment;
use crate::layout;
use crate::task::{Outbox, Stop};
use crate::truth::Truth;

use super::Machine;

/// A standstill inside a step, and what the step is compared with afterwards.
#[derive(Default)]
pub(super) struct Stall {
    /// For how long, in the next step that grants a read under a lease.
    us: Option<u64>,
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
        if self.us.is_some() && effects.reads.iter().any(|grant| grant.by_lease) {
            out.stall_us = self.us.take();
        }
        out.stall_us.is_some()
    }

    fn term(&self, region: RegionId) -> Option<Term> {
        self.terms.iter().find(|(id, _)| *id == region).map(|(_, term)| *term)
    }
}

impl Machine {
    /// The store will stand still in its next step that grants a read under a lease.
    pub(crate) fn stall(&mut self, us: u64) {
        if let Some(running) = &mut self.running {
            running.stall.us = Some(us);
        }
    }

    /// The machine was suspended for so long.
    pub(crate) fn suspend(&mut self, us: u64) {
        self.clock.suspend(us);
    }

    /// Hands out what the last step has brought forth, as the node's thread does: after another look
    /// at the clock.
    pub(super) fn hand_out(
        &mut self,
        now: Moment,
        truth: &Truth,
        out: &mut Outbox,
    ) -> Result<(), Stop> {
        let Some(running) = &mut self.running else { return Ok(()) };
        let store = layout::id(self.place);
        running.shard.drop_leases_if_late(self.clock.read(now), &mut running.effects);
        running.shard.check_invariants();
        if let Some(lost) = running.effects.lost_logs.first() {
            return Err(Stop::Broken(format!("store {store}: {lost}")));
        }
        for grant in running.effects.reads.iter().filter(|grant| grant.by_lease) {
            let term = running.stall.term(grant.region).unwrap_or_default();
            if let Some((later, other)) = truth.leader_after(grant.region, term) {
                return Err(Stop::Broken(format!(
                    "store {store} serves region {} by a lease of term {term}, and store {other} \
                     has led since in term {later}",
                    grant.region
                )));
            }
        }
        running.carry_out(out)?;
        running.plan_wake(self.clock, now, out);
        Ok(())
    }
}
