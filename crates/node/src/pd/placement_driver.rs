//! The placement driver of a store, put together.

use flotilla_proto::keyspacepb::keyspace_server::{Keyspace, KeyspaceServer};
use flotilla_proto::meta_storagepb::meta_storage_server::{MetaStorage, MetaStorageServer};
use flotilla_proto::pdpb::pd_server::{Pd, PdServer};
use flotilla_proto::peers::placement_server::{self, PlacementServer};
use tokio::task::JoinSet;

use super::context::{Driver, Settings};
use super::heartbeat_receiver::Reports;
use super::service::PdService;
use super::stubs::{NoFacts, NoKeyspaces};
use super::{election, heartbeat_sender};
use crate::driver::router::Router;
use crate::membership::Membership;

/// The placement driver of one store. Dropping it stops its tasks.
pub struct Placement {
    driver: Driver,
    _tasks: JoinSet<()>,
}

impl Placement {
    /// Begins to follow the leadership of the system region, and to report to its leader. Must be
    /// called within the runtime that serves.
    #[must_use]
    pub(crate) fn start(router: Router, membership: Membership, settings: Settings) -> Self {
        let driver = Driver::new(router, membership, settings);
        let mut tasks = JoinSet::new();
        tasks.spawn(election::follow(driver.clone()));
        tasks.spawn(heartbeat_sender::run(driver.clone()));
        Self { driver, _tasks: tasks }
    }

    /// The service that TiKV's clients ask for regions, stores, ids and timestamps.
    #[must_use]
    pub fn pd_server(&self) -> PdServer<impl Pd> {
        PdServer::new(PdService::new(self.driver.clone()))
    }

    /// The service that the stores report to.
    #[must_use]
    pub fn report_server(&self) -> PlacementServer<impl placement_server::Placement> {
        PlacementServer::new(Reports::new(self.driver.clone()))
    }

    /// The service of published facts, which has none.
    #[must_use]
    pub fn meta_storage_server(&self) -> MetaStorageServer<impl MetaStorage> {
        MetaStorageServer::new(NoFacts::new(self.driver.clone()))
    }

    /// The service of keyspaces, which says that there are none.
    #[must_use]
    pub fn keyspace_server(&self) -> KeyspaceServer<impl Keyspace> {
        KeyspaceServer::new(NoKeyspaces::new(self.driver.clone()))
    }
}
