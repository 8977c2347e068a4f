//! A cluster that a script leads through a case.

use bytes::Bytes;
use fastrand::Rng;
use flotilla_kv::raw::RawOp;
use flotilla_region::{Descriptor, RegionId, Status, Ticket};

use crate::faults::Swarm;
use crate::request::{ClientRequest, RequestBody, RequestOwner, RequestState};
use crate::run;
use crate::split_planner::SplitPlanner;
use crate::trace::Trace;
use crate::world::SimWorld;

/// The region of the clients' keys.
pub(super) const DATA: RegionId = RegionId(2);
/// A script waits no longer than this.
const PATIENCE_US: u64 = 10_000_000;

/// Three stores in which nothing goes wrong by itself, and no root is made: what a store has
/// applied is gone after a loss of power.
pub(super) struct Scenario {
    pub(super) world: SimWorld,
    /// The store that leads the data region at first, and the two others.
    pub(super) leader: usize,
    pub(super) followers: [usize; 2],
}

impl Scenario {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let swarm = Swarm::calm(3);
        let settings = run::settings(&swarm, &mut rng);
        let splits = SplitPlanner::idle(seed);
        let printed = std::env::var_os("FLOTILLA_SIM_TRACE").is_some();
        let world = SimWorld::new(swarm, splits, settings, rng, Trace::new(seed, printed));
        let mut scenario = Self { world, leader: 0, followers: [1, 2] };
        let is_ready = |world: &SimWorld| {
            world.is_whole() && world.nodes().iter().all(|node| knows_leader(node.status(DATA)))
        };
        scenario.until("a leader", is_ready);
        scenario.run(200_000);
        let leader = scenario.world.leading(DATA).expect("there is one");
        scenario.leader = leader;
        scenario.followers = [(leader + 1) % 3, (leader + 2) % 3];
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
        let start = self.world.now();
        while !is_there(&self.world) {
            assert!(self.world.now() < start + PATIENCE_US, "{what} does not come");
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
        let put = RawOp::Put { key: key.clone(), value };
        self.ask(store, route, RequestBody::Write(vec![put]))
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

fn knows_leader(status: Option<Status>) -> bool {
    status.is_some_and(|status| status.leader.is_some())
}
