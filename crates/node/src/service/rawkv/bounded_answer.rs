//! Answers to reads that are no part of a stream, bounded by the room of their connection.

use tonic::Status;

use super::chunked_body::ChunkedBody;
use crate::net::unfetched_room::AnswerRoom;

/// Bytes of an answer from which on it counts among those that are not fetched: the streams of a
/// connection are few, so shorter ones need no bound.
const COUNTED_BYTES_MIN: usize = 16 << 10;

/// The answer to a read, with its share of what the connection may have without fetching it.
///
/// As in a stream of batches, an answer without room is thrown away, and made again when there
/// is: one whose length is known before, a long get's, is not made so far. No snapshot is held by
/// a request that waits.
///
/// # Errors
///
/// Those of `answer`, and those of [`AnswerRoom::reserve`].
pub(super) async fn within<F>(
    room: &AnswerRoom,
    answer: impl Fn() -> F,
) -> Result<ChunkedBody, Status>
where
    F: Future<Output = Result<ChunkedBody, Status>>,
{
    loop {
        let answered = answer().await;
        if let Some(bytes) = room.take_wanted() {
            room.reserve(bytes).await?;
            continue;
        }
        let pieces = answered?;
        let bytes = pieces.len();
        if bytes < COUNTED_BYTES_MIN {
            return Ok(pieces);
        }
        if let Some(share) = room.take(bytes) {
            return Ok(pieces.keeping(share));
        }
        drop(pieces);
        room.reserve(bytes).await?;
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Poll;

    use flotilla_proto::kvrpcpb::RawGetResponse;

    use super::*;
    use crate::net::unfetched_room::UnfetchedRoom;

    /// An answer of so many bytes, and how often one was made.
    async fn answer_within(
        unfetched: &Arc<UnfetchedRoom>,
        bytes: usize,
        made: &AtomicUsize,
    ) -> ChunkedBody {
        let answer = || async {
            made.fetch_add(1, Ordering::SeqCst);
            let value = vec![7; bytes].into();
            ChunkedBody::message(&RawGetResponse { value, ..Default::default() })
        };
        within(&AnswerRoom::of(unfetched), answer).await.unwrap()
    }

    #[tokio::test]
    async fn long_answers_that_nobody_fetches_are_bounded_and_short_ones_pass() {
        let unfetched = Arc::new(UnfetchedRoom::new(3 * COUNTED_BYTES_MIN, 3 * COUNTED_BYTES_MIN));
        let made = AtomicUsize::new(0);
        let answer = |bytes| answer_within(&unfetched, bytes, &made);
        let first = answer(2 * COUNTED_BYTES_MIN).await;
        let mut second = Box::pin(answer(2 * COUNTED_BYTES_MIN));
        let is_pending = poll_fn(|context| Poll::Ready(second.as_mut().poll(context).is_pending()));
        assert!(is_pending.await);
        assert_eq!(made.load(Ordering::SeqCst), 2, "it is made, and not kept");
        answer(COUNTED_BYTES_MIN / 2).await;
        drop(first);
        let mut second = second.await;
        assert_eq!(made.load(Ordering::SeqCst), 4, "and made again when there is room");
        assert!(second.len() > 2 * COUNTED_BYTES_MIN);
        let pieces: Vec<_> = std::iter::from_fn(|| second.take()).collect();
        drop(second);
        let fetched = unfetched.try_take(3 * COUNTED_BYTES_MIN);
        assert!(fetched.is_none(), "it is fetched, and not sent");
        drop(pieces);
        assert!(unfetched.try_take(3 * COUNTED_BYTES_MIN).is_some());
    }
}
