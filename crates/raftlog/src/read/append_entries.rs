//! All entries of an append in order, each with its data or the reason why that cannot be read. For
//! tools; reads go by [`crate::read::range_read`].

use crate::format::block::{BlockCodec, PlacedBlock};
use crate::format::item::{self, AppendHead, EntryRow};
use crate::format::lz4;
use std::borrow::Cow;

/// An entry of an append.
#[derive(Debug)]
pub(crate) struct UnpackedEntry<'a> {
    pub(crate) index: u64,
    pub(crate) term: u64,
    pub(crate) kind: u8,
    /// Its data, if that matches the entry's checksum.
    pub(crate) data: Result<&'a [u8], &'static str>,
}

/// Calls `look` with each entry of the append `item`. Decompresses one block at a time.
pub(crate) fn each_entry(
    item: &[u8],
    head: &AppendHead<'_>,
    mut look: impl FnMut(UnpackedEntry<'_>),
) {
    let mut terms = head.terms().flat_map(|(count, term)| (0..count).map(move |_| term));
    for block in head.blocks() {
        let raw = item.get(block.stored.clone()).ok_or("an append is cut short");
        let raw = raw.and_then(|stored| raw_bytes(&block, stored));
        for at in block.entries.clone() {
            let (Some(term), Ok((row, place))) = (terms.next(), head.row(at)) else { return };
            let place = place.start - block.raw.start..place.end - block.raw.start;
            let index = head.first + at;
            let data = raw.as_ref().map_err(|what| *what).and_then(|raw| {
                let data = raw.get(place.start as usize..place.end as usize);
                proved(head.group, index, term, row, data.ok_or("an append is cut short")?)
            });
            look(UnpackedEntry { index, term, kind: row.kind, data });
        }
    }
}

fn raw_bytes<'a>(block: &PlacedBlock, stored: &'a [u8]) -> Result<Cow<'a, [u8]>, &'static str> {
    match block.codec {
        BlockCodec::Raw => Ok(Cow::Borrowed(stored)),
        BlockCodec::Lz4 => {
            Ok(Cow::Owned(lz4::decompress(stored, block.raw_bytes(), block.raw_bytes(), 0)?))
        }
    }
}

fn proved(
    group: u64,
    index: u64,
    term: u64,
    row: EntryRow,
    data: &[u8],
) -> Result<&[u8], &'static str> {
    if item::entry_checksum(group, index, term, row.kind, data) == row.checksum {
        Ok(data)
    } else {
        Err("an entry fails its checksum")
    }
}
