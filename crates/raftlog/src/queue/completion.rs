//! The completion of one write: its outcome, and the waker or callback that waits for it.

use crate::error::Error;
use flotilla_base::sync::Mutex;
use std::task::{Poll, Waker};

/// The result of a successful write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The sequence number of the batch: batches with lower ones come before it in the log. For a
    /// sync, that of the last batch that it covers.
    pub lsn: u64,
}

/// The outcome of a write.
pub(crate) type Outcome = Result<Receipt, Error>;

type Callback = Box<dyn FnOnce(Outcome) + Send>;

/// The completion of one write.
#[derive(Debug, Default)]
pub(crate) struct Completion {
    state: Mutex<CompletionState>,
}

#[derive(Default)]
struct CompletionState {
    outcome: Option<Outcome>,
    callback: Option<Callback>,
    waker: Option<Waker>,
}

impl std::fmt::Debug for CompletionState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("outcome", &self.outcome).finish_non_exhaustive()
    }
}

/// Waiters for an outcome, besides the followers that sleep for its round.
#[derive(Debug)]
pub(crate) struct CompletionWaiters {
    pub(crate) has_callback: bool,
    pub(crate) waker: Option<Waker>,
}

impl Completion {
    pub(crate) fn done(outcome: Outcome) -> Completion {
        let completion = Completion::default();
        completion.state.lock().outcome = Some(outcome);
        completion
    }

    pub(crate) fn outcome(&self) -> Option<Outcome> {
        self.state.lock().outcome.clone()
    }

    /// Sets the outcome, unless there is one, and returns its waiters.
    pub(crate) fn complete(&self, outcome: &Outcome) -> CompletionWaiters {
        let mut state = self.state.lock();
        state.outcome.get_or_insert_with(|| outcome.clone());
        CompletionWaiters { has_callback: state.callback.is_some(), waker: state.waker.take() }
    }

    /// Runs the callback.
    pub(crate) fn call_back(&self, outcome: Outcome) {
        let callback = self.state.lock().callback.take();
        if let Some(callback) = callback {
            callback(outcome);
        }
    }

    /// Keeps the callback for later. Returns the outcome if it is there already: then the caller
    /// runs the callback, and no other thread does.
    pub(crate) fn set_callback(&self, callback: Callback) -> Option<Outcome> {
        let mut state = self.state.lock();
        state.callback = Some(callback);
        state.outcome.clone()
    }

    pub(crate) fn poll(&self, waker: &Waker) -> Poll<Outcome> {
        let mut state = self.state.lock();
        match state.outcome.clone() {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                state.waker = Some(waker.clone());
                Poll::Pending
            }
        }
    }
}
