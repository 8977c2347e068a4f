//! The last connection error of a link, for the log.

use parking_lot::Mutex;

/// Why the last attempt to connect to a store, or its last connection, ended.
#[derive(Default)]
pub(super) struct LinkFault(Mutex<Option<String>>);

impl LinkFault {
    /// An attempt, or a connection, ended.
    pub(super) fn note(&self, words: String) {
        *self.0.lock() = Some(words);
    }

    /// The last of them.
    pub(super) fn last(&self) -> Option<String> {
        self.0.lock().clone()
    }
}
