//! Facts of the raft library that rules of ours rest on. Each test names the rule; if a new version
//! of the library breaks one, the rule has to be looked at before the version is taken.

use raft::eraftpb::{
    ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2, Entry, EntryType,
    Message, MessageType, Snapshot,
};
use raft::storage::MemStorage;
use raft::{Error, ProgressState, RawNode, Ready, SnapshotStatus, StateRole, Storage};

/// Ticks of ten minutes, at 50 ms each.
const TEN_MINUTES: usize = 12_000;

/// A node on a log in memory that is always on disk.
struct LibraryNode {
    raw: RawNode<MemStorage>,
    log: MemStorage,
    /// Configuration changes to come, in the order of the log: entries have them encoded.
    changes: Vec<ConfChangeV2>,
    /// Kind, index and data's length of the entries that were applied.
    applied: Vec<(EntryType, u64, usize)>,
}

impl LibraryNode {
    fn new(id: u64, voters: &[u64]) -> Self {
        let log = MemStorage::new_with_conf_state((voters.to_vec(), vec![]));
        let config = raft::Config {
            id,
            election_tick: 12,
            heartbeat_tick: 2,
            check_quorum: true,
            pre_vote: true,
            max_size_per_msg: 512 << 10,
            max_inflight_msgs: 64,
            ..Default::default()
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let raw = RawNode::new(&config, log.clone(), &logger).expect("a sound configuration");
        Self { raw, log, changes: Vec::new(), applied: Vec::new() }
    }

    /// The leader of a group of one, with a few entries.
    fn leader_of_one() -> Self {
        let mut node = Self::new(1, &[1]);
        node.raw.campaign().expect("a voter");
        node.pump();
        for _ in 0..5 {
            node.raw.propose(vec![], vec![7]).expect("it leads");
            node.pump();
        }
        node
    }

    /// The leader of three, by the vote of 2; 3 is never heard of.
    fn leader_of_three() -> Self {
        let mut node = Self::new(1, &[1, 2, 3]);
        node.raw.campaign().expect("a voter");
        for kind in [MessageType::MsgRequestPreVoteResponse, MessageType::MsgRequestVoteResponse] {
            node.pump();
            let term =
                node.raw.raft.term + u64::from(kind == MessageType::MsgRequestPreVoteResponse);
            node.step(Message { term, ..message(kind, 2) });
        }
        assert_eq!(node.raw.raft.state, StateRole::Leader);
        node
    }

    /// A message of this term.
    fn hear(&mut self, message: Message) -> Vec<Message> {
        self.step(Message { term: self.raw.raft.term, ..message })
    }

    fn step(&mut self, message: Message) -> Vec<Message> {
        self.raw.step(message).expect("raft takes it");
        self.pump()
    }

    fn change(&mut self, changes: &[(ConfChangeType, u64)]) -> Vec<Message> {
        let change = conf_change(changes);
        self.raw.propose_conf_change(vec![], change.clone()).expect("it leads");
        self.changes.push(change);
        self.pump()
    }

    fn ticks(&mut self, count: usize) -> Vec<Message> {
        let tick = |_| {
            self.raw.tick();
            self.pump()
        };
        (0..count).flat_map(tick).collect()
    }

    /// Carries out all that raft wants, and returns the messages.
    fn pump(&mut self) -> Vec<Message> {
        let mut messages = Vec::new();
        while self.raw.has_ready() {
            let mut ready = self.raw.ready();
            self.write(&ready);
            messages.extend(ready.take_messages());
            messages.extend(ready.take_persisted_messages());
            let mut committed = ready.take_committed_entries();
            let mut light = self.raw.advance_append(ready);
            messages.extend(light.take_messages());
            committed.extend(light.take_committed_entries());
            if let Some(commit) = light.commit_index() {
                self.log.wl().mut_hard_state().commit = commit;
            }
            self.apply(&committed);
        }
        messages
    }

    fn write(&self, ready: &Ready) {
        let mut log = self.log.wl();
        if !ready.snapshot().is_empty() {
            log.apply_snapshot(ready.snapshot().clone()).expect("it is newer");
        }
        log.append(ready.entries()).expect("entries that connect");
        if let Some(state) = ready.hs() {
            log.set_hardstate(state.clone());
        }
    }

    fn apply(&mut self, entries: &[Entry]) {
        for entry in entries {
            self.applied.push((entry.get_entry_type(), entry.index, entry.data.len()));
            if entry.get_entry_type() == EntryType::EntryConfChangeV2 {
                let change = self.changes.remove(0);
                let state = self.raw.apply_conf_change(&change).expect("it was checked");
                self.log.wl().set_conf_state(state);
            }
        }
        if let Some(last) = entries.last() {
            self.raw.advance_apply_to(last.index);
        }
    }

    fn progress_state(&self, id: u64) -> ProgressState {
        self.raw.raft.prs().get(id).expect("a member").state
    }
}

fn conf_change(changes: &[(ConfChangeType, u64)]) -> ConfChangeV2 {
    let mut change = ConfChangeV2::default();
    for &(kind, id) in changes {
        let mut single = ConfChangeSingle::default();
        single.set_change_type(kind);
        single.node_id = id;
        change.mut_changes().push(single);
    }
    change
}

fn message(kind: MessageType, from: u64) -> Message {
    Message { msg_type: kind, from, to: 1, ..Default::default() }
}

/// The rejection at index 0 that asks for a snapshot, as a replica without data sends it.
fn asks_for_snapshot(from: u64) -> Message {
    let rejection = message(MessageType::MsgAppendResponse, from);
    Message { reject: true, request_snapshot: 1, ..rejection }
}

/// How many messages of a kind go to a replica.
fn count(messages: &[Message], kind: MessageType, to: u64) -> usize {
    messages.iter().filter(|sent| sent.to == to && sent.get_msg_type() == kind).count()
}

/// Appends and snapshots, that is all that brings a log on.
fn data(messages: &[Message], to: u64) -> (usize, usize) {
    (count(messages, MessageType::MsgAppend, to), count(messages, MessageType::MsgSnapshot, to))
}

const LEARNER: ConfChangeType = ConfChangeType::AddLearnerNode;
const VOTER: ConfChangeType = ConfChangeType::AddNode;
const REMOVED: ConfChangeType = ConfChangeType::RemoveNode;

/// Rule: a replica without data answers heartbeats, for an append to it may be lost.
#[test]
fn only_a_heartbeat_answer_resumes_a_progress_whose_append_was_lost() {
    let mut leader = LibraryNode::leader_of_one();
    assert_eq!(data(&leader.change(&[(LEARNER, 2)]), 2), (1, 0));
    // The append is lost. As long as 2 says nothing, it gets heartbeats only, whatever is proposed.
    let messages = leader.ticks(TEN_MINUTES);
    assert_eq!(data(&messages, 2), (0, 0));
    assert!(count(&messages, MessageType::MsgHeartbeat, 2) > 5_000);
    leader.raw.propose(vec![], vec![7]).expect("it leads");
    assert_eq!(data(&leader.pump(), 2), (0, 0));
    // An answer without context is enough, and counts for no read round.
    let messages = leader.hear(message(MessageType::MsgHeartbeatResponse, 2));
    assert_eq!(data(&messages, 2), (1, 0));
}

/// Rule: a replica without data rejects appends at index 0 and asks for a snapshot. Without the
/// request a log that was never compacted is sent from entry 1, which lacks the first rows.
#[test]
fn a_rejection_may_ask_for_a_snapshot_though_the_log_is_whole() {
    let mut leader = LibraryNode::leader_of_one();
    leader.change(&[(LEARNER, 2)]);
    let plain = Message { request_snapshot: 0, ..asks_for_snapshot(2) };
    let index = leader.raw.raft.prs().get(2).expect("a member").next_idx - 1;
    let messages = leader.hear(Message { index, ..plain });
    assert_eq!(data(&messages, 2), (1, 0));
    let sent = messages.iter().find(|sent| sent.to == 2).expect("an append");
    assert_eq!((sent.index, sent.entries[0].index), (0, 1));
    let messages = leader.hear(asks_for_snapshot(2));
    assert_eq!(data(&messages, 2), (0, 1));
    assert_eq!(leader.progress_state(2), ProgressState::Snapshot);
}

/// Rule: the sender reports the outcome of each snapshot. Until it does, the follower stays paused,
/// and heartbeat answers change nothing; after a failure they are needed as well.
#[test]
fn a_snapshot_without_a_report_pauses_its_follower_for_good() {
    let mut leader = LibraryNode::leader_of_one();
    leader.change(&[(LEARNER, 2)]);
    leader.hear(asks_for_snapshot(2));
    let messages = leader.ticks(TEN_MINUTES);
    assert_eq!(data(&messages, 2), (0, 0));
    let messages = leader.hear(message(MessageType::MsgHeartbeatResponse, 2));
    assert_eq!(data(&messages, 2), (0, 0));

    leader.raw.report_snapshot(2, SnapshotStatus::Failure);
    assert_eq!(leader.progress_state(2), ProgressState::Probe);
    assert_eq!(data(&leader.ticks(TEN_MINUTES), 2), (0, 0));
    // The request is forgotten with the failure: 2 is probed, and has to ask again.
    let messages = leader.hear(message(MessageType::MsgHeartbeatResponse, 2));
    assert_eq!(data(&messages, 2), (1, 0));
    assert_eq!(data(&leader.hear(asks_for_snapshot(2)), 2), (0, 1));
}

/// Rule: before an acknowledgement at or above the pending index is stepped, the replica itself
/// reports that the snapshot is finished.
#[test]
fn an_acknowledgement_before_the_report_causes_a_second_snapshot() {
    for reported_first in [false, true] {
        let mut leader = LibraryNode::leader_of_one();
        leader.change(&[(LEARNER, 2)]);
        let messages = leader.hear(asks_for_snapshot(2));
        let is_snapshot = |sent: &&Message| sent.get_msg_type() == MessageType::MsgSnapshot;
        let sent = messages.iter().find(is_snapshot).expect("it asked");
        let index = sent.get_snapshot().get_metadata().index;
        if reported_first {
            leader.raw.report_snapshot(2, SnapshotStatus::Finish);
        }
        let acknowledgement = Message { index, ..message(MessageType::MsgAppendResponse, 2) };
        let messages = leader.hear(acknowledgement);
        let (_, snapshots) = data(&messages, 2);
        assert_eq!(snapshots, usize::from(!reported_first));
        let is_replicating = leader.progress_state(2) == ProgressState::Replicate;
        assert_eq!(is_replicating, reported_first);
    }
}

/// Rule: snapshots go only to replicas that answer, so one without data answers heartbeats.
#[test]
fn no_snapshot_goes_to_a_follower_that_was_not_heard() {
    let mut leader = LibraryNode::leader_of_one();
    leader.change(&[(LEARNER, 2)]);
    leader.log.wl().compact(6).expect("there are as many");
    // Not heard since it is a member; `next_idx` is below the log's begin after a rejection only,
    // so the state is set as it would be then.
    let progress = leader.raw.raft.mut_prs().get_mut(2).expect("a member");
    (progress.next_idx, progress.paused, progress.recent_active) = (1, false, false);
    leader.raw.raft.send_append(2);
    assert_eq!(data(&leader.pump(), 2), (0, 0));
    let messages = leader.hear(message(MessageType::MsgHeartbeatResponse, 2));
    assert_eq!(data(&messages, 2), (0, 1));
}

/// Rule: a replica without data answers heartbeats and appends while the snapshot is on its way:
/// with a third replica dead its leader would step down.
#[test]
fn a_leader_steps_down_if_it_hears_nothing_from_a_quorum() {
    let mut leader = LibraryNode::leader_of_three();
    leader.ticks(30);
    assert_ne!(leader.raw.raft.state, StateRole::Leader);
    let mut leader = LibraryNode::leader_of_three();
    for _ in 0..100 {
        leader.ticks(4);
        leader.hear(message(MessageType::MsgHeartbeatResponse, 2));
    }
    assert_eq!(leader.raw.raft.state, StateRole::Leader);
}

/// Rule: proposals wait while a transfer is under way; raft refuses them.
#[test]
fn proposals_are_refused_during_a_transfer() {
    let mut leader = LibraryNode::leader_of_three();
    leader.raw.transfer_leader(2);
    assert_eq!(leader.raw.raft.lead_transferee, Some(2));
    let refused = leader.raw.propose(vec![], vec![7]);
    assert!(matches!(refused, Err(Error::ProposalDropped)));
    let change = leader.raw.propose_conf_change(vec![], conf_change(&[(LEARNER, 4)]));
    assert!(matches!(change, Err(Error::ProposalDropped)));
    // It gives the transfer up after an election timeout.
    for _ in 0..4 {
        leader.ticks(4);
        leader.hear(message(MessageType::MsgHeartbeatResponse, 2));
    }
    assert_eq!(leader.raw.raft.state, StateRole::Leader);
    assert_eq!(leader.raw.raft.lead_transferee, None);
    leader.raw.propose(vec![], vec![7]).expect("it leads again");
}

/// Rule: after proposing a change we look at what was appended. Raft takes a change that it does
/// not want, and appends an empty entry in its place, without an error.
#[test]
fn an_unwanted_change_becomes_an_empty_entry() {
    let mut leader = LibraryNode::leader_of_three();
    let second = |leader: &mut LibraryNode| {
        let change = conf_change(&[(LEARNER, 5)]);
        leader.raw.propose_conf_change(vec![], change).expect("no error");
        leader.pump();
        let last = leader.log.last_index().expect("it is in memory");
        let context = raft::GetEntriesContext::empty(false);
        let entries = leader.log.entries(last, last + 1, None, context).expect("it was appended");
        (entries[0].get_entry_type(), entries[0].data.len())
    };
    // The first one waits to be committed; so the second one is not wanted.
    let change = conf_change(&[(LEARNER, 4)]);
    leader.raw.propose_conf_change(vec![], change).expect("no error");
    leader.pump();
    assert_eq!(second(&mut leader), (EntryType::EntryNormal, 0));

    // An end of no joint configuration.
    let mut leader = LibraryNode::leader_of_one();
    let empty = Some((EntryType::EntryNormal, 0));
    leader.change(&[(LEARNER, 2)]);
    leader.raw.propose_conf_change(vec![], ConfChangeV2::default()).expect("no error");
    leader.pump();
    assert_eq!(leader.applied.last().map(|(kind, _, len)| (*kind, *len)), empty);
    // Anything but the end in a joint one.
    let mut enter = conf_change(&[(VOTER, 2)]);
    enter.set_transition(ConfChangeTransition::Explicit);
    leader.raw.propose_conf_change(vec![], enter.clone()).expect("it leads");
    leader.changes.push(enter);
    leader.pump();
    let outgoing = &leader.raw.raft.prs().conf().to_conf_state().voters_outgoing;
    assert_eq!(outgoing, &[1]);
    assert_eq!(second(&mut leader), (EntryType::EntryNormal, 0));
}

/// An entry that holds a change, as it comes in an append.
fn encoded(change: &[(ConfChangeType, u64)], index: u64) -> (Entry, ConfChangeV2) {
    let change = conf_change(change);
    let mut leader = LibraryNode::leader_of_three();
    leader.raw.propose_conf_change(vec![], change.clone()).expect("it leads");
    leader.pump();
    let last = leader.log.last_index().expect("it is in memory");
    let context = raft::GetEntriesContext::empty(false);
    let mut entries = leader.log.entries(last, last + 1, None, context).expect("it was appended");
    let entry = entries.remove(0);
    assert_eq!(entry.get_entry_type(), EntryType::EntryConfChangeV2);
    (Entry { index, term: 2, ..entry }, change)
}

/// An append of term 2 with an empty entry and a change, both committed.
fn committed_change() -> (Message, ConfChangeV2) {
    let (entry, change) = encoded(&[(LEARNER, 4)], 2);
    let empty = Entry { index: 1, term: 2, ..Default::default() };
    let append = message(MessageType::MsgAppend, 2);
    let entries = vec![empty, entry].into();
    (Message { to: 1, term: 2, commit: 2, entries, ..append }, change)
}

fn snapshot_at(index: u64, voters: &[u64]) -> Message {
    let mut snapshot = Snapshot::default();
    snapshot.mut_metadata().index = index;
    snapshot.mut_metadata().term = 2;
    snapshot.mut_metadata().mut_conf_state().voters = voters.to_vec();
    let mut sent = Message { term: 2, ..message(MessageType::MsgSnapshot, 2) };
    sent.set_snapshot(snapshot);
    sent
}

/// A follower that has an unapplied change, and takes a snapshot whose rows it does not have yet.
fn installing() -> (LibraryNode, ConfChangeV2) {
    let mut node = LibraryNode::new(1, &[1, 2, 3]);
    let (append, change) = committed_change();
    node.raw.step(append).expect("raft takes it");
    let ready = node.raw.ready();
    node.write(&ready);
    let mut light = node.raw.advance_append(ready);
    assert_eq!(light.take_committed_entries().len(), 2);
    node.raw.step(snapshot_at(20, &[1, 2, 5])).expect("raft takes it");
    let ready = node.raw.ready();
    assert_eq!(ready.snapshot().get_metadata().index, 20);
    node.log.wl().apply_snapshot(ready.snapshot().clone()).expect("it is newer");
    node.raw.advance_append_async(ready);
    (node, change)
}

/// R15: from taking a snapshot until the log is reset a replica writes no hard state. Raft raises
/// its commit index when it takes the snapshot: a vote written then would have a commit beyond the
/// log.
#[test]
fn a_snapshot_raises_the_commit_index_when_it_is_taken() {
    let (node, _) = installing();
    assert_eq!(node.raw.raft.hard_state().commit, 20);
    assert_eq!(node.raw.raft.raft_log.persisted, 2);
}

/// R15: raft takes a snapshot only when all that was handed out is applied. A change that is heard
/// later would be applied to the configuration of the snapshot.
#[test]
fn a_change_heard_behind_a_snapshot_hits_its_configuration() {
    let (mut node, change) = installing();
    let state = node.raw.apply_conf_change(&change).expect("raft takes it");
    assert_eq!(state.learners, [4]);
    assert!(state.voters.contains(&5));
}

/// R15: a replica that installs does not tick, and takes no `TimeoutNow`: a campaign reads the
/// entries above the applied one, which are gone.
#[test]
#[should_panic(expected = "unexpected error getting unapplied entries")]
fn a_campaign_while_installing_panics() {
    let (mut node, _) = installing();
    let _ = node.raw.campaign();
}

/// R15: nothing else of the replica is under way when a snapshot is taken. A ready that is reported
/// as on disk stands for all before it.
#[test]
fn a_persisted_ready_stands_for_all_before_it() {
    let mut node = LibraryNode::new(1, &[1, 2, 3]);
    let mut number = 0;
    for index in 1..=2 {
        let entry = Entry { index, term: 2, ..Default::default() };
        let log_term = if index == 1 { 0 } else { 2 };
        let append =
            Message { term: 2, index: index - 1, log_term, ..message(MessageType::MsgAppend, 2) };
        node.raw.step(Message { entries: vec![entry].into(), ..append }).expect("raft takes it");
        let ready = node.raw.ready();
        node.write(&ready);
        number = ready.number();
        node.raw.advance_append_async(ready);
    }
    assert_eq!(node.raw.raft.raft_log.persisted, 0);
    node.raw.on_persist_ready(number);
    assert_eq!(node.raw.raft.raft_log.persisted, 2);
}

/// R18: a replica does not campaign over a committed change that it has not applied, and raft sees
/// to that, as long as raft is told of applying after the change.
#[test]
fn no_campaign_over_a_committed_change_that_is_not_applied() {
    let mut node = LibraryNode::new(1, &[1, 2, 3]);
    let (append, change) = committed_change();
    node.raw.step(append).expect("raft takes it");
    let ready = node.raw.ready();
    node.write(&ready);
    node.raw.advance_append(ready);
    node.raw.campaign().expect("no error");
    assert_eq!(node.raw.raft.state, StateRole::Follower);
    node.raw.apply_conf_change(&change).expect("raft takes it");
    node.raw.advance_apply_to(2);
    node.raw.campaign().expect("no error");
    assert_eq!(node.raw.raft.state, StateRole::PreCandidate);
}

/// Rule: requests and refusals of votes bear the commit index and its term, both ways. Else a joint
/// group may have no replica that can be elected.
#[test]
fn votes_and_refusals_bear_the_commit_index() {
    let mut node = LibraryNode::new(1, &[1, 2, 3]);
    let (append, change) = committed_change();
    node.changes.push(change);
    node.step(append);
    let ask = Message { term: 9, index: 1, log_term: 2, ..message(MessageType::MsgRequestVote, 3) };
    // Raft heard its leader just now: without the mark of a transfer it does not even answer.
    assert!(node.step(ask.clone()).is_empty());
    let ask = Message { context: (&b"CampaignTransfer"[..]).into(), ..ask };
    let answers = node.step(ask);
    assert!(answers[0].reject);
    assert_eq!((answers[0].commit, answers[0].commit_term), (2, 2));
    let asked = node.ticks(60);
    let is_ask = |sent: &&Message| sent.get_msg_type() == MessageType::MsgRequestPreVote;
    let asked = asked.iter().find(is_ask).expect("it campaigns");
    assert_eq!((asked.commit, asked.commit_term), (2, 2));
}

/// R22: a lease is void for good before `TimeoutNow` leaves. The vote that it forces is given while
/// the voter has just heard its leader, which any other candidate has to wait out.
#[test]
fn a_forced_vote_passes_the_promise_to_a_leader() {
    for is_forced in [false, true] {
        let mut node = LibraryNode::new(1, &[1, 2, 3]);
        node.step(Message { term: 2, ..message(MessageType::MsgHeartbeat, 2) });
        let context = if is_forced { &b"CampaignTransfer"[..] } else { &[] };
        let ask = message(MessageType::MsgRequestVote, 3);
        let answers = node.step(Message { term: 3, context: context.into(), ..ask });
        assert_eq!(answers.iter().filter(|answer| !answer.reject).count(), usize::from(is_forced));
    }
}

/// The leader of 1 and 2, which 2 has followed up to the last entry; then 1 is a learner.
fn leader_without_its_vote() -> LibraryNode {
    let mut leader = LibraryNode::leader_of_one();
    leader.change(&[(VOTER, 2)]);
    follow(&mut leader, 0);
    leader.change(&[(LEARNER, 1)]);
    follow(&mut leader, 0);
    leader
}

/// 2 acknowledges the leader's entries, but for the last `without`.
fn follow(leader: &mut LibraryNode, without: u64) {
    let index = leader.raw.raft.raft_log.last_index() - without;
    leader.hear(Message { index, ..message(MessageType::MsgAppendResponse, 2) });
}

/// Rule: a leader without a vote transfers. Raft lets it lead on, and propose.
#[test]
fn a_leader_without_its_vote_leads_on() {
    let mut leader = leader_without_its_vote();
    assert_eq!(leader.raw.raft.state, StateRole::Leader);
    assert!(!leader.raw.raft.promotable());
    leader.raw.propose(vec![], vec![7]).expect("raft takes it");
    leader.pump();
    follow(&mut leader, 0);
    assert_eq!(leader.applied.last().map(|(.., len)| *len), Some(1));
    // It can still hand over.
    leader.raw.transfer_leader(2);
    assert_eq!(count(&leader.pump(), MessageType::MsgTimeoutNow, 2), 1);
}

/// Rule: a leader never applies its own removal, so it proposes none.
#[test]
#[should_panic(expected = "called `Option::unwrap()` on a `None` value")]
fn a_leader_that_applies_its_own_removal_panics_at_the_next_commit() {
    let mut leader = leader_without_its_vote();
    leader.change(&[(REMOVED, 1)]);
    leader.raw.propose(vec![], vec![7]).expect("raft takes it");
    leader.pump();
    follow(&mut leader, 1);
    assert_eq!(leader.raw.raft.state, StateRole::Leader);
    follow(&mut leader, 0);
}
