//! Conversion between raft's structs and ours. Bytes are moved or shared, never copied.

use bytes::Bytes;
use raft::eraftpb;

use crate::descriptor::{Descriptor, PeerRole};
use crate::entry::{EntryKind, HardState, LogEntry};
use crate::ids::{Index, PeerId, Term};
use crate::membership_change::MembershipChange;
use crate::message::{Message, MessageKind};

pub(crate) fn entry_to_raft(entry: LogEntry) -> eraftpb::Entry {
    let entry_type = match entry.kind {
        EntryKind::Normal => eraftpb::EntryType::EntryNormal,
        EntryKind::ConfChangeV2 => eraftpb::EntryType::EntryConfChangeV2,
    };
    eraftpb::Entry {
        entry_type,
        index: entry.index.0,
        term: entry.term.0,
        data: entry.data,
        ..Default::default()
    }
}

pub(crate) fn entry_from_raft(entry: eraftpb::Entry) -> LogEntry {
    let kind = match entry.entry_type {
        eraftpb::EntryType::EntryNormal => EntryKind::Normal,
        eraftpb::EntryType::EntryConfChangeV2 => EntryKind::ConfChangeV2,
        // The message filter lets no other kind in, and no replica here proposes one.
        kind => panic!("entry {} is of kind {kind:?}", entry.index),
    };
    LogEntry { index: Index(entry.index), term: Term(entry.term), kind, data: entry.data }
}

pub(crate) fn hard_state_to_raft(state: &HardState) -> eraftpb::HardState {
    eraftpb::HardState {
        term: state.term.0,
        vote: state.vote.map_or(0, |peer| peer.0),
        commit: state.commit.0,
        ..Default::default()
    }
}

pub(crate) fn hard_state_from_raft(state: &eraftpb::HardState) -> HardState {
    HardState {
        term: Term(state.term),
        vote: Some(PeerId(state.vote)).filter(|peer| peer.0 != 0),
        commit: Index(state.commit),
    }
}

/// The members of a group, as raft has them.
pub(crate) fn conf_state(descriptor: &Descriptor) -> eraftpb::ConfState {
    let is_joint = descriptor.is_joint();
    let mut state = eraftpb::ConfState::default();
    for peer in &descriptor.peers {
        let id = peer.id.0;
        match peer.role {
            PeerRole::Voter => {
                state.voters.push(id);
                if is_joint {
                    state.voters_outgoing.push(id);
                }
            }
            PeerRole::Learner => state.learners.push(id),
            PeerRole::Incoming => state.voters.push(id),
            PeerRole::Outgoing => {
                state.voters_outgoing.push(id);
                state.learners_next.push(id);
            }
        }
    }
    state
}

/// A change of the replicas as raft has it. One that needs a joint configuration is left by another
/// change: raft would leave it by itself, but forgets that with its leader.
pub(crate) fn change_to_raft(change: &MembershipChange, context: Bytes) -> eraftpb::ConfChangeV2 {
    use eraftpb::ConfChangeType as Raft;
    let singles: Vec<(Raft, PeerId)> = match change {
        MembershipChange::Add(peer) => vec![(Raft::AddLearnerNode, peer.id)],
        MembershipChange::Vote { promoted, demoted } => {
            let promoted = promoted.iter().map(|id| (Raft::AddNode, *id));
            promoted.chain(demoted.iter().map(|id| (Raft::AddLearnerNode, *id))).collect()
        }
        MembershipChange::LeaveJoint => vec![],
        MembershipChange::Remove(id) => vec![(Raft::RemoveNode, *id)],
    };
    let mut out = eraftpb::ConfChangeV2 { context, ..Default::default() };
    if singles.len() > 1 {
        out.transition = eraftpb::ConfChangeTransition::Explicit;
    }
    for (change_type, id) in singles {
        let single = eraftpb::ConfChangeSingle { change_type, node_id: id.0, ..Default::default() };
        out.changes.push(single);
    }
    out
}

/// A snapshot as raft has it: without the rows.
pub(crate) fn snapshot_to_raft(
    index: Index,
    term: Term,
    members: eraftpb::ConfState,
) -> eraftpb::Snapshot {
    let mut snapshot = eraftpb::Snapshot::default();
    let metadata = snapshot.mut_metadata();
    (metadata.index, metadata.term) = (index.0, term.0);
    metadata.set_conf_state(members);
    snapshot
}

/// Makes raft's message. A read's context goes where raft keeps it, into an entry.
pub(crate) fn message_to_raft(from: PeerId, to: PeerId, message: Message) -> eraftpb::Message {
    let mut out = eraftpb::Message {
        msg_type: kind_to_raft(message.kind),
        from: from.0,
        to: to.0,
        term: message.term.0,
        log_term: message.log_term.0,
        index: message.index.0,
        commit: message.commit.0,
        commit_term: message.commit_term.0,
        reject: message.reject,
        reject_hint: message.reject_hint.0,
        request_snapshot: message.request_snapshot.0,
        ..Default::default()
    };
    if let Some(head) = message.snapshot {
        out.set_snapshot(snapshot_to_raft(head.index, head.term, conf_state(&head.descriptor)));
    }
    let mut entries: Vec<_> = message.entries.into_iter().map(entry_to_raft).collect();
    if is_read_index(message.kind) {
        entries = vec![eraftpb::Entry { data: message.context, ..Default::default() }];
    } else {
        out.context = message.context;
    }
    out.entries = entries.into();
    out
}

/// Makes our message of what raft wants sent. A snapshot's head is added by the caller, which knows
/// the region.
pub(crate) fn message_from_raft(mut message: eraftpb::Message) -> Message {
    let kind = kind_from_raft(message.msg_type);
    let mut entries = message.take_entries().into_vec();
    let mut context = message.take_context();
    if is_read_index(kind) {
        context = entries.pop().expect("raft sends read contexts in an entry").data;
    }
    Message {
        kind,
        term: Term(message.term),
        log_term: Term(message.log_term),
        index: Index(message.index),
        entries: entries.into_iter().map(entry_from_raft).collect(),
        commit: Index(message.commit),
        commit_term: Term(message.commit_term),
        reject: message.reject,
        reject_hint: Index(message.reject_hint),
        context,
        request_snapshot: Index(message.request_snapshot),
        snapshot: None,
    }
}

fn is_read_index(kind: MessageKind) -> bool {
    matches!(kind, MessageKind::ReadIndex | MessageKind::ReadIndexResponse)
}

fn kind_to_raft(kind: MessageKind) -> eraftpb::MessageType {
    use eraftpb::MessageType as Raft;
    match kind {
        MessageKind::Append => Raft::MsgAppend,
        MessageKind::AppendResponse => Raft::MsgAppendResponse,
        MessageKind::Snapshot => Raft::MsgSnapshot,
        MessageKind::RequestVote => Raft::MsgRequestVote,
        MessageKind::RequestVoteResponse => Raft::MsgRequestVoteResponse,
        MessageKind::Heartbeat => Raft::MsgHeartbeat,
        MessageKind::HeartbeatResponse => Raft::MsgHeartbeatResponse,
        MessageKind::TimeoutNow => Raft::MsgTimeoutNow,
        MessageKind::ReadIndex => Raft::MsgReadIndex,
        MessageKind::ReadIndexResponse => Raft::MsgReadIndexResp,
        MessageKind::RequestPreVote => Raft::MsgRequestPreVote,
        MessageKind::RequestPreVoteResponse => Raft::MsgRequestPreVoteResponse,
    }
}

/// Raft is never asked to forward a proposal, so it sends none.
fn kind_from_raft(kind: eraftpb::MessageType) -> MessageKind {
    let number = u32::try_from(kind as i32).expect("eraftpb numbers no kind below 0");
    MessageKind::from_number(number)
        .unwrap_or_else(|| panic!("raft wants to send {kind:?}, which nothing here asks for"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(kind: MessageKind) -> Message {
        let data = Bytes::from(vec![5; 100]);
        let entry = LogEntry { index: Index(8), term: Term(3), kind: EntryKind::Normal, data };
        Message {
            kind,
            term: Term(4),
            log_term: Term(2),
            index: Index(7),
            entries: if kind == MessageKind::Append { vec![entry] } else { vec![] },
            commit: Index(6),
            commit_term: Term(1),
            reject: true,
            reject_hint: Index(5),
            context: Bytes::from_static(b"context"),
            request_snapshot: Index(9),
            snapshot: None,
        }
    }

    #[test]
    fn every_kind_comes_back_from_raft_and_entries_share_their_memory() {
        for kind in (0..20).filter_map(MessageKind::from_number) {
            let there = message_to_raft(PeerId(1), PeerId(2), example(kind));
            assert_eq!((there.from, there.to, there.msg_type as u32), (1, 2, kind.number()));
            assert_eq!(message_from_raft(there), example(kind));
        }
        let message = example(MessageKind::Append);
        let data = message.entries[0].data.as_ptr();
        let there = message_to_raft(PeerId(1), PeerId(2), message);
        assert_eq!(message_from_raft(there).entries[0].data.as_ptr(), data);
    }

    #[test]
    fn hard_state_comes_back() {
        let state = HardState { term: Term(2), vote: None, commit: Index(1) };
        assert_eq!(hard_state_from_raft(&hard_state_to_raft(&state)), state);
        let state = HardState { vote: Some(PeerId(3)), ..state };
        assert_eq!(hard_state_from_raft(&hard_state_to_raft(&state)), state);
    }
}
