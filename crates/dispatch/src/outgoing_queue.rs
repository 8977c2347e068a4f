//! Messages that wait for one stream to another store, bounded in bytes, and the frames made of
//! them.
//!
//! The stream pulls: a frame is made when there is room for it below, so messages wait here, where
//! they are bounded and counted. A message that finds the queue full is refused and raft sends it
//! again later, which is cheaper than holding up a shard.

use std::collections::VecDeque;

use flotilla_region::{Envelope, MessageKind, Notice, PeerId, RegionId};

/// Bytes of a frame after which no further message is put in.
const FRAME_BYTES: usize = 256 << 10;

/// Messages of a frame at most, and notices of one.
pub const FRAME_MESSAGES_MAX: usize = 1024;

/// Bytes that a message counts for in addition to its entries.
const MESSAGE_OVERHEAD_BYTES: usize = 128;

/// Bytes that a queue of urgent messages keeps while there is no connection: enough for a vote or
/// a heartbeat of each of some thousand regions, so that the first election of a cluster does not
/// wait for a second try only because the stores have not found each other yet.
pub const KEPT_WHILE_DOWN_BYTES: usize = 1 << 20;

/// Notices that wait at most: they are repeated by those that need an answer.
pub const NOTICES_MAX: usize = 4096;

/// The two streams to a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StreamKind {
    /// Votes, heartbeats, answers. The latest are kept while there is no connection.
    Urgent,
    /// Log entries. Refused while there is no connection; their sender stops sending ahead.
    Appends,
}

impl StreamKind {
    /// Both of them.
    pub const ALL: [Self; 2] = [Self::Urgent, Self::Appends];

    /// The stream of a message. Entries have their own, so that heartbeats are never behind them.
    #[must_use]
    pub fn of(kind: MessageKind) -> Self {
        if kind == MessageKind::Append { Self::Appends } else { Self::Urgent }
    }
}

/// Messages for one stream.
#[derive(Debug)]
pub struct OutgoingQueue {
    kind: StreamKind,
    bytes_max: usize,
    waiting: VecDeque<Envelope>,
    /// In urgent queues only.
    notices: VecDeque<Notice>,
    bytes: usize,
    is_up: bool,
}

/// The messages and notices of one frame.
#[derive(Debug)]
pub struct OutgoingFrame {
    /// In the order in which they came.
    pub envelopes: Vec<Envelope>,
    /// The same.
    pub notices: Vec<Notice>,
}

impl OutgoingQueue {
    /// An empty queue without a connection.
    #[must_use]
    pub fn new(bytes_max: usize, kind: StreamKind) -> Self {
        let (waiting, notices) = (VecDeque::new(), VecDeque::new());
        Self { kind, bytes_max, waiting, notices, bytes: 0, is_up: false }
    }

    /// Puts a message in. If messages are dropped for want of room, this one or as many of the
    /// oldest ones as have to go, returns for which replicas they were.
    pub fn push(&mut self, envelope: Envelope) -> Vec<(RegionId, PeerId)> {
        let bytes = message_weight(&envelope);
        // A message that is heavier than the bound gets in alone: it would else never leave.
        let has_room =
            |queue: &Self, bytes_max| queue.waiting.is_empty() || queue.bytes + bytes <= bytes_max;
        let mut dropped = Vec::new();
        match self.is_up {
            true if has_room(self, self.bytes_max) => {}
            false if self.kind == StreamKind::Urgent => {
                while !has_room(self, KEPT_WHILE_DOWN_BYTES)
                    && let Some(oldest) = self.pop()
                {
                    dropped.push(addressee(&oldest));
                }
            }
            _ => {
                dropped.push(addressee(&envelope));
                return dropped;
            }
        }
        self.bytes += bytes;
        self.waiting.push_back(envelope);
        dropped
    }

    /// Puts a notice in. False if it is dropped, for want of room or of a connection.
    pub fn push_notice(&mut self, notice: Notice) -> bool {
        debug_assert!(self.kind == StreamKind::Urgent, "a notice among entries");
        let has_room = self.is_up && self.notices.len() < NOTICES_MAX;
        if has_room {
            self.notices.push_back(notice);
        }
        has_room
    }

    /// There is a connection; messages flow.
    pub fn connect(&mut self) {
        self.is_up = true;
    }

    /// Whether there is a connection.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.is_up
    }

    /// Whether a frame can be made.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.is_up && !(self.waiting.is_empty() && self.notices.is_empty())
    }

    /// The connection is gone. Returns the replicas for which entries were dropped, each once.
    pub fn disconnect(&mut self) -> Vec<(RegionId, PeerId)> {
        self.is_up = false;
        self.notices.clear();
        if self.kind == StreamKind::Urgent {
            return Vec::new();
        }
        self.bytes = 0;
        let mut lost: Vec<_> = self.waiting.drain(..).map(|it| addressee(&it)).collect();
        lost.sort_unstable();
        lost.dedup();
        lost
    }

    /// The messages and notices of one frame; none if nothing waits, or there is no connection.
    pub fn take_frame(&mut self) -> Option<OutgoingFrame> {
        if !self.is_ready() {
            return None;
        }
        let mut envelopes = Vec::new();
        let mut bytes = 0;
        while bytes < FRAME_BYTES && envelopes.len() < FRAME_MESSAGES_MAX {
            // A message that would make the frame much too large opens the next one.
            let next = self.waiting.front().map_or(0, message_weight);
            if !envelopes.is_empty() && bytes + next > 2 * FRAME_BYTES {
                break;
            }
            let Some(envelope) = self.pop() else { break };
            bytes += next;
            envelopes.push(envelope);
        }
        let count = self.notices.len().min(FRAME_MESSAGES_MAX);
        Some(OutgoingFrame { envelopes, notices: self.notices.drain(..count).collect() })
    }

    fn pop(&mut self) -> Option<Envelope> {
        let envelope = self.waiting.pop_front()?;
        self.bytes -= message_weight(&envelope);
        Some(envelope)
    }
}

fn addressee(envelope: &Envelope) -> (RegionId, PeerId) {
    (envelope.region, envelope.to.id)
}

/// The bytes that a message counts for.
#[must_use]
pub fn message_weight(envelope: &Envelope) -> usize {
    let entries = &envelope.message.entries;
    let data: usize = entries.iter().map(|entry| entry.data.len()).sum();
    let range = envelope.range.as_ref().map_or(0, |range| range.start.len() + range.end.len());
    MESSAGE_OVERHEAD_BYTES + data + entries.len() * 32 + envelope.message.context.len() + range
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;
    use flotilla_region::{Epoch, Index, LogEntry, Message, NoticeKind, Peer, StoreId};

    use super::*;

    fn numbered(number: u64, bytes: usize) -> Envelope {
        let entries = vec![LogEntry { data: vec![0; bytes].into(), ..LogEntry::default() }];
        let kind = MessageKind::Append;
        let index = Index(number);
        let peer = |id| Peer { id: PeerId(id), store: StoreId(id % 100) };
        Envelope {
            region: RegionId(1 + number % 2),
            from: peer(101),
            to: peer(202),
            epoch: Epoch::default(),
            gc_floor: Index(0),
            range: None,
            message: Message { kind, index, entries, ..Message::default() },
        }
    }

    fn notice(number: u64) -> Notice {
        let (from, to) = (StoreId(1), StoreId(2));
        let (kind, epoch) = (NoticeKind::End, Epoch::default());
        Notice { region: RegionId(1), from, to, kind, peer: PeerId(number), epoch }
    }

    /// A queue, and the numbers of what should wait in it.
    struct Checked {
        queue: OutgoingQueue,
        waiting: VecDeque<u64>,
        notices: VecDeque<u64>,
        next: u64,
    }

    fn of(number: u64) -> (RegionId, PeerId) {
        addressee(&numbered(number, 0))
    }

    impl Checked {
        fn push(&mut self, bytes: usize) {
            self.next += 1;
            let (queue, number) = (&mut self.queue, self.next);
            let (is_up, was) = (queue.is_up(), queue.bytes);
            let needs = was + message_weight(&numbered(number, bytes));
            let dropped = queue.push(numbered(number, bytes));
            if is_up || queue.kind == StreamKind::Appends {
                let is_taken = is_up && (was == 0 || needs <= queue.bytes_max);
                assert_eq!(dropped, if is_taken { vec![] } else { vec![of(number)] });
                self.waiting.extend(is_taken.then_some(number));
            } else {
                // The oldest ones go, and no more of them than have to.
                assert_eq!(dropped.is_empty(), needs <= KEPT_WHILE_DOWN_BYTES);
                let oldest: Vec<_> = self.waiting.drain(..dropped.len()).map(of).collect();
                assert_eq!(dropped, oldest);
                self.waiting.push_back(number);
                assert!(queue.bytes <= KEPT_WHILE_DOWN_BYTES, "{}", queue.bytes);
            }
        }

        fn push_notice(&mut self) {
            self.next += 1;
            let is_taken = self.queue.push_notice(notice(self.next));
            assert_eq!(is_taken, self.queue.is_up());
            self.notices.extend(is_taken.then_some(self.next));
        }

        fn disconnect(&mut self) {
            let told = self.queue.disconnect();
            let mut lost = Vec::new();
            if self.queue.kind == StreamKind::Appends {
                lost.extend(self.waiting.drain(..).map(of));
                lost.sort_unstable();
                lost.dedup();
            }
            self.notices.clear();
            assert_eq!(told, lost);
        }

        fn take_frame(&mut self) {
            let Some(frame) = self.queue.take_frame() else {
                let is_empty = self.waiting.is_empty() && self.notices.is_empty();
                return assert!(!self.queue.is_up() || is_empty);
            };
            assert!(self.queue.is_up(), "a frame without a connection");
            assert!(!(frame.envelopes.is_empty() && frame.notices.is_empty()));
            let sent: usize = frame.envelopes.iter().map(message_weight).sum();
            let last = frame.envelopes.last().map_or(0, message_weight);
            assert!(sent - last < FRAME_BYTES || frame.envelopes.len() == 1);
            for envelope in frame.envelopes {
                assert_eq!(self.waiting.pop_front(), Some(envelope.message.index.0));
            }
            for notice in frame.notices {
                assert_eq!(self.notices.pop_front(), Some(notice.peer.0));
            }
        }
    }

    /// Random histories of both kinds against what a queue promises: order, bounds, and that each
    /// message leaves, waits or is told of.
    #[test]
    fn a_queue_keeps_order_and_bounds_and_loses_nothing_untold() {
        for seed in 0..400 {
            let mut rng = Rng::with_seed(seed);
            let kind = StreamKind::ALL[rng.usize(..2)];
            let queue = OutgoingQueue::new([1_000, 20_000, 64 << 20][rng.usize(..3)], kind);
            let (waiting, notices) = (VecDeque::new(), VecDeque::new());
            let mut checked = Checked { queue, waiting, notices, next: 0 };
            for _ in 0..300 {
                match rng.u8(..16) {
                    0 => checked.queue.connect(),
                    1 => checked.disconnect(),
                    2..5 => checked.take_frame(),
                    5 if kind == StreamKind::Urgent => checked.push_notice(),
                    _ => checked.push([10, 500, 100_000][rng.usize(..3)]),
                }
                let Checked { queue, waiting, notices, .. } = &checked;
                assert_eq!(queue.waiting.len(), waiting.len());
                assert_eq!(queue.bytes, queue.waiting.iter().map(message_weight).sum());
                assert_eq!(queue.notices.len(), notices.len());
            }
        }
    }
}
