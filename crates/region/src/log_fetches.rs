//! Fetches of old log entries: reads from disk that raft waits for while the driver carries them
//! out.
//!
//! Raft asks again at every heartbeat while an answer is under way, so one fetch serves all
//! requests from the same entry on.

use std::collections::BTreeMap;

use raft::GetEntriesContext;

use crate::effects::LogFetch;
use crate::ids::{Index, PeerId, RegionId};

/// Different fetches under way. Raft repeats a request that is refused.
const FETCHES_MAX: usize = 16;
/// Requests that one fetch answers. Raft repeats a request that is refused.
const ASKERS_MAX: usize = 16;

#[derive(Default)]
pub(crate) struct LogFetches {
    last_context: u64,
    /// Under way, by first entry.
    pending: BTreeMap<u64, PendingFetch>,
}

struct PendingFetch {
    context: u64,
    high: u64,
    bytes_max: u64,
    /// Not yet handed to the driver.
    is_new: bool,
    askers: Vec<GetEntriesContext>,
}

impl LogFetches {
    /// Adds a request for `[low, high)`.
    pub(crate) fn want(&mut self, low: u64, high: u64, bytes_max: u64, asker: GetEntriesContext) {
        if let Some(fetch) = self.pending.get_mut(&low) {
            // The fetch may end lower than this asker wants: raft asks for the rest when it has
            // sent these.
            if fetch.askers.len() < ASKERS_MAX {
                fetch.askers.push(asker);
            }
        } else if self.pending.len() < FETCHES_MAX {
            self.last_context += 1;
            let context = self.last_context;
            let fetch =
                PendingFetch { context, high, bytes_max, is_new: true, askers: vec![asker] };
            self.pending.insert(low, fetch);
        }
    }

    /// Fetches that were not given to the driver yet.
    pub(crate) fn take_unsent(
        &mut self,
        region: RegionId,
        peer: PeerId,
    ) -> impl Iterator<Item = LogFetch> + use<'_> {
        self.pending.iter_mut().filter_map(move |(low, fetch)| {
            std::mem::take(&mut fetch.is_new).then_some(LogFetch {
                region,
                peer,
                context: fetch.context,
                low: Index(*low),
                high: Index(fetch.high),
                bytes_max: fetch.bytes_max,
            })
        })
    }

    /// Ends the fetch: its first entry, the first beyond, and the requests that it answers.
    pub(crate) fn end(&mut self, context: u64) -> (u64, u64, Vec<GetEntriesContext>) {
        let low = self.pending.iter().find(|(_, fetch)| fetch.context == context);
        let low = low.map(|(low, _)| *low).expect("a fetch is answered once");
        let fetch = self.pending.remove(&low).expect("seen just now");
        (low, fetch.high, fetch.askers)
    }
}
