//! Reads entries back from the log for followers that are far behind.
//!
//! On a thread of its own, because what is read may have left memory, and a shard must not wait
//! for a disk. A region has few fetches under way at once, each bounded in bytes.

use std::sync::Arc;

use flotilla_region::{Event, LogFetch};
use flotilla_store::{Error, LogError, Store};

use super::backlog::Backlog;
use crate::failure::Failure;
use crate::letters::Mailboxes;

/// What the thread needs.
pub(crate) struct Fetcher {
    pub(crate) store: Arc<Store>,
    pub(crate) backlog: Arc<Backlog<LogFetch>>,
    pub(crate) mailboxes: Mailboxes,
    pub(crate) failure: Failure,
}

impl Fetcher {
    /// Runs until the backlog is closed.
    pub(crate) fn run(self) {
        let mut fetches: Vec<LogFetch> = Vec::new();
        while let Some(bytes) = self.backlog.take(&mut fetches) {
            for fetch in fetches.drain(..) {
                let (region, context) = (fetch.region, fetch.context);
                let event = match self.store.fetch(&fetch) {
                    Ok(entries) if !entries.is_empty() => {
                        Event::Fetched { region, context, entries }
                    }
                    Ok(_) => Event::FetchFailed { region, context },
                    Err(Error::Log(LogError::Corrupt { .. })) => {
                        let entries = format!("{} to {}", fetch.low, fetch.high);
                        self.failure.report(&format!(
                            "region {region}: the log is damaged where entries {entries} should be"
                        ));
                        return;
                    }
                    Err(error) => {
                        // Compacted or replaced in the meantime, or the disk is in trouble. Raft
                        // asks again; if it is the disk, so does the next write.
                        tracing::debug!(%region, "log entries cannot be read: {error}");
                        Event::FetchFailed { region, context }
                    }
                };
                self.mailboxes.complete_all([event]);
            }
            self.backlog.finish(bytes);
        }
    }
}
