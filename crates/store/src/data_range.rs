//! Ranges of rows of a space, in each of the trees that have them.

use flotilla_pagestore::WriteTxn;
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
    assert!(end.is_none_or(|end| start < end), "an empty range, from {start:?} to {end:?}");
    if let Some(expiries) = schema::expiry_tree(space) {
        txn.tree(expiries)?.delete_range(start, end)?;
    }
    Ok(txn.tree(schema::data_tree(space))?.delete_range(start, end)?)
}
