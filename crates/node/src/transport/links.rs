//! The links to all other stores: two queues and two streams each. A store that joins gets its link
//! as soon as the registry here has it.

use std::collections::BTreeMap;
use std::sync::Arc;

use flotilla_dispatch::StreamKind;
use flotilla_region::{Envelope, Event, Notice, SnapshotSend, StoreId};
use parking_lot::RwLock;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

use super::counters::TransportCounters;
use super::fault::LinkFault;
use super::peer_stream::PeerStream;
use super::send_queue::SendQueue;
use super::snapshots::{ByteRate, SnapshotSender};
use crate::driver::disk_view::DiskView;
use crate::driver::shard_message::Mailboxes;
use crate::driver::shard_thread::MessageSink;
use crate::driver::workers::page_damage::PageDamage;
use crate::membership::Membership;

/// The queues to one other store.
struct PeerLink {
    urgent: Arc<SendQueue>,
    appends: Arc<SendQueue>,
    fault: Arc<LinkFault>,
    /// The tasks of the two streams.
    streams: [AbortHandle; 2],
}

/// All links, by store.
#[derive(Default)]
struct LinkTable {
    links: RwLock<BTreeMap<StoreId, PeerLink>>,
}

/// The state of the connections to other stores, for the log and for operators. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct PeerConnections {
    table: Arc<LinkTable>,
}

impl PeerConnections {
    /// Whether messages flow to `store`, of both kinds.
    pub(crate) fn is_up(&self, store: StoreId) -> bool {
        self.table.links.read().get(&store).is_some_and(PeerLink::is_up)
    }

    /// Why there was no connection to `store` when there last was none.
    pub(crate) fn fault(&self, store: StoreId) -> Option<String> {
        self.table.links.read().get(&store)?.fault.last()
    }

    /// How many other stores messages flow to.
    pub(crate) fn up_count(&self) -> usize {
        self.table.links.read().values().filter(|link| link.is_up()).count()
    }
}

impl PeerLink {
    fn is_up(&self) -> bool {
        self.urgent.is_up() && self.appends.is_up()
    }
}

/// Opens a link to each store of the registry that takes part, and closes those to others.
struct LinkOpener {
    membership: Membership,
    mailboxes: Mailboxes,
    disks: Arc<DiskView>,
    counts: Arc<TransportCounters>,
    queue_bytes_max: usize,
    table: Arc<LinkTable>,
    /// The streams; they end with the opener.
    streams: JoinSet<()>,
}

impl LinkOpener {
    /// Opens links as stores join, and closes them as stores go, until it is aborted.
    async fn run(mut self) {
        let mut changes = self.membership.registry_changes();
        loop {
            changes.borrow_and_update();
            self.open_missing();
            self.close_gone();
            // The membership lives as long as this.
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    fn open_missing(&mut self) {
        let own = self.membership.id().store;
        for record in self.membership.registry().stores {
            // A store that is gone for good is not dialled.
            let is_wanted = record.id != own && record.is_here();
            if is_wanted && !self.table.links.read().contains_key(&record.id) {
                let link = self.open(record.id);
                self.table.links.write().insert(record.id, link);
            }
        }
    }

    /// A store that is gone for good is not dialled: its address may be that of its successor.
    fn close_gone(&mut self) {
        let is_gone = |store: &StoreId| self.membership.is_gone(*store);
        let mut links = self.table.links.write();
        for (_, link) in links.extract_if(.., |store, _| is_gone(store)) {
            link.streams.iter().for_each(AbortHandle::abort);
        }
        drop(links);
        // Else a cluster that replaces a store each day collects the ends of their tasks.
        while self.streams.try_join_next().is_some() {}
    }

    fn open(&mut self, to: StoreId) -> PeerLink {
        let urgent = Arc::new(SendQueue::new(self.queue_bytes_max, StreamKind::Urgent));
        let appends = Arc::new(SendQueue::new(self.queue_bytes_max, StreamKind::Appends));
        let fault = Arc::new(LinkFault::default());
        let kinds = [(&urgent, StreamKind::Urgent), (&appends, StreamKind::Appends)];
        let streams = kinds.map(|(queue, kind)| {
            let sender = PeerStream {
                kind,
                membership: self.membership.clone(),
                to,
                queue: Arc::clone(queue),
                fault: Arc::clone(&fault),
                mailboxes: self.mailboxes.clone(),
                disks: Arc::clone(&self.disks),
                counts: Arc::clone(&self.counts),
            };
            self.streams.spawn(sender.run())
        });
        PeerLink { urgent, appends, fault, streams }
    }
}

/// The outgoing side of the transport, for shards. Sending never waits.
pub(crate) struct PeerTransport {
    membership: Membership,
    table: Arc<LinkTable>,
    /// Never many: a replica asks for one snapshot of each follower at a time.
    snapshots: mpsc::UnboundedSender<SnapshotSend>,
    counts: Arc<TransportCounters>,
}

impl PeerTransport {
    /// Queues to all stores but this one, with their streams, and to those that join later, by a
    /// task started on `tasks`; and one that sends the store's snapshots.
    pub(crate) fn start(
        membership: &Membership,
        damage: PageDamage,
        limits: TransportLimits,
        mailboxes: &Mailboxes,
        disks: &Arc<DiskView>,
        tasks: &mut JoinSet<()>,
    ) -> Self {
        let counts = Arc::new(TransportCounters::default());
        let TransportLimits { queue_bytes_max, snapshot_rate } = limits;
        let (snapshots, wanted) = mpsc::unbounded_channel();
        let sender = SnapshotSender::new(
            membership.clone(),
            damage,
            mailboxes.clone(),
            Arc::clone(&counts),
            snapshot_rate,
        );
        tasks.spawn(sender.run(wanted));
        let table = Arc::new(LinkTable::default());
        let mut opener = LinkOpener {
            membership: membership.clone(),
            mailboxes: mailboxes.clone(),
            disks: Arc::clone(disks),
            counts: Arc::clone(&counts),
            queue_bytes_max,
            table: Arc::clone(&table),
            streams: JoinSet::new(),
        };
        // At once: no message to a known store may find no queue.
        opener.open_missing();
        tasks.spawn(opener.run());
        Self { membership: membership.clone(), table, snapshots, counts }
    }

    /// The state of the links.
    pub(crate) fn connections(&self) -> PeerConnections {
        PeerConnections { table: Arc::clone(&self.table) }
    }

    /// The counters of both directions.
    pub(crate) fn counters(&self) -> &Arc<TransportCounters> {
        &self.counts
    }
}

/// Bounds on what waits for other stores, and flows to them.
pub(crate) struct TransportLimits {
    /// Bytes in the queue of each stream.
    pub(crate) queue_bytes_max: usize,
    /// The rate of all snapshots.
    pub(crate) snapshot_rate: ByteRate,
}

impl MessageSink for PeerTransport {
    /// Only lost entries make a difference to raft.
    fn send(&self, envelope: Envelope) -> Option<Event> {
        let kind = StreamKind::of(envelope.message.kind);
        let links = self.table.links.read();
        let dropped = match links.get(&envelope.to.store) {
            Some(link) => match kind {
                StreamKind::Urgent => link.urgent.push(envelope),
                StreamKind::Appends => link.appends.push(envelope),
            },
            None => vec![(envelope.region, envelope.to.id)],
        };
        dropped.iter().for_each(|_| self.counts.count_message_dropped());
        // Of entries only the new ones are dropped.
        let (region, peer) = dropped.into_iter().next_back()?;
        (kind == StreamKind::Appends).then_some(Event::Unreachable { region, peer })
    }

    fn send_notice(&self, notice: Notice) -> Option<Event> {
        let links = self.table.links.read();
        let Some(link) = links.get(&notice.to) else {
            drop(links);
            self.counts.count_message_dropped();
            // Nothing answers there any more.
            let answer = notice.answer_of_gone_store()?;
            return self.membership.is_gone(notice.to).then_some(Event::Notice(answer));
        };
        if !link.urgent.push_notice(notice) {
            self.counts.count_message_dropped();
        }
        None
    }

    fn send_snapshot(&self, send: SnapshotSend) {
        // An error means that the node stops: its regions hear nothing any more.
        let _ = self.snapshots.send(send);
    }
}

#[cfg(test)]
mod tests {
    use flotilla_identity::{StoreRecord, StoreRegistry, StoreState, StoreUuid};
    use flotilla_region::{
        Descriptor, Epoch, NoticeKind, Peer, PeerId, RegionId, RemovedPeers, Space,
    };
    use flotilla_vfs::fault::FaultFs;

    use super::*;
    use crate::config::SnapshotConfig;
    use crate::test_store;

    fn region() -> Descriptor {
        Descriptor {
            removed: RemovedPeers::default(),
            id: RegionId(1),
            space: Space::System,
            start: "".into(),
            end: "".into(),
            epoch: Epoch { conf_version: 1, version: 1 },
            peers: vec![Peer { id: PeerId(101), store: StoreId(1) }.into()],
        }
    }

    fn notice(kind: NoticeKind) -> Notice {
        let (from, to) = (StoreId(1), StoreId(2));
        let epoch = Epoch { conf_version: 3, version: 1 };
        Notice { region: RegionId(1), from, to, kind, peer: PeerId(102), epoch }
    }

    /// The registry with a second store in this state.
    fn grown(before: &StoreRegistry, state: StoreState) -> StoreRegistry {
        let mut after = before.clone();
        after.version += 1;
        after.stores.retain(|store| store.id == StoreId(1));
        let (id, uuid, address) = (StoreId(2), StoreUuid(2), "127.0.0.1:1".to_owned());
        after.stores.push(StoreRecord { id, uuid, address, state, ..StoreRecord::default() });
        after
    }

    #[tokio::test]
    async fn the_link_to_a_store_that_is_lost_is_closed_and_it_is_not_waited_for() {
        let (store, membership) = test_store::open_member(&FaultFs::new(1), &[region()]);
        let up = grown(&membership.registry(), StoreState::Up);
        assert!(membership.learn_registry(up.clone()).await);
        let mailboxes = Mailboxes::new(1, 1 << 20);
        let snapshot_rate = ByteRate::new(SnapshotConfig::default(), Arc::new(|| 0));
        let limits = TransportLimits { queue_bytes_max: 1 << 20, snapshot_rate };
        let mut tasks = JoinSet::new();
        let disks = test_store::disks(&mailboxes);
        let damage = test_store::damage(&store, &mailboxes);
        let transport =
            PeerTransport::start(&membership, damage, limits, &mailboxes, &disks, &mut tasks);
        let is_open = || transport.table.links.read().contains_key(&StoreId(2));
        assert!(is_open());
        assert_eq!(transport.send_notice(notice(NoticeKind::End)), None, "it may answer");
        assert!(membership.learn_registry(grown(&up, StoreState::Lost)).await);
        while is_open() {
            tokio::task::yield_now().await;
        }
        let answer = transport.send_notice(notice(NoticeKind::End));
        let Some(Event::Notice(answer)) = answer else { panic!("{answer:?}") };
        assert_eq!((answer.kind, answer.from), (NoticeKind::Ended, StoreId(2)));
        assert_eq!(transport.send_notice(notice(NoticeKind::WhoIs)), None);
        let stores: Vec<_> = membership.stores().iter().map(|known| known.store).collect();
        assert_eq!((stores, membership.registered_stores().len()), (vec![StoreId(1)], 2));
    }
}
