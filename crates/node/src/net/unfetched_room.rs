//! The room of a connection for long answers that its client has not fetched yet.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of long answers that a connection may have without fetching them: one answer of the
/// largest size.
pub(crate) const UNFETCHED_BYTES_MAX: usize = 32 << 20;

/// The room of one connection. Requests wait for it in the order in which they ask.
#[derive(Debug)]
pub(crate) struct UnfetchedRoom {
    /// One a byte.
    bytes: Arc<Semaphore>,
    /// Requests that are being answered.
    answers: AtomicU32,
    /// Those of them that wait.
    waiting: AtomicU32,
}

/// A request that waits, until this is dropped.
struct Waiting<'a>(&'a AtomicU32);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl UnfetchedRoom {
    pub(crate) fn new(bytes: usize) -> Self {
        Self {
            bytes: Arc::new(Semaphore::new(bytes)),
            answers: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
        }
    }

    /// Requests that are being answered if one of them waits for room, else none.
    pub(crate) fn crowd(&self) -> u32 {
        match self.waiting.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.answers.load(Ordering::Relaxed),
        }
    }

    /// Room for an answer of so many bytes, if nothing waits and there is some. It is given back
    /// when the permit is dropped.
    pub(crate) fn try_take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.bytes).try_acquire_many_owned(weight(bytes)).ok()
    }

    /// Waits for that room.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it has lost its place among those that wait.
    pub(crate) async fn take(&self, bytes: usize) -> OwnedSemaphorePermit {
        let _waiting = self.wait();
        let room = Arc::clone(&self.bytes).acquire_many_owned(weight(bytes));
        room.await.expect("the semaphore is never closed")
    }

    fn wait(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(&self.waiting)
    }
}

impl Default for UnfetchedRoom {
    fn default() -> Self {
        Self::new(UNFETCHED_BYTES_MAX)
    }
}

/// The room for the answer of one request: reserved before it is made, where its length is known by
/// then, so that nothing is made in vain.
#[derive(Debug)]
pub(crate) struct AnswerRoom {
    of: Arc<UnfetchedRoom>,
    reserved: Mutex<Option<OwnedSemaphorePermit>>,
}

impl AnswerRoom {
    /// None so far.
    pub(crate) fn of(of: &Arc<UnfetchedRoom>) -> Self {
        of.answers.fetch_add(1, Ordering::Relaxed);
        Self { of: Arc::clone(of), reserved: Mutex::new(None) }
    }

    /// Waits for room for an answer of so many bytes.
    ///
    /// # Cancel safety
    ///
    /// As [`UnfetchedRoom::take`].
    pub(crate) async fn reserve(&self, bytes: usize) {
        let before = self.take_reserved(bytes);
        let reserved = match before {
            Some(reserved) => reserved,
            None => self.of.take(bytes).await,
        };
        *self.reserved.lock() = Some(reserved);
    }

    /// The room of an answer of so many bytes: what was reserved, or what there is.
    pub(crate) fn take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        self.take_reserved(bytes).or_else(|| self.of.try_take(bytes))
    }

    /// The reserved room, if it is enough; else it is given back.
    fn take_reserved(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let least = weight(bytes) as usize;
        self.reserved.lock().take().filter(|reserved| reserved.num_permits() >= least)
    }
}

impl Drop for AnswerRoom {
    fn drop(&mut self) {
        self.of.answers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An answer that is longer than all the room there is takes all of it.
fn weight(bytes: usize) -> u32 {
    bytes.min(UNFETCHED_BYTES_MAX) as u32
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    use super::*;

    #[tokio::test]
    async fn those_that_wait_are_counted_and_served_in_order() {
        let room = UnfetchedRoom::new(10);
        let first = room.try_take(10).unwrap();
        assert!(room.try_take(1).is_none());
        let (mut second, mut third) = (pin!(room.take(8)), pin!(room.take(2)));
        poll_fn(|context| {
            assert!(second.as_mut().poll(context).is_pending());
            assert!(third.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        assert_eq!(room.waiting.load(Ordering::Relaxed), 2);
        drop(first);
        let second = second.await;
        drop(third.await);
        assert_eq!(room.waiting.load(Ordering::Relaxed), 0);
        assert!(room.try_take(3).is_none());
        drop(second);
        assert!(room.try_take(UNFETCHED_BYTES_MAX).is_none());
        assert!(room.try_take(10).is_some());
    }

    #[tokio::test]
    async fn what_was_reserved_is_taken_if_it_is_enough() {
        let all = Arc::new(UnfetchedRoom::new(10));
        let answer = AnswerRoom::of(&all);
        answer.reserve(6).await;
        answer.reserve(5).await;
        assert_eq!(answer.take(4).unwrap().num_permits(), 6);
        answer.reserve(6).await;
        assert!(all.try_take(5).is_none());
        assert_eq!(answer.take(7).unwrap().num_permits(), 7);
        answer.reserve(6).await;
        drop(answer);
        assert!(all.try_take(10).is_some());
    }
}
