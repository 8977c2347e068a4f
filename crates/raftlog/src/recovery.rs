//! From files back to indexes.
//!
//! All segments are read in order and their frames applied as they once were. Nothing on disk is
//! changed before all of it was found good; then the torn tail is cut off, and what is left is made
//! durable, since whoever opens the log takes what it reads for written.

use crate::batch::Change;
use crate::error::Error;
use crate::format::FRAME_HEADER_BYTES;
use crate::groups::{Groups, Place};
use crate::item;
use crate::ledger::Ledger;
use crate::queue::{AppendQueue, Directory, Segments};
use crate::scan::{Scan, ScannedFrame, Step};
use crate::segment::{self, Segment};
use std::sync::Arc;

/// What was found when the log was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Segments read.
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
    /// Bytes cut off at the end: batches that were being written when the power or the process
    /// went, and had not been acknowledged as synced.
    pub torn_bytes: u64,
}

/// The log as it was found on disk.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) queue: AppendQueue,
    pub(crate) ledger: Ledger,
    pub(crate) groups: Groups,
    pub(crate) segments: Arc<Segments>,
    pub(crate) report: RecoveryReport,
}

/// Opens the log in the directory, or makes a new one if there is none.
pub(crate) fn recover(directory: Directory) -> Result<Recovered, Error> {
    let (fs, path) = (directory.fs.clone(), directory.path.clone());
    Segment::remove_unfinished(&*fs, &path)?;
    let numbers = segment::list(&*fs, &path)?;
    let segments = Arc::new(Segments::default());
    let mut replay = Replay::default();
    let Some(last) = numbers.last() else {
        let queue = AppendQueue::create(directory, segments.clone())?;
        return Ok(replay.finish(queue, segments));
    };
    // A purge that was cut short may have left any of the segments below its mark.
    let gap = numbers.windows(2).rposition(|pair| pair[0] + 1 != pair[1]);
    let (leftover, unbroken) = numbers.split_at(gap.map_or(0, |at| at + 1));
    let opened = unbroken
        .iter()
        .map(|number| Segment::open(&*fs, &path, *number).map(Arc::new))
        .collect::<Result<Vec<_>, _>>()?;
    let mut end = End::default();
    for (at, segment) in opened.iter().enumerate() {
        end = replay.segment(segment, opened.get(at + 1).map(|next| &**next))?;
    }
    replay.check(unbroken[0], *last)?;

    let active = opened.last().expect("there is a last segment").clone();
    if end.torn_bytes > 0 {
        active.cut(end.offset)?;
    } else {
        active.file.sync()?;
    }
    // The last segment may have its name only in memory, if the process went just then.
    fs.sync_dir(&path)?;
    for segment in opened {
        segments.insert(segment);
    }
    let last_lsn = end.next_lsn - 1;
    let mut queue = AppendQueue::resume(directory, segments.clone(), active, end.offset, last_lsn)?;
    let below = |number: &&u64| **number < replay.discarded_below;
    let dead: Vec<u64> = leftover.iter().chain(unbroken).filter(below).copied().collect();
    if !dead.is_empty() {
        queue.remove(&dead)?;
    }
    replay.report.discarded_segments = dead.len() as u64;
    replay.report.torn_bytes = end.torn_bytes;
    replay.report.last_lsn = last_lsn;
    Ok(replay.finish(queue, segments))
}

/// Where the log ends.
#[derive(Default)]
struct End {
    offset: u64,
    next_lsn: u64,
    torn_bytes: u64,
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
    /// Applies all frames of a segment; `next` is the one behind it, if it is not the last.
    fn segment(&mut self, segment: &Segment, next: Option<&Segment>) -> Result<End, Error> {
        let number = segment.header.segment;
        let corrupt =
            |offset: usize, what| Error::Corrupt { segment: number, offset: offset as u64, what };
        let bytes = segment.read(0, segment.file.len()? as usize)?;
        let mut scan = Scan::new(&bytes, segment.header);
        self.report.segments += 1;
        let mut torn_bytes = 0;
        loop {
            match scan.step() {
                Step::Frame(frame) => {
                    let at = frame.offset;
                    self.frame(number, &frame).map_err(|what| corrupt(at, what))?;
                }
                Step::End => break,
                Step::Bad(what) if next.is_some() => return Err(corrupt(scan.offset(), what)),
                Step::Bad(_) => {
                    scan.judge_tail().map_err(|what| corrupt(scan.offset(), what))?;
                    torn_bytes = scan.rest_bytes() as u64;
                    break;
                }
            }
        }
        if let Some(next) = next {
            // It was cut behind its last frame, and synced, before the next one was begun.
            if scan.next_lsn() != next.header.first_lsn || scan.offset() != bytes.len() {
                return Err(corrupt(scan.offset(), "frames are missing at the end of the segment"));
            }
        }
        Ok(End { offset: scan.offset() as u64, next_lsn: scan.next_lsn(), torn_bytes })
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
        groups.each_mut(|index| index.settle_replayed(ledger));
        let is_live = |number: &u64| !self.ledger.is_dead(*number);
        match (first..self.discarded_below).find(is_live) {
            Some(live) => corrupt(live, "a segment that was given up still holds something"),
            None => Ok(()),
        }
    }

    fn finish(mut self, queue: AppendQueue, segments: Arc<Segments>) -> Recovered {
        self.report.groups = self.groups.count();
        let Replay { groups, ledger, report, .. } = self;
        Recovered { queue, ledger, groups, segments, report }
    }
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
            terms: vec![(1, 1)],
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
