//! Copy of a file's trees into a new file, which gets its name when it is whole and durable.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flotilla_vfs::{FileSystem, LockGuard, OpenMode};

use super::file::PageFile;
use super::walk::{FileWalk, ValueContent, Visit};
use crate::config::{Options, TreeOptions};
use crate::error::{Error, Result};
use crate::page::catalogue::TreeEntry;
use crate::redo::{FrameReader, MalformedRecord, records};
use crate::store::{PageStore, lock, parent, with_suffix};
use crate::txn::replay;

/// A file that is being made. Dropped before it is finished, it is taken away.
pub(super) struct NewFile {
    fs: Arc<dyn FileSystem>,
    to: PathBuf,
    /// The name that it has until it is finished.
    part: PathBuf,
    is_finished: bool,
    /// Keeps a store from opening `to`, and others from making it.
    _lock: Box<dyn LockGuard>,
}

impl NewFile {
    /// Begins a file that will be called `to`, which must not exist yet.
    pub(super) fn begin(fs: &Arc<dyn FileSystem>, to: &Path) -> Result<NewFile> {
        let lock = lock(&**fs, to)?;
        let part = with_suffix(to, ".part");
        let new = NewFile {
            fs: Arc::clone(fs),
            to: to.to_owned(),
            part,
            is_finished: false,
            _lock: lock,
        };
        // First of all, so that a crash behind the new name leaves nothing for good either.
        new.take_away()?;
        match fs.open(to, OpenMode::Read) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(new),
            Err(error) => Err(error.into()),
            Ok(_) => Err(Error::Io(std::io::ErrorKind::AlreadyExists.into())),
        }
    }

    /// Where it is made.
    pub(super) fn part(&self) -> &Path {
        &self.part
    }

    /// A store in it.
    pub(super) fn store(&self) -> Result<PageStore> {
        let options = Options::default().redo_bytes(0).trim_bytes(0).growth_bytes(0);
        PageStore::open_with(Arc::clone(&self.fs), &self.part, options)
    }

    /// Gives the file, which is durable and closed, its name.
    pub(super) fn finish(mut self) -> Result<()> {
        self.fs.rename(&self.part, &self.to)?;
        self.is_finished = true;
        // The name is durable only with its directory.
        self.fs.sync_dir(parent(&self.to))?;
        // The lock file of the store that has made it; it does no harm if it stays.
        let _ = self.fs.remove(&with_suffix(&self.part, ".lock"));
        Ok(())
    }

    /// Removes the file, and the other files of the store that makes it.
    fn take_away(&self) -> Result<()> {
        let with_suffix = |suffix| with_suffix(&self.part, suffix);
        for path in [self.part.clone(), with_suffix(".lock"), with_suffix(".new")] {
            match self.fs.remove(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error.into());
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.is_finished {
            // A file that stays is removed by the next attempt to make the file.
            let _ = self.take_away();
        }
    }
}

/// Copies what can be read of a tree into `store`, and calls `each` for all that the walk visits.
/// Returns how many keys were copied.
pub(super) fn tree(
    walk: &mut FileWalk<'_>,
    store: &PageStore,
    name: &str,
    entry: TreeEntry,
    each: &mut dyn FnMut(&Visit<'_>),
) -> Result<u64> {
    let options = TreeOptions::default().page_units(entry.page_size.units());
    let mut builder = store.tree_builder_with(options)?;
    let mut outcome = Ok(());
    let _ = walk.tree(name, entry, &mut |what| {
        each(&what);
        if let Visit::Entry(key, ValueContent::Inline(value)) = what {
            outcome = builder.push(key, value);
        } else if let Visit::Entry(key, ValueContent::Long(value)) = what {
            outcome = builder.push(key, &value);
        }
        if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    outcome?;
    let built = builder.finish()?;
    let keys = built.len();
    let mut txn = store.write()?;
    txn.create_tree(name, options)?.ingest(b"", None, built)?;
    txn.publish()?;
    Ok(keys)
}

/// Replays in `store` the redo records beyond the checkpoint, transaction by transaction, up to the
/// end or to the first damage. Returns the last transaction of the file that is contained, and the
/// error that was met.
pub(super) fn redo(file: &PageFile, store: &PageStore) -> Result<(u64, Result<()>)> {
    let mut last = file.meta.txid;
    let Some(area) = file.meta.redo else { return Ok((last, Ok(()))) };
    let corrupt =
        |at| Error::Corrupt { page: area.unit(at), what: "redo records that make no sense" };
    let mut frames = FrameReader::new(area, file.page_reader.file(), file.meta.number);
    loop {
        let begin = frames.position();
        let body = match frames.next() {
            Ok(Some(body)) => body,
            Ok(None) => return Ok((last, Ok(()))),
            Err(error) => return Ok((last, Err(error))),
        };
        for record in records(&body) {
            let Ok(record) = record else { return Ok((last, Err(corrupt(begin)))) };
            if record.txid <= last {
                continue;
            }
            let txid = record.txid;
            let is_sound = txid == last + 1 && record.ops().all(|op| op != Err(MalformedRecord));
            if !is_sound {
                return Ok((last, Err(corrupt(begin))));
            }
            let mut txn = store.write()?;
            replay::carry_out(&mut txn, record, || corrupt(begin))?;
            txn.publish()?;
            last = txid;
        }
    }
}
