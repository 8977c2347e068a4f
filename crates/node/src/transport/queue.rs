//! What waits for one stream to another store, bounded in bytes, and the frames made of it.
//!
//! The stream pulls: a frame is built when HTTP/2 has room for it, so what waits is here, where it
//! is bounded and counted, and not in a buffer below. A message that finds the queue full is
//! refused and raft sends it again later, which is cheaper than holding up a shard.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use flotilla_proto::peers::Frame;
use flotilla_region::{Envelope, PeerId, RegionId, StoreId};
use parking_lot::Mutex;
use tokio_stream::Stream;

use super::convert;
use super::counts::Counts;

/// Bytes of a frame after which no further message is put in.
const FRAME_BYTES: usize = 256 << 10;

/// Messages of a frame at most.
const FRAME_MESSAGES_MAX: usize = 1024;

/// What one message costs beside the bytes of its entries.
const MESSAGE_OVERHEAD_BYTES: usize = 128;

/// Bytes that a queue of urgent messages keeps while there is no connection: enough for a vote or
/// a heartbeat of each of some thousand regions, so that the first election of a cluster does not
/// wait for a second try only because the stores have not found each other yet.
const KEPT_WHILE_DOWN_BYTES: usize = 1 << 20;

/// Which of the two streams to a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// Votes, heartbeats, answers. The latest are kept while there is no connection.
    Urgent,
    /// Log entries. Refused while there is no connection; their sender stops sending ahead.
    Appends,
}

/// Messages for one stream.
pub(super) struct Queue {
    state: Mutex<State>,
    bytes_max: usize,
    kind: Kind,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Envelope>,
    bytes: usize,
    up: bool,
    waker: Option<Waker>,
}

impl Queue {
    /// An empty queue without a connection.
    pub(super) fn new(bytes_max: usize, kind: Kind) -> Self {
        Self { state: Mutex::default(), bytes_max, kind }
    }

    /// Puts a message in. Gives one back that finds no place: this one, or an older one that this
    /// one has replaced.
    pub(super) fn push(&self, envelope: Envelope) -> Result<(), Envelope> {
        let bytes = weight(&envelope);
        let mut state = self.state.lock();
        if !state.up && self.kind == Kind::Appends {
            return Err(envelope);
        }
        let bytes_max = if state.up { self.bytes_max } else { KEPT_WHILE_DOWN_BYTES };
        let full = state.bytes + bytes > bytes_max;
        if full && state.up {
            return Err(envelope);
        }
        let oldest = if full { state.pop() } else { None };
        state.bytes += bytes;
        state.waiting.push_back(envelope);
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
        oldest.map_or(Ok(()), Err)
    }

    /// There is a connection; messages flow.
    pub(super) fn raise(&self) {
        self.state.lock().up = true;
    }

    /// The connection is gone. Gives back the places of what was dropped, each once.
    pub(super) fn lower(&self) -> Vec<(RegionId, PeerId)> {
        let mut state = self.state.lock();
        state.up = false;
        state.waker = None;
        if self.kind == Kind::Urgent {
            return Vec::new();
        }
        state.bytes = 0;
        let mut lost: Vec<_> =
            state.waiting.drain(..).map(|envelope| (envelope.region, envelope.to.id)).collect();
        lost.sort_unstable();
        lost.dedup();
        lost
    }

    /// Takes the messages of one frame, or leaves word to be woken.
    fn poll_take(&self, context: &Context<'_>) -> Poll<Vec<Envelope>> {
        let mut state = self.state.lock();
        if state.waiting.is_empty() {
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
        Poll::Ready(taken)
    }
}

impl State {
    fn pop(&mut self) -> Option<Envelope> {
        let envelope = self.waiting.pop_front()?;
        self.bytes -= weight(&envelope);
        Some(envelope)
    }
}

/// The bytes that a message counts for.
pub(super) fn weight(envelope: &Envelope) -> usize {
    let entries = &envelope.message.entries;
    let data: usize = entries.iter().map(|entry| entry.data.len()).sum();
    MESSAGE_OVERHEAD_BYTES + data + entries.len() * 32 + envelope.message.context.len()
}

/// The frames of one stream, for as long as its connection lasts.
pub(super) struct Frames {
    pub(super) queue: Arc<Queue>,
    pub(super) cluster_id: u64,
    pub(super) from: StoreId,
    pub(super) to: StoreId,
    pub(super) sent: Arc<Counts>,
}

impl Stream for Frames {
    type Item = Frame;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Frame>> {
        self.queue.poll_take(context).map(|envelopes| {
            self.sent.count_frame_sent(envelopes.iter().map(weight).sum());
            Some(Frame {
                cluster_id: self.cluster_id,
                from_store: self.from.0,
                to_store: self.to.0,
                messages: envelopes.into_iter().map(convert::to_wire).collect(),
            })
        })
    }
}
