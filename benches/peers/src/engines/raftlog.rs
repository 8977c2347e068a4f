//! This project's log engine.

use crate::log::{Append, Fetched, RaftLog, Result, Settings, TERM, Writer};
use flotilla_raftlog::{Config, Durability, EntryRef, LogBatch, LogEngine, LogMaintenance};
use flotilla_vfs::os::OsFs;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

const STATE: &[u8] = b"state";

/// Opens it with its defaults, the purge threshold apart, and with the thread that it offers.
pub(crate) fn open(dir: &Path, settings: Settings) -> Result<Box<dyn RaftLog>> {
    let mut config = Config::default().purge_above_bytes(settings.purge_above_bytes);
    config.segment_bytes = settings.file_bytes.unwrap_or(config.segment_bytes);
    let (log, _) = LogEngine::open_with(Arc::new(OsFs::new()), dir, config)?;
    let maintenance = log.maintain_in_background()?;
    Ok(Box::new(Ours { log, maintenance }))
}

struct Ours {
    log: LogEngine,
    maintenance: LogMaintenance,
}

impl RaftLog for Ours {
    fn writer(&self) -> Box<dyn Writer + '_> {
        Box::new(OurWriter { log: &self.log })
    }

    fn fetch(&self, group: u64, range: Range<u64>) -> Result<Fetched> {
        let group = self.log.group(group).ok_or("no such group")?;
        let entries = group.entries(range, u64::MAX)?;
        let bytes = entries.iter().map(|e| e.data.len() as u64).sum();
        Ok(Fetched { entries: entries.len() as u64, bytes })
    }

    fn last_index(&self, group: u64) -> Result<u64> {
        Ok(self.log.group(group).map_or(0, |g| g.last_index()))
    }

    fn compact(&self, group: u64, first: u64) -> Result<()> {
        let mut batch = LogBatch::new();
        batch.compact_to(group, first, TERM);
        self.log.write(batch, Durability::Buffered).wait()?;
        Ok(())
    }

    fn purge(&self) -> Result<Vec<u64>> {
        Ok(self.log.purge_expired_files()?.groups_to_compact)
    }

    fn index_bytes(&self) -> Option<u64> {
        Some(self.log.stats().index_bytes)
    }

    fn close(self: Box<Self>) -> Result<()> {
        drop(self.maintenance);
        Ok(self.log.close()?)
    }
}

struct OurWriter<'a> {
    log: &'a LogEngine,
}

impl Writer for OurWriter<'_> {
    fn append(&mut self, append: Append<'_>) -> Result<()> {
        let entries = (append.first..).zip(append.data);
        let entries = entries.map(|(index, data)| EntryRef { index, term: TERM, kind: 0, data });
        let mut batch = LogBatch::new();
        batch.append(append.group, entries);
        if let Some(state) = append.state {
            batch.put(append.group, STATE, state);
        }
        let durability = if append.sync { Durability::Synced } else { Durability::Buffered };
        self.log.write(batch, durability).wait()?;
        Ok(())
    }
}
