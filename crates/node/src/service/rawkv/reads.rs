//! Requests that read: the region grants the read, then a snapshot is taken and read.

use bytes::Bytes;
use flotilla_kv::ColumnFamily;
use flotilla_kv::raw::{self, RawOp};
use flotilla_proto::kvrpcpb::{
    RawBatchGetRequest, RawBatchScanRequest, RawGetKeyTtlRequest, RawGetKeyTtlResponse,
    RawGetRequest, RawGetResponse, RawScanRequest,
};
use flotilla_region::{Descriptor, RegionId, RequestPrecondition};
use flotilla_store::{ApplyOutcome, ReadError, RegionSnapshot, ScanRequest, SizedValue};
use tokio::time::{Instant, timeout, timeout_at};

use super::errors::RequestFailure;
use super::range::{self, ClippedRange, KeyBounds};
use super::read_scheduler::ChunkedRead;
use super::request_context::RequestContext;
use super::row_encoder::RowEncoder;
use super::service::RawKv;
use super::validate::RequestRules;
use crate::driver::reroute::RegionReadError;
use crate::driver::router::{RequestError, Router};

/// Bytes that a scan or a batch of gets reads before it lets others go first: a millisecond at a
/// gigabyte per second.
pub(super) const PART_BYTES: u64 = 1 << 20;
/// Bytes of a value that is read in place, some ten microseconds: a longer one would hold up the
/// requests behind it.
const SHORT_VALUE_BYTES_MAX: usize = 64 << 10;
/// Bytes that a key of a batch of gets counts for in addition to its own.
const GET_BYTES: u64 = 1024;
/// The most keys that are read together, sharing their way down the tree.
const KEYS_AT_ONCE_MAX: usize = 64;
/// Ranges that one batch scan or checksum may have; more would keep a thread for too long.
pub(super) const RANGES_MAX: usize = 1024;

/// Limit, direction and columns of a scan.
#[derive(Clone, Copy)]
struct ScanOptions {
    limit: u32,
    reverse: bool,
    key_only: bool,
}

impl RawKv {
    pub(super) async fn get(
        &self,
        request: RawGetRequest,
    ) -> Result<RawGetResponse, RequestFailure> {
        let RawGetRequest { context, key, cf } = request;
        let rules = self.rules("raw_get");
        let family = rules.family(context.as_ref(), &cf)?;
        rules.key(&key)?;
        let checked = self.check_context(context)?.in_family(family);
        let value = self.value(checked, key).await?;
        Ok(RawGetResponse {
            not_found: value.is_none(),
            value: value.unwrap_or_default(),
            ..RawGetResponse::default()
        })
    }

    /// In seconds, rounded up; 0 for a value that does not expire.
    pub(super) async fn get_key_ttl(
        &self,
        request: RawGetKeyTtlRequest,
    ) -> Result<RawGetKeyTtlResponse, RequestFailure> {
        let RawGetKeyTtlRequest { context, key, cf } = request;
        let rules = self.rules("raw_get_key_ttl");
        let family = rules.family(context.as_ref(), &cf)?;
        rules.key(&key)?;
        let checked = self.check_context(context)?.in_family(family);
        let ttl_s = self.ttl_s(checked, &key).await?;
        Ok(RawGetKeyTtlResponse {
            ttl: ttl_s.unwrap_or_default(),
            not_found: ttl_s.is_none(),
            ..RawGetKeyTtlResponse::default()
        })
    }

    pub(super) async fn batch_get(
        &self,
        request: RawBatchGetRequest,
    ) -> Result<RowEncoder, RequestFailure> {
        let RawBatchGetRequest { context, keys, cf } = request;
        let rules = self.rules("raw_batch_get");
        let family = rules.family(context.as_ref(), &cf)?;
        keys.iter().try_for_each(|key| rules.key(key))?;
        let checked = self.check_context(context)?.in_family(family).touching(&keys);
        let bytes_max = self.limits().answer_bytes_max;
        let rows = RowEncoder::default();
        self.read_rows(
            checked,
            BatchGet { keys, next: 0, at_once: KEYS_AT_ONCE_MAX, rows, bytes: 0, bytes_max },
        )
        .await
    }

    pub(super) async fn scan(&self, request: RawScanRequest) -> Result<RowEncoder, RequestFailure> {
        let RawScanRequest { context, start_key, limit, key_only, cf, reverse, end_key } = request;
        let rules = self.rules("raw_scan");
        let family = rules.family(context.as_ref(), &cf)?;
        let options = ScanOptions { limit, reverse, key_only };
        let checked = self.check_context(context)?.in_family(family).at_known_version();
        self.rows(checked, rules, vec![(start_key, end_key)], options).await
    }

    pub(super) async fn batch_scan(
        &self,
        request: RawBatchScanRequest,
    ) -> Result<RowEncoder, RequestFailure> {
        let RawBatchScanRequest { context, ranges, each_limit, key_only, cf, reverse } = request;
        let rules = self.rules("raw_batch_scan");
        let family = rules.family(context.as_ref(), &cf)?;
        if ranges.len() > RANGES_MAX {
            let count = ranges.len();
            return Err(RequestFailure::Refused(format!("{count} ranges, at most {RANGES_MAX}")));
        }
        let options = ScanOptions { limit: each_limit, reverse, key_only };
        let checked = self.check_context(context)?.in_family(family).at_known_version();
        let ranges = ranges.into_iter().map(|range| (range.start_key, range.end_key)).collect();
        self.rows(checked, rules, ranges, options).await
    }

    /// The value of a key: a short one is read in place, a long one beside the requests of others.
    async fn value(
        &self,
        checked: RequestContext,
        key: Bytes,
    ) -> Result<Option<Bytes>, RequestFailure> {
        let (id, deadline) = (checked.region(), checked.deadline());
        let view = self.snapshot(checked.touching([&key])).await?;
        let value = self.value_in(id, &view, &key, deadline).await?;
        let Some(time_ms) = view.unlogged_ms() else { return Ok(value) };
        // Few reads come here: beside the others, the future of each would be as large.
        Box::pin(async move {
            let of = (view.descriptor(), view.family());
            let logged = self.log_time(of, time_ms, deadline).await?;
            self.value_in(id, &logged, &key, deadline).await
        })
        .await
    }

    /// The value of a key in one snapshot.
    async fn value_in(
        &self,
        id: RegionId,
        view: &RegionSnapshot,
        key: &Bytes,
        deadline: Option<Instant>,
    ) -> Result<Option<Bytes>, RequestFailure> {
        let began = Instant::now();
        let found = view.get_up_to(key, SHORT_VALUE_BYTES_MAX);
        match found.map_err(|error| self.read_failed(id, error))? {
            SizedValue::Value(value) => {
                self.router().latencies().row_read.observe(began.elapsed());
                Ok(value)
            }
            SizedValue::Longer(bytes) => {
                self.check_room(bytes)?;
                Box::pin(async {
                    let get = LongGet { key: key.clone(), value: None };
                    let read = SnapshotRead { view: view.clone(), reading: Some(get) };
                    let read = self.read_scheduler().read_long(read);
                    Ok(self.timed_read(id, read, deadline).await?.output)
                })
                .await
            }
        }
    }

    /// The time that the value of a key has left.
    async fn ttl_s(
        &self,
        checked: RequestContext,
        key: &Bytes,
    ) -> Result<Option<u64>, RequestFailure> {
        let (id, deadline) = (checked.region(), checked.deadline());
        let view = self.snapshot(checked.touching([key])).await?;
        let began = Instant::now();
        let found = view.ttl_s(key).map_err(|error| self.read_failed(id, error))?;
        self.router().latencies().row_read.observe(began.elapsed());
        let Some(time_ms) = view.unlogged_ms() else { return Ok(found) };
        let logged = self.log_time((view.descriptor(), view.family()), time_ms, deadline).await?;
        logged.ttl_s(key).map_err(|error| self.read_failed(id, error))
    }

    /// Has the region's log name the time by which a read left rows out, so that no later leader,
    /// by a clock that is behind, shows them again. The read is then made again, on the rows behind
    /// that entry and by the watermark alone: a swap before it, whose time is earlier, may have
    /// found a value that the first look held for expired.
    async fn log_time(
        &self,
        (of, family): (&Descriptor, ColumnFamily),
        time_ms: u64,
        deadline: Option<Instant>,
    ) -> Result<RegionSnapshot, RequestFailure> {
        // A time that cannot be right would end rows for good.
        self.command_ms()?;
        let command = raw::encode_at(time_ms, &[RawOp::RaiseWatermark]);
        let guard = RequestPrecondition { version: Some(of.epoch.version), ..Default::default() };
        let proposal = self.router().propose(of.id, guard, command);
        let named = match deadline {
            Some(deadline) => {
                timeout_at(deadline, proposal).await.map_err(|_| RequestFailure::late())?
            }
            None => proposal.await,
        };
        let named = named.map_err(|error| RequestFailure::from_router(of.id, error))?;
        if let ApplyOutcome::Rejected(reject) = named {
            return Err(RequestFailure::from_apply(of, reject));
        }
        let rows = self.router().read_applied(of.id, of.epoch.version);
        rows.and_then(|rows| rows.in_family(family)).map_err(|error| self.read_failed(of.id, error))
    }

    /// The rows of all `bounds` in the order of the request, each as long as the limit or up to
    /// the region's end.
    async fn rows(
        &self,
        checked: RequestContext,
        rules: RequestRules,
        bounds: Vec<(Bytes, Bytes)>,
        options: ScanOptions,
    ) -> Result<RowEncoder, RequestFailure> {
        let mut probes = Vec::new();
        let mut ranges = Vec::new();
        for (start, end) in bounds {
            // A scan downwards begins with its upper bound.
            match options.reverse {
                true => rules.range(&end, &start)?,
                false => rules.range(&start, &end)?,
            }
            let clip = if options.reverse { range::reverse } else { range::forward };
            let ClippedRange { range, probe } = clip(&checked.descriptor, start, end);
            probes.extend(probe);
            ranges.extend(range);
        }
        let bytes_max = self.limits().answer_bytes_max;
        let checked = checked.touching(&probes);
        let rows = RowEncoder::default();
        let scans = BatchScan { ranges, options, next: 0, rest: None, rows, bytes: 0, bytes_max };
        self.read_rows(checked, scans).await
    }

    /// Carries out `reading` on a snapshot, on threads that may block, part by part.
    pub(super) async fn read_rows<T: RowReader>(
        &self,
        checked: RequestContext,
        reading: T,
    ) -> Result<T::Output, RequestFailure> {
        let (id, deadline) = (checked.region(), checked.deadline());
        let view = self.snapshot(checked).await?;
        let (descriptor, family) = (view.descriptor().clone(), view.family());
        let SnapshotRows { output, unlogged_ms, reading } =
            self.read_all(id, view, reading, deadline).await?;
        let Some(time_ms) = unlogged_ms else { return Ok(output) };
        let logged = self.log_time((&descriptor, family), time_ms, deadline).await?;
        Ok(self.read_all(id, logged, reading, deadline).await?.output)
    }

    /// Reads everything on one snapshot.
    async fn read_all<T: RowReader>(
        &self,
        id: RegionId,
        view: RegionSnapshot,
        reading: T,
        deadline: Option<Instant>,
    ) -> Result<SnapshotRows<T>, RequestFailure> {
        let read = self.read_scheduler().read(SnapshotRead { view, reading: Some(reading) });
        self.timed_read(id, read, deadline).await
    }

    /// Waits for a read, up to the deadline.
    async fn timed_read<T: RowReader>(
        &self,
        id: RegionId,
        read: impl Future<Output = Option<Result<SnapshotRows<T>, ReadError>>>,
        deadline: Option<Instant>,
    ) -> Result<SnapshotRows<T>, RequestFailure> {
        let began = Instant::now();
        // A read that still waits for its turn by then is not begun.
        let read = match deadline {
            Some(deadline) => {
                timeout_at(deadline, read).await.map_err(|_| RequestFailure::late())?
            }
            None => read.await,
        };
        let Some(answer) = read else {
            return Err(RequestFailure::from_router(id, RequestError::Stopping));
        };
        let rows = answer.map_err(|error| self.read_failed(id, error))?;
        self.router().latencies().row_read.observe(began.elapsed());
        Ok(rows)
    }

    /// A snapshot of the region that holds every write acknowledged before the request came.
    pub(super) async fn snapshot(
        &self,
        checked: RequestContext,
    ) -> Result<RegionSnapshot, RequestFailure> {
        let RequestContext { family, guard, follower, rerouting, time_limit, .. } = checked;
        let id = checked.descriptor.id;
        let reading = self.router().read_by_keys(id, guard, follower, rerouting);
        let snapshot = match time_limit {
            Some(time_limit) => {
                timeout(time_limit, reading).await.map_err(|_| RequestFailure::late())?
            }
            None => reading.await,
        };
        let snapshot = snapshot.map_err(|error| match error {
            RegionReadError::Request(error) => RequestFailure::from_router(id, error),
            RegionReadError::Snapshot(error) => self.read_failed(id, error),
        })?;
        snapshot.in_family(family).map_err(|error| self.read_failed(id, error))
    }

    /// As [`read_failed`].
    pub(super) fn read_failed(&self, id: RegionId, error: ReadError) -> RequestFailure {
        read_failed(self.router(), id, error)
    }
}

/// Maps a read that the store could not carry out. An error of the disk may pass, so it is counted
/// and logged, and the client gets it, too.
fn read_failed(router: &Router, id: RegionId, error: ReadError) -> RequestFailure {
    router.read_failed(id, &error);
    RequestFailure::from_read(id, error)
}

/// A read of many rows.
pub(super) trait RowReader: Send + 'static {
    /// The result.
    type Output: Send + 'static;
    /// Reads about [`PART_BYTES`] more. True when all is read.
    fn read_on(&mut self, view: &RegionSnapshot) -> Result<bool, ReadError>;
    /// Takes what it has made so far, and leaves nothing of it behind, so that the read can begin
    /// again.
    fn take(&mut self) -> Self::Output;
}

/// A read and what it looks at.
struct SnapshotRead<T> {
    view: RegionSnapshot,
    /// Gone once all is read.
    reading: Option<T>,
}

/// The result of a read on one snapshot.
struct SnapshotRows<T: RowReader> {
    output: T::Output,
    /// The time that the log must name before the rows are an answer.
    unlogged_ms: Option<u64>,
    /// The read, which can begin again.
    reading: T,
}

impl<T: RowReader> ChunkedRead for SnapshotRead<T> {
    type Output = SnapshotRows<T>;
    type Error = ReadError;

    fn read_on(&mut self) -> Result<Option<SnapshotRows<T>>, ReadError> {
        let Some(mut reading) = self.reading.take() else { return Ok(None) };
        if !reading.read_on(&self.view)? {
            self.reading = Some(reading);
            return Ok(None);
        }
        let (output, unlogged_ms) = (reading.take(), self.view.unlogged_ms());
        Ok(Some(SnapshotRows { output, unlogged_ms, reading }))
    }

    fn restart(&mut self) {
        if let Some(reading) = &mut self.reading {
            reading.take();
        }
    }
}

/// A long value.
struct LongGet {
    key: Bytes,
    value: Option<Bytes>,
}

impl RowReader for LongGet {
    type Output = Option<Bytes>;

    fn read_on(&mut self, view: &RegionSnapshot) -> Result<bool, ReadError> {
        self.value = view.get(&self.key)?;
        Ok(true)
    }

    fn take(&mut self) -> Option<Bytes> {
        self.value.take()
    }
}

/// The values of many keys.
struct BatchGet {
    keys: Vec<Bytes>,
    next: usize,
    /// Keys to be read together.
    at_once: usize,
    rows: RowEncoder,
    bytes: u64,
    bytes_max: u64,
}

impl RowReader for BatchGet {
    type Output = RowEncoder;

    fn read_on(&mut self, view: &RegionSnapshot) -> Result<bool, ReadError> {
        let mut part_bytes = 0;
        while part_bytes < PART_BYTES {
            let left = self.keys.len() - self.next;
            if left == 0 {
                return Ok(true);
            }
            part_bytes += self.read_keys(view, left.min(self.at_once))?;
        }
        Ok(false)
    }

    fn take(&mut self) -> RowEncoder {
        (self.next, self.bytes) = (0, 0);
        std::mem::take(&mut self.rows)
    }
}

impl BatchGet {
    /// Reads the next `count` keys together. The lengths of values are unknown before, so values
    /// beyond the bytes of a part are left for the next call: memory is bounded. Returns what the
    /// keys that were read count for.
    fn read_keys(&mut self, view: &RegionSnapshot, count: usize) -> Result<u64, ReadError> {
        let mut values = vec![FoundValue::None; count];
        let mut copied_bytes = 0;
        view.multi_get(&self.keys[self.next..self.next + count], |at, value| {
            copied_bytes += value.len() as u64;
            // The first value always, or there would be no progress.
            values[at] = match at == 0 || copied_bytes <= PART_BYTES {
                true => FoundValue::Copied(Bytes::copy_from_slice(value)),
                false => FoundValue::Left,
            };
        })?;
        let mut part_bytes = 0;
        self.at_once = (2 * count).min(KEYS_AT_ONCE_MAX);
        for value in values {
            let value = match value {
                FoundValue::None => None,
                FoundValue::Copied(value) => Some(value),
                FoundValue::Left => {
                    // Fewer keys at once, since what was copied behind this one is read again.
                    self.at_once = count.div_ceil(2);
                    break;
                }
            };
            let key = &self.keys[self.next];
            self.next += 1;
            part_bytes += GET_BYTES;
            let Some(value) = value else { continue };
            let bytes = (key.len() + value.len()) as u64;
            part_bytes += bytes;
            self.bytes += bytes;
            if self.bytes > self.bytes_max {
                return Err(ReadError::TooLarge { bytes_max: self.bytes_max });
            }
            self.rows.push(key, &value);
        }
        Ok(part_bytes)
    }
}

/// The value of one of several keys that were read together.
#[derive(Clone)]
enum FoundValue {
    None,
    Copied(Bytes),
    /// There is one, and no room for it.
    Left,
}

/// The rows of ranges, which together must fit into one answer.
struct BatchScan {
    ranges: Vec<KeyBounds>,
    options: ScanOptions,
    /// The range after the one that is being read.
    next: usize,
    /// The rest of the range that is being read.
    rest: Option<ScanRequest>,
    rows: RowEncoder,
    bytes: u64,
    bytes_max: u64,
}

impl RowReader for BatchScan {
    type Output = RowEncoder;

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
            // The bound of the whole request, and not of what was left of it.
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

    fn take(&mut self) -> RowEncoder {
        (self.next, self.rest, self.bytes) = (0, None, 0);
        std::mem::take(&mut self.rows)
    }
}

impl BatchScan {
    fn next_range(&mut self) -> Option<ScanRequest> {
        let KeyBounds { start, end } = self.ranges.get(self.next)?.clone();
        self.next += 1;
        Some(ScanRequest {
            start,
            end,
            limit: u64::from(self.options.limit),
            reverse: self.options.reverse,
            key_only: self.options.key_only,
            bytes_max: self.bytes_max - self.bytes,
        })
    }
}

#[cfg(test)]
mod tests;
