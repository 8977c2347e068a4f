//! The PD service: regions, stores, ids and timestamps for TiKV's clients.
//!
//! Clients of two generations ask in different ways: the older by one call for each region, the
//! newer by a stream of batches. Both get a header in every answer; some clients crash without.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flotilla_placement::{ClusterView, StoreInfo};
use flotilla_proto::metapb;
use flotilla_proto::pdpb::pd_server::Pd;
use flotilla_proto::pdpb::{
    AllocIdRequest, AllocIdResponse, BatchScanRegionsRequest, BatchScanRegionsResponse, Error,
    ErrorType, GetAllStoresRequest, GetAllStoresResponse, GetClusterConfigRequest,
    GetClusterConfigResponse, GetClusterInfoRequest, GetClusterInfoResponse, GetMembersRequest,
    GetMembersResponse, GetOperatorRequest, GetOperatorResponse, GetRegionByIdRequest,
    GetRegionRequest, GetRegionResponse, GetStoreRequest, GetStoreResponse, IsBootstrappedRequest,
    IsBootstrappedResponse, QueryRegionRequest, QueryRegionResponse, Region, RequestHeader,
    ResponseHeader, ScanRegionsRequest, ScanRegionsResponse, ScatterRegionRequest,
    ScatterRegionResponse, ServiceMode, SplitAndScatterRegionsRequest,
    SplitAndScatterRegionsResponse, SplitRegionsRequest, SplitRegionsResponse, Timestamp,
    TsoRequest, TsoResponse,
};
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::context::PdContext;
use super::convert::{member_to_proto, store_to_proto};
use super::leader::PdLeader;
use super::lookup::{self, LookupResult};
use super::{scatter_regions, split_regions};
use crate::membership::KnownStore;

/// Regions that one answer holds at most; a client that wants more asks again from where it ended.
const SCAN_COUNT_MAX: usize = 10_000;
/// Lookups of one batch at most.
const BATCH_COUNT_MAX: usize = 10_000;
/// The time by which a lookup waits longer for a leader than a request: together as long as an
/// election and a vote that was split take, and less than the 2 s of a call of the Rust and the
/// Python client. The latter ends what it does with an error when it hears of a region without a
/// leader.
const LOOKUP_EXTRA_WAIT: Duration = Duration::from_millis(800);
/// Answers of one stream that wait to be fetched.
const STREAM_COUNT_MAX: usize = 4;

/// The answers of a stream.
type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send + 'static>>;

/// The service, over the shared state.
#[derive(Clone)]
pub(super) struct PdService {
    pub(super) context: PdContext,
}

impl PdService {
    fn header(&self) -> Option<ResponseHeader> {
        Some(ResponseHeader { cluster_id: self.context.cluster_id(), error: None })
    }

    fn header_with(&self, kind: ErrorType, message: String) -> Option<ResponseHeader> {
        let error = Some(Error { r#type: kind.into(), message });
        Some(ResponseHeader { cluster_id: self.context.cluster_id(), error })
    }

    /// The leader's state, for a request of this cluster.
    async fn pd_leader(&self, header: Option<RequestHeader>) -> Result<Arc<PdLeader>, Status> {
        self.context.check_cluster(header.unwrap_or_default().cluster_id)?;
        self.context.pd_leader().await
    }

    /// The result of `look`, waiting a moment for something better than nothing or hearsay.
    async fn look<T>(
        &self,
        pd_leader: &PdLeader,
        look: impl Fn(&ClusterView, u64) -> LookupResult<T>,
    ) -> T {
        let shared = &self.context.shared;
        let leader_wait = shared.settings.leader_wait + LOOKUP_EXTRA_WAIT;
        pd_leader.look(leader_wait, &shared.leader_waits, look).await
    }

    async fn region(
        &self,
        header: Option<RequestHeader>,
        look: impl Fn(&ClusterView, u64) -> LookupResult<Option<Region>>,
    ) -> Result<Response<GetRegionResponse>, Status> {
        let pd_leader = self.pd_leader(header).await?;
        let found = self.encoded(self.look(&pd_leader, look).await.unwrap_or_default());
        let Region { region, leader, down_peers, pending_peers } = found;
        let header = self.header();
        let response = GetRegionResponse { header, region, leader, down_peers, pending_peers };
        Ok(Response::new(response))
    }

    /// A region with its borders as clients see them.
    fn encoded(&self, mut region: Region) -> Region {
        if let Some(region) = &mut region.region {
            self.context.borders().encode_region(region);
        }
        region
    }

    /// The key that a client asks for.
    fn key(&self, key: Bytes) -> Result<Bytes, Status> {
        let decoded = self.context.borders().decode(key);
        decoded.map_err(|error| Status::invalid_argument(error.to_string()))
    }

    async fn query(&self, mut request: QueryRegionRequest) -> Result<QueryRegionResponse, Status> {
        let pd_leader = self.pd_leader(request.header.clone()).await?;
        let count = request.keys.len() + request.prev_keys.len() + request.ids.len();
        if count > BATCH_COUNT_MAX {
            let message = format!("{count} lookups in one batch, at most {BATCH_COUNT_MAX}");
            return Err(Status::invalid_argument(message));
        }
        for key in request.keys.iter_mut().chain(&mut request.prev_keys) {
            *key = self.key(std::mem::take(key))?;
        }
        let look = |cluster: &ClusterView, now_ms| lookup::batch(cluster, now_ms, &request);
        let mut response = self.look(&pd_leader, look).await;
        let found = response.regions_by_id.values_mut();
        for region in found.filter_map(|found| found.region.as_mut()) {
            self.context.borders().encode_region(region);
        }
        Ok(QueryRegionResponse { header: self.header(), ..response })
    }

    /// As [`split_regions::split`]; with the percentage of the keys that begin a region.
    async fn split(
        &self,
        pd_leader: &PdLeader,
        keys: Vec<Bytes>,
        retry_limit: u64,
    ) -> Result<(u64, Vec<u64>), Status> {
        check_count(keys.len(), "split keys")?;
        let mut keys = keys.into_iter().map(|key| self.key(key)).collect::<Result<Vec<_>, _>>()?;
        let borders = self.context.borders();
        // The empty key is the border of the first region.
        if let Some(key) = keys.iter().find(|key| !key.is_empty() && !borders.is_border(key)) {
            let key = key.escape_ascii();
            let words = format!("key {key} is too short: a border has a mode and a keyspace");
            return Err(Status::invalid_argument(words));
        }
        keys.sort_unstable();
        keys.dedup();
        let made = split_regions::split(&self.context, pd_leader, &keys, retry_limit).await;
        Ok((percentage(made.len(), keys.len()), made))
    }

    async fn scatter(
        &self,
        request: ScatterRegionRequest,
    ) -> Result<ScatterRegionResponse, Status> {
        let ScatterRegionRequest { header, region_id, mut regions_id, retry_limit, .. } = request;
        let pd_leader = self.pd_leader(header).await?;
        let is_one = regions_id.is_empty();
        if is_one {
            regions_id.push(region_id);
        }
        check_count(regions_id.len(), "regions")?;
        let count = regions_id.len();
        let failed = scatter_regions::scatter(&pd_leader, &regions_id, retry_limit).await;
        // Older clients look at the header alone.
        let header = match failed.first() {
            Some(region) if is_one => {
                let message = format!("region {region} is unknown, has no leader, or changes");
                self.header_with(ErrorType::RegionNotFound, message)
            }
            _ => self.header(),
        };
        let finished_percentage = percentage(count.saturating_sub(failed.len()), count);
        Ok(ScatterRegionResponse { header, finished_percentage, failed_regions_id: failed })
    }

    async fn timestamps(&self, request: TsoRequest) -> Result<TsoResponse, Status> {
        let pd_leader = self.pd_leader(request.header).await?;
        let taken = pd_leader.timestamp(u64::from(request.count)).await?;
        let physical = i64::try_from(taken.physical_ms).unwrap_or(i64::MAX);
        // Below 2^18, so it fits.
        let logical = i64::try_from(taken.logical).unwrap_or(i64::MAX);
        let timestamp = Some(Timestamp { physical, logical, suffix_bits: 0 });
        Ok(TsoResponse { header: self.header(), count: request.count, timestamp })
    }
}

/// Answers the requests of a stream one by one, until one cannot be answered. That a store ceases
/// to lead shows at the next request; a stream on which nothing is asked stays open, as clients
/// expect.
fn converse<Q: Send + 'static, A: Send + 'static, F>(
    mut requests: Streaming<Q>,
    answer: impl Fn(Q) -> F + Send + 'static,
) -> Answers<A>
where
    F: Future<Output = Result<A, Status>> + Send,
{
    let (answers_in, answers) = mpsc::channel(STREAM_COUNT_MAX);
    tokio::spawn(async move {
        loop {
            let request = tokio::select! {
                request = requests.message() => request,
                () = answers_in.closed() => return,
            };
            let answer = match request {
                Ok(Some(request)) => answer(request).await,
                Ok(None) => return,
                Err(status) => Err(status),
            };
            let last = answer.is_err();
            if answers_in.send(answer).await.is_err() || last {
                return;
            }
        }
    });
    Box::pin(ReceiverStream::new(answers))
}

fn check_count(count: usize, what: &str) -> Result<(), Status> {
    if count <= BATCH_COUNT_MAX {
        return Ok(());
    }
    Err(Status::invalid_argument(format!("{count} {what} at once, at most {BATCH_COUNT_MAX}")))
}

/// How many of a hundred are done; all of none.
fn percentage(done: usize, count: usize) -> u64 {
    (done * 100).checked_div(count).unwrap_or(100) as u64
}

fn limit(asked: i32) -> usize {
    usize::try_from(asked).ok().filter(|&limit| limit > 0).unwrap_or(SCAN_COUNT_MAX)
}

#[tonic::async_trait]
impl Pd for PdService {
    async fn get_members(
        &self,
        _request: Request<GetMembersRequest>,
    ) -> Result<Response<GetMembersResponse>, Status> {
        let membership = &self.context.shared.membership;
        let member = |store: &KnownStore| member_to_proto(store, self.context.dialer());
        let leader = self.context.leader().await.as_ref().map(member);
        Ok(Response::new(GetMembersResponse {
            header: self.header(),
            members: membership.stores().iter().map(member).collect(),
            leader: leader.clone(),
            etcd_leader: leader,
            ..GetMembersResponse::default()
        }))
    }

    async fn get_cluster_info(
        &self,
        _request: Request<GetClusterInfoRequest>,
    ) -> Result<Response<GetClusterInfoResponse>, Status> {
        Ok(Response::new(GetClusterInfoResponse {
            header: self.header(),
            service_modes: vec![ServiceMode::PdSvcMode.into()],
            ..GetClusterInfoResponse::default()
        }))
    }

    async fn get_cluster_config(
        &self,
        request: Request<GetClusterConfigRequest>,
    ) -> Result<Response<GetClusterConfigResponse>, Status> {
        let pd_leader = self.pd_leader(request.into_inner().header).await?;
        // As an operator has set it, which may be another number than that of the bootstrap.
        let (_, max_peer_count) = pd_leader.repair().settings();
        let cluster = Some(metapb::Cluster { id: self.context.cluster_id(), max_peer_count });
        Ok(Response::new(GetClusterConfigResponse { header: self.header(), cluster }))
    }

    /// Always true: a cluster begins with all of its regions.
    async fn is_bootstrapped(
        &self,
        request: Request<IsBootstrappedRequest>,
    ) -> Result<Response<IsBootstrappedResponse>, Status> {
        self.pd_leader(request.into_inner().header).await?;
        Ok(Response::new(IsBootstrappedResponse { header: self.header(), bootstrapped: true }))
    }

    async fn alloc_id(
        &self,
        request: Request<AllocIdRequest>,
    ) -> Result<Response<AllocIdResponse>, Status> {
        let AllocIdRequest { header, count } = request.into_inner();
        let count = count.max(1);
        let id = self.pd_leader(header).await?.ids(u64::from(count)).await?;
        Ok(Response::new(AllocIdResponse { header: self.header(), id, count }))
    }

    async fn get_region(
        &self,
        request: Request<GetRegionRequest>,
    ) -> Result<Response<GetRegionResponse>, Status> {
        let GetRegionRequest { header, region_key, .. } = request.into_inner();
        let region_key = self.key(region_key)?;
        self.region(header, |cluster, now_ms| lookup::by_key(cluster, now_ms, &region_key)).await
    }

    async fn get_prev_region(
        &self,
        request: Request<GetRegionRequest>,
    ) -> Result<Response<GetRegionResponse>, Status> {
        let GetRegionRequest { header, region_key, .. } = request.into_inner();
        let region_key = self.key(region_key)?;
        self.region(header, |cluster, now_ms| lookup::by_next_key(cluster, now_ms, &region_key))
            .await
    }

    async fn get_region_by_id(
        &self,
        request: Request<GetRegionByIdRequest>,
    ) -> Result<Response<GetRegionResponse>, Status> {
        let GetRegionByIdRequest { header, region_id, .. } = request.into_inner();
        self.region(header, |cluster, now_ms| lookup::by_id(cluster, now_ms, region_id)).await
    }

    async fn scan_regions(
        &self,
        request: Request<ScanRegionsRequest>,
    ) -> Result<Response<ScanRegionsResponse>, Status> {
        let ScanRegionsRequest { header, start_key, end_key, limit: asked } = request.into_inner();
        let pd_leader = self.pd_leader(header).await?;
        let (start_key, end_key) = (self.key(start_key)?, self.key(end_key)?);
        let look = |cluster: &ClusterView, now_ms| {
            lookup::scan(cluster, now_ms, &start_key, &end_key, limit(asked))
        };
        let regions = self.look(&pd_leader, look).await.regions.into_iter();
        let regions: Vec<_> = regions.map(|region| self.encoded(region)).collect();
        // Older clients read the two lists, in which a region without a leader has an empty one.
        let region_metas = regions.iter().filter_map(|region| region.region.clone()).collect();
        let leaders = regions.iter().map(|region| region.leader.unwrap_or_default());
        let leaders = leaders.collect();
        let header = self.header();
        Ok(Response::new(ScanRegionsResponse { header, region_metas, leaders, regions }))
    }

    async fn batch_scan_regions(
        &self,
        request: Request<BatchScanRegionsRequest>,
    ) -> Result<Response<BatchScanRegionsResponse>, Status> {
        let BatchScanRegionsRequest {
            header, mut ranges, limit: asked, contain_all_key_range, ..
        } = request.into_inner();
        let pd_leader = self.pd_leader(header).await?;
        if ranges.len() > BATCH_COUNT_MAX {
            let message =
                format!("{} ranges in one batch, at most {BATCH_COUNT_MAX}", ranges.len());
            return Err(Status::invalid_argument(message));
        }
        for range in &mut ranges {
            range.start_key = self.key(std::mem::take(&mut range.start_key))?;
            range.end_key = self.key(std::mem::take(&mut range.end_key))?;
        }
        let look = |cluster: &ClusterView, now_ms| {
            lookup::scan_all(cluster, now_ms, &ranges, limit(asked))
        };
        let scanned = self.look(&pd_leader, look).await;
        if contain_all_key_range && !scanned.whole {
            let kind = ErrorType::RegionsNotContainAllKeyRange;
            let header = self.header_with(kind, "the regions do not contain all keys".to_owned());
            return Ok(Response::new(BatchScanRegionsResponse { header, regions: Vec::new() }));
        }
        let regions = scanned.regions.into_iter().map(|region| self.encoded(region)).collect();
        Ok(Response::new(BatchScanRegionsResponse { header: self.header(), regions }))
    }

    async fn split_regions(
        &self,
        request: Request<SplitRegionsRequest>,
    ) -> Result<Response<SplitRegionsResponse>, Status> {
        let SplitRegionsRequest { header, split_keys, retry_limit } = request.into_inner();
        let pd_leader = self.pd_leader(header).await?;
        let (finished_percentage, regions_id) =
            self.split(&pd_leader, split_keys, retry_limit).await?;
        let header = self.header();
        Ok(Response::new(SplitRegionsResponse { header, finished_percentage, regions_id }))
    }

    async fn split_and_scatter_regions(
        &self,
        request: Request<SplitAndScatterRegionsRequest>,
    ) -> Result<Response<SplitAndScatterRegionsResponse>, Status> {
        let SplitAndScatterRegionsRequest { header, split_keys, retry_limit, .. } =
            request.into_inner();
        let pd_leader = self.pd_leader(header).await?;
        let (split_finished_percentage, regions_id) =
            self.split(&pd_leader, split_keys, retry_limit).await?;
        let failed = scatter_regions::scatter(&pd_leader, &regions_id, retry_limit).await;
        let count = regions_id.len();
        Ok(Response::new(SplitAndScatterRegionsResponse {
            header: self.header(),
            split_finished_percentage,
            scatter_finished_percentage: percentage(count.saturating_sub(failed.len()), count),
            regions_id,
        }))
    }

    async fn scatter_region(
        &self,
        request: Request<ScatterRegionRequest>,
    ) -> Result<Response<ScatterRegionResponse>, Status> {
        Ok(Response::new(self.scatter(request.into_inner()).await?))
    }

    async fn get_operator(
        &self,
        request: Request<GetOperatorRequest>,
    ) -> Result<Response<GetOperatorResponse>, Status> {
        let GetOperatorRequest { header, region_id } = request.into_inner();
        let pd_leader = self.pd_leader(header).await?;
        let Some(operator) = scatter_regions::operator(&pd_leader, region_id) else {
            let message = format!("no change of region {region_id} is remembered");
            let header = self.header_with(ErrorType::RegionNotFound, message);
            return Ok(Response::new(GetOperatorResponse { header, ..Default::default() }));
        };
        Ok(Response::new(GetOperatorResponse {
            header: self.header(),
            region_id,
            desc: operator.description.into(),
            status: operator.status.into(),
            kind: operator.kind.into(),
        }))
    }

    type QueryRegionStream = Answers<QueryRegionResponse>;

    async fn query_region(
        &self,
        request: Request<Streaming<QueryRegionRequest>>,
    ) -> Result<Response<Self::QueryRegionStream>, Status> {
        self.context.pd_leader().await?;
        let service = self.clone();
        let answer = move |request| {
            let service = service.clone();
            async move { service.query(request).await }
        };
        Ok(Response::new(converse(request.into_inner(), answer)))
    }

    async fn get_store(
        &self,
        request: Request<GetStoreRequest>,
    ) -> Result<Response<GetStoreResponse>, Status> {
        let GetStoreRequest { header, store_id } = request.into_inner();
        let pd_leader = self.pd_leader(header).await?;
        let store = pd_leader.see(|cluster| cluster.store(store_id).map(store_to_proto));
        let header = match store {
            Some(_) => self.header(),
            // Clients search the message for both halves of it.
            None => self
                .header_with(ErrorType::Unknown, format!("invalid store ID {store_id}, not found")),
        };
        Ok(Response::new(GetStoreResponse { header, store }))
    }

    async fn get_all_stores(
        &self,
        request: Request<GetAllStoresRequest>,
    ) -> Result<Response<GetAllStoresResponse>, Status> {
        let GetAllStoresRequest { header, exclude_tombstone_stores } = request.into_inner();
        let pd_leader = self.pd_leader(header).await?;
        let wanted = |store: &&StoreInfo| !(exclude_tombstone_stores && store.standing.is_lost);
        let stores =
            pd_leader.see(|cluster| cluster.stores().filter(wanted).map(store_to_proto).collect());
        Ok(Response::new(GetAllStoresResponse { header: self.header(), stores }))
    }

    type TsoStream = Answers<TsoResponse>;

    async fn tso(
        &self,
        request: Request<Streaming<TsoRequest>>,
    ) -> Result<Response<Self::TsoStream>, Status> {
        self.context.pd_leader().await?;
        let service = self.clone();
        let answer = move |request| {
            let service = service.clone();
            async move { service.timestamps(request).await }
        };
        Ok(Response::new(converse(request.into_inner(), answer)))
    }
}
