//! Many keys at once: split by region, sent side by side, what failed is split again.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use flotilla_proto::kvrpcpb;
use tokio::task::JoinSet;

use crate::error::Error;
use crate::raw_calls::Call;
use crate::request_router::RequestRouter;
use crate::retry_budget::{AttemptFailure, RetryBudget};
use crate::route_cache::CachedRoute;

/// Keys in one request, however small they are.
const KEYS_MAX: usize = 512;

/// A pair, and the seconds after which it is gone; 0 for never.
#[derive(Clone, Debug)]
pub(crate) struct ExpiringPair {
    pub(crate) pair: kvrpcpb::KvPair,
    pub(crate) ttl_s: u64,
}

pub(crate) async fn put(
    router: &Arc<RequestRouter>,
    cf: String,
    pairs: Vec<ExpiringPair>,
) -> Result<(), Error> {
    let make = move |pairs: &[ExpiringPair]| {
        let expires = pairs.iter().any(|pair| pair.ttl_s > 0);
        kvrpcpb::RawBatchPutRequest {
            pairs: pairs.iter().map(|pair| pair.pair.clone()).collect(),
            // None at all means the same, also to stores that keep no times to live.
            ttls: pairs.iter().filter(|_| expires).map(|pair| pair.ttl_s).collect(),
            cf: cf.clone(),
            ..Default::default()
        }
    };
    send(router, pairs, make, |_| ()).await
}

pub(crate) async fn delete(
    router: &Arc<RequestRouter>,
    cf: String,
    keys: Vec<Bytes>,
) -> Result<(), Error> {
    let make = move |keys: &[Bytes]| kvrpcpb::RawBatchDeleteRequest {
        keys: keys.to_vec(),
        cf: cf.clone(),
        ..Default::default()
    };
    send(router, keys, make, |_| ()).await
}

/// The values of the keys that exist.
pub(crate) async fn get(
    router: &Arc<RequestRouter>,
    cf: String,
    keys: Vec<Bytes>,
) -> Result<BTreeMap<Bytes, Bytes>, Error> {
    let make = move |keys: &[Bytes]| kvrpcpb::RawBatchGetRequest {
        keys: keys.to_vec(),
        cf: cf.clone(),
        ..Default::default()
    };
    let mut found = BTreeMap::new();
    send(router, keys, make, |response: kvrpcpb::RawBatchGetResponse| {
        found.extend(response.pairs.into_iter().map(|pair| (pair.key, pair.value)));
    })
    .await?;
    Ok(found)
}

/// Something that belongs to one key.
trait KeyedItem: Send + Sync + 'static {
    fn key(&self) -> &Bytes;
    fn bytes(&self) -> usize;
}

impl KeyedItem for Bytes {
    fn key(&self) -> &Bytes {
        self
    }

    fn bytes(&self) -> usize {
        self.len()
    }
}

impl KeyedItem for ExpiringPair {
    fn key(&self) -> &Bytes {
        &self.pair.key
    }

    fn bytes(&self) -> usize {
        self.pair.key.len() + self.pair.value.len()
    }
}

/// Sends all items, each to the region that holds it; `take` sees each response once.
async fn send<I: KeyedItem, C: Call>(
    router: &Arc<RequestRouter>,
    mut items: Vec<I>,
    make: impl Fn(&[I]) -> C,
    mut take: impl FnMut(C::Response),
) -> Result<(), Error> {
    let mut budget = RetryBudget::new(&router.config);
    while !items.is_empty() {
        let mut parts = split(router, items, &mut budget).await?.into_iter();
        items = Vec::new();
        let mut worst: Option<AttemptFailure> = None;
        let mut running = JoinSet::new();
        loop {
            // Bounded, so that a large batch does not take the connections of all other calls.
            let room = router.config.fan_out_max - running.len();
            for (route, part) in parts.by_ref().take(room) {
                // Here, because each part gets a clone of the budget, which is dropped with it.
                budget.attempt();
                let (router, mut budget) = (Arc::clone(router), budget.clone());
                let request = make(&part);
                running.spawn(async move {
                    let result = router.attempt(&route, request, &mut budget).await;
                    (part, result)
                });
            }
            let Some(done) = running.join_next().await else {
                break;
            };
            let (part, result) =
                // No part is aborted, so this can only be its panic, which belongs to the caller.
                done.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
            match result {
                Ok(response) => take(response),
                Err(failure) => {
                    // Split again in the next round: the regions of its keys may be others by then.
                    items.extend(part);
                    // One wait for all parts that failed; the worst of them decides how, and
                    // whether at all.
                    worst = Some(match worst {
                        Some(other) => other.or_worse(failure),
                        None => failure,
                    });
                }
            }
        }
        if let Some(failure) = worst {
            budget.pause(failure).await?;
        }
    }
    Ok(())
}

/// Groups items by the region that holds them, in requests that are not too large.
async fn split<I: KeyedItem>(
    router: &RequestRouter,
    mut items: Vec<I>,
    budget: &mut RetryBudget,
) -> Result<Vec<(Arc<CachedRoute>, Vec<I>)>, Error> {
    // A stable sort: of two puts to one key the second stays the second.
    items.sort_by(|a, b| a.key().cmp(b.key()));
    let mut parts: Vec<(Arc<CachedRoute>, Vec<I>)> = Vec::new();
    let mut part_bytes = 0;
    for item in items {
        let bytes = part_bytes + item.bytes();
        match parts.last_mut() {
            Some((route, part))
                if route.contains(item.key())
                    && part.len() < KEYS_MAX
                    && bytes <= router.config.batch_bytes_max =>
            {
                part_bytes = bytes;
                part.push(item);
            }
            _ => {
                part_bytes = item.bytes();
                let route = router.route(item.key(), budget).await?;
                parts.push((route, vec![item]));
            }
        }
    }
    Ok(parts)
}
