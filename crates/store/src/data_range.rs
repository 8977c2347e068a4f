//! Ranges of rows of a space, in all of its column families.

use std::ops::Bound;

use bytes::Bytes;
use flotilla_base::redact::LogKey;
use flotilla_pagestore::{TreeMut, WriteTxn};
use flotilla_region::Space;

use crate::error::Error;
use crate::schema;

/// Removes the rows of `[start, end)`, to the end of the space without an end. Returns how many
/// rows of data there were.
pub(crate) fn delete(
    txn: &mut WriteTxn<'_>,
    space: Space,
    start: &[u8],
    end: Option<&[u8]>,
) -> Result<u64, Error> {
    assert!(
        end.is_none_or(|end| start < end),
        "an empty range, from {} to {:?}",
        LogKey(start),
        end.map(LogKey)
    );
    let mut rows = 0;
    for trees in schema::trees_of(space) {
        if let Some(expiries) = trees.expiries {
            delete_in(&mut txn.tree(expiries)?, start, end)?;
        }
        rows += delete_in(&mut txn.tree(trees.rows)?, start, end)?;
    }
    Ok(rows)
}

/// Reads what putting trees in at `key` reads: the pages on both sides of it.
pub(crate) fn touch_seam(txn: &mut WriteTxn<'_>, space: Space, key: &[u8]) -> Result<(), Error> {
    for trees in schema::trees_of(space) {
        for name in [Some(trees.rows), trees.expiries].into_iter().flatten() {
            let mut tree = txn.tree(name)?;
            if !tree.is_empty() {
                let behind = tree.split_off(key)?;
                tree.append(&behind)?;
            }
        }
    }
    Ok(())
}

/// The bound of a region whose range ends there.
pub(crate) fn end_bound(end: &Bytes) -> Bound<&[u8]> {
    if end.is_empty() { Bound::Unbounded } else { Bound::Excluded(&end[..]) }
}

fn delete_in(tree: &mut TreeMut<'_>, start: &[u8], end: Option<&[u8]>) -> Result<u64, Error> {
    // Most column families are empty, and stay without a page.
    if tree.is_empty() {
        return Ok(0);
    }
    Ok(tree.delete_range(start, end)?)
}
