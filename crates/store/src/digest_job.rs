//! The digest that the store computes for a comparison of replicas: one at a time, part by part,
//! of a view that was taken behind the entry that asks for it.
//!
//! A driver calls for parts as fast as it likes. An entry that comes while a digest is being
//! computed, names another version of the digest, or comes when old views hold much of the disk,
//! gets none: its replica takes no part in that comparison.

use std::collections::VecDeque;

use flotilla_pagestore::PageStore;
use flotilla_region::{Index, PeerId, RegionId};
use parking_lot::Mutex;

use crate::digest::{DIGEST_VERSION, DigestProgress, RegionDigester};
use crate::error::ReadError;
use crate::snapshot_read::StoreSnapshot;

/// Reports that wait to be taken. More than these are of comparisons that nothing waits for.
const REPORTS_MAX: usize = 64;

/// A digest that is computed, or given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DigestReport {
    /// The region.
    pub region: RegionId,
    /// The replica whose rows they are.
    pub peer: PeerId,
    /// The entry that has asked for it.
    pub index: Index,
    /// The digest; none if it was given up.
    pub digest: Option<u64>,
}

/// The result of a part of the work on digests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DigestStep {
    /// There is nothing to do.
    Idle,
    /// So many bytes were read, and there are more.
    More {
        /// How many.
        bytes: u64,
    },
    /// A digest is computed or given up. There may be another one.
    Done {
        /// Which.
        report: DigestReport,
        /// The bytes that were read at last.
        bytes: u64,
    },
}

/// An entry that asks for a digest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DigestRequest {
    pub(crate) region: RegionId,
    pub(crate) peer: PeerId,
    pub(crate) index: Index,
    pub(crate) version: u64,
}

pub(crate) struct DigestJobs {
    /// Where more is held, the page store may soon end a view.
    held_bytes_max: u64,
    state: Mutex<JobState>,
}

#[derive(Default)]
struct JobState {
    job: Option<Box<DigestJob>>,
    /// The entry whose digest is computed. The job itself is elsewhere while a part is read.
    running: Option<DigestRequest>,
    reports: VecDeque<DigestReport>,
}

struct DigestJob {
    request: DigestRequest,
    digester: RegionDigester,
}

impl DigestJobs {
    /// For a store whose old views may hold so many bytes of the disk.
    pub(crate) fn new(old_version_disk_bytes: u64) -> Self {
        Self { held_bytes_max: old_version_disk_bytes / 2, state: Mutex::default() }
    }

    /// Begins a digest of the pages as they are now: they have the entry, and nothing of the region
    /// behind it.
    pub(crate) fn begin(&self, pages: &PageStore, request: DigestRequest) -> Result<(), ReadError> {
        let mut state = self.state.lock();
        let is_known = request.version == DIGEST_VERSION;
        if state.running.is_some() || !is_known || held_bytes(pages) > self.held_bytes_max {
            state.report(request, None);
            return Ok(());
        }
        assert!(state.job.is_none(), "a digest is left behind, and nothing runs");
        let DigestRequest { region, index, .. } = request;
        let view = StoreSnapshot::new(pages.read());
        let (applied, digester) = match RegionDigester::open(&view, region) {
            // Since the entry was applied.
            Err(ReadError::Damaged) => {
                state.report(request, None);
                return Ok(());
            }
            opened => opened?,
        };
        assert_eq!(applied, index, "region {region}: a digest of another state than was asked for");
        state.job = Some(Box::new(DigestJob { request, digester }));
        state.running = Some(request);
        Ok(())
    }

    /// Does the next part.
    pub(crate) fn step(&self, bytes_max: u64) -> Result<DigestStep, (RegionId, ReadError)> {
        let mut state = self.state.lock();
        if let Some(report) = state.reports.pop_front() {
            return Ok(DigestStep::Done { report, bytes: 0 });
        }
        let Some(mut job) = state.job.take() else { return Ok(DigestStep::Idle) };
        assert!(state.running.is_some(), "a digest that was given up is left behind");
        // Reading takes long, and applying must not wait for it.
        drop(state);
        let advanced = job.digester.advance(bytes_max);
        let mut state = self.state.lock();
        // It may have been given up meanwhile.
        if state.running.is_none_or(|running| running.index != job.request.index) {
            return Ok(DigestStep::More { bytes: 0 });
        }
        let (bytes, digest) = match advanced {
            Ok(DigestProgress::More { bytes }) => {
                state.job = Some(job);
                return Ok(DigestStep::More { bytes });
            }
            Ok(DigestProgress::Done { bytes, digest }) => (bytes, Some(digest)),
            Err(ReadError::SnapshotTooOld) => (0, None),
            Err(error) => {
                state.running = None;
                state.report(job.request, None);
                return Err((job.request.region, error));
            }
        };
        state.running = None;
        let DigestRequest { region, peer, index, .. } = job.request;
        Ok(DigestStep::Done { report: DigestReport { region, peer, index, digest }, bytes })
    }

    /// The region whose digest is computed.
    pub(crate) fn running(&self) -> Option<RegionId> {
        self.state.lock().running.map(|request| request.region)
    }

    /// Drops the digest that is computed, and its view with it.
    pub(crate) fn give_up(&self) {
        let mut state = self.state.lock();
        state.job = None;
        if let Some(request) = state.running.take() {
            state.report(request, None);
        }
    }
}

/// Bytes of the disk that old views hold.
fn held_bytes(pages: &PageStore) -> u64 {
    let stats = pages.stats();
    stats.pending_bytes + stats.spill.file_bytes
}

impl JobState {
    fn report(&mut self, request: DigestRequest, digest: Option<u64>) {
        let DigestRequest { region, peer, index, .. } = request;
        self.reports.push_back(DigestReport { region, peer, index, digest });
        if self.reports.len() > REPORTS_MAX {
            self.reports.pop_front();
        }
    }
}
