//! Purge: removes dead segments, strictly oldest first, and rewrites the oldest ones so that they
//! die.
//!
//! A tombstone (a compaction, a deletion, the removal of a group) must outlive all that it hides.
//! It does, because the records that it hides lie in the same segment or an older one, and no
//! segment goes before all older ones. So tombstones hold nothing, and a dead segment behind a live
//! one has to wait. Lest it wait for ever, the live records of the oldest segment are rewritten to
//! the end of the log, if the log is long and that pays; see
//! `docs/decisions/0008-one-log-oldest-first.md`.
//!
//! Some dead segments are recycled, to become segments again.
//!
//! Before files go, a batch that names them is made durable: it also makes durable the batches that
//! released their entries, rewrites among them, and tells a later start that segments below are
//! missing with good reason.

use crate::batch::frame::WritePriority;
use crate::batch::log_batch::LogBatch;
use crate::commit::group_commit::{GroupCommit, Log};
use crate::error::Error;
use crate::index::segment_usage::LiveUsage;
use crate::purge::rewrite::{RewriteOutcome, Rewriter};
use crate::purge::throttle::{RewriteThrottle, ThrottleLevel};
use crate::queue::write_queue::Durability;
use crate::segments::segment::{Segment, Segments};
use flotilla_base::sync::atomic::Ordering;
use std::sync::Arc;

/// How often the blocking groups of a segment are reported, without anything of it being released,
/// until it is rewritten whatever the write amplification.
const REPORTS_MAX: u32 = 8;

/// The bytes of the headers around a record that is written alone, about.
const HEADERS_BYTES: u64 = 64;

/// The result of a purge, and what blocks more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PurgeReport {
    /// Segments removed.
    pub segments: u64,
    /// Bytes of their files.
    pub bytes: u64,
    /// Bytes written to move live records out of old segments: the write amplification of purge.
    pub rewritten_bytes: u64,
    /// By how many bytes the segments are still above [`crate::Config::purge_above_bytes`].
    pub excess_bytes: u64,
    /// The groups with live records in the oldest segment that is left, in order of their ids; none
    /// if that is the one being written.
    pub blocking_groups: Vec<BlockingGroup>,
}

/// A group with live records in the oldest segment: it blocks the purge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockingGroup {
    /// The group.
    pub group: u64,
    /// It has entries there: compacting the group releases them.
    pub entries: bool,
    /// It has keys there, or the compaction that says where its log begins: writing them again
    /// releases the old ones.
    pub keys: bool,
    /// Bytes that all these take there. An append with an entry that is needed counts whole.
    pub bytes: u64,
}

/// The state of purge between two calls.
#[derive(Debug, Default)]
pub(crate) struct Purger {
    reported: Option<ReportedSegment>,
    throttle: RewriteThrottle,
}

/// A segment that was too expensive to rewrite, so that its blocking groups were reported.
#[derive(Clone, Copy, Debug)]
struct ReportedSegment {
    segment: u64,
    /// Its live bytes at that time.
    live_bytes: u64,
    /// How often it was reported since then.
    count: u32,
}

/// The log that is purged.
#[derive(Clone, Copy, Debug)]
struct PurgeContext<'a> {
    group_commit: &'a GroupCommit,
    segments: &'a Segments,
}

impl Purger {
    /// Removes dead segments, and rewrites old ones where that is due.
    pub(crate) fn run(
        &mut self,
        group_commit: &GroupCommit,
        segments: &Segments,
    ) -> Result<PurgeReport, Error> {
        let log = PurgeContext { group_commit, segments };
        let config = &group_commit.pool.directory().config;
        let mut purged = PurgeReport::default();
        // Records that are written from now on are not rewritten again in this call.
        let newest = group_commit.pool.newest();
        let mut budget = config.move_bytes_max;
        let mut last_rewritten = None;
        loop {
            log.remove_dead(&mut purged)?;
            let Some(oldest) = log.oldest_full(newest).filter(|_| budget > 0) else { break };
            if last_rewritten.replace(oldest.number()) == Some(oldest.number()) {
                // The segment should be gone. Without this check the loop would not end.
                debug_assert!(false, "segment {} was emptied and is not dead", oldest.number());
                break;
            }
            let Some(priority) = self.rewrite_priority(log, &oldest)? else { break };
            group_commit.check()?;
            let groups = log.groups_in(oldest.number()).into_iter().map(|holder| holder.group);
            let throttle_level = ThrottleLevel::of(config, segments.file_bytes());
            let mut rewriter =
                Rewriter::new(group_commit, oldest, priority, (&mut self.throttle, throttle_level));
            let outcome = rewriter.run(&groups.collect::<Vec<_>>(), budget)?;
            purged.rewritten_bytes += rewriter.rewritten_bytes;
            budget = budget.saturating_sub(rewriter.rewritten_bytes);
            if outcome != RewriteOutcome::Complete {
                log.remove_dead(&mut purged)?;
                break;
            }
        }
        purged.excess_bytes = segments.file_bytes().saturating_sub(config.purge_above_bytes);
        if let Some((oldest, true)) = segments.oldest() {
            purged.blocking_groups = log.groups_in(oldest.number());
        }
        let counters = &group_commit.counters.purge;
        counters.calls.fetch_add(1, Ordering::Relaxed);
        Ok(purged)
    }

    /// Whether and how the oldest segment is to be rewritten: only if its space is needed, and if
    /// that pays or nothing else helps.
    fn rewrite_priority(
        &mut self,
        log: PurgeContext<'_>,
        oldest: &Segment,
    ) -> Result<Option<WritePriority>, Error> {
        let pool = &log.group_commit.pool;
        let config = &pool.directory().config;
        let is_short_of_room = pool.is_short_of_room();
        if log.segments.file_bytes() <= config.purge_above_bytes && !is_short_of_room {
            return Ok(None);
        }
        if is_short_of_room {
            log.seal_full()?;
        }
        // Whole items: what a rewrite would write, not only what is needed of them.
        let live_bytes = log.group_commit.with_log(|l| l.usage.live(oldest.number()).bytes);
        let file_bytes = oldest.file.len()?;
        if live_bytes as f64 <= config.move_live_ratio_max * file_bytes as f64 {
            return Ok(Some(WritePriority::Rewrite));
        }
        let is_in_vain = self.count_report(oldest.number(), live_bytes) > REPORTS_MAX;
        // If nearly all segments are live, rewriting them in circles frees nothing.
        let helps = (is_in_vain || is_short_of_room) && log.garbage_bytes() >= file_bytes;
        Ok(helps.then_some(WritePriority::CostlyRewrite))
    }

    /// Counts how often the blocking groups of a segment were reported in vain, this time included.
    fn count_report(&mut self, segment: u64, live_bytes: u64) -> u32 {
        let before = self.reported.filter(|n| n.segment == segment && n.live_bytes <= live_bytes);
        let count = before.map_or(1, |reported| reported.count.saturating_add(1));
        self.reported = Some(ReportedSegment { segment, live_bytes, count });
        count
    }
}

impl PurgeContext<'_> {
    /// Removes the oldest segments, as far as all are dead.
    fn remove_dead(self, purged: &mut PurgeReport) -> Result<(), Error> {
        let PurgeContext { group_commit, segments } = self;
        let newest = group_commit.pool.newest();
        let dead = group_commit.with_log(|log| dead_segments(log, newest, segments));
        let Some(last) = dead.last() else { return Ok(()) };
        assert!(dead.windows(2).all(|pair| pair[0] + 1 == pair[1]), "not the oldest: {dead:?}");
        let mut bytes = 0;
        for segment in dead.iter().filter_map(|number| segments.get(*number)) {
            bytes += segment.file.len()?;
        }
        self.discard(last + 1)?;
        let is_dead = |log: &mut Log| dead.iter().all(|number| log.usage.is_dead(*number));
        debug_assert!(group_commit.with_log(is_dead), "a dead segment has come to life");
        // From here on they are in no list: an error must not keep their files.
        let dead = dead.into_iter().map(|number| (number, segments.remove(number)));
        let dead: Vec<_> = dead.collect();
        let count = dead.len() as u64;
        group_commit.pool.discard(dead)?;
        purged.segments += count;
        purged.bytes += bytes;
        let counters = &group_commit.counters.purge;
        counters.segments.fetch_add(count, Ordering::Relaxed);
        counters.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Makes it durable that segments below are not needed.
    fn discard(self, below_segment: u64) -> Result<(), Error> {
        loop {
            let mut batch = LogBatch::new();
            batch.discard(below_segment);
            let queued = self.group_commit.write(batch, Durability::Synced);
            match self.group_commit.wait(&queued) {
                Ok(_) => return Ok(()),
                // Backpressure of other writers must not stop the purge, which relieves it.
                Err(Error::Busy { .. }) => self.group_commit.flush(),
                Err(error) => return Err(error),
            };
        }
    }

    /// The oldest segment, if it is older than `newest`.
    fn oldest_full(self, newest: u64) -> Option<Arc<Segment>> {
        let (oldest, _) = self.segments.oldest()?;
        Some(oldest).filter(|oldest| oldest.number() < newest)
    }

    /// Seals full segments, so that their files are no longer than they must be.
    fn seal_full(self) -> Result<(), Error> {
        let pool = &self.group_commit.pool;
        while pool.seal_oldest().map_err(|error| self.group_commit.fail(error))? {}
        Ok(())
    }

    /// Garbage bytes of full segments. The headers of live records do not count as garbage.
    fn garbage_bytes(self) -> u64 {
        let newest = self.group_commit.pool.newest();
        let full = self.segments.numbers().into_iter().filter(|number| *number < newest);
        let garbage = full.filter_map(|number| self.segments.get(number)).map(|segment| {
            let live = self.group_commit.with_log(|log| log.usage.live(segment.number()));
            let live_bytes = live.bytes + (live.entries + live.keys) * HEADERS_BYTES;
            segment.file.len().unwrap_or(0).saturating_sub(live_bytes)
        });
        garbage.sum()
    }

    fn groups_in(self, segment: u64) -> Vec<BlockingGroup> {
        let holder = |(group, held): (u64, LiveUsage)| BlockingGroup {
            group,
            entries: held.entries > 0,
            keys: held.keys > 0,
            bytes: held.bytes,
        };
        self.group_commit.groups.groups_in(segment).into_iter().map(holder).collect()
    }
}

/// The oldest segments, as far as all are dead. A dead segment stays dead: only the newest one can
/// gain anything, so that one stays even if nothing in it is needed.
fn dead_segments(log: &Log, newest: u64, segments: &Segments) -> Vec<u64> {
    let is_dead = |number: &u64| *number < newest && log.usage.is_dead(*number);
    segments.numbers().into_iter().take_while(is_dead).collect()
}
