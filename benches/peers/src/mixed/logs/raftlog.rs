//! This project's log, by the store that owns it.

use super::ReplicaLog;
use crate::log::Result;
use flotilla_region::{Compaction, LogEntry, LogFetch, LogWrite};
use flotilla_store::{LogMaintenance, Store};
use std::sync::Arc;

/// The log of `store`, with the thread that it offers.
pub(super) fn open(store: &Arc<Store>) -> Result<Box<dyn ReplicaLog>> {
    let maintenance = store.maintain_log_in_background()?;
    Ok(Box::new(OwnLog { _maintenance: maintenance, store: Arc::clone(store) }))
}

struct OwnLog {
    /// Dropped before the store: it ends with it.
    _maintenance: LogMaintenance,
    store: Arc<Store>,
}

impl ReplicaLog for OwnLog {
    fn write(&self, writes: &[LogWrite], compactions: &[Compaction]) -> Result<()> {
        Ok(self.store.write_log(writes, &[], compactions, &[]).wait().map(|_| ())?)
    }

    fn fetch(&self, fetch: &LogFetch) -> Result<Option<Vec<LogEntry>>> {
        match self.store.fetch(fetch) {
            Ok(entries) => Ok(Some(entries)),
            Err(error) if error.is_gone() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn purge(&self) -> Result<()> {
        Ok(self.store.purge_log().map(|_| ())?)
    }
}
