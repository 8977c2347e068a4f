//! The place where the outcome of one write is left and looked for.

use crate::error::Error;
use crate::sync::Mutex;
use std::task::{Poll, Waker};

/// What a write that succeeded is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The sequence number of the batch: batches with lower ones come before it in the log. For a
    /// sync, that of the last batch that it covers.
    pub lsn: u64,
}

/// How a write came out.
pub(crate) type Outcome = Result<Receipt, Error>;

type Callback = Box<dyn FnOnce(Outcome) + Send>;

/// Where the outcome of one write is left.
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

/// Who waits for an outcome, besides threads that sleep for its turn.
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

    /// Leaves the outcome, unless there is one, and says who waits for it.
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

    /// Keeps the callback for later. Returns the outcome if it is there already: then nobody else
    /// runs the callback.
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
