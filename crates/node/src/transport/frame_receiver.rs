//! Receives frames of other stores, checks their addressee, and feeds the shards.
//!
//! A frame that is for another store, or that cannot be read, ends its stream with a status that
//! says why; the sender logs it and comes back later. A shard that is behind is felt as a stream
//! that is not read, and so as a full queue at the sender (backpressure).

use std::collections::BTreeMap;
use std::sync::Arc;

use flotilla_dispatch::{Lane, StreamKind, message_weight};
use flotilla_identity::StoreRun;
use flotilla_proto::peers::peers_server::Peers;
use flotilla_proto::peers::{
    BeginRequest, BootstrapResponse, Done, FormRequest, Frame, HelloResponse, PrepareRequest,
    SnapshotPart, StoreHello,
};
use flotilla_region::{DiskUsage, Event, StoreId};
use flotilla_store::Store;
use parking_lot::Mutex;
use tonic::{Request, Response, Status, Streaming};

use super::convert;
use super::counters::TransportCounters;
use super::snapshots::{ByteRate, SnapshotReceiver, VerdictStream};
use crate::driver::disk_view::DiskView;
use crate::driver::shard_message::{Mailboxes, ShardMessage};
use crate::drop_notify::DropNotify;
use crate::membership::{
    Membership, WireQuestion, bootstrap_from_wire, bootstrap_response_to_wire, uuid_from_wire,
};
use crate::net::connection::ConnectionPeer;

/// Bytes that a notice counts for in a mailbox.
const NOTICE_BYTES: usize = 64;

/// The receiving side of all streams.
pub(crate) struct FrameReceiver {
    membership: Membership,
    mailboxes: Mailboxes,
    counts: Arc<TransportCounters>,
    /// How many streams of a kind each store has opened; only the latest is listened to.
    opened: Mutex<BTreeMap<(StoreId, StreamKind), u64>>,
    snapshots: Arc<SnapshotReceiver>,
    disks: Arc<DiskView>,
}

impl FrameReceiver {
    /// A receiver that listens to the stores whose handshakes were taken, and stages their
    /// snapshots in `store` as they come at `snapshot_rate`.
    pub(crate) fn new(
        membership: Membership,
        store: Arc<DropNotify<Store>>,
        mailboxes: Mailboxes,
        counts: Arc<TransportCounters>,
        (snapshot_rate, disks): (ByteRate, Arc<DiskView>),
    ) -> Self {
        let snapshots = Arc::new(SnapshotReceiver::new(
            membership.clone(),
            store,
            mailboxes.clone(),
            Arc::clone(&counts),
            (snapshot_rate, Arc::clone(&disks)),
        ));
        Self { membership, mailboxes, counts, opened: Mutex::default(), snapshots, disks }
    }

    async fn listen(
        &self,
        kind: StreamKind,
        frames: Request<Streaming<Frame>>,
    ) -> Result<Response<Done>, Status> {
        let peer = ConnectionPeer::of(frames.extensions());
        let mut frames = frames.into_inner();
        let Some(mut frame) = frames.message().await? else {
            return Ok(Response::new(Done {}));
        };
        let from = StoreId(frame.from_store);
        self.check(&frame, from)?;
        peer.check_store(&self.membership.name_of(from))?;
        let number = self.supersede(from, kind);
        loop {
            // The newer stream may have superseded this one while it waited for a frame.
            if self.opened.lock().get(&(from, kind)) != Some(&number) {
                return Err(Status::aborted("the store has opened a newer stream"));
            }
            self.feed(kind, frame).await?;
            match frames.message().await? {
                Some(next) => frame = next,
                None => return Ok(Response::new(Done {})),
            }
            self.check(&frame, from)?;
        }
    }

    /// Makes the stream that asks the one that is listened to.
    fn supersede(&self, from: StoreId, kind: StreamKind) -> u64 {
        let mut opened = self.opened.lock();
        let number = opened.entry((from, kind)).or_default();
        *number += 1;
        *number
    }

    fn check(&self, frame: &Frame, from: StoreId) -> Result<(), Status> {
        let own = self.membership.id();
        if frame.cluster_id != own.cluster_id {
            return Err(Status::failed_precondition(format!(
                "the frame is of cluster {}, this store of cluster {}: compare addresses",
                frame.cluster_id, own.cluster_id
            )));
        }
        if frame.to_store != own.store.0 {
            return Err(Status::failed_precondition(format!(
                "the frame is for store {}, this is store {}: compare addresses",
                frame.to_store, own.store
            )));
        }
        if frame.from_store != from.0 {
            return Err(Status::failed_precondition(format!(
                "the frame says that it is from store {}, and its stream is that of store {from}",
                frame.from_store
            )));
        }
        let uuid = uuid_from_wire(&frame.uuid)?;
        let run = StoreRun { starts: frame.starts, nonce: frame.nonce };
        self.membership.check_sender(from, uuid, run)?;
        self.membership.note_log_end(from, frame.log_end);
        self.disks.note(from, DiskUsage::from_number(frame.disk_usage));
        Ok(())
    }

    async fn feed(&self, kind: StreamKind, frame: Frame) -> Result<(), Status> {
        let lane = match kind {
            StreamKind::Urgent => Lane::Urgent,
            StreamKind::Appends => Lane::Appends,
        };
        let mut bytes = 0;
        for message in frame.messages {
            let envelope = convert::from_wire(message)
                .map_err(|error| Status::invalid_argument(error.to_string()))?;
            if envelope.from.store.0 != frame.from_store
                || envelope.to.store != self.membership.id().store
            {
                return Err(Status::invalid_argument(format!(
                    "a message of region {} goes from store {} to store {}, its frame does not",
                    envelope.region, envelope.from.store, envelope.to.store
                )));
            }
            let weight = message_weight(&envelope);
            bytes += weight;
            let mailbox = self.mailboxes.of(envelope.region);
            let message = ShardMessage::Event(Event::Message(envelope));
            let sent = mailbox.send(lane, message, weight).await;
            sent.map_err(|_| Status::unavailable("the store stops"))?;
        }
        if kind == StreamKind::Appends && !frame.notices.is_empty() {
            return Err(Status::invalid_argument("notices are sent on the urgent stream"));
        }
        // The stores of the frame are those of the stream, as was checked.
        let stores = (StoreId(frame.from_store), self.membership.id().store);
        for notice in frame.notices {
            let notice = convert::notice_from_wire(notice, stores)
                .map_err(|error| Status::invalid_argument(error.to_string()))?;
            let mailbox = self.mailboxes.of(notice.region);
            let message = ShardMessage::Event(Event::Notice(notice));
            let sent = mailbox.send(lane, message, NOTICE_BYTES).await;
            sent.map_err(|_| Status::unavailable("the store stops"))?;
        }
        self.counts.count_frame_received(bytes);
        Ok(())
    }
}

#[tonic::async_trait]
impl Peers for FrameReceiver {
    async fn urgent(&self, frames: Request<Streaming<Frame>>) -> Result<Response<Done>, Status> {
        self.listen(StreamKind::Urgent, frames).await
    }

    async fn appends(&self, frames: Request<Streaming<Frame>>) -> Result<Response<Done>, Status> {
        self.listen(StreamKind::Appends, frames).await
    }

    type SnapshotStream = VerdictStream;

    async fn snapshot(
        &self,
        parts: Request<Streaming<SnapshotPart>>,
    ) -> Result<Response<VerdictStream>, Status> {
        let peer = ConnectionPeer::of(parts.extensions());
        Ok(Response::new(self.snapshots.receive(parts.into_inner(), peer)))
    }

    async fn hello(&self, hello: Request<StoreHello>) -> Result<Response<HelloResponse>, Status> {
        ConnectionPeer::of(hello.extensions()).check_store(&hello.get_ref().name)?;
        Ok(Response::new(self.membership.answer(hello.into_inner()).await?))
    }

    async fn prepare(
        &self,
        request: Request<PrepareRequest>,
    ) -> Result<Response<BootstrapResponse>, Status> {
        self.answer_bootstrap(WireQuestion::Prepare(request.into_inner()))
    }

    async fn form(
        &self,
        request: Request<FormRequest>,
    ) -> Result<Response<BootstrapResponse>, Status> {
        self.answer_bootstrap(WireQuestion::Form(request.into_inner()))
    }

    async fn begin(
        &self,
        request: Request<BeginRequest>,
    ) -> Result<Response<BootstrapResponse>, Status> {
        self.answer_bootstrap(WireQuestion::Begin(request.into_inner()))
    }
}

impl FrameReceiver {
    fn answer_bootstrap(
        &self,
        question: WireQuestion,
    ) -> Result<Response<BootstrapResponse>, Status> {
        let response = self.membership.answer_bootstrap(&bootstrap_from_wire(question)?);
        Ok(Response::new(bootstrap_response_to_wire(response)))
    }
}
