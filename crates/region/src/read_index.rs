//! Reads that wait for a quorum to confirm the leader, then for the apply index to catch up.
//!
//! All reads that wait in a step share one request. Raft drops requests silently when the leader
//! has not committed in its term, or when a message is lost; so each is repeated under another
//! name, until its time is over. The name holds the replica, a number of this run and a counter: a
//! late answer to another replica, or to an earlier run, is not taken for ours.
//!
//! A read that is confirmed stays so whatever happens to the leader: the index was right at a time
//! after the read was asked for, and waiting for it cannot make it wrong.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::config::ReadConfig;
use crate::descriptor::Peer;
use crate::error::Reject;
use crate::ids::{Index, PeerId, Term, Ticket, Time};

/// Requests under way at once. Reads that come meanwhile join the next.
const ROUNDS_MAX: usize = 4;

/// Bytes of the name of a request.
pub(crate) const CONTEXT_BYTES: usize = 24;

pub(crate) struct ReadIndexQueue {
    peer: PeerId,
    run: u64,
    last_round: u64,
    /// To be asked for.
    waiting: Vec<PendingRead>,
    /// Asked for, by number.
    rounds: BTreeMap<u64, ReadIndexRound>,
    /// Waiting for the apply index.
    confirmed: BTreeMap<Index, Vec<PendingRead>>,
}

/// A client that reads.
pub(crate) struct PendingRead {
    pub(crate) ticket: Ticket,
    /// Whether it may be served by a replica that does not lead.
    pub(crate) follower: bool,
    /// When it is rejected.
    pub(crate) expires: Time,
    /// At which step's time it was taken under a lease, if it was.
    pub(crate) leased: Option<Time>,
}

/// A request under way.
struct ReadIndexRound {
    asked: Time,
    /// The leader's term if the leader itself asks, to renew its lease.
    term: Option<Term>,
    reads: Vec<PendingRead>,
}

impl ReadIndexQueue {
    pub(crate) fn new(peer: PeerId, run: u64) -> Self {
        let confirmed = BTreeMap::new();
        Self { peer, run, last_round: 0, waiting: vec![], rounds: BTreeMap::new(), confirmed }
    }

    /// How many reads wait.
    pub(crate) fn count(&self) -> usize {
        let asked = self.rounds.values().map(|round| round.reads.len());
        let confirmed = self.confirmed.values().map(Vec::len);
        self.waiting.len() + asked.sum::<usize>() + confirmed.sum::<usize>()
    }

    /// Lets a read wait for the next request.
    pub(crate) fn wait(&mut self, read: PendingRead) {
        self.waiting.push(read);
    }

    /// Adds a read whose index is known to those that wait for the apply index.
    pub(crate) fn wait_for(&mut self, index: Index, read: PendingRead) {
        self.confirmed.entry(index).or_default().push(read);
    }

    /// Whether a request should be made.
    pub(crate) fn wants_round(&self) -> bool {
        !self.waiting.is_empty() && self.rounds.len() < ROUNDS_MAX
    }

    /// Whether no request is under way.
    pub(crate) fn is_quiet(&self) -> bool {
        self.rounds.is_empty()
    }

    /// Makes one request for all that wait, or for none, to renew a lease. Gives back its name.
    pub(crate) fn ask(&mut self, now: Time, term: Option<Term>) -> Bytes {
        self.last_round += 1;
        let reads = std::mem::take(&mut self.waiting);
        self.rounds.insert(self.last_round, ReadIndexRound { asked: now, term, reads });
        self.name(self.last_round)
    }

    /// Takes an answer. Gives back when a leader asked, and in which term, to renew its lease from.
    pub(crate) fn confirm(&mut self, context: &[u8], index: Index) -> Option<(Time, Term)> {
        let (_, number) = context.split_last_chunk::<8>()?;
        let number = u64::from_be_bytes(*number);
        // An earlier run, or another replica, may have asked with the same number.
        if self.name(number) != context {
            return None;
        }
        let round = self.rounds.remove(&number)?;
        if !round.reads.is_empty() {
            self.confirmed.entry(index).or_default().extend(round.reads);
        }
        round.term.map(|term| (round.asked, term))
    }

    /// Grants every read whose index is now applied.
    pub(crate) fn release(&mut self, applied: Index, mut grant: impl FnMut(PendingRead, Index)) {
        // Not earlier: a write that is committed and not applied may have been answered by another
        // replica, and a snapshot without it would be stale.
        while let Some(first) = self.confirmed.first_entry().filter(|e| *e.key() <= applied) {
            let index = *first.key();
            first.remove().into_iter().for_each(|read| grant(read, index));
        }
    }

    /// Puts unanswered requests back to be made again, and rejects reads that waited too long.
    pub(crate) fn tick(
        &mut self,
        now: Time,
        config: &ReadConfig,
        mut reject: impl FnMut(Ticket, Reject),
        leader: Option<Peer>,
    ) {
        let is_late =
            |_: &u64, round: &mut ReadIndexRound| round.asked.after_ms(config.retry_ms) <= now;
        for (_, round) in self.rounds.extract_if(.., is_late) {
            self.waiting.extend(round.reads);
        }
        // Reads of rounds expire as well, once their round is late and they wait again. Confirmed
        // ones may wait for entries that a slow disk does not get applied.
        let confirmed = self.confirmed.values_mut();
        let places = std::iter::once(&mut self.waiting).chain(confirmed);
        for read in places.flat_map(|reads| reads.extract_if(.., |read| read.expires <= now)) {
            reject(
                read.ticket,
                // Without a leader the client has to look elsewhere; with one, it is the quorum
                // that is missing, and the same store is worth another try.
                match leader {
                    None => Reject::NotLeader { leader: None },
                    Some(_) => Reject::ReadIndexNotReady,
                },
            );
        }
        self.confirmed.retain(|_, reads| !reads.is_empty());
    }

    /// Another leader or term: requests under way are lost. Reads that only a leader may serve are
    /// rejected, unless this replica is it.
    pub(crate) fn restart(
        &mut self,
        is_leader: bool,
        why: &Reject,
        mut reject: impl FnMut(Ticket, Reject),
    ) {
        let rounds = std::mem::take(&mut self.rounds).into_values();
        // The new leader does not know the requests to the former one.
        self.waiting.extend(rounds.flat_map(|round| round.reads));
        if !is_leader {
            for read in self.waiting.extract_if(.., |read| !read.follower) {
                reject(read.ticket, why.clone());
            }
        }
    }

    /// Gives back all.
    pub(crate) fn drain(&mut self, why: &Reject, mut reject: impl FnMut(Ticket, Reject)) {
        self.restart(false, why, &mut reject);
        let confirmed = std::mem::take(&mut self.confirmed).into_values().flatten();
        let rest = self.waiting.drain(..).chain(confirmed);
        rest.for_each(|read| reject(read.ticket, why.clone()));
    }

    /// Checks that no read waits for an index that is applied.
    pub(crate) fn check(&self, applied: Index) {
        if let Some((index, reads)) = self.confirmed.first_key_value() {
            assert!(*index > applied, "reads were left behind at {index}, {applied} is applied");
            assert!(!reads.is_empty(), "nobody waits for {index}");
        }
        assert!(self.rounds.len() <= ROUNDS_MAX + 1, "{} requests under way", self.rounds.len());
    }

    fn name(&self, number: u64) -> Bytes {
        let mut name = Vec::with_capacity(CONTEXT_BYTES);
        for part in [self.peer.0, self.run, number] {
            name.extend_from_slice(&part.to_be_bytes());
        }
        name.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::StoreId;

    const CONFIG: ReadConfig = ReadConfig { leases: true, retry_ms: 100, tries_max: 3 };

    fn read(ticket: u64, follower: bool) -> PendingRead {
        PendingRead { ticket: Ticket(ticket), follower, expires: Time(300), leased: None }
    }

    fn released(reads: &mut ReadIndexQueue, applied: u64) -> Vec<u64> {
        let mut granted = vec![];
        reads.release(Index(applied), |read, index| {
            assert!(index.0 <= applied, "granted before {index} was applied");
            granted.push(read.ticket.0);
        });
        reads.check(Index(applied));
        granted
    }

    #[test]
    fn reads_of_a_step_share_a_request_and_wait_for_its_index() {
        let mut reads = ReadIndexQueue::new(PeerId(7), 1);
        reads.wait(read(1, false));
        reads.wait(read(2, true));
        let context = reads.ask(Time(10), Some(Term(3)));
        assert_eq!(context.len(), CONTEXT_BYTES);
        assert!(!reads.wants_round());
        assert_eq!(reads.confirm(&context, Index(5)), Some((Time(10), Term(3))));
        assert_eq!(reads.confirm(&context, Index(9)), None, "answered twice");
        assert_eq!(released(&mut reads, 4), []);
        assert_eq!(released(&mut reads, 5), [1, 2]);
        assert_eq!(reads.count(), 0);
    }

    #[test]
    fn an_answer_to_another_replica_or_run_is_not_ours() {
        let mut reads = ReadIndexQueue::new(PeerId(7), 2);
        reads.wait(read(1, true));
        reads.ask(Time(0), None);
        let earlier = ReadIndexQueue::new(PeerId(7), 1).ask(Time(0), None);
        let other = ReadIndexQueue::new(PeerId(8), 2).ask(Time(0), None);
        for context in [&earlier[..], &other[..], b"", b"garbage"] {
            reads.confirm(context, Index(1));
            assert_eq!(released(&mut reads, 10), [], "{context:?}");
        }
    }

    #[test]
    fn an_unanswered_request_is_repeated_and_then_given_up() {
        let leader = Some(Peer { id: PeerId(1), store: StoreId(1) });
        let mut reads = ReadIndexQueue::new(PeerId(7), 1);
        reads.wait(read(1, false));
        let first = reads.ask(Time(0), None);
        let mut rejected = vec![];
        reads.tick(Time(99), &CONFIG, |_, why| rejected.push(why), leader);
        assert!(!reads.wants_round());
        reads.tick(Time(100), &CONFIG, |_, why| rejected.push(why), leader);
        assert!(reads.wants_round());
        reads.ask(Time(100), None);
        reads.confirm(&first, Index(1));
        assert_eq!(released(&mut reads, 1), [], "the first request was given up");
        reads.wait_for(Index(50), read(2, true));
        reads.tick(Time(300), &CONFIG, |_, why| rejected.push(why), leader);
        assert_eq!(rejected, [Reject::ReadIndexNotReady, Reject::ReadIndexNotReady]);
        assert_eq!(reads.count(), 0);
    }

    #[test]
    fn a_new_leader_or_term_asks_again_and_a_follower_rejects_what_it_may_not_serve() {
        let mut reads = ReadIndexQueue::new(PeerId(7), 1);
        reads.wait(read(1, false));
        reads.wait(read(2, true));
        reads.ask(Time(0), Some(Term(1)));
        reads.wait_for(Index(8), read(3, false));
        let why = Reject::NotLeader { leader: None };
        let mut rejected = vec![];
        reads.restart(true, &why, |ticket, _| rejected.push(ticket.0));
        assert!(rejected.is_empty() && reads.wants_round());
        reads.restart(false, &why, |ticket, _| rejected.push(ticket.0));
        assert_eq!(rejected, [1]);
        assert_eq!(released(&mut reads, 8), [3], "what is confirmed stays so");
        reads.drain(&why, |ticket, _| rejected.push(ticket.0));
        assert_eq!(rejected, [1, 2]);
    }
}
