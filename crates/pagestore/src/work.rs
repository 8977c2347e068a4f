//! What the open write transaction has done so far, and the moments that it can go back to.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::catalogue::{self, Entry};
use crate::config::{NAME_BYTES_MAX, TreeOptions};
use crate::draft::{Draft, Moment};
use crate::error::{Error, Result, refuse_over};
use crate::leaf;
use crate::moving::{Moving, Part};
use crate::page::{PageRef, PageSize};
use crate::redo::{Recorded, Recorder};
use crate::root::Root;
use crate::shared::Shared;
use crate::trash::Trash;
use crate::tree::{self, Budget};
use crate::tree_mut::TreeMut;

/// A moment of a write transaction that it can go back to; see [`WriteTxn::savepoint`].
///
/// [`WriteTxn::savepoint`]: crate::WriteTxn::savepoint
#[derive(Clone, Debug)]
pub struct Savepoint(Arc<()>);

/// What the transaction has done so far.
pub(crate) struct Work {
    pub(crate) draft: Draft,
    /// What of it can be done again.
    pub(crate) recorder: Recorder,
    state: State,
    /// An operation failed half-way, so the trees may not be whole.
    pub(crate) broken: bool,
    saved: Vec<Saved>,
}

/// All that a savepoint must bring back, but for the pages.
#[derive(Clone)]
struct State {
    catalogue: PageRef,
    trash: Trash,
    /// Shared with the savepoints until the next change.
    trees: Arc<BTreeMap<String, OpenTree>>,
    mark: Arc<[u8]>,
}

/// A savepoint.
struct Saved {
    /// What the caller has of it is a clone of this very one.
    point: Savepoint,
    state: State,
    moment: Moment,
    recorded: Recorded,
    broken: bool,
}

/// A tree that the transaction has looked at.
#[derive(Clone)]
struct OpenTree {
    /// What the transaction has made of it; nothing if it is gone, or was never there.
    entry: Option<Entry>,
    /// What the catalogue says of it; nothing if it is new.
    saved: Option<Entry>,
}

impl Work {
    pub(crate) fn new(shared: Arc<Shared>, base: Arc<Root>) -> Work {
        let state = State {
            catalogue: base.catalogue,
            trash: base.trash,
            trees: Arc::default(),
            mark: base.mark.clone(),
        };
        let recorder = shared.redo.recorder();
        let draft = Draft::new(shared, base);
        Work { draft, recorder, state, broken: false, saved: Vec::new() }
    }

    /// Whether the next root would be like the last one.
    pub(crate) fn is_nothing(&self) -> bool {
        self.draft.is_empty() && self.state.mark[..] == self.draft.base().mark[..]
    }

    /// What was recorded; the rest goes, and with it the hold on the root that it was built on.
    pub(crate) fn into_recorder(self) -> Recorder {
        self.recorder
    }

    /// The root that follows, once all has been saved.
    pub(crate) fn next_root(&self) -> Arc<Root> {
        let State { catalogue, trash, mark, .. } = &self.state;
        self.draft.base().next(*catalogue, *trash, mark)
    }

    pub(crate) fn mark(&self) -> &[u8] {
        &self.state.mark
    }

    pub(crate) fn set_mark(&mut self, mark: &[u8]) {
        self.state.mark = mark.into();
        self.recorder.mark(mark);
    }

    /// The tree called `name`, made if it is missing.
    pub(crate) fn tree(&mut self, name: &str) -> Result<TreeMut<'_>> {
        let open = open(&self.draft, &mut self.state, name)?;
        let entry = open.entry.get_or_insert(Entry::EMPTY);
        self.recorder.tree(name);
        let Work { draft, recorder, broken, .. } = self;
        Ok(TreeMut { draft, entry, recorder, broken })
    }

    /// A new tree called `name`.
    pub(crate) fn create_tree(&mut self, name: &str, options: TreeOptions) -> Result<TreeMut<'_>> {
        let page_size = PageSize::new(options.page_units)?;
        let open = open(&self.draft, &mut self.state, name)?;
        if open.entry.is_some() {
            return Err(Error::TreeExists { name: name.to_owned() });
        }
        open.entry = Some(Entry { page_size, ..Entry::EMPTY });
        self.recorder.create_tree(name, options);
        self.tree(name)
    }

    /// Removes a tree. Returns how many keys it had, or nothing if there was none.
    pub(crate) fn delete_tree(&mut self, name: &str) -> Result<Option<u64>> {
        self.refuse_if_broken()?;
        let open = open(&self.draft, &mut self.state, name)?;
        let Some(entry) = open.entry.take() else { return Ok(None) };
        if !entry.root.is_none() {
            tree::bury(&mut self.draft, entry.child());
        }
        self.recorder.delete_tree(name);
        Ok(Some(entry.size.keys))
    }

    /// Gives a tree another name. False if there is no such tree.
    pub(crate) fn rename_tree(&mut self, from: &str, to: &str) -> Result<bool> {
        self.refuse_if_broken()?;
        if open(&self.draft, &mut self.state, to)?.entry.is_some() && from != to {
            return Err(Error::TreeExists { name: to.to_owned() });
        }
        let entry = open(&self.draft, &mut self.state, from)?.entry.take();
        let found = entry.is_some();
        if found {
            open(&self.draft, &mut self.state, to)?.entry = entry;
            self.recorder.rename_tree(from, to);
        }
        Ok(found)
    }

    /// Puts a name into the catalogue that no caller can give.
    #[cfg(test)]
    pub(crate) fn put_raw_tree_name(&mut self, name: &[u8]) {
        let value = Entry::EMPTY.encode();
        let value = leaf::Value::Inline(&value);
        let put =
            tree::put(&mut self.draft, PageSize::UNIT, self.state.catalogue, name, value).unwrap();
        self.state.catalogue = put.0;
    }

    pub(crate) fn refuse_if_broken(&self) -> Result<()> {
        if self.broken { Err(Error::Broken) } else { Ok(()) }
    }

    /// Writes what has changed about the trees into the catalogue.
    pub(crate) fn save_trees(&mut self) -> Result<()> {
        let Work { draft, state, .. } = self;
        for (name, open) in &*state.trees {
            let (root, name) = (state.catalogue, name.as_bytes());
            let changed = match open.entry {
                entry if entry == open.saved => None,
                Some(entry) => {
                    let value = entry.encode();
                    let value = leaf::Value::Inline(&value);
                    Some(tree::put(draft, PageSize::UNIT, root, name, value)?)
                }
                None => tree::remove(draft, PageSize::UNIT, root, name)?,
            };
            if let Some((root, _)) = changed {
                state.catalogue = root;
            }
        }
        Ok(())
    }

    /// Puts what was cut off into the trash, and gives back about so many units of it. Returns how
    /// many, and what was met when the trash was read: then it is as it was.
    pub(crate) fn sweep(&mut self, units: u64) -> Result<(u64, Result<()>)> {
        tree::sweep(&mut self.draft, &mut self.state.trash, units)
    }

    /// Moves what lies beyond a line, from `at` on, until the budget is spent. Returns where to go on
    /// if there is more.
    pub(crate) fn relocate(&mut self, at: Moving, budget: &mut Budget) -> Result<Option<Moving>> {
        let Work { draft, state, .. } = self;
        let mut at = at;
        loop {
            let Moving { part, key } = at;
            let (next, stopped) = match &part {
                Part::Trees(from) => match first_name(draft, state.catalogue, from)? {
                    None => (Some(Part::Trash), None),
                    Some(name) => {
                        // A tree without pages costs something as well: there may be many.
                        budget.look();
                        // A tree may go between two calls; then the way begins anew in the next.
                        let key = if name == *from { key } else { Vec::new() };
                        let open = open(draft, state, &name)?;
                        let mut stopped = None;
                        if let Some(entry) = &mut open.entry {
                            (entry.root, stopped) =
                                tree::relocate(draft, entry.root, &key, budget)?;
                        }
                        if let Some(key) = stopped {
                            return Ok(Some(Moving { part: Part::Trees(name), key }));
                        }
                        (Some(Part::Trees(name + "\0")), None)
                    }
                },
                Part::Trash => {
                    let list = &mut state.trash.list;
                    let (root, stopped) = tree::relocate(draft, list.root, &key, budget)?;
                    list.root = root;
                    (Some(Part::Catalogue), stopped)
                }
                Part::Catalogue => {
                    let moved = tree::relocate(draft, state.catalogue, &key, budget)?;
                    state.catalogue = moved.0;
                    (None, moved.1)
                }
            };
            at = match (stopped, next) {
                (Some(key), _) => return Ok(Some(Moving { part, key })),
                (None, None) => return Ok(None),
                (None, Some(part)) => Moving { part, key: Vec::new() },
            };
            if budget.is_spent() {
                return Ok(Some(at));
            }
        }
    }

    /// Units that wait to be given back.
    pub(crate) fn trash_units(&self) -> u64 {
        self.state.trash.units
    }

    /// Makes this a moment to go back to.
    pub(crate) fn save(&mut self) -> Savepoint {
        let point = Savepoint(Arc::new(()));
        let (state, moment) = (self.state.clone(), self.draft.save());
        let (recorded, broken) = (self.recorder.save(), self.broken);
        self.saved.push(Saved { point: point.clone(), state, moment, recorded, broken });
        point
    }

    /// Goes back to a moment.
    pub(crate) fn go_back(&mut self, point: &Savepoint) -> Result<()> {
        let found = self.saved.iter().position(|saved| Arc::ptr_eq(&saved.point.0, &point.0));
        let Some(i) = found else {
            return Err(Error::Foreign { what: "a savepoint" });
        };
        self.saved.truncate(i + 1);
        let saved = &self.saved[i];
        self.draft.go_back(&saved.moment);
        self.recorder.go_back(&saved.recorded);
        self.state = saved.state.clone();
        self.broken = saved.broken;
        Ok(())
    }
}

/// The first name of a tree that is not less than `from`.
fn first_name(draft: &Draft, root: PageRef, from: &str) -> Result<Option<String>> {
    let low = Bound::Included(from.as_bytes());
    let mut names = tree::Keys::new(tree::Range::new(draft, root, low, Bound::Unbounded));
    names.next()?.map(|name| catalogue::name(name, root)).transpose()
}

/// What is known of the tree called `name`.
fn open<'a>(draft: &Draft, state: &'a mut State, name: &str) -> Result<&'a mut OpenTree> {
    let trees = Arc::make_mut(&mut state.trees);
    if !trees.contains_key(name) {
        refuse_over("a tree's name", name.len(), NAME_BYTES_MAX)?;
        let bytes = tree::get(draft, state.catalogue, name.as_bytes())?;
        let saved = bytes.map(|bytes| Entry::decode(&bytes, state.catalogue)).transpose()?;
        trees.insert(name.to_owned(), OpenTree { entry: saved, saved });
    }
    Ok(trees.get_mut(name).expect("put in just now if it was missing"))
}
