//! A batch: the changes of one atomic write, to any number of groups.
//!
//! A batch is encoded while it is built, in the caller's thread. Besides the bytes it keeps a list
//! of its changes, by which it is checked at admission and applied to the index after the write.

use crate::batch::frame::{Append, Change, Changes, Frame, WritePriority, priority_of};
use crate::config::BATCH_BYTES_CEILING;
use crate::error::Error;
use crate::format::item::{self, BatchItem, EntryRow, PlainItem, TermRuns};
use crate::format::layout::{self, ALIGNMENT_BYTES, FRAME_HEADER_BYTES};
use bytes::Bytes;
use smallvec::SmallVec;

/// One entry of a group's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its index in the group's log; the first there can be is 1.
    pub index: u64,
    /// The term in which it was proposed.
    pub term: u64,
    /// Opaque to the engine.
    pub kind: u8,
    /// Opaque to the engine.
    pub data: Bytes,
}

/// An entry whose data is borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryRef<'a> {
    /// See [`Entry::index`].
    pub index: u64,
    /// See [`Entry::term`].
    pub term: u64,
    /// See [`Entry::kind`].
    pub kind: u8,
    /// See [`Entry::data`].
    pub data: &'a [u8],
}

impl<'a> From<&'a Entry> for EntryRef<'a> {
    fn from(entry: &'a Entry) -> EntryRef<'a> {
        EntryRef { index: entry.index, term: entry.term, kind: entry.kind, data: &entry.data }
    }
}

/// Changes to any number of groups that are all there after a crash, or not at all.
///
/// The changes take effect in the order in which they were added. The first wrong call is
/// remembered and is the error of the write.
#[derive(Debug, Default)]
pub struct LogBatch {
    /// Room for the frame's header, then the items; nothing if there are none.
    pub(crate) bytes: Vec<u8>,
    pub(crate) changes: Changes,
    /// Its priority, if that does not follow from the changes.
    priority: Option<WritePriority>,
    fault: Option<Error>,
}

impl LogBatch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> LogBatch {
        LogBatch::default()
    }

    /// An empty batch for live records that are rewritten.
    pub(crate) fn of_rewrite(priority: WritePriority) -> LogBatch {
        LogBatch { priority: Some(priority), ..LogBatch::new() }
    }

    /// Forgets all changes and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.changes.clear();
        self.fault = None;
    }

    /// Whether there is nothing to write. Writing an empty batch is an error.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.fault.is_none()
    }

    /// How many bytes the changes take in the log, without the frame around them and before
    /// anything is compressed.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.len().saturating_sub(FRAME_HEADER_BYTES) as u64
    }

    /// Appends entries, whose indexes must follow one another: a slice of [`Entry`], or an iterator
    /// over [`EntryRef`]. If they begin at or below the group's last index, they replace everything
    /// from there on. A new group may begin at any index. No entries, no change. The data is copied
    /// once.
    pub fn append<'a, E>(&mut self, group: u64, entries: impl IntoIterator<Item = E>)
    where
        E: Into<EntryRef<'a>>,
    {
        let entries: SmallVec<[EntryRef<'a>; 4]> = entries.into_iter().map(Into::into).collect();
        self.append_refs(group, &entries);
    }

    fn append_refs(&mut self, group: u64, entries: &[EntryRef<'_>]) {
        let Some(first) = entries.first().map(|e| e.index) else { return };
        let count = entries.len() as u64;
        if first == 0 || first.checked_add(count).is_none() {
            return self.set_fault(Error::Invalid(format!(
                "group {group}: {count} entries from {first} on, indexes are from 1 to below 2^64 - 1"
            )));
        }
        if let Some((entry, index)) = entries.iter().zip(first..).find(|(e, at)| e.index != *at) {
            return self.set_fault(Error::Invalid(format!(
                "group {group}: the entries of an append do not follow one another, {got} stands where {index} is next",
                got = entry.index
            )));
        }
        let data_bytes = entries.iter().map(|e| e.data.len() as u64).sum::<u64>();
        if !self.has_room(data_bytes + 32 * (count + 1)) {
            return;
        }
        let terms = term_runs(entries);
        let begin = self.bytes.len();
        let rows = entries.iter().map(|e| EntryRow {
            checksum: item::entry_checksum(group, e.index, e.term, e.kind, e.data),
            kind: e.kind,
            data_bytes: e.data.len() as u64,
        });
        let runs = terms.iter().copied();
        item::put_append_head(&mut self.bytes, group, first, runs, rows, data_bytes);
        for entry in entries {
            self.bytes.extend_from_slice(entry.data);
        }
        assert!(u32::try_from(self.bytes.len()).is_ok(), "offsets in a frame are 32 bits");
        debug_assert_eq!(terms.iter().map(|(run, _)| run).sum::<u64>(), count, "{terms:?}");
        let (offset, item_bytes) = (begin as u32, (self.bytes.len() - begin) as u32);
        let append = Append { group, first, count, terms, offset, item_bytes };
        self.changes.push(Change::Append(append));
    }

    /// Drops the entries from `index` on, which must be from the first index to the last plus one.
    /// If nothing is left of a log that was never compacted, it has not begun: the next append may
    /// begin anywhere, and a handle of a group that has no keys either sees nothing of it.
    pub fn truncate_from(&mut self, group: u64, index: u64) {
        if index == 0 {
            return self.set_fault(wrong_begin(group, index));
        }
        self.push_item(BatchItem::Truncate { group, from: index });
    }

    /// Drops the entries below `first`. The term of the one just before stays answerable and is
    /// `term_before`. With a `first` above the last index plus one the log is reset: it is empty
    /// and the next append begins at exactly `first`. Below the first index nothing changes.
    pub fn compact_to(&mut self, group: u64, first: u64, term_before: u64) {
        if first == 0 || first == u64::MAX {
            return self.set_fault(wrong_begin(group, first));
        }
        self.push_item(BatchItem::Compact { group, first, term_before });
    }

    /// Sets a key of the group. Values are kept in memory: they should be few and small.
    pub fn put(&mut self, group: u64, key: &[u8], value: &[u8]) {
        self.push_item(BatchItem::Put { group, key, value });
    }

    /// Removes a key of the group, if it is there.
    pub fn delete(&mut self, group: u64, key: &[u8]) {
        self.push_item(BatchItem::Delete { group, key });
    }

    /// Removes all entries and keys of the group, if it is there.
    pub fn remove_group(&mut self, group: u64) {
        self.push_item(BatchItem::Remove { group });
    }

    /// Makes every segment below dead: its file may be missing from now on.
    pub(crate) fn discard(&mut self, below_segment: u64) {
        self.push_item(BatchItem::Discard { below_segment });
    }

    fn push_item(&mut self, note: PlainItem<'_>) {
        let strings_bytes = match note {
            BatchItem::Put { key, value, .. } => key.len() as u64 + value.len() as u64,
            BatchItem::Delete { key, .. } => key.len() as u64,
            _ => 0,
        };
        if self.has_room(32 + strings_bytes) {
            item::put_plain_item(&mut self.bytes, note);
            self.changes.push(note.map(|never| match never {}, Bytes::copy_from_slice));
        }
    }

    /// Adds a rewritten append, with its bytes verbatim: `count` entries from `first` on are live,
    /// and are here from now on. The item may be as long as a batch can be: with its prefix it is a
    /// little longer.
    ///
    /// # Errors
    ///
    /// The bytes are no such append.
    pub(crate) fn move_entries(
        &mut self,
        first: u64,
        count: u64,
        item: &[u8],
    ) -> Result<(), &'static str> {
        self.make_room(32 + item.len());
        let begin = self.bytes.len();
        item::put_move_head(&mut self.bytes, first, count);
        self.bytes.extend_from_slice(item);
        assert!(u32::try_from(self.bytes.len()).is_ok(), "offsets in a frame are 32 bits");
        let mut input = &self.bytes[begin..];
        let moved = match item::take_item(&mut input) {
            Ok(_) if !input.is_empty() => Err("something follows an append that is moved"),
            other => other.map(|item| Change::of(item, begin as u32)),
        };
        match moved {
            Ok(change) => self.changes.push(change),
            Err(what) => {
                self.bytes.truncate(begin);
                return Err(what);
            }
        }
        Ok(())
    }

    /// Closes the batch: pads it and computes its checksum.
    pub(crate) fn seal(mut self, bytes_max: u64) -> Result<Frame, Error> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        if self.changes.is_empty() {
            return Err(Error::Invalid("an empty batch".to_owned()));
        }
        layout::pad(&mut self.bytes);
        let bytes = self.bytes.len() as u64;
        if bytes > bytes_max {
            return Err(Error::TooLarge { bytes, limit: bytes_max });
        }
        debug_assert!(self.bytes.last().is_some_and(|last| *last != 0), "a frame looks torn");
        let body_checksum = layout::body_checksum(&self.bytes[FRAME_HEADER_BYTES..]);
        let LogBatch { bytes, changes, priority, .. } = self;
        let priority = priority.unwrap_or_else(|| priority_of(&changes));
        Ok(Frame { bytes, body_checksum, changes, priority })
    }

    fn set_fault(&mut self, fault: Error) {
        self.fault.get_or_insert(fault);
    }

    /// Offsets within a frame are 32 bits, so a batch stops growing here, before bytes are copied.
    fn has_room(&mut self, more_bytes: u64) -> bool {
        let bytes = self.bytes() + more_bytes;
        if bytes > BATCH_BYTES_CEILING {
            self.set_fault(Error::TooLarge { bytes, limit: BATCH_BYTES_CEILING });
        }
        if self.fault.is_some() {
            return false;
        }
        self.make_room(more_bytes as usize);
        true
    }

    fn make_room(&mut self, more_bytes: usize) {
        if self.bytes.is_empty() {
            // Room for the header, and for all of the batch if this is its only item.
            self.bytes.reserve(FRAME_HEADER_BYTES + more_bytes + ALIGNMENT_BYTES);
            self.bytes.resize(FRAME_HEADER_BYTES, 0);
        }
        self.bytes.reserve(more_bytes);
    }
}

fn wrong_begin(group: u64, index: u64) -> Error {
    Error::Invalid(format!(
        "group {group}: {index}, a log begins at an index from 1 to below 2^64 - 1"
    ))
}

fn term_runs(entries: &[EntryRef<'_>]) -> TermRuns {
    entries.chunk_by(|a, b| a.term == b.term).map(|run| (run.len() as u64, run[0].term)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(first: u64, terms: &[u64]) -> Vec<Entry> {
        let data = Bytes::from_static(b"some data");
        terms
            .iter()
            .zip(first..)
            .map(|(term, index)| Entry { index, term: *term, kind: 1, data: data.clone() })
            .collect()
    }

    fn fault(build: impl FnOnce(&mut LogBatch)) -> Error {
        let mut batch = LogBatch::new();
        build(&mut batch);
        assert!(!batch.is_empty() || batch.fault.is_none());
        batch.seal(1 << 20).expect_err("the batch is wrong")
    }

    #[test]
    fn wrong_batches_are_refused_before_anything_is_written() {
        let text = |build: fn(&mut LogBatch)| fault(build).to_string();
        assert!(text(|_| ()).ends_with("an empty batch"));
        assert!(text(|b| b.append(1, &entries(1, &[]))).ends_with("an empty batch"));
        assert!(
            text(|b| b.append(7, &entries(0, &[1, 1]))).contains("group 7: 2 entries from 0 on")
        );
        assert!(text(|b| b.compact_to(7, u64::MAX, 0)).contains("group 7: 18446744073709551615"));
        assert!(matches!(fault(|b| b.append(1, &entries(0, &[1]))), Error::Invalid(_)));
        let mut last = entries(4, &[1]);
        last[0].index = u64::MAX;
        assert!(matches!(fault(|b| b.append(1, &last)), Error::Invalid(_)));
        assert!(matches!(fault(|b| b.compact_to(1, 0, 0)), Error::Invalid(_)));
        assert!(matches!(fault(|b| b.compact_to(1, u64::MAX, 0)), Error::Invalid(_)));
        assert!(matches!(fault(|b| b.truncate_from(1, 0)), Error::Invalid(_)));
        assert!(matches!(fault(|b| b.put(1, b"k", &vec![0; 1 << 20])), Error::TooLarge { .. }));
        let mut hole = entries(4, &[1, 1, 2]);
        hole[1].index = 6;
        assert!(matches!(fault(|b| b.append(1, &hole)), Error::Invalid(_)));
        // The first fault is told, and later changes do not cover it.
        let both = fault(|b| {
            b.append(1, &hole);
            b.put(1, b"k", b"v");
        });
        assert!(matches!(both, Error::Invalid(what) if what.contains("follow")));
    }

    #[test]
    fn a_batch_says_in_bytes_what_it_says_in_changes() {
        let mut batch = LogBatch::new();
        batch.append(7, &entries(3, &[1, 1, 2]));
        batch.put(7, b"k", b"v");
        assert!(!batch.is_empty() && batch.bytes() > 27);
        let frame = batch.seal(1 << 20).expect("it is right");
        assert!(!frame.only_reclaims());
        let Change::Append(append) = &frame.changes[0] else { panic!("not an append") };
        assert_eq!((append.group, append.first, append.count), (7, 3, 3));
        assert_eq!(append.terms.as_slice(), [(2, 1), (1, 2)]);
        let item = &frame.bytes[append.offset as usize..][..append.item_bytes as usize];
        assert!(item.ends_with(b"some data"));
        assert!(
            item::AppendHead::decode(item)
                .expect("a head")
                .terms()
                .eq(append.terms.iter().copied())
        );
    }

    #[test]
    fn borrowed_entries_make_the_same_bytes() {
        let owned = entries(3, &[1, 1, 2, 3, 3, 3]);
        let (mut one, mut other) = (LogBatch::new(), LogBatch::new());
        one.append(7, &owned);
        other.append(7, owned.iter().map(EntryRef::from));
        assert_eq!(one.bytes, other.bytes);
        assert!(one.bytes() > 54);
    }

    #[test]
    fn an_append_is_moved_as_it_is() {
        let mut batch = LogBatch::new();
        batch.append(7, &entries(3, &[1, 1, 2, 3]));
        let item = batch.bytes[FRAME_HEADER_BYTES..].to_vec();
        let mut batch = LogBatch::new();
        batch.delete(7, b"k");
        let before = batch.bytes();
        assert!(batch.move_entries(2, 2, &item).is_err());
        assert!(batch.move_entries(3, 2, &item[1..]).is_err());
        assert!(batch.move_entries(3, 2, &[&item[..], &[0]].concat()).is_err());
        assert_eq!(batch.bytes(), before, "what is wrong leaves nothing");
        batch.move_entries(4, 2, &item).expect("it is right");
        let frame = batch.seal(1 << 20).expect("it is right");
        let Change::Move(moved) = &frame.changes[1] else { panic!("not a move") };
        assert_eq!((moved.group, moved.first, moved.count), (7, 4, 2));
        assert_eq!(moved.terms.as_slice(), [(1, 1), (1, 2)]);
        assert_eq!(frame.bytes[moved.offset as usize..][..moved.item_bytes as usize], item);
        assert!(!frame.only_reclaims());
    }

    #[test]
    fn a_cleared_batch_is_as_new() {
        let mut batch = LogBatch::new();
        batch.compact_to(1, 0, 0);
        batch.remove_group(2);
        batch.clear();
        assert!(batch.is_empty() && batch.bytes() == 0);
        batch.remove_group(3);
        assert!(batch.seal(1 << 20).expect("nothing is wrong").only_reclaims());
    }
}
