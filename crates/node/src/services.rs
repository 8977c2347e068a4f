//! Puts together everything that a node serves on its one port: gRPC of clients, of placement and
//! between stores, and plain HTTP.

use std::sync::Arc;
use std::time::Instant;

use flotilla_proto::peers::operator_server::OperatorServer as OperatorGrpc;
use flotilla_proto::peers::peers_server::PeersServer;
use flotilla_proto::peers::status_server::StatusServer as StatusGrpc;
use tokio::task::JoinSet;
use tonic::service::Routes as GrpcRoutes;
use tonic_health::server::HealthReporter;

use crate::access;
use crate::config::ResolvedConfig;
use crate::driver::context::NodeContext;
use crate::net::bounded_calls::BoundedCalls;
use crate::net::call_deadline::TimedCalls;
use crate::net::dial::PEER_MESSAGE_BYTES_MAX;
use crate::net::refusal::{WordedRefusals, refuse};
use crate::net::security::NodeSecurity;
use crate::online_settings::OnlineSettings;
use crate::pd::PlacementDriver;
use crate::service::operator::OperatorServer;
use crate::service::rawkv::RawKv;
use crate::service::region_backup::RegionBackups;
use crate::status::health::HealthWatch;
use crate::status::http as status_http;
use crate::status::metrics::NodeStatsReader;
use crate::status::page::{self as status_page, PageState};
use crate::status::reader::StatusReader;
use crate::status::server::StatusServer;
use crate::status::settings_http;
use crate::status::tikv_http;
use crate::transport::{ByteRate, FrameReceiver, TransportCounters};

/// The parts of a node that its services need.
pub(crate) struct ServedParts<'a> {
    pub(crate) security: &'a NodeSecurity,
    pub(crate) watch: &'a HealthWatch,
    pub(crate) context: &'a NodeContext,
    pub(crate) counters: Arc<TransportCounters>,
    pub(crate) settings: &'a Arc<OnlineSettings>,
    pub(crate) placement: &'a PlacementDriver,
}

/// Everything that the node serves, on one port.
pub(crate) fn services(
    resolved: &ResolvedConfig,
    parts: ServedParts<'_>,
    tasks: &mut JoinSet<()>,
) -> (HealthReporter, GrpcRoutes) {
    let ServedParts { security, watch, context, counters, settings, placement } = parts;
    let HealthWatch { membership, router, connections, .. } = watch;
    let snapshot_rate = ByteRate::new(settings.snapshot_rates(), context.served_count());
    let receiver = FrameReceiver::new(
        membership.clone(),
        Arc::clone(&context.store),
        context.mailboxes.clone(),
        Arc::clone(&counters),
        (snapshot_rate, Arc::clone(&context.disks)),
    );
    let peers = PeersServer::new(receiver).max_decoding_message_size(PEER_MESSAGE_BYTES_MAX);
    let raw_kv =
        RawKv::with_membership(router.clone(), Default::default(), Some(membership.clone()));
    let stats = NodeStatsReader {
        context: context.clone(),
        router: router.clone(),
        counters,
        security: security.clone(),
        rpc_durations: Arc::clone(raw_kv.rpc_durations()),
    };
    let reader = StatusReader {
        membership: membership.clone(),
        mailboxes: context.mailboxes.clone(),
        router: router.clone(),
        stats,
        connections: connections.clone(),
        data_dir: resolved.config.data_dir.clone(),
        started: Instant::now(),
    };
    let (health, health_server) = tonic_health::server::health_reporter();
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(flotilla_proto::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let made = "the descriptors were made by the compiler of the protocol";
    let operator = OperatorServer {
        router: router.clone(),
        membership: membership.clone(),
        repair: placement.repair_requests(),
        keyspaces: placement.keyspace_requests(),
        backups: placement.backup_requests(),
        region_backups: RegionBackups::new(router.clone()),
        settings: placement.setting_requests(),
        online: Arc::clone(settings),
    };
    let routes = GrpcRoutes::new(raw_kv.into_server())
        .add_service(WordedRefusals(TimedCalls(BoundedCalls(placement.pd_server()))))
        .add_service(BoundedCalls(placement.report_server()))
        .add_service(BoundedCalls(placement.join_server()))
        .add_service(WordedRefusals(TimedCalls(BoundedCalls(placement.meta_storage_server()))))
        .add_service(WordedRefusals(TimedCalls(BoundedCalls(placement.keyspace_server()))))
        .add_service(BoundedCalls(peers))
        .add_service(BoundedCalls(StatusGrpc::new(StatusServer { reader: reader.clone() })))
        .add_service(BoundedCalls(OperatorGrpc::new(operator)))
        .add_service(BoundedCalls(health_server))
        .add_service(BoundedCalls(reflection().build_v1().expect(made)))
        // Older clients, grpcurl among them, know no other.
        .add_service(BoundedCalls(reflection().build_v1alpha().expect(made)))
        .prepare();
    let tikv = tikv_http::routes(resolved, membership);
    let (page, sampler) = PageState::new(reader.clone(), placement.cluster_regions());
    tasks.spawn(sampler.run());
    let plain = placement.http_routes().merge(tikv).merge(status_http::routes(reader));
    let settings = settings_http::routes(Arc::clone(settings), membership.clone());
    let plain = plain.merge(status_page::routes(page)).merge(settings);
    let routes = routes.into_axum_router().fallback(refuse).merge(plain);
    (health, access::guard(routes.into(), security))
}
