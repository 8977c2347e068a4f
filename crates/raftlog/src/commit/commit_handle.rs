//! The handle of a queued write: waited for, polled as a future, or given a callback.

use crate::commit::commit_driver::CommitDriver;
use crate::commit::group_commit::PendingWrite;
use crate::error::Error;
use crate::queue::completion::Receipt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A write that is queued, or its outcome.
///
/// A thread must carry the write out: one in [`Commit::wait`] does, or one in
/// [`crate::LogEngine::flush`]. To await it is enough: the first poll of a commit that is not
/// written yet hands it to a thread of the log, see [`crate::Config::commit_thread`]. A callback
/// alone is not. Dropping a commit does not take the write back.
#[derive(Debug)]
#[must_use = "the outcome of a write is told only here"]
pub struct Commit {
    queued: PendingWrite,
    driver: Arc<CommitDriver>,
}

impl Commit {
    pub(crate) fn new(queued: PendingWrite, driver: Arc<CommitDriver>) -> Commit {
        Commit { queued, driver }
    }

    /// Waits for the outcome. If no thread is writing, this one writes for all that are queued.
    ///
    /// # Errors
    ///
    /// Why the batch was refused or is not known to be written. After [`Error::Poisoned`] it may be
    /// there or not when the log is opened again; after any other error it is not.
    pub fn wait(self) -> Result<Receipt, Error> {
        self.driver.group_commit.wait(&self.queued)
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
            self.driver.group_commit.call_back(&self.queued.completion, outcome);
        }
    }

    /// The outcome, if it is there. Never waits.
    pub fn try_take(&mut self) -> Option<Result<Receipt, Error>> {
        self.queued.completion.outcome()
    }
}

/// # Cancel safety
///
/// Dropping the future does not take the write back: it stays queued for the next leader.
impl Future for Commit {
    type Output = Result<Receipt, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let completion = &self.queued.completion;
        match completion.poll(context.waker()) {
            Poll::Pending if self.driver.hand_over(self.queued.round) => {
                completion.poll(context.waker())
            }
            polled => polled,
        }
    }
}
