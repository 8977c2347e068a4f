//! The handle of a queued write: waited for, polled as a future, or given a callback.

use crate::commit::group_commit::{GroupCommit, PendingWrite};
use crate::error::Error;
use crate::queue::completion::Receipt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A write that is queued, or its outcome.
///
/// A thread must carry the write out: one in [`Commit::wait`] does, or one in
/// [`crate::LogEngine::flush`]. A callback or a future alone does not. Dropping a commit does not
/// take the write back.
#[derive(Debug)]
#[must_use = "the outcome of a write is told only here"]
pub struct Commit {
    queued: PendingWrite,
    group_commit: Arc<GroupCommit>,
}

impl Commit {
    pub(crate) fn new(queued: PendingWrite, group_commit: Arc<GroupCommit>) -> Commit {
        Commit { queued, group_commit }
    }

    /// Waits for the outcome. If no thread is writing, this one writes for all that are queued.
    ///
    /// # Errors
    ///
    /// Why the batch was refused or is not known to be written. After [`Error::Poisoned`] it may be
    /// there or not when the log is opened again; after any other error it is not.
    pub fn wait(self) -> Result<Receipt, Error> {
        self.group_commit.wait(&self.queued)
    }

    /// Calls `f` with the outcome: on the thread that writes or, if the outcome is there already,
    /// on this one; in both cases on another, if that one is running callbacks just then.
    ///
    /// Callbacks run one at a time and in the order of the log: each after those of all earlier
    /// batches that were set before it. They should be short, for the outcomes of others wait
    /// behind them. They may write, wait for, and flush other batches. If one panics, so does the
    /// thread that runs it, and those behind it run with the next write.
    pub fn on_done(self, f: impl FnOnce(Result<Receipt, Error>) + Send + 'static) {
        if let Some(outcome) = self.queued.completion.set_callback(Box::new(f)) {
            self.group_commit.call_back(&self.queued.completion, outcome);
        }
    }

    /// The outcome, if it is there. Never waits.
    pub fn try_take(&mut self) -> Option<Result<Receipt, Error>> {
        self.queued.completion.outcome()
    }
}

/// # Cancel safety
///
/// Dropping the future does not take the write back.
impl Future for Commit {
    type Output = Result<Receipt, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.queued.completion.poll(context.waker())
    }
}
