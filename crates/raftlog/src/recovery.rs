//! From files back to indexes.
//!
//! All segments are read in order and their frames applied as they once were. Nothing on disk is
//! changed before all of it was found good; then the torn tail is cut off, and what is left is made
//! durable, since whoever opens the log takes what it reads for written.

use crate::batch::Change;
use crate::directory::Directory;
use crate::error::Error;
use crate::format::{FRAME_HEADER_BYTES, SEGMENT_HEADER_BYTES};
use crate::groups::{Groups, Place};
use crate::item;
use crate::ledger::Ledger;
use crate::queue::AppendQueue;
use crate::scan::{self, Scan, ScannedFrame};
use crate::segment::{Segment, Segments};
use crate::stock::{Prepared, Stock};
use std::sync::Arc;

/// What was found when the log was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Segments with batches that were read.
    pub segments: u64,
    /// Segments removed, because a purge that was cut short had left them.
    pub discarded_segments: u64,
    /// Batches in them.
    pub frames: u64,
    /// Entries in them, live or not.
    pub entries: u64,
    /// Groups that have entries or keys.
    pub groups: u64,
    /// The last batch, which is durable now as are all before it.
    pub last_lsn: u64,
    /// Bytes cut off at the end, or left alone where nothing may be changed: batches that were being written when the power or the process
    /// went, and had not been acknowledged as synced.
    pub torn_bytes: u64,
}

/// The log as it was found on disk.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) queue: AppendQueue,
    pub(crate) stock: Arc<Stock>,
    pub(crate) ledger: Ledger,
    pub(crate) groups: Groups,
    pub(crate) segments: Arc<Segments>,
    pub(crate) report: RecoveryReport,
}

/// Opens the log in the directory, or makes a new one if there is none.
pub(crate) fn recover(directory: Directory) -> Result<Recovered, Error> {
    if !directory.is_read_only {
        directory.remove_unfinished()?;
    }
    let listing = directory.list()?;
    let numbers = &listing.segments;
    // A purge that was cut short may have left any of the segments below its mark.
    let gap = numbers.windows(2).rposition(|pair| pair[0] + 1 != pair[1]);
    let (leftover, unbroken) = numbers.split_at(gap.map_or(0, |at| at + 1));
    let mut found = unbroken
        .iter()
        .map(|number| directory.open(*number).map(Found::new))
        .collect::<Result<Vec<_>, _>>()?;
    let mut replay = Replay::default();
    let end = replay.segments(&mut found)?;
    if let Some(first) = unbroken.first() {
        let last = found[..end.count].last().map_or(*first, |found| found.segment.number());
        replay.check(*first, last)?;
    }

    // All is known now, and nothing was changed.
    let later = found.split_off(end.count);
    let below = |number: &&u64| **number < replay.discarded_below;
    let dead: Vec<u64> = leftover.iter().chain(unbroken).filter(below).copied().collect();
    let spares_kept = listing.spares.len().min(directory.config.spare_segments);
    let (kept, surplus) = listing.spares.split_at(spares_kept);
    let prepared = if directory.is_read_only {
        None
    } else {
        let prepared = mend(&directory, &found, later, &end)?;
        remove(&directory, &dead, surplus)?;
        prepared
    };

    let is_read_only = directory.is_read_only;
    let last_lsn = end.next_lsn - 1;
    let newest = found
        .last()
        .map_or(unbroken.first().map_or(0, |first| first - 1), |found| found.segment.number());
    let segments = Arc::new(Segments::default());
    for found in found.into_iter().filter(|found| !dead.contains(&found.segment.number())) {
        segments.insert(Arc::new(found.segment));
    }
    replay.report.discarded_segments = if is_read_only { 0 } else { dead.len() as u64 };
    replay.report.torn_bytes = end.torn_bytes;
    replay.report.last_lsn = last_lsn;
    replay.report.groups = replay.groups.count();
    let stock = Arc::new(Stock::new(directory, newest, prepared, kept.iter().copied(), last_lsn));
    let synced_lsn = if is_read_only { end.synced_lsn.min(last_lsn) } else { last_lsn };
    let queue = AppendQueue::new(stock.clone(), segments.clone(), last_lsn, synced_lsn);
    let Replay { groups, ledger, report, .. } = replay;
    Ok(Recovered { queue, stock, ledger, groups, segments, report })
}

/// Makes the log on disk what it was found to be. Returns the segment that was made ahead.
fn mend(
    directory: &Directory,
    found: &[Found],
    mut later: Vec<Found>,
    end: &End,
) -> Result<Option<Prepared>, Error> {
    let prepared = prune(directory, &mut later, end)?;
    for found in found {
        found.make_durable(end.synced_lsn)?;
    }
    // A segment may have its name only in memory, if the process went just then.
    directory.sync()?;
    Ok(prepared)
}

/// Removes what a purge has left over.
fn remove(directory: &Directory, dead: &[u64], surplus: &[u64]) -> Result<(), Error> {
    for number in dead {
        directory.remove(*number)?;
    }
    for number in surplus {
        directory.remove_spare(*number)?;
    }
    if !dead.is_empty() || !surplus.is_empty() {
        directory.sync()?;
    }
    Ok(())
}

/// Removes what torn flushes have left in the segments behind the log's end, newest first so that no
/// gap ever shows. The one behind the end is kept for later if it was only made ahead.
fn prune(
    directory: &Directory,
    later: &mut Vec<Found>,
    end: &End,
) -> Result<Option<Prepared>, Error> {
    while let Some(last) = later.last() {
        if later.len() == 1 && !end.is_next_touched {
            let file_bytes = last.segment.file.len()?;
            let segment = later.remove(0).segment;
            return Ok(Some(Prepared { segment, file_bytes }));
        }
        directory.remove(last.segment.number())?;
        directory.sync()?;
        later.pop();
    }
    Ok(None)
}

/// A segment that is on disk.
#[derive(Debug)]
struct Found {
    segment: Segment,
    /// Where its last frame ends, and the frame that comes next.
    end: u64,
    next_lsn: u64,
}

impl Found {
    fn new(segment: Segment) -> Found {
        Found { segment, end: 0, next_lsn: 0 }
    }

    fn read(&self) -> Result<Vec<u8>, Error> {
        Ok(self.segment.read(0, self.segment.file.len()? as usize)?)
    }

    fn corrupt(&self, offset: usize, what: &'static str) -> Error {
        Error::Corrupt { segment: self.segment.number(), offset: offset as u64, what }
    }

    /// Cuts off what is not of the log, and makes the rest durable if it is not known to be.
    fn make_durable(&self, synced_lsn: u64) -> Result<(), Error> {
        if self.segment.file.len()? > self.end {
            self.segment.cut(self.end)?;
        } else if self.next_lsn - 1 > synced_lsn {
            self.segment.file.sync()?;
        }
        Ok(())
    }
}

/// Where the log ends.
#[derive(Debug, Default)]
struct End {
    /// How many segments have frames that are of the log.
    count: usize,
    next_lsn: u64,
    /// Up to here the frames say themselves that they are synced.
    synced_lsn: u64,
    torn_bytes: u64,
    /// The segment behind the end has had frames, which are lost.
    is_next_touched: bool,
}

/// What has become of the segments that were read.
#[derive(Default)]
struct Replay {
    groups: Groups,
    ledger: Ledger,
    discarded_below: u64,
    report: RecoveryReport,
}

impl Replay {
    /// Applies all frames of the log, and finds out where it ends and whether it may end there.
    fn segments(&mut self, found: &mut [Found]) -> Result<End, Error> {
        let mut end = End { next_lsn: 1, ..End::default() };
        let mut next_bytes = found.first().map(Found::read).transpose()?;
        while let Some(bytes) = next_bytes.take() {
            let (now, later) = found[end.count..].split_first_mut().expect("it was read");
            let (number, header) = (now.segment.number(), now.segment.header);
            if end.count == 0 && number > 1 {
                // What came before is purged, which was made known in a batch that was synced, here
                // or further on. So this segment's beginning was synced as well.
                let first = scan::first_lsn(&bytes, header);
                end.next_lsn = first.ok_or_else(|| now.corrupt(0, "the first frame is damaged"))?;
            }
            let mut scan = Scan::new(&bytes, header, end.next_lsn);
            while let Some(frame) = scan.step() {
                let at = frame.offset;
                self.frame(number, &frame).map_err(|what| now.corrupt(at, what))?;
            }
            (now.end, now.next_lsn) = (scan.offset() as u64, scan.next_lsn());
            end.synced_lsn = end.synced_lsn.max(scan.synced_lsn());
            let has_frames = scan.next_lsn() > end.next_lsn;
            if !has_frames && end.count == 0 && number > 1 {
                return Err(now.corrupt(scan.offset(), "the first frame is damaged"));
            }
            end.next_lsn = scan.next_lsn();
            if has_frames {
                end.count += 1;
                self.report.segments += 1;
                next_bytes = later.first().map(Found::read).transpose()?;
            }
            let next = later.first().zip(next_bytes.as_deref());
            let goes_on = next.is_some_and(|(next, bytes)| {
                has_frames && scan::first_lsn(bytes, next.segment.header) == Some(end.next_lsn)
            });
            if !goes_on {
                let torn = scan.torn_bytes().map_err(|what| now.corrupt(scan.offset(), what))?;
                end.torn_bytes = torn as u64;
                end.is_next_touched = !has_frames && torn > 0;
                judge_later(&mut end, now, scan.offset(), later, next_bytes)?;
                return Ok(end);
            }
        }
        Ok(end)
    }

    fn frame(&mut self, segment: u64, frame: &ScannedFrame<'_>) -> Result<(), &'static str> {
        let offset = u32::try_from(frame.offset).map_err(|_| "a frame begins beyond 4 GiB")?;
        let place = Place { segment, offset, lsn: frame.lsn };
        let mut input = frame.items;
        while !input.is_empty() {
            let at = FRAME_HEADER_BYTES + frame.items.len() - input.len();
            let change = Change::of(item::take_item(&mut input)?, at as u32);
            match &change {
                Change::Append(append) => self.report.entries += append.count,
                Change::Discard { below_segment } => {
                    self.discarded_below = self.discarded_below.max(*below_segment);
                }
                _ => {}
            }
            self.groups.apply(&change, place, &mut self.ledger)?;
        }
        self.report.frames += 1;
        Ok(())
    }

    /// What can be told only at the end.
    fn check(&mut self, first: u64, last: u64) -> Result<(), Error> {
        let corrupt = |segment, what| Err(Error::Corrupt { segment, offset: 0, what });
        if first > self.discarded_below.max(1) {
            return corrupt(first - 1, "the segment is missing");
        }
        if self.discarded_below > last {
            return corrupt(last + 1, "the segment is missing");
        }
        let Replay { groups, ledger, .. } = self;
        groups.settle_replayed(ledger).or_else(|what| corrupt(last, what))?;
        let is_live = |number: &u64| !self.ledger.is_dead(*number);
        match (first..self.discarded_below).find(is_live) {
            Some(live) => corrupt(live, "a segment that was given up still holds something"),
            None => Ok(()),
        }
    }
}

/// Looks at the segments behind the one in which the log ends, at `offset`: whether they may be
/// there, and how much of torn flushes is in them. `bytes` are those of the first, if it was read.
fn judge_later(
    end: &mut End,
    ended: &Found,
    offset: usize,
    later: &[Found],
    mut bytes: Option<Vec<u8>>,
) -> Result<(), Error> {
    let begin = SEGMENT_HEADER_BYTES;
    // Where nothing is left behind the last frame, the next was the first of the next file.
    let (damaged, offset) = match later.first() {
        Some(next) if end.torn_bytes == 0 => (next, begin),
        _ => (ended, offset),
    };
    for (at, found) in later.iter().enumerate() {
        let bytes = match bytes.take() {
            Some(bytes) => bytes,
            None => found.read()?,
        };
        let header = found.segment.header;
        if scan::vouches_for(&bytes, header, end.next_lsn) {
            return Err(damaged.corrupt(offset, "a frame that was synced is damaged"));
        }
        match scan::first_lsn(&bytes, header) {
            Some(lsn) if lsn < end.next_lsn => {
                return Err(found.corrupt(begin, "a frame is not the one that belongs here"));
            }
            // Those before it, at the end of the segment before, are lost, and were not synced.
            Some(_) => {}
            None if at == 0 => {
                let scan = Scan::new(&bytes, header, end.next_lsn);
                scan.torn_bytes().map_err(|what| found.corrupt(begin, what))?;
            }
            None => {}
        }
        let touched = scan::touched_bytes(&bytes, header) as u64;
        end.torn_bytes += touched;
        end.is_next_touched |= touched > 0;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Append;

    /// A replay of a compaction to 50 and an append at 101, in segments 4 and 5.
    fn with_a_hole() -> Replay {
        let mut replay = Replay { discarded_below: 4, ..Replay::default() };
        let compact = Change::Compact { group: 1, first: 50, term_before: 1 };
        let append = Append {
            group: 1,
            first: 101,
            count: 1,
            terms: vec![(1, 1)].into(),
            offset: 40,
            item_bytes: 20,
        };
        for (segment, change) in [(4, compact), (5, Change::Append(append))] {
            let place = Place { segment, offset: 64, lsn: 1 };
            replay.groups.apply(&change, place, &mut replay.ledger).expect("it fits");
        }
        replay
    }

    #[test]
    fn a_hole_that_nothing_covers_never_held_anything() {
        let mut replay = with_a_hole();
        assert!(replay.check(4, 5).is_ok());
        replay.groups.each(|_, index| assert_eq!(index.first(), 101));
    }

    #[test]
    fn discarded_segments_must_be_dead_and_the_others_there() {
        let mut replay = Replay { discarded_below: 4, ..Replay::default() };
        assert!(replay.check(4, 5).is_ok() && replay.check(2, 5).is_ok());
        assert!(matches!(replay.check(5, 6), Err(Error::Corrupt { segment: 4, .. })));
        assert!(matches!(replay.check(2, 2), Err(Error::Corrupt { segment: 3, .. })));
        let put = Change::Put { group: 1, key: "k".into(), value: "v".into() };
        let place = Place { segment: 3, offset: 64, lsn: 1 };
        replay.groups.apply(&put, place, &mut replay.ledger).expect("it fits");
        assert!(matches!(replay.check(2, 5), Err(Error::Corrupt { segment: 3, .. })));
        let mut fresh = Replay::default();
        assert!(fresh.check(1, 1).is_ok());
        fresh.discarded_below = 0;
        assert!(matches!(fresh.check(2, 2), Err(Error::Corrupt { segment: 1, .. })));
    }
}
