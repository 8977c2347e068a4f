//! Receives snapshots of other stores, and hands them to their regions.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use flotilla_identity::StoreRun;
use flotilla_proto::peers::snapshot_part::Part;
use flotilla_proto::peers::{SnapshotOffer, SnapshotOutcome, SnapshotPart, SnapshotVerdict};
use flotilla_region::{DiskUsage, Envelope, RegionId, RegionSize, StoreId};
use flotilla_store::Store;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio_stream::Stream;
use tonic::{Status, Streaming};

use super::STREAMS_MAX;
use super::byte_rate::ByteRate;
use super::receipt::SnapshotReceipt;
use super::stager::{SnapshotStager, StagerPart};
use crate::driver::disk_view::DiskView;
use crate::driver::shard_message::Mailboxes;
use crate::drop_notify::DropNotify;
use crate::in_flight::InFlightGuard;
use crate::membership::{Membership, uuid_from_wire};
use crate::net::connection::ConnectionPeer;
use crate::transport::convert;
use crate::transport::counters::{SnapshotInFlight, TransportCounters};

/// A sender that is silent for this long is given up, for it holds one of few places.
const PART_TIMEOUT: Duration = Duration::from_secs(30);

/// An offer waits so long for a place: less than its sender keeps its view for.
const SLOT_WAIT: Duration = Duration::from_secs(5);

/// Answers that wait for their connection at most: those to the chunks that are under way.
const ANSWERS_MAX: usize = 8;

/// The receiving side of all snapshots.
pub(crate) struct SnapshotReceiver {
    membership: Membership,
    store: Arc<DropNotify<Store>>,
    mailboxes: Mailboxes,
    counts: Arc<TransportCounters>,
    rate: ByteRate,
    disks: Arc<DiskView>,
    slots: Semaphore,
    /// Regions of which a snapshot comes.
    regions: Mutex<BTreeSet<RegionId>>,
}

type Answers = mpsc::Sender<Result<SnapshotVerdict, Status>>;

impl SnapshotReceiver {
    /// A receiver that takes snapshots at this rate at most.
    pub(crate) fn new(
        membership: Membership,
        store: Arc<DropNotify<Store>>,
        mailboxes: Mailboxes,
        counts: Arc<TransportCounters>,
        (rate, disks): (ByteRate, Arc<DiskView>),
    ) -> Self {
        let (slots, regions) = (Semaphore::new(STREAMS_MAX), Mutex::default());
        Self { membership, store, mailboxes, counts, rate, disks, slots, regions }
    }

    /// Takes one stream. Its task ends with the returned stream of answers.
    pub(crate) fn receive(
        self: &Arc<Self>,
        parts: Streaming<SnapshotPart>,
        peer: ConnectionPeer,
    ) -> VerdictStream {
        let (answers, verdicts) = mpsc::channel(ANSWERS_MAX);
        let receiver = Arc::clone(self);
        let task = tokio::spawn(async move {
            let taken = receiver.take(parts, &peer, &answers).await;
            if let Err(status) = taken {
                tracing::debug!("a snapshot is not received: {}", status.message());
                let _ = answers.send(Err(status)).await;
            }
        });
        VerdictStream { verdicts, task }
    }

    /// Takes the parts of a stream, until all are staged or the sender is told why not.
    async fn take(
        &self,
        mut parts: Streaming<SnapshotPart>,
        peer: &ConnectionPeer,
        answers: &Answers,
    ) -> Result<(), Status> {
        // The task ends wherever the connection does: then the receipt counts.
        let mut receipt = SnapshotReceipt::new(&self.counts);
        let Some(Part::Offer(offer)) = next(&mut parts).await? else {
            return Err(Status::invalid_argument("a snapshot begins with its offer"));
        };
        let size = RegionSize { keys: offer.rows, bytes: offer.bytes };
        let envelope = self.check(offer)?;
        peer.check_store(&self.membership.name_of(envelope.from.store))?;
        let region = envelope.region;
        // Its rows lie in pages before any limit of the store's could be met.
        if self.disks.usage() >= DiskUsage::AlmostFull {
            return refuse(answers, &mut receipt, "the disk is almost full").await;
        }
        let slot = tokio::time::timeout(SLOT_WAIT, self.slots.acquire()).await;
        let Ok(Ok(_slot)) = slot else {
            return refuse(answers, &mut receipt, "as many snapshots come as may").await;
        };
        let Some(_receiving) = ReceivingGuard::enter(&self.regions, region) else {
            return refuse(answers, &mut receipt, "a snapshot of the region comes already").await;
        };
        let in_flight = self.counts.snapshots_in_flight().begin(SnapshotInFlight {
            region,
            from: envelope.from.store,
            to: envelope.to.store,
            bytes: 0,
            bytes_total: size.bytes,
        });
        let stager = SnapshotStager {
            store: Arc::clone(&self.store),
            mailboxes: self.mailboxes.clone(),
            answers: answers.clone(),
            receipt,
        };
        // A part at a time: what a sender has under way waits in the connection, whose window is
        // bounded.
        let (staging, staged) = mpsc::channel(1);
        let thread = tokio::task::spawn_blocking(move || stager.run(envelope, size, staged));
        let pumped = self.pump(parts, staging, &in_flight).await;
        let is_told = thread.await.map_err(|_| Status::internal("staging panicked"))?;
        // Without a thread to take them, parts are not read: its own words count then.
        if is_told { Ok(()) } else { pumped }
    }

    /// Hands parts to the thread until the last of them, or until it takes no more.
    async fn pump(
        &self,
        mut parts: Streaming<SnapshotPart>,
        staging: mpsc::Sender<StagerPart>,
        in_flight: &InFlightGuard<SnapshotInFlight>,
    ) -> Result<(), Status> {
        loop {
            let part = tokio::select! {
                part = next(&mut parts) => part?,
                () = staging.closed() => return Ok(()),
            };
            let (part, is_last) = match part {
                Some(Part::Chunk(chunk)) => {
                    self.rate.take(chunk.rows.len()).await;
                    in_flight.update(|snapshot| snapshot.bytes += chunk.rows.len() as u64);
                    (StagerPart::Chunk(chunk), false)
                }
                Some(Part::End(end)) => (StagerPart::End(end), true),
                Some(Part::Offer(_)) => {
                    return Err(Status::invalid_argument("a snapshot is offered twice"));
                }
                None => return Err(Status::aborted("the stream ended before its end")),
            };
            if staging.send(part).await.is_err() || is_last {
                return Ok(());
            }
        }
    }

    /// Checks an offer as frames are checked.
    fn check(&self, offer: SnapshotOffer) -> Result<Envelope, Status> {
        let own = self.membership.id();
        if offer.cluster_id != own.cluster_id || offer.to_store != own.store.0 {
            return Err(Status::failed_precondition(format!(
                "the snapshot is for store {} of cluster {}, this is store {} of cluster {}",
                offer.to_store, offer.cluster_id, own.store, own.cluster_id
            )));
        }
        let from = StoreId(offer.from_store);
        let run = StoreRun { starts: offer.starts, nonce: offer.nonce };
        self.membership.check_sender(from, uuid_from_wire(&offer.uuid)?, run)?;
        let message = offer.message.ok_or_else(|| Status::invalid_argument("no message"))?;
        let envelope = convert::snapshot_from_wire(message)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        if envelope.from.store != from || envelope.to.store != own.store {
            return Err(Status::invalid_argument(format!(
                "the snapshot of region {} goes from store {} to store {}, its offer does not",
                envelope.region, envelope.from.store, envelope.to.store
            )));
        }
        Ok(envelope)
    }
}

async fn next(parts: &mut Streaming<SnapshotPart>) -> Result<Option<Part>, Status> {
    let part = tokio::time::timeout(PART_TIMEOUT, parts.message()).await;
    let part = part.map_err(|_| Status::deadline_exceeded("the sender is silent"))??;
    let empty = || Status::invalid_argument("a part of a snapshot is empty");
    part.map(|part| part.part.ok_or_else(empty)).transpose()
}

async fn refuse(
    answers: &Answers,
    receipt: &mut SnapshotReceipt,
    reason: &str,
) -> Result<(), Status> {
    receipt.count_refused();
    let outcome = SnapshotOutcome::SnapshotBusy.into();
    let verdict = SnapshotVerdict { outcome, number: 0, reason: reason.to_owned() };
    // An error means that the sender is gone.
    let _ = answers.send(Ok(verdict)).await;
    Ok(())
}

/// The place of a region among those of which a snapshot comes.
struct ReceivingGuard<'a> {
    regions: &'a Mutex<BTreeSet<RegionId>>,
    region: RegionId,
}

impl<'a> ReceivingGuard<'a> {
    /// None if one comes already.
    fn enter(regions: &'a Mutex<BTreeSet<RegionId>>, region: RegionId) -> Option<Self> {
        let is_first = regions.lock().insert(region);
        // A guard is made only for the first: its drop takes the place back.
        is_first.then(|| Self { regions, region })
    }
}

impl Drop for ReceivingGuard<'_> {
    fn drop(&mut self) {
        self.regions.lock().remove(&self.region);
    }
}

/// The answers of one stream. Dropped with its connection, and then its task ends, too.
pub(crate) struct VerdictStream {
    verdicts: mpsc::Receiver<Result<SnapshotVerdict, Status>>,
    task: JoinHandle<()>,
}

impl Stream for VerdictStream {
    type Item = Result<SnapshotVerdict, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.verdicts.poll_recv(context)
    }
}

impl Drop for VerdictStream {
    fn drop(&mut self) {
        self.task.abort();
    }
}
