//! Requests that read. The region grants the read, then a snapshot is taken and looked at.

use bytes::Bytes;
use flotilla_pagestore::Error as PagesError;
use flotilla_proto::kvrpcpb::{
    RawBatchGetRequest, RawBatchScanRequest, RawGetKeyTtlRequest, RawGetKeyTtlResponse,
    RawGetRequest, RawGetResponse, RawScanRequest,
};
use flotilla_region::RegionId;
use flotilla_store::{ReadError, RegionSnapshot, ScanRequest};
use tokio::time::timeout;

use super::errors::Failure;
use super::range::{self, Clipped, Range};
use super::read_scheduler::Job;
use super::request_context::Claim;
use super::row_encoder::Rows;
use super::service::RawKv;
use super::validate;
use crate::driver::router::Router;

/// What a scan or a batch of gets reads before it lets others go first. At a gigabyte in a second, a
/// millisecond.
const PART_BYTES: u64 = 1 << 20;
/// What a key of a batch of gets counts for, beside its bytes.
const GET_BYTES: u64 = 1024;
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
        validate::common(context.as_ref(), &cf)?;
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
        validate::common(context.as_ref(), &cf)?;
        let value = self.value(self.examine(context)?, key).await?;
        Ok(RawGetKeyTtlResponse { not_found: value.is_none(), ..Default::default() })
    }

    pub(super) async fn batch_get(&self, request: RawBatchGetRequest) -> Result<Rows, Failure> {
        let RawBatchGetRequest { context, keys, cf } = request;
        validate::common(context.as_ref(), &cf)?;
        keys.iter().try_for_each(|key| validate::key(key))?;
        let claim = self.examine(context)?.touching(&keys);
        let bytes_max = self.limits().answer_bytes_max;
        let rows = Rows::default();
        self.look(claim, Gets { keys, next: 0, rows, bytes: 0, bytes_max }).await
    }

    pub(super) async fn scan(&self, request: RawScanRequest) -> Result<Rows, Failure> {
        let RawScanRequest { context, start_key, limit, key_only, cf, reverse, end_key } = request;
        validate::common(context.as_ref(), &cf)?;
        let wanted = Wanted { limit, reverse, key_only };
        let claim = self.examine(context)?.pinned();
        self.rows(claim, vec![(start_key, end_key)], wanted).await
    }

    pub(super) async fn batch_scan(&self, request: RawBatchScanRequest) -> Result<Rows, Failure> {
        let RawBatchScanRequest { context, ranges, each_limit, key_only, cf, reverse } = request;
        validate::common(context.as_ref(), &cf)?;
        if ranges.len() > RANGES_MAX {
            let count = ranges.len();
            return Err(Failure::Refused(format!("{count} ranges, at most {RANGES_MAX}")));
        }
        let wanted = Wanted { limit: each_limit, reverse, key_only };
        let claim = self.examine(context)?.pinned();
        let ranges = ranges.into_iter().map(|range| (range.start_key, range.end_key)).collect();
        self.rows(claim, ranges, wanted).await
    }

    /// The value of one key.
    async fn value(&self, claim: Claim, key: Bytes) -> Result<Option<Bytes>, Failure> {
        validate::key(&key)?;
        let id = claim.region();
        let view = self.snapshot(claim.touching([&key])).await?;
        view.get(&key).map_err(|error| unread(self.router(), id, error))
    }

    /// The rows of all `bounds` in the order of the request, each as long as the limit or up to
    /// the region's end.
    async fn rows(
        &self,
        claim: Claim,
        bounds: Vec<(Bytes, Bytes)>,
        wanted: Wanted,
    ) -> Result<Rows, Failure> {
        let mut probes = Vec::new();
        let mut ranges = Vec::new();
        for (start, end) in bounds {
            validate::bound(&start)?;
            validate::bound(&end)?;
            let clip = if wanted.reverse { range::reverse } else { range::forward };
            let Clipped { range, probe } = clip(&claim.descriptor, start, end);
            probes.extend(probe);
            ranges.extend(range);
        }
        let bytes_max = self.limits().answer_bytes_max;
        let claim = claim.touching(&probes);
        let rows = Rows::default();
        let scans = Scans { ranges, wanted, next: 0, rest: None, rows, bytes: 0, bytes_max };
        self.look(claim, scans).await
    }

    /// Carries out `reading` on a snapshot, on threads that may take their time, part by part.
    async fn look<T: Reading>(&self, claim: Claim, reading: T) -> Result<Rows, Failure> {
        let id = claim.region();
        let view = self.snapshot(claim).await?;
        match self.places().read(Looking { view, reading }).await {
            Some(answer) => answer.map_err(|error| unread(self.router(), id, error)),
            None => Err(Failure::from_router(id, crate::driver::router::RequestError::Stopping)),
        }
    }

    /// A snapshot of the region that holds every write acknowledged before the request came.
    async fn snapshot(&self, claim: Claim) -> Result<RegionSnapshot, Failure> {
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
/// read one page that is not what was written cannot vouch for the others. What the disk refuses it
/// may give the next time, so that is counted and told; the client hears of it, too.
fn unread(router: &Router, id: RegionId, error: ReadError) -> Failure {
    match &error {
        ReadError::Corrupt(_) | ReadError::Pages(PagesError::Corrupt { .. }) => {
            router.note_failed_read(id, &error);
            router.fail(&format!("region {id} cannot be read: {error}"));
        }
        ReadError::Pages(_) => router.note_failed_read(id, &error),
        _ => {}
    }
    Failure::from_read(id, error)
}

/// A read of many rows.
trait Reading: Send + 'static {
    /// Reads about [`PART_BYTES`] more. True when all is read.
    fn read_on(&mut self, view: &RegionSnapshot) -> Result<bool, ReadError>;
    /// What was read; leaves nothing of it behind, so that it can be read again from the beginning.
    fn take(&mut self) -> Rows;
}

/// A read and what it looks at.
struct Looking<T> {
    view: RegionSnapshot,
    reading: T,
}

impl<T: Reading> Job for Looking<T> {
    type Answer = Rows;
    type Error = ReadError;

    fn read_on(&mut self) -> Result<Option<Rows>, ReadError> {
        Ok(self.reading.read_on(&self.view)?.then(|| self.reading.take()))
    }

    fn restart(&mut self) {
        self.reading.take();
    }
}

/// The values of many keys.
struct Gets {
    keys: Vec<Bytes>,
    next: usize,
    rows: Rows,
    bytes: u64,
    bytes_max: u64,
}

impl Reading for Gets {
    fn read_on(&mut self, view: &RegionSnapshot) -> Result<bool, ReadError> {
        let mut part_bytes = 0;
        while part_bytes < PART_BYTES {
            let Some(key) = self.keys.get(self.next) else { return Ok(true) };
            self.next += 1;
            part_bytes += GET_BYTES;
            let Some(value) = view.get(key)? else { continue };
            let bytes = (key.len() + value.len()) as u64;
            part_bytes += bytes;
            self.bytes += bytes;
            if self.bytes > self.bytes_max {
                return Err(ReadError::TooLarge { bytes_max: self.bytes_max });
            }
            self.rows.push(key, &value);
        }
        Ok(false)
    }

    fn take(&mut self) -> Rows {
        (self.next, self.bytes) = (0, 0);
        std::mem::take(&mut self.rows)
    }
}

/// The rows of ranges, which together must fit into one answer.
struct Scans {
    ranges: Vec<Range>,
    wanted: Wanted,
    /// The range after the one that is being read.
    next: usize,
    /// What is left of the range that is being read.
    rest: Option<ScanRequest>,
    rows: Rows,
    bytes: u64,
    bytes_max: u64,
}

impl Reading for Scans {
    fn read_on(&mut self, view: &RegionSnapshot) -> Result<bool, ReadError> {
        let before = self.bytes;
        while self.bytes - before < PART_BYTES {
            let Some(request) = self.rest.take().or_else(|| self.next_range()) else {
                return Ok(true);
            };
            let part_bytes = PART_BYTES - (self.bytes - before);
            let (rows, bytes) = (&mut self.rows, &mut self.bytes);
            let rest = view.scan_part(&request, part_bytes, |key, value| {
                *bytes += (key.len() + value.len()) as u64;
                rows.push(key, value);
            });
            // The bound that the request as a whole has, and not what was left of it.
            let too_large = ReadError::TooLarge { bytes_max: self.bytes_max };
            self.rest = rest.map_err(|error| match error {
                ReadError::TooLarge { .. } => too_large,
                other => other,
            })?;
            if self.rest.is_some() {
                return Ok(false);
            }
        }
        Ok(false)
    }

    fn take(&mut self) -> Rows {
        (self.next, self.rest, self.bytes) = (0, None, 0);
        std::mem::take(&mut self.rows)
    }
}

impl Scans {
    fn next_range(&mut self) -> Option<ScanRequest> {
        let Range { start, end } = self.ranges.get(self.next)?.clone();
        self.next += 1;
        Some(ScanRequest {
            start,
            end,
            limit: u64::from(self.wanted.limit),
            reverse: self.wanted.reverse,
            key_only: self.wanted.key_only,
            bytes_max: self.bytes_max - self.bytes,
        })
    }
}

#[cfg(test)]
mod tests;
