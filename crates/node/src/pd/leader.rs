//! The leader of placement during one term: the cluster view, id allocation, the timestamp oracle.
//!
//! Rows of the system region are read once, when the term starts, in a linearizable way, and
//! changed by compare-and-swap under that term. A deposed leader finds that out by the refusal of
//! its next write or by the check after each timestamp.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use flotilla_identity::{ClusterSettings, MemberId, SYSTEM_REGION, StoreRegistry};
use flotilla_kv::raw::{self, RawOp};
use flotilla_placement::{
    ClusterView, Config, IdAllocator, LeaderBalanceLimits, LeaderStep, LeaderStepState,
    LossRefusal, RegionHeartbeat, RepairRefusal, RowError, RowSwap, StoreInfo, SwapResult,
    Timestamp, Tso, TsoError, check_loss, rows,
};
use flotilla_proto::peers::{LoadReport, StoreUsage};
use flotilla_region::{DiskUsage, RequestPrecondition, StoreId, Term};
use flotilla_store::ApplyOutcome;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::{Instant, timeout_at};
use tonic::Status;

use super::errors::not_leader;
use super::heartbeat_sessions::{HeartbeatSessions, Pings};
use super::leader_balancer::LeaderBalancer;
use super::lookup::LookupResult;
use super::registry_row::RegistryRow;
use super::replica_repair::{self, ReplicaRepair};
use super::settings_row::SettingsRow;
use crate::driver::router::{RequestError, Router};
use crate::membership::Membership;
use crate::wall_clock;

/// Ids that can be asked for at once.
const IDS_MAX: u64 = 100_000;
/// How long ids and timestamps are waited for.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);

/// Why a term cannot be started.
#[derive(Debug, thiserror::Error)]
pub(super) enum PdLeaderError {
    /// The system region did not serve; mostly because another store leads it by now.
    #[error("the system region did not serve: {0:?}")]
    Region(RequestError),
    /// Its rows cannot be read from this store's disk.
    #[error("the rows cannot be read: {0}")]
    Read(#[from] flotilla_store::ReadError),
    /// A row is not what this program writes.
    #[error(transparent)]
    Row(#[from] RowError),
    /// The registry, or the settings, are not what this program writes.
    #[error("a row of placement: {0}")]
    Malformed(#[from] flotilla_base::fields::Malformed),
    /// The data belongs to another cluster.
    #[error("the rows are of cluster {found}, this is cluster {here}")]
    Foreign {
        /// The cluster in the row.
        found: u64,
        /// The cluster of this store.
        here: u64,
    },
}

/// The placement driver of one term.
pub(super) struct PdLeader {
    term: Term,
    router: Router,
    started: Instant,
    pub(super) cluster: Mutex<ClusterView>,
    sessions: Mutex<HeartbeatSessions>,
    balancer: Mutex<LeaderBalancer>,
    repair: ReplicaRepair,
    /// Counts changes of the cluster, for those who wait for one.
    changes: watch::Sender<u64>,
    ids: Mutex<IdAllocator>,
    tso: Mutex<Tso>,
    pub(super) registry: Mutex<RegistryRow>,
    pub(super) settings: Mutex<SettingsRow>,
    /// Notifies the waiters when a row was written, or was not.
    pub(super) settled: Notify,
    /// True once a row is not what it should be: the term must end.
    broken: watch::Sender<bool>,
}

/// The state machine that a row belongs to.
#[derive(Clone, Copy)]
enum RowOwner {
    Ids,
    Tso,
}

impl PdLeader {
    /// Starts a term: this store leads the system region in `term`.
    pub(super) async fn start_term(
        router: Router,
        membership: Membership,
        term: Term,
    ) -> Result<Arc<Self>, PdLeaderError> {
        let guard = RequestPrecondition { term: Some(term), ..RequestPrecondition::default() };
        let view = router.read(SYSTEM_REGION, guard, false).await.map_err(PdLeaderError::Region)?;
        let view = view.region(SYSTEM_REGION, None)?;
        let row = |key| view.get(key);
        let ids = IdAllocator::recover(row(rows::IDS_KEY)?.as_deref())?;
        let tso = Tso::recover(row(rows::TSO_KEY)?.as_deref())?;
        let MemberId { cluster_id: here, store: here_store } = router.identity();
        // A directory from another cluster must not lead this one, whatever its registry says.
        let found = row(rows::CLUSTER_KEY)?;
        let found = found.map(|row| rows::decode(rows::CLUSTER_KEY, &row)).transpose()?;
        if let Some(found) = found.filter(|&found| found != here) {
            return Err(PdLeaderError::Foreign { found, here });
        }
        let stored = row(rows::STORES_KEY)?.map(|row| StoreRegistry::decode(&row)).transpose()?;
        let written = row(rows::SETTINGS_KEY)?.map(|row| ClusterSettings::decode(&row));
        let written = written.transpose()?;
        // The copies of all stores began alike.
        let settings = written.unwrap_or_else(|| membership.settings());
        let repair = row(rows::REPAIR_KEY)?;
        let repair = ReplicaRepair::new(settings.replicas, repair.as_deref())?;
        let is_stored = stored.is_some();
        let registry = stored.unwrap_or_else(|| membership.registry());
        // A store may have joined that this one has not heard of.
        membership.learn_registry(registry.clone()).await;
        let stores = membership.registered_stores().into_iter().map(|known| StoreInfo {
            id: known.store.0,
            name: known.name,
            address: known.address,
            labels: registry.store(known.store).map(|it| it.labels.clone()).unwrap_or_default(),
            ..StoreInfo::default()
        });
        let mut cluster = ClusterView::new(Config::default(), stores);
        replica_repair::note_standings(&mut cluster, &registry);
        let pd_leader = Arc::new(Self {
            term,
            router,
            started: Instant::now(),
            cluster: Mutex::new(cluster),
            sessions: Mutex::new(HeartbeatSessions::new(here_store)),
            balancer: Mutex::new(LeaderBalancer::new(LeaderBalanceLimits::default())),
            repair,
            changes: watch::Sender::new(0),
            ids: Mutex::new(ids),
            tso: Mutex::new(tso),
            registry: Mutex::new(RegistryRow::new(registry.clone(), is_stored)),
            settings: Mutex::new(SettingsRow::new(settings)),
            settled: Notify::new(),
            broken: watch::Sender::new(false),
        });
        if found.is_none() {
            // Another leader can only have written the same id.
            let value = rows::encode(here);
            let swap = RowSwap { key: rows::CLUSTER_KEY, expected: None, value };
            pd_leader.write(swap).await;
        }
        // The copies of all stores began alike.
        if !is_stored {
            pd_leader.write_registry(registry).await;
        }
        if written.is_none() {
            let (key, value) = (rows::SETTINGS_KEY, settings.encode());
            pd_leader.write(RowSwap { key, expected: None, value }).await;
        }
        Ok(pd_leader)
    }

    /// Milliseconds since the term started.
    pub(super) fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Takes in a report.
    pub(super) fn hear(
        &self,
        store: StoreId,
        sightings: &[RegionHeartbeat],
        full: bool,
        echo: u64,
    ) {
        let now_ms = self.now_ms();
        let changed = self.cluster.lock().observe(now_ms, store.0, sightings, full);
        if self.sessions.lock().echo(store, echo) || changed {
            self.changes.send_modify(|count| *count += 1);
        }
    }

    /// A store says whether it hands its leaders over, to stop, and how many replicas it has.
    pub(super) fn note_condition(&self, store: StoreId, is_stopping: bool, replicas: Option<u64>) {
        let mut cluster = self.cluster.lock();
        cluster.note_stopping(store.0, is_stopping);
        // A store of an earlier version does not say.
        if let Some(replicas) = replicas {
            cluster.note_replicas(store.0, replicas);
        }
    }

    /// A store says how many requests the regions take that it leads.
    pub(super) fn note_loads(&self, store: StoreId, load: &LoadReport) {
        let loads = load.regions.iter().map(|load| (load.region_id, load.requests_per_s));
        self.cluster.lock().note_loads(store.0, loads);
    }

    /// A store says how full its disk is.
    pub(super) fn note_disk(&self, store: StoreId, usage: StoreUsage) {
        let usage = DiskUsage::from_number(usage.disk_usage.into());
        let takes_replicas = usage < DiskUsage::AlmostFull;
        self.cluster.lock().note_disk(store.0, takes_replicas, !usage.is_full());
    }

    /// The transfers that a store should make now. Each is given once.
    pub(super) fn transfers(&self, store: StoreId) -> Vec<LeaderStep> {
        let here = self.router.identity().store.0;
        let now_ms = self.now_ms();
        let mut balancer = self.balancer.lock();
        balancer.steps(now_ms, &self.cluster.lock(), here, store.0)
    }

    /// Has the leaders of `regions` spread; returns those that cannot be moved now.
    pub(super) fn scatter(&self, regions: &[u64]) -> Vec<u64> {
        let mut balancer = self.balancer.lock();
        balancer.scatter(self.now_ms(), &self.cluster.lock(), regions)
    }

    /// How far the last transfer of a region's lead is that placement has asked for.
    pub(super) fn leader_step_state(&self, region: u64) -> Option<LeaderStepState> {
        self.balancer.lock().state(self.now_ms(), &self.cluster.lock(), region)
    }

    /// Whether a store may be declared lost now.
    ///
    /// # Errors
    ///
    /// Why not.
    pub(super) fn check_loss(&self, store: StoreId) -> Result<(), LossRefusal> {
        check_loss(self.now_ms(), &self.cluster.lock(), store.0)
    }

    /// Repair in this term.
    pub(super) fn repair(&self) -> &ReplicaRepair {
        &self.repair
    }

    /// The way of requests to regions.
    pub(super) fn router(&self) -> &Router {
        &self.router
    }

    /// Begins to bring a region to other stores: those that are added, without those removed.
    pub(super) fn begin_change(
        &self,
        region: u64,
        stores: (&[u64], &[u64]),
    ) -> Result<(), RepairRefusal> {
        let here = self.router.identity().store.0;
        self.repair.begin(self.now_ms(), &self.cluster.lock(), here, region, stores)
    }

    /// Regions whose leaders are not to be moved for balance.
    pub(super) fn set_busy(&self, busy: BTreeSet<u64>) {
        self.balancer.lock().set_busy(busy);
    }

    /// The result of `change` on the cluster view.
    pub(super) fn change_view<T>(&self, change: impl FnOnce(&mut ClusterView) -> T) -> T {
        change(&mut self.cluster.lock())
    }

    /// A store begins a heartbeat stream, and can be pinged by `pings`. The number tells this
    /// session from later ones.
    pub(super) fn begin_session(&self, store: StoreId, pings: Pings) -> u64 {
        self.sessions.lock().begin(store, pings)
    }

    /// A store's clock says `time_ms`; 0 if it did not say.
    pub(super) fn note_clock(&self, store: StoreId, time_ms: u64) {
        let here_ms = i64::try_from(wall_clock::now_ms()).unwrap_or(i64::MAX);
        if let Some(time_ms) = i64::try_from(time_ms).ok().filter(|time_ms| *time_ms > 0) {
            self.sessions.lock().note_clock(store, time_ms.saturating_sub(here_ms));
        }
    }

    /// A stream broke: the store may be gone, unless it has opened a newer one already.
    pub(super) fn end_session(&self, store: StoreId, number: u64) {
        if self.sessions.lock().end(store, number) {
            self.cluster.lock().disconnect(store.0);
        }
    }

    /// The result of `look` on the cluster view as it is now.
    pub(super) fn see<T>(&self, look: impl FnOnce(&ClusterView) -> T) -> T {
        look(&self.cluster.lock())
    }

    /// The result of `look` as soon as it is good, and the stores of all leaders have answered a
    /// ping since the call: a client asks because it could not reach one, and must not be sent
    /// there again. After `leader_wait`, or if too many callers wait already, the result as it is
    /// then.
    pub(super) async fn look<T>(
        &self,
        leader_wait: Duration,
        leader_waits: &Semaphore,
        look: impl Fn(&ClusterView, u64) -> LookupResult<T>,
    ) -> T {
        let see = || look(&self.cluster.lock(), self.now_ms());
        let Ok(_place) = leader_waits.try_acquire() else { return see().found };
        let mut changes = self.changes.subscribe();
        let number = self.sessions.lock().number_question();
        let until = Instant::now() + leader_wait;
        loop {
            let lookup = see();
            let mute = self.sessions.lock().ask(&lookup.leaders, number);
            if lookup.good && mute.is_empty() {
                return lookup.found;
            }
            if !matches!(timeout_at(until, changes.changed()).await, Ok(Ok(()))) {
                let mut cluster = self.cluster.lock();
                mute.into_iter().for_each(|store| cluster.disconnect(store));
                break;
            }
        }
        see().found
    }

    /// Allocates `count` ids that were never given before; the last of them.
    pub(super) async fn ids(self: &Arc<Self>, count: u64) -> Result<u64, Status> {
        if count > IDS_MAX {
            let message = format!("{count} ids were asked for, at most {IDS_MAX} can be had");
            return Err(Status::invalid_argument(message));
        }
        let range = self
            .retry_until_taken(RowOwner::Ids, || {
                let mut ids = self.ids.lock();
                let range = ids.take(count.max(1));
                Ok((range, ids.wants()))
            })
            .await?;
        // Confirmed after the take: a deposed leader must not hand out what a later one may give
        // again.
        self.confirm().await?;
        Ok(range.end - 1)
    }

    /// Allocates `count` timestamps; the last of them. Greater than every one that was given to any
    /// client before this call.
    pub(super) async fn timestamp(self: &Arc<Self>, count: u64) -> Result<Timestamp, Status> {
        let taken = self
            .retry_until_taken(RowOwner::Tso, || {
                let now_ms = wall_ms();
                let mut tso = self.tso.lock();
                let taken = match tso.take(now_ms, count) {
                    Ok(taken) => Some(taken),
                    Err(TsoError::NotYet) => None,
                    Err(error) => return Err(Status::invalid_argument(error.to_string())),
                };
                Ok((taken, tso.wants(now_ms)))
            })
            .await?;
        self.confirm().await?;
        Ok(taken)
    }

    /// Hands out neither ids nor timestamps below these from now on, and makes that durable.
    pub(super) async fn raise_floors(
        self: &Arc<Self>,
        ids_end: u64,
        tso_end_ms: u64,
    ) -> Result<(), Status> {
        self.ids.lock().raise_floor(ids_end);
        self.tso.lock().raise_floor(tso_end_ms);
        // Both are there once their rows have the floors, for this leader and for those after it.
        self.ids(1).await?;
        self.timestamp(1).await?;
        Ok(())
    }

    /// Confirms by a linearizable read that no other store led when something was taken before this
    /// call: only then it may be handed out.
    pub(super) async fn confirm(&self) -> Result<(), Status> {
        let guard = RequestPrecondition { term: Some(self.term), ..RequestPrecondition::default() };
        self.router.read(SYSTEM_REGION, guard, false).await.map_err(|_| not_leader())?;
        Ok(())
    }

    /// Waits until the term must end because a row is not what it should be.
    pub(super) async fn broken(&self) {
        let mut broken = self.broken.subscribe();
        // The sender lives as long as `self`.
        let _ = broken.wait_for(|broken| *broken).await;
    }

    /// Retries until there is something to give, writing the rows that are wanted for it.
    async fn retry_until_taken<T>(
        self: &Arc<Self>,
        owner: RowOwner,
        attempt: impl Fn() -> Result<(Option<T>, Option<RowSwap>), Status>,
    ) -> Result<T, Status> {
        let until = Instant::now() + PATIENCE;
        loop {
            // Enabled before the attempt, so that no notification is missed between the two.
            let mut settled = std::pin::pin!(self.settled.notified());
            settled.as_mut().enable();
            let (given, swap) = attempt()?;
            if let Some(swap) = swap {
                self.spawn_write(owner, swap);
            }
            if let Some(given) = given {
                return Ok(given);
            }
            if *self.broken.borrow() || timeout_at(until, settled).await.is_err() {
                return Err(Status::unavailable("placement cannot write its rows, no leader"));
            }
        }
    }

    /// Writes a row in the background: the caller may be dropped, but the outcome of the write must
    /// be learnt.
    fn spawn_write(self: &Arc<Self>, owner: RowOwner, swap: RowSwap) {
        let pd_leader = Arc::clone(self);
        tokio::spawn(async move {
            let settled = pd_leader.write(swap).await;
            let result = match owner {
                RowOwner::Ids => pd_leader.ids.lock().complete(settled),
                RowOwner::Tso => pd_leader.tso.lock().complete(settled),
            };
            if let Err(error) = result {
                tracing::error!("placement steps down: {error}");
                pd_leader.broken.send_replace(true);
            }
            pd_leader.settled.notify_waiters();
        });
    }

    /// A row, as every write acknowledged before has left it.
    pub(super) async fn row(&self, key: &'static [u8]) -> Result<Option<Vec<u8>>, Status> {
        let guard = RequestPrecondition { term: Some(self.term), ..RequestPrecondition::default() };
        let view = self.router.read(SYSTEM_REGION, guard, false).await.map_err(|_| not_leader())?;
        let row = view.region(SYSTEM_REGION, None).and_then(|view| view.get(key));
        let row = row.map_err(|error| Status::internal(error.to_string()))?;
        Ok(row.map(|row| row.to_vec()))
    }

    /// Writes a row, in this term.
    pub(super) async fn write(&self, swap: RowSwap) -> SwapResult {
        let guard = RequestPrecondition { term: Some(self.term), ..RequestPrecondition::default() };
        let command = raw::encode(&[RawOp::CompareAndSwap {
            key: Bytes::from_static(swap.key),
            expected: swap.expected.map(Bytes::from),
            value: Some(swap.value.into()),
            ttl_s: 0,
        }]);
        match self.router.propose(SYSTEM_REGION, guard, command).await {
            Ok(ApplyOutcome::Swapped { succeeded: true, .. }) => SwapResult::Done,
            Ok(ApplyOutcome::Swapped { succeeded: false, previous }) => {
                SwapResult::Refused { current: previous.map(|row| row.to_vec()) }
            }
            // Not carried out, or the outcome is unknown: the next attempt finds out.
            Ok(_) | Err(_) => SwapResult::Unknown,
        }
    }
}

/// The wall clock of the machine. It may be wrong and may jump; `Tso` tolerates that.
pub(super) fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
