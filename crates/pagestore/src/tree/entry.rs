//! Entries of a leaf as they are handed out: keys assembled from prefix and suffix, values
//! borrowed.

use crate::error::Result;
use crate::page::leaf;
use crate::page::slotted::SlottedPage;
use crate::page::source::PageSource;
use crate::page::view::ValueRef;

/// A key and its value, borrowed until the next one is asked for.
pub type Entry<'a> = (&'a [u8], &'a [u8]);

/// Memory for the entry that was handed out last.
pub(crate) struct EntryReader<'a> {
    source: &'a dyn PageSource,
    /// The prefix of the leaf, and behind it what the last key added.
    key: Vec<u8>,
    prefix_len: usize,
    /// The last value, if it was a long one.
    long: Option<ValueRef<'a>>,
}

impl<'a> EntryReader<'a> {
    pub(crate) fn new(source: &'a dyn PageSource) -> EntryReader<'a> {
        EntryReader { source, key: Vec::new(), prefix_len: 0, long: None }
    }

    /// Turns to another leaf.
    pub(crate) fn enter(&mut self, leaf: SlottedPage<'_>) {
        self.key.clear();
        self.key.extend_from_slice(leaf.prefix());
        self.prefix_len = self.key.len();
    }

    /// The key of entry `i` of the leaf that was entered last.
    #[inline]
    pub(crate) fn key<'b>(&'b mut self, leaf: SlottedPage<'b>, i: usize) -> &'b [u8] {
        let suffix = leaf.suffix(i);
        debug_assert_eq!(self.prefix_len, leaf.prefix().len(), "another leaf was entered");
        if self.prefix_len == 0 {
            return suffix;
        }
        self.key.truncate(self.prefix_len);
        self.key.extend_from_slice(suffix);
        &self.key
    }

    /// Entry `i` of the leaf that was entered last.
    #[inline]
    pub(crate) fn entry<'b>(&'b mut self, leaf: SlottedPage<'b>, i: usize) -> Result<Entry<'b>> {
        let value = leaf::value(leaf, i);
        if let leaf::LeafValue::Extent(extent) = &value {
            // The last one goes first: two long values need not be in memory at once.
            self.long = None;
            self.long = Some(self.source.extent(extent)?);
        }
        let EntryReader { key, prefix_len, long, .. } = self;
        let value = match value {
            leaf::LeafValue::Inline(bytes) => bytes,
            leaf::LeafValue::Extent(_) => long.as_ref().expect("put in just now"),
        };
        let suffix = leaf.suffix(i);
        if *prefix_len == 0 {
            return Ok((suffix, value));
        }
        key.truncate(*prefix_len);
        key.extend_from_slice(suffix);
        Ok((key, value))
    }
}
