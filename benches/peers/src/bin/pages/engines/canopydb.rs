//! canopydb: defaults (a cache of 1 GiB, checkpoints of 64 MiB), without its log where commits need
//! not be durable.

use crate::store::{Reader, Store, Writer};
use canopydb::{Database, DbOptions, EnvOptions, Tree};
use peers::Result;
use std::path::{Path, PathBuf};

const TREE: &[u8] = b"bench";

/// An open database.
pub struct Canopy {
    db: Database,
    dir: PathBuf,
}

/// Opens the database in `dir`, with a log or without.
///
/// # Errors
///
/// Errors of canopydb.
pub fn open(dir: &Path, is_durable: bool) -> Result<Canopy> {
    let mut options = DbOptions::new();
    options.use_wal = is_durable;
    let db = Database::with_options(EnvOptions::new(dir), options)?;
    Ok(Canopy { db, dir: dir.to_owned() })
}

impl Store for Canopy {
    type Writer<'a> = CanopyTree<'a>;
    type Reader<'a> = CanopyTree<'a>;

    const LONE_VALUE_BYTES: usize = 3000;

    fn write(
        &self,
        durable: bool,
        work: impl FnOnce(&mut CanopyTree<'_>) -> Result<()>,
    ) -> Result<()> {
        let txn = self.db.begin_write()?;
        work(&mut CanopyTree(txn.get_or_create_tree(TREE)?))?;
        txn.commit_with(durable)?;
        Ok(())
    }

    fn read(&self, work: impl FnOnce(&CanopyTree<'_>) -> Result<()>) -> Result<()> {
        let txn = self.db.begin_read()?;
        let tree = txn.get_tree(TREE)?.ok_or("nothing was put yet")?;
        work(&CanopyTree(tree))
    }

    fn settle(&self) -> Result<()> {
        Ok(self.db.checkpoint()?)
    }

    fn file_bytes(&self) -> Result<u64> {
        Ok(peers::measure::on_disk(&self.dir)?.0)
    }

    fn free_pages(&self) -> Result<Option<u64>> {
        Ok(None)
    }
}

/// The tree in an open transaction.
pub struct CanopyTree<'a>(Tree<'a>);

impl Writer for CanopyTree<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.0.insert(key, value)?)
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        if self.0.delete(key)? { Ok(()) } else { Err("a key that was put is not there".into()) }
    }
}

impl Reader for CanopyTree<'_> {
    fn get(&self, key: &[u8], see: impl FnOnce(&[u8])) -> Result<bool> {
        Ok(self.0.get(key)?.map(|value| see(&value)).is_some())
    }

    fn scan(&self, from: &[u8], count: u64, mut see: impl FnMut(&[u8], &[u8])) -> Result<u64> {
        let mut seen = 0;
        for entry in self.0.range(from..)?.take(count as usize) {
            let (key, value) = entry?;
            see(&key, &value);
            seen += 1;
        }
        Ok(seen)
    }
}
