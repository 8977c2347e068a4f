//! The way of a request into its region and back.
//!
//! A service names the region and what it claims to know about it (the precondition); the router
//! makes a ticket, puts the event into the mailbox of the region's shard, and waits for the answer.
//! It decides nothing: leader, epoch and keys are checked by the region.
//!
//! It adds admission control and retries, with bounds:
//! - Each request holds a share of one memory budget until it is answered or dropped. When the
//!   budget is spent, requests wait in order, up to a number of them.
//! - A region without a leader mostly has one a moment later. Its requests wait, up to a number of
//!   them, until a change of roles wakes them, and are rejected only then.
//! - Every request has a deadline.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant as StdInstant};

use bytes::Bytes;
pub use flotilla_dispatch::Leadership;
use flotilla_dispatch::{Lane, LeaderWaitState};
use flotilla_identity::MemberId;
use flotilla_region::{
    Descriptor, Event, Index, Peer, RegionId, Reject, RequestPrecondition, Space, Term, Ticket,
};
use flotilla_store::{ApplyOutcome, DamagedReplica, PagesError, ReadError, Store, StoreSnapshot};
use parking_lot::Mutex;
use tokio::sync::broadcast;
use tokio::time::{Instant, timeout_at};

use crate::driver::admission::{AdmissionError, LeaderWait, MemoryBudget};
use crate::driver::comparisons::Comparisons;
use crate::driver::context::NodeContext;
use crate::driver::disk_view::DiskView;
use crate::driver::id_pool::IdPool;
use crate::driver::joint_changes::JointChanges;
use crate::driver::latencies::{Latencies, RequestKind, RequestTimes};
pub use crate::driver::routes::RouteChange;
use crate::driver::routes::RoutingTable;
use crate::driver::shard_message::ShardMessage;
use crate::driver::split_pace::SplitPace;
use crate::driver::tickets::{PendingRequest, TicketAnswer};
use crate::failure::NodeFailure;
use crate::wall_clock::WallClock;

/// Bytes of the budget that a request takes in addition to its own: the task, the ticket, the
/// event.
const REQUEST_OVERHEAD_BYTES: usize = 1024;

/// Least time between two log lines about reads that failed.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Admission limits of the router. Every one bounds memory or waiting.
#[derive(Clone, Debug)]
pub struct RouterLimits {
    /// Bytes of requests that are under way, 1 KiB for each included. Least: 1 MiB.
    pub request_bytes_max: u32,
    /// Requests that may wait for that budget; more are rejected as `Busy`.
    pub queued_count_max: usize,
    /// How long a request may take before it is given up.
    pub request_timeout: Duration,
    /// How long a request waits for its region to have a leader.
    pub leader_wait: Duration,
    /// Requests that may wait for leaders; more are rejected at once with `NotLeader`.
    pub leader_wait_count_max: usize,
    /// Bytes of a border between two rows at least, if the rows have as many.
    pub border_bytes_min: usize,
}

impl Default for RouterLimits {
    fn default() -> Self {
        Self {
            request_bytes_max: 256 << 20,
            queued_count_max: 16 * 1024,
            request_timeout: Duration::from_secs(10),
            leader_wait: Duration::from_millis(1000),
            leader_wait_count_max: 4096,
            border_bytes_min: 1,
        }
    }
}

/// Why a request has no result.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RequestError {
    /// Surely not carried out, for the reason given; the caller may try again or elsewhere.
    #[error("{0}")]
    Rejected(Reject),
    /// The deadline passed, or the node stops, while the write was under way: it may have been
    /// carried out, or may still be. The caller must not take it for a refusal.
    #[error("it is not known whether it was carried out")]
    Undecided,
    /// The node stops, and the request was not carried out.
    #[error("the node stops")]
    Stopping,
}

flotilla_base::metrics! { "requests",
    /// Counts of requests since the node started.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct RouterStats {
        /// Proposals that were applied.
        pub writes_acknowledged: u64 => Counter(None),
        /// Proposals that were refused or left undecided.
        pub writes_rejected: u64 => Counter(None),
        /// Reads that were granted.
        pub reads_granted: u64 => Counter(None),
        /// Reads that were refused.
        pub reads_rejected: u64 => Counter(None),
        /// Reads that were granted, but the disk refused them or they found damage.
        pub reads_failed: u64 => Counter(None),
        /// Requests that wait for their answer now.
        pub waiting: u64 => Gauge(None),
        /// Requests that had to wait because their region had no leader.
        pub leader_waits: u64 => Counter(None),
        /// Requests that another region has served because a split came between.
        pub rerouted: u64 => Counter(None),
        /// Rows that had expired and were removed, of regions that are led here.
        pub rows_expired: u64 => Counter(None),
        /// How far the clock is from those of the other stores.
        pub clock_deviation_milliseconds: u64 => Gauge(Milliseconds),
    }
}

/// The handle that services have on the node. Cheap to clone.
#[derive(Clone)]
pub struct Router {
    shared: Arc<RouterShared>,
}

struct RouterShared {
    identity: MemberId,
    context: NodeContext,
    failure: NodeFailure,
    limits: RouterLimits,
    budget: MemoryBudget,
    leader_wait: LeaderWait,
    ids: IdPool,
    splits: SplitPace,
    wall_clock: WallClock,
    counts: RouterCounters,
    /// When a failed read was logged last.
    failed_read_logged: Mutex<Option<Instant>>,
}

#[derive(Default)]
struct RouterCounters {
    writes_acknowledged: AtomicU64,
    writes_rejected: AtomicU64,
    reads_granted: AtomicU64,
    reads_rejected: AtomicU64,
    reads_failed: AtomicU64,
    leader_waits: AtomicU64,
    rerouted: AtomicU64,
    rows_expired: AtomicU64,
}

impl Router {
    /// A router into the shards of a node.
    pub(crate) fn new(
        identity: MemberId,
        context: NodeContext,
        limits: RouterLimits,
        failure: NodeFailure,
        wall_clock: WallClock,
    ) -> Self {
        let budget = MemoryBudget::new(limits.request_bytes_max, limits.queued_count_max);
        let leader_wait = LeaderWait::new(limits.leader_wait_count_max, limits.leader_wait);
        let shared = RouterShared {
            identity,
            context,
            failure,
            limits,
            budget,
            leader_wait,
            ids: IdPool::default(),
            splits: SplitPace::new(),
            wall_clock,
            counts: RouterCounters::default(),
            failed_read_logged: Mutex::new(None),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Writes `command` (see `flotilla_region::command`) through the region's log. Returns once it
    /// is applied here, which is after a majority has it on disk.
    ///
    /// # Errors
    ///
    /// [`RequestError::Rejected`] and [`RequestError::Stopping`] promise that the command was not
    /// carried out and never will be; [`RequestError::Undecided`] promises nothing.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future frees what the request holds. A command that has entered the log by then
    /// may still be carried out.
    pub async fn propose(
        &self,
        region: RegionId,
        precondition: RequestPrecondition,
        command: Bytes,
    ) -> Result<ApplyOutcome, RequestError> {
        let bytes = command.len();
        let event = |ticket| Event::Propose {
            region,
            ticket,
            precondition: precondition.clone(),
            command: command.clone(),
        };
        let result = match self.ask(region, bytes, event, RequestError::Undecided).await {
            Ok(TicketAnswer::Applied(outcome)) => Ok(outcome),
            Ok(TicketAnswer::Rejected(reject)) => Err(RequestError::Rejected(reject)),
            Ok(other) => unreachable!("a proposal ended as {other:?}"),
            Err(error) => Err(error),
        };
        let counts = &self.shared.counts;
        count(&result, &counts.writes_acknowledged, &counts.writes_rejected);
        result
    }

    /// A snapshot that holds every write acknowledged before this call. `follower` allows a replica
    /// that does not lead to serve it, by asking the leader how far it must have applied.
    ///
    /// The snapshot is taken after the grant. The region may have changed between the two, so the
    /// caller opens it by the epoch that it was asked for.
    ///
    /// # Errors
    ///
    /// [`RequestError::Rejected`] and [`RequestError::Stopping`]; never `Undecided`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future frees what the request holds.
    pub async fn read(
        &self,
        region: RegionId,
        precondition: RequestPrecondition,
        follower: bool,
    ) -> Result<StoreSnapshot, RequestError> {
        let event =
            |ticket| Event::Read { region, ticket, precondition: precondition.clone(), follower };
        let late = RequestError::Rejected(Reject::ReadIndexNotReady);
        let result = match self.ask(region, 0, event, late).await {
            Ok(TicketAnswer::Granted(index)) => Ok(self.snapshot(region, index)),
            Ok(TicketAnswer::Rejected(reject)) => Err(RequestError::Rejected(reject)),
            Ok(other) => unreachable!("a read ended as {other:?}"),
            Err(error) => Err(error),
        };
        let counts = &self.shared.counts;
        count(&result, &counts.reads_granted, &counts.reads_rejected);
        result
    }

    /// Everything that is applied here by now. Not for reads without a grant, but of those who know
    /// an entry that has just been applied.
    pub(crate) fn applied_view(&self) -> StoreSnapshot {
        self.shared.context.store.read()
    }

    /// Everything as it is now, for a read whose grant asks for `index`.
    fn snapshot(&self, region: RegionId, index: Index) -> StoreSnapshot {
        let view = self.shared.context.store.read();
        // Two more rows for each read: too expensive for a release build. An error of the disk
        // proves nothing.
        debug_assert!(
            view.applied(region).map_or(true, |applied| applied >= index),
            "region {region}: a read of entry {index} got a snapshot at {:?}",
            view.applied(region)
        );
        view
    }

    /// The region of `space` that holds `key`, as far as this node knows.
    #[must_use]
    pub fn locate(&self, space: Space, key: &[u8]) -> Option<Descriptor> {
        self.shared.context.routes.locate(space, key)
    }

    /// The first region of `space` with a replica here that holds a part of `[start, end)`; an
    /// empty `end` is no end.
    #[must_use]
    pub fn overlapping(&self, space: Space, start: &[u8], end: &[u8]) -> Option<Descriptor> {
        self.shared.context.routes.overlapping(space, start, end)
    }

    /// A region with a replica here.
    #[must_use]
    pub fn descriptor(&self, region: RegionId) -> Option<Descriptor> {
        self.shared.context.routes.descriptor(region)
    }

    /// All regions with a replica here, by id.
    #[must_use]
    pub fn descriptors(&self) -> Vec<Descriptor> {
        self.shared.context.routes.descriptors()
    }

    /// The leader of the region and its term, as last heard here. `None` while none is known.
    #[must_use]
    pub fn leader(&self, region: RegionId) -> Option<(Term, Peer)> {
        self.shared.context.routes.leader(region)
    }

    /// The requests in a second of the regions that are led here, where they are known and not 0.
    #[must_use]
    pub fn loads(&self) -> Vec<(RegionId, u64)> {
        self.shared.context.routes.loads(self.identity().store)
    }

    /// How many regions have a replica here.
    #[must_use]
    pub fn replica_count(&self) -> usize {
        self.shared.context.routes.replica_count()
    }

    /// How many regions have a replica here, and those of them whose leader is not known, by id.
    #[must_use]
    pub fn leaderless(&self) -> (usize, Vec<RegionId>) {
        self.shared.context.routes.leaderless()
    }

    /// True if the replica of `region` on this store leads it, as last heard from its shard.
    #[must_use]
    pub fn leads(&self, region: RegionId) -> bool {
        self.leader(region).is_some_and(|(_, peer)| peer.store == self.shared.identity.store)
    }

    /// Every change of roles and ranges from now on. A listener that lags too far behind gets
    /// `Lagged`, and reads [`Router::descriptors`] and [`Router::leader`] of all regions anew.
    #[must_use]
    pub fn changes(&self) -> broadcast::Receiver<RouteChange> {
        self.shared.context.routes.changes()
    }

    /// The store of the node.
    pub(crate) fn store(&self) -> &Store {
        &self.shared.context.store
    }

    /// The regions that are between two configurations.
    pub(super) fn joint_changes(&self) -> &JointChanges {
        &self.shared.context.joint_changes
    }

    /// The comparisons of replicas.
    pub(crate) fn comparisons(&self) -> &Comparisons {
        &self.shared.context.comparisons
    }

    /// The ids for new regions and replicas.
    pub(crate) fn ids(&self) -> &IdPool {
        &self.shared.ids
    }

    /// The usages of the disks.
    pub(crate) fn disks(&self) -> &DiskView {
        &self.shared.context.disks
    }

    /// The clock by which rows expire.
    pub(crate) fn wall_clock(&self) -> &WallClock {
        &self.shared.wall_clock
    }

    /// The latency histograms of this node.
    pub(crate) fn latencies(&self) -> &Latencies {
        &self.shared.context.latencies
    }

    /// The pace of splits.
    pub(crate) fn splits(&self) -> &SplitPace {
        &self.shared.splits
    }

    /// The ranges and leaders of the regions here.
    pub(super) fn border_bytes_min(&self) -> usize {
        self.shared.limits.border_bytes_min
    }

    pub(super) fn routes(&self) -> &RoutingTable {
        &self.shared.context.routes
    }

    /// When a request that comes now is given up.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.shared.limits.request_timeout
    }

    /// A handle on the leadership of `region`, which wakes on each change. `None` without a replica
    /// here.
    #[must_use]
    pub fn leadership(&self, region: RegionId) -> Option<tokio::sync::watch::Receiver<Leadership>> {
        self.shared.context.routes.leadership(region)
    }

    /// The id of this store and of its cluster.
    #[must_use]
    pub fn identity(&self) -> MemberId {
        self.shared.identity
    }

    /// Ends the node, because what it has on disk can no longer be trusted: a page whose checksum
    /// is wrong, for example. Nothing is acknowledged once this has returned.
    pub fn fail(&self, reason: &str) {
        self.shared.failure.report(reason);
    }

    /// Handles the error of a read of `region` at a view: counts and logs it, and sees to a damaged
    /// page. A row that makes no sense behind a valid checksum ends the node: a defect wrote it.
    pub(crate) fn read_failed(&self, region: RegionId, error: &ReadError) {
        match error {
            ReadError::Pages(PagesError::SnapshotTooOld { .. })
            | ReadError::SnapshotTooOld
            | ReadError::RegionNotFound
            | ReadError::NothingApplied => {}
            // Its shard may have had no replica when the others were told of the page.
            ReadError::Damaged => {
                let here = self.shared.identity.store;
                let own = self.descriptor(region).and_then(|found| found.peer_on(here));
                let replica = own.map(|peer| DamagedReplica { region, peer: peer.id });
                self.shared.context.page_damage(&self.shared.failure).tell(replica);
            }
            ReadError::Pages(_) => {
                self.note_failed_read(region, error);
                self.shared.context.page_damage(&self.shared.failure).read_failed(region, error);
            }
            ReadError::Corrupt(_) => {
                self.note_failed_read(region, error);
                self.fail(&format!("region {region} cannot be read: {error}"));
            }
            _ => {}
        }
    }

    /// Counts a read that was granted and could not be carried out, and logs it: at once, but then
    /// not again for ten seconds, because a disk may refuse every read.
    fn note_failed_read(&self, region: RegionId, error: &ReadError) {
        let failed = self.shared.counts.reads_failed.fetch_add(1, Ordering::Relaxed) + 1;
        let mut logged = self.shared.failed_read_logged.lock();
        if logged.is_none_or(|logged| logged.elapsed() >= LOG_INTERVAL) {
            *logged = Some(Instant::now());
            drop(logged);
            tracing::error!("region {region} cannot be read: {error}; {failed} reads have failed");
        }
    }

    /// Counts of requests.
    #[must_use]
    pub fn counts(&self) -> RouterStats {
        let counts = &self.shared.counts;
        RouterStats {
            writes_acknowledged: counts.writes_acknowledged.load(Ordering::Relaxed),
            writes_rejected: counts.writes_rejected.load(Ordering::Relaxed),
            reads_granted: counts.reads_granted.load(Ordering::Relaxed),
            reads_rejected: counts.reads_rejected.load(Ordering::Relaxed),
            reads_failed: counts.reads_failed.load(Ordering::Relaxed),
            waiting: self.shared.context.tickets.count() as u64,
            leader_waits: counts.leader_waits.load(Ordering::Relaxed),
            rerouted: counts.rerouted.load(Ordering::Relaxed),
            rows_expired: counts.rows_expired.load(Ordering::Relaxed),
            clock_deviation_milliseconds: self.shared.wall_clock.deviation_ms(),
        }
    }

    /// Counts a request that another region has served.
    pub(super) fn note_rerouted(&self) {
        self.shared.counts.rerouted.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts rows that have expired and were removed.
    pub(crate) fn note_expired(&self, rows: u64) {
        self.shared.counts.rows_expired.fetch_add(rows, Ordering::Relaxed);
    }

    /// Takes no more requests, and waits until those under way are answered, `time_limit` at most.
    pub(crate) async fn finish(&self, time_limit: Duration) {
        if !self.shared.budget.finish(time_limit).await {
            let requests = self.shared.context.tickets.count();
            tracing::info!(requests, "requests are given up");
        }
    }

    /// Sends a request and waits for its answer; retries when its region gets a leader, within
    /// bounds. `late` is the error after the deadline, if the request was sent.
    pub(super) async fn ask(
        &self,
        region: RegionId,
        bytes: usize,
        event: impl Fn(Ticket) -> Event,
        late: RequestError,
    ) -> Result<TicketAnswer, RequestError> {
        // One deadline for admission, all retries and the answer: together they must not outlast
        // it.
        let (began, deadline) = (StdInstant::now(), self.deadline());
        let weight = bytes.saturating_add(REQUEST_OVERHEAD_BYTES);
        // Held until the answer is here: a request that waits in a shard still occupies memory.
        let admitted = self.shared.budget.admit(weight, deadline).await;
        let _budget = admitted.map_err(|why| self.refused(region, why))?;
        let mut wait = LeaderWaitState::default();
        loop {
            let mut waiting = self.send(region, weight, &event, deadline).await?;
            let (answer, times) = match timeout_at(deadline, &mut waiting.answer).await {
                Ok(Ok(answer)) => answer,
                // The node closed the table, perhaps while the command was on its way to the log.
                Ok(Err(_)) if late == RequestError::Undecided => return Err(late),
                Ok(Err(_)) => return Err(RequestError::Stopping),
                Err(_) => return Err(late),
            };
            // A client that gets `NotLeader` without a leader backs off, so the request waits here:
            // decision 6, `docs/decisions/0006-waiting-for-a-leader.md`.
            let leaderless =
                matches!(answer, TicketAnswer::Rejected(Reject::NotLeader { leader: None }));
            if !leaderless || !self.await_leader(region, &mut wait).await {
                self.note_times(region, &answer, began, &times);
                return Ok(answer);
            }
        }
    }

    /// Counts how long a request took that was carried out, and logs it if it was slow.
    fn note_times(
        &self,
        region: RegionId,
        answer: &TicketAnswer,
        began: StdInstant,
        times: &RequestTimes,
    ) {
        let kind = match answer {
            TicketAnswer::Applied(_) => RequestKind::Write,
            TicketAnswer::Granted(_) => RequestKind::Read,
            TicketAnswer::Transferred(_) | TicketAnswer::Rejected(_) => return,
        };
        if let Some(line) = self.latencies().note_request(kind, began, times) {
            tracing::warn!(%region, "{line}");
        }
    }

    fn refused(&self, region: RegionId, why: AdmissionError) -> RequestError {
        match why {
            AdmissionError::Full(reason) => busy(reason),
            // A store that stops has handed its leaders over. A client that is told where its
            // region is led goes there at once; else it would come back here until the connection
            // breaks.
            AdmissionError::Stopping => match self.leader(region) {
                Some((_, leader)) if leader.store != self.shared.identity.store => {
                    RequestError::Rejected(Reject::NotLeader { leader: Some(leader) })
                }
                _ => RequestError::Stopping,
            },
        }
    }

    /// Opens a ticket and puts the event into its shard's mailbox.
    async fn send(
        &self,
        region: RegionId,
        weight: usize,
        event: impl Fn(Ticket) -> Event,
        deadline: Instant,
    ) -> Result<PendingRequest, RequestError> {
        let shared = &self.shared;
        let waiting = shared.context.tickets.open().ok_or(RequestError::Stopping)?;
        let event = event(waiting.ticket);
        let lane = Lane::of(&event).expect("a request has a lane");
        let message = ShardMessage::Event(event);
        let sending = shared.context.mailboxes.of(region).send(lane, message, weight);
        match timeout_at(deadline, sending).await {
            Ok(Ok(())) => Ok(waiting),
            Ok(Err(_)) => Err(RequestError::Stopping),
            Err(_) => Err(busy("the shard took nothing until the deadline")),
        }
    }

    /// Waits until the region has a leader. False if a retry is of no use.
    async fn await_leader(&self, region: RegionId, wait: &mut LeaderWaitState) -> bool {
        let shared = &self.shared;
        let Some(leadership) = shared.context.routes.leadership(region) else { return false };
        if wait.is_new() {
            shared.counts.leader_waits.fetch_add(1, Ordering::Relaxed);
        }
        shared.leader_wait.await_leader(leadership, wait).await
    }
}

fn busy(reason: &'static str) -> RequestError {
    RequestError::Rejected(Reject::Busy { reason })
}

fn count<T, E>(result: &Result<T, E>, good: &AtomicU64, bad: &AtomicU64) {
    let counter = if result.is_ok() { good } else { bad };
    counter.fetch_add(1, Ordering::Relaxed);
}
