//! Requests that wait at a store for their region to have a leader, as the node's router has them
//! wait.

use std::collections::BTreeMap;
use std::time::Duration;

use flotilla_dispatch::{LeaderWaitState, LeaderWaitStep, Leadership};
use flotilla_region::{RegionId, RoleChange, Ticket};

use crate::coverage::WaitCoverage;
use crate::event_queue::SimTime;

/// A request waits so long in all.
const LEADER_WAIT: Duration = Duration::from_secs(1);

/// The leaders that a store knows, and the requests that wait for one.
#[derive(Debug, Default)]
pub(super) struct LeaderWaits {
    leaderships: BTreeMap<RegionId, Leadership>,
    requests: BTreeMap<Ticket, HeldRequest>,
    pub(super) coverage: WaitCoverage,
}

#[derive(Debug)]
struct HeldRequest {
    region: RegionId,
    state: LeaderWaitState,
    /// It was refused, and not tried again since.
    is_waiting: bool,
}

impl LeaderWaits {
    /// A request was refused for want of a leader: the next step.
    pub(super) fn refused(
        &mut self,
        now: SimTime,
        ticket: Ticket,
        region: RegionId,
    ) -> LeaderWaitStep {
        let here = self.leaderships.get(&region).copied().unwrap_or_default();
        let state = LeaderWaitState::default();
        let held = HeldRequest { region, state, is_waiting: false };
        let held = self.requests.entry(ticket).or_insert(held);
        self.coverage.requests += u64::from(held.state.is_new());
        let step = held.state.next(Duration::from_micros(now), LEADER_WAIT, here);
        held.is_waiting = matches!(step, LeaderWaitStep::Wait(_));
        self.coverage.retried += u64::from(step == LeaderWaitStep::Retry);
        if step == LeaderWaitStep::GiveUp {
            self.requests.remove(&ticket);
        }
        step
    }

    /// A region has another leader, or another term. Returns the requests to be tried again.
    pub(super) fn note(&mut self, now: SimTime, role: &RoleChange) -> Vec<Ticket> {
        let here = Leadership { term: role.term, leader: role.leader };
        self.leaderships.insert(role.region, here);
        let mut again = Vec::new();
        for (ticket, held) in &mut self.requests {
            if held.is_waiting && held.region == role.region {
                let step = held.state.next(Duration::from_micros(now), LEADER_WAIT, here);
                if step == LeaderWaitStep::Retry {
                    held.is_waiting = false;
                    again.push(*ticket);
                }
            }
        }
        self.coverage.retried += again.len() as u64;
        again
    }

    /// A request has waited long enough. False if it does not wait.
    pub(super) fn end(&mut self, ticket: Ticket) -> bool {
        let waits = self.requests.get(&ticket).is_some_and(|held| held.is_waiting);
        if waits {
            self.forget(ticket);
        }
        waits
    }

    /// The requests that wait.
    pub(super) fn waiting(&self) -> Vec<Ticket> {
        let waiting = self.requests.iter().filter(|(_, held)| held.is_waiting);
        waiting.map(|(ticket, _)| *ticket).collect()
    }

    /// A request is answered, or never will be.
    pub(super) fn forget(&mut self, ticket: Ticket) {
        self.requests.remove(&ticket);
    }
}
