//! The send queue of one stream to another store, which a stream of HTTP/2 empties frame by frame.
//! [`OutgoingQueue`] decides what is kept, dropped and sent.
//!
//! The stream pulls: a frame is built when HTTP/2 has room for it, so messages wait here, where
//! they are bounded and counted, and not in a buffer below.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use flotilla_dispatch::{OutgoingFrame, OutgoingQueue, StreamKind, message_weight};
use flotilla_identity::{MemberId, StoreRun, StoreUuid};
use flotilla_proto::peers::Frame;
use flotilla_region::{DiskUsage, Envelope, Notice, PeerId, RegionId, StoreId};
use parking_lot::Mutex;
use tokio_stream::Stream;

use super::convert;
use super::counters::TransportCounters;
use crate::membership::uuid_to_wire;

/// Messages for one stream, and the task that sends them.
pub(super) struct SendQueue {
    state: Mutex<SendQueueState>,
}

struct SendQueueState {
    queue: OutgoingQueue,
    waker: Option<Waker>,
}

impl SendQueue {
    /// An empty queue without a connection.
    pub(super) fn new(bytes_max: usize, kind: StreamKind) -> Self {
        let queue = OutgoingQueue::new(bytes_max, kind);
        Self { state: Mutex::new(SendQueueState { queue, waker: None }) }
    }

    /// Puts a message in. If messages are dropped for want of room, this or older ones, returns for
    /// which replicas they were.
    pub(super) fn push(&self, envelope: Envelope) -> Vec<(RegionId, PeerId)> {
        let mut state = self.state.lock();
        let dropped = state.queue.push(envelope);
        state.wake();
        dropped
    }

    /// Puts a notice in. False if it is dropped, for want of room or of a connection.
    pub(super) fn push_notice(&self, notice: Notice) -> bool {
        let mut state = self.state.lock();
        let is_taken = state.queue.push_notice(notice);
        state.wake();
        is_taken
    }

    /// There is a connection; messages flow.
    pub(super) fn connected(&self) {
        self.state.lock().queue.connect();
    }

    /// Whether there is a connection.
    pub(super) fn is_up(&self) -> bool {
        self.state.lock().queue.is_up()
    }

    /// The connection is gone. Gives back the places of what was dropped, each once.
    pub(super) fn disconnected(&self) -> Vec<(RegionId, PeerId)> {
        let mut state = self.state.lock();
        state.waker = None;
        state.queue.disconnect()
    }

    /// Takes the messages and notices of one frame, or registers the task to be woken.
    fn poll_take(&self, context: &Context<'_>) -> Poll<OutgoingFrame> {
        let mut state = self.state.lock();
        match state.queue.take_frame() {
            Some(frame) => Poll::Ready(frame),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl SendQueueState {
    /// Wakes the task if there is something to send.
    fn wake(&mut self) {
        if self.queue.is_ready()
            && let Some(waker) = self.waker.take()
        {
            waker.wake();
        }
    }
}

/// The frames of one stream, for as long as its connection lasts.
pub(super) struct FrameStream<E> {
    pub(super) queue: Arc<SendQueue>,
    pub(super) from: FrameSender,
    /// The state of the sender now.
    pub(super) now: E,
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

/// The part of a sender that changes while a stream lasts.
#[derive(Clone, Copy, Debug)]
pub(super) struct SenderState {
    /// Its log is synced up to here.
    pub(super) log_end: u64,
    pub(super) disk_usage: DiskUsage,
}

impl<E: Fn() -> SenderState + Unpin> Stream for FrameStream<E> {
    type Item = Frame;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Frame>> {
        self.queue.poll_take(context).map(|OutgoingFrame { envelopes, notices }| {
            self.sent.count_frame_sent(envelopes.iter().map(message_weight).sum());
            // Read after the messages were taken: what they acknowledge is synced below it.
            let SenderState { log_end, disk_usage } = (self.now)();
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
                disk_usage: disk_usage.number().into(),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use flotilla_dispatch::{FRAME_MESSAGES_MAX, KEPT_WHILE_DOWN_BYTES, NOTICES_MAX};
    use flotilla_region::{Index, MessageKind, NoticeKind};
    use tokio_stream::StreamExt as _;

    use super::super::convert::tests::{envelope, notice};
    use super::*;

    fn numbered(number: u64) -> Envelope {
        let mut envelope = envelope(MessageKind::Append, b"0123456789");
        envelope.message.index = Index(number);
        envelope
    }

    fn frames(queue: &Arc<SendQueue>) -> FrameStream<impl Fn() -> SenderState + Unpin + use<>> {
        let id = MemberId { cluster_id: 1, store: StoreId(1) };
        FrameStream {
            queue: Arc::clone(queue),
            from: FrameSender { id, uuid: StoreUuid(3), run: StoreRun::default() },
            now: || SenderState { log_end: 7, disk_usage: DiskUsage::Full },
            to: StoreId(2),
            sent: Arc::default(),
        }
    }

    async fn numbers(frames: &mut FrameStream<impl Fn() -> SenderState + Unpin>) -> Vec<u64> {
        let frame = frames.next().await.unwrap();
        frame.messages.iter().map(|message| message.message.as_ref().unwrap().index).collect()
    }

    #[tokio::test]
    async fn a_frame_holds_what_waits_in_order() {
        let queue = Arc::new(SendQueue::new(1 << 20, StreamKind::Appends));
        queue.connected();
        for number in 1..=3 {
            assert!(queue.push(numbered(number)).is_empty());
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
    fn a_full_queue_refuses_the_new() {
        let one = message_weight(&numbered(1));
        let queue = SendQueue::new(2 * one, StreamKind::Appends);
        queue.connected();
        assert!(queue.push(numbered(1)).is_empty() && queue.push(numbered(2)).is_empty());
        assert_eq!(queue.push(numbered(3)).len(), 1);
    }

    #[test]
    fn without_a_connection_entries_are_refused_and_lost_ones_told_once() {
        let queue = SendQueue::new(1 << 20, StreamKind::Appends);
        assert_eq!(queue.push(numbered(1)).len(), 1);
        queue.connected();
        queue.push(numbered(1));
        queue.push(numbered(2));
        assert_eq!(queue.disconnected().len(), 1);
        assert_eq!(queue.push(numbered(3)).len(), 1);
    }

    #[tokio::test]
    async fn without_a_connection_the_latest_urgent_messages_are_kept() {
        let queue = Arc::new(SendQueue::new(1 << 20, StreamKind::Urgent));
        let count = (KEPT_WHILE_DOWN_BYTES / message_weight(&numbered(1))) as u64;
        for number in 0..count + 5 {
            assert_eq!(queue.push(numbered(number)).is_empty(), number < count);
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
        assert_eq!((frame.log_end, frame.disk_usage), (7, DiskUsage::Full.number().into()));
        let frame = frames.next().await.unwrap();
        assert_eq!((frame.messages.len(), frame.notices.len()), (0, FRAME_MESSAGES_MAX));
        assert_eq!(frame.notices[0].peer_id, 201);
        assert!(queue.push_notice(notice()));
        queue.disconnected();
        queue.connected();
        queue.push(numbered(2));
        assert!(frames.next().await.unwrap().notices.is_empty(), "they went with the connection");
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
