//! Hands the frames of a connection to the server library in short turns.
//!
//! The library takes whatever has come before it lets another connection go on: some thousand
//! frames, each of which may cost a write or a request of its own. A thread serves many
//! connections, so one that is full of frames would hold up all others for tens of milliseconds.
//! Here a connection yields after some frames; what was read beyond them waits. Decision 61
//! (`docs/decisions/0061-connections-take-turns.md`) has the measurements.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, ReadBuf};

use crate::net::client_frames::{ClientFrames, OpeningStage};
use crate::net::frame_throttle::FrameThrottle;

/// The weight of the frames of one turn, some hundred microseconds of work: eight requests, or two
/// settings.
const TURN_WEIGHT: u32 = 16;

/// The frames of a connection, in turns and at their rate.
#[derive(Debug)]
pub(crate) struct FrameTurns {
    frames: ClientFrames,
    throttle: FrameThrottle,
    /// Of the turn that is under way.
    weight_left: u32,
    /// Read beyond the turn: no more than a buffer of the library.
    held: BytesMut,
}

impl FrameTurns {
    /// The frames of a new connection, of which those without a request weigh this much in a second
    /// at most.
    pub(crate) fn new(control_frames_per_s: u32) -> Self {
        Self {
            frames: ClientFrames::new(),
            throttle: FrameThrottle::new(control_frames_per_s),
            weight_left: TURN_WEIGHT,
            held: BytesMut::new(),
        }
    }

    /// The next thing that the client owes after the bytes so far.
    pub(crate) fn stage(&self) -> OpeningStage {
        self.frames.stage()
    }

    /// Reads the next bytes of the turn; wakes the task when its next turn may begin.
    pub(crate) fn poll_read(
        &mut self,
        stream: Pin<&mut impl AsyncRead>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.throttle.poll_ready(context));
        if self.weight_left == 0 {
            self.weight_left = TURN_WEIGHT;
            // The runtime polls a task that wakes itself behind all that wait.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.held.is_empty() {
            let before = buf.filled().len();
            let Poll::Ready(read) = stream.poll_read(context, buf) else {
                // Others go on now.
                self.weight_left = TURN_WEIGHT;
                return Poll::Pending;
            };
            read?;
            let end = before + self.take(&buf.filled()[before..]);
            self.held.extend_from_slice(&buf.filled()[end..]);
            buf.set_filled(end);
        } else {
            let mut held = std::mem::take(&mut self.held);
            let taken = self.take(&held[..held.len().min(buf.remaining())]);
            buf.put_slice(&held[..taken]);
            held.advance(taken);
            self.held = held;
        }
        Poll::Ready(Ok(()))
    }

    /// Counts these bytes to the turn, as far as it goes; the number of those that are of it.
    fn take(&mut self, bytes: &[u8]) -> usize {
        let taken = self.frames.read(bytes, self.weight_left);
        let weight = self.frames.take_weight();
        self.weight_left = self.weight_left.saturating_sub(weight.all);
        self.throttle.count(weight.control);
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    /// Priority, which asks for no answer.
    const SMALL: &[u8] = b"\0\0\x05\x02\0\0\0\0\x03\0\0\0\0\0";

    /// Reads all of `sent`: what came, and how often the reader had to yield.
    async fn read_all(sent: &[u8], buffer_bytes: usize) -> (Vec<u8>, usize) {
        let mut turns = FrameTurns::new(1_000_000);
        let (mut stream, mut came, mut yields) = (sent, vec![], 0);
        let mut buffer = vec![0; buffer_bytes];
        loop {
            let mut buf = ReadBuf::new(&mut buffer);
            poll_fn(|context| {
                let polled = turns.poll_read(Pin::new(&mut stream), context, &mut buf);
                yields += usize::from(polled.is_pending());
                polled
            })
            .await
            .unwrap();
            if buf.filled().is_empty() {
                return (came, yields);
            }
            came.extend(buf.filled());
        }
    }

    #[tokio::test]
    async fn all_bytes_come_in_order_and_each_turn_has_its_weight() {
        let count = 1000;
        let sent = [PREFACE, &SMALL.repeat(count)].concat();
        for buffer_bytes in [1, 9, 100, 8192, 1 << 20] {
            let (came, yields) = read_all(&sent, buffer_bytes).await;
            assert_eq!(came, sent, "buffers of {buffer_bytes}");
            let turns = (count + 8) / TURN_WEIGHT as usize;
            assert!((turns..=turns + 1).contains(&yields), "{yields} of {buffer_bytes}");
        }
    }

    #[tokio::test]
    async fn large_data_and_http_1_are_not_cut() {
        let data = [b"\0\xff\xff\0\0\0\0\0\x01".as_slice(), &[7; 0xffff]].concat();
        let sent = [PREFACE, &data].concat();
        assert_eq!(read_all(&sent, 1 << 20).await, (sent, 0));
        let plain = b"GET /metrics HTTP/1.1\r\n\r\n".repeat(1000);
        assert_eq!(read_all(&plain, 8192).await, (plain, 0));
    }
}
