//! Hands the frames of a connection to the server library in short turns.
//!
//! The library takes whatever has come before it lets another connection go on: some thousand
//! frames, each of which may cost a write or a request of its own. A thread serves many
//! connections, so one that is full of frames would hold up all others for tens of milliseconds.
//! Here a connection yields after some frames; what was read beyond them waits. The turns are
//! those of deficit round robin (Shreedhar and Varghese, 1996), with less for clients that have
//! fetched little so far, or ask for more than they fetch. Decision 61
//! (`docs/decisions/0061-connections-take-turns.md`) has the measurements.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::net::client_frames::{ClientFrames, OpeningStage};
use crate::net::frame_throttle::FrameThrottle;
use crate::net::turn_gate::TurnGate;

/// The weight of the frames of one turn, some hundred microseconds of work: eight requests, or two
/// settings.
const TURN_WEIGHT: u32 = 16;
/// That of a new connection, and of one on which requests wait for room for their answers: one
/// request. It is not less, for a client that is gone is noticed when all that it had sent has
/// been read.
const FIRST_TURN_WEIGHT: u32 = 2;
/// Bytes that a client has to fetch for each further weight: some ten answers. Four that ask for
/// a thousand things as soon as they are here, and never fetch one, have a fifth of the turns of
/// a client that has been served before.
const BYTES_PER_WEIGHT: usize = 1 << 10;

/// Requests of a connection that may wait for room before turns in which it makes more are paced.
/// Those by which it ends requests, opens windows or shows that it lives are not.
const UNPACED_WAITING_MAX: u32 = 16;
/// From one turn to the next one of a connection on which more wait. It has been asked for more
/// than its client fetches, and a thousand requests more at once would be 45 ms in which other
/// clients have half of the thread.
const PACE: Duration = Duration::from_millis(4);
/// Bytes that a client has to fetch for a turn that is not paced, twice what clients fetch for
/// each opening of a window: who fetches makes room for what waits.
const UNPACED_TURN_BYTES: usize = 8 << 10;
/// The most that is saved up of them.
const UNPACED_BYTES_MAX: usize = 1 << 20;

/// The frames of a connection, in turns and at their rate.
#[derive(Debug)]
pub(crate) struct FrameTurns {
    frames: ClientFrames,
    throttle: FrameThrottle,
    /// Bytes that the client has fetched, as far as they count.
    fetched_bytes: usize,
    /// The weight of what may be read, by deficit round robin: a turn gives its weight, and what
    /// was read beyond it is owed.
    credit: i64,
    gate: TurnGate,
    /// Whether a request was read in this turn.
    has_read_request: bool,
    /// Until the next turn, while those with a request are paced.
    pause: Option<Pin<Box<Sleep>>>,
    /// Fetched bytes that allow for turns that are not paced.
    unpaced_bytes: usize,
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
            fetched_bytes: 0,
            credit: FIRST_TURN_WEIGHT.into(),
            gate: TurnGate::default(),
            has_read_request: false,
            pause: None,
            unpaced_bytes: 0,
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

    /// Whether frames without a request wait, for they come too fast.
    pub(crate) fn is_throttled(&self) -> bool {
        self.throttle.is_pausing()
    }

    /// Counts bytes that the client has fetched: its turns become longer.
    pub(crate) fn fetch(&mut self, bytes: usize) {
        let most_unpaced = UNPACED_BYTES_MAX;
        let most = (TURN_WEIGHT - FIRST_TURN_WEIGHT) as usize * BYTES_PER_WEIGHT;
        self.fetched_bytes = (self.fetched_bytes + bytes.min(most)).min(most);
        self.unpaced_bytes = (self.unpaced_bytes + bytes.min(most_unpaced)).min(most_unpaced);
        self.throttle.fetch(bytes);
    }

    /// Reads the next bytes of the turn; wakes the task when its next turn may begin, a short one
    /// if some requests of the connection are `waiting` for room.
    pub(crate) fn poll_read(
        &mut self,
        stream: Pin<&mut impl AsyncRead>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
        waiting: u32,
    ) -> Poll<io::Result<()>> {
        ready!(self.throttle.poll_ready(context))?;
        ready!(self.poll_turn(context, waiting));
        if self.held.is_empty() {
            let before = buf.filled().len();
            let Poll::Ready(read) = stream.poll_read(context, buf) else {
                // Nothing is left to take turns for: without it, gets in batches are 8 % fewer.
                self.credit = self.turn_weight();
                self.throttle.rest();
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

    /// Ready while the turn lasts; wakes the task when the next one may begin.
    fn poll_turn(&mut self, context: &mut Context<'_>, waiting: u32) -> Poll<()> {
        while self.credit <= 0 {
            let is_paced = self.has_read_request && waiting > UNPACED_WAITING_MAX;
            if self.pause.is_none() && is_paced && self.unpaced_bytes < UNPACED_TURN_BYTES {
                self.pause = Some(Box::pin(tokio::time::sleep(PACE)));
            }
            match &mut self.pause {
                Some(pause) => {
                    ready!(pause.as_mut().poll(context));
                    self.pause = None;
                }
                None => {
                    ready!(self.gate.poll_next(context));
                    let bytes = if is_paced { UNPACED_TURN_BYTES } else { 0 };
                    self.unpaced_bytes = self.unpaced_bytes.saturating_sub(bytes);
                }
            }
            self.has_read_request = false;
            let is_crowded = waiting > 0;
            self.credit += if is_crowded { FIRST_TURN_WEIGHT.into() } else { self.turn_weight() };
        }
        Poll::Ready(())
    }

    fn turn_weight(&self) -> i64 {
        if self.throttle.is_pausing() {
            // Long turns, between pauses: short ones would be a write each, for one answer.
            return TURN_WEIGHT.into();
        }
        i64::from(FIRST_TURN_WEIGHT) + (self.fetched_bytes / BYTES_PER_WEIGHT) as i64
    }

    /// Counts these bytes to the turn, as far as it goes; the number of those that are of it.
    fn take(&mut self, bytes: &[u8]) -> usize {
        let taken = self.frames.read(bytes, self.credit.clamp(0, TURN_WEIGHT.into()) as u32);
        let weight = self.frames.take_weight();
        self.credit -= i64::from(weight.all);
        self.has_read_request |= weight.all > weight.control;
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

    /// The turns of a client that has been served.
    fn long_turns() -> FrameTurns {
        let mut turns = FrameTurns::new(1_000_000, None);
        turns.fetch(usize::MAX);
        turns.credit = turns.turn_weight();
        turns
    }

    /// Reads all of `sent`: what came, and how often the reader had to yield.
    async fn read_all(sent: &[u8], buffer_bytes: usize) -> (Vec<u8>, usize) {
        read_in(long_turns(), sent, buffer_bytes, 0).await
    }

    async fn read_in(
        mut turns: FrameTurns,
        sent: &[u8],
        buffer_bytes: usize,
        waiting: u32,
    ) -> (Vec<u8>, usize) {
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
            let (came, yields) = read_all(&sent, buffer_bytes).await;
            assert_eq!(came, sent, "buffers of {buffer_bytes}");
            let turns = (count + 8) / TURN_WEIGHT as usize;
            assert!((turns..=turns + 1).contains(&yields), "{yields} of {buffer_bytes}");
        }
    }

    #[tokio::test]
    async fn the_turns_of_a_new_connection_are_short_until_it_has_fetched_something() {
        let sent = [PREFACE, &SMALL.repeat(100)].concat();
        let (_, yields) = read_in(FrameTurns::new(1_000_000, None), &sent, 8192, 0).await;
        assert!((53..=55).contains(&yields), "two frames a turn: {yields}");
        let mut turns = FrameTurns::new(1_000_000, None);
        assert_eq!(turns.turn_weight(), 2);
        for weight in 3..=TURN_WEIGHT {
            turns.fetch(BYTES_PER_WEIGHT);
            assert_eq!(turns.turn_weight(), i64::from(weight));
        }
        turns.fetch(1 << 30);
        assert_eq!(turns.turn_weight(), i64::from(TURN_WEIGHT));
    }

    #[tokio::test]
    async fn a_turn_is_over_however_often_it_is_asked_for_more() {
        let mut turns = long_turns();
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
        assert_eq!(read_all(&sent, 1 << 20).await, (sent, 0));
        let plain = b"GET /metrics HTTP/1.1\r\n\r\n".repeat(1000);
        assert_eq!(read_all(&plain, 8192).await, (plain, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_throttled_connection_has_long_turns_between_its_pauses() {
        let ping = b"\0\0\x08\x06\0\0\0\0\0pingpong";
        let burst = [PREFACE, &ping.repeat(250)].concat();
        let flood = [PREFACE, &ping.repeat(1250)].concat();
        let new = || FrameTurns::new(10_000, None);
        let (_, of_burst) = read_in(new(), &burst, 8192, 0).await;
        let (came, yields) = read_in(new(), &flood, 8192, 0).await;
        assert_eq!(came, flood);
        // Four pings a turn, and a pause after ten of them.
        assert!((300..=450).contains(&(yields - of_burst)), "{yields}, {of_burst} of the burst");
    }

    #[tokio::test]
    async fn turns_are_short_while_requests_wait() {
        let sent = [PREFACE, &SMALL.repeat(100)].concat();
        let (came, yields) = read_in(long_turns(), &sent, 8192, 1).await;
        assert_eq!(came, sent);
        assert!((44..=47).contains(&yields), "two frames a turn after the first: {yields}");
    }

    #[tokio::test(start_paused = true)]
    async fn requests_are_paced_while_many_wait_but_for_what_the_client_fetches() {
        let request = b"\0\0\x01\x01\x05\0\0\0\x01a";
        let requests = [PREFACE, &request.repeat(200)].concat();
        let new = || FrameTurns::new(1_000_000, None);
        let time_of = async |turns, sent: &[u8], waiting| {
            let began = Instant::now();
            let (came, _) = read_in(turns, sent, 8192, waiting).await;
            assert_eq!(came, sent);
            began.elapsed()
        };
        let many = UNPACED_WAITING_MAX + 1;
        assert_eq!(time_of(new(), &requests, many - 1).await, Duration::ZERO);
        let paced = time_of(new(), &requests, many).await;
        assert!((95 * PACE..=220 * PACE).contains(&paced), "two frames a turn: {paced:?}");
        let mut fetched = new();
        fetched.fetch(35 * UNPACED_TURN_BYTES);
        let rest = time_of(fetched, &requests, many).await;
        assert!((60 * PACE..=paced * 3 / 4).contains(&rest), "a third was paid for: {rest:?}");
        let others = [PREFACE, &SMALL.repeat(200)].concat();
        assert_eq!(time_of(new(), &others, many).await, Duration::ZERO);
    }
}
