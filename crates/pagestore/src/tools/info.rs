//! Summary of a file, from a few of its pages, however large it is.

use super::check::heads;
use super::file::PageFile;
use super::problem::{FileProblem, reason};
use super::walk::{FileWalk, Visit};
use crate::error::Result;
use crate::page::UNIT_BYTES;
use crate::page::layout::META_UNITS;
use crate::page::slotted::SlottedPage;
use crate::space::freelist::Freelist;

/// Summary of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileInfo {
    /// The meta pages that are whole.
    pub metas: Vec<MetaInfo>,
    /// Length of the file.
    pub file_bytes: u64,
    /// Part of it in use or free to be used; the rest is reserved for growth.
    pub span_bytes: u64,
    /// Bytes in use: trees, deferred frees, redo area, directory.
    pub used_bytes: u64,
    /// Free bytes; nothing if the bitmaps are damaged.
    pub free_bytes: Option<u64>,
    /// In how many runs they lie.
    pub free_runs: u64,
    /// The longest of them.
    pub longest_free_bytes: u64,
    /// Bytes for meta pages and bitmaps.
    pub reserved_bytes: u64,
    /// The trees, by name.
    pub trees: Vec<TreeInfo>,
    /// Subtrees whose free is deferred.
    pub deferred_free_count: u64,
    /// Their bytes.
    pub deferred_free_bytes: u64,
    /// The redo area, if there is one.
    pub redo: Option<RedoInfo>,
    /// Damage of the pages that were read.
    pub problems: Vec<FileProblem>,
}

/// The contents of a meta page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaInfo {
    /// The unit where it lies.
    pub unit: u64,
    /// The number of the checkpoint that wrote it.
    pub checkpoint: u64,
    /// The last transaction of it.
    pub txid: u64,
    /// Its commit metadata.
    pub commit_metadata: Vec<u8>,
    /// How many of its eight copies are whole. A power loss while it was written may have left
    /// fewer.
    pub whole_copies: usize,
    /// Whether it is the one that counts.
    pub is_newest: bool,
}

/// The catalogue's entry of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeInfo {
    /// Its name.
    pub name: String,
    /// Its keys.
    pub keys: u64,
    /// Bytes of its pages and long values.
    pub bytes: u64,
    /// How many units of 4 KiB its pages are long; see [`TreeOptions::page_units`].
    ///
    /// [`TreeOptions::page_units`]: crate::TreeOptions::page_units
    pub page_units: u32,
    /// How many pages lie between its root and a leaf, both included; nothing if the root cannot be
    /// read.
    pub depth: Option<u64>,
    /// The page of the root; 0 if it is empty.
    pub root: u64,
}

/// Summary of the redo area.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedoInfo {
    /// Its first unit.
    pub unit: u64,
    /// Its length.
    pub bytes: u64,
    /// Bytes of it that opening the store reads.
    pub used_bytes: u64,
    /// Frames in which they lie.
    pub frames: u64,
    /// Transactions that the checkpoint lacks.
    pub records: u64,
    /// The last of them, or of the checkpoint.
    pub last_txid: u64,
}

impl PageFile {
    /// The summary of the file. Reads the catalogue, the root of each tree, the bitmaps, and the
    /// redo records beyond the checkpoint; damage of these is named in the answer.
    pub fn info(&self) -> FileInfo {
        let look = &mut |_| ();
        let mut walk = FileWalk::new(self, false, look);
        let trees = walk.catalogue(&mut |_: Visit<'_>| std::ops::ControlFlow::Continue(()));
        let bytes = |units: u64| units.saturating_mul(UNIT_BYTES as u64);
        let trees = trees.into_iter().map(|(name, entry)| TreeInfo {
            name,
            keys: entry.size.keys,
            bytes: bytes(entry.size.units),
            page_units: entry.page_size.units(),
            depth: match entry.root.is_none() {
                true => Some(0),
                false => self.depth(entry.root),
            },
            root: entry.root.id(),
        });
        let mut info = FileInfo {
            metas: self.meta_infos(),
            file_bytes: self.bytes,
            span_bytes: bytes(self.meta.end),
            reserved_bytes: bytes(META_UNITS)
                + heads(self.meta.end).map(|head| head.bytes()).sum::<u64>(),
            trees: trees.collect(),
            deferred_free_count: self.meta.deferred_free.list.size.keys,
            deferred_free_bytes: bytes(self.meta.deferred_free.units),
            problems: walk.problems.named,
            ..FileInfo::default()
        };
        let mut fail = |error, page, part| {
            info.problems.push(FileProblem { page, part, what: reason(&error), lost: None });
        };
        match self.used() {
            Ok(used) => {
                let free = Freelist::restore(&used, self.meta.end);
                info.used_bytes = bytes(used.iter().count() as u64);
                info.free_bytes = Some(bytes(free.free_units()));
                info.free_runs = free.spans().count() as u64;
                info.longest_free_bytes =
                    free.spans().map(|span| span.bytes()).max().unwrap_or_default();
            }
            Err(error) => fail(error, self.meta.directory.start, super::FilePart::FreeSpace),
        }
        if let Some(area) = self.meta.redo {
            let mut redo = RedoInfo { unit: area.span.start, ..RedoInfo::default() };
            redo.bytes = area.bytes();
            match self.redone() {
                Ok(redone) => {
                    redo.used_bytes = redone.bytes;
                    redo.frames = redone.frame_count;
                    redo.records = redone.record_count;
                    redo.last_txid = redone.last_txid;
                }
                Err(error) => fail(error, area.span.start, super::FilePart::Redo),
            }
            info.redo = Some(redo);
        }
        info
    }

    fn meta_infos(&self) -> Vec<MetaInfo> {
        let whole = self.metas.iter().zip(self.copies).filter_map(|(meta, copies)| {
            let meta = meta.as_ref()?;
            Some(MetaInfo {
                unit: meta.unit(),
                checkpoint: meta.number,
                txid: meta.txid,
                commit_metadata: meta.commit_metadata.clone(),
                whole_copies: copies.count_ones() as usize,
                is_newest: meta.number == self.meta.number,
            })
        });
        whole.collect()
    }

    fn depth(&self, root: crate::page::PageRef) -> Option<u64> {
        let page: Result<_> = self.page_reader.read_page(root, self.meta.txid);
        page.ok().map(|page| u64::from(SlottedPage(&page).level()) + 1)
    }
}
