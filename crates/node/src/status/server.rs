//! The status service: the replicas of a store, its counters, and the stores that it knows.

use flotilla_proto::peers::status_server::Status as StatusService;
use flotilla_proto::{metapb, peers};
use flotilla_region::{Descriptor, RegionId, Role, Space, Status};
use tonic::{Request, Response};

use crate::descriptor_proto::{peer_to_proto, region_to_proto};
use crate::membership::{labels_to_wire, state_to_wire, uuid_to_wire};
use crate::status::reader::{StatusReader, StoreStops};
use crate::verdict_proto::verdict_to_wire;

/// Replicas of one answer at most.
const PAGE_COUNT_MAX: usize = 1000;
/// Regions whose replicas differ, in one answer at most. The gauge counts all.
const VERDICTS_MAX: usize = 1000;

/// Serves `flotilla.peers.Status`.
pub(crate) struct StatusServer {
    pub(crate) reader: StatusReader,
}

#[tonic::async_trait]
impl StatusService for StatusServer {
    async fn stores(
        &self,
        _: Request<peers::StoresRequest>,
    ) -> Result<Response<peers::StoresResponse>, tonic::Status> {
        // Of itself a store knows more than its copy of the registry says.
        let own = self.reader.membership.run_report();
        let registry = self.reader.membership.registry();
        let stores = self.reader.membership.registered_stores().into_iter().map(|known| {
            let record = registry.store(known.store).cloned().unwrap_or_default();
            let (uuid, starts, level) = match known.store == own.store {
                true => (own.uuid, own.run.starts, own.level),
                false => {
                    let run = self.reader.membership.known_run(known.store);
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
        let cluster_id = self.reader.membership.id().cluster_id;
        Ok(Response::new(peers::StoresResponse {
            cluster_id,
            stores: stores.collect(),
            registry_version: registry.version,
            api_version: self.reader.membership.settings().api.number(),
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
        let mut rest: Vec<Descriptor> = self.reader.router.descriptors();
        rest.retain(|descriptor| descriptor.id.0 > request.after_region_id);
        let more = rest.len() > limit;
        rest.truncate(limit);
        let regions = self.measure(self.look(rest).await?).await?;
        let store_id = self.reader.membership.id().store.0;
        Ok(Response::new(peers::RegionsResponse { store_id, regions, more }))
    }

    async fn stats(
        &self,
        _: Request<peers::StatsRequest>,
    ) -> Result<Response<peers::StatsResponse>, tonic::Status> {
        let facts = self.reader.facts();
        let mut response = self.reader.stats.read().to_wire();
        response.cluster_id = self.reader.membership.id().cluster_id;
        response.store_id = self.reader.membership.id().store.0;
        self.reader.membership.name().clone_into(&mut response.name);
        crate::VERSION.clone_into(&mut response.version);
        response.uptime_ms = facts.uptime_milliseconds;
        response.replicas = facts.replicas;
        response.leaders = facts.leaders;
        response.replicas_without_leader = facts.replicas_without_leader;
        response.stores_connected = facts.stores_connected;
        response.stores_known = facts.stores_known;
        response.log_lines_lost = facts.log_lines_lost;
        let inconsistent = self.reader.router.store().inconsistent_regions();
        let told = inconsistent.iter().take(VERDICTS_MAX);
        response.inconsistent =
            told.map(|(region, verdict)| verdict_to_wire(*region, verdict)).collect();
        Ok(Response::new(response))
    }
}

impl StatusServer {
    /// The replicas of `descriptors`, as their shards see them.
    async fn look(
        &self,
        descriptors: Vec<Descriptor>,
    ) -> Result<Vec<peers::RegionStatus>, tonic::Status> {
        let looked = self.reader.look(descriptors).await.map_err(stops)?;
        Ok(looked.iter().map(|(region, status)| to_wire(region, status)).collect())
    }

    /// Adds the sizes of the regions that are led here: one of all replicas tells it.
    async fn measure(
        &self,
        mut regions: Vec<peers::RegionStatus>,
    ) -> Result<Vec<peers::RegionStatus>, tonic::Status> {
        let router = self.reader.router.clone();
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
        measured.await.map_err(|_| stops(StoreStops))
    }
}

fn stops(stops: StoreStops) -> tonic::Status {
    tonic::Status::unavailable(stops.to_string())
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
