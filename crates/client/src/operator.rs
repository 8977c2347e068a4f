//! Requests of operators to a single store.

use std::time::Duration;

use flotilla_proto::keyspacepb::keyspace_client::KeyspaceClient;
use flotilla_proto::keyspacepb::{GetAllKeyspacesRequest, KeyspaceMeta};
use flotilla_proto::peers::operator_client::OperatorClient;
use flotilla_proto::peers::{
    BackupRegionRequest, BackupRegionResponse, ChangeReplicasRequest, ChangeReplicasResponse,
    ChangeSettingRequest, ChangeSettingResponse, ChangeStoreRequest, ChangeStoreResponse,
    ClusterSettingsRequest, ClusterSettingsResponse, CreateKeyspaceRequest, CreateKeyspaceResponse,
    PlacementStateRequest, PlacementStateResponse, RepairStatusRequest, RepairStatusResponse,
    RestoreStepRequest, RestoreStepResponse, SetRepairRequest, SetRepairResponse,
    StoreSettingsRequest, StoreSettingsResponse, TransferLeaderRequest, TransferLeaderResponse,
    VerifyRegionRequest, VerifyRegionResponse,
};
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Code, Response, Status, Streaming};

use crate::config::Config;
use crate::dial;
use crate::error::Error;
use crate::retry_budget::{describe, is_answer};

/// Asks one store to do something, and only that one. Nothing is tried twice.
#[derive(Debug, Clone)]
pub struct StoreOperator {
    address: String,
    client: OperatorClient<Channel>,
    keyspaces: KeyspaceClient<Channel>,
    time_limit: Duration,
}

impl StoreOperator {
    /// For the store at `address`; connects when it is first asked.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if `address` is no `host:port`.
    pub fn new(address: &str, config: &Config) -> Result<StoreOperator, Error> {
        let channel = dial::channel(address, config)?;
        let (address, time_limit) = (address.to_owned(), config.deadline);
        let keyspaces = KeyspaceClient::new(channel.clone());
        let client = OperatorClient::new(channel);
        let client = client.max_decoding_message_size(config.message_bytes_max);
        Ok(StoreOperator { address, client, keyspaces, time_limit })
    }

    /// Has another replica lead a region that this store leads: the one on store `to`, or the one
    /// that lacks least of the log. The answer says which one leads, or why it could not be done.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] if the store does not answer in time: it is then not known what has
    /// come of it. [`Error::NotServing`] if it has no cluster yet, or stops;
    /// [`Error::Unimplemented`] if its version is too old for the request; [`Error::Rejected`] if
    /// the certificate is not that of an operator.
    pub async fn transfer_leader(
        &self,
        region_id: u64,
        to: Option<u64>,
    ) -> Result<TransferLeaderResponse, Error> {
        let mut client = self.client.clone();
        let request = TransferLeaderRequest { region_id, to_store: to.unwrap_or(0) };
        self.answer(client.transfer_leader(request)).await
    }

    /// Begins to bring a region to other stores, if this store leads placement.
    ///
    /// # Errors
    ///
    /// As those of [`StoreOperator::transfer_leader`].
    pub async fn change_replicas(
        &self,
        request: ChangeReplicasRequest,
    ) -> Result<ChangeReplicasResponse, Error> {
        let mut client = self.client.clone();
        self.answer(client.change_replicas(request)).await
    }

    /// Begins a comparison of the replicas of a region that this store leads, if `index` is 0;
    /// else waits a moment for the verdict about the rows behind that entry, which any store with a
    /// replica has.
    ///
    /// # Errors
    ///
    /// As those of [`StoreOperator::transfer_leader`].
    pub async fn verify_region(
        &self,
        region_id: u64,
        index: u64,
    ) -> Result<VerifyRegionResponse, Error> {
        let mut client = self.client.clone();
        self.answer(client.verify_region(VerifyRegionRequest { region_id, index })).await
    }

    /// How far the last change of a region's replicas is, and what else is under way, if this store
    /// leads placement. Region 0: none is meant.
    ///
    /// # Errors
    ///
    /// As those of [`StoreOperator::transfer_leader`].
    pub async fn repair_status(&self, region_id: u64) -> Result<RepairStatusResponse, Error> {
        let mut client = self.client.clone();
        self.answer(client.repair_status(RepairStatusRequest { region_id })).await
    }

    /// Pauses or resumes repair, or sets the number of replicas, if this store leads placement.
    ///
    /// # Errors
    ///
    /// As those of [`StoreOperator::transfer_leader`].
    pub async fn set_repair(&self, request: SetRepairRequest) -> Result<SetRepairResponse, Error> {
        let mut client = self.client.clone();
        self.answer(client.set_repair(request)).await
    }

    /// Changes the state of a store, if this store leads placement.
    ///
    /// # Errors
    ///
    /// As those of [`StoreOperator::transfer_leader`].
    pub async fn change_store(
        &self,
        request: ChangeStoreRequest,
    ) -> Result<ChangeStoreResponse, Error> {
        let mut client = self.client.clone();
        self.answer(client.change_store(request)).await
    }

    /// Makes a keyspace, if this store leads placement.
    ///
    /// # Errors
    ///
    /// As those of [`StoreOperator::transfer_leader`].
    pub async fn create_keyspace(&self, name: String) -> Result<CreateKeyspaceResponse, Error> {
        let mut client = self.client.clone();
        self.answer(client.create_keyspace(CreateKeyspaceRequest { name })).await
    }

    /// Begins to change a setting of the cluster, if this store leads placement.
    ///
    /// # Errors
    ///
    /// As those of [`StoreOperator::transfer_leader`].
    pub async fn change_setting(
        &self,
        request: ChangeSettingRequest,
    ) -> Result<ChangeSettingResponse, Error> {
        let mut client = self.client.clone();
        self.answer(client.change_setting(request)).await
    }

    /// The settings of the cluster and how far a change of them is, if this store leads placement.
    ///
    /// # Errors
    ///
    /// As those of [`StoreOperator::transfer_leader`].
    pub async fn cluster_settings(&self) -> Result<ClusterSettingsResponse, Error> {
        let mut client = self.client.clone();
        self.answer(client.cluster_settings(ClusterSettingsRequest {})).await
    }

    /// The settings that are in force on this store.
    ///
    /// # Errors
    ///
    /// As those of [`StoreOperator::transfer_leader`].
    pub async fn store_settings(&self) -> Result<StoreSettingsResponse, Error> {
        let mut client = self.client.clone();
        self.answer(client.store_settings(StoreSettingsRequest {})).await
    }

    /// All keyspaces by id, if this store leads placement.
    ///
    /// # Errors
    ///
    /// As those of [`StoreOperator::transfer_leader`]; a store that does not lead placement is one
    /// that does not serve.
    pub async fn keyspaces(&self) -> Result<Vec<KeyspaceMeta>, Error> {
        let mut client = self.keyspaces.clone();
        let request = GetAllKeyspacesRequest::default();
        Ok(self.answer(client.get_all_keyspaces(request)).await?.keyspaces)
    }

    /// All that placement has handed out, if this store leads placement.
    ///
    /// # Errors
    ///
    /// As those of [`StoreOperator::transfer_leader`].
    pub async fn placement_state(&self) -> Result<PlacementStateResponse, Error> {
        let mut client = self.client.clone();
        self.answer(client.placement_state(PlacementStateRequest {})).await
    }

    /// Carries out a step of a restore, if this store leads placement.
    ///
    /// # Errors
    ///
    /// As those of [`StoreOperator::transfer_leader`].
    pub async fn restore_step(
        &self,
        request: RestoreStepRequest,
    ) -> Result<RestoreStepResponse, Error> {
        let mut client = self.client.clone();
        self.answer(client.restore_step(request)).await
    }

    /// Begins to read a region that this store leads.
    ///
    /// # Errors
    ///
    /// As those of [`StoreOperator::transfer_leader`].
    pub async fn backup_region(
        &self,
        request: BackupRegionRequest,
    ) -> Result<RegionPartStream, Error> {
        let mut client = self.client.clone();
        let parts = self.answer(client.backup_region(request)).await?;
        Ok(RegionPartStream { operator: self.clone(), parts })
    }

    async fn answer<T>(
        &self,
        asked: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Error> {
        self.in_time(async { asked.await.map(Response::into_inner) }).await
    }

    async fn in_time<T>(&self, asked: impl Future<Output = Result<T, Status>>) -> Result<T, Error> {
        let reason = match timeout(self.time_limit, asked).await {
            Ok(Ok(response)) => return Ok(response),
            Ok(Err(status)) if status.code() == Code::Unimplemented => {
                return Err(Error::Unimplemented { endpoint: self.address.clone() });
            }
            Ok(Err(status)) if status.code() == Code::PermissionDenied => {
                let words = format!("{}: {}", self.address, describe(&status));
                return Err(Error::Rejected(words));
            }
            Ok(Err(status)) if is_answer(&status) => {
                let (endpoint, reason) = (self.address.clone(), describe(&status));
                return Err(Error::NotServing { endpoint, reason });
            }
            Ok(Err(status)) => describe(&status),
            Err(_) => "no answer in time".to_owned(),
        };
        Err(Error::Unreachable { endpoints: self.address.clone(), reason })
    }
}

/// The answer to [`StoreOperator::backup_region`], part by part. Dropping it ends the reading.
#[derive(Debug)]
pub struct RegionPartStream {
    operator: StoreOperator,
    parts: Streaming<BackupRegionResponse>,
}

impl RegionPartStream {
    /// The next part; `None` behind the last. Waits for as long as a request may take: a store that
    /// is alive sends one each few seconds.
    ///
    /// # Errors
    ///
    /// As those of [`StoreOperator::transfer_leader`]. The answer is over then.
    pub async fn next(&mut self) -> Result<Option<BackupRegionResponse>, Error> {
        self.operator.in_time(self.parts.message()).await
    }
}
