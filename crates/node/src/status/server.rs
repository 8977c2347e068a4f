//! The status service: the replicas of a store, its counters, and the stores that it knows.

use std::time::Instant;

use flotilla_dispatch::Lane;
use flotilla_proto::peers::status_server::Status as StatusService;
use flotilla_proto::{metapb, peers};
use flotilla_region::{Descriptor, RegionId, Role, Shard, Space, Status};
use tokio::sync::oneshot;
use tonic::{Request, Response};

use crate::descriptor_proto::{peer_to_proto, region_to_proto};
use crate::driver::shard_message::{Mailboxes, ShardMessage};
use crate::membership::{Membership, labels_to_wire, state_to_wire, uuid_to_wire};
use crate::status::metrics::NodeStatsReader;
use crate::transport::PeerConnections;

/// Replicas of one answer at most.
const PAGE_COUNT_MAX: usize = 1000;

/// Bytes that a look at the regions counts for in a shard's mailbox.
const LOOK_BYTES: usize = 4096;

/// Serves `flotilla.peers.Status`.
pub(crate) struct StatusServer {
    pub(crate) membership: Membership,
    pub(crate) mailboxes: Mailboxes,
    pub(crate) router: crate::driver::router::Router,
    pub(crate) gauges: NodeStatsReader,
    pub(crate) connections: PeerConnections,
    pub(crate) started: Instant,
}

#[tonic::async_trait]
impl StatusService for StatusServer {
    async fn stores(
        &self,
        _: Request<peers::StoresRequest>,
    ) -> Result<Response<peers::StoresResponse>, tonic::Status> {
        // Of itself a store knows more than its copy of the registry says.
        let own = self.membership.run_report();
        let registry = self.membership.registry();
        let stores = self.membership.registered_stores().into_iter().map(|known| {
            let record = registry.store(known.store).cloned().unwrap_or_default();
            let (uuid, starts, level) = match known.store == own.store {
                true => (own.uuid, own.run.starts, own.level),
                false => {
                    let run = self.membership.known_run(known.store);
                    (record.uuid, run.starts, record.level)
                }
            };
            peers::KnownStore {
                name: known.name,
                store: Some(metapb::Store {
                    id: known.store.0,
                    address: known.address,
                    version: crate::VERSION.to_owned(),
                    labels: labels_to_wire(&record.labels),
                    ..metapb::Store::default()
                }),
                uuid: uuid_to_wire(uuid),
                starts,
                level,
                state: state_to_wire(record.state).into(),
            }
        });
        let cluster_id = self.membership.id().cluster_id;
        Ok(Response::new(peers::StoresResponse {
            cluster_id,
            stores: stores.collect(),
            registry_version: registry.version,
            api_version: self.membership.settings().api.number(),
        }))
    }

    async fn regions(
        &self,
        request: Request<peers::RegionsRequest>,
    ) -> Result<Response<peers::RegionsResponse>, tonic::Status> {
        let request = request.into_inner();
        let limit = match request.limit as usize {
            0 => PAGE_COUNT_MAX,
            limit => limit.min(PAGE_COUNT_MAX),
        };
        let mut rest: Vec<Descriptor> = self.router.descriptors();
        rest.retain(|descriptor| descriptor.id.0 > request.after_region_id);
        let more = rest.len() > limit;
        rest.truncate(limit);
        let regions = self.measure(self.look(rest).await?).await?;
        let store_id = self.membership.id().store.0;
        Ok(Response::new(peers::RegionsResponse { store_id, regions, more }))
    }

    async fn stats(
        &self,
        _: Request<peers::StatsRequest>,
    ) -> Result<Response<peers::StatsResponse>, tonic::Status> {
        let descriptors = self.router.descriptors();
        let leaders = descriptors.iter().filter(|region| self.router.leads(region.id)).count();
        let mut response = self.gauges.read().to_wire();
        response.cluster_id = self.membership.id().cluster_id;
        response.store_id = self.membership.id().store.0;
        self.membership.name().clone_into(&mut response.name);
        crate::VERSION.clone_into(&mut response.version);
        let uptime = self.started.elapsed().as_millis();
        response.uptime_ms = u64::try_from(uptime).unwrap_or(u64::MAX);
        response.replicas = descriptors.len() as u64;
        response.leaders = leaders as u64;
        response.replicas_without_leader = self.router.leaderless().1.len() as u64;
        response.stores_connected = self.connections.up_count() as u64 + 1;
        response.stores_known = self.membership.stores().len() as u64;
        response.log_lines_lost = crate::status::metrics::log_lines_lost();
        Ok(Response::new(response))
    }
}

impl StatusServer {
    /// Asks each shard once about its own among `descriptors`.
    async fn look(
        &self,
        descriptors: Vec<Descriptor>,
    ) -> Result<Vec<peers::RegionStatus>, tonic::Status> {
        let mut by_shard: Vec<Vec<Descriptor>> = Vec::new();
        by_shard.resize_with(self.mailboxes.count(), Vec::new);
        for descriptor in descriptors {
            by_shard[self.mailboxes.place(descriptor.id)].push(descriptor);
        }
        let stops = || tonic::Status::unavailable("the store stops");
        let mut answers = Vec::new();
        for (place, descriptors) in by_shard.into_iter().enumerate() {
            let (sender, answer) = oneshot::channel();
            let look = move |shard: &Shard| {
                let looked = descriptors
                    .into_iter()
                    .filter_map(|region| Some((shard.status(region.id)?, region)))
                    .map(|(status, region)| to_wire(&region, &status));
                // An error means that the caller has given up.
                let _ = sender.send(looked.collect::<Vec<_>>());
            };
            let message = ShardMessage::Inspect(Box::new(look));
            let sent = self.mailboxes.at(place).send(Lane::Urgent, message, LOOK_BYTES).await;
            sent.map_err(|_| stops())?;
            answers.push(answer);
        }
        let mut regions = Vec::new();
        for answer in answers {
            regions.extend(answer.await.map_err(|_| stops())?);
        }
        regions.sort_by_key(|status| status.region.as_ref().map(|region| region.id));
        Ok(regions)
    }

    /// Adds the sizes of the regions that are led here: one of all replicas tells it.
    async fn measure(
        &self,
        mut regions: Vec<peers::RegionStatus>,
    ) -> Result<Vec<peers::RegionStatus>, tonic::Status> {
        let router = self.router.clone();
        // On a thread that may block: the pages may have to be read.
        let measured = tokio::task::spawn_blocking(move || {
            let leads = |status: &&mut peers::RegionStatus| status.role() == peers::Role::Leader;
            for status in regions.iter_mut().filter(leads) {
                let id = status.region.as_ref().map_or(0, |region| region.id);
                let size = router.region_size(RegionId(id));
                (status.bytes, status.keys) = size.map(|it| (it.bytes, it.keys)).unzip();
            }
            regions
        });
        measured.await.map_err(|_| tonic::Status::unavailable("the store stops"))
    }
}

fn to_wire(region: &Descriptor, status: &Status) -> peers::RegionStatus {
    let space = match region.space {
        Space::Raw => peers::Space::Raw,
        Space::System => peers::Space::System,
    };
    let role = match status.role {
        Role::Follower => peers::Role::Follower,
        Role::Candidate => peers::Role::Candidate,
        Role::Leader => peers::Role::Leader,
    };
    peers::RegionStatus {
        region: Some(region_to_proto(region)),
        space: space.into(),
        role: role.into(),
        leader: status.leader.as_ref().map(peer_to_proto),
        term: status.term.0,
        applied: status.applied.0,
        committed: status.commit.0,
        log_first: status.first.0,
        log_last: status.last.0,
        bytes: None,
        keys: None,
    }
}
