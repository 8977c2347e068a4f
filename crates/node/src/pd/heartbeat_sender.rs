//! Sends region heartbeats: tells the leader of placement which regions this store leads.
//!
//! Changes are sent at once, and all parts of a split together: in between, placement would have a
//! hole. A heartbeat is sent now and then even if nothing changed, for the
//! leader takes silence for trouble; a full one is sent when a session begins and every few
//! seconds, so that no mistake lasts.

use std::time::Duration;

use flotilla_identity::{ClusterSettings, SYSTEM_REGION, StoreRegistry};
use flotilla_placement::{KnownRegion, LedRegions, RegionHeartbeat};
use flotilla_proto::metapb;
use flotilla_proto::peers::placement_client::PlacementClient;
use flotilla_proto::peers::{
    LeaderTransfer, LoadReport, RegionLoad, ReportRequest, ReportResponse, StepAnswer, StoreUsage,
};
use flotilla_region::{Descriptor, RegionId, RoleChange, SPLIT_TERM, StoreId};
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, interval_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::context::PdContext;
use super::convert;
use super::step_runner::StepRunner;
use crate::driver::router::RouteChange;
use crate::membership::{KnownStore, labels_to_wire, run_to_wire, uuid_to_wire};
use crate::wall_clock;

/// The cause of transfers that placement asks for between its other steps.
const BALANCE: &str = "placement spreads the leaders";

/// The heartbeat interval. Several intervals fit into the silence that placement tolerates.
const WORD: Duration = Duration::from_millis(300);
/// The interval of full heartbeats.
const FULL: Duration = Duration::from_secs(5);
/// Backoff after a session that failed.
const RETRY: Duration = Duration::from_millis(100);
/// Backoff after a session that ended because another store leads placement: until it has the
/// reports of all stores, it cannot say where regions are.
const NEXT_LEADER: Duration = Duration::from_millis(5);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Keepalive: how long a connection may be silent before it counts as broken.
const KEEPALIVE: Duration = Duration::from_secs(2);
/// Heartbeats that wait for the connection.
const QUEUE_COUNT_MAX: usize = 16;

/// Runs as long as the node.
pub(super) async fn run(context: PdContext) {
    let mut turn = 0;
    loop {
        let mut backoff = RETRY;
        let leader = candidate(&context, turn).await;
        if let Some(leader) = leader {
            let result = session(&context, &leader).await;
            context.shared.reported_to.send_replace(None);
            match result {
                Ok(()) => backoff = NEXT_LEADER,
                Err(status) => tracing::debug!("reports to {} ended: {status}", leader.name),
            }
        }
        turn += 1;
        tokio::time::sleep(backoff).await;
    }
}

/// The store to try next. A store without a replica of the system region does not learn its leader,
/// and tries one store after the other.
async fn candidate(context: &PdContext, turn: usize) -> Option<KnownStore> {
    let shared = &context.shared;
    if let Some(mut leadership) = shared.router.leadership(SYSTEM_REGION) {
        let known = *leadership.wait_for(|now| now.leader.is_some()).await.ok()?;
        return context.member(known.leader?.store);
    }
    let stores = shared.membership.stores();
    stores.get(turn % stores.len().max(1)).cloned()
}

/// Reports to `leader` until it leads no longer or cannot be reached.
async fn session(context: &PdContext, leader: &KnownStore) -> Result<(), Status> {
    let shared = &context.shared;
    // Before the first full report, so that no change falls between the two.
    let mut changes = shared.router.changes();
    let dialer = context.dialer();
    let endpoint = dialer
        .endpoint(&leader.address, CONNECT_TIMEOUT)
        .map_err(|error| Status::internal(error.to_string()))?
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE)
        .keep_alive_while_idle(true);
    let connected = dialer.connect(&endpoint).await;
    let channel = connected.map_err(|error| Status::unavailable(error.to_string()))?;
    let (reports, outgoing) = mpsc::channel(QUEUE_COUNT_MAX);
    let (steps, step_answers) = StepRunner::new(shared.router.clone(), shared.membership.clone());
    let led = LedRegions::new(shared.router.identity().store.0);
    let context = context.clone();
    let mut session = HeartbeatSession { context, led, echo: 0, steps, step_answers };
    let first = session.everything();
    reports.send(first).await.map_err(|_| gone())?;
    let mut client = PlacementClient::new(channel);
    let mut answers = client.report(ReceiverStream::new(outgoing)).await?.into_inner();
    shared.reported_to.send_replace(Some(leader.store));
    session.run(leader.store, &mut changes, &mut answers, &reports).await
}

struct HeartbeatSession {
    context: PdContext,
    /// The regions that the leader believes this store to lead.
    led: LedRegions,
    /// The last ping of the leader, echoed in each heartbeat.
    echo: u64,
    /// Carries out what the leader asks for.
    steps: StepRunner,
    /// The outcomes of these steps.
    step_answers: mpsc::Receiver<StepAnswer>,
}

impl HeartbeatSession {
    async fn run(
        &mut self,
        leader: StoreId,
        changes: &mut Receiver<RouteChange>,
        answers: &mut Streaming<ReportResponse>,
        reports: &mpsc::Sender<ReportRequest>,
    ) -> Result<(), Status> {
        let mut word = interval(WORD);
        let mut stopping = self.context.shared.stopping.subscribe();
        let mut full = interval_at(Instant::now() + FULL, FULL);
        // After a suspend one heartbeat is enough, and not one for each interval that was missed.
        word.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let report = tokio::select! {
                change = changes.recv() => match change {
                    Ok(RouteChange::Role(change)) if change.region == SYSTEM_REGION => {
                        if change.leader.is_some_and(|now| now.store != leader) {
                            return Ok(());
                        }
                        continue;
                    }
                    Ok(change) => match self.change(change) {
                        Some(report) => report,
                        None => continue,
                    },
                    Err(RecvError::Lagged(_)) => self.everything(),
                    Err(RecvError::Closed) => return Ok(()),
                },
                // The sender lives as long as this session.
                _ = stopping.changed() => self.report(Vec::new(), false),
                _ = word.tick() => self.report(Vec::new(), false),
                Some(answer) = self.step_answers.recv() => {
                    let mut report = self.report(Vec::new(), false);
                    report.step_answers.push(answer);
                    report
                }
                _ = full.tick() => self.everything(),
                answer = answers.message() => {
                    let Some(answer) = answer? else { return Ok(()) };
                    self.learn(&answer).await;
                    let ReportResponse {
                        wants_full, ping, transfers, steps, clock_deviation_ms, ..
                    } = answer;
                    self.echo = self.echo.max(ping);
                    if let Some(deviation_ms) = clock_deviation_ms {
                        self.context.shared.router.wall_clock().note_deviation(deviation_ms);
                    }
                    self.carry_out(transfers);
                    steps.into_iter().for_each(|step| self.steps.run(step));
                    if wants_full { self.everything() } else { self.report(Vec::new(), false) }
                }
            };
            reports.send(report).await.map_err(|_| gone())?;
        }
    }

    /// Hands over what placement wants led elsewhere. The region decides whether that can be.
    fn carry_out(&self, transfers: Vec<LeaderTransfer>) {
        let shared = &self.context.shared;
        if *shared.stopping.borrow() || transfers.is_empty() {
            return;
        }
        if let Err(why) = shared.membership.check_transfers() {
            return tracing::debug!("no leader is transferred: {why}");
        }
        for LeaderTransfer { region_id, to } in transfers {
            let to = StoreId(to.unwrap_or_default().store_id);
            shared.router.begin_transfer(RegionId(region_id), to, BALANCE);
        }
    }

    /// Takes over the registry and the settings that the leader of placement has.
    async fn learn(&self, answer: &ReportResponse) {
        let membership = &self.context.shared.membership;
        let malformed = "placement sent a row that cannot be read";
        // Either ends the node if it cannot be kept.
        if !answer.registry.is_empty() {
            match StoreRegistry::decode(&answer.registry) {
                Ok(registry) => _ = membership.learn_registry(registry).await,
                Err(error) => tracing::warn!("{malformed}: {error}"),
            }
        }
        if !answer.settings.is_empty() {
            match ClusterSettings::decode(&answer.settings) {
                Ok(settings) => _ = membership.learn_settings(settings).await,
                Err(error) => tracing::warn!("{malformed}: {error}"),
            }
        }
    }

    /// A full heartbeat: all regions that this store leads, with their loads.
    fn everything(&mut self) -> ReportRequest {
        let descriptors = self.context.shared.router.descriptors();
        let here = descriptors.iter().filter_map(|region| self.known(region, false));
        let here: Vec<_> = here.collect();
        let regions = self.led.report_all(here);
        let loads = self.context.shared.router.loads();
        let load_to_proto = |(region, requests_per_s): (RegionId, u64)| RegionLoad {
            region_id: region.0,
            requests_per_s,
        };
        let load = LoadReport { regions: loads.into_iter().map(load_to_proto).collect() };
        ReportRequest { load: Some(load), ..self.report(regions, true) }
    }

    /// The heartbeat for a change, if one is due.
    fn change(&mut self, change: RouteChange) -> Option<ReportRequest> {
        let regions = match change {
            RouteChange::Role(change) => {
                let descriptor = self.context.shared.router.descriptor(change.region)?;
                let region = convert::client_region(&descriptor)?;
                let RoleChange { term, leader, is_leader, .. } = change;
                let leader = leader.map(|peer| convert::replica_from_peer(&peer.into()));
                self.led.note_role(region, term.0, leader, is_leader).into_iter().collect()
            }
            RouteChange::Ranges { ranges, campaigning } => {
                let changed = ranges
                    .iter()
                    .filter_map(|range| self.known(range, campaigning.contains(&range.id)));
                let changed: Vec<_> = changed.collect();
                self.led.note_ranges(changed)
            }
            RouteChange::Ended(region) => {
                self.led.note_end(region.0);
                vec![]
            }
        };
        (!regions.is_empty()).then(|| self.report(regions, false))
    }

    /// A region of the clients' keys as this store knows it.
    fn known(&self, descriptor: &Descriptor, campaigns: bool) -> Option<KnownRegion> {
        let region = convert::client_region(descriptor)?;
        let leader = self.context.shared.router.leader(descriptor.id);
        let leader = leader.map(|(term, peer)| (term.0, convert::replica_from_peer(&peer.into())));
        let campaigns_from = campaigns.then_some(SPLIT_TERM.0);
        Some(KnownRegion { region, leader, campaigns_from })
    }

    fn usage(&self) -> StoreUsage {
        let disks = self.context.shared.router.disks();
        let space = disks.space();
        StoreUsage {
            capacity_bytes: space.total_bytes,
            available_bytes: space.free_bytes,
            disk_usage: disks.usage().number().into(),
            ..StoreUsage::default()
        }
    }

    fn report(&self, regions: Vec<RegionHeartbeat>, full: bool) -> ReportRequest {
        let shared = &self.context.shared;
        let run = shared.membership.run_report();
        let store = metapb::Store {
            id: run.store.0,
            address: run.address,
            labels: labels_to_wire(&run.labels),
            ..metapb::Store::default()
        };
        ReportRequest {
            cluster_id: self.context.cluster_id(),
            store: Some(store),
            regions: regions.into_iter().map(convert::heartbeat_to_proto).collect(),
            full,
            usage: Some(self.usage()),
            echo: self.echo,
            uuid: uuid_to_wire(run.uuid),
            run: Some(run_to_wire(run.run)),
            level: run.level,
            schema: run.schema,
            registry_version: shared.membership.registry_version(),
            settings_version: shared.membership.settings_in_force(),
            stopping: *shared.stopping.borrow(),
            replicas: Some(shared.router.replica_count() as u64),
            step_answers: Vec::new(),
            load: None,
            time_ms: wall_clock::now_ms(),
        }
    }
}

fn gone() -> Status {
    Status::unavailable("the connection is gone")
}
