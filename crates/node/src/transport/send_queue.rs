//! The send queue of one stream to another store, bounded in bytes, and the frames made of it.
//!
//! The stream pulls: a frame is built when HTTP/2 has room for it, so messages wait here, where
//! they are bounded and counted, and not in a buffer below. A message that finds the queue full is
//! refused and raft sends it again later, which is cheaper than holding up a shard.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use flotilla_identity::{MemberId, StoreRun, StoreUuid};
use flotilla_proto::peers::Frame;
use flotilla_region::{Envelope, Notice, PeerId, RegionId, StoreId};
use parking_lot::Mutex;
use tokio_stream::Stream;

use super::convert;
use super::counters::TransportCounters;
use crate::membership::uuid_to_wire;

/// Bytes of a frame after which no further message is put in.
const FRAME_BYTES: usize = 256 << 10;

/// Messages of a frame at most.
const FRAME_MESSAGES_MAX: usize = 1024;

/// Bytes that a message counts for in addition to its entries.
const MESSAGE_OVERHEAD_BYTES: usize = 128;

/// Bytes that a queue of urgent messages keeps while there is no connection: enough for a vote or
/// a heartbeat of each of some thousand regions, so that the first election of a cluster does not
/// wait for a second try only because the stores have not found each other yet.
const KEPT_WHILE_DOWN_BYTES: usize = 1 << 20;

/// Notices that wait at most: they are repeated by those that need an answer.
const NOTICES_MAX: usize = 4096;

/// The two streams to a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StreamKind {
    /// Votes, heartbeats, answers. The latest are kept while there is no connection.
    Urgent,
    /// Log entries. Refused while there is no connection; their sender stops sending ahead.
    Appends,
}

/// Messages for one stream.
pub(super) struct SendQueue {
    state: Mutex<SendQueueState>,
    bytes_max: usize,
    kind: StreamKind,
}

#[derive(Default)]
struct SendQueueState {
    waiting: VecDeque<Envelope>,
    /// In urgent queues only.
    notices: VecDeque<Notice>,
    bytes: usize,
    up: bool,
    waker: Option<Waker>,
}

impl SendQueue {
    /// An empty queue without a connection.
    pub(super) fn new(bytes_max: usize, kind: StreamKind) -> Self {
        Self { state: Mutex::default(), bytes_max, kind }
    }

    /// Puts a message in. If one is dropped for want of room, this or an older one, returns for
    /// whom it was.
    pub(super) fn push(&self, envelope: Envelope) -> Option<(RegionId, PeerId)> {
        let bytes = weight(&envelope);
        let mut state = self.state.lock();
        if !state.up && self.kind == StreamKind::Appends {
            return Some(addressee(&envelope));
        }
        let bytes_max = if state.up { self.bytes_max } else { KEPT_WHILE_DOWN_BYTES };
        let full = state.bytes + bytes > bytes_max;
        if full && state.up {
            return Some(addressee(&envelope));
        }
        let oldest = if full { state.pop() } else { None };
        state.bytes += bytes;
        state.waiting.push_back(envelope);
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
        oldest.as_ref().map(addressee)
    }

    /// Puts a notice in. False if it is dropped, for want of room or of a connection.
    pub(super) fn push_notice(&self, notice: Notice) -> bool {
        debug_assert!(self.kind == StreamKind::Urgent, "a notice among entries");
        let mut state = self.state.lock();
        if !state.up || state.notices.len() == NOTICES_MAX {
            return false;
        }
        state.notices.push_back(notice);
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
        true
    }

    /// There is a connection; messages flow.
    pub(super) fn connected(&self) {
        self.state.lock().up = true;
    }

    /// Whether there is a connection.
    pub(super) fn is_up(&self) -> bool {
        self.state.lock().up
    }

    /// The connection is gone. Gives back the places of what was dropped, each once.
    pub(super) fn disconnected(&self) -> Vec<(RegionId, PeerId)> {
        let mut state = self.state.lock();
        state.up = false;
        state.waker = None;
        state.notices.clear();
        if self.kind == StreamKind::Urgent {
            return Vec::new();
        }
        state.bytes = 0;
        let mut lost: Vec<_> =
            state.waiting.drain(..).map(|envelope| addressee(&envelope)).collect();
        lost.sort_unstable();
        lost.dedup();
        lost
    }

    /// Takes the messages and notices of one frame, or registers the task to be woken.
    fn poll_take(&self, context: &Context<'_>) -> Poll<(Vec<Envelope>, Vec<Notice>)> {
        let mut state = self.state.lock();
        if state.waiting.is_empty() && state.notices.is_empty() {
            state.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        let mut taken = Vec::new();
        let mut bytes = 0;
        while bytes < FRAME_BYTES && taken.len() < FRAME_MESSAGES_MAX {
            // A message that would make the frame much too large opens the next one.
            let next = state.waiting.front().map_or(0, weight);
            if !taken.is_empty() && bytes + next > 2 * FRAME_BYTES {
                break;
            }
            let Some(envelope) = state.pop() else { break };
            bytes += next;
            taken.push(envelope);
        }
        let count = state.notices.len().min(FRAME_MESSAGES_MAX);
        let notices = state.notices.drain(..count).collect();
        Poll::Ready((taken, notices))
    }
}

impl SendQueueState {
    fn pop(&mut self) -> Option<Envelope> {
        let envelope = self.waiting.pop_front()?;
        self.bytes -= weight(&envelope);
        Some(envelope)
    }
}

fn addressee(envelope: &Envelope) -> (RegionId, PeerId) {
    (envelope.region, envelope.to.id)
}

/// The bytes that a message counts for.
pub(super) fn weight(envelope: &Envelope) -> usize {
    let entries = &envelope.message.entries;
    let data: usize = entries.iter().map(|entry| entry.data.len()).sum();
    let range = envelope.range.as_ref().map_or(0, |range| range.start.len() + range.end.len());
    MESSAGE_OVERHEAD_BYTES + data + entries.len() * 32 + envelope.message.context.len() + range
}

/// The frames of one stream, for as long as its connection lasts.
pub(super) struct FrameStream<E> {
    pub(super) queue: Arc<SendQueue>,
    pub(super) from: FrameSender,
    /// Where the sender's log is synced now.
    pub(super) log_end: E,
    pub(super) to: StoreId,
    pub(super) sent: Arc<TransportCounters>,
}

/// The sender, as each frame names it.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameSender {
    pub(super) id: MemberId,
    pub(super) uuid: StoreUuid,
    pub(super) run: StoreRun,
}

impl<E: Fn() -> u64 + Unpin> Stream for FrameStream<E> {
    type Item = Frame;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Frame>> {
        self.queue.poll_take(context).map(|(envelopes, notices)| {
            self.sent.count_frame_sent(envelopes.iter().map(weight).sum());
            // Read after the messages were taken: what they acknowledge is synced below it.
            let log_end = (self.log_end)();
            Some(Frame {
                cluster_id: self.from.id.cluster_id,
                from_store: self.from.id.store.0,
                to_store: self.to.0,
                messages: envelopes.into_iter().map(convert::to_wire).collect(),
                uuid: uuid_to_wire(self.from.uuid),
                starts: self.from.run.starts,
                nonce: self.from.run.nonce,
                notices: notices.iter().map(convert::notice_to_wire).collect(),
                log_end,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use flotilla_region::{Index, MessageKind, NoticeKind};
    use tokio_stream::StreamExt as _;

    use super::super::convert::tests::{envelope, notice};
    use super::*;

    fn numbered(number: u64) -> Envelope {
        let mut envelope = envelope(MessageKind::Append, b"0123456789");
        envelope.message.index = Index(number);
        envelope
    }

    fn frames(queue: &Arc<SendQueue>) -> FrameStream<impl Fn() -> u64 + Unpin + use<>> {
        let id = MemberId { cluster_id: 1, store: StoreId(1) };
        FrameStream {
            queue: Arc::clone(queue),
            from: FrameSender { id, uuid: StoreUuid(3), run: StoreRun::default() },
            log_end: || 7,
            to: StoreId(2),
            sent: Arc::default(),
        }
    }

    async fn numbers(frames: &mut FrameStream<impl Fn() -> u64 + Unpin>) -> Vec<u64> {
        let frame = frames.next().await.unwrap();
        frame.messages.iter().map(|message| message.message.as_ref().unwrap().index).collect()
    }

    #[tokio::test]
    async fn a_frame_holds_what_waits_in_order() {
        let queue = Arc::new(SendQueue::new(1 << 20, StreamKind::Appends));
        queue.connected();
        for number in 1..=3 {
            assert_eq!(queue.push(numbered(number)), None);
        }
        assert_eq!(numbers(&mut frames(&queue)).await, [1, 2, 3]);
    }

    #[tokio::test]
    async fn a_stream_that_waits_is_woken() {
        let queue = Arc::new(SendQueue::new(1 << 20, StreamKind::Urgent));
        queue.connected();
        let mut frames = frames(&queue);
        let waiting = tokio::spawn(async move { numbers(&mut frames).await });
        tokio::task::yield_now().await;
        queue.push(numbered(1));
        assert_eq!(waiting.await.unwrap(), [1]);
    }

    #[test]
    fn a_full_queue_refuses_the_new_and_keeps_its_order() {
        let one = weight(&numbered(1));
        let queue = SendQueue::new(2 * one, StreamKind::Appends);
        queue.connected();
        assert_eq!(queue.push(numbered(1)), None);
        assert_eq!(queue.push(numbered(2)), None);
        let dropped = queue.push(numbered(3)).unwrap();
        assert_eq!(dropped, addressee(&numbered(3)));
        assert_eq!(queue.state.lock().waiting.len(), 2);
        assert_eq!(queue.state.lock().bytes, 2 * one);
    }

    #[test]
    fn without_a_connection_entries_are_refused_and_lost_ones_told_once() {
        let queue = SendQueue::new(1 << 20, StreamKind::Appends);
        assert!(queue.push(numbered(1)).is_some());
        queue.connected();
        queue.push(numbered(1));
        queue.push(numbered(2));
        assert_eq!(queue.disconnected(), [addressee(&numbered(1))]);
        assert_eq!(queue.state.lock().bytes, 0);
        assert!(queue.push(numbered(3)).is_some());
    }

    #[tokio::test]
    async fn without_a_connection_the_latest_urgent_messages_are_kept() {
        let queue = Arc::new(SendQueue::new(1 << 20, StreamKind::Urgent));
        let count = (KEPT_WHILE_DOWN_BYTES / weight(&numbered(1))) as u64;
        for number in 0..count + 5 {
            assert_eq!(queue.push(numbered(number)).is_some(), number >= count);
        }
        assert!(queue.disconnected().is_empty());
        queue.connected();
        assert_eq!(numbers(&mut frames(&queue)).await[0], 5);
    }

    #[tokio::test]
    async fn notices_ride_in_frames_and_are_dropped_without_room_or_connection() {
        let queue = Arc::new(SendQueue::new(1 << 20, StreamKind::Urgent));
        let notice = || notice(NoticeKind::End);
        assert!(!queue.push_notice(notice()), "no connection");
        queue.connected();
        for _ in 0..NOTICES_MAX {
            assert!(queue.push_notice(notice()));
        }
        assert!(!queue.push_notice(notice()), "no room");
        queue.push(numbered(1));
        let mut frames = frames(&queue);
        let frame = frames.next().await.unwrap();
        assert_eq!((frame.messages.len(), frame.notices.len()), (1, FRAME_MESSAGES_MAX));
        let frame = frames.next().await.unwrap();
        assert_eq!((frame.messages.len(), frame.notices.len()), (0, FRAME_MESSAGES_MAX));
        assert_eq!(frame.notices[0].peer_id, 201);
        queue.disconnected();
        assert!(queue.state.lock().notices.is_empty());
    }

    #[tokio::test]
    async fn a_large_message_has_a_frame_of_its_own() {
        let queue = Arc::new(SendQueue::new(64 << 20, StreamKind::Appends));
        queue.connected();
        let mut large = numbered(2);
        large.message.entries[0].data = vec![0; 8 << 20].into();
        queue.push(numbered(1));
        queue.push(large);
        queue.push(numbered(3));
        let mut frames = frames(&queue);
        assert_eq!(numbers(&mut frames).await, [1]);
        assert_eq!(numbers(&mut frames).await, [2]);
        assert_eq!(numbers(&mut frames).await, [3]);
    }
}
