//! Completions of a round: wakers and callbacks, run in the order of the log.

use crate::queue::completion::{Completion, Outcome};
use flotilla_base::sync::Mutex;
use flotilla_base::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::collections::VecDeque;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::task::Waker;

/// Completed writes whose callbacks have yet to run, in the order of the log.
#[derive(Debug, Default)]
pub(crate) struct CallbackQueue {
    queue: Mutex<ReadyCallbacks>,
    /// There may be callbacks that no thread runs.
    has_new: AtomicBool,
}

#[derive(Debug, Default)]
struct ReadyCallbacks {
    ready: VecDeque<(Arc<Completion>, Outcome)>,
    /// A thread is running them. Only one does, which keeps them in order.
    has_runner: bool,
}

/// Completed writes whose wakers and callbacks are still to be run. Followers that sleep for the
/// round are woken by its end.
#[derive(Debug, Default)]
pub(crate) struct Completions<'a> {
    own: Option<&'a Arc<Completion>>,
    own_outcome: Option<Outcome>,
    wakers: Vec<Waker>,
    callbacks: Vec<(Arc<Completion>, Outcome)>,
}

impl<'a> Completions<'a> {
    /// For a thread that waits for the completion `own` and for nothing else: [`Completions::wake`]
    /// returns its outcome, without the completion's lock.
    pub(crate) fn of(own: Option<&'a Arc<Completion>>) -> Completions<'a> {
        Completions { own, ..Completions::default() }
    }

    /// Completes a write.
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

    /// Wakes the tasks that poll a future. Returns the own outcome, if there is one by now.
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

    /// Runs the callbacks, unless another thread does; that one then runs these too.
    pub(crate) fn run(&self) {
        // Most commits have no callback, and need not take the lock for that.
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
            // After a panic the flag of the runner must not stay set: no callback would run again.
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
