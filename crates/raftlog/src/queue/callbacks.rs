//! Who is told how a write came out, and in which order.

use crate::queue::completion::{Completion, Outcome};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::collections::VecDeque;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::task::Waker;

/// Completed writes whose callbacks have yet to run, in the order of the log.
#[derive(Debug, Default)]
pub(crate) struct CallbackQueue {
    queue: Mutex<ReadyCallbacks>,
    /// There may be some that nobody runs.
    has_new: AtomicBool,
}

#[derive(Debug, Default)]
struct ReadyCallbacks {
    ready: VecDeque<(Arc<Completion>, Outcome)>,
    /// A thread is running them; they stay in order because nobody else does.
    has_runner: bool,
}

/// Who is to be told of outcomes that are left already. Threads that sleep for a turn are woken by
/// its end.
#[derive(Debug, Default)]
pub(crate) struct Completions<'a> {
    own: Option<&'a Arc<Completion>>,
    own_outcome: Option<Outcome>,
    wakers: Vec<Waker>,
    callbacks: Vec<(Arc<Completion>, Outcome)>,
}

impl<'a> Completions<'a> {
    /// For a thread that waits at the slot `own` and nowhere else: what would be left there it is
    /// handed by [`Completions::wake`], without the slot's lock.
    pub(crate) fn of(own: Option<&'a Arc<Completion>>) -> Completions<'a> {
        Completions { own, ..Completions::default() }
    }

    /// Leaves an outcome.
    pub(crate) fn complete(&mut self, completion: &Arc<Completion>, outcome: Outcome) {
        if self.own.is_some_and(|own| Arc::ptr_eq(own, completion)) {
            self.own_outcome = Some(outcome);
            return;
        }
        let waiters = completion.complete(&outcome);
        self.wakers.extend(waiters.waker);
        if waiters.has_callback {
            self.callbacks.push((completion.clone(), outcome));
        }
    }

    /// Wakes those who wait in a future. Returns the own outcome, if there is one by now.
    pub(crate) fn wake(self) -> Option<Outcome> {
        self.wakers.into_iter().for_each(Waker::wake);
        self.own_outcome
    }
}

impl CallbackQueue {
    pub(crate) fn push(&self, completion: Arc<Completion>, outcome: Outcome) {
        self.queue.lock().ready.push_back((completion, outcome));
        self.has_new.store(true, SeqCst);
    }

    pub(crate) fn take_from(&self, completions: &mut Completions<'_>) {
        if !completions.callbacks.is_empty() {
            self.queue.lock().ready.extend(completions.callbacks.drain(..));
            self.has_new.store(true, SeqCst);
        }
    }

    /// Runs them, unless another thread does; it then runs ours too.
    pub(crate) fn run(&self) {
        if !self.has_new.load(SeqCst) {
            return;
        }
        let mut queue = self.queue.lock();
        self.has_new.store(false, SeqCst);
        if std::mem::replace(&mut queue.has_runner, true) {
            return;
        }
        while let Some((completion, outcome)) = queue.ready.pop_front() {
            drop(queue);
            let called = panic::catch_unwind(AssertUnwindSafe(|| completion.call_back(outcome)));
            queue = self.queue.lock();
            if let Err(fault) = called {
                queue.has_runner = false;
                self.has_new.store(true, SeqCst);
                drop(queue);
                panic::resume_unwind(fault);
            }
        }
        queue.has_runner = false;
    }
}
