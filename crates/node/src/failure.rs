//! Fail-stop: the first failure that cannot be survived ends the whole node, once, with one line.
//!
//! An engine that refused a write knows no more than we do about what is on disk, and a thread that
//! panicked has left its regions in the middle of something. To go on would mean to guess. So the
//! first report closes every pending request unanswered and wakes the owner of the node, which ends
//! the process.

use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tokio::sync::watch;

use crate::sched;

/// Where threads report what they cannot survive. Clones share one state.
#[derive(Clone)]
pub struct NodeFailure {
    reason: Arc<watch::Sender<Option<String>>>,
    is_refusal: Arc<AtomicBool>,
    halt: Arc<dyn Fn() + Send + Sync>,
}

impl NodeFailure {
    /// `halt` runs once, on the thread that fails first, before the owner is woken: after it has
    /// returned nothing may be acknowledged any more.
    pub fn new(halt: impl Fn() + Send + Sync + 'static) -> Self {
        let reason = Arc::new(watch::Sender::new(None));
        Self { reason, is_refusal: Arc::default(), halt: Arc::new(halt) }
    }

    /// Ends the node because of `reason`. Only the first report counts; later ones are mostly its
    /// echo.
    pub fn report(&self, reason: &str) {
        // Before the reason is published: its readers may rely on nothing being acknowledged any
        // more.
        (self.halt)();
        self.reason.send_if_modified(|kept| {
            let first = kept.is_none();
            if first {
                // Before the owner is woken: it may end the process at once.
                tracing::error!("the node stops: {reason}");
                *kept = Some(reason.to_owned());
            }
            first
        });
    }

    /// Ends the node because it must not run at all: its directory is not the one that the cluster
    /// knows. An operator has to act; starting it again changes nothing.
    pub fn refuse(&self, reason: &str) {
        if self.reason.borrow().is_none() {
            self.is_refusal.store(true, Ordering::Release);
        }
        self.report(reason);
    }

    /// Whether the node ended because it must not run at all.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        self.is_refusal.load(Ordering::Acquire)
    }

    /// Why the node failed, if it did.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        self.reason.borrow().clone()
    }

    /// Waits until the node fails; the reason.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again; a failure is never lost.
    pub async fn wait(&self) -> String {
        let mut reason = self.reason.subscribe();
        let failed = reason.wait_for(Option::is_some).await;
        failed.ok().and_then(|reason| reason.clone()).expect("`self` keeps the sender alive")
    }

    /// Runs `body` on a thread of its own, with short time slices. A panic inside it fails the node
    /// instead of leaving a thread that is silently gone.
    ///
    /// # Errors
    ///
    /// The kernel cannot start a thread.
    pub fn guard(
        &self,
        name: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<thread::JoinHandle<()>> {
        let failure = self.clone();
        let told = name.to_owned();
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            sched::set_sched_slice();
            if let Err(panic) = panic::catch_unwind(AssertUnwindSafe(body)) {
                failure.report(&format!("thread {told} panicked: {}", message(&*panic)));
            }
        })
    }
}

/// The message of a panic.
fn message(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[tokio::test]
    async fn a_panicking_thread_fails_the_node_and_the_first_reason_stays() {
        let halts = Arc::new(AtomicUsize::new(0));
        let failure = NodeFailure::new({
            let halts = Arc::clone(&halts);
            move || {
                halts.fetch_add(1, Ordering::SeqCst);
            }
        });
        assert_eq!(failure.reason(), None);
        let thread = failure.guard("worker", || panic!("the disk is gone")).unwrap();
        assert_eq!(failure.wait().await, "thread worker panicked: the disk is gone");
        thread.join().unwrap();
        failure.report("later");
        assert_eq!(failure.reason().unwrap(), "thread worker panicked: the disk is gone");
        assert!(halts.load(Ordering::SeqCst) >= 1);
    }
}
