//! State of the open write transaction: its trees, its recorder and its savepoints.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use crate::config::{NAME_BYTES_MAX, TreeOptions};
use crate::error::{Error, Result, refuse_over};
use crate::memory::root::Root;
use crate::page::catalogue::{self, TreeEntry};
use crate::page::deferred_free::DeferredFree;
use crate::page::{PageRef, PageSize, leaf};
use crate::redo::{RecorderSavepoint, RedoRecorder};
use crate::shared::StoreShared;
use crate::shared::defrag_cursor::{DefragCursor, DefragPart};
use crate::tree::txn_pages::{PagesSavepoint, TxnPages};
use crate::tree::{self, RelocateBudget};
use crate::txn::tree_mut::TreeMut;

/// A savepoint of a write transaction; see [`WriteTxn::savepoint`].
///
/// [`WriteTxn::savepoint`]: crate::WriteTxn::savepoint
#[derive(Clone, Debug)]
pub struct Savepoint(Arc<()>);

/// The state of the transaction.
pub(crate) struct TxnState {
    pub(crate) pages: TxnPages,
    /// Its redo record.
    pub(crate) recorder: RedoRecorder,
    state: TxnRoots,
    /// An operation failed half-way, so the trees may not be whole.
    pub(crate) broken: bool,
    saved: Vec<SavedTxn>,
}

/// The roots that a savepoint must bring back; `TxnPages` brings back the pages.
#[derive(Clone)]
struct TxnRoots {
    catalogue: PageRef,
    deferred_free: DeferredFree,
    /// Shared with the savepoints until the next change.
    trees: Arc<BTreeMap<String, OpenTree>>,
    commit_metadata: Arc<[u8]>,
}

/// A savepoint.
struct SavedTxn {
    /// The caller holds a clone of this very one.
    point: Savepoint,
    state: TxnRoots,
    moment: PagesSavepoint,
    recorded: RecorderSavepoint,
    broken: bool,
}

/// A tree that the transaction has looked at.
#[derive(Clone)]
struct OpenTree {
    /// The entry in the transaction; none if the tree is gone, or was never there.
    entry: Option<TreeEntry>,
    /// The entry in the catalogue; none if the tree is new.
    saved: Option<TreeEntry>,
}

impl TxnState {
    pub(crate) fn new(shared: Arc<StoreShared>, base: Arc<Root>) -> TxnState {
        let state = TxnRoots {
            catalogue: base.catalogue,
            deferred_free: base.deferred_free,
            trees: Arc::default(),
            commit_metadata: base.commit_metadata.clone(),
        };
        let recorder = shared.redo.recorder();
        let pages = TxnPages::new(shared, base);
        TxnState { pages, recorder, state, broken: false, saved: Vec::new() }
    }

    /// Whether the next root would be like the last one.
    pub(crate) fn is_nothing(&self) -> bool {
        self.pages.is_empty()
            && self.state.commit_metadata[..] == self.pages.base().commit_metadata[..]
    }

    /// The recorder; the rest is dropped, and with it the hold on the root that it was built on.
    pub(crate) fn into_recorder(self) -> RedoRecorder {
        self.recorder
    }

    /// The root that follows, once all has been saved.
    pub(crate) fn next_root(&self) -> Arc<Root> {
        assert!(!self.broken, "a broken transaction is published");
        let TxnRoots { catalogue, deferred_free, commit_metadata, .. } = &self.state;
        self.pages.base().next(*catalogue, *deferred_free, commit_metadata)
    }

    pub(crate) fn commit_metadata(&self) -> &[u8] {
        &self.state.commit_metadata
    }

    pub(crate) fn set_commit_metadata(&mut self, commit_metadata: &[u8]) {
        self.state.commit_metadata = commit_metadata.into();
        self.recorder.commit_metadata(commit_metadata);
    }

    /// The tree called `name`, made if it is missing.
    pub(crate) fn tree(&mut self, name: &str) -> Result<TreeMut<'_>> {
        let open = open(&self.pages, &mut self.state, name)?;
        let entry = open.entry.get_or_insert(TreeEntry::EMPTY);
        self.recorder.tree(name);
        let TxnState { pages, recorder, broken, .. } = self;
        Ok(TreeMut { pages, entry, recorder, broken })
    }

    /// A new tree called `name`.
    pub(crate) fn create_tree(&mut self, name: &str, options: TreeOptions) -> Result<TreeMut<'_>> {
        let page_size = PageSize::new(options.page_units)?;
        let open = open(&self.pages, &mut self.state, name)?;
        if open.entry.is_some() {
            return Err(Error::TreeExists { name: name.to_owned() });
        }
        open.entry = Some(TreeEntry { page_size, ..TreeEntry::EMPTY });
        self.recorder.create_tree(name, options);
        self.tree(name)
    }

    /// Removes a tree. Returns how many keys it had, or nothing if there was none.
    pub(crate) fn delete_tree(&mut self, name: &str) -> Result<Option<u64>> {
        self.refuse_if_broken()?;
        let open = open(&self.pages, &mut self.state, name)?;
        let Some(entry) = open.entry.take() else { return Ok(None) };
        if !entry.root.is_none() {
            tree::free_subtree(&mut self.pages, entry.child());
        }
        self.recorder.delete_tree(name);
        Ok(Some(entry.size.keys))
    }

    /// Gives a tree another name. False if there is no such tree.
    pub(crate) fn rename_tree(&mut self, from: &str, to: &str) -> Result<bool> {
        self.refuse_if_broken()?;
        if open(&self.pages, &mut self.state, to)?.entry.is_some() && from != to {
            return Err(Error::TreeExists { name: to.to_owned() });
        }
        let entry = open(&self.pages, &mut self.state, from)?.entry.take();
        let found = entry.is_some();
        if found {
            open(&self.pages, &mut self.state, to)?.entry = entry;
            self.recorder.rename_tree(from, to);
        }
        Ok(found)
    }

    /// Puts a name into the catalogue that no caller can give.
    #[cfg(test)]
    pub(crate) fn put_raw_tree_name(&mut self, name: &[u8]) {
        let value = TreeEntry::EMPTY.encode();
        let value = leaf::LeafValue::Inline(&value);
        let put =
            tree::put(&mut self.pages, PageSize::UNIT, self.state.catalogue, name, value).unwrap();
        self.state.catalogue = put.0;
    }

    pub(crate) fn refuse_if_broken(&self) -> Result<()> {
        if self.broken { Err(Error::Broken) } else { Ok(()) }
    }

    /// Writes what has changed about the trees into the catalogue.
    pub(crate) fn save_trees(&mut self) -> Result<()> {
        let TxnState { pages, state, .. } = self;
        for (name, open) in &*state.trees {
            let (root, name) = (state.catalogue, name.as_bytes());
            let changed = match open.entry {
                entry if entry == open.saved => None,
                Some(entry) => {
                    let value = entry.encode();
                    let value = leaf::LeafValue::Inline(&value);
                    Some(tree::put(pages, PageSize::UNIT, root, name, value)?)
                }
                None => tree::remove(pages, PageSize::UNIT, root, name)?,
            };
            if let Some((root, _)) = changed {
                state.catalogue = root;
            }
        }
        Ok(())
    }

    /// Defers the free of the detached subtrees, and frees about `units` units of the deferred
    /// ones. Returns how many, and the error that was met when they were read: then they are as
    /// they were.
    pub(crate) fn free_deferred(&mut self, units: u64) -> Result<(u64, Result<()>)> {
        tree::free_deferred(&mut self.pages, &mut self.state.deferred_free, units)
    }

    /// Gives up what cannot be freed of the deferred subtrees with these damaged pages.
    pub(crate) fn drop_deferred(&mut self, units: &BTreeSet<u64>) -> Result<bool> {
        tree::drop_deferred(&mut self.pages, &mut self.state.deferred_free, units)
    }

    /// Relocates pages beyond the limit, from `at` on, until the budget is spent. Returns where to
    /// go on if there is more.
    pub(crate) fn relocate(
        &mut self,
        at: DefragCursor,
        budget: &mut RelocateBudget,
    ) -> Result<Option<DefragCursor>> {
        let TxnState { pages, state, .. } = self;
        let mut at = at;
        loop {
            let DefragCursor { part, key } = at;
            let (next, stopped) = match &part {
                DefragPart::Trees(from) => match first_name(pages, state.catalogue, from)? {
                    None => (Some(DefragPart::DeferredFree), None),
                    Some(name) => {
                        // A tree without pages costs something as well: there may be many.
                        budget.look();
                        // A tree may be deleted between two calls; then the walk begins anew in the
                        // next.
                        let key = if name == *from { key } else { Vec::new() };
                        let open = open(pages, state, &name)?;
                        let mut stopped = None;
                        if let Some(entry) = &mut open.entry {
                            (entry.root, stopped) =
                                tree::relocate(pages, entry.root, &key, budget)?;
                        }
                        if let Some(key) = stopped {
                            return Ok(Some(DefragCursor { part: DefragPart::Trees(name), key }));
                        }
                        (Some(DefragPart::Trees(name + "\0")), None)
                    }
                },
                DefragPart::DeferredFree => {
                    let list = &mut state.deferred_free.list;
                    let (root, stopped) = tree::relocate(pages, list.root, &key, budget)?;
                    list.root = root;
                    (Some(DefragPart::Catalogue), stopped)
                }
                DefragPart::Catalogue => {
                    let moved = tree::relocate(pages, state.catalogue, &key, budget)?;
                    state.catalogue = moved.0;
                    (None, moved.1)
                }
            };
            at = match (stopped, next) {
                (Some(key), _) => return Ok(Some(DefragCursor { part, key })),
                (None, None) => return Ok(None),
                (None, Some(part)) => DefragCursor { part, key: Vec::new() },
            };
            if budget.is_spent() {
                return Ok(Some(at));
            }
        }
    }

    /// Units whose free is deferred.
    pub(crate) fn deferred_free_units(&self) -> u64 {
        self.state.deferred_free.units
    }

    /// Makes a savepoint.
    pub(crate) fn save(&mut self) -> Savepoint {
        let point = Savepoint(Arc::new(()));
        let (state, moment) = (self.state.clone(), self.pages.save());
        let (recorded, broken) = (self.recorder.save(), self.broken);
        self.saved.push(SavedTxn { point: point.clone(), state, moment, recorded, broken });
        point
    }

    /// Rolls back to a savepoint.
    pub(crate) fn roll_back(&mut self, point: &Savepoint) -> Result<()> {
        let found = self.saved.iter().position(|saved| Arc::ptr_eq(&saved.point.0, &point.0));
        let Some(i) = found else {
            return Err(Error::Foreign { what: "a savepoint" });
        };
        self.saved.truncate(i + 1);
        let saved = &self.saved[i];
        self.pages.roll_back(&saved.moment);
        self.recorder.roll_back(&saved.recorded);
        self.state = saved.state.clone();
        self.broken = saved.broken;
        Ok(())
    }
}

/// The first name of a tree that is not less than `from`.
fn first_name(pages: &TxnPages, root: PageRef, from: &str) -> Result<Option<String>> {
    let low = Bound::Included(from.as_bytes());
    let mut names = tree::KeyIter::new(tree::Range::new(pages, root, (low, Bound::Unbounded)));
    names.next()?.map(|name| catalogue::name(name, root)).transpose()
}

/// The tree called `name`, read from the catalogue if it is not open yet.
fn open<'a>(pages: &TxnPages, state: &'a mut TxnRoots, name: &str) -> Result<&'a mut OpenTree> {
    let trees = Arc::make_mut(&mut state.trees);
    if !trees.contains_key(name) {
        refuse_over("a tree's name", name.len(), NAME_BYTES_MAX)?;
        let bytes = tree::get(pages, state.catalogue, name.as_bytes())?;
        let saved = bytes.map(|bytes| TreeEntry::decode(&bytes, state.catalogue)).transpose()?;
        trees.insert(name.to_owned(), OpenTree { entry: saved, saved });
    }
    Ok(trees.get_mut(name).expect("put in just now if it was missing"))
}
