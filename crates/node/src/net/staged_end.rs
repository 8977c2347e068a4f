//! Ends a connection whose client is gone in steps.
//!
//! The server library ends all requests of a connection at once. A thousand of them that wait for
//! room for their answers are twenty milliseconds, for which the requests of other clients stand
//! behind them. So they are let go before the library hears of it, some at a time.

use std::io;
use std::task::{Context, Poll, ready};

use crate::net::turn_gate::TurnGate;
use crate::net::unfetched_room::UnfetchedRoom;

/// Requests that end in one turn.
const REQUESTS_A_TURN: usize = 8;

/// The end of a connection, once it has begun.
#[derive(Debug, Default)]
pub(crate) struct StagedEnd {
    has_begun: bool,
    /// The error that the library is to hear of.
    error: Option<io::Error>,
    is_turn_over: bool,
    gate: TurnGate,
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
            if self.is_turn_over {
                ready!(self.gate.poll_next(context));
            }
            self.is_turn_over = room.let_go(REQUESTS_A_TURN);
            if !self.is_turn_over {
                return Poll::Ready(self.error.take().map_or(Ok(()), Err));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn requests_that_wait_end_some_at_a_time_and_then_the_connection_does() {
        let room = Arc::new(UnfetchedRoom::new(10));
        let _all = room.try_take(10).unwrap();
        let mut requests = tokio::task::JoinSet::new();
        for _ in 0..10 * REQUESTS_A_TURN {
            let room = Arc::clone(&room);
            requests.spawn(async move { room.take(1).await.unwrap_err() });
        }
        // Not all of them are polled between two turns.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        let mut end = StagedEnd::default();
        assert!(!end.has_begun());
        end.begin(Some(io::ErrorKind::ConnectionReset.into()), &room);
        end.begin(None, &room);
        assert!(end.has_begun());
        let mut turns = 0;
        let mut poll = async || {
            poll_fn(|context| {
                turns += 1;
                end.poll(context, &room)
            })
            .await
        };
        assert_eq!(poll().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        poll().await.unwrap();
        assert_eq!(turns, 10 + 2, "a last look, and one more");
        assert_eq!(requests.join_all().await.len(), 10 * REQUESTS_A_TURN);
    }
}
