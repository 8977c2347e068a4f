//! Backup of a snapshot as a stream, full or incremental; `stream` has the bytes.
//!
//! A difference is told by content: place, length and a hash of each page and long value. So the
//! history of a page does not matter, and an incremental backup stays right after the store was
//! rolled back or restored.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Read, Write};

use super::stream::{StreamEnd, StreamHead, StreamReader, StreamRecord, StreamWriter};
use crate::error::{Error, Result};
use crate::page::branch::{self, Child};
use crate::page::catalogue::TreeEntry;
use crate::page::leaf::{self, LeafValue};
use crate::page::slotted::{CHILD_BYTES, SlottedPage};
use crate::page::source::PageSource;
use crate::page::unit_set::UnitSet;
use crate::page::{self, CRC_END, PageRef, Span, units_for};
use crate::txn::snapshot::Snapshot;

/// The index of the streams of a backup: the place of each page and long value, and a hash of it of
/// 64 bits. Memory for each: 50 bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackupIndex {
    spans: BTreeMap<u64, (u32, u64)>,
    /// The id of the last stream; 0 if there is none.
    id: u64,
    txid: u64,
}

/// Counts of [`Snapshot::backup_to`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupReport {
    /// The transaction of the snapshot.
    pub txid: u64,
    /// Pages and long values that were written.
    pub written: u64,
    /// Those that the streams before have already.
    pub kept: u64,
    /// Bytes of the stream.
    pub bytes: u64,
}

impl BackupIndex {
    /// Reads the streams of a backup: one that is whole, and those that follow it, in order.
    ///
    /// # Errors
    ///
    /// [`Error::Backup`] if a stream is damaged or cut short, or does not follow the one before it;
    /// [`Error::Unsupported`], [`Error::Io`].
    pub fn read(streams: &mut [&mut dyn Read]) -> Result<BackupIndex> {
        let mut index = BackupIndex::default();
        for (i, stream) in streams.iter_mut().enumerate() {
            index.follow(i as u64, *stream, &mut |_, _| Ok(()))?;
        }
        Ok(index)
    }

    /// The transaction of the last stream.
    pub fn txid(&self) -> u64 {
        self.txid
    }

    /// Takes in stream `number`, which must follow those that are there; `put` gets each page and
    /// long value, and its unit.
    pub(super) fn follow(
        &mut self,
        number: u64,
        stream: &mut dyn Read,
        put: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<StreamEnd> {
        let corrupt = |what| Err(Error::Backup { stream: number, what });
        let mut reader = StreamReader::begin(number, stream)?;
        let StreamRecord::Begin(StreamHead { base, .. }) = reader.next()? else {
            return corrupt("it does not begin with its head");
        };
        if base != self.id {
            return corrupt("it does not follow the one before it");
        }
        loop {
            match reader.next()? {
                StreamRecord::Put(unit, bytes) => {
                    put(unit, &bytes)?;
                    self.enter(unit, &bytes);
                }
                StreamRecord::End(end) => {
                    self.id = reader.id();
                    self.txid = end.txid;
                    return Ok(end);
                }
                StreamRecord::Begin(_) => return corrupt("it begins twice"),
            }
        }
    }

    /// Notes the page or value at `unit`. The entries it overwrites are gone.
    fn enter(&mut self, unit: u64, bytes: &[u8]) {
        let units = units_for(bytes.len());
        assert!(units > 0, "nothing was put at unit {unit}");
        let end = unit + u64::from(units);
        let reaches = |(&start, &(units, _)): (&u64, &(u32, u64))| {
            (start + u64::from(units) > unit).then_some(start)
        };
        while let Some(start) = self.spans.range(..end).next_back().and_then(reaches) {
            self.spans.remove(&start);
        }
        self.spans.insert(unit, (units, hash(bytes)));
    }

    fn has(&self, unit: u64, bytes: &[u8]) -> bool {
        let found = self.spans.get(&unit);
        found.is_some_and(|&(units, sum)| units == units_for(bytes.len()) && sum == hash(bytes))
    }
}

/// Tells bytes apart. A checksum of 32 bits is made for damage: among millions of pages that were
/// replaced in their places two may well have the same, and a caller that chooses a value can
/// choose its checksum.
fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

impl Snapshot {
    /// Writes the state of this snapshot to a stream: all of it, or the pages that `base`, the
    /// index of streams before, does not have. [`restore`](super::restore) makes a file of it. The
    /// store goes on meanwhile; nothing needs to be durable.
    ///
    /// Reads every page and long value, also for a stream of differences; that one is only shorter.
    /// The stream is not synced. Memory: one bit for each page of the file, and the pages of one
    /// path.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] if a page is damaged, or named twice, [`Error::Io`] if it cannot be read
    /// or the stream not be written. The bytes that were written then are no backup, and
    /// [`BackupIndex::read`] refuses them.
    pub fn backup_to(
        &self,
        out: &mut dyn Write,
        base: Option<&BackupIndex>,
    ) -> Result<BackupReport> {
        let none = BackupIndex::default();
        let base = base.unwrap_or(&none);
        let (out, seen) = (StreamWriter::begin(out)?, UnitSet::default());
        let mut copy = BackupCopy { snapshot: self, base, out, kept: 0, seen };
        copy.out.put_begin(StreamHead { txid: self.txid(), base: base.id })?;
        let (catalogue, deferred_free) = (self.root().catalogue, self.root().deferred_free);
        let mut trees = Vec::new();
        copy.tree(catalogue, &mut |value| trees.push(TreeEntry::decode(value, catalogue)))?;
        for entry in trees {
            copy.tree(entry?.root, &mut |_| ())?;
        }
        let mut subtrees = Vec::new();
        copy.tree(deferred_free.list.root, &mut |value| {
            subtrees.push((value.len() == CHILD_BYTES).then(|| Child::decode(value)));
        })?;
        for child in subtrees {
            let what = "entry of the trash";
            let child = child.ok_or(Error::Corrupt { page: deferred_free.list.root.id(), what })?;
            copy.tree(child.page_ref, &mut |_| ())?;
        }
        let BackupCopy { out, kept, .. } = copy;
        let end = StreamEnd {
            txid: self.txid(),
            catalogue,
            deferred_free,
            commit_metadata: self.commit_metadata().to_vec(),
        };
        let (written, bytes) = out.finish(&end)?;
        Ok(BackupReport { txid: self.txid(), written, kept, bytes })
    }
}

/// A backup on its way.
struct BackupCopy<'a> {
    snapshot: &'a Snapshot,
    base: &'a BackupIndex,
    out: StreamWriter<'a>,
    kept: u64,
    /// Units that were copied. A forged file that names one twice would have it copied twice, and
    /// all below it, and below that again.
    seen: UnitSet,
}

impl BackupCopy<'_> {
    /// Copies a tree; `each` gets the values that are inline.
    fn tree(&mut self, page_ref: PageRef, each: &mut dyn FnMut(&[u8])) -> Result<()> {
        if page_ref.is_none() {
            return Ok(());
        }
        let snapshot = self.snapshot;
        let page = snapshot.page(page_ref)?;
        self.see(page_ref.span())?;
        // Only the file has a page's checksum in it.
        let mut bytes = page.to_vec();
        bytes[..CRC_END].copy_from_slice(&page::checksum(&page));
        self.put(page_ref.id(), &bytes)?;
        let node = SlottedPage(&page);
        if !node.is_leaf() {
            for i in 0..branch::child_count(node) {
                let child = branch::child(node, i);
                let is_below = SlottedPage(&snapshot.page(child)?).level() < node.level();
                if !is_below {
                    return Err(Error::Corrupt { page: child.id(), what: "level" });
                }
                self.tree(child, each)?;
            }
            return Ok(());
        }
        for i in 0..node.count() {
            match leaf::value(node, i) {
                LeafValue::Inline(value) => each(value),
                LeafValue::Extent(extent) => {
                    let value = snapshot.extent(&extent)?;
                    self.see(extent.span())?;
                    self.put(extent.start, &value)?;
                }
            }
        }
        Ok(())
    }

    /// Notes a span, which was read and so lies in the file.
    fn see(&mut self, span: Span) -> Result<()> {
        let corrupt = |what| Err(Error::Corrupt { page: span.start, what });
        match span.units {
            // Nothing was read to prove where it lies.
            0 => corrupt("a long value of no length"),
            units if self.seen.insert_run(span.start, u64::from(units)) => Ok(()),
            _ => corrupt("it is reached twice"),
        }
    }

    fn put(&mut self, unit: u64, bytes: &[u8]) -> Result<()> {
        if self.base.has(unit, bytes) {
            self.kept += 1;
            return Ok(());
        }
        self.out.put(unit, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_bytes_with_the_same_checksum_are_other_bytes() {
        let one = vec![7; 5000];
        // The checksum's polynomial, added anywhere, leaves the checksum as it is.
        let mut other = one.clone();
        for (byte, bits) in other[100..].iter_mut().zip((1 | 0x82f6_3b78_u64 << 1).to_le_bytes()) {
            *byte ^= bits;
        }
        assert_eq!(crc32c::crc32c(&one), crc32c::crc32c(&other));
        let mut index = BackupIndex::default();
        index.enter(9, &one);
        assert!(index.has(9, &one) && !index.has(8, &one) && !index.has(9, &one[1..]));
        assert!(!index.has(9, &other));
    }
}
