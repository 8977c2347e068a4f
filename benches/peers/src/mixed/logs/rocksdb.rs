//! RocksDB as TiKV had it for its raft database: a key for each entry, deleted by range.

use super::{ReplicaLog, is_synced};
use crate::engines::rocksdb_keys::{ENTRY, STATE, index_of, key};
use crate::engines::rocksdb_options;
use crate::log::Result;
use ::rocksdb::{DB, Direction, IteratorMode, ReadOptions, WriteBatch, WriteOptions};
use flotilla_region::{Compaction, EntryKind, Index, LogEntry, LogFetch, LogWrite, Term};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Mutex;

pub(super) fn open(dir: &Path) -> Result<Box<dyn ReplicaLog>> {
    let db = DB::open(&rocksdb_options(), dir)?;
    Ok(Box::new(RocksLog { db, bounds: Mutex::default() }))
}

struct RocksLog {
    db: DB,
    bounds: Mutex<HashMap<u64, Bounds>>,
}

/// The entries of a group: the first that was not deleted, the last.
#[derive(Clone, Copy, Default)]
struct Bounds {
    first: u64,
    last: u64,
}

impl ReplicaLog for RocksLog {
    fn write(&self, writes: &[LogWrite], compactions: &[Compaction]) -> Result<()> {
        let mut batch = WriteBatch::default();
        let mut bounds = self.bounds.lock().expect("nobody panics with it");
        let mut value = Vec::new();
        for write in writes {
            let Some(hard_state) = write.hard_state else { continue };
            let group = write.peer.0;
            for entry in &write.entries {
                value.clear();
                value.extend_from_slice(&entry.term.0.to_be_bytes());
                value.extend_from_slice(&entry.data);
                batch.put(key(group, ENTRY, entry.index.0), &value);
            }
            if let Some(last) = write.entries.last() {
                let of_group = bounds.entry(group).or_default();
                // A new leader's entries may replace more than there are of them.
                if last.index.0 < of_group.last {
                    let (from, to) = (last.index.0 + 1, of_group.last + 1);
                    batch.delete_range(key(group, ENTRY, from), key(group, ENTRY, to));
                }
                of_group.last = last.index.0;
            }
            batch.put(key(group, STATE, 0), hard_state.encode());
        }
        for compaction in compactions {
            let (group, first) = (compaction.peer.0, compaction.first.0);
            let of_group = bounds.entry(group).or_default();
            batch.delete_range(key(group, ENTRY, of_group.first), key(group, ENTRY, first));
            of_group.first = first;
        }
        drop(bounds);
        let mut options = WriteOptions::default();
        options.set_sync(is_synced(writes));
        self.db.write_opt(batch, &options)?;
        Ok(())
    }

    fn fetch(&self, fetch: &LogFetch) -> Result<Option<Vec<LogEntry>>> {
        let mut options = ReadOptions::default();
        options.set_iterate_upper_bound(key(fetch.peer.0, ENTRY, fetch.high.0));
        let begin = key(fetch.peer.0, ENTRY, fetch.low.0);
        let (mut entries, mut bytes): (Vec<LogEntry>, u64) = (Vec::new(), 0);
        for pair in self.db.iterator_opt(IteratorMode::From(&begin, Direction::Forward), options) {
            let (key, value) = pair?;
            let (term, data) = value.split_first_chunk().ok_or("a short value")?;
            let (index, term) = (Index(index_of(&key)?), Term(u64::from_be_bytes(*term)));
            if index.0 != fetch.low.0 + entries.len() as u64 {
                return Ok(None);
            }
            bytes += data.len() as u64;
            if bytes > fetch.bytes_max && !entries.is_empty() {
                break;
            }
            let data = data.to_vec().into();
            entries.push(LogEntry { index, term, kind: EntryKind::Normal, data });
        }
        Ok(Some(entries).filter(|entries| !entries.is_empty()))
    }

    /// It flushes and compacts by itself.
    fn purge(&self) -> Result<()> {
        Ok(())
    }
}
