//! Roots: one published state of the store, and the notice that no reader holds it any more.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::error::Result;
use crate::memory::meta::MetaPage;
use crate::page::PageRef;
use crate::page::catalogue::TreeEntry;
use crate::page::deferred_free::DeferredFree;

/// Trees that a root remembers. A node reads two for most requests, of five in all.
const OPENED_MAX: usize = 4;

/// Roots that have ended, until the writer collects them.
pub(crate) type EndedRoots = Arc<Mutex<Vec<EndedRoot>>>;

/// A holder of a root's pages that needs them no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndedRoot {
    /// All readers of the root; no new one can come.
    Readers(u64),
    /// The file, of which it was the durable state.
    Durable(u64),
}

/// One published state. As long as it lives, no page that it reaches is used for anything else.
#[derive(Debug)]
pub(crate) struct Root {
    /// The transaction that published it.
    pub(crate) txid: u64,
    /// The tree of trees.
    pub(crate) catalogue: PageRef,
    /// Subtrees whose free is deferred.
    pub(crate) deferred_free: DeferredFree,
    /// The commit metadata of the caller.
    pub(crate) commit_metadata: Arc<[u8]>,
    /// Trees that readers of this root have opened, the first ones first. The root that follows
    /// begins without any: their entries may have changed.
    opened: [OnceLock<(Box<str>, TreeEntry)>; OPENED_MAX],
    /// The notice that it leaves when it is dropped.
    ending: EndedRoot,
    ended: EndedRoots,
}

impl Root {
    /// The root that follows this one.
    pub(crate) fn next(
        &self,
        catalogue: PageRef,
        deferred_free: DeferredFree,
        commit_metadata: &Arc<[u8]>,
    ) -> Arc<Root> {
        let (txid, commit_metadata, ended) =
            (self.txid + 1, Arc::clone(commit_metadata), Arc::clone(&self.ended));
        Arc::new(Root {
            txid,
            catalogue,
            deferred_free,
            commit_metadata,
            opened: Default::default(),
            ending: EndedRoot::Readers(txid),
            ended,
        })
    }

    /// The root that a meta page names.
    pub(crate) fn durable(meta: &MetaPage, ended: EndedRoots) -> Arc<Root> {
        let MetaPage { txid, catalogue, deferred_free, .. } = *meta;
        let (commit_metadata, ending) =
            (meta.commit_metadata.as_slice().into(), EndedRoot::Readers(txid));
        let opened = Default::default();
        Arc::new(Root { txid, catalogue, deferred_free, commit_metadata, opened, ending, ended })
    }

    /// The same state as that of the file: it keeps what lies there, and nothing in memory, so no
    /// page may be borrowed from it.
    pub(crate) fn of_the_file(&self) -> Arc<Root> {
        let Root { txid, catalogue, deferred_free, .. } = *self;
        let (commit_metadata, ended) = (Arc::clone(&self.commit_metadata), Arc::clone(&self.ended));
        Arc::new(Root {
            txid,
            catalogue,
            deferred_free,
            commit_metadata,
            opened: Default::default(),
            ending: EndedRoot::Durable(txid),
            ended,
        })
    }

    /// The tree called `name`: as it was found before, or else as `find` finds it in the catalogue,
    /// which is remembered. A tree that is not there is looked for each time.
    #[inline]
    pub(crate) fn tree(
        &self,
        name: &str,
        find: impl FnOnce() -> Result<Option<TreeEntry>>,
    ) -> Result<Option<TreeEntry>> {
        let mut known = self.opened.iter().map_while(OnceLock::get);
        if let Some((_, entry)) = known.find(|(known, _)| **known == *name) {
            return Ok(Some(*entry));
        }
        let found = find()?;
        if let Some(entry) = found {
            // The first free place, unless another thread has remembered the same tree meanwhile.
            let remember = |place: &OnceLock<(Box<str>, _)>| {
                *place.get_or_init(|| (name.into(), entry)).0 == *name
            };
            let _ = self.opened.iter().any(remember);
        }
        Ok(found)
    }

    /// Whether bytes in memory may be borrowed from it.
    #[inline]
    pub(crate) fn keeps_frames(&self) -> bool {
        matches!(self.ending, EndedRoot::Readers(_))
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        // Only queued: a root may be dropped on any thread, which must not wait for the space.
        self.ended.lock().push(self.ending);
    }
}
