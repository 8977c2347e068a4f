//! Recovery: rebuilds the index from the segments when a log is opened.
//!
//! Each segment yields its net change: a sealed one from its footer, another by a scan. Several
//! threads do that; then the changes are merged in order. Nothing on disk is changed before all of
//! it was found good; then the torn tail is cut off, and the rest is made durable, since the opener
//! of the log takes everything that it reads for written. Those syncs wait for the disk, so they
//! are begun, in threads of their own, before anything is read. Segments without a footer get one
//! later, like any full segment.

use crate::commit::appender::LogAppender;
use crate::config::RecoveryMode;
use crate::error::Error;
use crate::format::layout::SEGMENT_HEADER_BYTES;
use crate::index::groups::Groups;
use crate::index::segment_usage::SegmentUsage;
use crate::recovery::background_io::BackgroundIo;
use crate::recovery::frame_scanner::{self, FrameScanner};
use crate::recovery::load::{self, LoadedSegment};
use crate::recovery::report::RecoveryReport;
use crate::segments::directory::{self, LogDirectory, PreallocatedSegment, SegmentListing};
use crate::segments::pool::SegmentPool;
use crate::segments::reduced;
use crate::segments::segment::Segments;
use crate::segments::unsealed::UnsealedSegment;
use std::sync::Arc;

/// The log as it was found on disk.
#[derive(Debug)]
pub(crate) struct RecoveredLog {
    pub(crate) appender: LogAppender,
    pub(crate) pool: Arc<SegmentPool>,
    pub(crate) usage: SegmentUsage,
    pub(crate) groups: Groups,
    pub(crate) segments: Arc<Segments>,
    /// The segments without a footer of a log that is opened for reading only, in order: to seal
    /// them is the writer's business.
    pub(crate) unsealed_by_writer: Vec<u64>,
    pub(crate) report: RecoveryReport,
}

/// Opens the log in the directory, or makes a new one if there is none.
pub(crate) fn recover(directory: LogDirectory) -> Result<RecoveredLog, Error> {
    let is_read_only = directory.is_read_only;
    let listing = directory.list()?;
    let removal = if is_read_only { None } else { remove_unfinished_early(&directory)? };
    let numbers = &listing.segments;
    // A purge that was cut short may have left any of the segments that it had discarded.
    let gap = numbers.windows(2).rposition(|pair| pair[0] + 1 != pair[1]);
    let (leftover, unbroken) = numbers.split_at(gap.map_or(0, |at| at + 1));
    let mut found = load::all(&directory, unbroken)?;
    let mut replay = Replay::default();
    let end = replay.merge(&mut found)?;
    if let Some(first) = unbroken.first() {
        let last = found[..end.count].last().map_or(*first, LoadedSegment::number);
        replay.check(*first, last)?;
    }
    let is_strict = directory.config.recovery == RecoveryMode::Strict && !is_read_only;
    if end.torn_bytes > 0 && is_strict {
        let torn = found[..end.count].last().or(found.first()).expect("something is torn");
        return Err(torn.corrupt(torn.end as usize, "the end of the log is torn"));
    }

    // All is known now, and nothing was changed.
    let later = found.split_off(end.count);
    let below = |number: &&u64| **number < replay.discarded_below;
    let mut dead: Vec<u64> = leftover.iter().chain(unbroken).filter(below).copied().collect();
    let (mut preallocated, mut recycled, mut synced_lsn) = (None, Vec::new(), end.synced_lsn);
    if is_read_only {
        dead.clear();
    } else {
        preallocated = repair_tail(&directory, &mut found, later, &end)?;
        // A segment may have its name only in memory, if the process was killed just then.
        removal.map_or_else(|| directory.sync(), BackgroundIo::wait)?;
        recycled = remove_dead_files(&directory, &listing, &dead)?;
        synced_lsn = end.next_lsn - 1;
    }

    let last_lsn = end.next_lsn - 1;
    let none = unbroken.first().map_or(0, |first| first - 1);
    let newest = found.last().map_or(none, LoadedSegment::number);
    assert!(synced_lsn <= last_lsn, "{synced_lsn} is synced, the log ends at {last_lsn}");
    let segments = Arc::new(Segments::default());
    let (mut unsealed, mut unsealed_by_writer) = (Vec::new(), Vec::new());
    for found in found.into_iter().filter(|found| !dead.contains(&found.number())) {
        let (is_sealed, end) = (found.is_sealed(), found.end);
        let (segment, summary) = found.into_parts();
        let segment = Arc::new(segment);
        segments.insert(segment.clone());
        match (is_sealed, is_read_only) {
            (true, _) => {}
            (false, true) => unsealed_by_writer.push(segment.number()),
            (false, false) => unsealed.push(UnsealedSegment::new(segment, end, summary, true)),
        }
    }
    let of_log = segments.numbers();
    debug_assert!(of_log.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{of_log:?}");
    debug_assert!(of_log.last().is_none_or(|last| *last <= newest), "{of_log:?} to {newest}");
    replay.report.discarded_segments = dead.len() as u64;
    replay.report.torn_bytes = end.torn_bytes;
    replay.report.last_lsn = last_lsn;
    replay.report.groups = replay.groups.count();
    let pool =
        SegmentPool::new(directory, segments.clone(), newest, preallocated, recycled, last_lsn);
    // They get their footers like any full segment: by maintenance, or at once if too many wait.
    unsealed.into_iter().try_for_each(|unsealed| pool.add_unsealed(unsealed))?;
    let pool = Arc::new(pool);
    let appender = LogAppender::new(pool.clone(), segments.clone(), last_lsn, synced_lsn);
    let Replay { groups, usage, report, .. } = replay;
    Ok(RecoveredLog { appender, pool, usage, groups, segments, unsealed_by_writer, report })
}

/// Repairs the tail: cuts off torn bytes and syncs the rest. Returns the preallocated segment.
fn repair_tail(
    directory: &LogDirectory,
    found: &mut [LoadedSegment],
    mut later: Vec<LoadedSegment>,
    end: &LogEnd,
) -> Result<Option<PreallocatedSegment>, Error> {
    let preallocated = remove_torn_segments(directory, &mut later, end)?;
    let last = found.len().saturating_sub(1);
    for (at, found) in found.iter_mut().enumerate().filter(|(_, found)| !found.is_sealed()) {
        if at == last && end.is_last_torn {
            found.cut()?;
        } else {
            found.sync(end.synced_lsn)?;
        }
    }
    Ok(preallocated)
}

/// Removes a half-made segment, and makes the names durable, while the segments are read if there
/// is a thread for it.
fn remove_unfinished_early(directory: &LogDirectory) -> Result<Option<BackgroundIo>, Error> {
    if directory.config.recovery_threads > 1 {
        let (fs, path) = (directory.fs.clone(), directory.path.clone());
        let removal = BackgroundIo::start(move || {
            directory::remove_unfinished(&*fs, &path)?;
            reduced::remove_unfinished(&*fs, &path)?;
            fs.sync_dir(&path)
        });
        if removal.is_some() {
            return Ok(removal);
        }
    }
    directory.remove_unfinished()?;
    reduced::remove_unfinished(&*directory.fs, &directory.path)?;
    Ok(None)
}

/// Removes segments behind the log's end that hold only torn frames, newest first so that no gap
/// ever shows. The one behind the end is kept if it was only preallocated.
fn remove_torn_segments(
    directory: &LogDirectory,
    later: &mut Vec<LoadedSegment>,
    end: &LogEnd,
) -> Result<Option<PreallocatedSegment>, Error> {
    while let Some(last) = later.last() {
        if later.len() == 1 && !end.is_next_touched {
            let file_bytes = last.segment.file.len()?;
            let segment = later.remove(0).segment;
            let unwritten = file_bytes..file_bytes;
            return Ok(Some(PreallocatedSegment { segment, file_bytes, unwritten }));
        }
        directory.remove(last.number())?;
        directory.sync()?;
        later.pop();
    }
    Ok(None)
}

/// Removes dead segments and surplus recycled ones. Returns the recycled ones that are left.
fn remove_dead_files(
    directory: &LogDirectory,
    listing: &SegmentListing,
    dead: &[u64],
) -> Result<Vec<u64>, Error> {
    let wanted = listing.recycled.len().min(directory.config.spare_segments);
    let (kept, surplus) = listing.recycled.split_at(wanted);
    dead.iter().try_for_each(|number| directory.remove(*number))?;
    surplus.iter().try_for_each(|number| directory.remove_recycled(*number))?;
    if !dead.is_empty() || !surplus.is_empty() {
        directory.sync()?;
    }
    Ok(kept.to_vec())
}

/// The end of the log.
#[derive(Debug, Default)]
struct LogEnd {
    /// How many segments have frames of the log.
    count: usize,
    next_lsn: u64,
    /// All frames up to here are synced, by the evidence of the segments.
    synced_lsn: u64,
    torn_bytes: u64,
    /// Torn bytes are left behind the frames of the last segment.
    is_last_torn: bool,
    /// The segment behind the end has had frames, which are lost.
    is_next_touched: bool,
}

/// The state of the replay.
#[derive(Default)]
struct Replay {
    groups: Groups,
    usage: SegmentUsage,
    discarded_below: u64,
    report: RecoveryReport,
}

impl Replay {
    /// Merges the changes of the segments of the log, and finds out where it ends and whether it
    /// may end there.
    fn merge(&mut self, found: &mut [LoadedSegment]) -> Result<LogEnd, Error> {
        let mut end = LogEnd { next_lsn: 1, ..LogEnd::default() };
        let Some(first) = found.first() else { return Ok(end) };
        if first.number() > 1 {
            // The segments before were purged, by a batch that was synced, here or further on. So
            // the beginning of this segment was synced as well.
            let damaged = || first.corrupt(SEGMENT_HEADER_BYTES, "the first frame is damaged");
            end.next_lsn = first.first_lsn.filter(|_| first.has_frames()).ok_or_else(damaged)?;
        }
        for found in found.iter_mut() {
            if !found.has_frames() || found.first_lsn != Some(end.next_lsn) {
                break;
            }
            let summary = found.take_summary()?;
            self.report.segments += 1;
            self.report.frames += summary.frames();
            self.report.entries += summary.entries();
            self.discarded_below = self.discarded_below.max(summary.discarded_below());
            let number = found.number();
            let merged = self.groups.merge(summary, number, &mut self.usage);
            merged.map_err(|what| found.corrupt(SEGMENT_HEADER_BYTES, what))?;
            end.count += 1;
            end.next_lsn = found.next_lsn;
            end.synced_lsn = end.synced_lsn.max(found.synced_lsn);
        }
        // A frame that claims this would end the log as corrupt at the next start.
        debug_assert!(end.synced_lsn < end.next_lsn, "{end:?}");
        let is_beyond_end = |of: &&LoadedSegment| of.segment.header.reduced_at_lsn >= end.next_lsn;
        if let Some(reduced) = found.iter().find(is_beyond_end) {
            // It was reduced when the frames that replace its records were on disk.
            return Err(reduced.corrupt(SEGMENT_HEADER_BYTES, "a frame that was synced is missing"));
        }
        let (log, later) = found.split_at(end.count);
        check_tail(&mut end, log.last(), later)?;
        Ok(end)
    }

    /// Checks that need the whole log.
    fn check(&self, first: u64, last: u64) -> Result<(), Error> {
        let corrupt = |segment, what| Err(Error::Corrupt { segment, offset: 0, what });
        if first > self.discarded_below.max(1) {
            return corrupt(first - 1, "the segment is missing");
        }
        if self.discarded_below > last {
            return corrupt(last + 1, "the segment is missing");
        }
        self.groups.check_replayed().or_else(|what| corrupt(last, what))?;
        let is_live = |number: &u64| !self.usage.is_dead(*number);
        match (first..self.discarded_below).find(is_live) {
            Some(live) => corrupt(live, "a segment that was given up still holds something"),
            None => Ok(()),
        }
    }
}

/// Checks the bytes behind the last frame, in its segment and in those behind it: whether they may
/// be there, and how many are torn.
fn check_tail(
    end: &mut LogEnd,
    last: Option<&LoadedSegment>,
    later: &[LoadedSegment],
) -> Result<(), Error> {
    if let Some(last) = last.filter(|last| !last.is_sealed()) {
        end.torn_bytes = last.torn_bytes()? as u64;
        end.is_last_torn = end.torn_bytes > 0;
    }
    let begin = SEGMENT_HEADER_BYTES;
    // If nothing is left behind the last frame, the next frame was the first of the next file.
    let damaged = |damaged: &'static str| match (last, later.first()) {
        (Some(last), _) if end.is_last_torn => last.corrupt(last.end as usize, damaged),
        (_, Some(next)) => next.corrupt(begin, damaged),
        (last, None) => last.expect("something was read").corrupt(begin, damaged),
    };
    let mut touched_bytes = 0;
    for (at, found) in later.iter().enumerate() {
        let touched = found.touched_bytes()? as u64;
        // Mostly it was only preallocated, and this one scan of it is enough.
        if touched == 0 {
            continue;
        }
        let (bytes, header) = (found.view()?, found.segment.header);
        if frame_scanner::proves_synced(&bytes, header, end.next_lsn) {
            return Err(damaged("a frame that was synced is damaged"));
        }
        // Frames before its first may be lost, but not if the segment before is known to be whole.
        let may_follow = |lsn: u64| {
            lsn > end.next_lsn && (at > 0 || !last.is_some_and(LoadedSegment::is_sealed))
        };
        match frame_scanner::first_lsn(&bytes, header) {
            Some(lsn) if may_follow(lsn) => {}
            Some(lsn) if lsn != end.next_lsn || at > 0 => {
                return Err(found.corrupt(begin, "a frame is not the one that belongs here"));
            }
            None if at > 0 => {}
            _ => {
                let scan = FrameScanner::new(&bytes, header, end.next_lsn);
                scan.torn_bytes().map_err(|what| found.corrupt(begin, what))?;
            }
        }
        touched_bytes += touched;
    }
    end.torn_bytes += touched_bytes;
    end.is_next_touched = touched_bytes > 0;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::frame::{Append, Change};
    use crate::index::groups::FrameLocation;

    #[test]
    fn a_compaction_whose_entries_are_gone_is_corrupt() {
        let mut replay = Replay { discarded_below: 4, ..Replay::default() };
        let mut apply = |segment, change| {
            let place = FrameLocation { segment, offset: 64, lsn: 1 };
            replay.groups.apply(&change, place, &mut replay.usage).expect("it fits");
            replay.check(4, 5)
        };
        let compact = |first| Change::Compact { group: 1, first, term_before: 1 };
        let append = Append {
            group: 1,
            first: 101,
            count: 1,
            terms: vec![(1, 1)].into(),
            offset: 40,
            item_bytes: 20,
        };
        assert!(apply(4, compact(50)).is_ok());
        let corrupt = apply(5, Change::Append(append));
        assert!(matches!(corrupt, Err(Error::Corrupt { segment: 5, .. })), "{corrupt:?}");
        assert!(apply(5, compact(101)).is_ok(), "nobody misses them any more");
    }

    #[test]
    fn discarded_segments_must_be_dead_and_the_others_there() {
        let mut replay = Replay { discarded_below: 4, ..Replay::default() };
        assert!(replay.check(4, 5).is_ok() && replay.check(2, 5).is_ok());
        assert!(matches!(replay.check(5, 6), Err(Error::Corrupt { segment: 4, .. })));
        assert!(matches!(replay.check(2, 2), Err(Error::Corrupt { segment: 3, .. })));
        let add_unsealed = Change::Put { group: 1, key: "k".into(), value: "v".into() };
        let place = FrameLocation { segment: 3, offset: 64, lsn: 1 };
        replay.groups.apply(&add_unsealed, place, &mut replay.usage).expect("it fits");
        assert!(matches!(replay.check(2, 5), Err(Error::Corrupt { segment: 3, .. })));
        let mut fresh = Replay::default();
        assert!(fresh.check(1, 1).is_ok());
        fresh.discarded_below = 0;
        assert!(matches!(fresh.check(2, 2), Err(Error::Corrupt { segment: 1, .. })));
    }
}
