//! Ends a connection whose client is gone in steps.
//!
//! The server library ends all requests of a connection at once. A thousand of them that wait for
//! room for their answers are twenty milliseconds, for which the requests of other clients stand
//! behind them. So they are let go before the library hears of it, some at a time.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::Sleep;

use crate::net::unfetched_room::UnfetchedRoom;

/// Requests that end at the same time: some fifty microseconds.
const REQUESTS_A_STEP: usize = 2;
/// From one step to the next one. Four connections that end together take a fifth of the thread.
const PAUSE: Duration = Duration::from_millis(1);

/// The end of a connection, once it has begun.
#[derive(Debug, Default)]
pub(crate) struct StagedEnd {
    has_begun: bool,
    /// The error that the library is to hear of.
    error: Option<io::Error>,
    pause: Option<Pin<Box<Sleep>>>,
}

impl StagedEnd {
    /// The client has ended the connection, or it has broken.
    pub(crate) fn begin(&mut self, error: Option<io::Error>, room: &UnfetchedRoom) {
        room.end();
        if !self.has_begun {
            self.error = error;
        }
        self.has_begun = true;
    }

    /// Whether the client is gone.
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Ready when no request waits any more.
    ///
    /// # Errors
    ///
    /// That of the connection, if it has broken.
    pub(crate) fn poll(
        &mut self,
        context: &mut Context<'_>,
        room: &UnfetchedRoom,
    ) -> Poll<io::Result<()>> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(context));
                self.pause = None;
            }
            if !room.let_go(REQUESTS_A_STEP) {
                return Poll::Ready(self.error.take().map_or(Ok(()), Err));
            }
            self.pause = Some(Box::pin(tokio::time::sleep(PAUSE)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::Arc;

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn requests_that_wait_end_some_at_a_time_and_then_the_connection_does() {
        let room = Arc::new(UnfetchedRoom::new(10, 10));
        let _all = room.try_take(10).unwrap();
        let mut requests = tokio::task::JoinSet::new();
        for _ in 0..10 * REQUESTS_A_STEP {
            let room = Arc::clone(&room);
            requests.spawn(async move { room.take(1).await.unwrap_err() });
        }
        // All of them wait then.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        let mut end = StagedEnd::default();
        assert!(!end.has_begun());
        end.begin(Some(io::ErrorKind::ConnectionReset.into()), &room);
        end.begin(None, &room);
        assert!(end.has_begun());
        let began = Instant::now();
        let mut poll = async || poll_fn(|context| end.poll(context, &room)).await;
        assert_eq!(poll().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        poll().await.unwrap();
        let took = began.elapsed();
        assert!((10 * PAUSE..=21 * PAUSE).contains(&took), "ten steps: {took:?}");
        assert_eq!(requests.join_all().await.len(), 10 * REQUESTS_A_STEP);
    }
}
