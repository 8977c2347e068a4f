//! Reading again what the file holds, a part at a time, to find rot before somebody needs the page.

use std::ops::Bound;

use crate::branch;
use crate::catalogue;
use crate::error::{Error, Result};
use crate::keys::joined;
use crate::leaf;
use crate::node::Node;
use crate::page::PageRef;
use crate::pool::{Dirty, Pool};
use crate::read_txn::Snapshot;
use crate::root::Root;
use crate::tree::{Keys, Range};
use crate::view::PageBytes;

/// How far a pass over the whole store has come. It holds nothing of the store, and can be kept as
/// long as one likes between two steps.
///
/// What is written while a pass is under way may be left out by it: it was checked when it was
/// written.
#[derive(Clone, Debug, Default)]
pub struct Scrub {
    /// The tree that the pass has come to; at first the catalogue, which has no name.
    tree: Option<String>,
    /// The first key that it has not come to.
    key: Vec<u8>,
    is_done: bool,
    bytes: u64,
}

impl Scrub {
    /// A pass that begins with the first page.
    #[must_use]
    pub fn new() -> Scrub {
        Scrub::default()
    }

    /// Whether it has come to the end.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.is_done
    }

    /// Bytes that it has read so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Goes on for about `bytes_max`, at least for one leaf and its values.
    pub(crate) fn step(&mut self, snapshot: &Snapshot, bytes_max: u64) -> Result<()> {
        let mut work = Work { pool: snapshot.pool(), root: snapshot.root(), read: 0, bytes_max };
        let outcome = self.go_on(&mut work, snapshot);
        self.bytes += work.read;
        outcome
    }

    fn go_on(&mut self, work: &mut Work<'_>, snapshot: &Snapshot) -> Result<()> {
        while !self.is_done && work.read < work.bytes_max {
            let root = match &self.tree {
                None => work.root.catalogue,
                Some(name) => root_of(snapshot, name)?,
            };
            let rest = if root.is_none() { None } else { work.page(root, None, &self.key)? };
            match rest {
                Some(key) => self.key = key,
                None => {
                    self.key.clear();
                    let next = tree_behind(snapshot, self.tree.as_deref())?;
                    self.is_done = next.is_none();
                    self.tree = next.or(self.tree.take());
                }
            }
        }
        Ok(())
    }
}

fn root_of(snapshot: &Snapshot, name: &str) -> Result<PageRef> {
    Ok(snapshot.entry(name)?.map_or(PageRef::NONE, |entry| entry.root))
}

/// The tree whose name comes next.
fn tree_behind(snapshot: &Snapshot, name: Option<&str>) -> Result<Option<String>> {
    let low = name.map_or(Bound::Unbounded, |name| Bound::Excluded(name.as_bytes()));
    let root = snapshot.root().catalogue;
    let mut names = Keys::new(Range::new(snapshot, root, low, Bound::Unbounded));
    names.next()?.map(|name| catalogue::name(name, root)).transpose()
}

/// One step.
struct Work<'a> {
    pool: &'a Pool,
    root: &'a Root,
    read: u64,
    bytes_max: u64,
}

impl Work<'_> {
    /// Reads a subtree from `key` on. Returns the key to go on with if it was too much.
    fn page(&mut self, place: PageRef, level: Option<u8>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let page = match self.pool.dirty(self.root, place.id()) {
            Some(Dirty::Page(bytes)) => PageBytes::Borrowed(bytes),
            _ => {
                self.read += place.span().bytes();
                PageBytes::Counted(self.pool.prove_page(place, self.root.txid)?)
            }
        };
        let node = Node(&page);
        if level.is_some_and(|level| level != node.level()) || node.is_leaf() != (node.level() == 0)
        {
            return Err(Error::Corrupt { page: place.id(), what: "level" });
        }
        if node.is_leaf() {
            self.values(node)?;
            return Ok(None);
        }
        let first = branch::child_index(node, key);
        for i in first..branch::child_count(node) {
            // A separator before the child is where another step can begin.
            if i > first && self.read >= self.bytes_max {
                return Ok(Some(joined(node.key(i - 1))));
            }
            let key = if i == first { key } else { b"" };
            let rest = self.page(branch::child(node, i), Some(node.level() - 1), key)?;
            if rest.is_some() {
                return Ok(rest);
            }
        }
        Ok(None)
    }

    fn values(&mut self, node: Node<'_>) -> Result<()> {
        for extent in leaf::extents(node, 0..node.count()) {
            if self.pool.dirty(self.root, extent.start).is_none() {
                self.read += u64::from(extent.len);
                self.pool.prove_extent(&extent)?;
            }
        }
        Ok(())
    }
}
