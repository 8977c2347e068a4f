//! Snapshots between stores: parts and verdicts as packets, which the network may lose, double and
//! delay.
//!
//! A real stream loses nothing before it breaks. So the receiver takes parts in their order, keeps
//! those that come early, and a stream that lacks one runs into its deadline on both sides.

use std::collections::BTreeMap;

use bytes::Bytes;
use flotilla_identity::{StoreRun, StoreUuid};
use flotilla_region::{DiskUsage, Envelope, Event, RegionSize, SnapshotSend, StageId};
use flotilla_store::{ReadError, SnapshotEnd, SnapshotReader, StageOffer};

use super::running::RunningStore;
use super::snapshot_streams::{Incoming, Outgoing, SnapshotStreams};
use crate::layout;
use crate::packet::{Packet, PacketBody, SnapshotPart, SnapshotVerdict, StreamId};
use crate::task::{Outbox, Task};

/// Snapshots that are sent at a time; others wait in their order.
const SENT_MAX: usize = 2;
/// Snapshots that come at a time; others are refused.
const RECEIVED_MAX: usize = 4;
/// Chunks that were sent and are not acknowledged.
const CHUNKS_IN_FLIGHT: u64 = 4;
/// A stream is given up after this.
const STREAM_US_MAX: u64 = 2_000_000;

impl RunningStore {
    /// Sends a snapshot when its turn comes.
    ///
    /// # Errors
    ///
    /// The rows cannot be read.
    pub(super) fn queue_snapshot(
        &mut self,
        send: SnapshotSend,
        out: &mut Outbox,
    ) -> Result<(), ReadError> {
        self.streams.waiting.push_back(send);
        self.begin_snapshots(out)
    }

    pub(super) fn begin_snapshots(&mut self, out: &mut Outbox) -> Result<(), ReadError> {
        while self.streams.outgoing.len() < SENT_MAX {
            let Some(send) = self.streams.waiting.pop_front() else { break };
            self.begin_snapshot(send, out)?;
        }
        Ok(())
    }

    /// Begins to send a snapshot, or reports that it is not sent.
    ///
    /// # Errors
    ///
    /// The rows cannot be read.
    fn begin_snapshot(&mut self, send: SnapshotSend, out: &mut Outbox) -> Result<(), ReadError> {
        let SnapshotSend { number, mut envelope } = send;
        let (region, from, to) = (envelope.region, envelope.from.id, envelope.to.id);
        let place = layout::place(envelope.to.store);
        let refused = Event::SnapshotSent { region, from, to, number, ok: false };
        let reader = match self.handshakes.is_linked(place) {
            false => None,
            true => match self.executor.store().open_snapshot(region) {
                // The replica has ended while its snapshot waited for others.
                Err(ReadError::RegionNotFound) if self.silent.is_to_end(region, from) => None,
                opened => benign(opened).inspect_err(|_| self.post_later(refused.clone(), out))?,
            },
        };
        // The receiver would hold a log beyond its own term.
        let fits = |reader: &SnapshotReader| reader.head().term <= envelope.message.term;
        let Some(reader) = reader.filter(fits) else {
            self.streams.coverage.unsent += 1;
            self.post_later(refused, out);
            return Ok(());
        };
        envelope.message.snapshot = Some(Box::new(reader.head().clone()));
        let size = reader.total();
        self.streams.begun += 1;
        let stream = self.streams.begun;
        let (is_begun, has_ended) = (false, false);
        let outgoing = Outgoing {
            region,
            from,
            to,
            place,
            number,
            reader,
            is_begun,
            has_ended,
            sent: 0,
            taken: 0,
            spilled_before: self.executor.spill_written_bytes(),
        };
        self.streams.outgoing.insert(stream, outgoing);
        out.tasks.push((STREAM_US_MAX, Task::EndSending(stream)));
        let offer = SnapshotPart::Offer { envelope: Box::new(envelope), size };
        self.send_part(stream, place, 0, offer, out);
        Ok(())
    }

    fn send_part(
        &self,
        number: u64,
        to: usize,
        part_number: u64,
        part: SnapshotPart,
        out: &mut Outbox,
    ) {
        let SnapshotStreams { place: from, incarnation, .. } = self.streams;
        let (uuid, run) = self.handshakes.own_run();
        let stream = StreamId { from, incarnation, number };
        let body = PacketBody::SnapshotPart { uuid, run, stream, number: part_number, part };
        out.packets.push(Packet::new(from, to, body));
    }

    /// Takes what the receiver of a stream says.
    ///
    /// # Errors
    ///
    /// The rows cannot be read.
    pub(super) fn take_verdict(
        &mut self,
        stream: StreamId,
        verdict: SnapshotVerdict,
        out: &mut Outbox,
    ) -> Result<(), ReadError> {
        if stream.incarnation != self.streams.incarnation {
            return Ok(());
        }
        let Some(outgoing) = self.streams.outgoing.get_mut(&stream.number) else { return Ok(()) };
        match verdict {
            SnapshotVerdict::Go if outgoing.is_begun => return Ok(()),
            SnapshotVerdict::Go => {
                outgoing.is_begun = true;
                let &mut Outgoing { region, from, to, number, .. } = outgoing;
                let index = outgoing.reader.head().index;
                let begun = Event::SnapshotBegun { region, from, to, number, index };
                self.post_later(begun, out);
            }
            SnapshotVerdict::Taken(number) => outgoing.taken = outgoing.taken.max(number),
            SnapshotVerdict::Staged => {
                self.streams.coverage.sent += 1;
                self.end_outgoing(stream.number, true, out);
                return Ok(());
            }
            SnapshotVerdict::Refused => {
                self.end_outgoing(stream.number, false, out);
                return Ok(());
            }
        }
        self.send_rows(stream.number, out)
    }

    /// Sends as many chunks as may be under way.
    fn send_rows(&mut self, stream: u64, out: &mut Outbox) -> Result<(), ReadError> {
        let Some(outgoing) = self.streams.outgoing.get_mut(&stream) else { return Ok(()) };
        let (to, mut parts) = (outgoing.place, Vec::new());
        let chunk_bytes = self.streams.chunk_bytes;
        while !outgoing.has_ended && outgoing.sent - outgoing.taken < CHUNKS_IN_FLIGHT {
            let chunk = match benign(outgoing.reader.next_chunk(chunk_bytes)) {
                Ok(Some(chunk)) => chunk,
                unsent => {
                    self.end_outgoing(stream, false, out);
                    return unsent.map(drop);
                }
            };
            outgoing.sent += 1;
            parts.push((
                outgoing.sent,
                match chunk {
                    Some(chunk) => SnapshotPart::Rows(chunk.bytes),
                    None => {
                        outgoing.has_ended = true;
                        SnapshotPart::End(outgoing.reader.end().encode())
                    }
                },
            ));
        }
        for (number, part) in parts {
            self.send_part(stream, to, number, part, out);
        }
        Ok(())
    }

    /// A stream ends: at its deadline, or before. Nothing happens if it has ended already.
    pub(super) fn end_outgoing(&mut self, stream: u64, ok: bool, out: &mut Outbox) {
        if let Some(outgoing) = self.streams.outgoing.remove(&stream) {
            self.streams.coverage.unsent += u64::from(!ok);
            let was_spilled = self.executor.spill_written_bytes() > outgoing.spilled_before;
            self.streams.across_spills += u64::from(was_spilled && outgoing.sent > 0);
            self.post_later(outgoing.report(ok), out);
            // A task of its own: it may read the disk.
            out.tasks.push((self.executor.notify_delay_us(), Task::SendSnapshots));
        }
    }

    /// A stream ends before its end, and its stage with it.
    pub(super) fn end_incoming(&mut self, stream: StreamId, out: &mut Outbox) {
        if let Some(incoming) = self.streams.incoming.remove(&stream) {
            self.streams.ended.insert(stream);
            self.streams.coverage.cut += 1;
            self.executor.store().discard_stage(incoming.stage);
            self.answer_part(stream, SnapshotVerdict::Refused, out);
        }
    }

    /// All streams of the store are cut.
    pub(super) fn cut_streams(&mut self, out: &mut Outbox) {
        let outgoing: Vec<_> = self.streams.outgoing.keys().copied().collect();
        outgoing.into_iter().for_each(|stream| self.end_outgoing(stream, false, out));
        let incoming: Vec<_> = self.streams.incoming.keys().copied().collect();
        incoming.into_iter().for_each(|stream| self.end_incoming(stream, out));
    }

    fn answer_part(&self, stream: StreamId, verdict: SnapshotVerdict, out: &mut Outbox) {
        let body = PacketBody::SnapshotVerdict { stream, verdict };
        out.packets.push(Packet::new(self.streams.place, stream.from, body));
    }

    /// Takes a part of a stream.
    pub(super) fn take_part(
        &mut self,
        stream: StreamId,
        (uuid, run): (StoreUuid, StoreRun),
        number: u64,
        part: SnapshotPart,
        out: &mut Outbox,
    ) {
        if self.streams.ended.contains(&stream) {
            return;
        }
        if !self.handshakes.takes_run(stream.from, uuid, run) {
            return self.answer_part(stream, SnapshotVerdict::Refused, out);
        }
        match part {
            SnapshotPart::Offer { envelope, size } => {
                // A doubled offer of a stream that goes on says nothing new.
                if !self.streams.incoming.contains_key(&stream) {
                    self.begin_stage(stream, *envelope, size, out);
                }
            }
            part => {
                // Without its offer, which was lost or comes later, a part is of no use.
                let Some(incoming) = self.streams.incoming.get_mut(&stream) else { return };
                if number >= incoming.next {
                    incoming.early.insert(number, part);
                    self.stage_parts(stream, out);
                }
            }
        }
    }

    fn begin_stage(
        &mut self,
        stream: StreamId,
        envelope: Envelope,
        size: RegionSize,
        out: &mut Outbox,
    ) {
        let head = envelope.message.snapshot.as_ref().expect("the sender has put it in");
        let has_room = self.disks.usage() < DiskUsage::AlmostFull;
        self.disks.coverage.snapshots_refused += u64::from(!has_room);
        let is_free = has_room && self.streams.incoming.len() < RECEIVED_MAX;
        let offered =
            is_free.then(|| self.executor.store().begin_stage(envelope.to.id, head, size));
        let Some(Ok(StageOffer::Go(stage))) = offered else {
            self.streams.ended.insert(stream);
            self.streams.coverage.refused += 1;
            return self.answer_part(stream, SnapshotVerdict::Refused, out);
        };
        let early = BTreeMap::new();
        self.streams.incoming.insert(stream, Incoming { stage, envelope, next: 1, early });
        out.tasks.push((STREAM_US_MAX, Task::EndReceiving(stream)));
        self.answer_part(stream, SnapshotVerdict::Go, out);
    }

    /// Stages all parts whose turn it is.
    fn stage_parts(&mut self, stream: StreamId, out: &mut Outbox) {
        loop {
            let Some(incoming) = self.streams.incoming.get_mut(&stream) else { return };
            let (next, stage) = (incoming.next, incoming.stage);
            let Some(part) = incoming.early.remove(&next) else { return };
            incoming.next += 1;
            let done = match part {
                SnapshotPart::Rows(rows) => self.stage_rows(stage, rows),
                SnapshotPart::End(end) => return self.finish_stage(stream, end, out),
                SnapshotPart::Offer { .. } => unreachable!("it was taken before"),
            };
            if !done {
                return self.end_incoming(stream, out);
            }
            self.answer_part(stream, SnapshotVerdict::Taken(next), out);
        }
    }

    /// False if the disk failed: the stage is of no use then, and the store goes on.
    fn stage_rows(&self, stage: StageId, rows: Bytes) -> bool {
        self.executor.store().stage_chunk(stage, rows).is_ok()
    }

    fn finish_stage(&mut self, stream: StreamId, end: Bytes, out: &mut Outbox) {
        let Some(incoming) = self.streams.incoming.get(&stream) else { return };
        let end = SnapshotEnd::decode(end).expect("the network damages nothing");
        if self.executor.store().finish_stage(incoming.stage, end).is_err() {
            return self.end_incoming(stream, out);
        }
        let Some(incoming) = self.streams.incoming.remove(&stream) else { return };
        self.streams.ended.insert(stream);
        self.streams.coverage.staged += 1;
        let Incoming { stage, envelope, .. } = incoming;
        self.post_later(Event::SnapshotStaged { envelope, stage }, out);
        self.answer_part(stream, SnapshotVerdict::Staged, out);
    }

    fn post_later(&mut self, event: Event, out: &mut Outbox) {
        out.tasks.push((self.executor.notify_delay_us(), Task::Post(vec![event])));
    }
}

/// None if a snapshot cannot be read now, which its sender must expect.
fn benign<T>(read: Result<T, ReadError>) -> Result<Option<T>, ReadError> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(ReadError::SnapshotTooOld | ReadError::NothingApplied | ReadError::Damaged) => Ok(None),
        Err(error) => Err(error),
    }
}
