//! The filter for messages of other stores. Raft trusts its messages and panics on many wrong ones,
//! so a message that no sound replica sends is dropped here, and counted.

use crate::descriptor::{Descriptor, Peer};
use crate::entry::LogEntry;
use crate::ids::{Index, PeerId, Term};
use crate::message::{Envelope, Message, MessageKind};
use crate::read_index::CONTEXT_BYTES;
use crate::status::Dropped;

/// Far above every term and index that can come to be, far below where sums overflow.
pub(crate) const NUMBER_MAX: u64 = 1 << 60;

/// The greatest distance of a message's term above ours. Terms grow with elections, each of which
/// needs a quorum and an election timeout: at the shortest default that is more than a week of
/// nothing but elections, while this replica was away. Without a bound, one message with the
/// greatest possible term would end a region for good: no replica can ever be elected above it.
pub(crate) const TERM_LEAD_MAX: u64 = 1 << 20;

/// The replica's state that a message is checked against.
pub(crate) struct FilterView<'a> {
    pub(crate) descriptor: &'a Descriptor,
    pub(crate) me: Peer,
    pub(crate) term: Term,
    /// The last entry of the log; 0 if there never was one.
    pub(crate) last: Index,
    pub(crate) is_leader: bool,
    /// The leader of this term, if known.
    pub(crate) leader: Option<PeerId>,
    /// The last entry of the sender's log that a leader knows to be on disk.
    pub(crate) matched: Option<Index>,
}

/// Why a message is not given to raft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Misrouted,
    Stranger,
    /// The sender was a member, and never will be again.
    Gone,
    Malformed,
    /// The term is further above ours than one can get.
    WildTerm,
    /// The sender counts on this entry, which this replica has acknowledged and does not have.
    LostLog(Index),
    VoteWithheld,
    Stale,
    Lagging,
    /// The disk has no room for entries.
    DiskFull,
    /// The replica is damaged, and waits for a snapshot.
    Damaged,
    /// A snapshot is being installed, or waits for it.
    Installing,
    /// The replica ends.
    Ending,
}

impl Refusal {
    pub(crate) fn count(self, dropped: &mut Dropped) {
        let counter = match self {
            Self::Misrouted => &mut dropped.misrouted,
            Self::Stranger | Self::Gone => &mut dropped.strangers,
            Self::Malformed => &mut dropped.malformed,
            Self::WildTerm => &mut dropped.wild_terms,
            Self::LostLog(_) => &mut dropped.lost_logs,
            Self::VoteWithheld => &mut dropped.votes_withheld,
            Self::Stale => &mut dropped.stale,
            Self::Lagging => &mut dropped.lagging,
            Self::DiskFull => &mut dropped.disk_full,
            Self::Damaged => &mut dropped.damaged,
            Self::Installing => &mut dropped.installing,
            Self::Ending => &mut dropped.ending,
        };
        *counter += 1;
    }
}

/// Checks an envelope and its message.
pub(crate) fn filter(envelope: &Envelope, view: &FilterView<'_>) -> Result<(), Refusal> {
    // A vote or an acknowledgement that was meant for another replica must not count for this one.
    if envelope.to != view.me {
        return Err(Refusal::Misrouted);
    }
    let from = envelope.from;
    check_sender(envelope, view)?;
    let message = &envelope.message;
    if !has_valid_numbers(message) {
        return Err(Refusal::Malformed);
    }
    if is_wild_term(message.term, view) {
        return Err(Refusal::WildTerm);
    }
    filter_acknowledged(envelope, view)?;
    let is_valid = match message.kind {
        MessageKind::Append => is_valid_append(message),
        MessageKind::AppendResponse => return filter_append_response(message, view),
        MessageKind::RequestVote => {
            (message.context.is_empty() || is_forced_vote(message))
                && message.log_term <= message.term
        }
        MessageKind::RequestPreVote => {
            message.context.is_empty() && message.log_term <= message.term
        }
        // The votes that follow pass the promises that leases rest on. So it counts only from the
        // leader of this very term, which has given its lease up; raft believes every sender, and
        // would take a higher term from it.
        MessageKind::TimeoutNow if message.term != view.term || view.leader != Some(from.id) => {
            return Err(Refusal::Stale);
        }
        MessageKind::ReadIndex | MessageKind::ReadIndexResponse => {
            message.context.len() == CONTEXT_BYTES
        }
        _ => true,
    };
    if is_valid { Ok(()) } else { Err(Refusal::Malformed) }
}

/// Checks whether the sender is a member of the region, or may be one of a later configuration.
fn check_sender(envelope: &Envelope, view: &FilterView<'_>) -> Result<(), Refusal> {
    let from = envelope.from;
    if from.id == view.me.id {
        return Err(Refusal::Stranger);
    }
    match view.descriptor.peer(from.id) {
        Some(member) if member == from => Ok(()),
        Some(_) => Err(Refusal::Stranger),
        None if from.id <= view.descriptor.floor() => Err(Refusal::Gone),
        // Ids only grow: this replica has not applied the addition of the sender yet. It may be the
        // leader, or a candidate that needs this vote. Its own vote and acknowledgement must not
        // count in a configuration that it is not in.
        None if is_request(envelope.message.kind) => Ok(()),
        None => Err(Refusal::Stranger),
    }
}

/// Whether the message asks something of a follower or a voter.
fn is_request(kind: MessageKind) -> bool {
    match kind {
        MessageKind::Append
        | MessageKind::Snapshot
        | MessageKind::Heartbeat
        | MessageKind::TimeoutNow
        | MessageKind::RequestVote
        | MessageKind::RequestPreVote => true,
        MessageKind::AppendResponse
        | MessageKind::RequestVoteResponse
        | MessageKind::HeartbeatResponse
        | MessageKind::ReadIndex
        | MessageKind::ReadIndexResponse
        | MessageKind::RequestPreVoteResponse => false,
    }
}

/// Checks what can be checked of a message for a replica that knows no member of its region.
pub(crate) fn check_unknown(envelope: &Envelope) -> Result<(), Refusal> {
    let (from, to) = (envelope.from.id, envelope.to.id);
    // Raft takes id 0 for "no leader" and "no vote".
    if from == PeerId(0) || to == PeerId(0) {
        return Err(Refusal::Malformed);
    }
    if from == to {
        return Err(Refusal::Stranger);
    }
    // The vote of a leader transfer passes: it breaks a promise, and such a replica makes none.
    let is_valid = has_valid_numbers(&envelope.message) && envelope.gc_floor.0 < NUMBER_MAX;
    if is_valid { Ok(()) } else { Err(Refusal::Malformed) }
}

/// Whether this is the vote request of a replica that its leader has told to campaign. The promise
/// of a voter does not hold against it: the leader has given its lease up before
/// (R22 in `docs/many-regions.md`).
pub(crate) fn is_forced_vote(message: &Message) -> bool {
    message.kind == MessageKind::RequestVote && message.context == raft::CAMPAIGN_TRANSFER
}

fn has_valid_numbers(message: &Message) -> bool {
    let Message { term, log_term, index, commit, commit_term, reject_hint, .. } = message;
    let request = message.request_snapshot;
    let numbers = [term.0, log_term.0, index.0, commit.0, commit_term.0, reject_hint.0, request.0];
    let is_rejection = message.kind == MessageKind::AppendResponse && message.reject;
    // Term 0 marks a message of raft to itself, which skips all checks; forwarded read requests
    // have no other.
    (term.0 == 0) == (message.kind == MessageKind::ReadIndex)
        && numbers.iter().all(|number| *number < NUMBER_MAX)
        && message.context.len() <= CONTEXT_BYTES
        && (message.entries.is_empty() || message.kind == MessageKind::Append)
        && (request == Index(0) || is_rejection)
        && message.snapshot.is_some() == (message.kind == MessageKind::Snapshot)
}

/// A replica without a log may be behind by any number of terms: it believes the first that it
/// receives.
fn is_wild_term(term: Term, view: &FilterView<'_>) -> bool {
    view.last > Index(0) && term.0 > view.term.0.saturating_add(TERM_LEAD_MAX)
}

/// Looks whether the sender counts on an entry that this replica acknowledged and does not have.
///
/// A leader tells a follower of no commit beyond what that follower has acknowledged to it, in this
/// very term; within a term the follower only adds to that. So it cannot exceed the log, unless the
/// disk has lost a part of it, or is an older copy. Of earlier terms nothing is believed: such a
/// message may be as late as it likes, and changes nothing. The floor of the sender's log proves
/// nothing: it does not wait for every replica (docs/decisions/0035-log-gc-by-need.md).
///
/// A replica without a term has never acknowledged anything, as far as its disk knows, and one odd
/// message is no proof for it: it takes the term, and no commit. If its disk did lose all, the
/// leader's next heartbeat is the proof.
fn filter_acknowledged(envelope: &Envelope, view: &FilterView<'_>) -> Result<(), Refusal> {
    let message = &envelope.message;
    if envelope.gc_floor.0 >= NUMBER_MAX {
        return Err(Refusal::Malformed);
    }
    let counted_on = match message.kind {
        MessageKind::Heartbeat if message.term >= view.term => message.commit,
        _ => Index(0),
    };
    if counted_on <= view.last || view.term == Term(0) {
        return Ok(());
    }
    Err(Refusal::LostLog(counted_on))
}

fn is_valid_append(message: &Message) -> bool {
    let mut index = message.index;
    let mut term = message.log_term;
    // Raft has "term 0" for entries that it does not have: only the one before the first has it.
    if (index.0 == 0) != (term.0 == 0) || term > message.term {
        return false;
    }
    message.entries.iter().all(|entry| {
        let follows = entry.index.0 == index.0 + 1 && entry.term >= term && entry.term.0 > 0;
        (index, term) = (entry.index, entry.term);
        follows && has_valid_term(entry, message.term)
    })
}

// Raft does not look: with an entry of a later term than its leader's, this log would count as
// newer than that of every sound candidate.
fn has_valid_term(entry: &LogEntry, leader_term: Term) -> bool {
    entry.term <= leader_term && entry.index.0 < NUMBER_MAX
}

fn filter_append_response(message: &Message, view: &FilterView<'_>) -> Result<(), Refusal> {
    if !view.is_leader || message.term != view.term {
        // Raft checks the term only.
        return Ok(());
    }
    if message.index > view.last || (message.reject && message.reject_hint > message.index) {
        return Err(Refusal::Malformed);
    }
    // A rejection of what the follower has acknowledged since was overtaken by that. Raft 0.7 would
    // go back below it, maybe to entries that are compacted. A replica without data has
    // acknowledged nothing, and rejects at index 0.
    let is_overtaken = |matched: Index| {
        message.index < matched
            || (message.index == matched && message.request_snapshot == Index(0))
    };
    if message.reject && view.matched.is_some_and(is_overtaken) {
        return Err(Refusal::Stale);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::descriptor::RemovedPeers;
    use crate::descriptor::{Epoch, Space};
    use crate::entry::EntryKind;
    use crate::ids::{RegionId, StoreId};
    use crate::message::SnapshotHead;

    fn member(id: u64) -> Peer {
        Peer { id: PeerId(id), store: StoreId(id) }
    }

    fn region() -> Descriptor {
        Descriptor {
            removed: RemovedPeers::default(),
            id: RegionId(1),
            space: Space::Raw,
            start: Bytes::new(),
            end: Bytes::new(),
            epoch: Epoch::default(),
            peers: vec![member(1).into(), member(2).into(), member(3).into()],
        }
    }

    fn entry(index: u64, term: u64) -> LogEntry {
        let data = Bytes::new();
        LogEntry { index: Index(index), term: Term(term), kind: EntryKind::Normal, data }
    }

    /// A sound message of the kind, for a replica in term 5 whose log ends with entry 10.
    fn sound(kind: MessageKind) -> Envelope {
        let message = Message {
            kind,
            term: Term(u64::from(kind != MessageKind::ReadIndex) * 5),
            log_term: Term(3),
            index: Index(8),
            entries: match kind {
                MessageKind::Append => vec![entry(9, 3), entry(10, 5)],
                _ => vec![],
            },
            commit: Index(7),
            context: match kind {
                MessageKind::ReadIndex | MessageKind::ReadIndexResponse => vec![1; CONTEXT_BYTES],
                _ => vec![],
            }
            .into(),
            snapshot: (kind == MessageKind::Snapshot).then(|| {
                let (index, term) = (Index(8), Term(3));
                Box::new(SnapshotHead { index, term, descriptor: region() })
            }),
            ..Message::default()
        };
        Envelope {
            region: RegionId(1),
            from: member(2),
            to: member(1),
            epoch: Epoch::default(),
            gc_floor: Index(6),
            range: None,
            message,
        }
    }

    fn filtered(kind: MessageKind, spoil: impl FnOnce(&mut Envelope)) -> Result<(), Refusal> {
        filtered_by(kind, spoil, |_| {})
    }

    fn filtered_by(
        kind: MessageKind,
        spoil: impl FnOnce(&mut Envelope),
        change: impl FnOnce(&mut FilterView<'_>),
    ) -> Result<(), Refusal> {
        let descriptor = region();
        let mut view = FilterView {
            descriptor: &descriptor,
            me: member(1),
            term: Term(5),
            last: Index(10),
            is_leader: true,
            leader: Some(PeerId(2)),
            matched: Some(Index(7)),
        };
        change(&mut view);
        let mut envelope = sound(kind);
        spoil(&mut envelope);
        filter(&envelope, &view)
    }

    fn all_kinds() -> impl Iterator<Item = MessageKind> {
        (0..20).filter_map(MessageKind::from_number)
    }

    #[test]
    fn sound_messages_pass() {
        for kind in all_kinds() {
            assert_eq!(filtered(kind, |_| {}), Ok(()), "{kind:?}");
        }
    }

    #[test]
    fn every_kind_is_checked_for_its_ends_and_numbers() {
        for kind in all_kinds() {
            let expect = |refusal, spoil: fn(&mut Envelope)| {
                assert_eq!(filtered(kind, spoil), Err(refusal), "{kind:?}");
            };
            expect(Refusal::Misrouted, |e| e.to = member(3));
            expect(Refusal::Misrouted, |e| e.to.store = StoreId(9));
            expect(Refusal::Stranger, |e| e.from.store = StoreId(9));
            expect(Refusal::Stranger, |e| e.from = member(1));
            expect(Refusal::Malformed, |e| e.gc_floor = Index(u64::MAX));
            expect(Refusal::Malformed, |e| e.message.index = Index(u64::MAX));
            expect(Refusal::Malformed, |e| e.message.commit = Index(1 << 60));
            expect(Refusal::Malformed, |e| e.message.log_term = Term(u64::MAX));
            expect(Refusal::Malformed, |e| e.message.context = vec![1; 25].into());
            expect(Refusal::Malformed, |e| {
                e.message.term = Term(5 * u64::from(e.message.kind == MessageKind::ReadIndex));
            });
            if kind != MessageKind::Append {
                expect(Refusal::Malformed, |e| e.message.entries = vec![entry(9, 3)]);
            }
            expect(Refusal::Malformed, |e| e.message.request_snapshot = Index(1));
            expect(Refusal::Malformed, |e| {
                let head = SnapshotHead { index: Index(8), term: Term(3), descriptor: region() };
                let other = if e.message.snapshot.is_some() { None } else { Some(head.into()) };
                e.message.snapshot = other;
            });
        }
    }

    #[test]
    fn requests_of_a_later_configuration_are_taken_and_answers_are_not() {
        for kind in all_kinds() {
            let by = |from: u64, floor: u64| {
                let mut descriptor = region();
                descriptor.set_floor(PeerId(floor));
                let mut envelope = sound(kind);
                envelope.from = member(from);
                let view = FilterView {
                    descriptor: &descriptor,
                    me: member(1),
                    term: Term(5),
                    last: Index(10),
                    is_leader: false,
                    leader: Some(PeerId(from)),
                    matched: None,
                };
                filter(&envelope, &view)
            };
            assert_eq!(by(2, 9), Ok(()), "{kind:?} of a member");
            assert_eq!(by(9, 9), Err(Refusal::Gone), "{kind:?} of a former member");
            assert_eq!(by(0, 3), Err(Refusal::Gone), "{kind:?} of none");
            let is_request = !matches!(
                kind,
                MessageKind::AppendResponse
                    | MessageKind::HeartbeatResponse
                    | MessageKind::RequestVoteResponse
                    | MessageKind::RequestPreVoteResponse
                    | MessageKind::ReadIndex
                    | MessageKind::ReadIndexResponse
            );
            let expected = if is_request { Ok(()) } else { Err(Refusal::Stranger) };
            assert_eq!(by(9, 8), expected, "{kind:?} of a later member");
        }
    }

    #[test]
    fn an_append_is_a_piece_of_a_log() {
        let malformed = |spoil: fn(&mut Message)| {
            let screened = filtered(MessageKind::Append, |e| spoil(&mut e.message));
            assert_eq!(screened, Err(Refusal::Malformed));
        };
        malformed(|m| m.entries[0].index = Index(10));
        malformed(|m| m.entries[1].index = Index(11));
        malformed(|m| m.entries[0].term = Term(2));
        malformed(|m| m.entries[0].term = Term(6));
        malformed(|m| m.log_term = Term(0));
        malformed(|m| m.log_term = Term(6));
        malformed(|m| m.index = Index(0));
    }

    #[test]
    fn an_answer_speaks_of_what_was_sent_and_is_not_overtaken() {
        let answer = |spoil: fn(&mut Message)| {
            filtered(MessageKind::AppendResponse, |e| spoil(&mut e.message))
        };
        assert_eq!(answer(|m| m.index = Index(11)), Err(Refusal::Malformed));
        let reject = |index, hint| {
            filtered(MessageKind::AppendResponse, |e| {
                e.message.reject = true;
                e.message.index = Index(index);
                e.message.reject_hint = Index(hint);
            })
        };
        assert_eq!(reject(8, 9), Err(Refusal::Malformed));
        assert_eq!(reject(7, 2), Err(Refusal::Stale));
        assert_eq!(reject(8, 2), Ok(()));
        // A replica without data has acknowledged nothing, and asks for a snapshot at index 0.
        let ask = |matched| {
            let spoil = |e: &mut Envelope| {
                (e.message.reject, e.message.request_snapshot) = (true, Index(1));
                e.message.index = Index(0);
            };
            let view = |view: &mut FilterView<'_>| view.matched = Some(Index(matched));
            filtered_by(MessageKind::AppendResponse, spoil, view)
        };
        assert_eq!(ask(0), Ok(()));
        assert_eq!(ask(1), Err(Refusal::Stale), "of the time before its data");
    }

    #[test]
    fn only_votes_may_be_forced_and_only_by_the_exact_word() {
        let voted = |kind, word: &'static [u8]| {
            filtered(kind, |e| e.message.context = Bytes::from_static(word))
        };
        let forced: &[u8] = raft::CAMPAIGN_TRANSFER;
        assert_eq!(voted(MessageKind::RequestVote, forced), Ok(()));
        assert_eq!(voted(MessageKind::RequestPreVote, forced), Err(Refusal::Malformed));
        for word in [&b"\x01"[..], b"CampaignElection", b"CampaignTransfer1", b"CampaignTransfe"] {
            for kind in [MessageKind::RequestVote, MessageKind::RequestPreVote] {
                assert_eq!(voted(kind, word), Err(Refusal::Malformed), "{word:?}");
            }
        }
    }

    #[test]
    fn only_the_leader_of_this_term_may_call_for_an_election() {
        let called = |term, leader: Option<u64>| {
            let by = |view: &mut FilterView<'_>| view.leader = leader.map(PeerId);
            filtered_by(MessageKind::TimeoutNow, |e| e.message.term = Term(term), by)
        };
        assert_eq!(called(5, Some(2)), Ok(()));
        for (term, leader) in [(4, Some(2)), (6, Some(2)), (5, Some(3)), (5, None)] {
            assert_eq!(called(term, leader), Err(Refusal::Stale), "term {term}, leader {leader:?}");
        }
    }

    #[test]
    fn unnamed_reads_are_refused() {
        for kind in [MessageKind::ReadIndex, MessageKind::ReadIndexResponse] {
            let unnamed = filtered(kind, |e| e.message.context = Bytes::new());
            assert_eq!(unnamed, Err(Refusal::Malformed));
        }
    }

    #[test]
    fn a_term_is_believed_within_bounds_by_those_who_have_a_log() {
        for kind in all_kinds().filter(|kind| *kind != MessageKind::ReadIndex) {
            let with_term = |term| filtered(kind, |e| e.message.term = Term(term));
            // Of another term than ours no leader is known.
            let within = match kind {
                MessageKind::TimeoutNow => Err(Refusal::Stale),
                _ => Ok(()),
            };
            assert_eq!(with_term(5 + TERM_LEAD_MAX), within, "{kind:?}");
            assert_eq!(with_term(6 + TERM_LEAD_MAX), Err(Refusal::WildTerm), "{kind:?}");
            assert_eq!(with_term((1 << 60) - 1), Err(Refusal::WildTerm), "{kind:?}");
            let empty = |e: &mut Envelope| {
                e.message.term = Term((1 << 60) - 1);
                e.gc_floor = Index(0);
                e.message.commit = Index(0);
            };
            let believed = filtered_by(kind, empty, |view| view.last = Index(0));
            assert_ne!(believed, Err(Refusal::WildTerm), "{kind:?}");
        }
    }

    #[test]
    fn a_leader_that_counts_on_what_is_not_there_proves_a_loss() {
        let beyond = |e: &mut Envelope| e.message.commit = Index(11);
        let heartbeat = MessageKind::Heartbeat;
        assert_eq!(filtered(heartbeat, beyond), Err(Refusal::LostLog(Index(11))));
        let later = |e: &mut Envelope| {
            beyond(e);
            e.message.term = Term(6);
        };
        assert_eq!(filtered(heartbeat, later), Err(Refusal::LostLog(Index(11))));
        let earlier = |e: &mut Envelope| {
            beyond(e);
            e.message.term = Term(4);
        };
        assert_eq!(filtered(heartbeat, earlier), Ok(()), "it may be late, and raft ignores it");
        // A leader's log may begin behind the end of one that it does not wait for.
        let floor = |e: &mut Envelope| e.gc_floor = Index(12);
        assert_eq!(filtered(MessageKind::Append, floor), Ok(()));
        assert_eq!(filtered(heartbeat, floor), Ok(()));
        // Commits of other kinds are bounded by raft itself.
        assert_eq!(filtered(MessageKind::Append, beyond), Ok(()));
        let blank = filtered_by(heartbeat, beyond, |view| {
            (view.last, view.term) = (Index(0), Term(0));
        });
        assert_eq!(blank, Ok(()), "it has never acknowledged anything");
    }
}
