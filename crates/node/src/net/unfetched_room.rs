//! The room of a connection for long answers that its client has not fetched yet, and for requests
//! and answers of its streams of batches.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;

/// Bytes of long answers that a connection may have without fetching them: one answer of the
/// largest size.
pub(crate) const UNFETCHED_BYTES_MAX: usize = 32 << 20;
/// Bytes that all streams of batches of a connection may have, of requests under way and of answers
/// that are not fetched.
const BATCH_BYTES_MAX: usize = 64 << 20;
/// Those of a connection that has fetched nothing yet. Its room grows by what it fetches: some
/// connections that ask for megabytes and fetch none would else be a hundred megabytes of copies
/// in their first moment, each time that they connect anew.
const FIRST_BYTES: usize = 1 << 20;

/// The room of one connection. Requests wait for it in the order in which they ask.
#[derive(Debug)]
pub(crate) struct UnfetchedRoom {
    /// One a byte.
    bytes: Arc<Semaphore>,
    /// Bytes that there are so far, taken ones included.
    size: AtomicUsize,
    size_max: usize,
    /// Requests that wait.
    waiting: AtomicU32,
    /// The client is gone.
    has_ended: AtomicBool,
    /// One for each request that need not wait any longer, because of that.
    let_go: Semaphore,
}

/// A request that waits, until this is dropped.
struct Waiting<'a>(&'a AtomicU32);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl UnfetchedRoom {
    /// Room for so many bytes, and for more once some are fetched.
    pub(crate) fn new(bytes: usize, bytes_max: usize) -> Self {
        Self {
            bytes: Arc::new(Semaphore::new(bytes)),
            size: AtomicUsize::new(bytes),
            size_max: bytes_max,
            waiting: AtomicU32::new(0),
            has_ended: AtomicBool::new(false),
            let_go: Semaphore::new(0),
        }
    }

    /// That for the streams of batches of a new connection.
    pub(crate) fn of_batches() -> Self {
        Self::new(FIRST_BYTES, BATCH_BYTES_MAX)
    }

    /// Requests that wait for room.
    pub(crate) fn waiting(&self) -> u32 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Makes room for as much as the client has fetched, or has had done, up to the largest size.
    pub(crate) fn grow(&self, bytes: usize) {
        let larger = |size: usize| {
            (size < self.size_max).then(|| size.saturating_add(bytes).min(self.size_max))
        };
        let grown = self.size.fetch_update(Ordering::Relaxed, Ordering::Relaxed, larger);
        if let Some((before, now)) = grown.ok().and_then(|size| Some((size, larger(size)?))) {
            self.bytes.add_permits(now - before);
        }
    }

    /// The client is gone: no answer gets room any more, so that none is made in vain.
    pub(crate) fn end(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }

    /// Of a connection that has ended: lets some of the requests go that wait. Whether there are
    /// any.
    pub(crate) fn let_go(&self, requests: usize) -> bool {
        let are_any = self.waiting() > 0;
        if are_any {
            self.let_go.add_permits(requests);
        }
        are_any
    }

    /// Room for an answer of so many bytes, if nothing waits and there is some. It is given back
    /// when the permit is dropped.
    pub(crate) fn try_take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        if self.has_ended.load(Ordering::Relaxed) {
            return None;
        }
        Arc::clone(&self.bytes).try_acquire_many_owned(self.weight(bytes) as u32).ok()
    }

    /// Waits for that room.
    ///
    /// # Errors
    ///
    /// `UNAVAILABLE`: the client is gone, and the request was let go.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it has lost its place among those that wait.
    pub(crate) async fn take(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Status> {
        if let Some(room) = self.try_take(bytes) {
            return Ok(room);
        }
        let _waiting = self.wait();
        let room = async {
            let room = Arc::clone(&self.bytes).acquire_many_owned(self.weight(bytes) as u32);
            let room = room.await.expect("the semaphore is never closed");
            if self.has_ended.load(Ordering::Relaxed) {
                pending::<()>().await;
            }
            room
        };
        tokio::select! {
            room = room => Ok(room),
            let_go = self.let_go.acquire() => {
                let_go.expect("the semaphore is never closed").forget();
                Err(Status::unavailable("the client is gone"))
            }
        }
    }

    fn wait(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(&self.waiting)
    }

    /// The bytes that something takes: what is longer than all the room there is takes all of it.
    pub(crate) fn weight(&self, bytes: usize) -> usize {
        bytes.min(self.size.load(Ordering::Relaxed))
    }
}

impl Default for UnfetchedRoom {
    fn default() -> Self {
        Self::new(FIRST_BYTES, UNFETCHED_BYTES_MAX)
    }
}

/// The room for the answer of one request: reserved before it is made, where its length is known by
/// then, so that nothing is made in vain.
#[derive(Debug)]
pub(crate) struct AnswerRoom {
    of: Arc<UnfetchedRoom>,
    /// With the bytes for which it was reserved: more than the room, while that was small.
    reserved: Mutex<Option<(usize, OwnedSemaphorePermit)>>,
    /// Bytes for which there was none; 0 if there was.
    wanted: AtomicUsize,
}

impl AnswerRoom {
    /// None so far.
    pub(crate) fn of(of: &Arc<UnfetchedRoom>) -> Self {
        Self { of: Arc::clone(of), reserved: Mutex::default(), wanted: AtomicUsize::new(0) }
    }

    /// Waits for room for an answer of so many bytes.
    ///
    /// # Errors
    ///
    /// As [`UnfetchedRoom::take`], as is its cancel safety.
    pub(crate) async fn reserve(&self, bytes: usize) -> Result<(), Status> {
        let before = self.take_reserved(bytes);
        let reserved = match before {
            Some(reserved) => reserved,
            None => (bytes, self.of.take(bytes).await?),
        };
        *self.reserved.lock() = Some(reserved);
        Ok(())
    }

    /// Reserves room for an answer of so many bytes if there is some; whether it did. If not, the
    /// request is to give up what it holds, wait, and begin again.
    pub(crate) fn try_reserve(&self, bytes: usize) -> bool {
        let before = self.take_reserved(bytes);
        let reserved = before.or_else(|| Some((bytes, self.of.try_take(bytes)?)));
        let is_there = reserved.is_some();
        *self.reserved.lock() = reserved;
        if !is_there {
            self.wanted.store(bytes, Ordering::Relaxed);
        }
        is_there
    }

    /// The bytes for which [`AnswerRoom::try_reserve`] found no room since the last call, if any.
    pub(crate) fn take_wanted(&self) -> Option<usize> {
        Some(self.wanted.swap(0, Ordering::Relaxed)).filter(|bytes| *bytes > 0)
    }

    /// The room of an answer of so many bytes: what was reserved, or what there is.
    pub(crate) fn take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let reserved = self.take_reserved(bytes).map(|(_, room)| room);
        reserved.or_else(|| self.of.try_take(bytes))
    }

    /// The reserved room, if it was for as many bytes; else it is given back.
    fn take_reserved(&self, bytes: usize) -> Option<(usize, OwnedSemaphorePermit)> {
        self.reserved.lock().take().filter(|(reserved_for, _)| *reserved_for >= bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    use super::*;

    #[tokio::test]
    async fn those_that_wait_are_counted_and_served_in_order() {
        let room = UnfetchedRoom::new(10, UNFETCHED_BYTES_MAX);
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
        let second = second.await.unwrap();
        drop(third.await.unwrap());
        assert_eq!(room.waiting.load(Ordering::Relaxed), 0);
        assert!(room.try_take(3).is_none());
        drop(second);
        assert!(room.try_take(1).is_some());
        assert!(room.try_take(UNFETCHED_BYTES_MAX).is_some(), "all that there is");
    }

    #[tokio::test]
    async fn room_grows_by_what_is_fetched_up_to_the_largest_size() {
        let room = UnfetchedRoom::default();
        let first = room.try_take(UNFETCHED_BYTES_MAX).unwrap();
        assert_eq!(first.num_permits(), FIRST_BYTES);
        room.grow(100);
        assert!(room.try_take(101).is_none());
        assert_eq!(room.try_take(100).unwrap().num_permits(), 100);
        room.grow(10 * UNFETCHED_BYTES_MAX);
        room.grow(1);
        drop(first);
        let all = room.try_take(2 * UNFETCHED_BYTES_MAX).unwrap();
        assert_eq!(all.num_permits(), UNFETCHED_BYTES_MAX);
        assert!(room.try_take(1).is_none());
    }

    #[tokio::test]
    async fn batches_have_room_of_their_own() {
        let room = UnfetchedRoom::of_batches();
        room.grow(usize::MAX);
        let all = room.try_take(usize::MAX).unwrap();
        assert_eq!(all.num_permits(), BATCH_BYTES_MAX);
        assert!(room.try_take(1).is_none());
    }

    #[tokio::test]
    async fn a_connection_that_has_ended_gives_no_room_and_lets_requests_go() {
        let room = UnfetchedRoom::new(10, UNFETCHED_BYTES_MAX);
        let first = room.try_take(6).unwrap();
        let (mut second, mut third) = (pin!(room.take(6)), pin!(room.take(6)));
        let mut are_pending = async || {
            poll_fn(|context| {
                let second = second.as_mut().poll(context).is_pending();
                Poll::Ready((second, third.as_mut().poll(context).is_pending()))
            })
            .await
        };
        assert_eq!(are_pending().await, (true, true));
        room.end();
        drop(first);
        assert_eq!(are_pending().await, (true, true));
        assert!(room.try_take(1).is_none());
        assert!(room.let_go(1));
        assert_eq!(second.await.unwrap_err().code(), tonic::Code::Unavailable);
        assert!(room.let_go(1));
        assert_eq!(third.await.unwrap_err().code(), tonic::Code::Unavailable);
        assert!(!room.let_go(1));
    }

    #[tokio::test]
    async fn what_was_reserved_is_taken_if_it_is_enough() {
        let all = Arc::new(UnfetchedRoom::new(10, UNFETCHED_BYTES_MAX));
        let answer = AnswerRoom::of(&all);
        answer.reserve(6).await.unwrap();
        answer.reserve(5).await.unwrap();
        assert_eq!(answer.take(4).unwrap().num_permits(), 6);
        answer.reserve(6).await.unwrap();
        assert!(all.try_take(5).is_none());
        assert_eq!(answer.take(7).unwrap().num_permits(), 7);
        assert!(answer.try_reserve(6));
        assert_eq!(answer.take_wanted(), None);
        let another = AnswerRoom::of(&all);
        assert!(!another.try_reserve(5));
        assert_eq!((another.take_wanted(), another.take_wanted()), (Some(5), None));
        drop(answer);
        assert!(all.try_take(10).is_some());
    }

    #[tokio::test]
    async fn room_that_was_reserved_is_enough_when_there_is_more_of_it_later() {
        let all = Arc::new(UnfetchedRoom::new(10, UNFETCHED_BYTES_MAX));
        let answer = AnswerRoom::of(&all);
        answer.reserve(100).await.unwrap();
        all.grow(1000);
        assert!(answer.try_reserve(100));
        assert_eq!(answer.take(90).unwrap().num_permits(), 10);
    }
}
