//! Takes frames of other stores, checks that they are meant for this one, and feeds the shards.
//!
//! A frame that is not, or that cannot be read, ends its stream with a status that says why; the
//! sender logs it and comes back later. A shard that is behind is felt as a stream that does not
//! read, and so as a full queue at the sender.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use flotilla_proto::peers::peers_server::Peers;
use flotilla_proto::peers::{Done, Frame};
use flotilla_region::{Event, StoreId};
use parking_lot::Mutex;
use tonic::{Request, Response, Status, Streaming};

use super::convert;
use super::counts::Counts;
use super::queue::{Kind, weight};
use crate::config::Settled;
use crate::letters::{Letter, Mailboxes};
use crate::mailbox::Lane;

/// The receiving side of all streams.
pub(crate) struct Receiver {
    cluster_id: u64,
    own: StoreId,
    known: BTreeSet<StoreId>,
    mailboxes: Mailboxes,
    counts: Arc<Counts>,
    /// How many streams of a kind each store has opened; only the latest is listened to.
    opened: Mutex<BTreeMap<(StoreId, Kind), u64>>,
}

impl Receiver {
    /// A receiver that listens to the other initial stores.
    pub(crate) fn new(settled: &Settled, mailboxes: Mailboxes, counts: Arc<Counts>) -> Self {
        Self {
            cluster_id: settled.config.cluster_id,
            own: settled.store(),
            known: settled.members.iter().map(|member| member.store).collect(),
            mailboxes,
            counts,
            opened: Mutex::default(),
        }
    }

    async fn listen(
        &self,
        kind: Kind,
        mut frames: Streaming<Frame>,
    ) -> Result<Response<Done>, Status> {
        let Some(mut frame) = frames.message().await? else {
            return Ok(Response::new(Done {}));
        };
        let from = StoreId(frame.from_store);
        self.check(&frame, from)?;
        let number = self.supersede(from, kind);
        loop {
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
    fn supersede(&self, from: StoreId, kind: Kind) -> u64 {
        let mut opened = self.opened.lock();
        let number = opened.entry((from, kind)).or_default();
        *number += 1;
        *number
    }

    fn check(&self, frame: &Frame, from: StoreId) -> Result<(), Status> {
        if frame.cluster_id != self.cluster_id {
            return Err(Status::failed_precondition(format!(
                "the frame is of cluster {}, this store of cluster {}: compare initial_cluster",
                frame.cluster_id, self.cluster_id
            )));
        }
        if frame.to_store != self.own.0 {
            return Err(Status::failed_precondition(format!(
                "the frame is for store {}, this is store {}: compare addresses",
                frame.to_store, self.own
            )));
        }
        if frame.from_store != from.0 || from == self.own || !self.known.contains(&from) {
            return Err(Status::failed_precondition(format!(
                "the frame says that it is from store {}, which store {} does not expect",
                frame.from_store, self.own
            )));
        }
        Ok(())
    }

    async fn feed(&self, kind: Kind, frame: Frame) -> Result<(), Status> {
        let lane = match kind {
            Kind::Urgent => Lane::Urgent,
            Kind::Appends => Lane::Appends,
        };
        let mut bytes = 0;
        for message in frame.messages {
            let envelope = convert::from_wire(message)
                .map_err(|error| Status::invalid_argument(error.to_string()))?;
            if envelope.from.store.0 != frame.from_store || envelope.to.store != self.own {
                return Err(Status::invalid_argument(format!(
                    "a message of region {} goes from store {} to store {}, its frame does not",
                    envelope.region, envelope.from.store, envelope.to.store
                )));
            }
            let weight = weight(&envelope);
            bytes += weight;
            let mailbox = self.mailboxes.of(envelope.region);
            let letter = Letter::Event(Event::Message(envelope));
            let sent = mailbox.send(lane, letter, weight).await;
            sent.map_err(|_| Status::unavailable("the store stops"))?;
        }
        self.counts.count_frame_received(bytes);
        Ok(())
    }
}

#[tonic::async_trait]
impl Peers for Receiver {
    async fn urgent(&self, frames: Request<Streaming<Frame>>) -> Result<Response<Done>, Status> {
        self.listen(Kind::Urgent, frames.into_inner()).await
    }

    async fn appends(&self, frames: Request<Streaming<Frame>>) -> Result<Response<Done>, Status> {
        self.listen(Kind::Appends, frames.into_inner()).await
    }
}
