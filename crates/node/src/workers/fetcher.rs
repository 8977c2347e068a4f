//! Reads entries back from the log for followers that are far behind.
//!
//! On a thread of its own, because what is read may have left memory, and a shard must not wait
//! for a disk. A region has few fetches under way at once, each bounded in bytes.

use std::sync::Arc;

use flotilla_region::{Event, LogFetch};
use flotilla_store::Store;

use super::backlog::Backlog;
use crate::letters::Mailboxes;

/// What the thread needs.
pub(crate) struct Fetcher {
    pub(crate) store: Arc<Store>,
    pub(crate) backlog: Arc<Backlog<LogFetch>>,
    pub(crate) mailboxes: Mailboxes,
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
                    Err(error) => {
                        // Reading changes nothing, so the node lives on; the follower stays behind
                        // until somebody who reads this line acts.
                        tracing::warn!(%region, "log entries cannot be read: {error}");
                        Event::FetchFailed { region, context }
                    }
                };
                self.mailboxes.complete_all([event]);
            }
            self.backlog.finish(bytes);
        }
    }
}
