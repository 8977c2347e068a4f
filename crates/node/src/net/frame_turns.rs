//! Hands the frames of a connection to the server library in short turns.
//!
//! The library takes whatever has come before it lets another connection go on: some thousand
//! frames, each of which may cost a write or a request of its own. A thread serves many
//! connections, so one that is full of frames would hold up all others for tens of milliseconds.
//! Here a connection yields after some frames; what was read beyond them waits. Decision 61
//! (`docs/decisions/0061-connections-take-turns.md`) has the measurements.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker, ready};

use bytes::{Buf as _, BytesMut};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::task::yield_now;
use tokio::time::Instant;

use crate::net::client_frames::{ClientFrames, OpeningStage};
use crate::net::frame_throttle::FrameThrottle;

/// The weight of the frames of one turn, some hundred microseconds of work: eight requests, or two
/// settings.
const TURN_WEIGHT: u32 = 16;
/// Requests that wait for room for their answers: with so many more, the weight of a frame is one
/// more time what it is. A client that asks for much and fetches nothing has short turns.
const WAITING_STEP: u32 = 8;

/// The frames of a connection, in turns and at their rate.
#[derive(Debug)]
pub(crate) struct FrameTurns {
    frames: ClientFrames,
    throttle: FrameThrottle,
    /// Of the turn that is under way.
    weight_left: u32,
    /// The turn that is waited for.
    next: Option<Arc<NextTurn>>,
    /// Read beyond the turn: no more than a buffer of the library.
    held: BytesMut,
}

impl FrameTurns {
    /// The frames of a new connection, of which those without a request weigh this much in a second
    /// at most. The first of them are read at `begins`.
    pub(crate) fn new(control_frames_per_s: u32, begins: Option<Instant>) -> Self {
        Self {
            frames: ClientFrames::new(),
            throttle: FrameThrottle::new(control_frames_per_s).beginning(begins),
            weight_left: TURN_WEIGHT,
            next: None,
            held: BytesMut::new(),
        }
    }

    /// The next thing that the client owes after the bytes so far.
    pub(crate) fn stage(&self) -> OpeningStage {
        self.frames.stage()
    }

    /// Whether the client has said that it will make no more requests.
    pub(crate) fn is_leaving(&self) -> bool {
        self.frames.is_leaving()
    }

    /// Reads the next bytes of the turn; wakes the task when its next turn may begin. `waiting`
    /// requests of the connection wait for room.
    pub(crate) fn poll_read(
        &mut self,
        stream: Pin<&mut impl AsyncRead>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
        waiting: u32,
    ) -> Poll<io::Result<()>> {
        ready!(self.throttle.poll_ready(context));
        ready!(self.poll_turn(context));
        if self.held.is_empty() {
            let before = buf.filled().len();
            let Poll::Ready(read) = stream.poll_read(context, buf) else {
                // Nothing is left to take turns for: without it, gets in batches are 8 % fewer.
                self.weight_left = TURN_WEIGHT;
                return Poll::Pending;
            };
            read?;
            let end = before + self.take(&buf.filled()[before..], waiting);
            self.held.extend_from_slice(&buf.filled()[end..]);
            buf.set_filled(end);
        } else {
            let mut held = std::mem::take(&mut self.held);
            let taken = self.take(&held[..held.len().min(buf.remaining())], waiting);
            buf.put_slice(&held[..taken]);
            held.advance(taken);
            self.held = held;
        }
        Poll::Ready(Ok(()))
    }

    /// Ready while the turn lasts; wakes the task when the next one may begin.
    fn poll_turn(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.weight_left > 0 {
            return Poll::Ready(());
        }
        match &self.next {
            None => self.next = Some(NextTurn::after_others(context.waker())),
            Some(next) if next.has_begun(context.waker()) => {
                self.next = None;
                self.weight_left = TURN_WEIGHT;
                return Poll::Ready(());
            }
            Some(_) => {}
        }
        Poll::Pending
    }

    /// Counts these bytes to the turn, as far as it goes; the number of those that are of it.
    fn take(&mut self, bytes: &[u8], waiting: u32) -> usize {
        let times = 1 + waiting / WAITING_STEP;
        let taken = self.frames.read(bytes, self.weight_left / times);
        let weight = self.frames.take_weight();
        self.weight_left = self.weight_left.saturating_sub(weight.all.saturating_mul(times));
        self.throttle.count(weight.control);
        taken
    }
}

/// The next turn of a connection. It begins when the runtime has polled the tasks that are ready:
/// a connection that only woke itself would go on at once, for its library reads again for each
/// request that it hands on.
#[derive(Debug)]
struct NextTurn {
    has_begun: AtomicBool,
    connection: Mutex<Waker>,
}

impl NextTurn {
    fn after_others(connection: &Waker) -> Arc<Self> {
        let connection = Mutex::new(connection.clone());
        let next = Arc::new(Self { has_begun: AtomicBool::new(false), connection });
        let waker = Waker::from(Arc::clone(&next));
        // It is pending: the runtime keeps the waker until others have had their turns.
        let _ = pin!(yield_now()).poll(&mut Context::from_waker(&waker));
        next
    }

    /// Whether it is here; else it wakes `connection` when it is.
    fn has_begun(&self, connection: &Waker) -> bool {
        self.connection.lock().clone_from(connection);
        self.has_begun.load(Ordering::Acquire)
    }
}

impl Wake for NextTurn {
    fn wake(self: Arc<Self>) {
        self.has_begun.store(true, Ordering::Release);
        self.connection.lock().wake_by_ref();
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
    async fn read_all(sent: &[u8], buffer_bytes: usize, waiting: u32) -> (Vec<u8>, usize) {
        let mut turns = FrameTurns::new(1_000_000, None);
        let (mut stream, mut came, mut yields) = (sent, vec![], 0);
        let mut buffer = vec![0; buffer_bytes];
        loop {
            let mut buf = ReadBuf::new(&mut buffer);
            poll_fn(|context| {
                let polled = turns.poll_read(Pin::new(&mut stream), context, &mut buf, waiting);
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
            let (came, yields) = read_all(&sent, buffer_bytes, 0).await;
            assert_eq!(came, sent, "buffers of {buffer_bytes}");
            let turns = (count + 8) / TURN_WEIGHT as usize;
            assert!((turns..=turns + 1).contains(&yields), "{yields} of {buffer_bytes}");
        }
    }

    #[tokio::test]
    async fn a_turn_is_over_however_often_it_is_asked_for_more() {
        let mut turns = FrameTurns::new(1_000_000, None);
        let sent = [PREFACE, &SMALL.repeat(100)].concat();
        let mut stream = &sent[..];
        let (mut polls, mut came) = (0, 0);
        poll_fn(|context| {
            polls += 1;
            let mut buffer = [0; 8192];
            for _ in 0..1000 {
                let mut buf = ReadBuf::new(&mut buffer);
                if turns.poll_read(Pin::new(&mut stream), context, &mut buf, 0).is_ready() {
                    came += buf.filled().len();
                }
            }
            if came < sent.len() { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
        assert!((7..=8).contains(&polls), "{polls}");
    }

    #[tokio::test]
    async fn large_data_and_http_1_are_not_cut() {
        let data = [b"\0\xff\xff\0\0\0\0\0\x01".as_slice(), &[7; 0xffff]].concat();
        let sent = [PREFACE, &data].concat();
        assert_eq!(read_all(&sent, 1 << 20, 0).await, (sent, 0));
        let plain = b"GET /metrics HTTP/1.1\r\n\r\n".repeat(1000);
        assert_eq!(read_all(&plain, 8192, 0).await, (plain, 0));
    }

    #[tokio::test]
    async fn turns_are_short_while_many_requests_wait() {
        let sent = [PREFACE, &SMALL.repeat(100)].concat();
        let (came, yields) = read_all(&sent, 8192, 7 * WAITING_STEP).await;
        assert_eq!(came, sent);
        assert!((50..=52).contains(&yields), "two frames a turn: {yields}");
        let (came, yields) = read_all(&sent, 8192, 1000 * WAITING_STEP).await;
        assert_eq!(came, sent);
        assert!((100..=101).contains(&yields), "one frame a turn: {yields}");
    }
}
