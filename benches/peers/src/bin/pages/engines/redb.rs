//! redb 4: defaults (a cache of 1 GiB); commits that need not be durable have `Durability::None`,
//! and each thousandth of them is durable, since without one redb frees no page.

use crate::store::{Reader, Store, Writer};
use peers::Result;
use redb::{Database, Durability, ReadOnlyTable, ReadableDatabase, Table, TableDefinition};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const TABLE: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("bench");
/// One commit of so many is durable in any case.
const DURABLE_EACH: u64 = 1000;

/// An open database.
pub struct Redb {
    db: Database,
    path: PathBuf,
    commits: AtomicU64,
}

/// Opens the database in `dir`; in little memory with a quarter of it as cache.
///
/// # Errors
///
/// Errors of redb.
pub fn open(dir: &Path, memory_mib: Option<u64>) -> Result<Redb> {
    let path = dir.join("redb");
    let mut builder = Database::builder();
    if let Some(mib) = memory_mib {
        builder.set_cache_size((mib << 20) as usize / 4);
    }
    let db = builder.create(&path)?;
    Ok(Redb { db, path, commits: AtomicU64::new(0) })
}

impl Store for Redb {
    type Writer<'a> = RedbWriter<'a>;
    type Reader<'a> = RedbReader;

    // More than half a page, so it is a leaf for itself.
    const LONE_VALUE_BYTES: usize = 3000;

    fn write(
        &self,
        durable: bool,
        work: impl FnOnce(&mut RedbWriter<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut txn = self.db.begin_write()?;
        let count = 1 + self.commits.fetch_add(1, Ordering::Relaxed);
        let is_due = count.is_multiple_of(DURABLE_EACH);
        txn.set_durability(if durable || is_due {
            Durability::Immediate
        } else {
            Durability::None
        })?;
        work(&mut RedbWriter(txn.open_table(TABLE)?))?;
        txn.commit()?;
        Ok(())
    }

    fn read(&self, work: impl FnOnce(&RedbReader) -> Result<()>) -> Result<()> {
        work(&RedbReader(self.db.begin_read()?.open_table(TABLE)?))
    }

    fn settle(&self) -> Result<()> {
        let mut txn = self.db.begin_write()?;
        txn.set_durability(Durability::Immediate)?;
        txn.commit()?;
        Ok(())
    }

    fn file_bytes(&self) -> Result<u64> {
        Ok(std::fs::metadata(&self.path)?.len())
    }

    fn free_pages(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    fn close(self) -> Result<()> {
        self.settle()?;
        Ok(self.db.close()?)
    }
}

/// An open transaction's table.
pub struct RedbWriter<'a>(Table<'a, &'static [u8], &'static [u8]>);

impl Writer for RedbWriter<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.0.insert(key, value)?;
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        let was_there = self.0.remove(key)?.is_some();
        if was_there { Ok(()) } else { Err("a key that was put is not there".into()) }
    }
}

/// A read transaction's table.
pub struct RedbReader(ReadOnlyTable<&'static [u8], &'static [u8]>);

impl Reader for RedbReader {
    fn get(&self, key: &[u8], see: impl FnOnce(&[u8])) -> Result<bool> {
        Ok(self.0.get(key)?.map(|value| see(value.value())).is_some())
    }

    fn scan(&self, from: &[u8], count: u64, mut see: impl FnMut(&[u8], &[u8])) -> Result<u64> {
        let mut seen = 0;
        for entry in self.0.range(from..)?.take(count as usize) {
            let (key, value) = entry?;
            see(key.value(), value.value());
            seen += 1;
        }
        Ok(seen)
    }
}
