//! This project's page store: defaults, and the maintenance thread that it offers. Where no commit
//! has to be durable it has no redo area, as in a node, which keeps a log of its own.

use crate::keys::KEY_BYTES;
use crate::store::{Reader, Store, Writer};
use flotilla_pagestore::{CommitDurability, MaintenanceThread, Options, PageStore, Tree, TreeMut};
use flotilla_vfs::os::OsFs;
use peers::Result;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const TREE: &str = "bench";
/// Bytes moved in one step, in which no other thread can write.
const DEFRAGMENTED_BYTES: u64 = 32 << 10;

/// An open page store, and the thread that makes checkpoints.
pub struct Pages {
    store: PageStore,
    path: PathBuf,
    maintenance: MaintenanceThread,
}

/// Opens the store in `dir`; in little memory with fewer dirty bytes.
///
/// # Errors
///
/// Errors of the store.
pub fn open(dir: &Path, is_durable: bool, memory_mib: Option<u64>) -> Result<Pages> {
    let path = dir.join("pages");
    let mut options = Options::default();
    if !is_durable {
        options = options.redo_bytes(0);
    }
    if let Some(mib) = memory_mib {
        // Pages that a checkpoint writes come on top.
        options = options.dirty_bytes((mib << 20) / 8, (mib << 20) / 4);
    }
    let store = PageStore::open_with(Arc::new(OsFs::new()), &path, options)?;
    let maintenance = store.maintain_in_background()?;
    Ok(Pages { store, path, maintenance })
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
        txn.commit(if durable { CommitDurability::Sync } else { CommitDurability::Memory })?;
        Ok(())
    }

    fn read(&self, work: impl FnOnce(&PagesReader) -> Result<()>) -> Result<()> {
        let tree = self.store.read().tree(TREE)?.ok_or("nothing was put yet")?;
        work(&PagesReader(tree))
    }

    fn settle(&self) -> Result<()> {
        self.store.checkpoint()?;
        // The thread trims and punches the spare space that the checkpoint has found.
        while self.store.stats().trim_punch.waiting_bytes > 0 {
            std::thread::park_timeout(std::time::Duration::from_millis(5));
        }
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

    fn defragment(&self) -> Result<Option<bool>> {
        Ok(Some(!self.store.defragment(DEFRAGMENTED_BYTES)?.is_done))
    }

    fn close(self) -> Result<()> {
        // The thread ends first.
        drop(self.maintenance);
        self.store.checkpoint()?;
        Ok(())
    }
}

/// An open transaction's tree.
pub struct PagesWriter<'a>(TreeMut<'a>);

impl Writer for PagesWriter<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.0.put(key, value)?)
    }

    fn read_ahead(&mut self, keys: &[[u8; KEY_BYTES]]) {
        self.0.read_ahead(keys);
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

    fn get_batch(&self, keys: &[[u8; KEY_BYTES]], mut see: impl FnMut(usize, &[u8])) -> Result<()> {
        Ok(self.0.multi_get(keys, |n, value| {
            if let Some(value) = value {
                see(n, value);
            }
        })?)
    }

    fn scan(&self, from: &[u8], count: u64, mut see: impl FnMut(&[u8], &[u8])) -> Result<u64> {
        let mut range = self.0.range((Bound::Included(from), Bound::Unbounded));
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
