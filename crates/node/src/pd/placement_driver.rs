//! Assembles the placement driver of a store: its tasks and its services.

use flotilla_proto::keyspacepb::keyspace_server::{Keyspace, KeyspaceServer as KeyspaceGrpc};
use flotilla_proto::meta_storagepb::meta_storage_server::{MetaStorage, MetaStorageServer};
use flotilla_proto::pdpb::pd_server::{Pd, PdServer};
use flotilla_proto::peers::join_server::{Join, JoinServer};
use flotilla_proto::peers::placement_server::{self, PlacementServer};
use tokio::task::JoinSet;
use tonic::codec::CompressionEncoding;

use super::backups::BackupRequests;
use super::cluster_regions::ClusterRegions;
use super::context::{PdConfig, PdContext};
use super::heartbeat_receiver::HeartbeatReceiver;
use super::keyspaces::{KeyspaceRequests, KeyspaceServer};
use super::registration::JoinService;
use super::repair_requests::RepairRequests;
use super::service::PdService;
use super::setting_changes::SettingRequests;
use super::stubs::EmptyMetaStorage;
use super::{election, heartbeat_sender, http, id_lender};
use crate::driver::router::Router;
use crate::membership::Membership;
use crate::transport::PeerConnections;

/// The placement driver of one store. Dropping it stops its tasks.
pub struct PlacementDriver {
    context: PdContext,
    _tasks: JoinSet<()>,
}

impl PlacementDriver {
    /// Begins to follow the leadership of the system region, and to send heartbeats to its leader.
    /// Must be called within the runtime that serves.
    #[must_use]
    pub(crate) fn start(
        router: Router,
        membership: Membership,
        connections: PeerConnections,
        settings: PdConfig,
    ) -> Self {
        let context = PdContext::new(router, membership, connections, settings);
        let mut tasks = JoinSet::new();
        tasks.spawn(election::follow(context.clone()));
        tasks.spawn(heartbeat_sender::run(context.clone()));
        tasks.spawn(id_lender::run(context.clone()));
        Self { context, _tasks: tasks }
    }

    /// Tells the leader of placement that this store hands its leaders over and stops: it should
    /// get no others.
    pub(crate) fn announce_stop(&self) {
        self.context.shared.stopping.send_replace(true);
    }

    /// The service that TiKV's clients ask for regions, stores, ids and timestamps.
    #[must_use]
    pub fn pd_server(&self) -> PdServer<impl Pd> {
        PdServer::new(PdService { context: self.context.clone() })
            .accept_compressed(CompressionEncoding::Gzip)
    }

    /// The HTTP API of PD.
    pub(crate) fn http_routes(&self) -> axum::Router {
        http::routes(self.context.clone())
    }

    /// The regions of the cluster, for the status page.
    pub(crate) fn cluster_regions(&self) -> ClusterRegions {
        ClusterRegions(self.context.clone())
    }

    /// Repair, for operators.
    pub(crate) fn repair_requests(&self) -> RepairRequests {
        RepairRequests(self.context.clone())
    }

    /// Keyspaces, for operators.
    pub(crate) fn keyspace_requests(&self) -> KeyspaceRequests {
        KeyspaceRequests(self.context.clone())
    }

    /// Backups and restores, for operators.
    pub(crate) fn backup_requests(&self) -> BackupRequests {
        BackupRequests(self.context.clone())
    }

    /// Settings of the cluster, for operators.
    pub(crate) fn setting_requests(&self) -> SettingRequests {
        SettingRequests(self.context.clone())
    }

    /// The service that takes heartbeats.
    #[must_use]
    pub fn report_server(&self) -> PlacementServer<impl placement_server::Placement> {
        PlacementServer::new(HeartbeatReceiver(self.context.clone()))
    }

    /// The service that stores ask which join the cluster.
    #[must_use]
    pub fn join_server(&self) -> JoinServer<impl Join> {
        JoinServer::new(JoinService(self.context.clone()))
    }

    /// The meta storage of PD, which is empty.
    #[must_use]
    pub fn meta_storage_server(&self) -> MetaStorageServer<impl MetaStorage> {
        MetaStorageServer::new(EmptyMetaStorage(self.context.clone()))
            .accept_compressed(CompressionEncoding::Gzip)
    }

    /// The keyspaces of PD.
    #[must_use]
    pub fn keyspace_server(&self) -> KeyspaceGrpc<impl Keyspace> {
        KeyspaceGrpc::new(KeyspaceServer(self.context.clone()))
            .accept_compressed(CompressionEncoding::Gzip)
    }
}
