//! Splits regions at keys that a client names to placement: each region is split where it is led.
//!
//! A store takes its time for many keys, so a region is asked for some at a time, in rounds.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use flotilla_placement::{ClusterView, LeaderStatus};
use flotilla_proto::kvrpcpb::{Context, SplitRegionRequest};
use flotilla_proto::tikvpb::tikv_client::TikvClient;
use flotilla_proto::{metapb, pdpb};
use flotilla_region::StoreId;
use tonic::Status;

use super::context::PdContext;
use super::errors::not_leader;
use super::leader::PdLeader;
use super::lookup::{self, LookupResult};
use crate::border_codec::request_version;

/// Rounds without a split if the client names no number.
const ROUNDS: u64 = 5;
/// Rounds without a split at most.
const ROUNDS_MAX: u64 = 20;
/// Keys of a region in one round: those that a store splits it at well within [`TIMEOUT`].
const ROUND_KEYS_MAX: usize = 128;
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
        let group = |cluster: &ClusterView, now_ms| group(cluster, now_ms, keys);
        let (made, groups) = look(context, pd_leader, group).await;
        if groups.is_empty() || rounds == 0 {
            return made;
        }
        let mut split_keys = vec![];
        for KeyGroup { region, leader, mut keys } in groups.into_values() {
            let id = region.id;
            // The first ones, for the region keeps its last part.
            keys.truncate(ROUND_KEYS_MAX);
            match split_region(context, region, leader, keys.clone()).await {
                Ok(()) => split_keys.extend(keys),
                // Without its words, which may name a key.
                Err(status) => tracing::debug!("region {id} is not split: {:?}", status.code()),
            }
        }
        if split_keys.is_empty() {
            rounds -= 1;
            tokio::time::sleep(RETRY).await;
        } else {
            // The next round has to find the new regions.
            look(context, pd_leader, |cluster, now_ms| starts(cluster, now_ms, &split_keys)).await;
        }
    }
}

/// The regions that begin at one of `keys`, and those that hold the others. The leaders of all are
/// waited for together: a wait for each, one after the other, takes as long as there are regions.
fn group(
    cluster: &ClusterView,
    now_ms: u64,
    keys: &[Bytes],
) -> LookupResult<(Vec<u64>, BTreeMap<u64, KeyGroup>)> {
    let (mut made, mut groups) = (vec![], BTreeMap::<u64, KeyGroup>::new());
    let (mut good, mut leaders) = (true, BTreeSet::new());
    for key in keys {
        let held = cluster.locate(now_ms, key);
        if let Some(route) = held.filter(|route| route.region.start == key[..]) {
            made.push(route.region.id);
            let is_fresh = route.leader_status == LeaderStatus::Fresh;
            good &= is_fresh;
            leaders.extend(route.leader.filter(|_| is_fresh).map(|leader| leader.store));
            continue;
        }
        if let Some(group) = held.and_then(|route| groups.get_mut(&route.region.id)) {
            group.keys.push(key.clone());
            continue;
        }
        let lookup = lookup::by_key(cluster, now_ms, key);
        good &= lookup.good;
        leaders.extend(lookup.leaders);
        let Some(pdpb::Region { region: Some(region), leader, .. }) = lookup.found else {
            continue;
        };
        // Without a leader it is refused, and asked for again in the next round.
        let (leader, keys) = (leader.unwrap_or_default(), vec![key.clone()]);
        groups.insert(region.id, KeyGroup { region, leader, keys });
    }
    LookupResult { found: (made, groups), good, leaders }
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
    let dialer = context.dialer();
    let endpoint = dialer
        .endpoint(&store.address, TIMEOUT)
        .map_err(|error| Status::internal(error.to_string()))?
        .timeout(TIMEOUT);
    let connected = dialer.connect(&endpoint).await;
    let channel = connected.map_err(|error| Status::unavailable(error.to_string()))?;
    let claims = Context {
        region_id: region.id,
        region_epoch: region.region_epoch,
        peer: Some(leader),
        cluster_id: context.cluster_id(),
        api_version: request_version(context.borders().0).into(),
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
