//! Requests that wait for their answer, by ticket.
//!
//! A ticket is opened before its request is sent and answered once, by whoever decides: the shard
//! (granted, rejected) or the applier (applied). A caller that goes away takes its ticket along;
//! an answer that finds no ticket is dropped. Closing the table wakes everybody without an answer,
//! and from then on nobody is told anything: that is what "nothing is acknowledged after a
//! failure" rests on, so closing and answering exclude each other by the lock of each part.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flotilla_region::{Index, Reject, Ticket};
use flotilla_store::Outcome;
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// What a request is told.
#[derive(Debug)]
pub(crate) enum TicketAnswer {
    /// The proposal was applied, with this outcome.
    Applied(Outcome),
    /// The read may take its snapshot now, which must have applied this entry.
    Granted(Index),
    /// The request was not carried out.
    Rejected(Reject),
}

/// Parts of the table, so that the shard, the applier and callers seldom meet at one lock.
const SHARDS: usize = 16;

/// All waiting requests of a node. Bounded by the router's budget, which each of them holds.
pub(crate) struct Tickets {
    next: AtomicU64,
    shards: [Mutex<TicketShard>; SHARDS],
}

#[derive(Default)]
struct TicketShard {
    waiting: HashMap<Ticket, oneshot::Sender<TicketAnswer>>,
    closed: bool,
}

/// One waiting request: await `answer`. Dropping it gives the ticket up.
pub(crate) struct PendingRequest {
    /// The ticket to send along with the request.
    pub(crate) ticket: Ticket,
    /// The answer; an error if the node stops first.
    pub(crate) answer: oneshot::Receiver<TicketAnswer>,
    table: Arc<Tickets>,
}

impl Tickets {
    /// An empty table.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { next: AtomicU64::new(1), shards: Default::default() })
    }

    /// Opens a ticket that was never used before. None once the table is closed.
    pub(crate) fn open(self: &Arc<Self>) -> Option<PendingRequest> {
        let ticket = Ticket(self.next.fetch_add(1, Ordering::Relaxed));
        let (sender, answer) = oneshot::channel();
        let mut shard = self.shard(ticket).lock();
        if shard.closed {
            return None;
        }
        shard.waiting.insert(ticket, sender);
        Some(PendingRequest { ticket, answer, table: Arc::clone(self) })
    }

    /// Tells the request behind `ticket`, if it still waits.
    pub(crate) fn answer(&self, ticket: Ticket, answer: TicketAnswer) {
        let mut shard = self.shard(ticket).lock();
        if let Some(sender) = shard.waiting.remove(&ticket) {
            // Sent under the lock, so that nobody is answered once `close` has returned. The caller
            // may be gone; that is its right.
            let _ = sender.send(answer);
        }
    }

    /// Wakes everybody without an answer, and refuses who comes.
    pub(crate) fn close(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.closed = true;
            shard.waiting.clear();
        }
    }

    /// How many requests wait.
    pub(crate) fn count(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().waiting.len()).sum()
    }

    fn shard(&self, ticket: Ticket) -> &Mutex<TicketShard> {
        &self.shards[ticket.0 as usize % SHARDS]
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        self.table.shard(self.ticket).lock().waiting.remove(&self.ticket);
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
        tickets.answer(second.ticket, TicketAnswer::Granted(Index(1)));
        assert!(matches!((&mut second.answer).await, Ok(TicketAnswer::Granted(Index(1)))));
        assert!(first.answer.try_recv().is_err());
        assert_eq!(tickets.count(), 1);
    }

    #[test]
    fn a_request_that_goes_away_frees_its_place() {
        let tickets = Tickets::new();
        let waiting = tickets.open().unwrap();
        let ticket = waiting.ticket;
        drop(waiting);
        assert_eq!(tickets.count(), 0);
        tickets.answer(ticket, TicketAnswer::Granted(Index(1)));
    }

    #[tokio::test]
    async fn nothing_is_told_after_the_close() {
        let tickets = Tickets::new();
        let mut waiting = tickets.open().unwrap();
        tickets.close();
        tickets.answer(waiting.ticket, TicketAnswer::Granted(Index(1)));
        assert!((&mut waiting.answer).await.is_err());
        assert!(tickets.open().is_none());
    }
}
