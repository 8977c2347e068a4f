//! Messages of a store on their way to the network: they wait for each other store in two queues,
//! until the stream there takes a frame.

use fastrand::Rng;
use flotilla_dispatch::{OutgoingQueue, StreamKind};
use flotilla_region::{Envelope, Event, Notice};

use crate::coverage::QueueCoverage;
use crate::layout;
use crate::task::{Outbox, Task};

/// A queue of urgent messages has room for a heartbeat of each region of a run and its answer, as
/// the node's least bound has for a hundred thousand: a step sends them in one order, and those at
/// its end would else never leave.
const URGENT_BYTES_MIN: usize = 16_000;
/// From the first message that waits to the frame with it.
const SEND_US_MAX: u64 = 100;

/// The queues to all other stores.
pub(super) struct OutgoingQueues {
    rng: Rng,
    /// By the number of the receiver, one of each kind.
    streams: Vec<[SimStream; 2]>,
    pub(super) coverage: QueueCoverage,
}

struct SimStream {
    queue: OutgoingQueue,
    is_scheduled: bool,
}

impl OutgoingQueues {
    /// Queues of so many bytes, without a link.
    pub(super) fn new(stores: usize, bytes_max: usize, rng: Rng) -> Self {
        let stream = |kind| {
            let least = if kind == StreamKind::Urgent { URGENT_BYTES_MIN } else { 0 };
            let queue = OutgoingQueue::new(bytes_max.max(least), kind);
            SimStream { queue, is_scheduled: false }
        };
        let streams = (0..stores).map(|_| StreamKind::ALL.map(stream)).collect();
        Self { rng, streams, coverage: QueueCoverage::default() }
    }

    /// Queues a message. Returns the event that tells the core of one that was dropped.
    pub(super) fn push(&mut self, envelope: Envelope, out: &mut Outbox) -> Option<Event> {
        let (to, kind) = (layout::place(envelope.to.store), StreamKind::of(envelope.message.kind));
        let was_up = self.stream(to, kind).queue.is_up();
        let dropped = self.stream(to, kind).queue.push(envelope);
        self.coverage.kept += u64::from(!was_up && kind == StreamKind::Urgent);
        self.schedule(to, kind, out);
        let (region, peer) = dropped.into_iter().next_back()?;
        self.coverage.full += u64::from(was_up);
        (kind == StreamKind::Appends).then_some(Event::Unreachable { region, peer })
    }

    /// Queues a notice.
    pub(super) fn push_notice(&mut self, notice: Notice, out: &mut Outbox) {
        let (to, kind) = (layout::place(notice.to), StreamKind::Urgent);
        let _ = self.stream(to, kind).queue.push_notice(notice);
        self.schedule(to, kind, out);
    }

    /// There is a link to a store.
    pub(super) fn connect(&mut self, to: usize, out: &mut Outbox) {
        for kind in StreamKind::ALL {
            self.stream(to, kind).queue.connect();
            self.schedule(to, kind, out);
        }
    }

    /// There is no link to a store any more. Returns the events that tell the core of entries that
    /// were dropped.
    pub(super) fn disconnect(&mut self, to: usize) -> Vec<Event> {
        let streams = self.streams[to].iter_mut();
        let lost: Vec<_> = streams.flat_map(|stream| stream.queue.disconnect()).collect();
        self.coverage.lost += lost.len() as u64;
        lost.into_iter().map(|(region, peer)| Event::Unreachable { region, peer }).collect()
    }

    /// Sends one frame; the rest needs another task.
    pub(super) fn send(&mut self, to: usize, kind: StreamKind, out: &mut Outbox) {
        self.stream(to, kind).is_scheduled = false;
        if let Some(frame) = self.stream(to, kind).queue.take_frame() {
            out.envelopes.extend(frame.envelopes);
            out.notices.extend(frame.notices);
        }
        self.schedule(to, kind, out);
    }

    /// Sends all that waits, as quick streams do.
    pub(super) fn flush(&mut self, out: &mut Outbox) {
        for stream in self.streams.iter_mut().flatten() {
            while let Some(frame) = stream.queue.take_frame() {
                out.envelopes.extend(frame.envelopes);
                out.notices.extend(frame.notices);
            }
        }
    }

    fn schedule(&mut self, to: usize, kind: StreamKind, out: &mut Outbox) {
        let delay_us = self.rng.u64(1..=SEND_US_MAX);
        let stream = self.stream(to, kind);
        if stream.queue.is_ready() && !stream.is_scheduled {
            stream.is_scheduled = true;
            out.tasks.push((delay_us, Task::SendFrame { to, kind }));
        }
    }

    fn stream(&mut self, to: usize, kind: StreamKind) -> &mut SimStream {
        &mut self.streams[to][kind as usize]
    }
}
