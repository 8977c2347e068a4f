//! Salvage: writes the whole part of a damaged log to a new one.
//!
//! The files are read three times, one segment in memory at a time: first the damage and the end of
//! the log are found as by [`crate::LogEngine::verify_directory`]; then the items of each whole
//! frame are applied, in the order of the log, holes and all; then the remains of each group are
//! copied.
//!
//! A lost frame may have changed anything. The visible sign of it is a hole in a group's entries:
//! the newest part without a hole is kept, since a log with a hole is none, and a log that ends
//! before the last acknowledged entry is worse than one that begins late, for which there are
//! snapshots.

use crate::batch::frame::{Append, Change, EntryRun};
use crate::batch::log_batch::{EntryRef, LogBatch};
use crate::config::Config;
use crate::engine::LogEngine;
use crate::error::Error;
use crate::format::item;
use crate::format::layout::{FRAME_HEADER_BYTES, SegmentHeader};
use crate::index::summary::SegmentSummary;
use crate::queue::write_queue::Durability;
use crate::read::append_entries;
use crate::read::run_entries;
use crate::recovery::report::{SalvageReport, SalvagedGroup};
use crate::segments::directory::LogDirectory;
use crate::segments::footer;
use crate::tools::checkpoint;
use crate::tools::inspect;
use crate::tools::raw_scan::{RawScan, SegmentPart, ValidFrame};
use crate::tools::verify::{ToolProgress, VerifyLevel};
use bytes::Bytes;
use flotilla_vfs::{File, FileSystem, OpenMode};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// The length of one write, about.
const BATCH_BYTES: u64 = 1 << 20;
/// The most ranges of lost batches that are listed.
const RANGES_MAX: usize = 1000;

/// Writes the whole part of the log in `dir` to a new log in `to`, which must be empty or missing.
/// When this returns the new log is durable, closed, and opens. Nothing is changed in `dir`, and no
/// writer can open it meanwhile. `on_progress` is called now and then.
///
/// A group is kept with its keys and its entries, the latter from the last hole on. The deletion of
/// a key, or the removal of a group, that was in a lost batch did not take place.
///
/// # Errors
///
/// [`Error::Locked`] if the log is open for writing: what it writes meanwhile would be taken for
/// damage, and then be missing; [`Error::NoLog`]; [`Error::Invalid`] if `to` is not empty;
/// [`Error::Io`], and those of a write to the new log, which is then of no use.
pub fn salvage(
    fs: Arc<dyn FileSystem>,
    dir: &Path,
    to: &Path,
    on_progress: &mut dyn FnMut(ToolProgress),
) -> Result<SalvageReport, Error> {
    let _writers_out = LogDirectory::keep_writers_out(&*fs, dir)?;
    copy_whole(fs.clone(), dir, fs, to, Config::default(), on_progress)
}

/// As [`salvage`], with a file system and a configuration for the new log.
pub(crate) fn copy_whole(
    fs: Arc<dyn FileSystem>,
    dir: &Path,
    to_fs: Arc<dyn FileSystem>,
    to: &Path,
    config: Config,
    on_progress: &mut dyn FnMut(ToolProgress),
) -> Result<SalvageReport, Error> {
    let directory = LogDirectory::read_only(fs, dir, Config::default())?;
    checkpoint::make_empty(&*to_fs, to)?;
    let (verified, needed_from) =
        inspect::verify_files(&directory, VerifyLevel::Entries, on_progress)?;
    let mut salvage = Salvage {
        report: SalvageReport {
            frames: verified.frames,
            torn_bytes: verified.torn_bytes,
            problems: verified.problems,
            problems_left_out: verified.problems_left_out,
            ..SalvageReport::default()
        },
        groups: BTreeMap::new(),
        end_lsn: verified.last_lsn,
        next_lsn: None,
        losses: 0,
    };
    let numbers = directory.list()?.segments;
    let needed: Vec<u64> = numbers.into_iter().filter(|number| *number >= needed_from).collect();
    if needed.first().is_some_and(|first| *first <= needed_from.max(1)) {
        salvage.next_lsn = needed.first().filter(|first| **first == 1).copied();
    } else {
        // The oldest needed segment is not there.
        salvage.losses = 1;
    }
    let mut bytes = Vec::new();
    for number in &needed {
        let file = directory.open_file(*number, OpenMode::Read)?;
        match inspect::read_file(&*file, &mut bytes) {
            Ok(()) => salvage.segment(*number, &bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(error.into()),
            // The verification has reported that it cannot be read.
            Err(_) => {}
        }
    }
    // Any batch that could be written once fits.
    let config = Config { batch_bytes_max: 1 << 30, ..config };
    let (log, _) = LogEngine::start(LogDirectory::writable(to_fs, to, config)?)?;
    salvage.copy(&log, &directory, on_progress)
}

struct Salvage {
    report: SalvageReport,
    groups: BTreeMap<u64, GroupRemains>,
    /// The last batch of the log.
    end_lsn: u64,
    next_lsn: Option<u64>,
    /// How many gaps in the sequence of batches were seen so far.
    losses: u64,
}

/// The remains of a group.
#[derive(Default)]
struct GroupRemains {
    /// The first index and the term before, if the log was compacted.
    compaction: Option<(u64, u64)>,
    /// In order, without overlaps, perhaps with holes.
    runs: Vec<EntryRun>,
    keys: BTreeMap<Bytes, Bytes>,
    /// The count of losses at the first and at the last append.
    losses: Option<(u64, u64)>,
    failing: Vec<Range<u64>>,
}

impl Salvage {
    fn segment(&mut self, number: u64, bytes: &[u8]) {
        // The salt of a damaged header is right if frames match their checksums under it.
        let header =
            inspect::header_of(number, bytes).ok().or_else(|| SegmentHeader::guess(number, bytes));
        let Some(header) = header else { return };
        let footer = footer::of_file(bytes, header);
        let end = footer.as_ref().map_or(bytes.len(), |footer| footer.end as usize);
        if let Some(footer) = footer.filter(|_| header.is_reduced()) {
            return self.tombstones(footer.summary);
        }
        for piece in RawScan::new(&bytes[..end], header) {
            let SegmentPart::Frame(frame) = piece else { continue };
            if self.take_lsns(frame.header.lsn, frame.header.lsn) {
                self.frame(number, &frame);
            }
        }
    }

    /// Counts batches that follow, and those that are missing before them. False if they are not to
    /// be applied.
    fn take_lsns(&mut self, first: u64, last: u64) -> bool {
        let next = self.next_lsn.unwrap_or(first);
        if last > self.end_lsn || first < next {
            return false;
        }
        if first > next {
            self.losses += 1;
            if self.report.lost_batches.len() < RANGES_MAX {
                self.report.lost_batches.push(next..first);
            }
        }
        self.next_lsn = Some(last + 1);
        true
    }

    /// Applies a segment of which only the tombstones are left.
    fn tombstones(&mut self, summary: SegmentSummary) {
        if !self.take_lsns(summary.first_lsn(), summary.last_lsn()) {
            return;
        }
        for changes in summary.into_groups() {
            if changes.is_removed {
                self.groups.remove(&changes.group);
            }
            let Some(remains) = self.groups.get_mut(&changes.group) else { continue };
            if let Some(from) = changes.cut_from() {
                remains.cut(from);
            }
            if let Some(compaction) = changes.compaction() {
                remains.compact(compaction.first, compaction.term_before);
            }
            for (key, _) in changes.keys.iter() {
                remains.keys.remove(key);
            }
        }
    }

    fn frame(&mut self, segment: u64, frame: &ValidFrame<'_>) {
        for (at, item) in item::items_of(frame.items) {
            // The verification has reported the item that cannot be read.
            let Ok(item) = item else { return };
            let change = Change::of(item, at as u32);
            let failing = match &change {
                Change::Append(append) | Change::Move(append) => failing(frame, append),
                _ => Vec::new(),
            };
            self.change(change, segment, frame.offset as u32, failing);
        }
    }

    fn change(
        &mut self,
        change: Change,
        segment: u64,
        frame_offset: u32,
        failing: Vec<Range<u64>>,
    ) {
        let losses = self.losses;
        match change {
            Change::Append(append) => {
                let remains = self.groups.entry(append.group).or_default();
                remains.cut(append.first);
                remains.runs.push(append.run(segment, frame_offset));
                remains.failing.extend(failing);
                remains.losses = Some((remains.losses.map_or(losses, |(first, _)| first), losses));
            }
            Change::Move(append) => {
                let remains = self.groups.entry(append.group).or_default();
                remains.relocate(append.run(segment, frame_offset));
                remains.failing.extend(failing);
            }
            Change::Truncate { group, from } => {
                if let Some(remains) = self.groups.get_mut(&group) {
                    remains.cut(from);
                }
            }
            Change::Compact { group, first, term_before } => {
                self.groups.entry(group).or_default().compact(first, term_before);
            }
            Change::Put { group, key, value } => {
                self.groups.entry(group).or_default().keys.insert(key, value);
            }
            Change::Delete { group, key } => {
                if let Some(remains) = self.groups.get_mut(&group) {
                    remains.keys.remove(&key);
                }
            }
            Change::Remove { group } => {
                self.groups.remove(&group);
            }
            Change::Discard { .. } | Change::Stale => {}
        }
    }

    /// Writes the remains to the new log.
    fn copy(
        mut self,
        log: &LogEngine,
        directory: &LogDirectory,
        on_progress: &mut dyn FnMut(ToolProgress),
    ) -> Result<SalvageReport, Error> {
        let groups = std::mem::take(&mut self.groups);
        let bytes = |remains: &GroupRemains| {
            remains.runs.iter().map(|r| u64::from(r.item_bytes)).sum::<u64>()
        };
        let mut progress = ToolProgress { bytes_done: 0, bytes: groups.values().map(bytes).sum() };
        let mut open = None;
        for (id, mut remains) in groups {
            let group_bytes = bytes(&remains);
            let outcome = remains.keep_newest_part(id, self.losses > 0);
            if remains.runs.is_empty() && remains.keys.is_empty() && remains.compaction.is_none() {
                self.report.damaged_groups.extend(outcome);
                continue;
            }
            self.write_group(log, directory, id, &remains, &mut open)?;
            self.report.damaged_groups.extend(outcome);
            self.report.groups += 1;
            progress.bytes_done += group_bytes;
            on_progress(progress);
        }
        log.close()?;
        Ok(self.report)
    }

    fn write_group(
        &mut self,
        log: &LogEngine,
        directory: &LogDirectory,
        id: u64,
        remains: &GroupRemains,
        open: &mut Option<(u64, Arc<dyn File>)>,
    ) -> Result<(), Error> {
        let mut batch = LogBatch::new();
        if let Some((first, term_before)) = remains.compaction {
            batch.compact_to(id, first, term_before);
        }
        for (key, value) in &remains.keys {
            batch.put(id, key, value);
            self.report.keys += 1;
            flush(log, &mut batch, BATCH_BYTES)?;
        }
        for run in &remains.runs {
            let file = match open {
                Some((segment, file)) if *segment == run.segment => file.clone(),
                _ => directory.open_file(run.segment, OpenMode::Read)?,
            };
            *open = Some((run.segment, file.clone()));
            run_entries::each_of_run(id, &*file, run, |entry: EntryRef<'_>| {
                batch.append(id, [entry]);
                self.report.entries += 1;
                flush(log, &mut batch, BATCH_BYTES)
            })?;
        }
        flush(log, &mut batch, 0)
    }
}

/// Writes the batch if it is longer than this.
fn flush(log: &LogEngine, batch: &mut LogBatch, above_bytes: u64) -> Result<(), Error> {
    if batch.is_empty() || batch.bytes() <= above_bytes {
        return Ok(());
    }
    log.write(std::mem::take(batch), Durability::Buffered).wait().map(drop)
}

/// Entries of an append that fail although the frame is whole.
fn failing(frame: &ValidFrame<'_>, append: &Append) -> Vec<Range<u64>> {
    let begin = (append.offset as usize).checked_sub(FRAME_HEADER_BYTES);
    let item = begin.and_then(|begin| frame.items.get(begin..begin + append.item_bytes as usize));
    let Some((item, head)) =
        item.and_then(|item| Some((item, item::AppendHead::decode(item).ok()?)))
    else {
        return Vec::new();
    };
    let mut failing = Vec::new();
    append_entries::each_entry(item, &head, |entry| {
        if entry.data.is_err() {
            add_range(&mut failing, entry.index..entry.index + 1);
        }
    });
    failing
}

impl GroupRemains {
    /// Drops the entries from `from` on.
    fn cut(&mut self, from: u64) {
        self.remove(&(from..u64::MAX));
        self.failing.retain_mut(|range| {
            range.end = range.end.min(from);
            !range.is_empty()
        });
    }

    /// Drops the entries below `first`.
    fn compact(&mut self, first: u64, term_before: u64) {
        self.remove(&(0..first));
        self.compaction = Some((first, term_before));
        if self.runs.is_empty() {
            self.losses = None;
        }
    }

    /// Puts entries in the place of those with the same indexes.
    fn relocate(&mut self, run: EntryRun) {
        let at = self.remove(&(run.first..run.end));
        self.runs.insert(at, run);
        self.failing.retain(|range| range.end <= run.first || range.start >= run.end);
    }

    /// Keeps the newest part without a hole. Returns the result for the group if something is
    /// missing or may be.
    fn keep_newest_part(&mut self, id: u64, has_losses: bool) -> Option<SalvagedGroup> {
        let is_ordered = |pair: &[EntryRun]| pair[0].end <= pair[1].first;
        debug_assert!(self.runs.windows(2).all(is_ordered), "runs of group {id} overlap");
        let failing = std::mem::take(&mut self.failing);
        for range in &failing {
            self.remove(range);
        }
        let mut outcome = SalvagedGroup { group: id, ..SalvagedGroup::default() };
        let hole = self.runs.windows(2).rposition(|pair| pair[0].end < pair[1].first);
        let kept = self.runs.split_off(hole.map_or(0, |at| at + 1));
        let before = std::mem::replace(&mut self.runs, kept);
        let first = self.runs.first().map(|run| run.first);
        // If the one hole is before the compaction, that one had changed nothing.
        let begin =
            self.compaction.map(|(first, _)| first).filter(|_| has_losses || !before.is_empty());
        let mut next = begin.or(before.first().map(|run| run.first)).or(first);
        for run in &before {
            if let Some(next) = next.filter(|next| *next < run.first) {
                outcome.lost.push(next..run.first);
            }
            add_range(&mut outcome.left_behind, run.first..run.end);
            next = Some(run.end);
        }
        if let (Some(next), Some(first)) = (next, first)
            && next < first
        {
            outcome.lost.push(next..first);
        }
        if let Some(first) = first {
            self.compaction = self.compaction.filter(|(compaction, _)| *compaction == first);
        }
        let end = self.runs.last().map(|run| run.end);
        outcome
            .lost
            .extend(failing.into_iter().filter(|range| end.is_none_or(|end| range.start >= end)));
        let begin = first.or(self.compaction.map(|(first, _)| first)).unwrap_or(1);
        outcome.kept = begin..end.unwrap_or(begin);
        debug_assert!(outcome.kept.start <= outcome.kept.end, "group {id}: {outcome:?}");
        outcome.is_joined =
            outcome.lost.is_empty() && self.losses.is_some_and(|(first, last)| first < last);
        (!outcome.lost.is_empty() || outcome.is_joined).then_some(outcome)
    }

    /// Drops the entries of a range. Returns where a run of them would stand.
    fn remove(&mut self, range: &Range<u64>) -> usize {
        let from = self.runs.partition_point(|run| run.end <= range.start);
        let to = self.runs.partition_point(|run| run.first < range.end).max(from);
        let cut = self.runs[from..to].iter();
        let before = cut.clone().take(1).filter(|run| run.first < range.start);
        let behind = cut.last().filter(|run| run.end > range.end);
        let mut left: Vec<_> = before.map(|run| EntryRun { end: range.start, ..*run }).collect();
        let at = from + left.len();
        left.extend(behind.map(|run| EntryRun { first: range.end, ..*run }));
        self.runs.splice(from..to, left);
        at
    }
}

fn add_range(ranges: &mut Vec<Range<u64>>, range: Range<u64>) {
    match ranges.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => ranges.push(range),
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "lists of ranges, of which there is one")]
mod tests {
    use super::*;

    fn run(first: u64, end: u64, segment: u64) -> EntryRun {
        EntryRun { first, end, segment, offset: 64, item_bytes: 100 }
    }

    fn shape(remains: &GroupRemains) -> Vec<(u64, u64, u64)> {
        remains.runs.iter().map(|run| (run.first, run.end, run.segment)).collect()
    }

    #[test]
    fn moved_entries_take_the_place_of_those_that_were_there() {
        let mut remains =
            GroupRemains { runs: vec![run(1, 5, 1), run(5, 9, 2)], ..GroupRemains::default() };
        remains.relocate(run(3, 7, 3));
        assert_eq!(shape(&remains), [(1, 3, 1), (3, 7, 3), (7, 9, 2)]);
        remains.relocate(run(4, 5, 4));
        assert_eq!(shape(&remains), [(1, 3, 1), (3, 4, 3), (4, 5, 4), (5, 7, 3), (7, 9, 2)]);
        remains.relocate(run(1, 9, 5));
        assert_eq!(shape(&remains), [(1, 9, 5)]);
        // As it is where the segments that they came from are gone.
        remains.relocate(run(20, 22, 6));
        remains.relocate(run(11, 13, 7));
        assert_eq!(shape(&remains), [(1, 9, 5), (11, 13, 7), (20, 22, 6)]);
    }

    #[test]
    fn a_group_is_settled_at_its_last_hole() {
        let mut remains = GroupRemains {
            compaction: Some((3, 9)),
            runs: vec![run(5, 8, 1), run(8, 10, 1), run(12, 15, 2), run(15, 20, 2)],
            failing: vec![16..17],
            ..GroupRemains::default()
        };
        let outcome = remains.keep_newest_part(7, true).expect("something is lost");
        assert_eq!(shape(&remains), [(17, 20, 2)]);
        assert_eq!((outcome.kept, remains.compaction), (17..20, None));
        assert_eq!(outcome.lost, [3..5, 10..12, 16..17]);
        assert_eq!(outcome.left_behind, [5..10, 12..16]);

        let mut whole = GroupRemains {
            compaction: Some((3, 9)),
            runs: vec![run(3, 8, 1)],
            ..GroupRemains::default()
        };
        assert_eq!((whole.keep_newest_part(7, true), whole.compaction), (None, Some((3, 9))));
        let mut last = GroupRemains {
            runs: vec![run(3, 8, 1)],
            failing: vec![7..8],
            ..GroupRemains::default()
        };
        let outcome = last.keep_newest_part(7, false).expect("the last entry is lost");
        assert_eq!((outcome.kept, outcome.lost.len(), outcome.lost[0].start), (3..7, 1, 7));
    }
}
