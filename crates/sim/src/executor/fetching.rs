//! Reads of old entries of the log.

use flotilla_region::{Event, LogFetch};
use flotilla_store::Error;

use super::Executor;
use crate::task::{Outbox, Task};

/// One of this many reads of old entries finds no memory.
const FETCHES_TO_A_FAILURE: u64 = 8;

impl Executor {
    /// Reads entries from the log. Entries that are not there any more are reported as well.
    ///
    /// # Errors
    ///
    /// The log cannot read what it has acknowledged.
    pub(crate) fn fetch(&mut self, fetch: &LogFetch, out: &mut Outbox) -> Result<(), Error> {
        self.coverage.log.fetches += 1;
        let (region, peer, context) = (fetch.region, fetch.peer, fetch.context);
        let fetched = self.store.fetch(fetch);
        // Not drawn, so that old seeds draw the rest as ever: now and then there is no memory.
        let fails = self.coverage.log.fetches.is_multiple_of(FETCHES_TO_A_FAILURE);
        let is_gone = |error: &Error| error.is_gone();
        self.coverage.log.fetches_failed +=
            u64::from(fails || fetched.as_ref().is_err_and(is_gone));
        let event = match fetched {
            Ok(_) if fails => Event::FetchFailed { region, peer, context },
            Ok(entries) => Event::Fetched { region, peer, context, entries },
            // Only this one is legal: any other error ends the store, as in the node.
            Err(error) if error.is_gone() => Event::FetchFailed { region, peer, context },
            Err(error) => return Err(error),
        };
        out.tasks.push((self.notify_delay_us(), Task::Post(vec![event])));
        Ok(())
    }
}
