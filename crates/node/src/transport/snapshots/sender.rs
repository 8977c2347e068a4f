//! Sends snapshots to other stores, and reports to their regions how each ended.

use std::sync::Arc;
use std::time::{Duration, Instant};

use flotilla_proto::peers;
use flotilla_proto::peers::peers_client::PeersClient;
use flotilla_proto::peers::{SnapshotOutcome, SnapshotPart, SnapshotVerdict};
use flotilla_region::{Envelope, Epoch, Event, Index, PeerId, RegionId, SnapshotSend, StoreId};
use flotilla_store::SnapshotEnd;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use super::byte_rate::ByteRate;
use super::source::{SnapshotSource, SourcePart};
use super::{CHUNKS_IN_FLIGHT, STREAMS_MAX};
use crate::driver::shard_message::Mailboxes;
use crate::driver::workers::page_damage::PageDamage;
use crate::in_flight::InFlightGuard;
use crate::membership::{Membership, uuid_to_wire};
use crate::net::dial::{Dialer, PEER_MESSAGE_BYTES_MAX};
use crate::transport::convert;
use crate::transport::counters::{SnapshotInFlight, TransportCounters};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3);

/// A snapshot waits so long for a place. When a store comes back, all its regions may want one at
/// the same time: those that were refused at once would ask again ever later, and places be free
/// meanwhile.
const SLOT_WAIT: Duration = Duration::from_secs(10);

/// A stream is given up after this, and the time that its bytes take at the least rate: a view that
/// is read so slowly keeps too many pages from being used again. As many streams as there may be
/// are as fast together as the least rate that can be set.
const DEADLINE_LEAST: Duration = Duration::from_secs(30);
const BYTES_PER_S_LEAST: u64 = 2 << 20;

/// The sending side of all snapshots.
pub(crate) struct SnapshotSender {
    membership: Membership,
    damage: PageDamage,
    mailboxes: Mailboxes,
    counts: Arc<TransportCounters>,
    rate: ByteRate,
    slots: Semaphore,
}

/// Why a snapshot was not sent.
#[derive(Debug, thiserror::Error)]
enum SendError {
    #[error("as many are sent as may be, for a long time")]
    NoSlot,
    #[error("its rows cannot be read: {0}")]
    Source(String),
    #[error("the rows are of a later term than the message")]
    LaterTerm,
    #[error("no connection: {0}")]
    Connect(String),
    #[error("the store answered {0:?}: {1}")]
    Refused(SnapshotOutcome, String),
    #[error("the stream was lost: {0}")]
    Lost(Status),
    #[error("it took longer than {0:?}")]
    TooSlow(Duration),
}

/// A snapshot that the receiver has whole.
struct SentSnapshot {
    epoch: Epoch,
    index: Index,
    bytes: u64,
}

impl SnapshotSender {
    /// A sender of the store's snapshots, at this rate at most.
    pub(crate) fn new(
        membership: Membership,
        damage: PageDamage,
        mailboxes: Mailboxes,
        counts: Arc<TransportCounters>,
        rate: ByteRate,
    ) -> Self {
        let slots = Semaphore::new(STREAMS_MAX);
        Self { membership, damage, mailboxes, counts, rate, slots }
    }

    /// Sends what is wanted, until no more can be. All that is under way ends with this task.
    pub(crate) async fn run(self, mut wanted: mpsc::UnboundedReceiver<SnapshotSend>) {
        let sender = Arc::new(self);
        let mut streams = JoinSet::new();
        while let Some(send) = wanted.recv().await {
            while streams.try_join_next().is_some() {}
            let mut report = SendReport::new(&sender.mailboxes, &send);
            let sender = Arc::clone(&sender);
            let asked = Instant::now();
            // Tasks that wait are few: a region has one snapshot for each of its replicas.
            streams.spawn(async move {
                let sent = sender.send(send, &report).await;
                report.ok = sent.is_ok();
                sender.note(&report, &sent, asked.elapsed());
            });
        }
    }

    fn note(&self, report: &SendReport, sent: &Result<SentSnapshot, SendError>, took: Duration) {
        let (region, to, ms) = (report.region, report.to, took.as_millis());
        match sent {
            Ok(SentSnapshot { epoch: Epoch { version, conf_version }, index, bytes }) => {
                tracing::info!(
                    %region, version, conf_version, peer = %to, store = %report.to_store, %index,
                    bytes, ms, cause = "the replica lacks entries that the log has no more",
                    "a snapshot was sent"
                );
            }
            Err(error @ (SendError::NoSlot | SendError::Refused(..))) => {
                tracing::debug!(%region, %to, ms, "a snapshot is not sent: {error}");
            }
            Err(error) => tracing::warn!(%region, %to, ms, "a snapshot was not sent: {error}"),
        }
        self.counts.count_snapshot_sent(sent.as_ref().ok().map(|sent| sent.bytes));
    }

    async fn send(
        &self,
        send: SnapshotSend,
        report: &SendReport,
    ) -> Result<SentSnapshot, SendError> {
        // In the order in which they were asked for.
        let slot = tokio::time::timeout(SLOT_WAIT, self.slots.acquire()).await;
        let Ok(Ok(_slot)) = slot else { return Err(SendError::NoSlot) };
        let mut envelope = send.envelope;
        let region = envelope.region;
        let source = SnapshotSource::open(self.damage.clone(), region);
        let mut source = source.await.map_err(SendError::Source)?;
        // The receiver would hold a log beyond its own term.
        if source.head.term > envelope.message.term {
            return Err(SendError::LaterTerm);
        }
        envelope.message.snapshot = Some(Box::new(source.head.clone()));
        let in_flight = self.counts.snapshots_in_flight().begin(SnapshotInFlight {
            region,
            from: self.membership.id().store,
            to: report.to_store,
            bytes: 0,
            bytes_total: source.bytes,
        });
        let seconds = source.bytes / BYTES_PER_S_LEAST;
        let deadline = DEADLINE_LEAST + Duration::from_secs(seconds);
        let sent = self.stream(envelope, &mut source, report, &in_flight);
        let sent = tokio::time::timeout(deadline, sent).await;
        let bytes = sent.unwrap_or(Err(SendError::TooSlow(deadline)))?;
        let (epoch, index) = (source.head.descriptor.epoch, source.head.index);
        Ok(SentSnapshot { epoch, index, bytes })
    }

    /// Streams the rows of `source`; how many bytes there were.
    async fn stream(
        &self,
        envelope: Envelope,
        source: &mut SnapshotSource,
        report: &SendReport,
        in_flight: &InFlightGuard<SnapshotInFlight>,
    ) -> Result<u64, SendError> {
        let index = source.head.index;
        let to = envelope.to.store;
        let mut client = self.connect(to).await?;
        let (parts, body) = mpsc::channel(1);
        let offer = self.offer(envelope, source);
        parts.try_send(offer).expect("the channel has room for one part");
        let verdicts = client.snapshot(ReceiverStream::new(body)).await.map_err(SendError::Lost)?;
        let mut stream = SnapshotStream { parts, verdicts: verdicts.into_inner() };
        stream.expect(SnapshotOutcome::SnapshotGo).await?;
        report.begun(index);
        let (mut sent, mut taken, mut bytes) = (0, 0, 0);
        loop {
            let part = source.next().await.map_err(SendError::Source)?;
            match part {
                SourcePart::Rows(rows) => {
                    if sent - taken >= CHUNKS_IN_FLIGHT {
                        stream.expect(SnapshotOutcome::SnapshotTaken).await?;
                        taken += 1;
                    }
                    self.rate.take(rows.len()).await;
                    bytes += rows.len() as u64;
                    in_flight.update(|snapshot| snapshot.bytes = bytes);
                    let chunk = peers::SnapshotChunk { number: sent, rows };
                    stream.send(peers::snapshot_part::Part::Chunk(chunk)).await?;
                    sent += 1;
                }
                SourcePart::End(end) => {
                    let SnapshotEnd { rows, bytes, digest, watermark_ms } = end;
                    let end = peers::SnapshotEnd { rows, bytes, digest, watermark_ms };
                    stream.send(peers::snapshot_part::Part::End(end)).await?;
                    break;
                }
            }
        }
        for _ in taken..sent {
            stream.expect(SnapshotOutcome::SnapshotTaken).await?;
        }
        stream.expect(SnapshotOutcome::SnapshotStaged).await?;
        Ok(bytes)
    }

    /// A connection of its own: a vote never waits behind rows.
    async fn connect(&self, to: StoreId) -> Result<PeersClient<Channel>, SendError> {
        let mut last = SendError::Connect("the store has no address".to_owned());
        for address in self.membership.addresses(to) {
            match connect(&address, self.membership.dialer()).await {
                Ok(channel) => {
                    return Ok(
                        PeersClient::new(channel).max_encoding_message_size(PEER_MESSAGE_BYTES_MAX)
                    );
                }
                Err(error) => last = SendError::Connect(format!("{address}: {error}")),
            }
        }
        Err(last)
    }

    fn offer(&self, envelope: Envelope, source: &SnapshotSource) -> SnapshotPart {
        let (id, (uuid, run)) = (self.membership.id(), self.membership.run());
        let offer = peers::SnapshotOffer {
            cluster_id: id.cluster_id,
            from_store: id.store.0,
            to_store: envelope.to.store.0,
            uuid: uuid_to_wire(uuid),
            starts: run.starts,
            nonce: run.nonce,
            message: Some(convert::to_wire(envelope)),
            rows: source.rows,
            bytes: source.bytes,
        };
        SnapshotPart { part: Some(peers::snapshot_part::Part::Offer(offer)) }
    }
}

async fn connect(address: &str, dialer: &Dialer) -> Result<Channel, tonic::transport::Error> {
    let endpoint = dialer
        .endpoint(address, CONNECT_TIMEOUT)?
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT);
    dialer.connect(&endpoint).await
}

/// Both directions of one stream.
struct SnapshotStream {
    parts: mpsc::Sender<SnapshotPart>,
    verdicts: Streaming<SnapshotVerdict>,
}

impl SnapshotStream {
    async fn send(&mut self, part: peers::snapshot_part::Part) -> Result<(), SendError> {
        if self.parts.send(SnapshotPart { part: Some(part) }).await.is_ok() {
            return Ok(());
        }
        // The receiver has ended the stream, and says why.
        loop {
            self.verdict().await?;
        }
    }

    /// The next verdict, which must be this one.
    async fn expect(&mut self, expected: SnapshotOutcome) -> Result<(), SendError> {
        let (outcome, reason) = self.verdict().await?;
        if outcome == expected { Ok(()) } else { Err(SendError::Refused(outcome, reason)) }
    }

    /// The next verdict, if it does not end the stream.
    async fn verdict(&mut self) -> Result<(SnapshotOutcome, String), SendError> {
        let verdict = self.verdicts.message().await.map_err(SendError::Lost)?;
        let verdict = verdict.ok_or_else(|| SendError::Lost(Status::aborted("it ended")))?;
        let outcome = SnapshotOutcome::try_from(verdict.outcome);
        let outcome = outcome.map_err(|_| SendError::Lost(Status::internal("unknown outcome")))?;
        match outcome {
            SnapshotOutcome::SnapshotGo
            | SnapshotOutcome::SnapshotTaken
            | SnapshotOutcome::SnapshotStaged => Ok((outcome, verdict.reason)),
            _ => Err(SendError::Refused(outcome, verdict.reason)),
        }
    }
}

/// Reports to a region how its snapshot ended: when it is dropped, so that the report leaves also
/// if the task is aborted. Without it the region would wait for ever.
struct SendReport {
    mailboxes: Mailboxes,
    region: RegionId,
    from: PeerId,
    to: PeerId,
    to_store: StoreId,
    number: u64,
    ok: bool,
}

impl SendReport {
    fn new(mailboxes: &Mailboxes, send: &SnapshotSend) -> Self {
        let SnapshotSend { number, envelope } = send;
        let (region, from, to) = (envelope.region, envelope.from.id, envelope.to.id);
        let (mailboxes, to_store) = (mailboxes.clone(), envelope.to.store);
        Self { mailboxes, region, from, to, to_store, number: *number, ok: false }
    }

    /// The receiver takes the rows, which are as of this entry.
    fn begun(&self, index: Index) {
        let &Self { region, from, to, number, .. } = self;
        self.mailboxes.complete_all([Event::SnapshotBegun { region, from, to, number, index }]);
    }
}

impl Drop for SendReport {
    fn drop(&mut self) {
        let &mut Self { region, from, to, number, ok, .. } = self;
        self.mailboxes.complete_all([Event::SnapshotSent { region, from, to, number, ok }]);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use flotilla_region::{Descriptor, Message, MessageKind, Peer, Space, Term};
    use flotilla_vfs::fault::FaultFs;

    use super::*;
    use crate::config::SnapshotConfig;
    use crate::driver::shard_message::ShardMessage;
    use crate::test_store;
    use flotilla_dispatch::OpenLanes;
    use flotilla_region::RemovedPeers;

    fn region(id: u64, space: Space) -> Descriptor {
        let peer = |store| Peer { id: PeerId(id * 100 + store), store: StoreId(store) };
        Descriptor {
            removed: RemovedPeers::default(),
            id: RegionId(id),
            space,
            start: "".into(),
            end: "".into(),
            epoch: Epoch { conf_version: 1, version: 1 },
            peers: vec![peer(1).into(), peer(2).into()],
        }
    }

    fn wish(number: u64) -> SnapshotSend {
        let region = region(2, Space::Raw);
        let message = Message { kind: MessageKind::Snapshot, term: Term(9), ..Message::default() };
        let envelope = Envelope {
            region: region.id,
            from: region.peers[0].address(),
            to: region.peers[1].address(),
            epoch: region.epoch,
            gc_floor: Index(0),
            range: None,
            message,
        };
        SnapshotSend { number, envelope }
    }

    /// More than there are places for, to a store that has no address, by a sender that ends.
    #[tokio::test]
    async fn a_region_hears_of_each_snapshot_that_is_not_sent() {
        let disk = FaultFs::new(1);
        let regions = [region(1, Space::System), region(2, Space::Raw)];
        let (store, membership) = test_store::open_member(&disk, &regions);
        let mailboxes = Mailboxes::new(1, 1 << 20);
        let rate = ByteRate::new(SnapshotConfig::default(), Arc::new(|| 0));
        let damage = test_store::damage(&store, &mailboxes);
        let sender =
            SnapshotSender::new(membership, damage, mailboxes.clone(), Arc::default(), rate);
        let (wanted, wishes) = mpsc::unbounded_channel();
        let count = STREAMS_MAX as u64 + 2;
        (0..count).for_each(|number| wanted.send(wish(number)).unwrap());
        drop(wanted);
        sender.run(wishes).await;
        let (mut events, mut told) = (VecDeque::new(), Vec::new());
        // A task that was aborted ends at its next await.
        while told.len() < count as usize {
            tokio::task::yield_now().await;
            let open = OpenLanes { appends: true, clients: true };
            mailboxes.at(0).take(&mut events, open, Some(Instant::now()));
            for message in events.drain(..) {
                let ShardMessage::Event(Event::SnapshotSent { number, ok: false, to, .. }) =
                    message
                else {
                    panic!("no stream began")
                };
                assert_eq!(to, PeerId(202));
                told.push(number);
            }
        }
        told.sort_unstable();
        assert_eq!(told, (0..count).collect::<Vec<_>>());
    }
}
