//! Taking pages that cannot be read out of a tree, with all that lies below them.
//!
//! Only branches are read: they say where each page lies and which keys are below it.

use std::collections::BTreeSet;

use crate::error::Result;
use crate::page::branch::{self, Child};
use crate::page::keys::joined;
use crate::page::slotted::SlottedPage;
use crate::page::subtree_size::SizeChange;
use crate::page::{PageRef, PageSize};
use crate::tree::delete_range::replace;
use crate::tree::path::TreePath;
use crate::tree::rebalance::rebalance_all;
use crate::tree::txn_pages::TxnPages;

/// Keys that cannot be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LostKeys {
    /// They are not less than this, if there is a bound.
    pub start: Option<Vec<u8>>,
    /// They are less than this, if there is a bound.
    pub end: Option<Vec<u8>>,
    /// How many there are.
    pub count: u64,
}

/// Takes the pages that begin at these units out of the tree under `root`. Returns the new root,
/// what has changed below it, and which keys the pages held.
pub(crate) fn drop_pages(
    pages: &mut TxnPages,
    size: PageSize,
    root: Child,
    units: &BTreeSet<u64>,
) -> Result<(PageRef, SizeChange, Vec<LostKeys>)> {
    let mut dropping = Dropping { units, lost: vec![], cut: vec![] };
    let left = match root.is_none() {
        true => root,
        false => dropping.look(pages, root, LostKeys::default())?,
    };
    let Dropping { lost, cut, .. } = dropping;
    let (mut page_ref, mut change) = (left.page_ref, left.size.since(root.size));
    for keys in &lost {
        if !page_ref.is_none() {
            let start = keys.start.as_deref().unwrap_or_default();
            let (path, leaf) = TreePath::down(pages, page_ref, start)?;
            let rebalanced = rebalance_all(pages, size, path, leaf)?;
            page_ref = rebalanced.0;
            change.units += rebalanced.1.units;
        }
    }
    for child in cut {
        // Only what is known without a look: a subtree that cannot be read would keep all other
        // deferred frees waiting behind it.
        if child.size.units == u64::from(child.page_ref.units()) {
            let created_txid = child.page_ref.latest_created_txid(pages.txid());
            pages.discard_created(child.page_ref, created_txid);
        }
    }
    Ok((page_ref, change, lost))
}

struct Dropping<'a> {
    units: &'a BTreeSet<u64>,
    lost: Vec<LostKeys>,
    cut: Vec<Child>,
}

impl Dropping<'_> {
    /// Looks at a child, which holds `keys`, and returns what is left of it.
    fn look(&mut self, pages: &mut TxnPages, child: Child, keys: LostKeys) -> Result<Child> {
        if self.units.contains(&child.page_ref.id()) {
            self.lost.push(LostKeys { count: child.size.keys, ..keys });
            self.cut.push(child);
            return Ok(Child::NONE);
        }
        let frame = pages.owned_frame(child.page_ref)?;
        let node = SlottedPage(&frame);
        if node.is_leaf() {
            return Ok(child);
        }
        let mut left = child;
        // Backwards: what is taken out moves none of those before it.
        for i in (0..branch::child_count(node)).rev() {
            let part = branch::sized_child(node, i);
            if node.level() == 1 && !self.units.contains(&part.page_ref.id()) {
                continue;
            }
            let start = i.checked_sub(1).map(|i| joined(node.key(i)));
            let end = (i + 1 < branch::child_count(node)).then(|| joined(node.key(i)));
            let (start, end) = (start.or(keys.start.clone()), end.or(keys.end.clone()));
            let rest = self.look(pages, part, LostKeys { start, end, count: 0 })?;
            if rest != part {
                left = replace(pages, left, i..i, [rest, Child::NONE])?;
            }
            if left.is_none() {
                break;
            }
        }
        Ok(left)
    }
}
