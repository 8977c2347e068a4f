//! The place where the outcome of one write is left and waited for.

use crate::error::Error;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Condvar, Mutex};
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
#[derive(Debug)]
pub(crate) struct Slot {
    /// The place of the write in the queue; zero if it never got there.
    pub(crate) ticket: u64,
    /// A thread waits here, and can be made the leader. Changed under the queue's lock.
    pub(crate) has_thread: AtomicBool,
    state: Mutex<State>,
    woken: Condvar,
}

#[derive(Default)]
struct State {
    outcome: Option<Outcome>,
    promoted: bool,
    callback: Option<Callback>,
    waker: Option<Waker>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("outcome", &self.outcome).finish_non_exhaustive()
    }
}

/// Why a thread that waited goes on.
#[derive(Debug)]
pub(crate) enum Woken {
    Done(Outcome),
    /// The thread leads now.
    Promoted,
}

/// Who waits for an outcome.
#[derive(Debug)]
pub(crate) struct Waits {
    pub(crate) has_thread: bool,
    pub(crate) has_callback: bool,
    pub(crate) waker: Option<Waker>,
}

impl Slot {
    pub(crate) fn new(ticket: u64) -> Slot {
        let (state, woken) = (Mutex::default(), Condvar::new());
        Slot { ticket, has_thread: AtomicBool::new(false), state, woken }
    }

    pub(crate) fn done(outcome: Outcome) -> Slot {
        let slot = Slot::new(0);
        slot.state.lock().outcome = Some(outcome);
        slot
    }

    pub(crate) fn outcome(&self) -> Option<Outcome> {
        self.state.lock().outcome.clone()
    }

    /// Leaves the outcome, unless there is one, and says who waits for it.
    pub(crate) fn leave(&self, outcome: &Outcome) -> Waits {
        let mut state = self.state.lock();
        state.outcome.get_or_insert_with(|| outcome.clone());
        let (waker, has_callback) = (state.waker.take(), state.callback.is_some());
        drop(state);
        // A thread that comes from now on sees the outcome.
        Waits { has_thread: self.has_thread.load(Ordering::Relaxed), has_callback, waker }
    }

    pub(crate) fn wake_thread(&self) {
        self.woken.notify_one();
    }

    /// Runs the callback.
    pub(crate) fn call_back(&self, outcome: Outcome) {
        let callback = self.state.lock().callback.take();
        if let Some(callback) = callback {
            callback(outcome);
        }
    }

    /// Makes the thread that waits here the leader.
    pub(crate) fn promote(&self) {
        self.state.lock().promoted = true;
        self.woken.notify_one();
    }

    /// Waits for one of the two.
    pub(crate) fn park(&self) -> Woken {
        let mut state = self.state.lock();
        loop {
            if std::mem::take(&mut state.promoted) {
                return Woken::Promoted;
            }
            if let Some(outcome) = &state.outcome {
                return Woken::Done(outcome.clone());
            }
            self.woken.wait(&mut state);
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
