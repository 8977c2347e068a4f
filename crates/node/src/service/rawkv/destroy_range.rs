//! `UnsafeDestroyRange`: deletes a range of any length, region by region, through raft.
//!
//! In TiKV it bypasses raft, so clients ask every store, at once or one after the other. Here each
//! store answers for the regions that have a replica on it: one that it leads gets a proposal, one
//! that another store leads is sent there as a `RawDeleteRange`. The same range may so be deleted
//! more than once, which is no more than what its caller asked for.
//!
//! The next region is looked up by key when its turn comes, so the memory does not grow with the
//! range, and a region that splits meanwhile is deleted part by part. Everything ends by one
//! deadline, and a region that is not done by then is an error.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flotilla_identity::ApiVersion;
use flotilla_kv::ColumnFamily;
use flotilla_proto::kvrpcpb::{
    Context, RawDeleteRangeRequest, RawDeleteRangeResponse, UnsafeDestroyRangeRequest,
    UnsafeDestroyRangeResponse,
};
use flotilla_proto::tikvpb::tikv_client::TikvClient;
use flotilla_region::{Descriptor, Space, StoreId};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::transport::Channel;

use super::errors::{RequestFailure, has_kind, is_final};
use super::range::KeyBounds;
use super::request_context::check_cluster;
use super::service::RawKv;
use super::validate;
use crate::descriptor_proto::region_to_proto;

/// How long all of it may take, if the client does not say that it waits for less: a minute less
/// than the time after which client-go gives up, so that it hears which region was not done.
const TIME_LIMIT: Duration = Duration::from_secs(4 * 60);
/// Regions that are deleted at the same time.
const REGIONS_AT_ONCE_MAX: usize = 16;
/// Between two tries of one region.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// How long a connection to another store may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

impl RawKv {
    /// Deletes all keys of a range that lie in regions with a replica here.
    pub(super) async fn unsafe_destroy_range(
        &self,
        request: UnsafeDestroyRangeRequest,
    ) -> Result<UnsafeDestroyRangeResponse, RequestFailure> {
        let UnsafeDestroyRangeRequest { context, start_key: start, end_key: end } = request;
        let rules = self.rules("unsafe_destroy_range");
        rules.version(context.as_ref())?;
        validate::size(&start)?;
        validate::size(&end)?;
        let bounds = within_raw_keys(KeyBounds { start, end }, rules.api);
        let context = context.unwrap_or_default();
        check_cluster(context.cluster_id, &self.router().identity())?;
        let time_limit = match context.max_execution_duration_ms {
            0 => TIME_LIMIT,
            limit_ms => TIME_LIMIT.min(Duration::from_millis(limit_ms)),
        };
        if let Some(bounds) = bounds {
            let deadline = Instant::now() + time_limit;
            let destroyer =
                RangeDestroyer { service: self.clone(), links: Arc::default(), deadline };
            destroyer.run(bounds).await.map_err(RequestFailure::Refused)?;
        }
        Ok(UnsafeDestroyRangeResponse::default())
    }
}

/// One request under way. Cheap to clone.
#[derive(Clone)]
struct RangeDestroyer {
    service: RawKv,
    /// The connections to other stores that the request has needed so far.
    links: Arc<Mutex<BTreeMap<StoreId, Channel>>>,
    deadline: Instant,
}

/// The outcome of one try to delete in one region.
enum DeleteAttempt {
    Done,
    /// Another try may do better.
    Failed(String),
    /// None will.
    Refused(String),
}

impl RangeDestroyer {
    /// Deletes in all regions, some at a time. The first error ends it.
    async fn run(&self, bounds: KeyBounds) -> Result<(), String> {
        let mut rest = Some(bounds);
        let mut under_way = JoinSet::new();
        loop {
            while under_way.len() < REGIONS_AT_ONCE_MAX
                && let Some(bounds) = rest.take()
                && let Some(region) = self.next_region(&bounds)
            {
                let (part, behind) = cut(bounds, &region);
                rest = behind;
                under_way.spawn(self.clone().delete_part(part));
            }
            match under_way.join_next().await {
                None => return Ok(()),
                Some(ended) => ended.map_err(|_| "the store is stopping".to_owned())??,
            }
        }
    }

    /// The first region here that has a part of the bounds.
    fn next_region(&self, bounds: &KeyBounds) -> Option<Descriptor> {
        self.service.router().overlapping(Space::Raw, &bounds.start, &bounds.end)
    }

    /// Deletes a part of the range that was in one region here, however that splits meanwhile.
    async fn delete_part(self, part: KeyBounds) -> Result<(), String> {
        let mut rest = part;
        loop {
            // Without a replica of it nothing is known of the region: whoever has it now may have
            // been asked before it came.
            let region = self.next_region(&rest).filter(|region| region.contains(&rest.start));
            let Some(region) = region else {
                return Err(format!(
                    "the region of \"{}\" has left this store meanwhile: try again",
                    rest.start.escape_ascii()
                ));
            };
            let (bounds, behind) = cut(rest, &region);
            let deleting = self.delete(&region, bounds.clone());
            let attempt = timeout_at(self.deadline, deleting).await;
            let why = match attempt {
                Ok(DeleteAttempt::Done) => {
                    let Some(behind) = behind else { return Ok(()) };
                    rest = behind;
                    continue;
                }
                Ok(DeleteAttempt::Refused(why)) => {
                    return Err(format!("region {}: {why}", region.id));
                }
                Ok(DeleteAttempt::Failed(why)) => why,
                Err(_) => "no answer".to_owned(),
            };
            if Instant::now() + RETRY_PAUSE >= self.deadline {
                return Err(format!("region {} was not done in time: {why}", region.id));
            }
            sleep(RETRY_PAUSE).await;
            // All of it again: the region may have been split since.
            let end = behind.map_or(bounds.end, |behind| behind.end);
            rest = KeyBounds { start: bounds.start, end };
        }
    }

    /// Deletes the keys of every column family in one region.
    async fn delete(&self, region: &Descriptor, bounds: KeyBounds) -> DeleteAttempt {
        for family in self.service.families() {
            match self.delete_family(region, *family, bounds.clone()).await {
                DeleteAttempt::Done => {}
                other => return other,
            }
        }
        DeleteAttempt::Done
    }

    /// Deletes in one region, here or by its leader.
    async fn delete_family(
        &self,
        region: &Descriptor,
        family: ColumnFamily,
        bounds: KeyBounds,
    ) -> DeleteAttempt {
        let router = self.service.router();
        let left = self.deadline.saturating_duration_since(Instant::now()).as_millis();
        let context = Context {
            region_id: region.id.0,
            region_epoch: region_to_proto(region).region_epoch,
            cluster_id: router.identity().cluster_id,
            api_version: self.service.request_version().into(),
            max_execution_duration_ms: u64::try_from(left).unwrap_or(u64::MAX).max(1),
            ..Context::default()
        };
        let request = RawDeleteRangeRequest {
            context: Some(context),
            start_key: bounds.start,
            end_key: bounds.end,
            cf: family.request_name(),
        };
        match router.leader(region.id) {
            Some((_, leader)) if leader.store != router.identity().store => {
                self.delete_elsewhere(leader.store, request).await
            }
            // Without a leader the router waits for a while.
            _ => match self.service.answer(self.service.delete_range(request).await) {
                // A store that stops says so without a kind, and nothing that is tried here later
                // does better.
                Ok(response) => attempt(response, |error| is_final(error) || !has_kind(error)),
                Err(status) => DeleteAttempt::Refused(status.message().to_owned()),
            },
        }
    }

    /// Has another store delete in a region that it leads.
    async fn delete_elsewhere(
        &self,
        store: StoreId,
        request: RawDeleteRangeRequest,
    ) -> DeleteAttempt {
        let channel = match self.link(store) {
            Ok(channel) => channel,
            Err(why) => return DeleteAttempt::Failed(why),
        };
        match TikvClient::new(channel).raw_delete_range(request).await {
            Ok(response) => attempt(response.into_inner(), is_final),
            Err(status) => {
                // The store may have another address by the next try.
                self.links.lock().remove(&store);
                DeleteAttempt::Failed(format!("store {store}: {}", status.message()))
            }
        }
    }

    /// A connection to another store, which comes about with its first request.
    fn link(&self, store: StoreId) -> Result<Channel, String> {
        let mut links = self.links.lock();
        if let Some(channel) = links.get(&store) {
            return Ok(channel.clone());
        }
        let way = self.service.way_to(store);
        let (address, dialer) = way.ok_or_else(|| format!("store {store} has no known address"))?;
        let endpoint = dialer.endpoint(&address, CONNECT_TIMEOUT).map_err(|why| why.to_string())?;
        let channel = dialer.connect_lazy(&endpoint);
        links.insert(store, channel.clone());
        Ok(channel)
    }
}

/// The part of the bounds that can have rows; `None` if there is none. Clients of V2 destroy the
/// keys of transactions as well, which lie elsewhere.
fn within_raw_keys(bounds: KeyBounds, api: ApiVersion) -> Option<KeyBounds> {
    let KeyBounds { mut start, mut end } = bounds;
    if api == ApiVersion::V2 {
        start = start.max(Bytes::from_static(ApiVersion::RAW_START));
        if end.is_empty() || end > ApiVersion::RAW_END {
            end = Bytes::from_static(ApiVersion::RAW_END);
        }
    }
    (end.is_empty() || start < end).then_some(KeyBounds { start, end })
}

/// The part of the bounds that lies in the region, and what is left behind it.
fn cut(bounds: KeyBounds, region: &Descriptor) -> (KeyBounds, Option<KeyBounds>) {
    let start = bounds.start.max(region.start.clone());
    let ends_here = region.end.is_empty() || (!bounds.end.is_empty() && bounds.end <= region.end);
    if ends_here {
        return (KeyBounds { start, end: bounds.end }, None);
    }
    let behind = KeyBounds { start: region.end.clone(), end: bounds.end };
    (KeyBounds { start, end: region.end.clone() }, Some(behind))
}

/// The meaning of an answer; `is_final` tells errors that last from those that pass.
fn attempt(
    response: RawDeleteRangeResponse,
    is_final: impl Fn(&flotilla_proto::errorpb::Error) -> bool,
) -> DeleteAttempt {
    match response.region_error {
        _ if !response.error.is_empty() => DeleteAttempt::Refused(response.error),
        None => DeleteAttempt::Done,
        Some(error) if is_final(&error) => DeleteAttempt::Refused(error.message),
        Some(error) => DeleteAttempt::Failed(error.message),
    }
}

#[cfg(test)]
mod tests {
    use flotilla_region::{Epoch, RegionId, RemovedPeers};

    use super::*;

    #[test]
    fn under_v2_only_raw_keys_are_destroyed() {
        let bounds = |start: &'static [u8], end: &'static [u8]| KeyBounds {
            start: Bytes::from_static(start),
            end: Bytes::from_static(end),
        };
        let raw = |range: &KeyBounds| within_raw_keys(range.clone(), ApiVersion::V2);
        for (range, expected) in [
            (bounds(b"", b""), Some(bounds(b"r\0\0\0", b"s"))),
            (bounds(b"a", b"z"), Some(bounds(b"r\0\0\0", b"s"))),
            (bounds(b"r\0\0\x01k", b"r\0\0\x02"), Some(bounds(b"r\0\0\x01k", b"r\0\0\x02"))),
            (bounds(b"x\0\0\0", b"x\0\0\x01"), None),
            (bounds(b"a", b"b"), None),
        ] {
            assert_eq!(raw(&range), expected, "{range:?}");
        }
        let all = bounds(b"", b"");
        assert_eq!(within_raw_keys(all.clone(), ApiVersion::V1Ttl), Some(all));
        assert_eq!(within_raw_keys(bounds(b"b", b"a"), ApiVersion::V1Ttl), None);
    }

    #[test]
    fn a_range_is_cut_at_the_borders_of_its_regions() {
        let region = |start: &'static str, end: &'static str| Descriptor {
            removed: RemovedPeers::default(),
            id: RegionId(2),
            space: Space::Raw,
            start: start.into(),
            end: end.into(),
            epoch: Epoch { conf_version: 1, version: 1 },
            peers: vec![],
        };
        let bounds = |start: &'static str, end: &'static str| KeyBounds {
            start: start.into(),
            end: end.into(),
        };
        for (range, region, part, behind) in [
            (bounds("b", "d"), region("", ""), bounds("b", "d"), None),
            (bounds("b", "d"), region("a", "d"), bounds("b", "d"), None),
            (bounds("b", "d"), region("c", ""), bounds("c", "d"), None),
            (bounds("b", "d"), region("a", "c"), bounds("b", "c"), Some(bounds("c", "d"))),
            (bounds("b", ""), region("a", "c"), bounds("b", "c"), Some(bounds("c", ""))),
            (bounds("b", ""), region("a", ""), bounds("b", ""), None),
            (bounds("", ""), region("", ""), bounds("", ""), None),
        ] {
            assert_eq!(cut(range.clone(), &region), (part, behind), "{range:?} in {region:?}");
        }
    }
}
