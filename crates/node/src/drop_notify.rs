//! What threads and tasks share, and who waits until the last of them has let go of it.

use std::convert::Infallible;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

/// A thing that many hold by an [`Arc`], and whose end somebody waits for.
pub(crate) struct DropNotify<T> {
    // Fields are dropped in this order: the news comes when the thing is gone.
    it: T,
    _news: oneshot::Sender<Infallible>,
}

/// The news that a [`DropNotify`] thing is gone.
pub(crate) struct DropWaiter(oneshot::Receiver<Infallible>);

/// Shares `it`.
pub(crate) fn drop_notify<T>(it: T) -> (Arc<DropNotify<T>>, DropWaiter) {
    let (news, gone) = oneshot::channel();
    (Arc::new(DropNotify { it, _news: news }), DropWaiter(gone))
}

impl<T> Deref for DropNotify<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.it
    }
}

impl DropWaiter {
    /// Waits until nobody holds the thing any more and it has been dropped, for so long at most.
    /// Returns whether it has.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again.
    pub(crate) async fn wait(&mut self, timeout: Duration) -> bool {
        // Nothing is ever sent: what is told is that the sender went.
        tokio::time::timeout(timeout, &mut self.0).await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use parking_lot::Mutex;

    use super::*;

    /// Says when its end begins, and ends when it may.
    struct Slow(Sender<()>, Mutex<Receiver<()>>);

    impl Drop for Slow {
        fn drop(&mut self) {
            self.0.send(()).unwrap();
            self.1.lock().recv().unwrap();
        }
    }

    #[tokio::test]
    async fn news_comes_when_the_last_has_let_go_and_the_thing_is_gone() {
        let ((begins, began), (may, waits)) = (channel(), channel());
        let (first, mut gone) = drop_notify(Slow(begins, Mutex::new(waits)));
        let second = Arc::clone(&first);
        drop(first);
        assert!(!gone.wait(Duration::ZERO).await, "somebody has it");
        let holder = std::thread::spawn(move || drop(second));
        began.recv().unwrap();
        assert!(!gone.wait(Duration::ZERO).await, "told before it was gone");
        may.send(()).unwrap();
        assert!(gone.wait(Duration::from_secs(3600)).await);
        holder.join().unwrap();
    }
}
