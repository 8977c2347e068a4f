//! The operator service: what an operator has a store do.

use std::sync::Arc;
use std::time::Duration;

use flotilla_proto::metapb;
use flotilla_proto::peers::operator_server::Operator;
use flotilla_proto::peers::{
    BackupRegionRequest, ChangeReplicasRequest, ChangeReplicasResponse, ChangeSettingRequest,
    ChangeSettingResponse, ChangeStoreRequest, ChangeStoreResponse, ClusterSettingsRequest,
    ClusterSettingsResponse, CreateKeyspaceRequest, CreateKeyspaceResponse, PlacementStateRequest,
    PlacementStateResponse, RepairStatusRequest, RepairStatusResponse, RestoreStepRequest,
    RestoreStepResponse, SetRepairRequest, SetRepairResponse, StoreSettingsRequest,
    StoreSettingsResponse, TransferLeaderRequest, TransferLeaderResponse, VerifyRegionRequest,
    VerifyRegionResponse,
};
use flotilla_region::{Index, Peer, RegionId, Reject, StoreId, TransferError};
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use super::region_backup::{BackupStream, RegionBackups};
use crate::driver::router::{RequestError, Router};
use crate::membership::Membership;
use crate::online_settings::OnlineSettings;
use crate::pd::{BackupRequests, KeyspaceRequests, RepairRequests, SettingRequests};
use crate::verdict_proto::verdict_to_wire;

/// How long an answer waits for a verdict: less than any caller does.
const VERDICT_WAIT: Duration = Duration::from_millis(500);

/// Serves `flotilla.peers.Operator`.
pub(crate) struct OperatorServer {
    pub(crate) router: Router,
    pub(crate) membership: Membership,
    pub(crate) repair: RepairRequests,
    pub(crate) keyspaces: KeyspaceRequests,
    pub(crate) backups: BackupRequests,
    pub(crate) region_backups: RegionBackups,
    pub(crate) settings: SettingRequests,
    pub(crate) online: Arc<OnlineSettings>,
}

#[tonic::async_trait]
impl Operator for OperatorServer {
    async fn transfer_leader(
        &self,
        request: Request<TransferLeaderRequest>,
    ) -> Result<Response<TransferLeaderResponse>, Status> {
        let TransferLeaderRequest { region_id, to_store } = request.into_inner();
        let to = (to_store != 0).then_some(StoreId(to_store));
        if let Err(why) = self.membership.check_transfers() {
            let refusal = format!("region {region_id}: {why}");
            return Ok(Response::new(TransferLeaderResponse { refusal, ..Default::default() }));
        }
        let response = match self.router.transfer_leader(RegionId(region_id), to, "asked for").await
        {
            Ok(leader) => TransferLeaderResponse {
                leader: Some(peer_to_wire(leader)),
                ..TransferLeaderResponse::default()
            },
            Err(error) => refusal(region_id, to, error)?,
        };
        Ok(Response::new(response))
    }

    async fn verify_region(
        &self,
        request: Request<VerifyRegionRequest>,
    ) -> Result<Response<VerifyRegionResponse>, Status> {
        let VerifyRegionRequest { region_id, index } = request.into_inner();
        if let Err(why) = self.membership.check_comparisons() {
            let refusal = format!("region {region_id}: {why}");
            return Ok(Response::new(VerifyRegionResponse { refusal, ..Default::default() }));
        }
        let region = RegionId(region_id);
        let answered = if index == 0 {
            let begun = self.router.compare_replicas(region).await;
            begun.map(|index| VerifyRegionResponse { index: index.0, ..Default::default() })
        } else {
            let until = Instant::now() + VERDICT_WAIT;
            let found = self.router.verdict(region, Index(index), until).await;
            found.map(|verdict| match verdict {
                // The next leader knows nothing of this comparison.
                None if !self.router.leads(region) => {
                    VerifyRegionResponse { is_led_elsewhere: true, ..Default::default() }
                }
                verdict => {
                    let verdict = verdict.map(|verdict| verdict_to_wire(region, &verdict));
                    VerifyRegionResponse { index, verdict, ..Default::default() }
                }
            })
        };
        Ok(Response::new(answered.or_else(|error| verify_refusal(region_id, error))?))
    }

    async fn change_replicas(
        &self,
        request: Request<ChangeReplicasRequest>,
    ) -> Result<Response<ChangeReplicasResponse>, Status> {
        Ok(Response::new(self.repair.change(request.get_ref()).await))
    }

    async fn repair_status(
        &self,
        request: Request<RepairStatusRequest>,
    ) -> Result<Response<RepairStatusResponse>, Status> {
        Ok(Response::new(self.repair.status(request.get_ref()).await))
    }

    async fn set_repair(
        &self,
        request: Request<SetRepairRequest>,
    ) -> Result<Response<SetRepairResponse>, Status> {
        Ok(Response::new(self.repair.set(request.into_inner()).await))
    }

    async fn change_store(
        &self,
        request: Request<ChangeStoreRequest>,
    ) -> Result<Response<ChangeStoreResponse>, Status> {
        Ok(Response::new(self.repair.change_store(request.into_inner()).await))
    }

    async fn create_keyspace(
        &self,
        request: Request<CreateKeyspaceRequest>,
    ) -> Result<Response<CreateKeyspaceResponse>, Status> {
        Ok(Response::new(self.keyspaces.create(request.into_inner()).await))
    }

    type BackupRegionStream = BackupStream;

    async fn backup_region(
        &self,
        request: Request<BackupRegionRequest>,
    ) -> Result<Response<BackupStream>, Status> {
        Ok(Response::new(self.region_backups.open(request.into_inner()).await?))
    }

    async fn placement_state(
        &self,
        _: Request<PlacementStateRequest>,
    ) -> Result<Response<PlacementStateResponse>, Status> {
        Ok(Response::new(self.backups.state().await))
    }

    async fn restore_step(
        &self,
        request: Request<RestoreStepRequest>,
    ) -> Result<Response<RestoreStepResponse>, Status> {
        Ok(Response::new(self.backups.restore(request.into_inner()).await))
    }

    async fn change_setting(
        &self,
        request: Request<ChangeSettingRequest>,
    ) -> Result<Response<ChangeSettingResponse>, Status> {
        Ok(Response::new(self.settings.change(request.into_inner()).await))
    }

    async fn cluster_settings(
        &self,
        _: Request<ClusterSettingsRequest>,
    ) -> Result<Response<ClusterSettingsResponse>, Status> {
        Ok(Response::new(self.settings.cluster().await))
    }

    async fn store_settings(
        &self,
        _: Request<StoreSettingsRequest>,
    ) -> Result<Response<StoreSettingsResponse>, Status> {
        let version = self.membership.settings_in_force();
        let values = self.online.values(&self.membership.settings());
        Ok(Response::new(StoreSettingsResponse { values, version }))
    }
}

/// Why not, in words, or where the region is led.
fn refusal(
    region: u64,
    to: Option<StoreId>,
    error: RequestError,
) -> Result<TransferLeaderResponse, Status> {
    let response = TransferLeaderResponse::default();
    let refusal = match error {
        RequestError::Rejected(Reject::NotLeader { leader }) => {
            let led_by = leader.map(peer_to_wire);
            return Ok(TransferLeaderResponse { is_led_elsewhere: true, led_by, ..response });
        }
        RequestError::Rejected(Reject::InvalidTransfer(why)) => words(to, why),
        RequestError::Rejected(reject) => reject.to_string(),
        RequestError::Undecided => "it is not known whether another store leads by now".to_owned(),
        RequestError::Stopping => return Err(Status::unavailable("the store stops")),
    };
    Ok(TransferLeaderResponse { refusal: format!("region {region}: {refusal}"), ..response })
}

/// Why there is no comparison, in words, or that the region is led elsewhere.
fn verify_refusal(region: u64, error: RequestError) -> Result<VerifyRegionResponse, Status> {
    let response = VerifyRegionResponse::default();
    let (refusal, is_passing) = match error {
        RequestError::Rejected(Reject::NotLeader { .. }) => {
            return Ok(VerifyRegionResponse { is_led_elsewhere: true, ..response });
        }
        RequestError::Rejected(reject @ Reject::Busy { .. }) => (reject.to_string(), true),
        RequestError::Rejected(reject) => (reject.to_string(), false),
        RequestError::Undecided => ("it is not known whether it has begun".to_owned(), true),
        RequestError::Stopping => return Err(Status::unavailable("the store stops")),
    };
    let refusal = format!("region {region}: {refusal}");
    Ok(VerifyRegionResponse { refusal, is_passing, ..response })
}

/// The refusal with the store that the operator has named, in place of its replica.
fn words(to: Option<StoreId>, why: TransferError) -> String {
    let Some(store) = to else { return why.to_string() };
    match why {
        TransferError::NotVoter(_) => format!("store {store} has no voter of it"),
        TransferError::Silent(_) => format!("store {store} has not answered of late"),
        TransferError::Lagging(_) => format!("the log of store {store} is too far behind"),
        TransferError::TimedOut(_) => {
            format!("store {store} did not take over in time; it may still do so")
        }
        TransferError::UnderWay(_)
        | TransferError::NewLeader
        | TransferError::Changing
        | TransferError::NoCandidate => why.to_string(),
    }
}

fn peer_to_wire(peer: Peer) -> metapb::Peer {
    metapb::Peer { id: peer.id.0, store_id: peer.store.0, ..metapb::Peer::default() }
}

#[cfg(test)]
mod tests {
    use flotilla_region::PeerId;

    use super::*;

    #[test]
    fn a_refusal_names_the_region_and_the_store() {
        let refused = |to, why| {
            let error = RequestError::Rejected(Reject::InvalidTransfer(why));
            refusal(7, to, error).unwrap().refusal
        };
        let (peer, store) = (PeerId(71), Some(StoreId(3)));
        assert_eq!(
            refused(store, TransferError::NotVoter(peer)),
            "region 7: store 3 has no voter of it"
        );
        for why in [
            TransferError::Silent(peer),
            TransferError::Lagging(peer),
            TransferError::TimedOut(peer),
        ] {
            let words = refused(store, why);
            assert!(words.contains("store 3") && !words.contains("71"), "{words}");
        }
        assert!(refused(None, TransferError::NoCandidate).contains("no other voter"));
        assert!(refused(None, TransferError::Lagging(peer)).contains("peer 71"));
    }

    #[test]
    fn the_leader_is_named_if_it_is_elsewhere() {
        let leader = Peer { id: PeerId(72), store: StoreId(2) };
        let error = RequestError::Rejected(Reject::NotLeader { leader: Some(leader) });
        let response = refusal(7, None, error).unwrap();
        assert!(response.is_led_elsewhere && response.refusal.is_empty());
        assert_eq!(response.led_by.map(|peer| peer.store_id), Some(2));
    }
}
