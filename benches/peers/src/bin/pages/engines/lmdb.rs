//! LMDB by heed: a map of 64 GiB; without a sync `NOSYNC`, which a power loss may spoil, and as a
//! second engine `NOSYNC` with `WRITEMAP`.
#![expect(unsafe_code, reason = "heed's way to open a file and to choose flags")]

use crate::store::{Reader, Store, Writer};
use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions, RoTxn, RwTxn, WithTls};
use peers::Result;
use std::ops::Bound;
use std::path::{Path, PathBuf};

const MAP_BYTES: usize = 64 << 30;

type Tree = Database<'static, Bytes, Bytes>;

/// An open environment.
pub struct Lmdb {
    env: &'static Env<WithTls>,
    tree: Tree,
    path: PathBuf,
}

/// Opens the environment in `dir`, in little memory with `NORDAHEAD`. Whether commits are durable
/// is a flag of the whole environment.
///
/// # Errors
///
/// Errors of LMDB.
pub fn open(
    dir: &Path,
    is_durable: bool,
    has_write_map: bool,
    memory_mib: Option<u64>,
) -> Result<Lmdb> {
    let mut flags = EnvFlags::empty();
    flags.set(EnvFlags::NO_SYNC, !is_durable);
    flags.set(EnvFlags::WRITE_MAP, has_write_map);
    flags.set(EnvFlags::NO_READ_AHEAD, memory_mib.is_some());
    let mut options = EnvOpenOptions::new();
    options.map_size(MAP_BYTES);
    // SAFETY: this process is the only one that opens the file, and no one relies on its contents
    // after a power loss.
    let env = unsafe { options.flags(flags).open(dir)? };
    // Never given back: the process ends with it.
    let env: &'static Env<WithTls> = Box::leak(Box::new(env));
    let opened: CommitOrAbort<Tree, ()> = env
        .create_databases_and_commit(env.write_txn()?, |opener, txn| {
            opener.create_database(txn, None).map(CommitOrAbort::Commit)
        })?;
    let tree = opened.commit().ok_or("the tree was not made")?;
    Ok(Lmdb { env, tree, path: dir.join("data.mdb") })
}

impl Store for Lmdb {
    type Writer<'a> = LmdbWriter<'a>;
    type Reader<'a> = LmdbReader<'a>;

    // More than half a page, so it is an overflow page.
    const LONE_VALUE_BYTES: usize = 3000;

    fn write(
        &self,
        _durable: bool,
        work: impl FnOnce(&mut LmdbWriter<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut writer = LmdbWriter { tree: self.tree, txn: self.env.write_txn()? };
        work(&mut writer)?;
        Ok(writer.txn.commit()?)
    }

    fn read(&self, work: impl FnOnce(&LmdbReader<'_>) -> Result<()>) -> Result<()> {
        work(&LmdbReader { tree: self.tree, txn: self.env.read_txn()? })
    }

    fn settle(&self) -> Result<()> {
        Ok(self.env.force_sync()?)
    }

    fn file_bytes(&self) -> Result<u64> {
        Ok(std::fs::metadata(&self.path)?.len())
    }

    fn free_pages(&self) -> Result<Option<u64>> {
        Ok(None)
    }
}

/// An open transaction.
pub struct LmdbWriter<'a> {
    tree: Tree,
    txn: RwTxn<'a>,
}

impl Writer for LmdbWriter<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.tree.put(&mut self.txn, key, value)?)
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        let was_there = self.tree.delete(&mut self.txn, key)?;
        if was_there { Ok(()) } else { Err("a key that was put is not there".into()) }
    }
}

/// A read transaction.
pub struct LmdbReader<'a> {
    tree: Tree,
    txn: RoTxn<'a, WithTls>,
}

impl Reader for LmdbReader<'_> {
    fn get(&self, key: &[u8], see: impl FnOnce(&[u8])) -> Result<bool> {
        Ok(self.tree.get(&self.txn, key)?.map(see).is_some())
    }

    fn scan(&self, from: &[u8], count: u64, mut see: impl FnMut(&[u8], &[u8])) -> Result<u64> {
        // LMDB has no empty key.
        let first = if from.is_empty() { Bound::Unbounded } else { Bound::Included(from) };
        let range = (first, Bound::Unbounded);
        let mut seen = 0;
        for entry in self.tree.range(&self.txn, &range)?.take(count as usize) {
            let (key, value) = entry?;
            see(key, value);
            seen += 1;
        }
        Ok(seen)
    }
}
