//! Reads whole segments one after the other, and a whole index, for tools.
//!
//! No lock that a writer needs is held meanwhile, but for the time in which the live records of all
//! groups are added up.

use crate::commit::group_commit::{GroupCommit, Log};
use crate::error::Error;
use crate::format::layout::{self, SegmentHeader};
use crate::index::segment_usage::LiveUsage;
use crate::read::block_cache::BlockCache;
use crate::read::group::Group;
use crate::recovery::report::VerifyProblem;
use crate::segments::directory::LogDirectory;
use crate::segments::segment::{Segment, Segments, read_available};
use crate::tools::verify::{self, ToolProgress, Verifier, VerifyLevel, VerifyReport};
use flotilla_vfs::{File, OpenMode};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

/// How much is read at once of a group's entries.
const READ_BYTES: u64 = 1 << 20;

/// A snapshot of a log: its segments, and the last batch in them. They stay unchanged while it is
/// held: a dead segment with a holder is not recycled.
#[derive(Debug)]
pub(crate) struct LogSnapshot {
    pub(crate) segments: Vec<Arc<Segment>>,
    pub(crate) last_lsn: u64,
    /// From this one on segments may be sealed at any time.
    unsealed_from: u64,
}

impl LogSnapshot {
    pub(crate) fn take(group_commit: &GroupCommit, segments: &Segments) -> LogSnapshot {
        group_commit.with_log(|log| LogSnapshot {
            segments: segments.all(),
            last_lsn: log.appender.last_lsn(),
            unsealed_from: log.appender.unsealed_from().unwrap_or(u64::MAX),
        })
    }

    /// Bytes of all files.
    pub(crate) fn bytes(&self) -> io::Result<u64> {
        self.segments.iter().map(|segment| segment.file.len()).sum()
    }
}

/// Reads all of a file into `bytes`. It may be cut meanwhile.
pub(crate) fn read_file(file: &dyn File, bytes: &mut Vec<u8>) -> io::Result<()> {
    bytes.clear();
    bytes.resize(file.len()? as usize, 0);
    read_available(file, bytes)
}

/// Checks the segments of a log that is open, up to its last batch of now.
pub(crate) fn verify_open(
    snapshot: &LogSnapshot,
    level: VerifyLevel,
    on_progress: &mut dyn FnMut(ToolProgress),
) -> Result<VerifyReport, Error> {
    let mut progress = ToolProgress { bytes_done: 0, bytes: snapshot.bytes()? };
    let mut verifier = Verifier::new(level, Some(snapshot.last_lsn));
    let mut bytes = Vec::new();
    for segment in &snapshot.segments {
        on_progress(progress);
        let read = read_file(&*segment.file, &mut bytes).map(|()| &bytes[..]);
        let may_change = segment.number() >= snapshot.unsealed_from;
        verify_file(&mut verifier, segment.number(), read, may_change)?;
        progress.bytes_done += bytes.len() as u64;
        progress.bytes = progress.bytes.max(progress.bytes_done);
    }
    on_progress(progress);
    Ok(verifier.finish())
}

/// Checks the files of a directory that cannot be opened as a log. Returns also the first segment
/// that is still needed: those below are leftovers of a purge.
pub(crate) fn verify_files(
    directory: &LogDirectory,
    level: VerifyLevel,
    on_progress: &mut dyn FnMut(ToolProgress),
) -> Result<(VerifyReport, u64), Error> {
    let numbers = directory.list()?.segments;
    let mut verifier = Verifier::new(level, None);
    let mut progress = ToolProgress::default();
    let mut bytes = Vec::new();
    for (done, number) in numbers.iter().enumerate() {
        on_progress(progress);
        if done > 0 && numbers[done - 1] + 1 < *number {
            verifier.gap(numbers[done - 1] + 1);
        }
        let read = directory
            .open_file(*number, OpenMode::Read)
            .and_then(|file| read_file(&*file, &mut bytes));
        verify_file(&mut verifier, *number, read.map(|()| &bytes[..]), false)?;
        progress.bytes_done += bytes.len() as u64;
        // Nearly all segments are of one length.
        progress.bytes = progress.bytes_done / (done as u64 + 1) * numbers.len() as u64;
    }
    on_progress(ToolProgress { bytes: progress.bytes_done, ..progress });
    if let (Some(first), Some(last)) = (numbers.first(), numbers.last()) {
        verifier.check_ends(*first, *last);
    }
    let discarded_below = verifier.discarded_below();
    Ok((verifier.finish(), discarded_below))
}

/// Checks a file that was read. One that is gone is an error, one that cannot be read a problem.
fn verify_file(
    verifier: &mut Verifier,
    segment: u64,
    read: io::Result<&[u8]>,
    may_change: bool,
) -> io::Result<()> {
    match read {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(error),
        Err(_) => verifier.unreadable(segment, 0, "the file cannot be read"),
        Ok(bytes) => match header_of(segment, bytes) {
            Ok(header) => verifier.segment(header, bytes, may_change),
            Err(what) => verifier.unreadable(segment, 0, what),
        },
    }
    Ok(())
}

/// The header of the segment with this number.
pub(crate) fn header_of(segment: u64, bytes: &[u8]) -> Result<SegmentHeader, &'static str> {
    if layout::other_version(bytes).is_some() {
        return Err("the segment has a format that this version does not know");
    }
    SegmentHeader::decode_named(bytes, segment)
}

/// Compares the segment usage with the live records of each group's index.
pub(crate) fn verify_usage(group_commit: &GroupCommit, report: &mut VerifyReport) {
    let wrong: Vec<u64> = group_commit.with_log(|Log { usage, .. }| {
        let mut held: BTreeMap<u64, LiveUsage> = BTreeMap::new();
        group_commit.groups.each(|_, index| {
            index.each_live(|segment, live| held.entry(segment).or_default().add(live));
        });
        let bytes: u64 = held.values().map(|live| live.bytes).sum();
        let differs = |(segment, live): (&u64, &LiveUsage)| usage.live(*segment) != *live;
        let mut wrong: Vec<u64> =
            held.iter().filter(|row| differs(*row)).map(|(segment, _)| *segment).collect();
        if wrong.is_empty() && bytes != usage.live_bytes() {
            wrong.push(0);
        }
        wrong
    });
    for segment in wrong {
        let what = "what the segment holds is not what the index says";
        verify::add_problem(report, VerifyProblem::of_segment(segment, 0, what));
    }
}

/// Reads every entry of the group as a user would.
pub(crate) fn verify_group(id: u64, group: &Group, report: &mut VerifyReport) -> Result<(), Error> {
    let mut index = group.first_index();
    while index <= group.last_index() {
        let end = group.last_index() + 1;
        match group.entries(index..end.max(index), READ_BYTES) {
            Ok(read) if read.is_empty() => return Ok(()),
            Ok(read) => index += read.len() as u64,
            // The log may be compacted while it is read.
            Err(Error::Compacted { first }) => index = first.max(index + 1),
            Err(Error::Unavailable { .. }) => {}
            Err(Error::Corrupt { .. } | Error::Io(_)) => {
                let (segment, offset, what, end) = match group.entries(index..index + 1, 0) {
                    Err(Error::Corrupt { segment, offset, what }) => {
                        (segment, offset, what, index + 1)
                    }
                    Err(Error::Io(error)) if error.kind() != io::ErrorKind::NotFound => {
                        let Some(run) = group.run_of(index) else { continue };
                        (run.segment, run.offset.into(), "an append cannot be read", run.end)
                    }
                    Ok(_) => {
                        index += 1;
                        continue;
                    }
                    // The log has changed in between, and is read again.
                    Err(Error::Compacted { .. } | Error::Unavailable { .. }) => continue,
                    Err(error) => return Err(error),
                };
                let (of_group, entries) = (Some(id), Some(index..end));
                let problem = VerifyProblem { segment, offset, what, group: of_group, entries };
                add_unless_known(report, problem);
                index = end;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn add_unless_known(report: &mut VerifyReport, problem: VerifyProblem) {
    if report.problems.iter().all(|known| !covers(known, &problem)) {
        verify::add_problem(report, problem);
    }
}

/// Whether the scan of the frames has reported the same.
fn covers(known: &VerifyProblem, problem: &VerifyProblem) -> bool {
    let holds = |range: &std::ops::Range<u64>| {
        problem.entries.as_ref().is_some_and(|entries| range.contains(&entries.start))
    };
    known.group == problem.group && known.entries.as_ref().is_some_and(holds)
}

/// A cache without memory: the one read of a tool evicts nothing.
pub(crate) fn no_cache() -> Arc<BlockCache> {
    Arc::new(BlockCache::new(0))
}
