//! Multi-get: a batch of point lookups that share their way down and overlap their cache misses;
//! and the same way down for a batch that is going to be changed.
//!
//! The keys go down together, level by level: a page that several of them need is looked at once,
//! and all pages of a level are prefetched before the first of them is looked at. Where they are
//! not in memory the disk is asked for all of them at once.

use std::ops::Range;

use crate::error::Result;
use crate::page::read_timer::ReadTimer;
use crate::page::slotted::SlottedPage;
use crate::page::source::{PageSource, PrefetchHint};
use crate::page::view::PageBytes;
use crate::page::{PageRef, branch, leaf};
use crate::tree::get::child_page;

/// One of so many reads of a page is timed.
const TIMED_EACH: usize = 8;

/// Pages whose state is asked for before all are.
const PROBES: usize = 4;

/// Calls `each` with the number of every key and its value, if there is one, in the order of the
/// keys.
pub(crate) fn multi_get<K: AsRef<[u8]>>(
    source: &impl PageSource,
    root: PageRef,
    keys: &[K],
    each: &mut dyn FnMut(usize, Option<&[u8]>),
) -> Result<()> {
    let mut order: Vec<usize> = (0..keys.len()).collect();
    order.sort_by(|&a, &b| keys[a].as_ref().cmp(keys[b].as_ref()));
    let sorted: Vec<&[u8]> = order.iter().map(|&i| keys[i].as_ref()).collect();
    if root.is_none() || sorted.is_empty() {
        order.iter().for_each(|&i| each(i, None));
        return Ok(());
    }
    let (level, _) = leaves(source, root, &sorted)?;
    for (page, range) in level {
        let leaf = SlottedPage(&page);
        for i in range {
            match leaf.search(sorted[i]).ok().map(|at| leaf::value(leaf, at)) {
                None => each(order[i], None),
                Some(leaf::LeafValue::Inline(bytes)) => each(order[i], Some(bytes)),
                Some(leaf::LeafValue::Extent(extent)) => {
                    each(order[i], Some(&source.extent(&extent)?));
                }
            }
        }
    }
    Ok(())
}

/// Reads the leaves that hold `keys` or have the place for them. Returns whether the disk was asked
/// for some of their pages at once.
pub(crate) fn read_leaves<K: AsRef<[u8]>>(
    source: &impl PageSource,
    root: PageRef,
    keys: &[K],
) -> Result<bool> {
    if root.is_none() || keys.is_empty() {
        return Ok(false);
    }
    let mut sorted: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
    sorted.sort_unstable();
    Ok(leaves(source, root, &sorted)?.1)
}

/// Pages of a level, each with the keys below it, and whether the disk was asked for some at once.
type Level<'a> = (Vec<(PageBytes<'a>, Range<usize>)>, bool);

/// The leaves of the keys: all take each level together, so the misses of a level overlap.
fn leaves<'a>(source: &'a impl PageSource, root: PageRef, sorted: &[&[u8]]) -> Result<Level<'a>> {
    let (mut level, mut was_asked) = (vec![(source.page(root)?, 0..sorted.len())], false);
    while !SlottedPage(&level[0].0).is_leaf() {
        let (children, is_asked) = descend(source, &level, sorted)?;
        (level, was_asked) = (children, was_asked | is_asked);
    }
    Ok((level, was_asked))
}

/// The children that hold the keys, each with those that it holds.
fn descend<'a>(
    source: &'a impl PageSource,
    level: &[(PageBytes<'a>, Range<usize>)],
    sorted: &[&[u8]],
) -> Result<Level<'a>> {
    let mut parts = Vec::with_capacity(level.len());
    for (page, range) in level {
        let node = SlottedPage(page);
        let mut from = range.start;
        while from < range.end {
            let i = branch::child_index(node, sorted[from]);
            let rest = &sorted[from..range.end];
            let mine = match i < node.count() {
                true => 1 + rest[1..].partition_point(|key| branch::child_index(node, key) == i),
                false => rest.len(),
            };
            let child = branch::child(node, i);
            source.prefetch(child, PrefetchHint::Search);
            parts.push((node, child, from..from + mine));
            from += mine;
        }
    }
    read_children(source, &parts)
}

/// Reads the children, each below its parent. Once one of them had to come from the disk, all that
/// follow are asked for at once.
fn read_children<'a>(
    source: &'a impl PageSource,
    parts: &[(SlottedPage<'_>, PageRef, Range<usize>)],
) -> Result<Level<'a>> {
    let mut pages = Vec::with_capacity(parts.len());
    let mut is_asked = false;
    for (n, (parent, child, range)) in parts.iter().enumerate() {
        let is_timed = !is_asked && n.is_multiple_of(TIMED_EACH) && n + 1 < parts.len();
        let timer = is_timed.then(ReadTimer::start);
        pages.push((child_page(source, *parent, *child)?, range.clone()));
        if timer.is_some_and(ReadTimer::is_slow) {
            let mut rest = parts[n + 1..].iter().map(|(_, child, _)| *child).collect();
            is_asked = source.read_ahead(&mut rest, PROBES);
        }
    }
    Ok((pages, is_asked))
}
