//! Tickets: requests that wait for their answer.
//!
//! A ticket is opened before its request is sent and answered once: by the shard (granted,
//! rejected) or by the applier (applied). A caller that goes away takes its ticket along; an answer
//! that finds no ticket is dropped. A proposal whose entry a snapshot has passed over gets none,
//! and its caller wakes without one. Closing the table wakes every caller without an answer, and
//! from then on no request is answered. "Nothing is acknowledged after a failure" rests on that, so
//! closing and answering exclude each other by the lock of each stripe of the table.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use flotilla_region::{Index, Peer, Reject, Ticket};
use flotilla_store::ApplyOutcome;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::latencies::{Milestone, RequestTimes};

/// The answer to a request.
#[derive(Debug)]
pub(crate) enum TicketAnswer {
    /// The proposal was applied, with this outcome.
    Applied(ApplyOutcome),
    /// The read may take its snapshot now, which must have applied this entry.
    Granted(Index),
    /// Another replica leads the region.
    Transferred(Peer),
    /// The request was not carried out.
    Rejected(Reject),
}

/// The answer to a request, and when it passed its milestones.
pub(crate) type TimedAnswer = (TicketAnswer, RequestTimes);

/// Stripes of the table, so that the regions' threads, the applier and callers seldom contend for
/// one lock.
const STRIPES: usize = 16;

/// All pending requests of a node. Bounded by the router's budget, of which each of them holds a
/// share.
pub(crate) struct Tickets {
    next: AtomicU64,
    stripes: [Mutex<TicketStripe>; STRIPES],
}

#[derive(Default)]
struct TicketStripe {
    waiting: HashMap<Ticket, WaitingCaller>,
    closed: bool,
}

struct WaitingCaller {
    answer: oneshot::Sender<TimedAnswer>,
    times: RequestTimes,
}

/// One pending request: await `answer`. Dropping it gives the ticket up.
pub(crate) struct PendingRequest {
    /// The ticket to send along with the request.
    pub(crate) ticket: Ticket,
    /// The answer; an error if the node stops first.
    pub(crate) answer: oneshot::Receiver<TimedAnswer>,
    table: Arc<Tickets>,
}

impl Tickets {
    /// An empty table.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { next: AtomicU64::new(1), stripes: Default::default() })
    }

    /// Opens a ticket that was never used before. None once the table is closed.
    pub(crate) fn open(self: &Arc<Self>) -> Option<PendingRequest> {
        // Relaxed: only that each number is given once counts, and not their order.
        let ticket = Ticket(self.next.fetch_add(1, Ordering::Relaxed));
        let (sender, answer) = oneshot::channel();
        let mut stripe = self.stripe(ticket).lock();
        if stripe.closed {
            return None;
        }
        let times = RequestTimes::sent(Instant::now());
        let before = stripe.waiting.insert(ticket, WaitingCaller { answer: sender, times });
        assert!(before.is_none(), "ticket {} was given twice", ticket.0);
        Some(PendingRequest { ticket, answer, table: Arc::clone(self) })
    }

    /// The request of `ticket` passes a milestone now. False if nothing waits for its answer.
    pub(crate) fn pass(&self, ticket: Ticket, milestone: Milestone, now: Instant) -> bool {
        let mut stripe = self.stripe(ticket).lock();
        let waiting = stripe.waiting.get_mut(&ticket);
        waiting.map(|waiting| waiting.times.pass(milestone, now)).is_some()
    }

    /// Answers the request of `ticket` now, if it still waits.
    pub(crate) fn answer(&self, ticket: Ticket, answer: TicketAnswer, now: Instant) {
        let mut stripe = self.stripe(ticket).lock();
        if let Some(mut waiting) = stripe.waiting.remove(&ticket) {
            waiting.times.pass(Milestone::Answered, now);
            // Sent under the lock, so that no request is answered once `close` has returned. An
            // error means that the caller has given up.
            let _ = waiting.answer.send((answer, waiting.times));
        }
    }

    /// Wakes the caller of `ticket` without an answer, as a stop does: what becomes of its proposal
    /// is not learned here.
    pub(crate) fn leave_open(&self, ticket: Ticket) {
        self.stripe(ticket).lock().waiting.remove(&ticket);
    }

    /// Wakes every caller without an answer, and opens no more tickets.
    pub(crate) fn close(&self) {
        for stripe in &self.stripes {
            let mut stripe = stripe.lock();
            stripe.closed = true;
            stripe.waiting.clear();
        }
    }

    /// How many tickets were opened so far.
    pub(crate) fn opened(&self) -> u64 {
        self.next.load(Ordering::Relaxed) - 1
    }

    /// How many requests wait.
    pub(crate) fn count(&self) -> usize {
        self.stripes.iter().map(|stripe| stripe.lock().waiting.len()).sum()
    }

    fn stripe(&self, ticket: Ticket) -> &Mutex<TicketStripe> {
        &self.stripes[ticket.0 as usize % STRIPES]
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        self.table.stripe(self.ticket).lock().waiting.remove(&self.ticket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_answer_reaches_its_own_request_and_no_other() {
        let tickets = Tickets::new();
        let mut first = tickets.open().unwrap();
        let mut second = tickets.open().unwrap();
        tickets.answer(second.ticket, TicketAnswer::Granted(Index(1)), Instant::now());
        assert!(matches!((&mut second.answer).await, Ok((TicketAnswer::Granted(Index(1)), _))));
        assert!(first.answer.try_recv().is_err());
        assert_eq!(tickets.count(), 1);
    }

    #[test]
    fn a_request_that_goes_away_frees_its_place() {
        let tickets = Tickets::new();
        let waiting = tickets.open().unwrap();
        let ticket = waiting.ticket;
        let is_waiting = || tickets.pass(ticket, Milestone::Taken, Instant::now());
        assert!(is_waiting());
        drop(waiting);
        assert_eq!((tickets.count(), is_waiting()), (0, false));
        tickets.answer(ticket, TicketAnswer::Granted(Index(1)), Instant::now());
    }

    #[tokio::test]
    async fn a_ticket_that_is_left_open_wakes_its_caller_alone() {
        let tickets = Tickets::new();
        let mut open = tickets.open().unwrap();
        let mut other = tickets.open().unwrap();
        tickets.leave_open(open.ticket);
        assert!((&mut open.answer).await.is_err());
        assert!(matches!(other.answer.try_recv(), Err(oneshot::error::TryRecvError::Empty)));
        assert_eq!(tickets.count(), 1);
    }

    #[tokio::test]
    async fn nothing_is_told_after_the_close() {
        let tickets = Tickets::new();
        let mut waiting = tickets.open().unwrap();
        tickets.close();
        tickets.answer(waiting.ticket, TicketAnswer::Granted(Index(1)), Instant::now());
        assert!((&mut waiting.answer).await.is_err());
        assert!(tickets.open().is_none());
    }
}
