//! Receives region heartbeats of the stores. A stream stands for a store: when it breaks, the store
//! may be gone, and its leaders are suspect from that moment.

use std::pin::Pin;
use std::sync::Arc;

use flotilla_identity::{RunReport, check_labels};
use flotilla_proto::peers::placement_server::Placement;
use flotilla_proto::peers::{ReportRequest, ReportResponse};
use flotilla_region::StoreId;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::context::PdContext;
use super::convert;
use super::errors::not_leader;
use super::heartbeat_sessions::Pings;
use super::leader::PdLeader;
use crate::membership::{labels_from_wire, run_from_wire, uuid_from_wire};
use crate::net::connection::ConnectionPeer;

/// Answers that wait for the connection: a ping, a registry, settings, transfers and steps.
const ANSWERS_COUNT_MAX: usize = 5;

/// The service that takes heartbeats.
pub(super) struct HeartbeatReceiver(pub(super) PdContext);

#[tonic::async_trait]
impl Placement for HeartbeatReceiver {
    type ReportStream =
        Pin<Box<dyn Stream<Item = Result<ReportResponse, Status>> + Send + 'static>>;

    async fn report(
        &self,
        request: Request<Streaming<ReportRequest>>,
    ) -> Result<Response<Self::ReportStream>, Status> {
        let pd_leader = self.0.pd_leader().await?;
        let (pings, answers) = mpsc::channel(ANSWERS_COUNT_MAX);
        let peer = ConnectionPeer::of(request.extensions());
        tokio::spawn(listen(self.0.clone(), pd_leader, request.into_inner(), peer, pings));
        Ok(Response::new(Box::pin(ReceiverStream::new(answers))))
    }
}

async fn listen(
    context: PdContext,
    pd_leader: Arc<PdLeader>,
    mut reports: Streaming<ReportRequest>,
    peer: ConnectionPeer,
    pings: Pings,
) {
    let mut pd_leaders = context.shared.pd_leader.subscribe();
    let mut session = None;
    let status = loop {
        let stepped_down = pd_leaders
            .wait_for(|held| !held.as_ref().is_some_and(|held| Arc::ptr_eq(held, &pd_leader)));
        let report = tokio::select! {
            report = reports.message() => report,
            _ = stepped_down => break Some(not_leader()),
        };
        let Ok(Some(report)) = report else { break None };
        let sender = StoreId(report.store.as_ref().map_or(0, |store| store.id));
        if let Err(status) = peer.check_store(&context.shared.membership.name_of(sender)) {
            break Some(status);
        }
        if let Err(status) = take(&context, &pd_leader, report, &pings, &mut session) {
            break Some(status);
        }
    };
    if let Some((store, number)) = session {
        pd_leader.end_session(store, number);
    }
    if let Some(status) = status {
        let _ = pings.send(Err(status)).await;
    }
}

/// Takes in one heartbeat.
fn take(
    context: &PdContext,
    pd_leader: &Arc<PdLeader>,
    report: ReportRequest,
    pings: &Pings,
    session: &mut Option<(StoreId, u64)>,
) -> Result<(), Status> {
    context.check_cluster(report.cluster_id)?;
    let told = report.store.unwrap_or_default();
    let store = StoreId(told.id);
    if context.member(store).is_none() {
        return Err(Status::invalid_argument(format!("store {store} is not of this cluster")));
    }
    let uuid = uuid_from_wire(&report.uuid)?;
    let is_gone = {
        let row = pd_leader.registry.lock();
        // One that this leader does not list yet has just joined by way of another.
        let known = row.registry().store(store);
        if let Some(known) = known.filter(|known| known.uuid != uuid) {
            let words = format!("store {store} is directory {}, and {uuid} reports", known.uuid);
            return Err(Status::invalid_argument(words));
        }
        row.registry().is_gone(store)
    };
    // One that is gone is not heard: a silence that never begins would keep its replicas.
    if !is_gone && session.is_none_or(|(known, _)| known != store) {
        *session = Some((store, pd_leader.begin_session(store, pings.clone())));
    }
    let run = RunReport {
        store,
        uuid,
        address: told.address,
        run: run_from_wire(report.run.unwrap_or_default()),
        level: report.level,
        schema: report.schema,
        labels: labels_from_wire(told.labels),
    };
    check_labels(&run.labels).map_err(Status::invalid_argument)?;
    note_versions(pd_leader, &run, (report.registry_version, report.settings_version), pings);
    if is_gone {
        // It has the registry that says so, and stops by that.
        let words = format!("store {store} is no store of this cluster any more");
        return Err(Status::permission_denied(words));
    }
    let sightings: Vec<_> =
        report.regions.into_iter().filter_map(convert::sighting_from_proto).collect();
    pd_leader.hear(store, &sightings, report.full, report.echo);
    if let Some(load) = report.load {
        pd_leader.note_loads(store, &load);
    }
    pd_leader.note_condition(store, report.stopping, report.replicas);
    pd_leader.note_disk(store, report.usage.unwrap_or_default());
    pd_leader.note_clock(store, report.time_ms);
    pd_leader.repair().answer(pd_leader.now_ms(), report.step_answers);
    // Without room the steps wait for the next report.
    if let Ok(room) = pings.try_reserve() {
        let steps = pd_leader.repair().steps(pd_leader.now_ms(), store);
        if !steps.is_empty() {
            room.send(Ok(ReportResponse { steps, ..ReportResponse::default() }));
        }
    }
    if let Ok(room) = pings.try_reserve() {
        let steps = pd_leader.transfers(store);
        if !steps.is_empty() {
            let transfers = steps.iter().map(convert::step_to_proto).collect();
            room.send(Ok(ReportResponse { transfers, ..ReportResponse::default() }));
        }
    }
    Ok(())
}

/// Takes in what a store has of registry and settings, and shows it what it lacks.
fn note_versions(
    pd_leader: &Arc<PdLeader>,
    run: &RunReport,
    (registry, settings): (u64, u64),
    pings: &Pings,
) {
    // Full: the next report finds it missing again.
    if let Some(newer) = pd_leader.note_run(run, registry) {
        let registry = newer.encode().into();
        let _ = pings.try_send(Ok(ReportResponse { registry, ..ReportResponse::default() }));
    }
    if let Some(newer) = pd_leader.note_settings(run.store, settings, registry) {
        let settings = newer.encode().into();
        let _ = pings.try_send(Ok(ReportResponse { settings, ..ReportResponse::default() }));
    }
}
