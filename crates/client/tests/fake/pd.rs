//! The fake store's placement service: every store knows everything.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::Pin;

use flotilla_proto::{metapb, pdpb};
use tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};

use super::store::Store;
use super::{CLUSTER_ID, peer_of};

type Answer<T> = Result<Response<T>, Status>;
type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Store {
    fn header(&self) -> Option<pdpb::ResponseHeader> {
        Some(pdpb::ResponseHeader { cluster_id: CLUSTER_ID, error: None })
    }

    fn region(&self, found: (metapb::Region, u64)) -> pdpb::GetRegionResponse {
        let (region, leader) = found;
        let leader = Some(peer_of(region.id, leader));
        let header = self.header();
        pdpb::GetRegionResponse { header, region: Some(region), leader, ..Default::default() }
    }
}

fn unused<T>() -> Answer<T> {
    Err(Status::unimplemented("not used by the client"))
}

#[tonic::async_trait]
impl pdpb::pd_server::Pd for Store {
    async fn get_members(
        &self,
        _: Request<pdpb::GetMembersRequest>,
    ) -> Answer<pdpb::GetMembersResponse> {
        let url = |address: &SocketAddr| format!("http://{address}");
        let addresses = self.addresses.lock().unwrap();
        let members = addresses
            .iter()
            .map(|address| pdpb::Member { client_urls: vec![url(address)], ..Default::default() });
        Ok(Response::new(pdpb::GetMembersResponse {
            header: self.header(),
            members: members.clone().collect(),
            // The asked store says that it leads; in this cluster every store knows everything.
            leader: members.clone().nth(self.store as usize - 1),
            etcd_leader: None,
            tso_allocator_leaders: BTreeMap::new(),
        }))
    }

    async fn get_region(
        &self,
        r: Request<pdpb::GetRegionRequest>,
    ) -> Answer<pdpb::GetRegionResponse> {
        let found = self.state.lock().unwrap().holder(&r.into_inner().region_key);
        Ok(Response::new(self.region(found)))
    }

    async fn get_prev_region(
        &self,
        r: Request<pdpb::GetRegionRequest>,
    ) -> Answer<pdpb::GetRegionResponse> {
        let state = self.state.lock().unwrap();
        let (holder, _) = state.holder(&r.into_inner().region_key);
        let previous = state.regions.range(..holder.start_key).next_back();
        Ok(Response::new(match previous {
            Some((_, found)) => self.region(found.clone()),
            None => pdpb::GetRegionResponse { header: self.header(), ..Default::default() },
        }))
    }

    async fn scan_regions(
        &self,
        r: Request<pdpb::ScanRegionsRequest>,
    ) -> Answer<pdpb::ScanRegionsResponse> {
        let (r, state) = (r.into_inner(), self.state.lock().unwrap());
        let first = state.holder(&r.start_key).0.start_key;
        let found = state.regions.range(first..).take(r.limit as usize);
        let regions = found.map(|(_, (region, leader))| pdpb::Region {
            region: Some(region.clone()),
            leader: Some(peer_of(region.id, *leader)),
            ..Default::default()
        });
        let (header, regions) = (self.header(), regions.collect());
        Ok(Response::new(pdpb::ScanRegionsResponse { header, regions, ..Default::default() }))
    }

    async fn get_store(&self, r: Request<pdpb::GetStoreRequest>) -> Answer<pdpb::GetStoreResponse> {
        let id = r.into_inner().store_id;
        let address = self.addresses.lock().unwrap()[id as usize - 1].to_string();
        let store = Some(metapb::Store { id, address, ..Default::default() });
        Ok(Response::new(pdpb::GetStoreResponse { header: self.header(), store }))
    }

    async fn get_all_stores(
        &self,
        _: Request<pdpb::GetAllStoresRequest>,
    ) -> Answer<pdpb::GetAllStoresResponse> {
        let addresses = self.addresses.lock().unwrap();
        let stores = (1..).zip(addresses.iter()).map(|(id, address)| metapb::Store {
            id,
            address: address.to_string(),
            ..Default::default()
        });
        let (header, stores) = (self.header(), stores.collect());
        Ok(Response::new(pdpb::GetAllStoresResponse { header, stores }))
    }

    async fn get_cluster_info(
        &self,
        _: Request<pdpb::GetClusterInfoRequest>,
    ) -> Answer<pdpb::GetClusterInfoResponse> {
        unused()
    }

    async fn get_cluster_config(
        &self,
        _: Request<pdpb::GetClusterConfigRequest>,
    ) -> Answer<pdpb::GetClusterConfigResponse> {
        unused()
    }

    async fn is_bootstrapped(
        &self,
        _: Request<pdpb::IsBootstrappedRequest>,
    ) -> Answer<pdpb::IsBootstrappedResponse> {
        unused()
    }

    async fn alloc_id(&self, _: Request<pdpb::AllocIdRequest>) -> Answer<pdpb::AllocIdResponse> {
        unused()
    }

    async fn get_region_by_id(
        &self,
        r: Request<pdpb::GetRegionByIdRequest>,
    ) -> Answer<pdpb::GetRegionResponse> {
        let found = self.state.lock().unwrap().region(r.into_inner().region_id);
        Ok(Response::new(match found {
            Some(found) => self.region(found),
            None => pdpb::GetRegionResponse { header: self.header(), ..Default::default() },
        }))
    }

    async fn split_regions(
        &self,
        _: Request<pdpb::SplitRegionsRequest>,
    ) -> Answer<pdpb::SplitRegionsResponse> {
        unused()
    }

    async fn split_and_scatter_regions(
        &self,
        _: Request<pdpb::SplitAndScatterRegionsRequest>,
    ) -> Answer<pdpb::SplitAndScatterRegionsResponse> {
        unused()
    }

    async fn scatter_region(
        &self,
        _: Request<pdpb::ScatterRegionRequest>,
    ) -> Answer<pdpb::ScatterRegionResponse> {
        unused()
    }

    async fn get_operator(
        &self,
        _: Request<pdpb::GetOperatorRequest>,
    ) -> Answer<pdpb::GetOperatorResponse> {
        unused()
    }

    async fn batch_scan_regions(
        &self,
        _: Request<pdpb::BatchScanRegionsRequest>,
    ) -> Answer<pdpb::BatchScanRegionsResponse> {
        unused()
    }

    type QueryRegionStream = Streamed<pdpb::QueryRegionResponse>;

    async fn query_region(
        &self,
        _: Request<Streaming<pdpb::QueryRegionRequest>>,
    ) -> Answer<Self::QueryRegionStream> {
        unused()
    }

    type TsoStream = Streamed<pdpb::TsoResponse>;

    async fn tso(&self, _: Request<Streaming<pdpb::TsoRequest>>) -> Answer<Self::TsoStream> {
        unused()
    }
}
