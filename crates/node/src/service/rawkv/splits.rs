//! Requests that split a region.

use bytes::Bytes;
use flotilla_identity::ApiVersion;
use flotilla_proto::kvrpcpb::{SplitRegionRequest, SplitRegionResponse};
use flotilla_region::RegionId;
use tokio::time::timeout;
use tonic::Status;

use super::errors::RequestFailure;
use super::service::RawKv;
use crate::descriptor_proto::region_to_proto;

/// Parts of a region that is split without keys.
const PARTS: usize = 2;

/// Split keys of one request at most, as many as PD takes: each becomes a region, which stays.
const SPLIT_KEYS_MAX: usize = 10_000;

impl RawKv {
    /// Splits a region at the keys of the request, or into halves if it has none.
    pub(super) async fn split_region(
        &self,
        request: SplitRegionRequest,
    ) -> Result<SplitRegionResponse, RequestFailure> {
        self.split_at(request).await.map_err(|failure| match failure {
            // The answer has no field for it, and clients take a region error without a kind for
            // one that passes.
            RequestFailure::Refused(why) => RequestFailure::Call(Status::invalid_argument(why)),
            failure => failure,
        })
    }

    async fn split_at(
        &self,
        request: SplitRegionRequest,
    ) -> Result<SplitRegionResponse, RequestFailure> {
        let SplitRegionRequest { context, split_key, mut split_keys, is_raw_kv } = request;
        let rules = self.rules("split_region");
        rules.version(context.as_ref())?;
        // Under V2 both kinds of keys are of one form, and travel as they are.
        if !is_raw_kv && rules.api == ApiVersion::V1Ttl {
            // TiKV encodes the keys of such a request as those of transactions.
            let why = "only raw keys can be split keys: set is_raw_kv".to_owned();
            return Err(RequestFailure::Refused(why));
        }
        if !split_key.is_empty() {
            split_keys.push(split_key);
        }
        if split_keys.len() > SPLIT_KEYS_MAX {
            let count = split_keys.len();
            let why = format!("{count} split keys at once, at most {SPLIT_KEYS_MAX}");
            return Err(RequestFailure::Refused(why));
        }
        split_keys.iter().try_for_each(|key| rules.border(key))?;
        let checked = self.check_context(context)?;
        let id = checked.region();
        let current = self.router().check_version(id, checked.guard.version);
        current.map_err(|error| RequestFailure::from_router(id, error))?;
        let foreign = split_keys.iter().find(|key| !checked.descriptor.contains(key));
        if let Some(key) = foreign {
            let key = key.escape_ascii();
            return Err(RequestFailure::Refused(format!("key \"{key}\" is not in region {id}")));
        }
        let time_limit = checked.time_limit;
        let split = async {
            let (keys, cause) = match split_keys.is_empty() {
                true => (self.halves(id)?, "asked for in halves"),
                false => (split_keys, "asked for at keys"),
            };
            let split = self.router().split(id, &keys, cause).await;
            split.map_err(|error| RequestFailure::from_router(id, error))
        };
        let regions = match time_limit {
            Some(time_limit) => {
                timeout(time_limit, split).await.map_err(|_| RequestFailure::undecided())??
            }
            None => split.await?,
        };
        let mut regions: Vec<_> = regions.iter().map(region_to_proto).collect();
        regions.iter_mut().for_each(|region| self.borders().encode_region(region));
        let (left, right) = match &regions[..] {
            [left, right] => (Some(left.clone()), Some(right.clone())),
            _ => (None, None),
        };
        Ok(SplitRegionResponse { left, right, regions, region_error: None })
    }

    /// The key in the middle of the region's bytes.
    fn halves(&self, id: RegionId) -> Result<Vec<Bytes>, RequestFailure> {
        let keys = self.router().split_keys(id, PARTS);
        let keys = keys.map_err(|error| self.read_failed(id, error))?;
        if keys.is_empty() {
            let why = format!("region {id} has too few rows to be split: name a key");
            return Err(RequestFailure::Refused(why));
        }
        Ok(keys)
    }
}
