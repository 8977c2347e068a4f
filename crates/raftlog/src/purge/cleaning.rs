//! The cleaning policy: which segment purge empties next, and which dead ones it reduces.
//!
//! The newest segments, up to the log's limit, are left alone: their records still die by
//! themselves. Of the older ones those are cleaned that are mostly garbage. A segment that is
//! mostly live stays where it is: moving it would free little, and what is live in it is old, so it
//! stays live. This is the segment cleaning of log-structured file systems, with a threshold of
//! utilization. `docs/decisions/0029-room-follows-live-bytes.md`
//!
//! Cleaning begins once it frees about as much as is live, and then empties several segments,
//! oldest first: records that are moved together stay together, in segments that are then mostly
//! live, and what is younger gets time to die. However late it begins, the log takes no more than
//! its limit and twice what is live.

use crate::config::Config;
use crate::index::segment_usage::LiveUsage;

/// Cleaning begins when the old segments that may be cleaned have as much garbage as this part of
/// all live bytes, and goes on until they have less than the other. The rest is younger then, and
/// more of it dies by itself.
const GARBAGE_PART_BEGIN: f64 = 1.0;
const GARBAGE_PART_END: f64 = 0.5;

/// How many reduced segments there may be: a few, and this many for each other segment. Above it
/// the oldest segment is rewritten however much of it is live, which frees the reduced ones behind
/// it; so that costs this part of the bytes that were written since, at most.
const REDUCED_MIN: usize = 64;
const REDUCED_PER_SEGMENT: usize = 8;

/// The bytes of the headers around a record that is written alone, about.
const HEADERS_BYTES: u64 = 64;

/// A full segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct FullSegment {
    pub(super) number: u64,
    pub(super) file_bytes: u64,
    pub(super) live: LiveUsage,
    pub(super) is_reduced: bool,
    /// It has a footer, so that it can be reduced.
    pub(super) is_sealed: bool,
}

/// The log, as far as the policy looks at it.
#[derive(Debug)]
pub(super) struct CleaningState<'a> {
    pub(super) config: &'a Config,
    /// Oldest first. The first one is not dead, else it would have been removed.
    pub(super) full: Vec<FullSegment>,
    /// Bytes of all files, also of the segment that is written to.
    pub(super) file_bytes: u64,
    pub(super) live_bytes: u64,
    pub(super) is_short_of_room: bool,
    /// This call has cleaned a segment already.
    pub(super) has_begun: bool,
    /// This call may write more.
    pub(super) may_rewrite: bool,
}

/// The next work of purge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CleaningStep {
    /// To rewrite the live records of a segment. The cost is above what it frees if `is_costly`.
    Rewrite { segment: u64, is_costly: bool },
    /// To reduce dead segments to their tombstones.
    Reduce(Vec<u64>),
}

impl FullSegment {
    /// Whether a rewrite frees more than it costs. Whole items count: they are what is written.
    fn is_sparse(&self, config: &Config) -> bool {
        self.live.bytes as f64 <= config.move_live_ratio_max * self.file_bytes as f64
    }

    /// The headers of live records are no garbage.
    fn garbage_bytes(&self) -> u64 {
        let headers_bytes = (self.live.entries + self.live.keys) * HEADERS_BYTES;
        self.file_bytes.saturating_sub(self.live.bytes + headers_bytes)
    }

    fn is_dead(&self) -> bool {
        self.live.is_empty()
    }
}

impl CleaningState<'_> {
    /// The next step, if there is one.
    pub(super) fn next_step(&self) -> Option<CleaningStep> {
        let oldest = self.full.first()?;
        if self.is_short_of_room {
            return self.next_step_without_room(oldest);
        }
        let old = self.old();
        if old.is_empty() {
            return None;
        }
        let dead: Vec<u64> =
            old.iter().filter(|s| s.is_dead() && s.can_be_reduced()).map(|s| s.number).collect();
        let reduce = (!dead.is_empty()).then_some(CleaningStep::Reduce(dead));
        let is_oldest_sparse = !oldest.is_dead() && oldest.is_sparse(self.config);
        if !self.may_rewrite {
            // A later call rewrites the oldest; then no tombstones are needed.
            return reduce.filter(|_| !is_oldest_sparse || self.config.move_bytes_max == 0);
        }
        let sparse = old.iter().find(|s| !s.is_dead() && s.is_sparse(self.config));
        let sparse = sparse.filter(|_| self.is_due(old)).map(|sparse| sparse.rewrite(false));
        if is_oldest_sparse || self.has_begun {
            return sparse.or(reduce.filter(|_| !is_oldest_sparse));
        }
        let costly = || self.too_many_reduced().then(|| oldest.rewrite(true));
        reduce.or(sparse).or_else(costly)
    }

    /// Bytes of the log that a purge can hope to bring below the limit: all but the old segments
    /// that are mostly live.
    pub(super) fn cleanable_bytes(&self) -> u64 {
        let dense = self.old().iter().filter(|s| !s.is_sparse(self.config));
        self.file_bytes - dense.map(|s| s.file_bytes).sum::<u64>()
    }

    /// Whether the oldest segment is an old one that stays because it is mostly live.
    pub(super) fn is_oldest_dense(&self) -> bool {
        self.old().first().is_some_and(|oldest| !oldest.is_sparse(self.config))
    }

    /// The segments behind the newest ones, which have the limit of the log together.
    fn old(&self) -> &[FullSegment] {
        let mut left = self.file_bytes;
        let is_old = |segment: &&FullSegment| {
            let is_old = left > self.config.purge_above_bytes;
            left = left.saturating_sub(segment.file_bytes);
            is_old
        };
        let count = self.full.iter().take_while(is_old).count();
        &self.full[..count]
    }

    /// Whether the old segments have so much garbage that cleaning should begin, or go on.
    fn is_due(&self, old: &[FullSegment]) -> bool {
        let sparse = old.iter().filter(|s| s.is_sparse(self.config));
        let garbage: u64 = sparse.map(FullSegment::garbage_bytes).sum();
        let part = if self.has_begun { GARBAGE_PART_END } else { GARBAGE_PART_BEGIN };
        // The more may be live in what is cleaned, the less does the caller mind the cost.
        let part = part * 2.0 * (1.0 - self.config.move_live_ratio_max);
        let bytes_max = self.config.purge_above_bytes.saturating_add(2 * self.live_bytes);
        garbage as f64 >= self.live_bytes as f64 * part || self.file_bytes > bytes_max
    }

    /// There is hardly room: everything that frees some is right.
    fn next_step_without_room(&self, oldest: &FullSegment) -> Option<CleaningStep> {
        if self.may_rewrite && oldest.is_sparse(self.config) {
            return Some(oldest.rewrite(false));
        }
        let dead = self.full.iter().filter(|s| s.is_dead() && s.can_be_reduced());
        let dead: Vec<u64> = dead.map(|s| s.number).collect();
        if !dead.is_empty() {
            return Some(CleaningStep::Reduce(dead));
        }
        if !self.may_rewrite {
            return None;
        }
        if let Some(sparse) = self.full.iter().find(|s| !s.is_dead() && s.is_sparse(self.config)) {
            return Some(sparse.rewrite(false));
        }
        // If nearly all segments are live, rewriting them in circles frees nothing.
        let garbage: u64 = self.full.iter().map(FullSegment::garbage_bytes).sum();
        (garbage >= oldest.file_bytes).then(|| oldest.rewrite(true))
    }

    fn too_many_reduced(&self) -> bool {
        let reduced = self.full.iter().filter(|s| s.is_reduced).count();
        reduced > REDUCED_MIN + REDUCED_PER_SEGMENT * (self.full.len() - reduced)
    }
}

impl FullSegment {
    fn can_be_reduced(&self) -> bool {
        self.is_sealed && !self.is_reduced
    }

    fn rewrite(&self, is_costly: bool) -> CleaningStep {
        CleaningStep::Rewrite { segment: self.number, is_costly }
    }
}
