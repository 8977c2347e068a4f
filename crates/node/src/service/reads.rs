//! Requests that read. The region grants the read, then a snapshot is taken and looked at.

use bytes::Bytes;
use flotilla_pagestore::Error as PagesError;
use flotilla_proto::kvrpcpb::{
    KvPair, RawBatchGetRequest, RawBatchGetResponse, RawBatchScanRequest, RawBatchScanResponse,
    RawGetKeyTtlRequest, RawGetKeyTtlResponse, RawGetRequest, RawGetResponse, RawScanRequest,
    RawScanResponse,
};
use flotilla_region::RegionId;
use flotilla_store::{ReadError, RegionView, ScanRequest};
use tokio::time::timeout;

use super::check;
use super::claim::Claim;
use super::errors::Failure;
use super::range::{self, Clipped, Range};
use super::rawkv::RawKv;
use crate::router::Router;

/// What a read costs of `Limits::reads_max`.
const GET_WEIGHT: u32 = 1;
const SCAN_WEIGHT: u32 = 8;
/// Ranges that one batch scan may have; more would keep a thread for too long.
const RANGES_MAX: usize = 1024;

/// How the rows of a scan are wanted.
#[derive(Clone, Copy)]
struct Wanted {
    limit: u32,
    reverse: bool,
    key_only: bool,
}

impl RawKv {
    pub(super) async fn get(&self, request: RawGetRequest) -> Result<RawGetResponse, Failure> {
        let RawGetRequest { context, key, cf } = request;
        check::common(context.as_ref(), &cf)?;
        let value = self.value(self.examine(context)?, key).await?;
        Ok(RawGetResponse {
            not_found: value.is_none(),
            value: value.unwrap_or_default(),
            ..RawGetResponse::default()
        })
    }

    /// Values here never expire, which the protocol says by a time to live of 0.
    pub(super) async fn get_key_ttl(
        &self,
        request: RawGetKeyTtlRequest,
    ) -> Result<RawGetKeyTtlResponse, Failure> {
        let RawGetKeyTtlRequest { context, key, cf } = request;
        check::common(context.as_ref(), &cf)?;
        let value = self.value(self.examine(context)?, key).await?;
        Ok(RawGetKeyTtlResponse { not_found: value.is_none(), ..Default::default() })
    }

    pub(super) async fn batch_get(
        &self,
        request: RawBatchGetRequest,
    ) -> Result<RawBatchGetResponse, Failure> {
        let RawBatchGetRequest { context, keys, cf } = request;
        check::common(context.as_ref(), &cf)?;
        keys.iter().try_for_each(|key| check::key(key))?;
        let claim = self.examine(context)?.touching(&keys);
        let limit_bytes = self.limits().answer_bytes_max;
        let router = self.router().clone();
        let pairs = self
            .look(claim, SCAN_WEIGHT, move |id, view| {
                let mut pairs = Vec::new();
                let mut bytes = 0;
                for key in keys {
                    let found = view.get(&key).map_err(|error| unread(&router, id, error))?;
                    let Some(value) = found else { continue };
                    bytes += (key.len() + value.len()) as u64;
                    if bytes > limit_bytes {
                        return Err(Failure::answer_too_large(id, limit_bytes));
                    }
                    pairs.push(KvPair { key, value });
                }
                Ok(pairs)
            })
            .await?;
        Ok(RawBatchGetResponse { pairs, ..Default::default() })
    }

    pub(super) async fn scan(&self, request: RawScanRequest) -> Result<RawScanResponse, Failure> {
        let RawScanRequest { context, start_key, limit, key_only, cf, reverse, end_key } = request;
        check::common(context.as_ref(), &cf)?;
        let wanted = Wanted { limit, reverse, key_only };
        let claim = self.examine(context)?.pinned();
        let kvs = self.rows(claim, vec![(start_key, end_key)], wanted).await?;
        Ok(RawScanResponse { kvs, ..Default::default() })
    }

    pub(super) async fn batch_scan(
        &self,
        request: RawBatchScanRequest,
    ) -> Result<RawBatchScanResponse, Failure> {
        let RawBatchScanRequest { context, ranges, each_limit, key_only, cf, reverse } = request;
        check::common(context.as_ref(), &cf)?;
        if ranges.len() > RANGES_MAX {
            let count = ranges.len();
            return Err(Failure::Refused(format!("{count} ranges, at most {RANGES_MAX}")));
        }
        let wanted = Wanted { limit: each_limit, reverse, key_only };
        let claim = self.examine(context)?.pinned();
        let ranges = ranges.into_iter().map(|range| (range.start_key, range.end_key)).collect();
        let kvs = self.rows(claim, ranges, wanted).await?;
        Ok(RawBatchScanResponse { kvs, ..Default::default() })
    }

    /// The value of one key.
    async fn value(&self, claim: Claim, key: Bytes) -> Result<Option<Bytes>, Failure> {
        check::key(&key)?;
        let id = claim.region();
        let view = self.snapshot(claim.touching([&key])).await?;
        let _place = self.read_place(GET_WEIGHT).await;
        view.get(&key).map_err(|error| unread(self.router(), id, error))
    }

    /// The rows of all `bounds` in the order of the request, each as long as the limit or up to
    /// the region's end.
    async fn rows(
        &self,
        claim: Claim,
        bounds: Vec<(Bytes, Bytes)>,
        wanted: Wanted,
    ) -> Result<Vec<KvPair>, Failure> {
        let mut probes = Vec::new();
        let mut ranges = Vec::new();
        for (start, end) in bounds {
            check::bound(&start)?;
            check::bound(&end)?;
            let clip = if wanted.reverse { range::reverse } else { range::forward };
            let Clipped { range, probe } = clip(&claim.descriptor, start, end);
            probes.extend(probe);
            ranges.extend(range);
        }
        let limit_bytes = self.limits().answer_bytes_max;
        let router = self.router().clone();
        self.look(claim.touching(&probes), SCAN_WEIGHT, move |id, view| {
            let mut rows = Vec::new();
            let mut left_bytes = limit_bytes;
            for range in ranges {
                let found = scan_one(&view, range, wanted, &mut left_bytes);
                rows.extend(found.map_err(|error| unread(&router, id, error))?);
            }
            Ok(rows)
        })
        .await
    }

    /// Runs `look` on a snapshot, on a thread that may take its time.
    async fn look<T: Send + 'static>(
        &self,
        claim: Claim,
        weight: u32,
        look: impl FnOnce(RegionId, RegionView) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let id = claim.region();
        let view = self.snapshot(claim).await?;
        let place = self.read_place(weight).await;
        let looked = tokio::task::spawn_blocking(move || {
            let _place = place;
            look(id, view)
        });
        match looked.await {
            Ok(result) => result,
            Err(_) => Err(Failure::from_router(id, crate::router::RequestError::Stopping)),
        }
    }

    /// A snapshot of the region that holds every write acknowledged before the request came.
    async fn snapshot(&self, claim: Claim) -> Result<RegionView, Failure> {
        let (id, version) = (claim.region(), claim.guard.version);
        let grant = self.router().read(id, claim.guard, claim.follower);
        let granted = match claim.patience {
            Some(patience) => timeout(patience, grant).await.map_err(|_| Failure::late())?,
            None => grant.await,
        };
        let view = granted.map_err(|error| Failure::from_router(id, error))?;
        view.region(id, version).map_err(|error| unread(self.router(), id, error))
    }
}

/// A read that the store could not carry out. If that is because of damage the node stops: who has
/// read one page that is not what was written cannot vouch for the others.
fn unread(router: &Router, id: RegionId, error: ReadError) -> Failure {
    if matches!(error, ReadError::Corrupt(_) | ReadError::Pages(PagesError::Corrupt { .. })) {
        router.fail(&format!("region {id} cannot be read: {error}"));
    }
    Failure::from_read(id, error)
}

/// The rows of one range, which must fit into what is left of the answer.
fn scan_one(
    view: &RegionView,
    range: Range,
    wanted: Wanted,
    left_bytes: &mut u64,
) -> Result<Vec<KvPair>, ReadError> {
    let request = ScanRequest {
        start: range.start,
        end: range.end,
        limit: u64::from(wanted.limit),
        reverse: wanted.reverse,
        key_only: wanted.key_only,
        bytes_max: *left_bytes,
    };
    let result = view.scan(&request)?;
    let mut rows = Vec::with_capacity(result.rows.len());
    for (key, value) in result.rows {
        *left_bytes = left_bytes.saturating_sub((key.len() + value.len()) as u64);
        rows.push(KvPair { key, value });
    }
    Ok(rows)
}
