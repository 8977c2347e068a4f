//! Purge: removes dead segments, strictly oldest first, reduces others to their tombstones, and
//! rewrites live records so that segments die.
//!
//! A tombstone (a compaction, a deletion, the removal of a group) must outlive all that it hides.
//! It does, because the records that it hides lie in the same segment or an older one, and no
//! segment goes before all older ones. So tombstones hold nothing, and of a dead segment behind a
//! live one they are all that is kept: it is reduced to them. If the log is long, the live records
//! of old segments that are mostly garbage are rewritten to its end; see
//! [`crate::purge::cleaning`], `docs/decisions/0008-one-log-oldest-first.md` and
//! `docs/decisions/0029-room-follows-live-bytes.md`.
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
use crate::purge::cleaning::{CleaningState, CleaningStep, FullSegment};
use crate::purge::rewrite::{RewriteOutcome, Rewriter};
use crate::purge::throttle::{RewriteThrottle, ThrottleLevel};
use crate::queue::write_queue::Durability;
use crate::segments::reduced;
use crate::segments::segment::Segments;
use flotilla_base::sync::atomic::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The result of a purge, and what blocks more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PurgeReport {
    /// Segments removed.
    pub segments: u64,
    /// Bytes freed: those of their files, and of segments that were reduced to their tombstones.
    pub bytes: u64,
    /// Bytes written to move live records out of old segments: the write amplification of purge.
    pub rewritten_bytes: u64,
    /// By how many bytes the live records are above [`crate::Config::purge_above_bytes`]: purge
    /// frees garbage, so only compacting groups can help. Or, if purge may not rewrite, by how many
    /// bytes the segments are above that limit and twice what is live.
    pub excess_bytes: u64,
    /// The groups that should be compacted: live records take more than
    /// [`crate::Config::purge_above_bytes`], and these groups hold most of an old segment that is
    /// mostly live. They are named once for each so many bytes that are written.
    pub groups_to_compact: Vec<u64>,
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
    throttle: RewriteThrottle,
    /// How much the log had written when groups were last asked to compact.
    asked_at_bytes: Option<u64>,
}

/// The log that is purged.
#[derive(Clone, Copy, Debug)]
struct PurgeContext<'a> {
    group_commit: &'a GroupCommit,
    segments: &'a Segments,
    /// The newest segment when the call began. Records that are written from then on are not
    /// rewritten again in this call.
    newest: u64,
}

impl Purger {
    /// Removes dead segments, and cleans old ones where that is due.
    pub(crate) fn run(
        &mut self,
        group_commit: &GroupCommit,
        segments: &Segments,
    ) -> Result<PurgeReport, Error> {
        let newest = group_commit.pool.newest();
        let log = PurgeContext { group_commit, segments, newest };
        let config = &group_commit.pool.directory().config;
        let mut purged = PurgeReport::default();
        let is_held = self.clean(log, &mut purged)?;
        log.remove_dead(&mut purged)?;
        let live_bytes = group_commit.with_log(|log| log.usage.live_bytes());
        let (limit, file_bytes) = (config.purge_above_bytes, segments.file_bytes());
        let most_bytes = limit.saturating_add(2 * live_bytes);
        purged.excess_bytes =
            live_bytes.saturating_sub(limit).max(file_bytes.saturating_sub(most_bytes));
        purged.blocking_groups = blocking_groups(group_commit, segments);
        if live_bytes > limit && is_held {
            purged.groups_to_compact = self.groups_to_compact(log, &purged.blocking_groups);
        }
        let counters = &group_commit.counters.purge;
        counters.calls.fetch_add(1, Ordering::Relaxed);
        Ok(purged)
    }

    /// Of the groups with live records in the oldest segment those that hold most of it, unless
    /// groups were asked a short while ago.
    fn groups_to_compact(&mut self, log: PurgeContext<'_>, holders: &[BlockingGroup]) -> Vec<u64> {
        let counters = &log.group_commit.counters;
        let written_bytes = counters.bytes_written.load(Ordering::Relaxed);
        let limit = log.group_commit.pool.directory().config.purge_above_bytes;
        if self.asked_at_bytes.is_some_and(|asked| written_bytes - asked < limit) {
            return Vec::new();
        }
        self.asked_at_bytes = Some(written_bytes);
        let bytes: u64 = holders.iter().map(|holder| holder.bytes).sum();
        let mean = bytes / (holders.len() as u64).max(1);
        let large = holders.iter().filter(|holder| holder.entries && holder.bytes >= mean);
        large.map(|holder| holder.group).collect()
    }

    /// Cleans segments until there is nothing to clean, the call has written enough, or there is no
    /// room for more. Returns whether the oldest segment is old and mostly live.
    fn clean(&mut self, log: PurgeContext<'_>, purged: &mut PurgeReport) -> Result<bool, Error> {
        let PurgeContext { group_commit, segments, .. } = log;
        let config = &group_commit.pool.directory().config;
        let mut budget = config.move_bytes_max;
        let mut cleaned = BTreeSet::new();
        loop {
            log.remove_dead(purged)?;
            let state = log.cleaning_state(!cleaned.is_empty(), budget > 0)?;
            let (number, priority) = match state.next_step() {
                None => return Ok(state.is_oldest_dense()),
                Some(CleaningStep::Reduce(dead)) if log.reduce(&dead, purged)? => continue,
                Some(CleaningStep::Reduce(_)) => return Ok(state.is_oldest_dense()),
                Some(CleaningStep::Rewrite { segment, is_costly: false }) => {
                    (segment, WritePriority::Rewrite)
                }
                Some(CleaningStep::Rewrite { segment, is_costly: true }) => {
                    (segment, WritePriority::CostlyRewrite)
                }
            };
            if !cleaned.insert(number) {
                // The segment should be dead. Without this check the loop would not end.
                debug_assert!(false, "segment {number} was emptied and is not dead");
                return Ok(false);
            }
            group_commit.check()?;
            let Some(segment) = segments.get(number) else { return Ok(false) };
            let groups = groups_in(group_commit, number).into_iter().map(|holder| holder.group);
            let throttle_level = ThrottleLevel::of(config, state.cleanable_bytes());
            let mut rewriter = Rewriter::new(
                group_commit,
                segment,
                priority,
                (&mut self.throttle, throttle_level),
            );
            let outcome = rewriter.run(&groups.collect::<Vec<_>>(), budget)?;
            purged.rewritten_bytes += rewriter.rewritten_bytes;
            budget = budget.saturating_sub(rewriter.rewritten_bytes);
            if outcome != RewriteOutcome::Complete {
                budget = 0;
            }
        }
    }
}

impl PurgeContext<'_> {
    /// The log, as the cleaning policy sees it.
    fn cleaning_state(
        &self,
        has_begun: bool,
        may_rewrite: bool,
    ) -> Result<CleaningState<'_>, Error> {
        let pool = &self.group_commit.pool;
        let is_short_of_room = pool.is_short_of_room();
        if is_short_of_room {
            self.seal_full()?;
        }
        let unsealed = pool.unsealed();
        let (mut full, mut file_bytes) = (Vec::new(), 0);
        for segment in self.segments.all() {
            let (number, bytes) = (segment.number(), segment.file.len()?);
            file_bytes += bytes;
            if number < self.newest {
                let (is_reduced, is_sealed) =
                    (segment.header.is_reduced(), !unsealed.contains(&number));
                let live = LiveUsage::default();
                full.push(FullSegment { number, file_bytes: bytes, live, is_reduced, is_sealed });
            }
        }
        let live_bytes = self.group_commit.with_log(|log| {
            full.iter_mut().for_each(|segment| segment.live = log.usage.live(segment.number));
            log.usage.live_bytes()
        });
        let config = &pool.directory().config;
        Ok(CleaningState {
            config,
            full,
            file_bytes,
            live_bytes,
            is_short_of_room,
            has_begun,
            may_rewrite,
        })
    }

    /// Reduces dead segments to their tombstones. False if none of them could be.
    fn reduce(&self, dead: &[u64], purged: &mut PurgeReport) -> Result<bool, Error> {
        // The records that have replaced theirs must be on disk first, and also say so after a
        // crash: a sync that has failed poisons the log, and then nothing is reduced.
        let synced_lsn = self.sync()?;
        let directory = self.group_commit.pool.directory();
        let is_dead = |log: &mut Log| dead.iter().all(|number| log.usage.is_dead(*number));
        assert!(self.group_commit.with_log(is_dead), "a dead segment has come to life: {dead:?}");
        let (mut count, mut freed_bytes) = (0, 0);
        for segment in dead.iter().filter_map(|number| self.segments.get(*number)) {
            let Some(reduced) = reduced::write(directory, &segment, synced_lsn)? else { break };
            freed_bytes += segment.file.len()?.saturating_sub(reduced.file.len()?);
            count += 1;
            self.segments.replace(Arc::new(reduced));
        }
        if count > 0 {
            directory.sync()?;
        }
        purged.bytes += freed_bytes;
        let counters = &self.group_commit.counters.purge;
        counters.reduced_segments.fetch_add(count, Ordering::Relaxed);
        counters.bytes.fetch_add(freed_bytes, Ordering::Relaxed);
        Ok(count == dead.len() as u64)
    }

    /// Makes all durable that was written before, and returns the last frame that is.
    fn sync(&self) -> Result<u64, Error> {
        loop {
            match self.group_commit.wait(&self.group_commit.sync()) {
                Ok(_) => return Ok(self.group_commit.counters.durable_lsn.load(Ordering::Acquire)),
                Err(Error::Busy { .. }) => self.group_commit.flush(),
                Err(error) => return Err(error),
            };
        }
    }

    /// Removes the oldest segments, as far as all are dead.
    fn remove_dead(self, purged: &mut PurgeReport) -> Result<(), Error> {
        let PurgeContext { group_commit, segments, .. } = self;
        let newest = group_commit.pool.newest();
        let dead = group_commit.with_log(|log| dead_segments(log, newest, segments));
        let Some(last) = dead.last() else { return Ok(()) };
        assert!(dead.windows(2).all(|pair| pair[0] + 1 == pair[1]), "not the oldest: {dead:?}");
        let mut bytes = 0;
        for segment in segments.all().into_iter().take_while(|segment| segment.number() <= *last) {
            bytes += segment.file.len()?;
        }
        self.discard(last + 1)?;
        let is_dead = |log: &mut Log| dead.iter().all(|number| log.usage.is_dead(*number));
        debug_assert!(group_commit.with_log(is_dead), "a dead segment has come to life");
        // From here on they are in no list: an error must not keep their files. A reduced one is
        // too short to be recycled.
        let take = |number| segments.remove(number).filter(|s| !s.header.is_reduced());
        let dead: Vec<_> = dead.into_iter().map(|number| (number, take(number))).collect();
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

    /// Seals full segments, so that their files are no longer than they must be.
    fn seal_full(self) -> Result<(), Error> {
        let pool = &self.group_commit.pool;
        while pool.seal_oldest().map_err(|error| self.group_commit.fail(error))? {}
        Ok(())
    }
}

/// The groups with live records in the oldest segment; none if that is the one being written.
pub(crate) fn blocking_groups(
    group_commit: &GroupCommit,
    segments: &Segments,
) -> Vec<BlockingGroup> {
    match segments.numbers()[..] {
        [oldest, _, ..] => groups_in(group_commit, oldest),
        _ => Vec::new(),
    }
}

fn groups_in(group_commit: &GroupCommit, segment: u64) -> Vec<BlockingGroup> {
    let holder = |(group, held): (u64, LiveUsage)| BlockingGroup {
        group,
        entries: held.entries > 0,
        keys: held.keys > 0,
        bytes: held.bytes,
    };
    group_commit.groups.groups_in(segment).into_iter().map(holder).collect()
}

/// The oldest segments, as far as all are dead. A dead segment stays dead: only the newest one can
/// gain anything, so that one stays even if nothing in it is needed.
fn dead_segments(log: &Log, newest: u64, segments: &Segments) -> Vec<u64> {
    let is_dead = |number: &u64| *number < newest && log.usage.is_dead(*number);
    segments.numbers().into_iter().take_while(is_dead).collect()
}
