//! RocksDB as a raft log: one key an entry, group and index big endian, as TiKV had it.
//!
//! The settings are those of TiKV's configuration template for its raft database, as far as they
//! differ from RocksDB's own, except that all levels below the second use lz4, which is the one
//! codec built in.

use self::keys::{ENTRY, STATE, index_of, key};
use crate::log::{Append, Fetched, RaftLog, Result, Settings, TERM, Writer};
use ::rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, Direction, IteratorMode, Options, ReadOptions,
    SliceTransform, WriteBatch, WriteOptions,
};
use std::ops::Range;
use std::path::Path;

const CACHE_BYTES: usize = 512 << 20;

/// An entry as its callers get it.
struct Entry {
    index: u64,
    term: u64,
    data: Vec<u8>,
}

/// Opens it. It purges by itself, so that the threshold means nothing to it.
pub(crate) fn open(dir: &Path, _settings: Settings) -> Result<Box<dyn RaftLog>> {
    Ok(Box::new(Rocks { db: DB::open(&options(), dir)? }))
}

/// TiKV's for its raft database.
pub(crate) fn options() -> Options {
    let mut table = BlockBasedOptions::default();
    table.set_block_size(64 << 10);
    table.set_block_cache(&Cache::new_lru_cache(CACHE_BYTES));
    table.set_cache_index_and_filter_blocks(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(true);
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_block_based_table_factory(&table);
    options.set_write_buffer_size(128 << 20);
    options.set_max_write_buffer_number(5);
    options.set_min_write_buffer_number_to_merge(1);
    options.set_max_bytes_for_level_base(512 << 20);
    options.set_target_file_size_base(8 << 20);
    options.set_level_compaction_dynamic_level_bytes(true);
    options.set_level_zero_slowdown_writes_trigger(20);
    options.set_level_zero_stop_writes_trigger(36);
    options.set_max_background_jobs(4);
    options.set_max_subcompactions(2);
    options.set_max_total_wal_size(4 << 30);
    options.set_bytes_per_sync(1 << 20);
    options.set_wal_bytes_per_sync(512 << 10);
    options.set_enable_pipelined_write(true);
    options.set_allow_concurrent_memtable_write(true);
    options.set_prefix_extractor(SliceTransform::create_fixed_prefix(9));
    options.set_memtable_prefix_bloom_ratio(0.1);
    let mut levels = [DBCompressionType::Lz4; 7];
    levels[..2].fill(DBCompressionType::None);
    options.set_compression_per_level(&levels);
    options
}

/// Keys: the group, a byte for the kind, the index.
pub(crate) mod keys {
    use crate::log::Result;

    const KEY_BYTES: usize = 17;
    /// An entry.
    pub(crate) const ENTRY: u8 = 1;
    /// A small value of a group.
    pub(crate) const STATE: u8 = 2;

    /// The key of an entry or of a group's value.
    pub(crate) fn key(group: u64, kind: u8, index: u64) -> [u8; KEY_BYTES] {
        let mut key = [0; KEY_BYTES];
        key[..8].copy_from_slice(&group.to_be_bytes());
        key[8] = kind;
        key[9..].copy_from_slice(&index.to_be_bytes());
        key
    }

    /// The index in a key.
    pub(crate) fn index_of(key: &[u8]) -> Result<u64> {
        Ok(u64::from_be_bytes(key.get(9..KEY_BYTES).ok_or("a short key")?.try_into()?))
    }
}

struct Rocks {
    db: DB,
}

impl RaftLog for Rocks {
    fn writer(&self) -> Box<dyn Writer + '_> {
        Box::new(RocksWriter { db: &self.db, value: Vec::new() })
    }

    fn fetch(&self, group: u64, range: Range<u64>) -> Result<Fetched> {
        let mut options = ReadOptions::default();
        options.set_iterate_upper_bound(key(group, ENTRY, range.end));
        let begin = key(group, ENTRY, range.start);
        let mut entries = Vec::new();
        for pair in self.db.iterator_opt(IteratorMode::From(&begin, Direction::Forward), options) {
            let (key, value) = pair?;
            let (term, data) = value.split_first_chunk().ok_or("a short value")?;
            let (index, term) = (index_of(&key)?, u64::from_be_bytes(*term));
            entries.push(Entry { index, term, data: data.to_vec() });
        }
        let is_whole = entries.iter().map(|e| e.index).eq(range);
        if !is_whole || entries.iter().any(|e| e.term != TERM) {
            return Err("not all entries of the range are there".into());
        }
        let bytes = entries.iter().map(|e| e.data.len() as u64).sum();
        Ok(Fetched { entries: entries.len() as u64, bytes })
    }

    fn last_index(&self, group: u64) -> Result<u64> {
        let mut options = ReadOptions::default();
        options.set_iterate_lower_bound(key(group, ENTRY, 0));
        let end = key(group, ENTRY, u64::MAX);
        let mut backwards =
            self.db.iterator_opt(IteratorMode::From(&end, Direction::Reverse), options);
        match backwards.next() {
            None => Ok(0),
            Some(pair) => index_of(&pair?.0),
        }
    }

    fn compact(&self, group: u64, first: u64) -> Result<()> {
        let mut batch = WriteBatch::default();
        batch.delete_range(key(group, ENTRY, 0), key(group, ENTRY, first));
        self.db.write(batch)?;
        Ok(())
    }

    fn purge(&self) -> Result<Vec<u64>> {
        Ok(Vec::new())
    }

    fn index_bytes(&self) -> Option<u64> {
        let property = |name| self.db.property_int_value(name).ok().flatten();
        Some(
            property("rocksdb.cur-size-all-mem-tables")?
                + property("rocksdb.estimate-table-readers-mem")?
                + property("rocksdb.block-cache-usage")?,
        )
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.db.flush_wal(true)?;
        Ok(())
    }
}

struct RocksWriter<'a> {
    db: &'a DB,
    value: Vec<u8>,
}

impl Writer for RocksWriter<'_> {
    fn append(&mut self, append: Append<'_>) -> Result<()> {
        let mut batch = WriteBatch::default();
        for (index, data) in (append.first..).zip(append.data) {
            self.value.clear();
            self.value.extend_from_slice(&TERM.to_be_bytes());
            self.value.extend_from_slice(data);
            batch.put(key(append.group, ENTRY, index), &self.value);
        }
        if let Some(state) = append.state {
            batch.put(key(append.group, STATE, 0), state);
        }
        let mut options = WriteOptions::default();
        options.set_sync(append.sync);
        self.db.write_opt(batch, &options)?;
        Ok(())
    }
}
