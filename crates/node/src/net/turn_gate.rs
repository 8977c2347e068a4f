//! Lets a task wait until the runtime has polled others that are ready: all of them, or some sixty
//! (`event_interval` of the runtime) while there are more.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;
use tokio::task::yield_now;

/// Between two turns of a task.
#[derive(Debug, Default)]
pub(crate) struct TurnGate(Option<Arc<NextTurn>>);

impl TurnGate {
    /// Ready when the next turn begins; wakes the task then.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match &self.0 {
            None => self.0 = Some(NextTurn::after_others(context.waker())),
            Some(next) if next.has_begun(context.waker()) => {
                self.0 = None;
                return Poll::Ready(());
            }
            Some(_) => {}
        }
        Poll::Pending
    }
}

/// The next turn of a task. It begins when the runtime has polled the tasks that are ready:
/// a connection that only woke itself would go on at once, for its library reads again for each
/// request that it hands on.
#[derive(Debug)]
struct NextTurn {
    has_begun: AtomicBool,
    task: Mutex<Waker>,
}

impl NextTurn {
    fn after_others(task: &Waker) -> Arc<Self> {
        let task = Mutex::new(task.clone());
        let next = Arc::new(Self { has_begun: AtomicBool::new(false), task });
        let waker = Waker::from(Arc::clone(&next));
        // It is pending: the runtime keeps the waker until others have had their turns.
        let _ = pin!(yield_now()).poll(&mut Context::from_waker(&waker));
        next
    }

    /// Whether it is here; else it wakes `task` when it is.
    fn has_begun(&self, task: &Waker) -> bool {
        self.task.lock().clone_from(task);
        self.has_begun.load(Ordering::Acquire)
    }
}

impl Wake for NextTurn {
    fn wake(self: Arc<Self>) {
        self.has_begun.store(true, Ordering::Release);
        self.task.lock().wake_by_ref();
    }
}
