//! Placement's share of backups: all that it has handed out, and the mark of a restore.

use flotilla_identity::ApiVersion;
use flotilla_placement::{
    HighWatermark, Keyspace, Keyspaces, RestoreMark, RowSwap, SwapResult, rows,
};
use flotilla_proto::peers::restore_step_request::Step;
use flotilla_proto::peers::{
    HandedOut, MadeKeyspace, PlacementStateResponse, RestoreBegin, RestoreStepRequest,
    RestoreStepResponse,
};

use super::context::PdContext;
use super::leader::PdLeader;

/// Requests of backups and restores, for the operator service.
pub(crate) struct BackupRequests(pub(super) PdContext);

impl BackupRequests {
    /// All that was handed out before this call.
    pub(crate) async fn state(&self) -> PlacementStateResponse {
        let response = PlacementStateResponse::default();
        let Ok(pd_leader) = self.0.pd_leader().await else {
            return PlacementStateResponse { is_led_elsewhere: true, ..response };
        };
        let api_version = match self.0.borders().0 {
            ApiVersion::V1Ttl => 1,
            ApiVersion::V2 => 2,
        };
        match handed_out(&pd_leader).await {
            Ok(handed_out) => {
                let handed_out = Some(handed_out);
                PlacementStateResponse { handed_out, api_version, ..response }
            }
            Err(refusal) => PlacementStateResponse { refusal, ..response },
        }
    }

    /// Carries out a step of a restore. Answered once it is committed.
    pub(crate) async fn restore(&self, request: RestoreStepRequest) -> RestoreStepResponse {
        let response = RestoreStepResponse::default();
        let Ok(pd_leader) = self.0.pd_leader().await else {
            return RestoreStepResponse { is_led_elsewhere: true, ..response };
        };
        match step(&pd_leader, request).await {
            Ok(regions_done) => RestoreStepResponse { regions_done, ..response },
            Err(refusal) => RestoreStepResponse { refusal, ..response },
        }
    }
}

async fn handed_out(pd_leader: &PdLeader) -> Result<HandedOut, String> {
    let (ids, tso) = (row(pd_leader, rows::IDS_KEY).await?, row(pd_leader, rows::TSO_KEY).await?);
    let end = |key, row: Option<Vec<u8>>, floor| {
        let watermark = HighWatermark::recover(key, row.as_deref(), floor);
        watermark.map(|watermark| watermark.end()).map_err(|error| error.to_string())
    };
    let keyspaces = keyspaces(pd_leader).await?.all()[1..].to_vec();
    let made = keyspaces.into_iter().map(|keyspace| MadeKeyspace {
        id: keyspace.id,
        name: keyspace.name,
        created_s: keyspace.created_s,
    });
    Ok(HandedOut {
        ids_end: end(rows::IDS_KEY, ids, flotilla_placement::FLOOR)?,
        tso_end_ms: end(rows::TSO_KEY, tso, 0)?,
        keyspaces: made.collect(),
    })
}

async fn step(
    pd_leader: &std::sync::Arc<PdLeader>,
    request: RestoreStepRequest,
) -> Result<u64, String> {
    let RestoreStepRequest { backup, step } = request;
    let mark = row(pd_leader, rows::RESTORE_KEY).await?;
    let mark = RestoreMark::recover(mark.as_deref()).map_err(|error| error.to_string())?;
    let refused = |error: flotilla_placement::RestoreRefusal| error.to_string();
    match step {
        None => Err("the request names no step".to_owned()),
        Some(Step::Begin(RestoreBegin { holds_rows, handed_out })) => {
            let (swap, regions_done) = mark.begin(&backup, holds_rows).map_err(refused)?;
            // The mark is the last: a begin that was cut short is begun again.
            let HandedOut { ids_end, tso_end_ms, keyspaces } = handed_out.unwrap_or_default();
            restore_keyspaces(pd_leader, keyspaces).await?;
            let raised = pd_leader.raise_floors(ids_end, tso_end_ms).await;
            raised.map_err(|status| status.message().to_owned())?;
            write(pd_leader, swap).await?;
            Ok(regions_done)
        }
        Some(Step::RegionsDone(regions_done)) => {
            let swap = mark.advance(&backup, regions_done).map_err(refused)?;
            write(pd_leader, Some(swap)).await?;
            Ok(regions_done)
        }
        Some(Step::End(_)) => {
            write(pd_leader, mark.end(&backup).map_err(refused)?).await?;
            Ok(0)
        }
    }
}

async fn restore_keyspaces(pd_leader: &PdLeader, made: Vec<MadeKeyspace>) -> Result<(), String> {
    let made: Vec<_> = made
        .into_iter()
        .map(|MadeKeyspace { id, name, created_s }| Keyspace { id, name, created_s })
        .collect();
    let swap = keyspaces(pd_leader).await?.restore(&made).map_err(|error| error.to_string())?;
    write(pd_leader, swap).await
}

async fn keyspaces(pd_leader: &PdLeader) -> Result<Keyspaces, String> {
    let row = row(pd_leader, rows::KEYSPACES_KEY).await?;
    Keyspaces::recover(row.as_deref()).map_err(|error| error.to_string())
}

async fn row(pd_leader: &PdLeader, key: &'static [u8]) -> Result<Option<Vec<u8>>, String> {
    pd_leader.row(key).await.map_err(|status| status.message().to_owned())
}

async fn write(pd_leader: &PdLeader, swap: Option<RowSwap>) -> Result<(), String> {
    match swap {
        None => Ok(()),
        Some(swap) => match pd_leader.write(swap).await {
            SwapResult::Done => Ok(()),
            SwapResult::Refused { .. } => Err("another restore runs at this moment".to_owned()),
            SwapResult::Unknown => Err("it is not known whether it was written".to_owned()),
        },
    }
}
