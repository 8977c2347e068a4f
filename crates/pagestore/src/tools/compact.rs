//! Compaction: a dense copy of a file.

use std::path::Path;
use std::sync::Arc;

use flotilla_vfs::FileSystem;

use super::copy::{self, NewFile};
use super::file::PageFile;
use super::walk::{FileWalk, ScanProgress};
use crate::error::{Error, Result};

/// Bytes that are moved between two checkpoints, and are in memory until then.
const MOVED_BYTES_MAX: u64 = 64 << 20;

/// Report of [`PageFile::compact`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompactReport {
    /// Trees.
    pub trees: u64,
    /// Their keys, with what the redo area has added.
    pub keys: u64,
    /// The last transaction of the source that the copy contains.
    pub txid: u64,
    /// Length of the source.
    pub bytes_before: u64,
    /// Length of the copy.
    pub bytes: u64,
}

impl PageFile {
    /// Copies all trees, with the redo records beyond the checkpoint, and the commit metadata into
    /// the new file `to`: packed pages, one behind the other, no deferred frees, no redo area. When
    /// this returns the copy is durable. Its transactions have numbers of their own. `look` is
    /// called after each page.
    ///
    /// Until it is whole the copy is called `to.part`; if this fails it is taken away.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] if anything of the file is damaged that had to be read; [`Error::Io`], of
    /// the kind `AlreadyExists` if there is a file `to`; [`Error::NoSpace`].
    pub fn compact(
        &self,
        fs: &Arc<dyn FileSystem>,
        to: &Path,
        look: &mut dyn FnMut(ScanProgress),
    ) -> Result<CompactReport> {
        let new = NewFile::begin(fs, to)?;
        let store = new.store()?;
        let mut walk = FileWalk::new(self, true, look);
        let trees = walk.catalogue(&mut |_| std::ops::ControlFlow::Continue(()));
        for (name, entry) in &trees {
            copy::tree(&mut walk, &store, name, *entry, &mut |_| ())?;
            if !walk.problems.named.is_empty() {
                break;
            }
        }
        if let Some(problem) = walk.problems.named.first() {
            return Err(Error::Corrupt { page: problem.page, what: problem.what });
        }
        let mut txn = store.write()?;
        txn.set_commit_metadata(&self.meta.commit_metadata);
        txn.publish()?;
        let (txid, met) = copy::redo(self, &store)?;
        met?;
        let mut made = CompactReport { txid, bytes_before: self.bytes, ..CompactReport::default() };
        (made.trees, made.keys, made.bytes) = finish(store)?;
        new.finish()?;
        Ok(made)
    }
}

/// Makes a store durable that is to be closed. Returns its trees, its keys and the length of its
/// file.
pub(super) fn finish(store: crate::PageStore) -> Result<(u64, u64, u64)> {
    store.reclaim(u64::MAX)?;
    store.checkpoint()?;
    // Pages that were made while a tree was being built lie behind the room that was reserved for
    // it.
    while !store.defragment(MOVED_BYTES_MAX)?.is_done {
        store.checkpoint()?;
    }
    // After two checkpoints what is free then can be cut off. Each wants a change.
    let commit_metadata = store.read().commit_metadata().to_vec();
    let other = if commit_metadata.is_empty() { vec![0] } else { Vec::new() };
    for commit_metadata in [other, commit_metadata] {
        let mut txn = store.write()?;
        txn.set_commit_metadata(&commit_metadata);
        txn.publish()?;
        store.checkpoint()?;
    }
    while store.trim_punch()? {}
    let snapshot = store.read();
    let names = snapshot.tree_names()?;
    let mut keys = 0;
    for name in &names {
        keys += snapshot.tree(name)?.map_or(0, |tree| tree.len());
    }
    Ok((names.len() as u64, keys, store.stats().file_bytes))
}
