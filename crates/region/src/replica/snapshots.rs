//! Snapshots of a replica: sent to followers that lack entries, and installed in place of its own
//! rows and log.

use super::Replica;
use crate::convert;
use crate::effects::SnapshotSend;
use crate::error::Reject;
use crate::ids::{Index, PeerId, StageId, Term};
use crate::message::{Envelope, Message, MessageKind, SnapshotHead};
use crate::message_filter::{self, Refusal};
use crate::snapshot_filter::{self, SnapshotView};
use crate::snapshot_install::StagedSnapshot;
use crate::step_context::StepContext;

impl Replica {
    /// Whether a snapshot is being installed, so that the replica has to be silent.
    pub(crate) fn is_installing(&self) -> bool {
        self.install.is_installing()
    }

    /// Whether a snapshot waits until nothing of the replica is under way.
    pub(crate) fn has_staged_snapshot(&self) -> bool {
        self.install.is_staged()
    }

    /// Hands a snapshot to the driver, which sends it as a stream of its own.
    pub(super) fn send_snapshot(
        &mut self,
        mut envelope: Envelope,
        head: (Index, Term),
        step: &mut StepContext<'_>,
    ) {
        let ((index, term), descriptor) = (head, self.descriptor.clone());
        let sender_term = envelope.message.term;
        envelope.message.snapshot = Some(Box::new(SnapshotHead { index, term, descriptor }));
        let to = envelope.to.id;
        let number = self.consensus.window_mut().snapshots().begin(to, sender_term);
        self.compactor.note_snapshot(to, index);
        step.stats.snapshots_sent += 1;
        step.effects.snapshots.push(SnapshotSend { number, envelope });
    }

    /// The stream of a snapshot has begun: the follower will have the log up to `index`.
    pub(crate) fn snapshot_begun(&mut self, to: PeerId, number: u64, index: Index) {
        let term = self.consensus.term();
        if self.consensus.window_mut().snapshots().is_pending(to, number, term) {
            self.consensus.raise_pending_snapshot(to, index);
            self.compactor.note_snapshot(to, index);
        }
    }

    /// It has arrived whole, or was given up.
    pub(crate) fn snapshot_sent(
        &mut self,
        to: PeerId,
        number: u64,
        ok: bool,
        step: &StepContext<'_>,
    ) {
        let term = self.consensus.term();
        let now = step.now;
        // The end of an older stream says nothing about the one that raft waits for.
        if self.consensus.window_mut().snapshots().end(to, number, term, ok, now) {
            self.consensus.report_snapshot(to, ok);
            if !ok {
                self.compactor.note_failed_snapshot(to);
            }
        }
    }

    /// An acknowledgement may overtake the report that the snapshot has arrived, and proves it.
    pub(super) fn finish_acknowledged_snapshot(&mut self, from: PeerId, message: &Message) {
        let is_acknowledgement = message.kind == MessageKind::AppendResponse
            && !message.reject
            && message.term == self.consensus.term();
        let pending = self.consensus.pending_snapshot(from);
        if is_acknowledgement && pending.is_some_and(|pending| message.index >= pending) {
            // Before raft takes it: it would send a second snapshot.
            self.consensus.report_snapshot(from, true);
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
                self.notice_refusal(refusal, &envelope, step);
                Some(stage)
            }
        };
        step.effects.discards.extend(discarded);
    }

    fn check_snapshot(&self, envelope: &Envelope) -> Result<(), Refusal> {
        // Raft's numbers are those of the other snapshot already, and the log is not.
        if self.is_installing() {
            return Err(Refusal::Installing);
        }
        if envelope.message.kind != MessageKind::Snapshot {
            return Err(Refusal::Malformed);
        }
        message_filter::filter(envelope, &self.filter_view(envelope.from.id))?;
        let head = snapshot_filter::check_head(envelope, self.me)?;
        let term = self.consensus.term();
        if envelope.message.term < term {
            return Err(Refusal::Stale);
        }
        // A term has one leader.
        if self.consensus.is_leader() && envelope.message.term == term {
            return Err(Refusal::Malformed);
        }
        let committed = (self.consensus.commit(), self.consensus.commit_term());
        let view = SnapshotView { descriptor: &self.descriptor, committed };
        snapshot_filter::compare(head, &view)
    }

    /// Whether nothing of the replica is under way (R15): no write, nothing that was handed out and
    /// is not applied and heard.
    fn is_at_rest(&self) -> bool {
        self.inflight_writes.are_done()
            && self.applying.is_done(self.consensus.applied_index())
            && !self.consensus.has_ready()
            && self.output.births.is_empty()
    }

    /// Gives a staged snapshot to raft, once nothing of the replica is under way.
    pub(super) fn take_staged(&mut self, has_unborn: bool, step: &mut StepContext<'_>) {
        // R15: a change that is heard behind the taking would hit the snapshot's configuration, and
        // a hard state that is written behind it says "committed" beside a log that ends below.
        // R15b: the rows of an unborn child lie in the range of its parent.
        if has_unborn || !self.is_at_rest() {
            return;
        }
        let Some(staged) = self.install.take_staged() else { return };
        // The term may have grown since it was staged, and the commit index as well.
        if let Err(refusal) = self.check_snapshot(&staged.envelope) {
            refusal.count(&mut step.stats.dropped);
            return step.effects.discards.push(staged.stage);
        }
        let (from, message) = (staged.envelope.from.id, staged.envelope.message.clone());
        let head = message.snapshot.as_ref().expect("it was checked");
        let (index, term) = (head.index, head.term);
        if !self.may_replace_log(index, term) {
            return step.effects.discards.push(staged.stage);
        }
        if self.applying.damage.is_damaged() {
            let commit = self.consensus.commit();
            assert!(index >= commit, "a snapshot of {index} where {commit} is committed");
            self.consensus.want_snapshot(index);
        }
        let _ = self.consensus.step(convert::message_to_raft(from, self.me.id, message));
        // As by an append: raft's own timer and the promise begin anew together.
        self.promise.make(step.config.election_ticks);
        self.notice_role(step);
        if self.consensus.has_snapshot() {
            return self.begin_install(staged, step);
        }
        self.consensus.want_no_snapshot();
        // The log connects, or is longer: the answer says how far it is.
        step.effects.discards.push(staged.stage);
        self.take_readies(step);
    }

    fn begin_install(&mut self, staged: StagedSnapshot, step: &mut StepContext<'_>) {
        let hard_state = convert::hard_state_from_raft(&self.consensus.hard_state());
        let task = self.install.begin(self.me.id, staged, hard_state);
        // Damage that is found from now on is of the new rows.
        self.applying.damage.clear();
        // Before anything else is claimed: an entry of these may have been applied elsewhere.
        let SnapshotHead { index, term, .. } = task.head;
        let passed = self.proposals.pass_over(index, term, |ticket, why| step.reject(ticket, why));
        step.effects.answers.undecided.extend(passed);
        let why = Reject::NotLeader { leader: self.leader() };
        self.read_path.drain(&why, step);
        step.effects.installs.push(task);
    }

    /// A root has the rows of a snapshot.
    pub(crate) fn rooted(&mut self, stage: StageId) {
        self.install.rooted(stage);
    }

    /// Empties the log when a root has the rows. Raft's Ready waits until then: what it says of the
    /// log holds behind the reset only.
    pub(super) fn reset_log(&mut self, step: &mut StepContext<'_>) {
        let region = self.descriptor.id;
        let Some(reset) = self.install.take_reset(region, self.me.id) else { return };
        let taken = self.inflight_writes.take(region, self.me.id, &mut self.consensus);
        let write = taken.write.as_ref().expect("a Ready with a snapshot is written");
        assert_eq!(
            (write.reset, write.hard_state, write.sync),
            (reset.reset, reset.hard_state, true),
            "region {region}: the log is emptied otherwise than the rows say"
        );
        assert!(taken.committed.is_empty(), "entries are applied before their snapshot");
        self.carry_out(taken, step);
        assert!(!self.consensus.has_ready(), "region {region}: raft goes on while it installs");
    }

    /// The log is emptied: the replica goes on behind the snapshot.
    pub(super) fn end_install(&mut self, step: &mut StepContext<'_>) {
        let Some(installed) = self.install.end() else { return };
        let SnapshotHead { index, descriptor, .. } = installed.head;
        let region = self.descriptor.id;
        assert_eq!(self.consensus.persisted_index(), index, "region {region}: raft has the reset");
        assert_eq!(descriptor.peer(self.me.id), Some(self.me), "region {region} without this");
        self.consensus.applied(index);
        self.applying.restart(index);
        self.compactor.raise_durable(index);
        // R18: raft's configuration is that of the snapshot as well.
        self.descriptor = descriptor;
        self.forget_unlisted();
        self.split_policy.restart();
        step.stats.snapshots_installed += 1;
        step.effects.ranges.push(self.descriptor.clone());
    }
}
