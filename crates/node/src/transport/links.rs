//! The links to all other stores: two queues and two streams each.

use std::collections::BTreeMap;
use std::sync::Arc;

use flotilla_region::{Envelope, Event, MessageKind, Notice, SnapshotSend, StoreId};
use flotilla_store::Store;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::counters::TransportCounters;
use super::fault::LinkFault;
use super::peer_stream::PeerStream;
use super::send_queue::{SendQueue, StreamKind};
use super::snapshots::SnapshotSender;
use crate::driver::shard_message::Mailboxes;
use crate::driver::shard_thread::MessageSink;
use crate::drop_notify::DropNotify;
use crate::membership::Membership;

/// The queues to one other store.
struct PeerLink {
    urgent: Arc<SendQueue>,
    appends: Arc<SendQueue>,
    fault: Arc<LinkFault>,
}

/// The state of the connections to other stores, for the log and for operators. Cheap to clone.
#[derive(Clone)]
pub(crate) struct PeerConnections {
    links: Arc<BTreeMap<StoreId, PeerLink>>,
}

impl PeerConnections {
    /// Whether messages flow to `store`, of both kinds.
    pub(crate) fn is_up(&self, store: StoreId) -> bool {
        let is_up = |link: &PeerLink| link.urgent.is_up() && link.appends.is_up();
        self.links.get(&store).is_some_and(is_up)
    }

    /// Why there was no connection to `store` when there last was none.
    pub(crate) fn fault(&self, store: StoreId) -> Option<String> {
        self.links.get(&store)?.fault.last()
    }

    /// How many other stores messages flow to.
    pub(crate) fn up_count(&self) -> usize {
        self.links.keys().filter(|store| self.is_up(**store)).count()
    }
}

/// The outgoing side of the transport, for shards. Sending never waits.
pub(crate) struct PeerTransport {
    links: Arc<BTreeMap<StoreId, PeerLink>>,
    /// Never many: a replica asks for one snapshot of each follower at a time.
    snapshots: mpsc::UnboundedSender<SnapshotSend>,
    counts: Arc<TransportCounters>,
}

impl PeerTransport {
    /// Queues to all stores but this one, and a task for each stream, started on `tasks`; and one
    /// that sends the snapshots of `store`.
    pub(crate) fn start(
        membership: &Membership,
        store: &Arc<DropNotify<Store>>,
        limits: TransportLimits,
        mailboxes: &Mailboxes,
        tasks: &mut JoinSet<()>,
    ) -> Self {
        let counts = Arc::new(TransportCounters::default());
        let TransportLimits { queue_bytes_max, snapshot_bytes_per_s } = limits;
        let (snapshots, wanted) = mpsc::unbounded_channel();
        let sender = SnapshotSender::new(
            membership.clone(),
            Arc::clone(store),
            mailboxes.clone(),
            Arc::clone(&counts),
            snapshot_bytes_per_s,
        );
        tasks.spawn(sender.run(wanted));
        let mut links = BTreeMap::new();
        let own = membership.id().store;
        for other in membership.stores().into_iter().filter(|other| other.store != own) {
            let urgent = Arc::new(SendQueue::new(queue_bytes_max, StreamKind::Urgent));
            let appends = Arc::new(SendQueue::new(queue_bytes_max, StreamKind::Appends));
            let fault = Arc::new(LinkFault::default());
            for (queue, kind) in [(&urgent, StreamKind::Urgent), (&appends, StreamKind::Appends)] {
                let sender = PeerStream {
                    kind,
                    membership: membership.clone(),
                    to: other.store,
                    queue: Arc::clone(queue),
                    fault: Arc::clone(&fault),
                    mailboxes: mailboxes.clone(),
                    counts: Arc::clone(&counts),
                };
                tasks.spawn(sender.run());
            }
            links.insert(other.store, PeerLink { urgent, appends, fault });
        }
        Self { links: Arc::new(links), snapshots, counts }
    }

    /// The state of the links.
    pub(crate) fn connections(&self) -> PeerConnections {
        PeerConnections { links: Arc::clone(&self.links) }
    }

    /// The counters of both directions.
    pub(crate) fn counters(&self) -> &Arc<TransportCounters> {
        &self.counts
    }
}

/// Bounds on what waits for other stores, and flows to them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TransportLimits {
    /// Bytes in the queue of each stream.
    pub(crate) queue_bytes_max: usize,
    /// Bytes of all snapshots in a second; 0 for any number.
    pub(crate) snapshot_bytes_per_s: u64,
}

impl MessageSink for PeerTransport {
    /// Only lost entries make a difference to raft.
    fn send(&self, envelope: Envelope) -> Option<Event> {
        let append = envelope.message.kind == MessageKind::Append;
        // Entries in a queue of their own, so that heartbeats are never behind them.
        let (region, peer) = match self.links.get(&envelope.to.store) {
            Some(link) if append => link.appends.push(envelope),
            Some(link) => link.urgent.push(envelope),
            None => Some((envelope.region, envelope.to.id)),
        }?;
        self.counts.count_message_dropped();
        append.then_some(Event::Unreachable { region, peer })
    }

    fn send_notice(&self, notice: Notice) {
        let link = self.links.get(&notice.to);
        if !link.is_some_and(|link| link.urgent.push_notice(notice)) {
            self.counts.count_message_dropped();
        }
    }

    fn send_snapshot(&self, send: SnapshotSend) {
        // An error means that the node stops: its regions hear nothing any more.
        let _ = self.snapshots.send(send);
    }
}
