//! Leases blocks of ids from the leader of placement for the regions that this store splits.

use std::ops::Range;
use std::time::Duration;

use flotilla_identity::SPLIT_LEVEL;
use flotilla_proto::pdpb::pd_client::PdClient;
use flotilla_proto::pdpb::{AllocIdRequest, RequestHeader};
use tonic::Status;

use super::context::PdContext;
use super::errors::not_leader;

/// Ids of one block: enough for a hundred splits at least.
const BLOCK_COUNT: u32 = 1_000;
/// Backoff after an attempt that failed.
const RETRY: Duration = Duration::from_millis(100);
const TIMEOUT: Duration = Duration::from_secs(3);

/// Runs as long as the node.
pub(super) async fn run(context: PdContext) {
    let ids = context.shared.router.ids();
    loop {
        ids.wanted().await;
        // A store that does not know the entries of a split would stop at the first.
        if context.shared.membership.registry().level < SPLIT_LEVEL {
            ids.refuse("a store of the cluster runs a version that cannot split regions");
            continue;
        }
        loop {
            match lease(&context).await {
                Ok(block) => break ids.fill(block),
                Err(status) => tracing::debug!("no ids: {status}"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }
}

async fn lease(context: &PdContext) -> Result<Range<u64>, Status> {
    let here = context.shared.pd_leader.borrow().clone();
    let last = match here {
        Some(pd_leader) => pd_leader.ids(u64::from(BLOCK_COUNT)).await?,
        None => ask(context).await?,
    };
    // The last of a block that no other store gets.
    Ok(last + 1 - u64::from(BLOCK_COUNT)..last + 1)
}

/// Asks the leader, another store, for a block. The last id of it.
async fn ask(context: &PdContext) -> Result<u64, Status> {
    let leader = context.leader().await.ok_or_else(not_leader)?;
    let dialer = context.dialer();
    let endpoint = dialer
        .endpoint(&leader.address, TIMEOUT)
        .map_err(|error| Status::internal(error.to_string()))?
        .timeout(TIMEOUT);
    let connected = dialer.connect(&endpoint).await;
    let channel = connected.map_err(|error| Status::unavailable(error.to_string()))?;
    let header =
        Some(RequestHeader { cluster_id: context.cluster_id(), ..RequestHeader::default() });
    let request = AllocIdRequest { header, count: BLOCK_COUNT };
    let block = PdClient::new(channel).alloc_id(request).await?.into_inner();
    if block.count != BLOCK_COUNT || block.id < u64::from(BLOCK_COUNT) {
        return Err(Status::internal("placement gave another number of ids"));
    }
    Ok(block.id)
}
