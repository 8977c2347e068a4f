//! Fail-stop: the first failure that cannot be survived ends the whole node, once, with one line;
//! and so does the end of its membership.
//!
//! An engine that refused a write knows no more than we do about what is on disk, and a thread that
//! panicked has left its regions in the middle of something. To go on would mean to guess. So the
//! first report closes every pending request unanswered and wakes the owner of the node, which ends
//! the process.

use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::thread;

use tokio::sync::watch;

use crate::sched;

/// The kinds of ends that a node comes to by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndKind {
    /// It cannot go on: a disk, or a defect. Starting it again may help.
    Failed,
    /// It must not run at all. Starting it again changes nothing.
    Refused,
    /// It has left the cluster, as it was told to.
    Left,
}

/// Where threads report what they cannot survive. Clones share one state.
#[derive(Clone)]
pub struct NodeFailure {
    end: Arc<watch::Sender<Option<(EndKind, String)>>>,
    halt: Arc<dyn Fn() + Send + Sync>,
}

impl NodeFailure {
    /// `halt` runs once, on the thread that fails first, before the owner is woken: after it has
    /// returned nothing may be acknowledged any more.
    pub fn new(halt: impl Fn() + Send + Sync + 'static) -> Self {
        Self { end: Arc::new(watch::Sender::new(None)), halt: Arc::new(halt) }
    }

    /// Ends the node because of `reason`. Only the first report counts; later ones are mostly its
    /// echo.
    pub fn report(&self, reason: &str) {
        self.end(EndKind::Failed, reason);
    }

    /// Ends the node because it must not run at all: its directory is not the one that the cluster
    /// knows. An operator has to act; starting it again changes nothing.
    pub fn refuse(&self, reason: &str) {
        self.end(EndKind::Refused, reason);
    }

    /// Ends the node because its store has left the cluster, as it was told to.
    pub fn leave(&self, reason: &str) {
        self.end(EndKind::Left, reason);
    }

    fn end(&self, kind: EndKind, reason: &str) {
        // Before the reason is published: its readers may rely on nothing being acknowledged any
        // more.
        (self.halt)();
        self.end.send_if_modified(|kept| {
            let first = kept.is_none();
            if first {
                // Before the owner is woken: it may end the process at once.
                match kind {
                    EndKind::Left => tracing::info!("the node ends: {reason}"),
                    EndKind::Failed | EndKind::Refused => {
                        tracing::error!("the node stops: {reason}");
                    }
                }
                *kept = Some((kind, reason.to_owned()));
            }
            first
        });
    }

    /// The kind of the node's end, if it has come to one by itself.
    #[must_use]
    pub fn kind(&self) -> Option<EndKind> {
        self.end.borrow().as_ref().map(|(kind, _)| *kind)
    }

    /// Why the node failed, if it did.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        self.end.borrow().as_ref().map(|(_, reason)| reason.clone())
    }

    /// Waits until the node fails; the reason.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again; a failure is never lost.
    pub async fn wait(&self) -> String {
        let mut end = self.end.subscribe();
        let ended = end.wait_for(Option::is_some).await;
        let reason = ended.ok().and_then(|end| end.as_ref().map(|(_, reason)| reason.clone()));
        reason.expect("`self` keeps the sender alive")
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
    use std::sync::atomic::{AtomicUsize, Ordering};

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
        failure.leave("later");
        assert_eq!(failure.reason().unwrap(), "thread worker panicked: the disk is gone");
        assert_eq!(failure.kind(), Some(EndKind::Failed));
        assert!(halts.load(Ordering::SeqCst) >= 1);
    }
}
