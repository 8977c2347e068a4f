//! Transfer of leadership (raft thesis, 3.10): which voter can take over, and when one has.
//!
//! Raft refuses proposals from the moment at which a transfer begins; they wait in the queue until
//! another replica leads, or until an election timeout has passed and raft gives the transfer up.
//! So a transfer goes only to a voter that will surely campaign at once: one that answered a moment
//! ago, takes entries as they come, and lacks few of them.
//!
//! The lease of the term ends for good when a transfer begins ([`crate::lease::Lease::void`]).

use crate::config::Config;
use crate::consensus::Consensus;
use crate::descriptor::{Descriptor, Peer, PeerRole, RegionPeer};
use crate::error::TransferError;
use crate::ids::{Index, PeerId, Term, Ticket, Time};

/// The most bytes of the log that the next leader may lack. They reach it within a few
/// milliseconds, and writes wait as long.
const LACKING_BYTES_MAX: u64 = 64 << 10;

/// A transfer that is over.
pub(crate) struct TransferOutcome {
    pub(crate) ticket: Option<Ticket>,
    pub(crate) result: Result<Peer, TransferError>,
}

/// The state of a replica's transfers.
#[derive(Default)]
pub(crate) struct LeaderTransfer {
    /// When each member last answered this leader.
    heard: Vec<(PeerId, Time)>,
    /// The first entry of this leader's term.
    term_start: Index,
    /// The last change of the region that this leader has proposed, until it is applied.
    change: Option<Index>,
    pending: Option<PendingTransfer>,
    /// The voter that did not take over when it was last called.
    failed: Option<PeerId>,
}

struct PendingTransfer {
    to: PeerId,
    term: Term,
    /// When it has surely failed.
    expires: Time,
    ticket: Option<Ticket>,
}

impl LeaderTransfer {
    /// The replica has another leader or term. If it leads itself, `last` is its first entry.
    pub(crate) fn restart(&mut self, last: Index) {
        self.heard = vec![];
        self.term_start = last;
        self.change = None;
        self.failed = None;
    }

    /// The region has these members.
    pub(crate) fn retain(&mut self, descriptor: &Descriptor) {
        self.heard.retain(|(peer, _)| descriptor.peer(*peer).is_some());
    }

    /// A member has answered this leader.
    pub(crate) fn note_answer(&mut self, from: PeerId, now: Time) {
        match self.heard.iter_mut().find(|(peer, _)| *peer == from) {
            Some(heard) => heard.1 = now,
            None => self.heard.push((from, now)),
        }
    }

    /// Whether a member has answered this leader within the last `ms`.
    pub(crate) fn is_heard(&self, peer: PeerId, now: Time, ms: u64) -> bool {
        self.heard.iter().any(|heard| heard.0 == peer && now <= heard.1.after_ms(ms))
    }

    /// A split or a change of the replicas was proposed.
    pub(crate) fn note_change(&mut self, index: Index) {
        self.change = Some(index);
    }

    /// Whether one that was proposed waits to be applied.
    pub(crate) fn has_change(&self) -> bool {
        self.change.is_some()
    }

    /// Entries were applied.
    pub(crate) fn note_applied(&mut self, index: Index) {
        self.change = self.change.filter(|change| *change > index);
    }

    /// Whether the leader has applied all that its predecessors have committed.
    pub(crate) fn has_applied_log(&self, consensus: &Consensus) -> bool {
        consensus.applied_index() >= self.term_start
    }

    /// Whether a transfer is under way, or its end is not told yet.
    pub(crate) fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// The voter that a transfer goes to: `to`, or of those that `may` take it the one that lacks
    /// least.
    pub(crate) fn choose(
        &self,
        to: Option<PeerId>,
        may: &dyn Fn(&RegionPeer) -> bool,
        descriptor: &Descriptor,
        consensus: &Consensus,
        now: Time,
        config: &Config,
    ) -> Result<PeerId, TransferError> {
        if let Some(pending) = self.pending.as_ref().filter(|_| consensus.is_transferring()) {
            return Err(TransferError::UnderWay(pending.to));
        }
        // Changes of a predecessor lie below the first entry of this term.
        if !self.has_applied_log(consensus) {
            return Err(TransferError::NewLeader);
        }
        if self.change.is_some() {
            return Err(TransferError::Changing);
        }
        // One that loses its vote would have to hand over at once.
        let may_lead =
            |peer: &RegionPeer| matches!(peer.role, PeerRole::Voter | PeerRole::Incoming);
        let check = |peer| self.check_voter(peer, consensus, now, config).map(|()| peer);
        match to {
            Some(peer) if !descriptor.listed(peer).is_some_and(|peer| may_lead(&peer)) => {
                Err(TransferError::NotVoter(peer))
            }
            Some(peer) => check(peer),
            None => {
                let voters = || descriptor.peers.iter().filter(|peer| may_lead(peer) && may(peer));
                let others = || voters().map(|peer| peer.id);
                let able = others().filter(|peer| check(*peer).is_ok());
                // The first of those that have as much; one that has just failed comes last.
                let rank = |peer: &PeerId| (Some(*peer) != self.failed, consensus.matched(*peer));
                let best = able.rev().max_by_key(rank);
                let lags = |peer| matches!(check(peer), Err(TransferError::Lagging(_)));
                let late = || others().find(|peer| lags(*peer)).map(TransferError::Lagging);
                best.ok_or_else(|| late().unwrap_or(TransferError::NoCandidate))
            }
        }
    }

    /// Whether a voter can take over at once.
    fn check_voter(
        &self,
        peer: PeerId,
        consensus: &Consensus,
        now: Time,
        config: &Config,
    ) -> Result<(), TransferError> {
        let fresh_ms = 2 * u64::from(config.heartbeat_ticks) * config.tick_ms;
        if !self.is_heard(peer, now, fresh_ms) {
            return Err(TransferError::Silent(peer));
        }
        let lacks_little = |matched| {
            let lacking = consensus.window().bytes_behind(matched);
            lacking.is_some_and(|bytes| bytes <= LACKING_BYTES_MAX)
        };
        let is_near =
            consensus.replicates_to(peer) && consensus.matched(peer).is_some_and(lacks_little);
        if is_near { Ok(()) } else { Err(TransferError::Lagging(peer)) }
    }

    /// A transfer begins in `term`.
    pub(crate) fn begin(
        &mut self,
        to: PeerId,
        term: Term,
        ticket: Option<Ticket>,
        now: Time,
        config: &Config,
    ) {
        assert!(self.pending.is_none(), "a transfer begins beside another one");
        // Raft counts an election timeout in ticks, and the word of the next leader may take as
        // long again.
        let expires = now.after_ms(2 * u64::from(config.election_ticks) * config.tick_ms);
        self.pending = Some(PendingTransfer { to, term, expires, ticket });
    }

    /// The transfer under way, if it is over: another replica leads, this one goes on, or nothing
    /// is known for too long.
    pub(crate) fn settle(
        &mut self,
        leader: Option<Peer>,
        consensus: &Consensus,
        now: Time,
    ) -> Option<TransferOutcome> {
        let pending = self.pending.as_ref()?;
        let is_past = consensus.term() > pending.term;
        let result = match leader {
            Some(leader) if is_past && !consensus.is_leader() => Ok(leader),
            // Raft has given it up, or this replica was elected again.
            _ if consensus.is_leader() && !consensus.is_transferring() => {
                Err(TransferError::TimedOut(pending.to))
            }
            // Raft gives it up by ticks, of which a clock that stood still makes one.
            _ if consensus.is_leader() => return None,
            _ if now >= pending.expires => Err(TransferError::TimedOut(pending.to)),
            _ => return None,
        };
        self.failed = result.is_err().then_some(pending.to);
        let ticket = self.pending.take().and_then(|pending| pending.ticket);
        Some(TransferOutcome { ticket, result })
    }

    /// Gives the ticket of a transfer up, whose fate is open.
    pub(crate) fn abandon(&mut self) -> Option<Ticket> {
        self.pending.take()?.ticket
    }

    /// Checks that raft and this side know of the same transfer, and that the term has no lease.
    pub(crate) fn check(&self, consensus: &Consensus, lease_is_void: bool) {
        let of_raft = consensus.transfers_to();
        if let Some(to) = of_raft {
            let pending = self.pending.as_ref().expect("raft hands over as it was told");
            assert_eq!((pending.to, pending.term), (to, consensus.term()), "another transfer");
            assert!(lease_is_void, "term {} has a lease beside a transfer", consensus.term());
        }
        if let Some(change) = self.change {
            assert!(change > consensus.applied_index(), "the change at {change} is applied");
            assert!(of_raft.is_none(), "a transfer to {of_raft:?} beside the change at {change}");
        }
    }
}
