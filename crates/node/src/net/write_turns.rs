//! Lets a connection write in short turns.
//!
//! The server library writes as long as the kernel takes something: megabytes, after a silence.
//! Each costs a third of a millisecond, and a whole one with TLS, in which no other connection of
//! the thread is served.

use std::io;
use std::task::{Context, Poll, ready};

use crate::net::turn_gate::TurnGate;
use crate::sched::YieldBudget;

/// Bytes of one turn.
const TURN_BYTES: usize = 128 << 10;

/// The bytes of a connection, in turns.
#[derive(Debug, Default)]
pub(crate) struct WriteTurns {
    /// Of the turn that is under way.
    bytes: usize,
    gate: TurnGate,
    /// For other threads.
    core: YieldBudget,
}

impl WriteTurns {
    /// Ready while the turn lasts; wakes the task when the next one may begin.
    pub(crate) fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.bytes >= TURN_BYTES {
            ready!(self.gate.poll_next(context));
            self.bytes = 0;
        }
        Poll::Ready(())
    }

    /// Counts the bytes that a connection took; one that takes no more ends the turn.
    pub(crate) fn count(&mut self, written: &Poll<io::Result<usize>>) {
        match written {
            Poll::Ready(Ok(bytes)) => {
                self.bytes += bytes;
                self.core.spend(*bytes);
            }
            Poll::Ready(Err(_)) | Poll::Pending => *self = Self::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    async fn polls_until_ready(turns: &mut WriteTurns) -> usize {
        let mut polls = 0;
        poll_fn(|context| {
            polls += 1;
            turns.poll_ready(context)
        })
        .await;
        polls
    }

    #[tokio::test]
    async fn a_turn_ends_with_its_bytes_and_anew_when_no_more_are_taken() {
        let mut turns = WriteTurns::default();
        for _ in 0..3 {
            turns.count(&Poll::Ready(Ok(TURN_BYTES - 1)));
            assert_eq!(polls_until_ready(&mut turns).await, 1);
            turns.count(&Poll::Ready(Ok(1)));
            assert_eq!(polls_until_ready(&mut turns).await, 2);
        }
        turns.count(&Poll::Ready(Ok(TURN_BYTES - 1)));
        turns.count(&Poll::Pending);
        turns.count(&Poll::Ready(Ok(TURN_BYTES - 1)));
        assert_eq!(polls_until_ready(&mut turns).await, 1);
    }
}
