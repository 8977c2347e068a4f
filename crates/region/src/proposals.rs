//! Proposals from admission to the log, and their tickets from the log to applying.
//!
//! Waiting proposals are joined to one entry: raft's cost is by entry. Once proposed, a ticket
//! waits at (index, term) until commit decides: the entry committed at that index has that term,
//! and the ticket goes along with it; or another one, or an earlier entry of a later term is
//! committed (terms grow along a log), and the proposal surely never happens. Until then its fate
//! is open: the entries of a deposed leader may still be committed by the next one, so their
//! tickets are not given back when it steps down.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::admin_command::AdminCommand;
use crate::config::Config;
use crate::entry_data::ProposalJoiner;
use crate::error::Reject;
use crate::ids::{Index, Term, Ticket};

#[derive(Default)]
pub(crate) struct ProposalQueue {
    queue: VecDeque<QueuedProposal>,
    queue_bytes: usize,
    /// Tickets in the log, by place.
    proposed: BTreeMap<(Index, Term), Vec<Ticket>>,
    proposed_count: usize,
    /// The term of the last entry that was committed.
    committed_term: Term,
}

struct QueuedProposal {
    ticket: Ticket,
    /// The version of the range that the client's claim was checked against.
    version: u64,
    command: Bytes,
    /// Whether the command is the whole data of an entry, which no other one joins.
    is_admin: bool,
}

/// The data of an entry, ready to be proposed.
pub(crate) struct JoinedProposals {
    pub(crate) data: Vec<u8>,
    pub(crate) count: usize,
    /// Whether it is a change of the region.
    pub(crate) is_admin: bool,
}

impl ProposalQueue {
    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Whether a change of the region waits for its entry.
    pub(crate) fn has_queued_admin(&self) -> bool {
        self.queue.iter().any(|queued| queued.is_admin)
    }

    pub(crate) fn proposed(&self) -> usize {
        self.proposed_count
    }

    /// Lets a checked proposal wait for its entry.
    pub(crate) fn admit(
        &mut self,
        ticket: Ticket,
        version: u64,
        command: Bytes,
        config: &Config,
    ) -> Result<(), Reject> {
        self.push(QueuedProposal { ticket, version, command, is_admin: false }, config)
    }

    /// Lets a checked change of the region wait for its entry, behind the proposals that wait.
    pub(crate) fn admit_admin(
        &mut self,
        ticket: Ticket,
        command: &AdminCommand,
        config: &Config,
    ) -> Result<(), Reject> {
        let command = command.encode();
        self.push(QueuedProposal { ticket, version: 0, command, is_admin: true }, config)
    }

    fn push(&mut self, proposal: QueuedProposal, config: &Config) -> Result<(), Reject> {
        let QueuedProposal { version, command, .. } = &proposal;
        let size = ProposalJoiner::new().bytes_with(*version, command.len());
        if size > config.entry_bytes_max {
            let limit = config.entry_bytes_max as u64;
            return Err(Reject::EntryTooLarge { size: size as u64, limit });
        }
        // Those in the log count too: without a quorum they are not answered, and clients would add
        // tickets without end.
        if self.queue.len() + self.proposed_count >= config.queue.count_max {
            return Err(Reject::Busy { reason: "too many proposals wait" });
        }
        // A command that exceeds the bound alone would else never be admitted.
        if !self.queue.is_empty() && self.queue_bytes + command.len() > config.queue.bytes_max {
            return Err(Reject::Busy { reason: "too many bytes wait to be proposed" });
        }
        self.queue_bytes += command.len();
        self.queue.push_back(proposal);
        Ok(())
    }

    /// The first of those that wait, as one entry's data; they wait on until [`Self::place`].
    pub(crate) fn join(
        &self,
        config: &Config,
        has_room: impl Fn(usize) -> bool,
    ) -> Option<JoinedProposals> {
        let count = self.count_that_join(config);
        let mut joiner = ProposalJoiner::new();
        let bytes: usize = self.queue.iter().take(count).map(|queued| queued.command.len()).sum();
        // Room for at least as many bytes as the entry will have: raft drops a proposal beyond its
        // limit, and `Consensus::propose` takes that for a bug.
        if count == 0 || !has_room(bytes + count * JOINED_HEAD_BYTES_MAX) {
            return None;
        }
        if let Some(alone) = self.queue.front().filter(|first| first.is_admin) {
            assert_eq!(count, 1, "a change of the region is an entry of its own");
            return Some(JoinedProposals { count, data: alone.command.to_vec(), is_admin: true });
        }
        for queued in self.queue.iter().take(count) {
            joiner.add(queued.version, &queued.command);
        }
        Some(JoinedProposals { count: joiner.count(), data: joiner.into_data(), is_admin: false })
    }

    fn count_that_join(&self, config: &Config) -> usize {
        let joined_bytes_max = config.merge_bytes_max.min(config.entry_bytes_max);
        let mut bytes = 0;
        let mut count = 0;
        for queued in self.queue.iter().take(config.merge_count_max) {
            bytes += queued.command.len() + JOINED_HEAD_BYTES_MAX;
            // The first one always goes: a larger command than this is legal, and would block the
            // queue.
            if count > 0 && (bytes > joined_bytes_max || queued.is_admin) {
                break;
            }
            count += 1;
            if queued.is_admin {
                break;
            }
        }
        count
    }

    /// The first `count` of those that wait are in the log at this place.
    pub(crate) fn place(&mut self, index: Index, term: Term, count: usize) {
        let joined = self.queue.drain(..count);
        // In the order of the entry's proposals, by which applying finds the answer of each ticket.
        let tickets: Vec<Ticket> = joined
            .map(|queued| {
                self.queue_bytes -= queued.command.len();
                queued.ticket
            })
            .collect();
        self.proposed_count += tickets.len();
        let before = self.proposed.insert((index, term), tickets);
        assert!(before.is_none(), "two entries at {index} of term {term}");
    }

    /// A change of the region that did not wait is in the log at this place.
    pub(crate) fn place_alone(&mut self, index: Index, term: Term, ticket: Ticket) {
        self.proposed_count += 1;
        let before = self.proposed.insert((index, term), vec![ticket]);
        assert!(before.is_none(), "two entries at {index} of term {term}");
    }

    /// The tickets of a committed entry. Those that lost their places are rejected.
    pub(crate) fn take_tickets(
        &mut self,
        index: Index,
        term: Term,
        mut reject: impl FnMut(Ticket, Reject),
    ) -> Vec<Ticket> {
        assert!(term >= self.committed_term, "term {term} after {}", self.committed_term);
        let mut lost = vec![];
        // By term as well: after a change of leader another leader's entry may be committed at this
        // index, and its success would be told to the wrong client.
        let tickets = self.proposed.remove(&(index, term)).unwrap_or_default();
        while let Some(first) = self.proposed.first_entry().filter(|first| first.key().0 <= index) {
            lost.push(first.remove());
        }
        // An entry of a former term that is not committed by now never will be: terms grow along a
        // log.
        if term > self.committed_term {
            self.committed_term = term;
            lost.extend(
                self.proposed.extract_if(.., |place, _| place.1 < term).map(|place| place.1),
            );
        }
        let lost: Vec<Ticket> = lost.into_iter().flatten().collect();
        self.proposed_count -= tickets.len() + lost.len();
        lost.into_iter().for_each(|ticket| reject(ticket, Reject::StaleCommand));
        tickets
    }

    /// Gives back those that are not in the log yet: the replica does not lead any more.
    pub(crate) fn reject_queued(&mut self, why: &Reject, mut reject: impl FnMut(Ticket, Reject)) {
        self.queue_bytes = 0;
        self.queue.drain(..).for_each(|queued| reject(queued.ticket, why.clone()));
    }

    /// Gives up the tickets in the log, whose fate is open.
    pub(crate) fn abandon(&mut self) -> impl Iterator<Item = Ticket> + use<> {
        self.proposed_count = 0;
        std::mem::take(&mut self.proposed).into_values().flatten()
    }

    /// Gives up the tickets up to this entry: a snapshot takes the place of the log there, and does
    /// not tell their fate. Those above it are rejected if they are of a former term, for terms
    /// grow along a log; the others wait on.
    pub(crate) fn pass_over(
        &mut self,
        index: Index,
        term: Term,
        mut reject: impl FnMut(Ticket, Reject),
    ) -> Vec<Ticket> {
        assert!(term >= self.committed_term, "term {term} after {}", self.committed_term);
        self.committed_term = term;
        let tickets = |places: Vec<(_, Vec<Ticket>)>| -> Vec<Ticket> {
            places.into_iter().flat_map(|(_, tickets)| tickets).collect()
        };
        let passed = self.proposed.extract_if(.., |place, _| place.0 <= index).collect();
        let lost = self.proposed.extract_if(.., |place, _| place.1 < term).collect();
        let (passed, lost) = (tickets(passed), tickets(lost));
        self.proposed_count -= passed.len() + lost.len();
        // The region may rest from now on: no entry would decide about them.
        lost.into_iter().for_each(|ticket| reject(ticket, Reject::StaleCommand));
        passed
    }

    /// Checks the counts, and that no ticket waits at a place that was handed out.
    pub(crate) fn check(&self, handed_out: Index) {
        let bytes: usize = self.queue.iter().map(|queued| queued.command.len()).sum();
        assert_eq!(bytes, self.queue_bytes, "bytes that wait to be proposed");
        let count: usize = self.proposed.values().map(Vec::len).sum();
        assert_eq!(count, self.proposed_count, "tickets in the log");
        if let Some(((index, _), _)) = self.proposed.first_key_value() {
            assert!(*index > handed_out, "a ticket was left behind at entry {index}");
        }
    }
}

/// At least what an entry takes for each proposal besides the command.
const JOINED_HEAD_BYTES_MAX: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::QueueLimits;

    fn queue(config: &Config, sizes: &[usize]) -> ProposalQueue {
        let mut proposals = ProposalQueue::default();
        for (ticket, size) in (1..).zip(sizes) {
            let command = Bytes::from(vec![0; *size]);
            proposals.admit(Ticket(ticket), 1, command, config).unwrap();
        }
        proposals
    }

    #[test]
    fn what_waits_is_joined_within_bounds() {
        let config = Config { merge_bytes_max: 200, merge_count_max: 3, ..Config::default() };
        let count = |sizes: &[usize]| {
            queue(&config, sizes).join(&config, |_| true).map(|joined| joined.count)
        };
        assert_eq!(count(&[]), None);
        assert_eq!(count(&[10, 10]), Some(2));
        assert_eq!(count(&[10, 10, 10, 10]), Some(3), "by count");
        assert_eq!(count(&[90, 90]), Some(1), "by bytes");
        assert_eq!(count(&[5000, 10]), Some(1), "a large one goes alone");
        assert_eq!(count(&[10, 5000]), Some(1));
        assert!(queue(&config, &[10]).join(&config, |_| false).is_none());
    }

    #[test]
    fn the_queue_is_bounded_in_bytes_and_count() {
        let config =
            Config { queue: QueueLimits { bytes_max: 100, count_max: 3 }, ..Config::default() };
        let admit = |proposals: &mut ProposalQueue, size| {
            proposals.admit(Ticket(9), 1, Bytes::from(vec![0; size]), &config)
        };
        let mut large = queue(&config, &[150]);
        assert!(matches!(admit(&mut large, 1), Err(Reject::Busy { .. })));
        let mut many = queue(&config, &[1, 1]);
        many.place(Index(1), Term(1), 2);
        assert_eq!(admit(&mut many, 1), Ok(()));
        assert!(matches!(admit(&mut many, 1), Err(Reject::Busy { .. })), "also what is in the log");
        let too_large = admit(&mut ProposalQueue::default(), config.entry_bytes_max);
        assert!(matches!(too_large, Err(Reject::EntryTooLarge { .. })));
    }

    #[test]
    fn tickets_go_with_their_entry_or_are_stale() {
        let config = Config::default();
        let mut proposals = queue(&config, &[1, 1, 1, 1, 1]);
        proposals.place(Index(5), Term(1), 2);
        proposals.place(Index(6), Term(1), 1);
        proposals.place(Index(6), Term(3), 2);
        let mut stale = vec![];
        let mut take_tickets = |index, term| {
            proposals.take_tickets(Index(index), Term(term), |ticket, why| {
                assert_eq!(why, Reject::StaleCommand);
                stale.push(ticket.0);
            })
        };
        assert_eq!(take_tickets(4, 1), []);
        assert_eq!(take_tickets(5, 1), [Ticket(1), Ticket(2)]);
        assert_eq!(take_tickets(6, 3), [Ticket(4), Ticket(5)]);
        assert_eq!(stale, [3]);
        assert_eq!(proposals.proposed(), 0);
    }

    #[test]
    fn a_snapshot_leaves_open_what_it_has_and_decides_about_former_terms_above() {
        let mut proposals = queue(&Config::default(), &[1, 1, 1, 1]);
        proposals.place(Index(5), Term(1), 1);
        proposals.place(Index(9), Term(1), 1);
        proposals.place(Index(9), Term(2), 1);
        let mut stale = vec![];
        let passed = proposals.pass_over(Index(5), Term(2), |ticket, _| stale.push(ticket.0));
        assert_eq!((passed, stale), (vec![Ticket(1)], vec![2]));
        proposals.check(Index(5));
        assert_eq!(proposals.take_tickets(Index(9), Term(2), |_, _| panic!("lost")), [Ticket(3)]);
    }

    #[test]
    fn a_later_term_decides_about_all_places_of_earlier_ones() {
        let mut proposals = queue(&Config::default(), &[1, 1, 1]);
        proposals.place(Index(5), Term(1), 1);
        proposals.place(Index(9), Term(1), 1);
        proposals.place(Index(7), Term(2), 1);
        let mut stale = vec![];
        let tickets = proposals.take_tickets(Index(6), Term(2), |ticket, _| stale.push(ticket.0));
        assert_eq!((tickets, stale), (vec![], vec![1, 2]));
        assert_eq!(proposals.take_tickets(Index(7), Term(2), |_, _| panic!("lost")), [Ticket(3)]);
    }
}
