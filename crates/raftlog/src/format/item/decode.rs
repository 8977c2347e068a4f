//! Decodes items.

use super::head::AppendHead;
use super::{
    BatchItem, DecodedItem, STALE_NUMBERS, StoredAppend, TAG_APPEND, TAG_COMPACT, TAG_DELETE,
    TAG_DISCARD, TAG_MOVE, TAG_PUT, TAG_REMOVE, TAG_STALE, TAG_TRUNCATE,
};
use crate::format::layout::FRAME_HEADER_BYTES;
use flotilla_base::varint::{CUT_SHORT, take_slice, take_u8, take_varint};

/// Reads the next item and moves `input` behind it.
pub(crate) fn take_item<'a>(input: &mut &'a [u8]) -> Result<DecodedItem<'a>, &'static str> {
    let item = *input;
    let tag = take_u8(input)?;
    Ok(match tag {
        TAG_APPEND => {
            *input = item;
            let (head, bytes) = take_append(input)?;
            let (first, count) = (head.first, head.count);
            BatchItem::Append(StoredAppend { first, count, offset: 0, head, bytes })
        }
        TAG_COMPACT => BatchItem::Compact {
            group: take_varint(input)?,
            first: take_varint(input)?,
            term_before: take_varint(input)?,
        },
        TAG_PUT => BatchItem::Put {
            group: take_varint(input)?,
            key: take_slice(input)?,
            value: take_slice(input)?,
        },
        TAG_DELETE => BatchItem::Delete { group: take_varint(input)?, key: take_slice(input)? },
        TAG_REMOVE => BatchItem::Remove { group: take_varint(input)? },
        TAG_DISCARD => BatchItem::Discard { below_segment: take_varint(input)? },
        TAG_TRUNCATE => {
            BatchItem::Truncate { group: take_varint(input)?, from: take_varint(input)? }
        }
        TAG_MOVE => {
            let (first, count) = (take_varint(input)?, take_varint(input)?);
            let offset = item.len() - input.len();
            let (head, bytes) = take_append(input)?;
            if !head.holds(first, count) {
                return Err("a move is of entries that its append does not hold");
            }
            BatchItem::Move(StoredAppend { first, count, offset, head, bytes })
        }
        TAG_STALE => {
            for _ in 0..STALE_NUMBERS {
                take_varint(input)?;
            }
            BatchItem::Stale
        }
        _ => return Err("an item has a tag that this version does not know"),
    })
}

/// The items of a frame's body, each with its offset in the frame; none behind one that cannot be
/// read.
pub(crate) fn items_of(
    items: &[u8],
) -> impl Iterator<Item = (usize, Result<DecodedItem<'_>, &'static str>)> {
    let mut input = items;
    std::iter::from_fn(move || {
        let offset = FRAME_HEADER_BYTES + items.len() - input.len();
        let item = (!input.is_empty()).then(|| take_item(&mut input))?;
        if item.is_err() {
            input = &[];
        }
        Some((offset, item))
    })
}

/// Reads an append and moves `input` behind it. Returns its head, and all of it.
fn take_append<'a>(input: &mut &'a [u8]) -> Result<(AppendHead<'a>, &'a [u8]), &'static str> {
    let head = AppendHead::decode(input)?;
    let item_bytes = usize::try_from(head.stored_bytes)
        .ok()
        .and_then(|data| data.checked_add(head.head_bytes))
        .ok_or(CUT_SHORT)?;
    let (append, rest) = input.split_at_checked(item_bytes).ok_or(CUT_SHORT)?;
    *input = rest;
    Ok((head, append))
}
