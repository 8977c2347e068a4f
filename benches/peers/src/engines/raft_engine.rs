//! raft-engine, the log engine of TiKV.
//!
//! Its defaults are what TiKV runs with. Entries are the `raft` crate's protobuf messages, as
//! there.

use crate::log::{Append, Fetched, RaftLog, Result, Settings, TERM, Writer};
use ::raft_engine::{Command, Config, Engine, LogBatch, MessageExt, ReadableSize};
use raft::eraftpb::Entry;
use std::ops::Range;
use std::path::Path;

const STATE: &[u8] = b"state";
/// How much is written beforehand if it is: eight files of the default size.
const PREFILL_BYTES: u64 = 1 << 30;

/// Opens it with its defaults, the purge threshold apart.
pub(crate) fn open(dir: &Path, settings: Settings, prefill: bool) -> Result<Box<dyn RaftLog>> {
    let mut config = config(dir, settings.purge_above_bytes, prefill)?;
    if let Some(file_bytes) = settings.file_bytes {
        config.target_file_size = ReadableSize(file_bytes);
    }
    Ok(Box::new(Theirs { engine: Engine::open(config)? }))
}

/// Its defaults, the purge threshold apart.
pub(crate) fn config(dir: &Path, purge_above_bytes: u64, prefill: bool) -> Result<Config> {
    Ok(Config {
        dir: dir.to_str().ok_or("the directory's name is not Unicode")?.to_owned(),
        purge_threshold: ReadableSize(purge_above_bytes),
        prefill_for_recycle: prefill,
        prefill_limit: prefill.then_some(ReadableSize(PREFILL_BYTES)),
        ..Config::default()
    })
}

struct Theirs {
    engine: Engine,
}

/// Tells the engine where an entry's index is.
pub(crate) struct Indexed;

impl MessageExt for Indexed {
    type Entry = Entry;

    fn index(entry: &Entry) -> u64 {
        entry.index
    }
}

impl RaftLog for Theirs {
    fn writer(&self) -> Box<dyn Writer + '_> {
        let batch = LogBatch::with_capacity(4);
        Box::new(TheirWriter { engine: &self.engine, batch, entries: Vec::new() })
    }

    fn fetch(&self, group: u64, range: Range<u64>) -> Result<Fetched> {
        let mut entries: Vec<Entry> = Vec::new();
        self.engine.fetch_entries_to::<Indexed>(
            group,
            range.start,
            range.end,
            None,
            &mut entries,
        )?;
        let bytes = entries.iter().map(|e| e.data.len() as u64).sum();
        Ok(Fetched { entries: entries.len() as u64, bytes })
    }

    fn last_index(&self, group: u64) -> Result<u64> {
        Ok(self.engine.last_index(group).unwrap_or(0))
    }

    fn compact(&self, group: u64, first: u64) -> Result<()> {
        let mut batch = LogBatch::with_capacity(1);
        batch.add_command(group, Command::Compact { index: first });
        self.engine.write(&mut batch, false)?;
        Ok(())
    }

    fn purge(&self) -> Result<Vec<u64>> {
        Ok(self.engine.purge_expired_files()?)
    }

    fn index_bytes(&self) -> Option<u64> {
        None
    }

    fn close(self: Box<Self>) -> Result<()> {
        // Its `sync` writes an empty batch and so does nothing; a batch with something in it does.
        let mut batch = LogBatch::with_capacity(1);
        batch.put(u64::MAX, STATE.to_vec(), b"closed".to_vec())?;
        self.engine.write(&mut batch, true)?;
        Ok(())
    }
}

struct TheirWriter<'a> {
    engine: &'a Engine,
    batch: LogBatch,
    entries: Vec<Entry>,
}

impl Writer for TheirWriter<'_> {
    fn append(&mut self, append: Append<'_>) -> Result<()> {
        self.entries.clear();
        for (index, data) in (append.first..).zip(append.data) {
            let mut entry = Entry::default();
            entry.set_index(index);
            entry.set_term(TERM);
            entry.set_data(data.clone());
            self.entries.push(entry);
        }
        self.batch.add_entries::<Indexed>(append.group, &self.entries)?;
        if let Some(state) = append.state {
            self.batch.put(append.group, STATE.to_vec(), state.to_vec())?;
        }
        self.engine.write(&mut self.batch, append.sync)?;
        Ok(())
    }
}
