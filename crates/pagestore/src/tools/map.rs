//! Map of a file: the owner of each unit.

use std::ops::{ControlFlow, Range};

use super::check::heads;
use super::file::PageFile;
use super::problem::{FilePart, FileProblem};
use super::walk::{FileWalk, ScanProgress, Visit};
use crate::page::layout::META_UNITS;
use crate::page::unit_set::UnitSet;
use crate::page::{Span, UNIT_BYTES};

/// The owner of a part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnitOwner {
    /// The meta pages.
    Meta,
    /// The places of bitmaps.
    Bitmaps,
    /// The directory of free space.
    Directory,
    /// The redo area.
    Redo,
    /// The tree of trees.
    Catalogue,
    /// Subtrees whose free is deferred.
    DeferredFree,
    /// The tree of this number in [`SpaceMap::trees`].
    Tree(usize),
    /// In use by the bitmaps, and no page that can be read names it: it was lost.
    Lost,
    /// No owner.
    Free,
    /// Reserved for growth, behind the last unit that was ever given out.
    Growth,
}

/// Neighbouring units of one owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapRun {
    /// The units, of 4 KiB.
    pub units: Range<u64>,
    /// Their owner.
    pub owner: UnitOwner,
}

/// Map of a file: the owner of each unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpaceMap {
    /// All units of the file, rising, without a hole.
    pub runs: Vec<MapRun>,
    /// Names of the trees.
    pub trees: Vec<String>,
    /// Damage of the pages that were read.
    pub problems: Vec<FileProblem>,
}

impl PageFile {
    /// The owner of each unit. Reads all pages, not the long values. `look` is called after each
    /// page.
    ///
    /// Memory: 24 bytes for each page and long value.
    pub fn map(&self, look: &mut dyn FnMut(ScanProgress)) -> SpaceMap {
        let mut runs: Vec<(Span, UnitOwner)> = Vec::new();
        let mut walk = FileWalk::new(self, false, look);
        let mut owner = UnitOwner::Catalogue;
        let trees = walk.catalogue(&mut |what| take(&mut runs, owner, &what));
        for (i, (name, entry)) in trees.iter().enumerate() {
            owner = UnitOwner::Tree(i);
            let _ = walk.tree(name, *entry, &mut |what| take(&mut runs, owner, &what));
        }
        owner = UnitOwner::DeferredFree;
        walk.deferred_free(&mut |what| take(&mut runs, owner, &what));
        let mut own = |span: Span, owner, part| {
            walk.note_owned(span, part);
            runs.push((span, owner));
        };
        if self.meta.directory.len > 0 {
            own(self.meta.directory.span(), UnitOwner::Directory, FilePart::FreeSpace);
        }
        if let Some(area) = self.meta.redo {
            own(area.span, UnitOwner::Redo, FilePart::Redo);
        }
        runs.push((Span { start: 0, units: META_UNITS as u32 }, UnitOwner::Meta));
        runs.extend(heads(self.meta.end).map(|head| (head, UnitOwner::Bitmaps)));
        match self.used() {
            Ok(used) => {
                let mut owned = UnitSet::default();
                for unit in runs.iter().flat_map(|(span, _)| span.start..span.end()) {
                    owned.insert(unit);
                }
                let lost = used.iter().map(|unit| unit + META_UNITS);
                let lost = lost.filter(|&unit| !owned.contains(unit));
                runs.extend(lost.map(|start| (Span { start, units: 1 }, UnitOwner::Lost)));
            }
            Err(error) => walk.note(&error, self.meta.directory.start, FilePart::FreeSpace),
        }
        let trees = trees.into_iter().map(|(name, _)| name).collect();
        let runs = joined(runs, self.meta.end, self.bytes / UNIT_BYTES as u64);
        SpaceMap { runs, trees, problems: walk.problems.named }
    }
}

fn take(runs: &mut Vec<(Span, UnitOwner)>, owner: UnitOwner, what: &Visit<'_>) -> ControlFlow<()> {
    if let Visit::Page(span) | Visit::Extent(span) = what {
        match runs.last_mut() {
            Some((last, before)) if last.end() == span.start && *before == owner => {
                last.units = last.units.saturating_add(span.units);
            }
            _ => runs.push((*span, owner)),
        }
    }
    ControlFlow::Continue(())
}

/// All runs in their order, what lies between them free, neighbours of one owner in one.
fn joined(mut runs: Vec<(Span, UnitOwner)>, end: u64, file_end: u64) -> Vec<MapRun> {
    runs.sort_unstable_by_key(|(span, _)| span.start);
    let mut all: Vec<MapRun> = Vec::new();
    let mut add = |units: Range<u64>, owner| match all.last_mut() {
        _ if units.is_empty() => {}
        Some(last) if last.owner == owner && last.units.end == units.start => {
            last.units.end = units.end;
        }
        _ => all.push(MapRun { units, owner }),
    };
    let mut at = 0;
    for (span, owner) in runs {
        // A unit with two owners is reported as a problem already.
        let units = span.start.max(at)..span.end().max(at);
        add(at..units.start.min(end), UnitOwner::Free);
        at = units.end;
        add(units, owner);
    }
    add(at..end, UnitOwner::Free);
    add(at.max(end)..file_end, UnitOwner::Growth);
    let is_rising = all.is_sorted_by(|a, b| a.units.end == b.units.start);
    debug_assert!(is_rising, "the map has a gap");
    all
}
