//! A shared value that notifies its owner when the last holder has dropped it.

use std::convert::Infallible;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

/// A value that many hold by an [`Arc`], and whose drop is waited for.
pub(crate) struct DropNotify<T> {
    // Fields are dropped in this order: the notification comes when the value is gone.
    it: T,
    _news: oneshot::Sender<Infallible>,
}

/// Waits for the drop of a [`DropNotify`].
pub(crate) struct DropWaiter(oneshot::Receiver<Infallible>);

/// Shares `it`, and returns the handle that waits for its drop.
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
    /// Waits until the value has been dropped by its last holder, `timeout` at most. Returns
    /// whether it has.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again.
    pub(crate) async fn wait(&mut self, timeout: Duration) -> bool {
        // Nothing is ever sent: the drop of the sender is the notification.
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
