//! A cluster that a script leads through a case.

use bytes::Bytes;
use fastrand::Rng;
use flotilla_kv::raw::RawOp;
use flotilla_region::{Config, Descriptor, Index, RegionId, SplitLimits, Status, Ticket};

use crate::coverage::SnapshotCoverage;
use crate::faults::Swarm;
use crate::layout;
use crate::node::RunSettings;
use crate::request::{ClientRequest, RequestBody, RequestOwner, RequestState};
use crate::run;
use crate::split_planner::SplitPlanner;
use crate::trace::Trace;
use crate::world::SimWorld;

/// The region of the clients' keys.
pub(super) const DATA: RegionId = RegionId(2);
/// A script waits no longer than this.
const PATIENCE_US: u64 = 10_000_000;

/// Replicas of the data region at first.
const REPLICAS: usize = 3;

/// Three stores in which nothing goes wrong by itself, and no root is made: what a store has
/// applied is gone after a loss of power.
pub(super) struct Scenario {
    pub(super) world: SimWorld,
    /// The store that leads the data region at first, and the two others.
    pub(super) leader: usize,
    pub(super) followers: [usize; 2],
}

/// Between two roots, at most, of scenarios that have some.
const ROOTS_US: u64 = 400_000;
/// Bytes of entries that are kept for others where logs are short.
const KEPT_BYTES: u64 = 4 << 10;
/// Bytes of a value.
const VALUE_BYTES: usize = 100;
/// Puts until others have let go of what a store lacks are fewer than this.
const PUTS_MAX: usize = 1_000;

impl Scenario {
    pub(super) fn new(seed: u64) -> Self {
        Self::of(seed, Swarm::calm(3), |_| ())
    }

    /// The same, with roots.
    pub(super) fn with_roots(seed: u64) -> Self {
        Self::of(seed, with_roots(REPLICAS), |_| ())
    }

    /// The same, with roots, and logs that are kept for others for a short time only.
    pub(super) fn with_short_logs(seed: u64) -> Self {
        Self::of(seed, with_roots(REPLICAS), |config| {
            config.window.log_kept_region_bytes = KEPT_BYTES;
            config.window.log_kept_bytes_max = KEPT_BYTES;
        })
    }

    /// With roots; no page is read unless a task needs it.
    pub(super) fn without_scrub(seed: u64) -> Self {
        Self::of_settings(seed, with_roots(REPLICAS), |settings| {
            settings.store.pages.scrub_interval = None;
        })
    }

    /// More stores, the first three of which have the data region; with roots.
    pub(super) fn wide(seed: u64, stores: usize) -> Self {
        Self::of(seed, with_roots(stores), |_| ())
    }

    /// The same, with logs that are kept for others for a short time only.
    pub(super) fn wide_with_short_logs(seed: u64, stores: usize) -> Self {
        Self::of(seed, with_roots(stores), |config| {
            config.window.log_kept_region_bytes = KEPT_BYTES;
            config.window.log_kept_bytes_max = KEPT_BYTES;
        })
    }

    /// The same, with so many keys that clients use.
    pub(super) fn with_keys(seed: u64, keys: usize) -> Self {
        let mut swarm = Swarm::calm(REPLICAS);
        swarm.keys_per_region = keys;
        Self::of(seed, swarm, |_| ())
    }

    /// The same, with regions that are split at these limits.
    pub(super) fn with_limits(seed: u64, limits: SplitLimits) -> Self {
        Self::of(seed, Swarm::calm(3), |config| config.split = limits)
    }

    fn of(seed: u64, swarm: Swarm, change: impl FnOnce(&mut Config)) -> Self {
        Self::of_settings(seed, swarm, |settings| change(&mut settings.region))
    }

    fn of_settings(seed: u64, swarm: Swarm, change: impl FnOnce(&mut RunSettings)) -> Self {
        let mut rng = Rng::with_seed(seed);
        let mut settings = run::settings(&swarm, &mut rng);
        // Runs by chance draw these.
        let window = Config::default().window;
        settings.region.window.log_kept_region_bytes = window.log_kept_region_bytes;
        settings.region.window.log_kept_bytes_max = window.log_kept_bytes_max;
        change(&mut settings);
        settings.store.size_check_bytes = 0;
        settings.is_comparing = false;
        settings.queue_bytes_max = run::QUEUE_BYTES;
        settings.backlog_max = run::QUEUE_BYTES;
        for region in &mut settings.regions[1..] {
            region.peers.truncate(REPLICAS);
        }
        let splits = SplitPlanner::idle(seed);
        let printed = std::env::var_os("FLOTILLA_SIM_TRACE").is_some();
        let world = SimWorld::new(swarm, splits, settings, rng, Trace::new(seed, printed));
        let mut scenario = Self { world, leader: 0, followers: [1, 2] };
        let is_ready = |world: &SimWorld| {
            let members = &world.nodes()[..REPLICAS];
            world.is_whole() && members.iter().all(|node| knows_leader(node.status(DATA)))
        };
        scenario.until("a leader", is_ready);
        scenario.run(200_000);
        let leader = scenario.world.leading(DATA).expect("there is one");
        scenario.leader = leader;
        scenario.followers = [(leader + 1) % REPLICAS, (leader + 2) % REPLICAS];
        scenario
    }

    /// Lets time pass.
    pub(super) fn run(&mut self, us: u64) {
        let end = self.world.now() + us;
        while self.world.now() < end {
            self.advance();
        }
    }

    /// Waits for something, and returns how long it took.
    pub(super) fn until(&mut self, what: &str, is_there: impl Fn(&SimWorld) -> bool) -> u64 {
        self.until_in(PATIENCE_US, what, is_there)
    }

    /// The same, with another patience.
    pub(super) fn until_in(
        &mut self,
        patience_us: u64,
        what: &str,
        is_there: impl Fn(&SimWorld) -> bool,
    ) -> u64 {
        let start = self.world.now();
        while !is_there(&self.world) {
            assert!(self.world.now() < start + patience_us, "{what} does not come");
            self.advance();
        }
        self.world.now() - start
    }

    fn advance(&mut self) {
        self.world.advance().unwrap_or_else(|broken| panic!("{broken}"));
    }

    /// A region in its newest form.
    pub(super) fn region(&self, region: RegionId) -> Descriptor {
        self.world.reference_model().descriptor(region).expect("it was made").clone()
    }

    pub(super) fn status(&self, store: usize, region: RegionId) -> Option<Status> {
        self.world.nodes()[store].status(region)
    }

    /// A key of the clients, of four.
    pub(super) fn key(&self, nth: usize) -> Bytes {
        self.world.workload().keys().nth(nth).expect("one of four").clone()
    }

    /// Asks for a split into two at the second key, so that the child has the first. Returns the
    /// child, which need not come to be.
    pub(super) fn split(&mut self, store: usize) -> (Ticket, RegionId) {
        let (region, end) = (self.region(DATA), self.key(1));
        self.split_at(store, &region, &end)
    }

    pub(super) fn split_at(
        &mut self,
        store: usize,
        region: &Descriptor,
        end: &[u8],
    ) -> (Ticket, RegionId) {
        let request = self.world.split_request(region, &[end], store);
        let RequestBody::Split(split) = &request.body else { unreachable!("a split") };
        let child = split.children[0].id;
        (self.world.send(request), child)
    }

    /// Asks a store for something, under the region's form as it is given.
    pub(super) fn ask(&mut self, store: usize, route: &Descriptor, body: RequestBody) -> Ticket {
        self.world.send(ClientRequest::new(RequestOwner::Auditor, route, store, body))
    }

    pub(super) fn put(&mut self, store: usize, route: &Descriptor, key: &Bytes) -> Ticket {
        let value = format!("put at {}", self.world.now()).into();
        let put = RawOp::put(key.clone(), value);
        self.ask(store, route, RequestBody::Write(vec![put]))
    }

    /// Writes to the last key of a region, one put after the other.
    pub(super) fn puts(&mut self, region: RegionId, count: usize) {
        for _ in 0..count {
            let put = self.put_last(region);
            self.served(put);
        }
    }

    /// The same, and it does not matter whether they are served.
    pub(super) fn try_puts(&mut self, region: RegionId, count: usize) {
        for _ in 0..count {
            let put = self.put_last(region);
            self.answered(put);
        }
    }

    fn put_last(&mut self, id: RegionId) -> Ticket {
        let region = self.region(id);
        let key = self.world.workload().keys_in(&region).pop().expect("it has keys of clients");
        let value = vec![self.world.now() as u8; VALUE_BYTES].into();
        let body = RequestBody::Write(vec![RawOp::put(key, value)]);
        // Another may not have noticed that it leads no more.
        let leader = Some(self.leader).filter(|store| self.world.leads(*store, id));
        let leader = leader.or(self.world.leading(id)).unwrap_or(self.leader);
        self.ask(leader, &region, body)
    }

    /// Cuts a store off, and writes until the others have let go of what it lacks of the data
    /// region.
    pub(super) fn fall_behind(&mut self, store: usize) {
        let last = self.status(store, DATA).expect("it is there").last;
        self.world.cut_off(store);
        self.let_go(DATA, last);
    }

    /// Writes to a region until all stores that hear its leader have let go of the entry behind
    /// `index`.
    pub(super) fn let_go(&mut self, region: RegionId, index: Index) {
        let beyond = Index(index.0 + 1);
        for _ in 0..PUTS_MAX {
            self.puts(region, 1);
            self.run(10_000);
            let leader = self.status(self.leader, region).expect("it is there");
            let followers = self.followers.map(|store| self.status(store, region));
            let others = followers.into_iter().flatten();
            let heard = others.filter(|status| status.last >= leader.commit);
            if leader.first > beyond && heard.clone().all(|status| status.first > beyond) {
                return;
            }
        }
        panic!("the logs are kept: {:?}", self.status(self.leader, region));
    }

    /// Waits until all replicas have applied all that any of them has.
    pub(super) fn all_are_level(&mut self, region: RegionId) {
        self.until("what others have", |world| {
            let listed = world.reference_model().descriptor(region);
            let peers = listed.into_iter().flat_map(|region| &region.peers);
            let status = |store| world.nodes()[layout::place(store)].status(region);
            let end = |status: Status| (status.applied, status.last);
            let ends: Vec<_> = peers.map(|peer| status(peer.store).map(end)).collect();
            ends.iter().all(|end| end.is_some() && *end == ends[0])
        });
    }

    /// The coverage of snapshots, on all stores.
    pub(super) fn snapshots(&self) -> SnapshotCoverage {
        let mut sum = SnapshotCoverage::default();
        self.world.nodes().iter().for_each(|node| sum += node.coverage().snapshots);
        sum
    }

    pub(super) fn state(&self, ticket: Ticket) -> RequestState {
        self.world.workload().request(ticket).state
    }

    /// Waits for an answer.
    pub(super) fn answered(&mut self, ticket: Ticket) -> RequestState {
        let waits = |state| matches!(state, RequestState::Sent | RequestState::Waiting);
        self.until("an answer", |world| !waits(world.workload().request(ticket).state));
        self.state(ticket)
    }

    pub(super) fn served(&mut self, ticket: Ticket) {
        assert_eq!(self.answered(ticket), RequestState::Served);
    }

    pub(super) fn refused(&mut self, ticket: Ticket) {
        assert_eq!(self.answered(ticket), RequestState::Refused);
    }

    /// Whether the split was carried out, according to the log that all have agreed on.
    pub(super) fn exists(&self, region: RegionId) -> bool {
        self.world.reference_model().descriptor(region).is_some()
    }

    /// Replicas that starts have found in the log alone.
    pub(super) fn unborn(&self, store: usize) -> u64 {
        self.world.nodes()[store].coverage().splits.unborn
    }

    /// The audit: everything is served and the same everywhere.
    pub(super) fn finish(mut self) {
        run::conclude(&mut self.world).unwrap_or_else(|broken| panic!("{broken}"));
    }
}

fn with_roots(stores: usize) -> Swarm {
    let mut swarm = Swarm::calm(stores);
    swarm.checkpoint_us = ROOTS_US;
    swarm
}

fn knows_leader(status: Option<Status>) -> bool {
    status.is_some_and(|status| status.leader.is_some())
}
