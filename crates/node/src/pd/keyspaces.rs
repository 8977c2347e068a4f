//! Keyspaces, for clients and for operators: read from their row at each request, and changed by a
//! compare-and-swap. They are asked for at the start of a client and seldom made, so nothing of
//! them is kept in memory.

use flotilla_identity::ApiVersion;
use flotilla_placement::{Keyspace, KeyspaceRefusal, Keyspaces, SwapResult, rows};
use flotilla_proto::keyspacepb::keyspace_meta::Keyspace as KeyspaceId;
use flotilla_proto::keyspacepb::keyspace_server::Keyspace as KeyspaceService;
use flotilla_proto::keyspacepb::{
    GetAllKeyspacesRequest, GetAllKeyspacesResponse, KeyspaceMeta, KeyspaceState,
    LoadKeyspaceRequest, LoadKeyspaceResponse,
};
use flotilla_proto::pdpb::{Error, ErrorType, RequestHeader, ResponseHeader};
use flotilla_proto::peers::{CreateKeyspaceRequest, CreateKeyspaceResponse};
use tonic::{Request, Response, Status};

use super::context::PdContext;
use super::leader::{PdLeader, wall_ms};
use super::split_regions;

/// Tries of a write that others come before.
const TRIES_MAX: usize = 16;

/// The service of PD for keyspaces.
pub(super) struct KeyspaceServer(pub(super) PdContext);

impl KeyspaceServer {
    /// The keyspaces, for a request of this cluster; none under API V1.
    async fn keyspaces(&self, header: Option<RequestHeader>) -> Result<Vec<Keyspace>, Status> {
        self.0.check_cluster(header.unwrap_or_default().cluster_id)?;
        let pd_leader = self.0.pd_leader().await?;
        match self.0.borders().0 {
            ApiVersion::V1Ttl => Ok(vec![]),
            ApiVersion::V2 => Ok(read(&pd_leader).await?.all().to_vec()),
        }
    }

    fn header(&self, error: Option<(ErrorType, String)>) -> Option<ResponseHeader> {
        let error = error.map(|(kind, message)| Error { r#type: kind.into(), message });
        Some(ResponseHeader { cluster_id: self.0.cluster_id(), error })
    }
}

#[tonic::async_trait]
impl KeyspaceService for KeyspaceServer {
    async fn load_keyspace(
        &self,
        request: Request<LoadKeyspaceRequest>,
    ) -> Result<Response<LoadKeyspaceResponse>, Status> {
        let LoadKeyspaceRequest { header, name } = request.into_inner();
        let found = self.keyspaces(header).await?.into_iter().find(|it| it.name == name);
        let error = match (&found, self.0.borders().0) {
            (Some(_), _) => None,
            (None, ApiVersion::V1Ttl) => Some(NO_KEYSPACES),
            (None, ApiVersion::V2) => Some("keyspace does not exist"),
        };
        let header = self.header(error.map(|words| (ErrorType::EntryNotFound, words.to_owned())));
        Ok(Response::new(LoadKeyspaceResponse { header, keyspace: found.map(to_proto) }))
    }

    async fn get_all_keyspaces(
        &self,
        request: Request<GetAllKeyspacesRequest>,
    ) -> Result<Response<GetAllKeyspacesResponse>, Status> {
        use flotilla_proto::keyspacepb::get_all_keyspaces_request::StartKeyspace;
        let GetAllKeyspacesRequest { header, limit, start_keyspace } = request.into_inner();
        let StartKeyspace::StartId(start) = start_keyspace.unwrap_or(StartKeyspace::StartId(0));
        let limit = if limit == 0 { usize::MAX } else { limit as usize };
        let found = self.keyspaces(header).await?.into_iter().filter(|it| it.id >= start);
        let keyspaces = found.take(limit).map(to_proto).collect();
        Ok(Response::new(GetAllKeyspacesResponse { header: self.header(None), keyspaces }))
    }
}

/// Keyspaces, for the operator service.
pub(crate) struct KeyspaceRequests(pub(super) PdContext);

impl KeyspaceRequests {
    /// Makes a keyspace. Answered once that is committed and regions were asked to end with it.
    pub(crate) async fn create(&self, request: CreateKeyspaceRequest) -> CreateKeyspaceResponse {
        let response = CreateKeyspaceResponse::default();
        let Ok(pd_leader) = self.0.pd_leader().await else {
            return CreateKeyspaceResponse { is_led_elsewhere: true, ..response };
        };
        let made = match self.0.borders().0 {
            ApiVersion::V1Ttl => Err(NO_KEYSPACES.to_owned()),
            ApiVersion::V2 => create(&pd_leader, &request.name).await,
        };
        match made {
            Ok(made) => {
                self.split_at_bounds(&pd_leader, made.id).await;
                CreateKeyspaceResponse { id: made.id, ..response }
            }
            Err(refusal) => CreateKeyspaceResponse { refusal, ..response },
        }
    }
}

impl KeyspaceRequests {
    /// Has regions begin and end with a keyspace, as PD does.
    async fn split_at_bounds(&self, pd_leader: &PdLeader, id: u32) {
        let (start, end) = ApiVersion::keyspace_bounds(id);
        let mut borders = vec![start, end];
        // No border is shorter than the bytes that clients cut off: the last keyspace ends with
        // the mode.
        borders.retain(|border| border.len() >= ApiVersion::PREFIX_BYTES);
        let made = split_regions::split(&self.0, pd_leader, &borders, 0).await;
        if made.len() < borders.len() {
            tracing::warn!(id, "no region ends with the keyspace yet: split one at its end");
        }
    }
}

/// The refusal in a cluster of API V1.
const NO_KEYSPACES: &str = "there are no keyspaces: the API version of this cluster is V1";

async fn create(pd_leader: &PdLeader, name: &str) -> Result<Keyspace, String> {
    for _ in 0..TRIES_MAX {
        let known = read(pd_leader).await.map_err(|status| status.message().to_owned())?;
        let created = known.create(name, wall_ms() / 1000);
        let (swap, made) = created.map_err(|why: KeyspaceRefusal| why.to_string())?;
        match pd_leader.write(swap).await {
            SwapResult::Done => {
                tracing::info!(name, id = made.id, "a keyspace was made");
                return Ok(made);
            }
            // Another one was made just before.
            SwapResult::Refused { .. } => {}
            SwapResult::Unknown => {
                return Err("it is not known whether it was made: list the keyspaces".to_owned());
            }
        }
    }
    Err("others make keyspaces just now: ask again".to_owned())
}

async fn read(pd_leader: &PdLeader) -> Result<Keyspaces, Status> {
    let row = pd_leader.row(rows::KEYSPACES_KEY).await?;
    Keyspaces::recover(row.as_deref()).map_err(|error| Status::internal(error.to_string()))
}

fn to_proto(keyspace: Keyspace) -> KeyspaceMeta {
    let created_at = i64::try_from(keyspace.created_s).unwrap_or(i64::MAX);
    KeyspaceMeta {
        keyspace: Some(KeyspaceId::Id(keyspace.id)),
        name: keyspace.name,
        state: KeyspaceState::Enabled.into(),
        created_at,
        state_changed_at: created_at,
        ..KeyspaceMeta::default()
    }
}
