//! A replica without data: an id and a hard state, no range, no entries and no raft node.
//!
//! It votes as a replica with an empty log does: if a parent has left a store before its split was
//! applied there, this vote may be the missing one. It asks its leader for a snapshot, and answers
//! heartbeats: raft sends a snapshot only to a replica that it hears, and resumes one whose append
//! was lost only by a heartbeat's answer. Its answers have no context, so they count for no read.
//!
//! - Nothing leaves before its birth and its hard state are on disk (R14).
//! - From the taking of a snapshot until the log is emptied behind it nothing leaves (R15).

use std::collections::VecDeque;

use crate::descriptor::Epoch;
use crate::effects::{BirthOrigin, EndTask, LogWrite, LostLog, ReplicaBirth};
use crate::entry::HardState;
use crate::ids::{Index, PeerId, RegionId, StageId, Term};
use crate::membership::EndPhase;
use crate::message::{Envelope, Message, MessageKind};
use crate::message_filter::{self, Refusal};
use crate::persistence::EarlierWrites;
use crate::recovered_replica::{RecoveredReplica, UninitialisedReplica};
use crate::snapshot_filter;
use crate::snapshot_install::{Installing, SnapshotInstall, StagedSnapshot};
use crate::step_context::StepContext;

/// Messages that wait for the disk. More are dropped: others repeat theirs.
const HELD_MAX: usize = 64;

pub(crate) struct UninitialisedSlot {
    region: RegionId,
    peer: PeerId,
    hard_state: HardState,
    /// Whether the driver was given its birth.
    is_born: bool,
    /// Whether the hard state has to be written.
    is_changed: bool,
    /// To be sent at the end of the step.
    outgoing: Vec<Envelope>,
    /// Writes under way, and the messages that wait for each.
    held: VecDeque<(u64, Vec<Envelope>)>,
    writes: EarlierWrites,
    install: SnapshotInstall,
    end: EndPhase,
}

/// A replica that has got its data.
pub(crate) struct InitialisedReplica {
    pub(crate) replica: RecoveredReplica,
    /// The acknowledgement, its first message.
    pub(crate) acknowledgement: Envelope,
    pub(crate) writes: EarlierWrites,
}

impl UninitialisedSlot {
    /// A replica that a message has made.
    pub(crate) fn new(region: RegionId, peer: PeerId) -> Self {
        let hard_state = HardState::default();
        let found = UninitialisedReplica { region, peer, hard_state };
        Self { is_born: false, is_changed: true, ..Self::recovered(found) }
    }

    /// A replica that was found in the log.
    pub(crate) fn recovered(found: UninitialisedReplica) -> Self {
        let UninitialisedReplica { region, peer, hard_state } = found;
        Self {
            region,
            peer,
            hard_state,
            is_born: true,
            is_changed: false,
            outgoing: vec![],
            held: VecDeque::new(),
            writes: EarlierWrites::default(),
            install: SnapshotInstall::default(),
            end: EndPhase::None,
        }
    }

    pub(crate) fn peer(&self) -> PeerId {
        self.peer
    }

    /// Whether the replica has begun to end.
    pub(crate) fn is_ending(&self) -> bool {
        self.end != EndPhase::None
    }

    /// The region does not list the replica any more, or another one in its place. Nothing leaves
    /// from now on.
    pub(crate) fn begin_end(&mut self, step: &mut StepContext<'_>) {
        // An install ends first. Whoever says that the replica is gone repeats it.
        if self.is_ending() || self.install.is_installing() {
            return;
        }
        self.end = EndPhase::Waiting;
        step.effects.discards.extend(self.install.take_staged().map(|staged| staged.stage));
    }

    /// Asks the store for the end, once no write is under way.
    fn finish_end(&mut self, step: &mut StepContext<'_>) {
        self.outgoing.clear();
        self.held.iter_mut().for_each(|(_, messages)| messages.clear());
        if self.end == EndPhase::Waiting && self.writes.are_done() {
            self.end = EndPhase::Asked;
            step.effects.ends.push(EndTask { region: self.region, peer: self.peer });
        }
    }

    /// Takes a message from another store, or counts why not.
    pub(crate) fn receive(&mut self, envelope: &Envelope, step: &mut StepContext<'_>) {
        match self.admit_message(envelope) {
            Ok(()) => self.take_message(envelope),
            Err(refusal) => {
                refusal.count(&mut step.stats.dropped);
                if let Refusal::LostLog(acknowledged) = refusal {
                    let (region, from, last) = (self.region, envelope.from, Index(0));
                    step.effects.findings.lost_logs.push(LostLog {
                        region,
                        from,
                        acknowledged,
                        last,
                    });
                }
            }
        }
    }

    fn admit_message(&self, envelope: &Envelope) -> Result<(), Refusal> {
        let message = &envelope.message;
        self.check_ends(envelope)?;
        if self.is_ending() {
            return Err(Refusal::Ending);
        }
        if self.install.is_installing() {
            return Err(Refusal::Installing);
        }
        match message.kind {
            MessageKind::RequestVote | MessageKind::RequestPreVote => Ok(()),
            // A snapshot comes by a stream of its own, with its rows.
            MessageKind::Snapshot => Err(Refusal::Malformed),
            // The rows are here, and are put in soon: nothing has to be asked for.
            MessageKind::Append if self.install.is_staged() => Err(Refusal::Installing),
            // A leader tells a follower of no commit beyond what that follower has acknowledged to
            // it in this term. A replica that never had data has acknowledged nothing, unless its
            // disk is an older copy; one that has no term yet cannot tell.
            MessageKind::Heartbeat
                if message.commit > Index(0)
                    && message.term >= self.hard_state.term
                    && self.hard_state.term > Term(0) =>
            {
                Err(Refusal::LostLog(message.commit))
            }
            MessageKind::Append | MessageKind::Heartbeat => Ok(()),
            _ => Err(Refusal::Stale),
        }
    }

    /// Checks the address and the numbers. Any sender may be a member.
    fn check_ends(&self, envelope: &Envelope) -> Result<(), Refusal> {
        if envelope.to.id != self.peer {
            return Err(Refusal::Misrouted);
        }
        message_filter::check_unknown(envelope)
    }

    fn take_message(&mut self, envelope: &Envelope) {
        let message = &envelope.message;
        let is_old = message.term < self.hard_state.term;
        let answer = match message.kind {
            MessageKind::RequestPreVote => Some(self.answer_pre_vote(message)),
            // As raft does: the candidate's term is over.
            MessageKind::RequestVote if is_old => None,
            MessageKind::RequestVote => Some(self.answer_vote(envelope.from.id, message.term)),
            // It tells the leader that there is a later term.
            _ if is_old => Some(Message { kind: MessageKind::AppendResponse, ..self.empty() }),
            MessageKind::Append => {
                self.raise_term(message.term);
                // Without the request a log that was never compacted would be sent from its first
                // entry on, which lacks the rows that the region began with.
                let request_snapshot = Index(1);
                let kind = MessageKind::AppendResponse;
                Some(Message { kind, reject: true, request_snapshot, ..self.empty() })
            }
            _ => {
                self.raise_term(message.term);
                Some(Message { kind: MessageKind::HeartbeatResponse, ..self.empty() })
            }
        };
        let Some(message) = answer else { return };
        let waiting: usize = self.held.iter().map(|(_, messages)| messages.len()).sum();
        if self.outgoing.len() + waiting < HELD_MAX {
            self.outgoing.push(self.answer_to(envelope, message));
        }
    }

    /// A message of the own term that says nothing.
    fn empty(&self) -> Message {
        Message { term: self.hard_state.term, ..Message::default() }
    }

    fn answer_to(&self, envelope: &Envelope, message: Message) -> Envelope {
        Envelope {
            region: self.region,
            from: envelope.to,
            to: envelope.from,
            epoch: Epoch::default(),
            gc_floor: Index(0),
            range: None,
            message,
        }
    }

    /// Every log is as new as an empty one.
    fn answer_pre_vote(&self, message: &Message) -> Message {
        let kind = MessageKind::RequestPreVoteResponse;
        if message.term > self.hard_state.term {
            return Message { kind, term: message.term, ..Message::default() };
        }
        Message { kind, reject: true, ..self.empty() }
    }

    fn answer_vote(&mut self, from: PeerId, term: Term) -> Message {
        self.raise_term(term);
        let kind = MessageKind::RequestVoteResponse;
        let voted = *self.hard_state.vote.get_or_insert_with(|| {
            self.is_changed = true;
            from
        });
        Message { kind, reject: voted != from, ..self.empty() }
    }

    fn raise_term(&mut self, term: Term) {
        assert_eq!(self.hard_state.commit, Index(0), "it has committed nothing");
        if term > self.hard_state.term {
            self.hard_state = HardState { term, vote: None, commit: Index(0) };
            self.is_changed = true;
        }
    }

    /// A snapshot for this replica has arrived whole.
    pub(crate) fn snapshot_staged(
        &mut self,
        envelope: Envelope,
        stage: StageId,
        step: &mut StepContext<'_>,
    ) {
        let discarded = match self.check_snapshot(&envelope) {
            Ok(()) => self.install.stage(StagedSnapshot { envelope, stage }),
            Err(refusal) => {
                refusal.count(&mut step.stats.dropped);
                Some(stage)
            }
        };
        step.effects.discards.extend(discarded);
    }

    fn check_snapshot(&self, envelope: &Envelope) -> Result<(), Refusal> {
        self.check_ends(envelope)?;
        if self.is_ending() {
            return Err(Refusal::Ending);
        }
        if self.install.is_installing() {
            return Err(Refusal::Installing);
        }
        if envelope.message.kind != MessageKind::Snapshot {
            return Err(Refusal::Malformed);
        }
        snapshot_filter::check_head(envelope, envelope.to)?;
        // Of a leader that was followed by another one, which this replica may have voted for.
        if envelope.message.term < self.hard_state.term { Err(Refusal::Stale) } else { Ok(()) }
    }

    /// A root has the rows.
    pub(crate) fn rooted(&mut self, stage: StageId) {
        self.install.rooted(stage);
    }

    /// A write is on disk. Returns the replica if the log was emptied by it.
    pub(crate) fn persisted(&mut self, number: u64) -> Option<InitialisedReplica> {
        self.writes.persisted(number);
        while let Some((_, messages)) = self.held.pop_front_if(|held| held.0 <= number) {
            self.outgoing.extend(messages);
        }
        let Installing { envelope, head, hard_state, .. } = self.install.end()?;
        let index = head.index;
        let kind = MessageKind::AppendResponse;
        let (term, commit) = (hard_state.term, index);
        let message = Message { kind, term, index, commit, ..Message::default() };
        let begin = (index, head.term);
        Some(InitialisedReplica {
            acknowledgement: self.answer_to(&envelope, message),
            replica: RecoveredReplica::behind(head.descriptor, self.peer, hard_state, begin),
            writes: self.writes,
        })
    }

    /// A split has made this replica's region here: returns the promises that it goes on with.
    pub(crate) fn into_child(mut self, step: &mut StepContext<'_>) -> (HardState, EarlierWrites) {
        // The store promises no range twice: either the parent has it, or the snapshot.
        assert!(!self.install.is_installing(), "region {}: split and installed", self.region);
        let staged = self.install.take_staged();
        step.effects.discards.extend(staged.map(|staged| staged.stage));
        (self.hard_state, self.writes)
    }

    /// Turns what came of the step's events into effects.
    pub(crate) fn finish(&mut self, step: &mut StepContext<'_>) {
        if self.install.is_installing() {
            if let Some(write) = self.install.take_reset(self.region, self.peer) {
                let number = self.writes.next();
                step.effects.log.writes.push(LogWrite { number, ..write });
            }
            return;
        }
        let (region, peer, hard_state) = (self.region, self.peer, self.hard_state);
        if std::mem::take(&mut self.is_changed) {
            let number = self.writes.next();
            step.effects.log.writes.push(LogWrite {
                region,
                peer,
                number,
                hard_state: Some(hard_state),
                entries: vec![],
                sync: true,
                reset: None,
            });
            self.held.push_back((number, vec![]));
        }
        if !std::mem::replace(&mut self.is_born, true) {
            // In one batch with its first write, for which all messages wait: a vote that left
            // before them could be given again after a start (R14).
            let origin = BirthOrigin::Message;
            step.effects.log.births.push(ReplicaBirth { region, peer, hard_state, origin });
        }
        if self.is_ending() {
            return self.finish_end(step);
        }
        match self.held.back_mut() {
            Some((_, messages)) => messages.append(&mut self.outgoing),
            None => {
                assert!(self.writes.are_done(), "region {region}: a message before its write");
                step.effects.messages.append(&mut self.outgoing);
                self.install_staged(step);
            }
        }
    }

    fn install_staged(&mut self, step: &mut StepContext<'_>) {
        let Some(staged) = self.install.take_staged() else { return };
        // The term may have grown since.
        if let Err(refusal) = self.check_snapshot(&staged.envelope) {
            refusal.count(&mut step.stats.dropped);
            return step.effects.discards.push(staged.stage);
        }
        self.raise_term(staged.envelope.message.term);
        let commit = staged.envelope.message.snapshot.as_ref().map(|head| head.index);
        let commit = commit.expect("it was checked to have a head");
        let hard_state = HardState { commit, ..self.hard_state };
        step.effects.installs.push(self.install.begin(self.peer, staged, hard_state));
    }
}
