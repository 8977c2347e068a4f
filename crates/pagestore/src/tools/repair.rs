//! Repair: a copy of all that can be read of a damaged file, and a report of what cannot.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use flotilla_vfs::FileSystem;

use super::compact::finish;
use super::copy::{self, NewFile};
use super::file::PageFile;
use super::problem::{FilePart, FileProblem};
use super::walk::{FileWalk, ScanProgress, Visit};
use crate::error::{Error, Result};
use crate::page::keys::joined;
use crate::page::layout::META_UNITS;
use crate::page::leaf::{self, LeafValue};
use crate::page::slotted::SlottedPage;
use crate::page::unit_set::UnitSet;
use crate::page::{self, Frame, PAGE_UNITS_MAX, PageRef, Span, UNIT_BYTES};
use crate::store::PageStore;
use crate::tree::LostKeys;

/// Report of [`PageFile::repair`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepairReport {
    /// The last transaction of the source that the copy contains, but for what was lost.
    pub txid: u64,
    /// Trees in the copy.
    pub trees: u64,
    /// Keys in the copy.
    pub keys: u64,
    /// Length of the copy.
    pub bytes: u64,
    /// Lost keys of the problems that were found in leaves that no page names any more, and are in
    /// the copy.
    pub rescued_keys: u64,
    /// Leaves that were found so, whose place cannot be told.
    pub unplaced_leaves: u64,
    /// The problems of the source, with the keys that are lost.
    pub problems: Vec<FileProblem>,
    /// How many problems more there are.
    pub problems_left_out: u64,
    /// The transaction of the older meta page, if that one's state is all there while this one's is
    /// not.
    pub whole_older_txid: Option<u64>,
}

impl PageFile {
    /// Copies all that can be read of the trees, the commit metadata, and the redo records up to
    /// the first damage into the new file `to`, which is then durable; the source stays as it is.
    /// The free space is made anew, so damage of bitmaps and directory is gone. `look` is called
    /// after each page.
    ///
    /// Where a branch is lost, its leaves are looked for among the pages that the bitmaps call used
    /// and that no page names. Such a leaf is put back if its keys lie in one lost range, and no
    /// other.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], of the kind `AlreadyExists` if there is a file `to`; [`Error::NoSpace`].
    /// Damage is in the report and no error.
    pub fn repair(
        &self,
        fs: &Arc<dyn FileSystem>,
        to: &Path,
        look: &mut dyn FnMut(ScanProgress),
    ) -> Result<RepairReport> {
        let new = NewFile::begin(fs, to)?;
        let store = new.store()?;
        let mut walk = FileWalk::new(self, true, look);
        let mut owned = UnitSet::default();
        let mut own = |what: &Visit<'_>| {
            if let Visit::Page(span) | Visit::Extent(span) = what {
                for unit in span.start..span.end() {
                    owned.insert(unit);
                }
            }
        };
        let mut pages = |what: Visit<'_>| {
            own(&what);
            ControlFlow::Continue(())
        };
        let trees = walk.catalogue(&mut pages);
        walk.deferred_free(&mut pages);
        for (name, entry) in &trees {
            copy::tree(&mut walk, &store, name, *entry, &mut own)?;
        }
        let mut report = RepairReport::default();
        self.rescue(&walk, &owned, &store, &mut report)?;
        let mut txn = store.write()?;
        txn.set_commit_metadata(&self.meta.commit_metadata);
        txn.publish()?;
        let (txid, met) = copy::redo(self, &store)?;
        if let Err(error) = met {
            walk.note(&error, self.meta.redo.map_or(0, |area| area.span.start), FilePart::Redo);
        }
        if let Err(error) = self.used() {
            walk.note(&error, self.meta.directory.start, FilePart::FreeSpace);
        }
        report.txid = txid;
        report.problems_left_out = walk.problems.left_out;
        report.problems = walk.problems.named;
        (report.trees, report.keys, report.bytes) = finish(store)?;
        new.finish()?;
        Ok(report)
    }

    /// Puts back leaves that are in use and that no page names any more.
    fn rescue(
        &self,
        walk: &FileWalk<'_>,
        owned: &UnitSet,
        store: &PageStore,
        report: &mut RepairReport,
    ) -> Result<()> {
        let subtrees: Vec<&FileProblem> =
            walk.problems.named.iter().filter(|problem| is_subtree(problem)).collect();
        // A leaf of a tree whose name is lost could be taken for one of another.
        let is_known = |problem: &&FileProblem| matches!(problem.part, FilePart::Tree(_));
        let (false, true, 0) =
            (subtrees.is_empty(), subtrees.iter().all(is_known), walk.problems.left_out)
        else {
            return Ok(());
        };
        let Ok(used) = self.used() else { return Ok(()) };
        for unit in used.iter().map(|unit| unit + META_UNITS) {
            // A whole page at a place that was found damaged may be an old version.
            let is_damaged = walk.problems.named.iter().any(|problem| problem.page == unit);
            if owned.contains(unit) || is_damaged {
                continue;
            }
            let Some(leaf) = self.leaf(unit) else { continue };
            let node = SlottedPage(&leaf);
            let (first, last) = (joined(node.key(0)), joined(node.key(node.count() - 1)));
            let mut homes = subtrees.iter().filter(|problem| holds(problem, &first, &last));
            match (homes.next(), homes.next()) {
                (Some(FileProblem { part: FilePart::Tree(name), .. }), None) => {
                    report.rescued_keys += self.put_back(node, store, name)?;
                }
                _ => report.unplaced_leaves += 1,
            }
        }
        Ok(())
    }

    /// Puts the entries of a leaf into a tree, but for long values that cannot be read.
    fn put_back(&self, node: SlottedPage<'_>, store: &PageStore, name: &str) -> Result<u64> {
        let mut count = 0;
        let mut txn = store.write()?;
        let mut tree = txn.tree(name)?;
        for i in 0..node.count() {
            let key = joined(node.key(i));
            match leaf::value(node, i) {
                LeafValue::Inline(value) => tree.put(&key, value)?,
                LeafValue::Extent(extent) => {
                    let inside = self.bytes / UNIT_BYTES as u64;
                    let is_inside = extent.start < inside && extent.span().end() <= inside;
                    let read = is_inside.then(|| self.page_reader.read_extent(&extent));
                    let Some(Ok(value)) = read else { continue };
                    tree.put(&key, &value)?;
                }
            }
            count += 1;
        }
        txn.publish()?;
        Ok(count)
    }

    /// The leaf that lies at `unit`, if one does, whole and in order.
    fn leaf(&self, unit: u64) -> Option<Frame> {
        let mut head = vec![0; UNIT_BYTES];
        self.page_reader.file().read_exact_at(&mut head, unit * UNIT_BYTES as u64).ok()?;
        let units = page::units(&head);
        if !page::is_leaf(&head) || !(1..=PAGE_UNITS_MAX as u32).contains(&units) {
            return None;
        }
        let page_ref = PageRef::new(Span { start: unit, units }, page::created_txid(&head));
        let frame = self.page_reader.read_page(page_ref, self.meta.txid).ok()?;
        let node = SlottedPage(&frame);
        let is_sound = node.count() > 0
            && node.level() == 0
            && (0..node.count()).all(|i| node.search(&joined(node.key(i))) == Ok(i));
        is_sound.then_some(frame)
    }
}

/// Repairs the file `path` from the state of its newest meta page, or of the older one if `older`,
/// into the new file `to`; see [`PageFile::repair`].
///
/// # Errors
///
/// Those of [`PageFile::open`], [`PageFile::open_older`] and [`PageFile::repair`].
pub fn repair(
    fs: &Arc<dyn FileSystem>,
    path: &Path,
    to: &Path,
    older: bool,
    look: &mut dyn FnMut(ScanProgress),
) -> Result<RepairReport> {
    let open = if older { PageFile::open_older } else { PageFile::open };
    let file = open(&**fs, path)?;
    let mut report = file.repair(fs, to, look)?;
    drop(file);
    if !older && report.problems.iter().any(|problem| problem.lost.is_some()) {
        let older = match PageFile::open_older(&**fs, path) {
            Err(Error::Corrupt { .. }) => return Ok(report),
            other => other?,
        };
        let state = older.check(look);
        if state
            .problems
            .iter()
            .all(|problem| matches!(problem.part, FilePart::FreeSpace | FilePart::Redo))
        {
            report.whole_older_txid = Some(state.txid);
        }
    }
    Ok(report)
}

/// Whether pages are lost, and not a long value only.
fn is_subtree(problem: &FileProblem) -> bool {
    let is_value = |lost: &LostKeys| match (&lost.start, &lost.end) {
        (Some(start), Some(end)) => end.strip_prefix(&start[..]) == Some(&[0]),
        _ => false,
    };
    problem.lost.as_ref().is_some_and(|lost| !is_value(lost))
}

/// Whether all keys from `first` to `last` are among those that were lost.
fn holds(problem: &FileProblem, first: &[u8], last: &[u8]) -> bool {
    problem.lost.as_ref().is_some_and(|lost| {
        lost.start.as_ref().is_none_or(|start| &start[..] <= first)
            && lost.end.as_ref().is_none_or(|end| last < &end[..])
    })
}
