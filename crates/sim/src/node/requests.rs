//! Requests at a store that is up: those that wait for their region to have a leader.

use flotilla_dispatch::LeaderWaitStep;
use flotilla_region::{RegionId, RoleChange, Ticket};

use super::SimNode;
use crate::event_queue::SimTime;

impl SimNode {
    /// A request was refused because its region has no leader: whether it waits here for one.
    pub(crate) fn wait_for_leader(
        &mut self,
        now: SimTime,
        ticket: Ticket,
        region: RegionId,
    ) -> LeaderWaitStep {
        let running = self.running.as_mut();
        running.map_or(LeaderWaitStep::GiveUp, |it| it.waits.refused(now, ticket, region))
    }

    /// A region has another leader, or another term. Returns the requests that are to be tried
    /// again.
    pub(crate) fn note_leadership(&mut self, now: SimTime, role: &RoleChange) -> Vec<Ticket> {
        self.running.as_mut().map(|running| running.waits.note(now, role)).unwrap_or_default()
    }

    /// A request has waited long enough. False if it does not wait.
    pub(crate) fn end_wait(&mut self, ticket: Ticket) -> bool {
        self.running.as_mut().is_some_and(|running| running.waits.end(ticket))
    }

    /// The requests that wait here for a leader.
    pub(crate) fn waiting_requests(&self) -> Vec<Ticket> {
        self.running.as_ref().map(|running| running.waits.waiting()).unwrap_or_default()
    }

    /// A request is answered, or never will be.
    pub(crate) fn forget_wait(&mut self, ticket: Ticket) {
        if let Some(running) = &mut self.running {
            running.waits.forget(ticket);
        }
    }
}
