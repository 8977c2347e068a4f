//! A place between two entries that can be moved in both directions.

use bytes::Bytes;

use crate::error::Result;
use crate::keys::joined;
use crate::node::Node;
use crate::page::PageRef;
use crate::source::Source;
use crate::tree::get::value;
use crate::tree::walk::Walk;

/// A place between two entries.
pub(crate) struct Cursor<S> {
    walk: Walk<S>,
    /// How many entries of the leaf lie before the place.
    before: usize,
}

impl<S: Source> Cursor<S> {
    /// Before the first entry; nothing is read yet.
    pub(crate) fn new(source: S, root: PageRef) -> Cursor<S> {
        Cursor { walk: Walk::new(source, root), before: 0 }
    }

    /// Goes before the first entry whose key is not less than `key`.
    pub(crate) fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.walk.to(key)?;
        let search = |frame: &crate::page::Frame| Node(frame).search(key).unwrap_or_else(|i| i);
        self.before = self.walk.leaf().map_or(0, search);
        Ok(())
    }

    /// Goes before the first entry.
    pub(crate) fn seek_first(&mut self) -> Result<()> {
        self.walk.first()?;
        self.before = 0;
        Ok(())
    }

    /// Goes behind the last entry.
    pub(crate) fn seek_last(&mut self) -> Result<()> {
        self.walk.last()?;
        self.before = self.count();
        Ok(())
    }

    /// The entry behind the place, which moves behind it.
    pub(crate) fn next(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        if self.walk.leaf().is_none() {
            self.seek_first()?;
        }
        if self.before == self.count() {
            if !self.walk.forward()? {
                return Ok(None);
            }
            self.before = 0;
        }
        self.before += 1;
        self.entry(self.before - 1)
    }

    /// The entry before the place, which moves before it.
    pub(crate) fn prev(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        if self.before == 0 {
            if self.walk.leaf().is_none() || !self.walk.backward()? {
                return Ok(None);
            }
            self.before = self.count();
        }
        self.before -= 1;
        self.entry(self.before)
    }

    fn count(&self) -> usize {
        self.walk.leaf().map_or(0, |frame| Node(frame).count())
    }

    fn entry(&self, i: usize) -> Result<Option<(Bytes, Bytes)>> {
        let Some(frame) = self.walk.leaf() else { return Ok(None) };
        let node = Node(frame);
        if i >= node.count() {
            return Ok(None);
        }
        let key = Bytes::from(joined(node.key(i)));
        Ok(Some((key, value(self.walk.source(), node, i)?)))
    }
}
