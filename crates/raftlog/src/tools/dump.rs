//! A dump of the files of a log, record by record, whether or not the log can be opened.

use crate::config::Config;
use crate::error::Error;
use crate::format::item::{self, BatchItem, DecodedItem, StoredAppend};
use crate::format::layout::{FRAME_HEADER_BYTES, SegmentHeader};
use crate::read::append_entries;
use crate::segments::directory::LogDirectory;
use crate::segments::footer;
use crate::tools::inspect;
use crate::tools::raw_scan::{RawScan, SegmentPart, ValidFrame};
use flotilla_vfs::{FileSystem, OpenMode};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

/// The options of a dump.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DumpOptions {
    /// Only records of this group.
    pub group: Option<u64>,
    /// Also each entry, behind the append that it is in. Costs decompressing them.
    pub entries: bool,
}

/// A record of a log, with its location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DumpLine<'a> {
    /// The segment.
    pub segment: u64,
    /// Where in its file it begins; of an entry, where its append does.
    pub offset: u64,
    /// The batch it is in; zero if it is in none.
    pub lsn: u64,
    /// The record.
    pub record: DumpRecord<'a>,
}

/// A record of a log. `group` is the group that it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of the calls of a batch")]
pub enum DumpRecord<'a> {
    /// A batch begins.
    Batch {
        bytes: u64,
        synced_lsn: u64,
    },
    /// Entries, and how many bytes they take as they are stored.
    Append {
        group: u64,
        first: u64,
        count: u64,
        bytes: u64,
    },
    /// Entries that a purge rewrote to here; `bytes` is the length of their whole append.
    Move {
        group: u64,
        first: u64,
        count: u64,
        bytes: u64,
    },
    /// One entry of an append or move, with its data or the reason why there is none.
    Entry {
        group: u64,
        index: u64,
        term: u64,
        kind: u8,
        data: Result<&'a [u8], &'static str>,
    },
    Truncate {
        group: u64,
        from: u64,
    },
    Compact {
        group: u64,
        first: u64,
        term_before: u64,
    },
    Put {
        group: u64,
        key: &'a [u8],
        value: &'a [u8],
    },
    Delete {
        group: u64,
        key: &'a [u8],
    },
    Remove {
        group: u64,
    },
    /// Segments below are dead.
    Discard {
        below_segment: u64,
    },
    /// A compaction below the first index of its log, which changed nothing.
    Stale,
    /// The summary of a sealed segment.
    Footer {
        bytes: u64,
        frames: u64,
        entries: u64,
    },
    /// Bytes that are no whole record.
    Damaged {
        bytes: u64,
        what: &'static str,
    },
}

/// Reads the log in `dir` from its oldest segment on and calls `take` with each record, until it
/// returns `Break`. Nothing is changed, and no other user of the log is hindered. One segment is in
/// memory at a time.
///
/// All whole records are shown, also those that a start would no longer count as part of the log.
///
/// # Errors
///
/// [`Error::NoLog`]; [`Error::NoGroup`] if no whole record of the log is of the group that alone is
/// asked for; [`Error::Io`].
pub fn dump(
    fs: Arc<dyn FileSystem>,
    dir: &Path,
    options: DumpOptions,
    take: &mut dyn FnMut(DumpLine<'_>) -> ControlFlow<()>,
) -> Result<(), Error> {
    let directory = LogDirectory::read_only(fs, dir, Config::default())?;
    let (mut bytes, mut is_group_met) = (Vec::new(), false);
    for number in directory.list()?.segments {
        let file = directory.open_file(number, OpenMode::Read)?;
        inspect::read_file(&*file, &mut bytes)?;
        let is_group_met = &mut is_group_met;
        let mut dump = Dumper { segment: number, options, is_group_met, take };
        let flow = match inspect::header_of(number, &bytes) {
            Ok(header) => dump.segment(header, &bytes),
            Err(what) => dump.emit(0, 0, DumpRecord::Damaged { bytes: bytes.len() as u64, what }),
        };
        if flow.is_break() {
            return Ok(());
        }
    }
    match options.group.filter(|_| !is_group_met) {
        Some(group) => Err(Error::NoGroup { group }),
        None => Ok(()),
    }
}

struct Dumper<'t> {
    segment: u64,
    options: DumpOptions,
    /// Whether a record of the group was met that alone is asked for.
    is_group_met: &'t mut bool,
    take: &'t mut dyn FnMut(DumpLine<'_>) -> ControlFlow<()>,
}

impl Dumper<'_> {
    fn segment(&mut self, header: SegmentHeader, bytes: &[u8]) -> ControlFlow<()> {
        let footer = footer::of_file(bytes, header);
        let end = footer.as_ref().map_or(bytes.len(), |footer| footer.end as usize);
        for piece in RawScan::new(&bytes[..end], header) {
            match piece {
                SegmentPart::Frame(frame) => self.frame(&frame)?,
                // Behind the frames of a segment that is not sealed any bytes may stand.
                SegmentPart::Damage { range, is_last: true, .. }
                    if footer.is_none() || range.is_empty() => {}
                SegmentPart::Damage { range, what, .. } => {
                    let record = DumpRecord::Damaged { bytes: range.len() as u64, what };
                    self.emit(range.start, 0, record)?;
                }
            }
        }
        let Some(footer) = footer else { return ControlFlow::Continue(()) };
        let (frames, entries) = (footer.summary.frames(), footer.summary.entries());
        let record = DumpRecord::Footer { bytes: (bytes.len() - end) as u64, frames, entries };
        self.emit(end, 0, record)
    }

    fn frame(&mut self, frame: &ValidFrame<'_>) -> ControlFlow<()> {
        let (offset, header) = (frame.offset, frame.header);
        let bytes = header.frame_bytes() as u64;
        self.emit(offset, header.lsn, DumpRecord::Batch { bytes, synced_lsn: header.synced_lsn })?;
        for (at, item) in item::items_of(frame.items) {
            match item {
                Ok(item) => self.item(offset + at, header.lsn, item)?,
                Err(what) => {
                    let bytes = (FRAME_HEADER_BYTES + frame.items.len() - at) as u64;
                    self.emit(offset + at, header.lsn, DumpRecord::Damaged { bytes, what })?;
                }
            }
        }
        ControlFlow::Continue(())
    }

    fn item(&mut self, at: usize, lsn: u64, item: DecodedItem<'_>) -> ControlFlow<()> {
        let record = match item {
            BatchItem::Append(StoredAppend { first, count, head, bytes, .. }) => {
                DumpRecord::Append { group: head.group, first, count, bytes: bytes.len() as u64 }
            }
            BatchItem::Move(StoredAppend { first, count, head, bytes, .. }) => {
                DumpRecord::Move { group: head.group, first, count, bytes: bytes.len() as u64 }
            }
            BatchItem::Truncate { group, from } => DumpRecord::Truncate { group, from },
            BatchItem::Compact { group, first, term_before } => {
                DumpRecord::Compact { group, first, term_before }
            }
            BatchItem::Put { group, key, value } => DumpRecord::Put { group, key, value },
            BatchItem::Delete { group, key } => DumpRecord::Delete { group, key },
            BatchItem::Remove { group } => DumpRecord::Remove { group },
            BatchItem::Discard { below_segment } => DumpRecord::Discard { below_segment },
            BatchItem::Stale => DumpRecord::Stale,
        };
        self.emit(at, lsn, record)?;
        match item.entries() {
            Some(appended) => self.entries(at, lsn, appended),
            None => ControlFlow::Continue(()),
        }
    }

    fn entries(&mut self, at: usize, lsn: u64, appended: &StoredAppend<'_>) -> ControlFlow<()> {
        let group = appended.head.group;
        if !self.options.entries || self.options.group.is_some_and(|wanted| wanted != group) {
            return ControlFlow::Continue(());
        }
        let mut flow = ControlFlow::Continue(());
        append_entries::each_entry(appended.bytes, &appended.head, |entry| {
            if flow.is_continue() {
                let append_entries::UnpackedEntry { index, term, kind, data } = entry;
                flow = self.emit(at, lsn, DumpRecord::Entry { group, index, term, kind, data });
            }
        });
        flow
    }

    fn emit(&mut self, offset: usize, lsn: u64, record: DumpRecord<'_>) -> ControlFlow<()> {
        let is_wanted = match (self.options.group, record.group()) {
            (None, _) => true,
            (Some(wanted), Some(group)) => wanted == group,
            // Damaged bytes may be of any group.
            (Some(_), None) => matches!(record, DumpRecord::Damaged { .. }),
        };
        if !is_wanted {
            return ControlFlow::Continue(());
        }
        *self.is_group_met |= record.group().is_some();
        (self.take)(DumpLine { segment: self.segment, offset: offset as u64, lsn, record })
    }
}

impl DumpRecord<'_> {
    /// The group that the record changes, if it is one.
    #[must_use]
    pub fn group(&self) -> Option<u64> {
        match *self {
            DumpRecord::Append { group, .. }
            | DumpRecord::Move { group, .. }
            | DumpRecord::Entry { group, .. }
            | DumpRecord::Truncate { group, .. }
            | DumpRecord::Compact { group, .. }
            | DumpRecord::Put { group, .. }
            | DumpRecord::Delete { group, .. }
            | DumpRecord::Remove { group } => Some(group),
            DumpRecord::Batch { .. }
            | DumpRecord::Discard { .. }
            | DumpRecord::Stale
            | DumpRecord::Footer { .. }
            | DumpRecord::Damaged { .. } => None,
        }
    }
}
