//! Stages the rows of a snapshot that comes, on a thread that may block, and answers each part.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use flotilla_proto::peers;
use flotilla_proto::peers::{SnapshotOutcome, SnapshotVerdict};
use flotilla_region::{Envelope, Event, RegionSize, SnapshotHead, StageId};
use flotilla_store::{SnapshotEnd, StageOffer, Store};
use tokio::sync::mpsc;
use tonic::Status;

use super::receipt::SnapshotReceipt;
use crate::driver::shard_message::Mailboxes;
use crate::drop_notify::DropNotify;

/// A range that another region holds is mostly about to be free: its split is being applied. The
/// offer waits so long for it, and looks so often.
const HELD_WAIT: Duration = Duration::from_secs(2);
const HELD_LOOK: Duration = Duration::from_millis(20);

/// A part that comes behind the offer.
pub(super) enum StagerPart {
    Chunk(peers::SnapshotChunk),
    End(peers::SnapshotEnd),
}

/// One stage, before its thread runs.
pub(super) struct SnapshotStager {
    pub(super) store: Arc<DropNotify<Store>>,
    pub(super) mailboxes: Mailboxes,
    pub(super) answers: mpsc::Sender<Result<SnapshotVerdict, Status>>,
    pub(super) receipt: SnapshotReceipt,
}

/// A stage that is dropped, but for one whose snapshot has come whole.
struct StageGuard<'a> {
    store: &'a Store,
    stage: Option<StageId>,
}

impl Drop for StageGuard<'_> {
    fn drop(&mut self) {
        if let Some(stage) = self.stage.take() {
            self.store.discard_stage(stage);
        }
    }
}

/// Why no more is taken: an outcome with words, or the sender is gone.
type Refusal = Option<(SnapshotOutcome, String)>;

impl SnapshotStager {
    /// Takes a snapshot of `size` bytes, about. Returns whether all of it was staged, or an answer
    /// says why not. Where the parts end before that, nothing is left.
    pub(super) fn run(
        mut self,
        envelope: Envelope,
        size: RegionSize,
        parts: mpsc::Receiver<StagerPart>,
    ) -> bool {
        let staged = self.stage(envelope, size, parts);
        // Counted before the sender can hear of it.
        let (outcome, reason) = match staged {
            Ok(bytes) => {
                self.receipt.count_received(bytes);
                (SnapshotOutcome::SnapshotStaged, String::new())
            }
            Err(Some(refusal)) => {
                self.receipt.count_refused();
                refusal
            }
            Err(None) => return false,
        };
        self.answer(outcome, 0, reason);
        true
    }

    fn stage(
        &self,
        envelope: Envelope,
        size: RegionSize,
        mut parts: mpsc::Receiver<StagerPart>,
    ) -> Result<u64, Refusal> {
        let began = Instant::now();
        let stage = self.begin(&envelope, size)?;
        let mut guard = StageGuard { store: &self.store, stage: Some(stage) };
        let from = envelope.from.store;
        tracing::debug!(region = %envelope.region, %from, bytes = size.bytes, "a snapshot comes");
        self.answer(SnapshotOutcome::SnapshotGo, 0, String::new());
        let (mut number, mut bytes) = (0, 0);
        let end = loop {
            match parts.blocking_recv() {
                None => return Err(None),
                Some(StagerPart::End(end)) => break end,
                Some(StagerPart::Chunk(chunk)) => {
                    if chunk.number != number {
                        return failed(format!("chunk {} comes for {number}", chunk.number));
                    }
                    bytes += chunk.rows.len() as u64;
                    let staged = self.store.stage_chunk(stage, chunk.rows);
                    staged.or_else(|error| failed(error.to_string()))?;
                    self.answer(SnapshotOutcome::SnapshotTaken, number, String::new());
                    number += 1;
                }
            }
        };
        let peers::SnapshotEnd { rows, bytes: row_bytes, digest, watermark_ms } = end;
        let end = SnapshotEnd { rows, bytes: row_bytes, digest, watermark_ms };
        let finished = self.store.finish_stage(stage, end);
        finished.or_else(|error| failed(error.to_string()))?;
        // From here on the region has it, and installs or discards it.
        guard.stage = None;
        let (region, peer) = (envelope.region, envelope.to.id);
        let head = snapshot_of(&envelope);
        let (epoch, index) = (head.descriptor.epoch, head.index);
        // Before the region has it: else the line that it is installed may come first.
        tracing::info!(
            %region, version = epoch.version, conf_version = epoch.conf_version, %peer, %index,
            bytes, ms = began.elapsed().as_millis(), cause = format!("sent by store {from}"),
            "a snapshot was received"
        );
        self.mailboxes.complete_all([Event::SnapshotStaged { envelope, stage }]);
        Ok(bytes)
    }

    /// Has the store begin a stage, and waits if another region holds the range.
    fn begin(&self, envelope: &Envelope, size: RegionSize) -> Result<StageId, Refusal> {
        let head = snapshot_of(envelope);
        let until = Instant::now() + HELD_WAIT;
        loop {
            let offered = self.store.begin_stage(envelope.to.id, head, size);
            match offered.or_else(|error| failed(error.to_string()))? {
                StageOffer::Go(stage) => return Ok(stage),
                StageOffer::Busy => {
                    let reason = "a snapshot of the region is not installed yet".to_owned();
                    return Err(Some((SnapshotOutcome::SnapshotBusy, reason)));
                }
                StageOffer::Held(_) if Instant::now() < until && !self.answers.is_closed() => {
                    thread::sleep(HELD_LOOK);
                }
                StageOffer::Held(by) => {
                    let reason = format!("region {by} holds a part of the range");
                    return Err(Some((SnapshotOutcome::SnapshotHeld, reason)));
                }
            }
        }
    }

    /// An error means that the sender is gone, which the parts tell as well.
    fn answer(&self, outcome: SnapshotOutcome, number: u64, reason: String) {
        let verdict = SnapshotVerdict { outcome: outcome.into(), number, reason };
        let _ = self.answers.blocking_send(Ok(verdict));
    }
}

fn snapshot_of(envelope: &Envelope) -> &SnapshotHead {
    envelope.message.snapshot.as_ref().expect("an offer without one is refused")
}

fn failed<T>(reason: String) -> Result<T, Refusal> {
    Err(Some((SnapshotOutcome::SnapshotFailed, reason)))
}
