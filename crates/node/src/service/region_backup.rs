//! The rows of a region for a backup: read on a thread that may block, at a bounded rate, from a
//! view that holds every write acknowledged before the request came
//! (`docs/decisions/0055-a-backup-is-a-manifest-and-files-by-digest.md`).
//!
//! A caller that knows the rows of an earlier backup names their epoch and digest. The region is
//! then read once for its digest, and rows are sent only if it is another one.

use std::sync::Arc;
use std::time::Duration;

use flotilla_backup::{RowDigest, RowTotals, put_row};
use flotilla_proto::metapb;
use flotilla_proto::peers::backup_region_response::Part;
use flotilla_proto::peers::{
    BackupEnd, BackupPoint, BackupRefusal, BackupRegionRequest, BackupRegionResponse, BackupRows,
    RegionRows,
};
use flotilla_region::{RegionId, Reject, RequestPrecondition, SnapshotHead, Space};
use flotilla_store::{PagesError, ReadError, SnapshotReader};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use crate::descriptor_proto::region_to_proto;
use crate::driver::router::{RequestError, Router};
use crate::wall_clock;

/// Regions that are read for backups at a time: each has a thread and keeps a view.
const READS_MAX: usize = 4;
/// Bytes of rows that are read and sent at a time, unless one row alone has more.
const PART_BYTES: usize = 256 << 10;
/// Parts that wait for the caller.
const PARTS_MAX: usize = 2;
/// No rate is lower: a view that is kept for long keeps pages from being used again.
const BYTES_PER_S_MIN: u64 = 64 << 10;
/// The time whose bytes may flow at once after a rest: longer than a timer is late.
const BURST: Duration = Duration::from_millis(20);

/// The parts of an answer.
pub(crate) type BackupStream = ReceiverStream<Result<BackupRegionResponse, Status>>;

/// Reads regions for backups. Cheap to clone.
#[derive(Clone)]
pub(crate) struct RegionBackups {
    router: Router,
    reads: Arc<Semaphore>,
}

impl RegionBackups {
    /// For the regions that `router` leads to.
    pub(crate) fn new(router: Router) -> Self {
        Self { router, reads: Arc::new(Semaphore::new(READS_MAX)) }
    }

    /// Begins to read a region. Its thread ends with the stream.
    pub(crate) async fn open(&self, request: BackupRegionRequest) -> Result<BackupStream, Status> {
        let (parts, stream) = mpsc::channel(PARTS_MAX);
        match self.grant(&request).await? {
            Ok(place) => {
                let (router, runtime) = (self.router.clone(), Handle::current());
                spawn_blocking(move || {
                    let pace = ReadPace::new(request.bytes_per_s);
                    RegionRead { router, runtime, parts, pace, _place: place }.run(&request);
                });
            }
            // There is room for one part, so this cannot fail.
            Err(refusal) => drop(parts.try_send(Ok(to_response(Part::Refusal(refusal))))),
        }
        Ok(ReceiverStream::new(stream))
    }

    /// A place for a read, once all that was acknowledged before is applied here; or a refusal.
    async fn grant(
        &self,
        request: &BackupRegionRequest,
    ) -> Result<Result<OwnedSemaphorePermit, BackupRefusal>, Status> {
        let region = RegionId(request.region_id);
        let is_raw = |descriptor: &flotilla_region::Descriptor| descriptor.space == Space::Raw;
        if !self.router.descriptor(region).is_none_or(|it| is_raw(&it)) {
            return Ok(Err(refused(format!("region {region} has no rows of clients"), false)));
        }
        let Ok(place) = Arc::clone(&self.reads).try_acquire_owned() else {
            let words = format!("{READS_MAX} other regions are being read for backups here");
            return Ok(Err(refused(words, true)));
        };
        match self.router.read(region, RequestPrecondition::default(), false).await {
            Ok(_) => Ok(Ok(place)),
            Err(RequestError::Rejected(Reject::NotLeader { .. })) => {
                Ok(Err(BackupRefusal { is_led_elsewhere: true, ..BackupRefusal::default() }))
            }
            Err(RequestError::Stopping) => Err(Status::unavailable("the store stops")),
            Err(error) => Ok(Err(refused(format!("region {region}: {error}"), true))),
        }
    }
}

fn refused(words: String, is_passing: bool) -> BackupRefusal {
    BackupRefusal { words, is_passing, is_led_elsewhere: false }
}

fn to_response(part: Part) -> BackupRegionResponse {
    BackupRegionResponse { part: Some(part) }
}

/// Why a region is read no further.
enum ReadEnd {
    /// The caller has gone.
    Gone,
    /// The caller hears this.
    Refused(BackupRefusal),
}

/// One region that is read, on its thread.
struct RegionRead {
    router: Router,
    runtime: Handle,
    parts: mpsc::Sender<Result<BackupRegionResponse, Status>>,
    pace: ReadPace,
    _place: OwnedSemaphorePermit,
}

impl RegionRead {
    fn run(mut self, request: &BackupRegionRequest) {
        if let Err(ReadEnd::Refused(refusal)) = self.answer(request) {
            // An error means that the caller has gone.
            let _ = self.parts.blocking_send(Ok(to_response(Part::Refusal(refusal))));
        }
    }

    fn answer(&mut self, request: &BackupRegionRequest) -> Result<(), ReadEnd> {
        if let Some(known) = &request.known {
            let mut reader = self.open(request)?;
            let point = reader.head().clone();
            if let Some(all) = self.is_known(&mut reader, known)? {
                self.send(Part::Point(to_point(&point)))?;
                return self.send(Part::End(BackupEnd { is_known: true, all: Some(all) }));
            }
        }
        let mut reader = self.open(request)?;
        let head = reader.head().clone();
        self.send(Part::Point(to_point(&head)))?;
        let totals = self.read(&mut reader, |read, family, rows| {
            read.send(Part::Rows(BackupRows { family, rows: rows.into() }))
        })?;
        self.send(Part::End(BackupEnd { is_known: false, all: Some(to_rows(&head, totals)) }))
    }

    /// The rows of the view as they are now, if they are the known ones.
    fn is_known(
        &mut self,
        reader: &mut SnapshotReader,
        known: &RegionRows,
    ) -> Result<Option<RegionRows>, ReadEnd> {
        let head = reader.head().clone();
        let now = |totals| to_rows(&head, totals);
        let known_totals = RowTotals { rows: known.rows, bytes: known.bytes, digest: known.digest };
        if now(known_totals).epoch != known.epoch {
            return Ok(None);
        }
        // Nothing was applied since: the rows are the same without a look.
        if (known.index, known.term) == (head.index.0, head.term.0) {
            return Ok(Some(now(known_totals)));
        }
        let totals =
            self.read(reader, |read, _, rows| read.send(Part::PassedBytes(rows.len() as u64)))?;
        Ok((totals == known_totals).then(|| now(totals)))
    }

    /// A view of the region, if it begins where the caller believes.
    fn open(&self, request: &BackupRegionRequest) -> Result<SnapshotReader, ReadEnd> {
        let region = RegionId(request.region_id);
        let reader = self.router.store().open_snapshot(region);
        let reader = reader.map_err(|error| self.failed(region, error))?;
        if reader.head().descriptor.start != request.start_key {
            let words = format!("region {region} begins with another key by now");
            return Err(ReadEnd::Refused(refused(words, true)));
        }
        Ok(reader)
    }

    /// Hands all rows to `take`, at the rate.
    fn read(
        &mut self,
        reader: &mut SnapshotReader,
        mut take: impl FnMut(&mut Self, u32, Vec<u8>) -> Result<(), ReadEnd>,
    ) -> Result<RowTotals, ReadEnd> {
        let region = reader.head().descriptor.id;
        let (mut totals, mut digest) = (RowTotals::default(), RowDigest::default());
        loop {
            let chunk =
                reader.next_chunk(PART_BYTES).map_err(|error| self.failed(region, error))?;
            let Some(chunk) = chunk else {
                return Ok(RowTotals { digest: digest.sum(), ..totals });
            };
            let mut rows = Vec::with_capacity(chunk.bytes.len() + PART_BYTES / 16);
            let family = chunk.for_each_row(|row| {
                put_row(&mut rows, row.key, row.expires_ms, row.value);
                totals.rows += 1;
            });
            // The reader has just made it.
            let family = family.expect("a chunk that was just packed is whole");
            totals.bytes += rows.len() as u64;
            digest.add(family, &rows);
            self.rest(rows.len())?;
            take(self, u32::from(family.number()), rows)?;
        }
    }

    /// Waits as long as these bytes take at the rate, or until the caller has gone.
    fn rest(&mut self, bytes: usize) -> Result<(), ReadEnd> {
        let Some(until) = self.pace.take(bytes) else { return Ok(()) };
        let is_gone = self.runtime.block_on(async {
            tokio::select! {
                () = self.parts.closed() => true,
                () = sleep_until(until) => false,
            }
        });
        if is_gone { Err(ReadEnd::Gone) } else { Ok(()) }
    }

    fn send(&self, part: Part) -> Result<(), ReadEnd> {
        self.parts.blocking_send(Ok(to_response(part))).map_err(|_| ReadEnd::Gone)
    }

    fn failed(&self, region: RegionId, error: ReadError) -> ReadEnd {
        let is_passing = matches!(
            error,
            ReadError::SnapshotTooOld
                | ReadError::RegionNotFound
                | ReadError::Damaged
                | ReadError::NothingApplied
                | ReadError::Pages(PagesError::SnapshotTooOld { .. })
        );
        self.router.read_failed(region, &error);
        ReadEnd::Refused(refused(format!("region {region}: {error}"), is_passing))
    }
}

fn to_point(head: &SnapshotHead) -> BackupPoint {
    BackupPoint {
        // Replicas are of no use in a backup.
        region: Some(metapb::Region { peers: vec![], ..region_to_proto(&head.descriptor) }),
        index: head.index.0,
        term: head.term.0,
        time_ms: wall_clock::now_ms(),
    }
}

fn to_rows(head: &SnapshotHead, totals: RowTotals) -> RegionRows {
    RegionRows {
        epoch: region_to_proto(&head.descriptor).region_epoch,
        index: head.index.0,
        term: head.term.0,
        rows: totals.rows,
        bytes: totals.bytes,
        digest: totals.digest,
    }
}

/// A bound on the bytes of a second. Time that was lost is not made up for.
struct ReadPace {
    bytes_per_s: u64,
    next: Instant,
}

impl ReadPace {
    fn new(bytes_per_s: u64) -> Self {
        Self { bytes_per_s, next: Instant::now() }
    }

    /// When so many bytes may flow, if that is not now.
    fn take(&mut self, bytes: usize) -> Option<Instant> {
        if self.bytes_per_s == 0 {
            return None;
        }
        let nanos = bytes as u64 * 1_000_000_000 / self.bytes_per_s.max(BYTES_PER_S_MIN);
        let now = Instant::now();
        self.next = self.next.max(now) + Duration::from_nanos(nanos);
        (self.next > now + BURST).then_some(self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_region_is_read_at_the_rate() {
        let (mut pace, start) = (ReadPace::new(1 << 20), Instant::now());
        for _ in 0..16 {
            if let Some(until) = pace.take(PART_BYTES) {
                sleep_until(until).await;
            }
        }
        let took = start.elapsed();
        assert!((3900..4100).contains(&took.as_millis()), "{took:?}");
        assert!(ReadPace::new(0).take(usize::MAX).is_none(), "no bound");
        let mut slowest = ReadPace::new(1);
        let until = slowest.take(64 << 10).unwrap();
        assert!(until - Instant::now() <= Duration::from_millis(1100));
    }
}
