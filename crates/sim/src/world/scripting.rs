//! The hands of a script: what the named cases do to a cluster.

use flotilla_identity::{ClusterSettings, SettingChange};
use flotilla_region::{
    Descriptor, Envelope, Event, Index, Message, MessageKind, PeerId, RegionId, Role, Stats,
};

use super::{SimEvent, SimWorld};
use crate::event_queue::SimTime;
use crate::executor::{InstallArrow, TaskDelays};
use crate::layout;
use crate::network::{Partition, PassedSnapshots};
use crate::node::{DiskFill, SimNode};
use crate::request::{ClientRequest, RequestBody, RequestOwner};

impl SimWorld {
    /// Cuts a store off from all others.
    pub(crate) fn cut_off(&mut self, store: usize) {
        let alone = (0..self.nodes.len()).map(|place| place == store).collect();
        self.network.cut(&Partition::Split(alone), SimTime::MAX);
    }

    /// Mends all links.
    pub(crate) fn mend(&mut self) {
        self.network.heal();
    }

    /// Nothing that one store sends reaches the other.
    pub(crate) fn cut_link(&mut self, from: usize, to: usize) {
        self.network.cut(&Partition::Link { from, to }, SimTime::MAX);
    }

    /// All that a store sends from now on arrives so much later.
    pub(crate) fn slow_down(&mut self, store: usize, us: u64) {
        self.network.slow_down(store, us, SimTime::MAX);
    }

    /// All that a store sends to one other from now on arrives so much later.
    pub(crate) fn slow_link(&mut self, from: usize, to: usize, us: u64) {
        self.network.slow_link(from, to, us);
    }

    /// The messages of a store arrive as ever again.
    pub(crate) fn hear_at_once(&mut self, store: usize) {
        self.network.slow_down(store, 0, SimTime::MAX);
    }

    /// A store loses power, and starts again after a while.
    pub(crate) fn lose_power_for(&mut self, store: usize, us: u64) {
        self.crash_for(store, true, us);
    }

    /// The process of a store ends, and starts again after a while; its writes stay.
    pub(crate) fn end_process(&mut self, store: usize, us: u64) {
        self.crash_for(store, false, us);
    }

    /// From now on until its next start, each batch that the store applies takes so long.
    pub(crate) fn slow_applying(&mut self, store: usize, us: u64) {
        let delays = TaskDelays {
            sync_us_max: 300,
            apply_us_min: us,
            apply_us_max: us,
            notify_us_max: 300,
            scan_us_max: 0,
        };
        self.nodes[store].set_delays(delays);
    }

    /// From now on until its next start, each sync of the store's log takes up to so long.
    pub(crate) fn slow_syncs(&mut self, store: usize, us: u64) {
        let delays = TaskDelays {
            sync_us_max: us,
            apply_us_min: 1,
            apply_us_max: 100,
            notify_us_max: 300,
            scan_us_max: 0,
        };
        self.nodes[store].set_delays(delays);
    }

    /// A store's disk is so full from now on.
    pub(crate) fn fill_disk(&mut self, store: usize, fill: DiskFill) {
        self.nodes[store].fill_disk(fill);
    }

    /// The store loses power when its next installation, or end, passes this arrow.
    pub(crate) fn cut_at_arrow(&mut self, store: usize, arrow: InstallArrow) {
        self.nodes[store].cut_at_arrow(Some(arrow));
    }

    /// From now on until its next start, the core of the store hears of all that is done so late,
    /// and reads and looks are carried out so late.
    pub(crate) fn slow_notices_of_work(&mut self, store: usize, us: u64) {
        let delays = TaskDelays {
            sync_us_max: 300,
            apply_us_min: 1,
            apply_us_max: 100,
            notify_us_max: us,
            scan_us_max: 0,
        };
        self.nodes[store].set_delays(delays);
    }

    /// An id that no replica has had.
    pub(crate) fn new_peer(&mut self) -> PeerId {
        self.swarm.membership().new_id()
    }

    /// Lets some snapshots pass.
    pub(crate) fn pass_snapshots(&mut self, passed: PassedSnapshots) {
        self.network.pass_snapshots(passed);
    }

    /// A replica gets the word of a leader to campaign, at once.
    pub(crate) fn call_to_campaign(&mut self, region: RegionId, leader: usize, to: usize) {
        let described = self.reference_model.descriptor(region).expect("it was made");
        let peer = |store| described.peer_on(layout::id(store)).expect("it is a member");
        let term = self.nodes[leader].status(region).expect("it is there").term;
        let kind = MessageKind::TimeoutNow;
        let envelope = Envelope {
            region,
            from: peer(leader),
            to: peer(to),
            epoch: described.epoch,
            gc_floor: Index(0),
            range: None,
            message: Message { kind, term, ..Message::default() },
        };
        self.nodes[to].post(Event::Message(envelope), &mut self.out);
        self.dispatch(to, Ok(())).expect("nothing is done yet");
    }

    /// An operator changes a setting of the cluster. The first time placement begins to look.
    pub(crate) fn change_setting(&mut self, change: SettingChange) {
        if self.swarm.settings().row().version == ClusterSettings::default().version {
            self.schedule(1, SimEvent::RollOut);
        }
        assert!(self.swarm.settings().write(change), "{change:?} changes nothing");
    }

    /// The settings in the row of the system region.
    pub(crate) fn settings_row(&mut self) -> ClusterSettings {
        self.swarm.settings().row()
    }

    /// Whether a store leads a region.
    pub(crate) fn leads(&self, store: usize, region: RegionId) -> bool {
        self.nodes[store].status(region).is_some_and(|status| status.role == Role::Leader)
    }

    /// A split of a region at these keys, with new ids.
    pub(crate) fn split_request(
        &mut self,
        region: &Descriptor,
        ends: &[&[u8]],
        store: usize,
    ) -> ClientRequest {
        let ends = ends.iter().map(|end| end.to_vec().into()).collect();
        let command = self.splits.command(region, ends);
        ClientRequest::new(RequestOwner::Operator, region, store, RequestBody::Split(command))
    }

    /// The store that leads a region, if there is one.
    pub(crate) fn leading(&self, region: RegionId) -> Option<usize> {
        self.leader(region)
    }

    /// The counters of a store's core.
    pub(crate) fn core_stats(&self, store: usize) -> Stats {
        self.nodes[store].core_stats()
    }

    /// From now on replicas may differ.
    pub(crate) fn allow_differences(&mut self) {
        self.reference_model.allow_differences();
    }

    /// Changes a row on the disk of a store that is down.
    pub(crate) fn alter_row(&mut self, store: usize, key: &[u8], row: &[u8]) {
        self.nodes[store].alter_row(key, row);
    }

    /// Flips a bit of the leaf that has this key on the disk of a store that is down.
    pub(crate) fn rot(&mut self, store: usize, key: &[u8]) {
        self.nodes[store].rot(key);
    }

    /// Whether a store has heard that this one leads a region.
    pub(crate) fn knows_leader(&self, leader: usize, store: usize, region: RegionId) -> bool {
        let known = self.nodes[store].status(region).and_then(|status| status.leader);
        known.is_some_and(|known| known.store == layout::id(leader))
    }

    /// All stores are up and members.
    pub(crate) fn is_whole(&self) -> bool {
        self.nodes.iter().all(SimNode::is_running)
    }
}
