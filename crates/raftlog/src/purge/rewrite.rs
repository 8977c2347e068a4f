//! The rewriter: copies the live records of a segment to the end of the log, so that the segment
//! can go.
//!
//! In steps: the records of each group are looked up under the lock of its index, for a short time;
//! their bytes are read under no lock; then, while no other thread writes, records that are no
//! longer live there are left out, and one frame with the rest is written. So the frame holds
//! exactly the records that are live at its place in the log, and a restart needs no more than
//! that. Appends are copied verbatim, whatever is compressed in them; readers check them by their
//! checksums.

use crate::batch::frame::{Append, Change, Frame, WritePriority};
use crate::batch::log_batch::LogBatch;
use crate::commit::group_commit::GroupCommit;
use crate::error::Error;
use crate::index::live_records::LiveRecord;
use crate::purge::throttle::{RewriteThrottle, ThrottleLevel};
use crate::segments::pool::AppendFailure;
use crate::segments::segment::Segment;
use flotilla_base::sync::atomic::Ordering;
use flotilla_vfs::View;
use std::sync::Arc;
use std::time::Instant;

/// The limits of one step, and so of the time that writers wait for it: at most this many records,
/// and no further one once they have this many bytes. A step takes more only if a single append has
/// more.
const STEP_RECORDS_MAX: usize = 256;
const STEP_BYTES_MAX: u64 = 256 << 10;
/// A step takes no more than this part of a segment, so that little stays empty at the end of one.
const STEPS_IN_SEGMENT: u64 = 16;

/// How far a segment was rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RewriteOutcome {
    Complete,
    /// The byte limit of the call is reached.
    BudgetSpent,
    /// There is no room for more.
    NoSpace,
}

/// Rewrites the live records of one segment.
#[derive(Debug)]
pub(crate) struct Rewriter<'a> {
    group_commit: &'a GroupCommit,
    segment: Arc<Segment>,
    priority: WritePriority,
    throttle: (&'a mut RewriteThrottle, ThrottleLevel),
    items: Vec<RewriteItem>,
    item_bytes: u64,
    step_bytes_max: u64,
    /// Bytes of frames that were written.
    pub(crate) rewritten_bytes: u64,
}

/// A live record of some group, and its bytes if they have to be read.
#[derive(Debug)]
struct RewriteItem {
    group: u64,
    record: LiveRecord,
    view: Option<View>,
}

impl<'a> Rewriter<'a> {
    pub(crate) fn new(
        group_commit: &'a GroupCommit,
        segment: Arc<Segment>,
        priority: WritePriority,
        throttle: (&'a mut RewriteThrottle, ThrottleLevel),
    ) -> Rewriter<'a> {
        let segment_bytes = group_commit.pool.directory().config.segment_bytes;
        let step_bytes_max = STEP_BYTES_MAX.min(segment_bytes / STEPS_IN_SEGMENT);
        let items = Vec::new();
        Rewriter {
            group_commit,
            segment,
            priority,
            throttle,
            items,
            item_bytes: 0,
            step_bytes_max,
            rewritten_bytes: 0,
        }
    }

    /// Rewrites the live records of the groups, until about `bytes_max` are written.
    ///
    /// # Errors
    ///
    /// Those of [`crate::LogEngine::purge_expired_files`].
    pub(crate) fn run(&mut self, groups: &[u64], bytes_max: u64) -> Result<RewriteOutcome, Error> {
        let segment = self.segment.number();
        let live = self.group_commit.with_log(|log| log.usage.live(segment));
        // Maps of segments are read page by page (decision 28, `docs/decisions`). Live records lie
        // all over this one: the disk fetches it in less time than each of them alone.
        self.segment.file.will_need(0..self.segment.file.len()?);
        // Each step takes a record at least, and an old segment never gains one.
        let mut steps_left = live.entries + live.keys;
        for group in groups {
            while self.collect(*group)? {
                debug_assert!(steps_left > 0, "segment {segment} has more than {live:?}");
                if self.rewritten_bytes >= bytes_max || steps_left == 0 {
                    return Ok(RewriteOutcome::BudgetSpent);
                }
                steps_left -= 1;
                if !self.step()? {
                    return Ok(RewriteOutcome::NoSpace);
                }
            }
        }
        Ok(if self.items.is_empty() || self.step()? {
            RewriteOutcome::Complete
        } else {
            RewriteOutcome::NoSpace
        })
    }

    /// Adds live records of the group, as far as they fit into this step. True if the step is full.
    fn collect(&mut self, group: u64) -> Result<bool, Error> {
        let count_max = STEP_RECORDS_MAX - self.items.len();
        let bytes_max = self.step_bytes_max.saturating_sub(self.item_bytes);
        if let Some(index) = self.group_commit.groups.get(group) {
            let records = index.read().records_in(self.segment.number(), count_max, bytes_max);
            for record in records {
                self.item_bytes += record.bytes();
                let view = match &record {
                    LiveRecord::Entries { run, .. } => {
                        let (begin, bytes) = (u64::from(run.offset), u64::from(run.item_bytes));
                        Some(self.segment.file.view(begin..begin + bytes)?)
                    }
                    LiveRecord::Compaction { .. } | LiveRecord::Key { .. } => None,
                };
                self.items.push(RewriteItem { group, record, view });
            }
        }
        Ok(self.items.len() >= STEP_RECORDS_MAX || self.item_bytes >= self.step_bytes_max)
    }

    /// Writes what was collected. False if there is no room for it.
    fn step(&mut self) -> Result<bool, Error> {
        let (begin, segment) = (Instant::now(), self.segment.number());
        let mut items = std::mem::take(&mut self.items);
        self.item_bytes = 0;
        // Encoded before writers have to wait: mostly nothing changes until the lock is held.
        let mut frame = frame_of(segment, self.priority, &items)?;
        let written = self.group_commit.with_log(|log| -> Result<_, Error> {
            if self.refresh(&mut items) {
                if items.is_empty() {
                    return Ok(Ok(None));
                }
                frame = frame_of(segment, self.priority, &items)?;
            }
            let bytes = frame.bytes.len() as u64;
            let (before, live_bytes) = (log.usage.live(segment), log.usage.live_bytes());
            let appended = self.group_commit.append(log, &mut frame);
            if appended.is_ok() {
                let after = log.usage.live(segment);
                // Without this the purge would not end.
                assert!(after.bytes < before.bytes, "a rewrite of {before:?} frees nothing");
                debug_assert_eq!(log.usage.live_bytes(), live_bytes, "a rewrite adds or loses");
            }
            Ok(appended.map(|()| Some((bytes, log.appender.last_lsn()))))
        })?;
        match written {
            Ok(None) => Ok(true),
            Ok(Some((bytes, lsn))) => {
                self.rewritten_bytes += bytes;
                let counters = &self.group_commit.counters.purge;
                counters.rewritten_bytes.fetch_add(bytes, Ordering::Relaxed);
                counters.rewritten_records.fetch_add(items.len() as u64, Ordering::Relaxed);
                let (throttle, throttle_level) = &mut self.throttle;
                throttle.pause(self.group_commit, begin, lsn, *throttle_level)?;
                Ok(true)
            }
            Err(AppendFailure::NoSpace | AppendFailure::Full(_)) => Ok(false),
            Err(failure) => Err(self.group_commit.error_of(failure)),
        }
    }

    /// Leaves out records that are no longer live where they were found. True if anything has
    /// changed.
    fn refresh(&self, items: &mut Vec<RewriteItem>) -> bool {
        let mut has_changed = false;
        let segment = self.segment.number();
        let mut at: Option<(u64, _)> = None;
        items.retain_mut(|item| {
            if at.as_ref().is_none_or(|(group, _)| *group != item.group) {
                at = Some((item.group, self.group_commit.groups.get(item.group)));
            }
            let index = at.as_ref().and_then(|(_, index)| index.as_ref());
            let left = index.and_then(|index| index.read().left_of(&item.record, segment));
            has_changed |= left.as_ref() != Some(&item.record);
            let is_left = left.is_some();
            item.record = left.unwrap_or_else(|| item.record.clone());
            is_left
        });
        has_changed
    }
}

/// A frame with all the items.
fn frame_of(segment: u64, priority: WritePriority, items: &[RewriteItem]) -> Result<Frame, Error> {
    let mut batch = LogBatch::of_rewrite(priority);
    for RewriteItem { group, record, view } in items {
        match record {
            LiveRecord::Compaction { first, term_before } => {
                batch.compact_to(*group, *first, *term_before)
            }
            LiveRecord::Key { key, value } => batch.put(*group, key, value),
            LiveRecord::Entries { run, terms } => {
                let corrupt =
                    |what| Error::Corrupt { segment, offset: u64::from(run.offset), what };
                let item = view.as_deref().unwrap_or_default();
                batch.move_entries(run.first, run.end - run.first, item).map_err(corrupt)?;
                let is_it = |append: &Append| append.group == *group && append.terms == *terms;
                if !matches!(batch.changes.last(), Some(Change::Move(append)) if is_it(append)) {
                    return Err(corrupt("an append is not the one that was written"));
                }
            }
        }
    }
    batch.seal(u64::MAX)
}
