//! raft-engine, as TiKV uses it: one batch a group commit, the hard state as a key of the group.

use super::{HARD_STATE_KEY, PURGE_ABOVE_BYTES, ReplicaLog, is_synced};
use crate::engines::{Indexed, raft_engine_config};
use crate::log::Result;
use ::raft_engine::{Command, Engine, LogBatch};
use flotilla_region::{Compaction, EntryKind, Index, LogEntry, LogFetch, LogWrite, Term};
use raft::eraftpb::Entry;
use std::path::Path;

/// A group that no replica has.
const OWN_GROUP: u64 = u64::MAX;

pub(super) fn open(dir: &Path, prefill: bool) -> Result<Box<dyn ReplicaLog>> {
    let engine = Engine::open(raft_engine_config(dir, PURGE_ABOVE_BYTES, prefill)?)?;
    Ok(Box::new(TheirLog { engine }))
}

struct TheirLog {
    engine: Engine,
}

impl ReplicaLog for TheirLog {
    fn write(&self, writes: &[LogWrite], compactions: &[Compaction]) -> Result<()> {
        let mut batch = LogBatch::with_capacity(writes.len() + compactions.len());
        for write in writes {
            let Some(hard_state) = write.hard_state else { continue };
            let group = write.peer.0;
            let entries: Vec<Entry> = write.entries.iter().map(to_raft).collect();
            if !entries.is_empty() {
                batch.add_entries::<Indexed>(group, &entries)?;
            }
            batch.put(group, HARD_STATE_KEY.to_vec(), hard_state.encode().to_vec())?;
        }
        for compaction in compactions {
            let index = compaction.first.0;
            batch.add_command(compaction.peer.0, Command::Compact { index });
        }
        if batch.is_empty() {
            // An empty batch would not be synced.
            batch.put(OWN_GROUP, HARD_STATE_KEY.to_vec(), Vec::new())?;
        }
        self.engine.write(&mut batch, is_synced(writes))?;
        Ok(())
    }

    fn fetch(&self, fetch: &LogFetch) -> Result<Option<Vec<LogEntry>>> {
        let mut entries: Vec<Entry> = Vec::new();
        let bytes_max = usize::try_from(fetch.bytes_max).ok();
        let (group, low, high) = (fetch.peer.0, fetch.low.0, fetch.high.0);
        match self.engine.fetch_entries_to::<Indexed>(group, low, high, bytes_max, &mut entries) {
            Ok(_) => Ok(Some(entries.into_iter().map(from_raft).collect())),
            Err(::raft_engine::Error::EntryCompacted | ::raft_engine::Error::EntryNotFound) => {
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn purge(&self) -> Result<()> {
        // The groups that it names are those it cannot rewrite cheaply. TiKV compacts them; here
        // the region alone says how far.
        self.engine.purge_expired_files()?;
        Ok(())
    }
}

fn to_raft(entry: &LogEntry) -> Entry {
    let mut raft = Entry::default();
    raft.set_index(entry.index.0);
    raft.set_term(entry.term.0);
    raft.set_data(entry.data.clone());
    raft
}

fn from_raft(mut entry: Entry) -> LogEntry {
    let (index, term) = (Index(entry.index), Term(entry.term));
    LogEntry { index, term, kind: EntryKind::Normal, data: entry.take_data() }
}
