//! What may come in from other stores. Raft trusts its messages and panics on many wrong ones; so
//! whatever a sound replica would never send is stopped here, and counted.

use crate::descriptor::{Descriptor, Peer};
use crate::entry::LogEntry;
use crate::ids::{Index, Term};
use crate::message::{Envelope, Message, MessageKind};
use crate::reads::CONTEXT_BYTES;
use crate::status::Dropped;

/// Far above every term and index that can come to be, far below where sums overflow.
const NUMBER_MAX: u64 = 1 << 60;

/// What a message is checked against.
pub(crate) struct View<'a> {
    pub(crate) descriptor: &'a Descriptor,
    pub(crate) me: Peer,
    pub(crate) term: Term,
    pub(crate) last: Index,
    pub(crate) is_leader: bool,
    /// What a leader knows of the sender's log.
    pub(crate) matched: Option<Index>,
}

/// Why a message is not given to raft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Misrouted,
    Stranger,
    Malformed,
    VoteWithheld,
    Stale,
    Lagging,
}

impl Refusal {
    pub(crate) fn count(self, dropped: &mut Dropped) {
        let counter = match self {
            Self::Misrouted => &mut dropped.misrouted,
            Self::Stranger => &mut dropped.strangers,
            Self::Malformed => &mut dropped.malformed,
            Self::VoteWithheld => &mut dropped.votes_withheld,
            Self::Stale => &mut dropped.stale,
            Self::Lagging => &mut dropped.lagging,
        };
        *counter += 1;
    }
}

/// Checks an envelope and its message.
pub(crate) fn screen(envelope: &Envelope, view: &View<'_>) -> Result<(), Refusal> {
    if envelope.to != view.me {
        return Err(Refusal::Misrouted);
    }
    let from = envelope.from;
    if from.id == view.me.id || view.descriptor.peer(from.id) != Some(from) {
        return Err(Refusal::Stranger);
    }
    // The floor is not above what this replica has acknowledged.
    let message = &envelope.message;
    if !has_sane_numbers(message) || envelope.gc_floor > view.last {
        return Err(Refusal::Malformed);
    }
    let is_sound = match message.kind {
        MessageKind::Append => is_sound_append(message),
        // A leader never tells a follower of a commit that it has not acknowledged. Raft panics on
        // it: so shows a disk that lost what it had promised to keep.
        MessageKind::Heartbeat => message.term < view.term || message.commit <= view.last,
        MessageKind::AppendResponse => return screen_append_response(message, view),
        // The context of a leader transfer would break the promise that leases rest on.
        MessageKind::RequestVote | MessageKind::RequestPreVote => message.context.is_empty(),
        MessageKind::ReadIndex | MessageKind::ReadIndexResponse => {
            message.context.len() == CONTEXT_BYTES
        }
        _ => true,
    };
    if is_sound { Ok(()) } else { Err(Refusal::Malformed) }
}

fn has_sane_numbers(message: &Message) -> bool {
    let Message { term, log_term, index, commit, commit_term, reject_hint, .. } = message;
    let numbers = [term.0, log_term.0, index.0, commit.0, commit_term.0, reject_hint.0];
    // Term 0 marks a message of raft to itself, which skips all checks; forwarded read requests
    // have no other.
    (term.0 == 0) == (message.kind == MessageKind::ReadIndex)
        && numbers.iter().all(|number| *number < NUMBER_MAX)
        && message.context.len() <= CONTEXT_BYTES
        && (message.entries.is_empty() || message.kind == MessageKind::Append)
}

fn is_sound_append(message: &Message) -> bool {
    let mut index = message.index;
    let mut term = message.log_term;
    // Raft says "term 0" of entries that it does not have: only the one before the first has it.
    if (index.0 == 0) != (term.0 == 0) || term > message.term {
        return false;
    }
    message.entries.iter().all(|entry| {
        let follows = entry.index.0 == index.0 + 1 && entry.term >= term && entry.term.0 > 0;
        (index, term) = (entry.index, entry.term);
        follows && has_sane_term(entry, message.term)
    })
}

fn has_sane_term(entry: &LogEntry, leader_term: Term) -> bool {
    entry.term <= leader_term && entry.index.0 < NUMBER_MAX
}

fn screen_append_response(message: &Message, view: &View<'_>) -> Result<(), Refusal> {
    if !view.is_leader || message.term != view.term {
        // Raft looks at the term only.
        return Ok(());
    }
    if message.index > view.last || (message.reject && message.reject_hint > message.index) {
        return Err(Refusal::Malformed);
    }
    // A rejection of what the follower has acknowledged since was overtaken by that. Raft 0.7 would
    // go back below it, maybe to entries that are compacted.
    if message.reject && view.matched.is_some_and(|matched| message.index <= matched) {
        return Err(Refusal::Stale);
    }
    Ok(())
}
