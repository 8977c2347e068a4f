//! All entries of an append, one after the other, each with what became of its data. For tools; a
//! read of some entries goes another way.

use crate::block::{self, Block, Codec};
use crate::item::{self, AppendHead, Row};
use std::borrow::Cow;

/// An entry of an append.
#[derive(Debug)]
pub(crate) struct Unpacked<'a> {
    pub(crate) index: u64,
    pub(crate) term: u64,
    pub(crate) kind: u8,
    /// Its data, if that holds the entry's checksum.
    pub(crate) data: Result<&'a [u8], &'static str>,
}

/// Calls `look` with each entry of the append that `item` is. Decompresses one block at a time.
pub(crate) fn each_entry(item: &[u8], head: &AppendHead<'_>, mut look: impl FnMut(Unpacked<'_>)) {
    let mut terms = head.terms().flat_map(|(count, term)| (0..count).map(move |_| term));
    let (mut rows, mut index, mut begin) = (head.rows(), head.first, head.head_bytes);
    for block in head.blocks() {
        let end = begin.saturating_add(block.stored_bytes as usize);
        let own = rows.clone().take(block.entries as usize);
        let raw = item.get(begin..end).ok_or("an append is cut short");
        let raw = raw.and_then(|stored| raw_bytes(&block, stored, own.clone()));
        let mut at = 0;
        for row in own {
            let Some(term) = terms.next() else { return };
            let data = raw.as_ref().map_err(|what| *what).and_then(|raw| {
                let data = raw.get(at..at + row.data_bytes as usize);
                proved(head.group, index, term, row, data.ok_or("an append is cut short")?)
            });
            let Row { kind, data_bytes, .. } = row;
            look(Unpacked { index, term, kind, data });
            at = at.saturating_add(data_bytes as usize);
            index += 1;
        }
        begin = end;
        if let Some(others) = (block.entries as usize).checked_sub(1) {
            rows.nth(others);
        }
    }
}

fn raw_bytes<'a>(
    block: &Block,
    stored: &'a [u8],
    rows: impl Iterator<Item = Row>,
) -> Result<Cow<'a, [u8]>, &'static str> {
    match block.codec {
        Codec::Raw => Ok(Cow::Borrowed(stored)),
        Codec::Lz4 => {
            let raw_bytes = rows.map(|row| row.data_bytes).sum::<u64>();
            Ok(Cow::Owned(block::decompress(stored, raw_bytes as usize)?))
        }
    }
}

fn proved(group: u64, index: u64, term: u64, row: Row, data: &[u8]) -> Result<&[u8], &'static str> {
    if item::entry_checksum(group, index, term, row.kind, data) == row.checksum {
        Ok(data)
    } else {
        Err("an entry fails its checksum")
    }
}
