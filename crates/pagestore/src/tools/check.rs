//! Offline check of a file, byte for byte.

use std::ops::ControlFlow;

use super::file::PageFile;
use super::problem::{FilePart, FileProblem};
use super::walk::{FileWalk, ScanProgress, Visit};
use crate::error::Error;
use crate::page::layout::{HEAD_UNITS, META_UNITS, group_of, group_start};
use crate::page::unit_set::UnitSet;
use crate::page::{Span, UNIT_BYTES};
use crate::redo::{FrameReader, MalformedRecord, records};

/// Report of [`PageFile::check`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileCheckReport {
    /// The last transaction of the checkpoint.
    pub txid: u64,
    /// The last transaction of the redo area; that of the checkpoint if it has none.
    pub redo_txid: u64,
    /// Trees.
    pub tree_count: u64,
    /// Keys of all trees.
    pub key_count: u64,
    /// Pages of trees, catalogue and deferred frees.
    pub page_count: u64,
    /// Long values.
    pub extent_count: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Bytes that are free.
    pub free_bytes: u64,
    /// The problems, as far as they were named.
    pub problems: Vec<FileProblem>,
    /// How many problems more there are.
    pub problems_left_out: u64,
}

/// Summary of the redo area beyond the checkpoint.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RedoSummary {
    pub(super) frame_count: u64,
    pub(super) record_count: u64,
    pub(super) bytes: u64,
    pub(super) last_txid: u64,
}

impl PageFile {
    /// Reads everything that the last checkpoint and the redo area have and names what is wrong
    /// with it. `look` is called after each page.
    ///
    /// It proves what [`PageStore::check`](crate::PageStore::check) proves of a store that was just
    /// opened, but goes on behind what is wrong. Memory: one bit for each page of the file, one
    /// bitmap a group, and the pages of one path.
    pub fn check(&self, look: &mut dyn FnMut(ScanProgress)) -> FileCheckReport {
        let mut report = FileCheckReport { txid: self.meta.txid, ..FileCheckReport::default() };
        let mut walk = FileWalk::new(self, true, look);
        let mut count = |what: Visit<'_>| {
            match what {
                Visit::Page(..) => report.page_count += 1,
                Visit::Extent(..) => report.extent_count += 1,
                Visit::Entry(..) => report.key_count += 1,
            }
            ControlFlow::Continue(())
        };
        let trees = walk.catalogue(&mut count);
        for (name, entry) in &trees {
            let _ = walk.tree(name, *entry, &mut count);
        }
        walk.deferred_free(&mut count);
        report.tree_count = trees.len() as u64;
        if self.meta.directory.len > 0 {
            walk.note_owned(self.meta.directory.span(), FilePart::FreeSpace);
        }
        if let Some(area) = self.meta.redo {
            walk.note_owned(area.span, FilePart::Redo);
        }
        report.redo_txid = self.meta.txid;
        match self.redone() {
            Ok(redone) => report.redo_txid = redone.last_txid,
            Err(error) => {
                let page = self.meta.redo.map_or(0, |area| area.span.start);
                walk.note(&error, page, FilePart::Redo);
            }
        }
        match self.used() {
            Ok(used) => {
                let bytes = |units: u64| units * UNIT_BYTES as u64;
                let used_units = used.iter().count() as u64;
                report.used_bytes = bytes(used_units);
                let reserved = META_UNITS + HEAD_UNITS * heads(self.meta.end).count() as u64;
                report.free_bytes =
                    bytes(self.meta.end.saturating_sub(used_units).saturating_sub(reserved));
                self.compare(&used, &mut walk);
            }
            Err(error) => walk.note(&error, self.meta.directory.start, FilePart::FreeSpace),
        }
        report.problems_left_out = walk.problems.left_out;
        report.problems = walk.problems.named;
        report.problems.sort_by_key(|problem| problem.page);
        report
    }

    /// Compares what is in use by the bitmaps with what was reached.
    fn compare(&self, used: &UnitSet, walk: &mut FileWalk<'_>) {
        let end = self.meta.end;
        let mut last = None;
        for unit in META_UNITS..end {
            let is_head = unit < group_start(group_of(unit)) + HEAD_UNITS;
            let (is_used, is_seen) = (used.contains(unit - META_UNITS), walk.seen.contains(unit));
            let what = match (is_used, is_seen) {
                (true, _) if is_head => Some("the bitmap says that a bitmap's place is in use"),
                (false, true) => Some("it is in use, and free by the bitmap"),
                // The pages below a lost page are not known.
                (true, false) if !walk.is_cut => Some("in use by the bitmap, but nothing names it"),
                _ => None,
            };
            // Neighbours are one problem.
            if let Some(what) = what.filter(|_| what != last) {
                walk.note(&Error::Corrupt { page: unit, what }, unit, FilePart::FreeSpace);
            }
            last = what;
        }
        if used.iter().any(|unit| unit + META_UNITS >= end) {
            let what = "a page beyond the end is in use by the bitmap";
            walk.note(&Error::Corrupt { page: end, what }, end, FilePart::FreeSpace);
        }
    }

    /// Reads what the redo area has beyond the checkpoint.
    pub(super) fn redone(&self) -> Result<RedoSummary, Error> {
        let mut redone = RedoSummary { last_txid: self.meta.txid, ..RedoSummary::default() };
        let Some(area) = self.meta.redo else { return Ok(redone) };
        let corrupt = |position| Error::Corrupt {
            page: area.unit(position),
            what: "redo records that make no sense",
        };
        if area.span.start < META_UNITS || area.span.end() > self.bytes / UNIT_BYTES as u64 {
            return Err(corrupt(0));
        }
        let mut frames = FrameReader::new(area, self.page_reader.file(), self.meta.number);
        loop {
            let begin = frames.position();
            let Some(body) = frames.next()? else { break };
            redone.frame_count += 1;
            for record in records(&body) {
                let record = record.map_err(|MalformedRecord| corrupt(begin))?;
                if record.txid <= redone.last_txid {
                    continue;
                }
                let is_sound = record.ops().all(|op| op.is_ok());
                if record.txid != redone.last_txid + 1 || !is_sound {
                    return Err(corrupt(begin));
                }
                redone.last_txid = record.txid;
                redone.record_count += 1;
            }
        }
        redone.bytes = frames.position() - area.from;
        Ok(redone)
    }
}

/// The places of bitmaps in a file that ends at `end`.
pub(super) fn heads(end: u64) -> impl Iterator<Item = Span> {
    let starts = (0..).map(group_start).take_while(move |&start| start < end);
    starts.map(|start| Span { start, units: HEAD_UNITS as u32 })
}
