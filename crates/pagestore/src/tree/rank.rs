//! Order statistics: rank and select by the counts in the branches, one path each.

use crate::error::Result;
use crate::page::PageRef;
use crate::page::branch::{self, Child};
use crate::page::keys::joined;
use crate::page::slotted::SlottedPage;
use crate::page::source::PageSource;
use crate::page::subtree_size::SubtreeSize;
use crate::page::view::{PageBytes, ValueRef};
use crate::tree::get::{child_page, value};

/// The size of all before `key`, or before and at it. Units are shared out evenly among the entries
/// of a leaf.
pub(crate) fn before(
    source: &impl PageSource,
    root: PageRef,
    key: &[u8],
    at: bool,
) -> Result<SubtreeSize> {
    let mut before = SubtreeSize::default();
    if root.is_none() {
        return Ok(before);
    }
    let mut page = source.page(root)?;
    loop {
        let node = SlottedPage(&page);
        if node.is_leaf() {
            let i = node.search(key).map_or_else(|i| i, |i| i + usize::from(at));
            let all = branch::size(node);
            let share = all.units * i as u64 / all.keys.max(1);
            return Ok(before.plus(SubtreeSize { keys: i as u64, units: share }));
        }
        let i = branch::child_index(node, key);
        let sizes = branch::sized_children(node, 0..i).map(|child| child.size);
        before = sizes.fold(before, SubtreeSize::plus);
        page = child_page(source, node, branch::child(node, i))?;
    }
}

/// The entry before which there are `before` others, if there are as many.
pub(crate) fn nth<'a>(
    source: &'a impl PageSource,
    root: PageRef,
    before: u64,
) -> Result<Option<(Vec<u8>, ValueRef<'a>)>> {
    let Some((page, rest)) = leaf_at(source, root, before, |size| size.keys)? else {
        return Ok(None);
    };
    let i = usize::try_from(rest).unwrap_or(usize::MAX);
    entry(source, page, i)
}

/// A key before which about `units` units lie, if there are as many.
pub(crate) fn key_at(
    source: &impl PageSource,
    root: PageRef,
    units: u64,
) -> Result<Option<Vec<u8>>> {
    let Some((page, rest)) = leaf_at(source, root, units, |size| size.units)? else {
        return Ok(None);
    };
    let node = SlottedPage(&page);
    let i = node.count() as u64 * rest / branch::size(node).units.max(1);
    Ok((i < node.count() as u64).then(|| joined(node.key(i as usize))))
}

/// The leaf before which there is `before` at the most of the measure `of`, and the rest of it.
fn leaf_at<'a>(
    source: &'a impl PageSource,
    root: PageRef,
    before: u64,
    of: impl Fn(SubtreeSize) -> u64,
) -> Result<Option<(PageBytes<'a>, u64)>> {
    if root.is_none() {
        return Ok(None);
    }
    let mut rest = before;
    let mut page = source.page(root)?;
    while !SlottedPage(&page).is_leaf() {
        let node = SlottedPage(&page);
        let fits = |child: &Child| match rest.checked_sub(of(child.size)) {
            Some(less) => {
                rest = less;
                false
            }
            None => true,
        };
        let found = branch::sized_children(node, 0..branch::child_count(node)).find(fits);
        let Some(child) = found else { return Ok(None) };
        page = child_page(source, node, child.page_ref)?;
    }
    Ok(Some((page, rest)))
}

/// The last entry.
pub(crate) fn last<'a>(
    source: &'a impl PageSource,
    root: PageRef,
) -> Result<Option<(Vec<u8>, ValueRef<'a>)>> {
    if root.is_none() {
        return Ok(None);
    }
    let mut page = source.page(root)?;
    while !SlottedPage(&page).is_leaf() {
        let node = SlottedPage(&page);
        page = child_page(source, node, branch::child(node, node.count()))?;
    }
    let last = SlottedPage(&page).count().checked_sub(1);
    last.map_or(Ok(None), |i| entry(source, page, i))
}

/// The first key.
pub(crate) fn first_key(source: &impl PageSource, root: PageRef) -> Result<Option<Vec<u8>>> {
    Ok(nth(source, root, 0)?.map(|(key, _)| key))
}

fn entry<'a>(
    source: &'a impl PageSource,
    page: PageBytes<'a>,
    i: usize,
) -> Result<Option<(Vec<u8>, ValueRef<'a>)>> {
    let node = SlottedPage(&page);
    if i >= node.count() {
        return Ok(None);
    }
    let key = joined(node.key(i));
    value(source, page, i).map(|value| Some((key, value)))
}
