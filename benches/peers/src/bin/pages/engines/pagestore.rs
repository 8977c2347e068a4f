//! This project's page store: defaults, a checkpoint in the background whenever 256 MiB are dirty. Where
//! no commit has to be durable it has no redo area, as in a node, which keeps a log of its own.

use crate::store::{Reader, Store, Writer};
use flotilla_pagestore::{Durability, Options, PageStore, Tree, TreeMut};
use flotilla_vfs::os::OsFs;
use peers::Result;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

const TREE: &str = "bench";
/// A checkpoint begins when so much is dirty.
const SOFT_BYTES: u64 = 256 << 20;
/// And a writer makes one itself when so much is.
const HARD_BYTES: u64 = 512 << 20;

/// An open page store, and the thread that makes checkpoints.
pub struct Pages {
    store: PageStore,
    path: PathBuf,
    wanted: SyncSender<()>,
    checkpoints: JoinHandle<Result<()>>,
}

/// Opens the store in `dir`.
///
/// # Errors
///
/// What the store says.
pub fn open(dir: &Path, is_durable: bool) -> Result<Pages> {
    let path = dir.join("pages");
    let mut options = Options::default();
    if !is_durable {
        options = options.redo_bytes(0);
    }
    let store = PageStore::open(Arc::new(OsFs::new()), &path, options)?;
    let (wanted, wants) = sync_channel(1);
    let behind = store.clone();
    let checkpoints = std::thread::spawn(move || {
        while wants.recv().is_ok() {
            behind.checkpoint()?;
        }
        Ok(())
    });
    Ok(Pages { store, path, wanted, checkpoints })
}

impl Store for Pages {
    type Writer<'a> = PagesWriter<'a>;
    type Reader<'a> = PagesReader;

    // Above a quarter of a page, so it is an extent, of one unit.
    const LONE_VALUE_BYTES: usize = 1100;

    fn write(
        &self,
        durable: bool,
        work: impl FnOnce(&mut PagesWriter<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut txn = self.store.write()?;
        work(&mut PagesWriter(txn.tree(TREE)?))?;
        txn.commit(if durable { Durability::Sync } else { Durability::Memory })?;
        match self.store.dirty_bytes() {
            dirty if dirty > HARD_BYTES => drop(self.store.checkpoint()?),
            // A full channel means that one is asked for already.
            dirty if dirty > SOFT_BYTES => drop(self.wanted.try_send(())),
            _ => {}
        }
        Ok(())
    }

    fn read(&self, work: impl FnOnce(&PagesReader) -> Result<()>) -> Result<()> {
        let tree = self.store.read().tree(TREE)?.ok_or("nothing was put yet")?;
        work(&PagesReader(tree))
    }

    fn settle(&self) -> Result<()> {
        self.store.checkpoint()?;
        Ok(())
    }

    fn file_bytes(&self) -> Result<u64> {
        Ok(std::fs::metadata(&self.path)?.len())
    }

    fn free_pages(&self) -> Result<Option<u64>> {
        Ok(Some(self.store.stats().free_bytes / 4096))
    }

    fn free_space_bytes(&self) -> Option<u64> {
        Some(self.store.stats().space_written_bytes)
    }

    fn close(self) -> Result<()> {
        self.settle()?;
        drop(self.wanted);
        self.checkpoints.join().map_err(|_| "the thread that makes checkpoints has panicked")?
    }
}

/// An open transaction's tree.
pub struct PagesWriter<'a>(TreeMut<'a>);

impl Writer for PagesWriter<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.0.put(key, value)?)
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        if self.0.delete(key)? { Ok(()) } else { Err("a key that was put is not there".into()) }
    }
}

/// A snapshot's tree.
pub struct PagesReader(Tree);

impl Reader for PagesReader {
    fn get(&self, key: &[u8], see: impl FnOnce(&[u8])) -> Result<bool> {
        Ok(self.0.get(key)?.map(|value| see(&value)).is_some())
    }

    fn scan(&self, from: &[u8], count: u64, mut see: impl FnMut(&[u8], &[u8])) -> Result<u64> {
        let mut range = self.0.range(Bound::Included(from), Bound::Unbounded);
        let mut seen = 0;
        while seen < count
            && let Some((key, value)) = range.next()?
        {
            see(key, value);
            seen += 1;
        }
        Ok(seen)
    }
}
