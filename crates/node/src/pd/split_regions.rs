//! Splits regions at keys that a client names to placement: each region is split where it is led.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use flotilla_placement::ClusterView;
use flotilla_proto::kvrpcpb::{Context, SplitRegionRequest};
use flotilla_proto::tikvpb::tikv_client::TikvClient;
use flotilla_proto::{metapb, pdpb};
use flotilla_region::StoreId;
use tonic::Status;

use super::context::PdContext;
use super::errors::not_leader;
use super::leader::PdLeader;
use super::lookup::{self, LookupResult};
use crate::net::dial;

/// Rounds if the client names no number.
const ROUNDS: u64 = 5;
/// Rounds at most.
const ROUNDS_MAX: u64 = 20;
/// Backoff after a round in which no split has worked.
const RETRY: Duration = Duration::from_millis(50);
const TIMEOUT: Duration = Duration::from_secs(5);

/// Keys of one region, and its leader.
struct KeyGroup {
    region: metapb::Region,
    leader: metapb::Peer,
    keys: Vec<Bytes>,
}

/// Splits regions so that one begins at each of `keys`. The ids of those that do, as far as that
/// has worked.
pub(super) async fn split(
    context: &PdContext,
    pd_leader: &PdLeader,
    keys: &[Bytes],
    retry_limit: u64,
) -> Vec<u64> {
    let mut rounds = if retry_limit == 0 { ROUNDS } else { retry_limit.min(ROUNDS_MAX) };
    loop {
        let (made, groups) = group(context, pd_leader, keys).await;
        if groups.is_empty() || rounds == 0 {
            return made;
        }
        rounds -= 1;
        let mut split_keys = vec![];
        for KeyGroup { region, leader, keys } in groups.into_values() {
            let id = region.id;
            match split_region(context, region, leader, keys.clone()).await {
                Ok(()) => split_keys.extend(keys),
                Err(status) => tracing::debug!("region {id} is not split: {status}"),
            }
        }
        if split_keys.is_empty() {
            tokio::time::sleep(RETRY).await;
        } else {
            // The next round has to find the new regions.
            look(context, pd_leader, |cluster, now_ms| starts(cluster, now_ms, &split_keys)).await;
        }
    }
}

/// The regions that begin at one of `keys`, and those that hold the others.
async fn group(
    context: &PdContext,
    pd_leader: &PdLeader,
    keys: &[Bytes],
) -> (Vec<u64>, BTreeMap<u64, KeyGroup>) {
    let (mut made, mut groups) = (vec![], BTreeMap::new());
    for key in keys {
        let found =
            look(context, pd_leader, |cluster, now_ms| lookup::by_key(cluster, now_ms, key)).await;
        let Some(pdpb::Region { region: Some(region), leader, .. }) = found else { continue };
        if region.start_key == *key {
            made.push(region.id);
        } else {
            // Without a leader it is refused, and asked for again in the next round.
            let (id, leader) = (region.id, leader.unwrap_or_default());
            let group =
                groups.entry(id).or_insert_with(|| KeyGroup { region, leader, keys: vec![] });
            group.keys.push(key.clone());
        }
    }
    (made, groups)
}

/// Whether regions begin at all of `keys`.
fn starts(cluster: &ClusterView, now_ms: u64, keys: &[Bytes]) -> LookupResult<()> {
    let begins = |key: &Bytes| {
        cluster.locate(now_ms, key).is_some_and(|route| route.region.start == key[..])
    };
    LookupResult { found: (), good: keys.iter().all(begins), leaders: BTreeSet::new() }
}

async fn look<T>(
    context: &PdContext,
    pd_leader: &PdLeader,
    look: impl Fn(&ClusterView, u64) -> LookupResult<T>,
) -> T {
    let shared = &context.shared;
    pd_leader.look(shared.settings.leader_wait, &shared.leader_waits, look).await
}

/// Has the leader of a region split it.
async fn split_region(
    context: &PdContext,
    region: metapb::Region,
    leader: metapb::Peer,
    keys: Vec<Bytes>,
) -> Result<(), Status> {
    let store = context.member(StoreId(leader.store_id)).ok_or_else(not_leader)?;
    let endpoint = dial::endpoint(&store.address, TIMEOUT)
        .map_err(|error| Status::internal(error.to_string()))?
        .timeout(TIMEOUT);
    let channel =
        endpoint.connect().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let claims = Context {
        region_id: region.id,
        region_epoch: region.region_epoch,
        peer: Some(leader),
        cluster_id: context.cluster_id(),
        ..Context::default()
    };
    let request = SplitRegionRequest {
        context: Some(claims),
        split_keys: keys,
        is_raw_kv: true,
        ..SplitRegionRequest::default()
    };
    let response = TikvClient::new(channel).split_region(request).await?.into_inner();
    match response.region_error {
        None => Ok(()),
        Some(error) => Err(Status::aborted(error.message)),
    }
}
