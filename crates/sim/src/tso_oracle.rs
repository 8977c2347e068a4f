//! The timestamp oracle of one store: drives `placement`'s clock as the node does, in the terms
//! that it leads placement in, and checks that what all stores hand out together never goes back.

use std::collections::BTreeMap;

use bytes::Bytes;
use flotilla_kv::raw::RawOp;
use flotilla_placement::rows::TSO_KEY;
use flotilla_placement::{SwapResult, TermFollower, TermStep, Timestamp, Tso};
use flotilla_region::{Descriptor, RoleChange, Term, Ticket};
use flotilla_store::ApplyOutcome;

use crate::reference_model::CheckFailure;
use crate::request::{ClientReply, ClientRequest, RequestBody, RequestOwner};
use crate::workload::ClientWorkload;

/// All timestamps that clients got.
#[derive(Debug, Default)]
pub(crate) struct GrantedTimestamps {
    /// The last of each batch and its size.
    granted: BTreeMap<Timestamp, u64>,
}

impl GrantedTimestamps {
    pub(crate) fn count(&self) -> u64 {
        self.granted.len() as u64
    }

    /// The greatest timestamp that was granted so far.
    fn latest(&self) -> Option<Timestamp> {
        self.granted.last_key_value().map(|(stamp, _)| *stamp)
    }

    /// A client gets a batch that it asked for when `floor` was the greatest.
    fn grant(
        &mut self,
        stamp: Timestamp,
        count: u64,
        floor: Option<Timestamp>,
    ) -> Result<(), CheckFailure> {
        let first = stamp.logical + 1 - count;
        let above =
            |other: Timestamp| (stamp.physical_ms, first) > (other.physical_ms, other.logical);
        if let Some(floor) = floor.filter(|floor| !above(*floor)) {
            return Err(format!("timestamp {stamp:?} x {count} after {floor:?} was granted"));
        }
        let before = self.granted.range(..stamp).next_back();
        if let Some((before, _)) = before.filter(|(before, _)| !above(**before)) {
            return Err(format!("timestamps {stamp:?} x {count} and {before:?} overlap"));
        }
        let after = self.granted.range(stamp..).next();
        if let Some((after, size)) = after.filter(|(after, size)| {
            after.physical_ms == stamp.physical_ms && after.logical + 1 - **size <= stamp.logical
        }) {
            return Err(format!("timestamps {stamp:?} x {count} and {after:?} x {size} overlap"));
        }
        self.granted.insert(stamp, count);
        Ok(())
    }
}

/// A batch that was pending and waits for the proof that its store led then.
#[derive(Debug)]
struct PendingBatch {
    ticket: Ticket,
    stamp: Timestamp,
    count: u64,
    floor: Option<Timestamp>,
}

#[derive(Debug)]
enum OracleState {
    Idle,
    /// Begins a term: reads where its predecessor ended.
    Reading(Ticket),
    Serving {
        tso: Tso,
        writing: Option<Ticket>,
        pending: Option<PendingBatch>,
    },
}

#[derive(Debug)]
pub(crate) struct TsoOracle {
    place: usize,
    /// The system region, which is never split; its replicas change.
    system: Descriptor,
    /// The term of the system region in which this store leads it.
    elected: Option<u64>,
    follower: TermFollower,
    /// The time of the last beat.
    now_ms: u64,
    state: OracleState,
}

impl TsoOracle {
    pub(crate) fn new(place: usize, system: Descriptor) -> Self {
        let (follower, state) = (TermFollower::default(), OracleState::Idle);
        Self { place, system, elected: None, follower, now_ms: 0, state }
    }

    /// The system region has other replicas, or the same.
    pub(crate) fn learn(&mut self, system: &Descriptor) {
        if self.system.epoch != system.epoch {
            self.system = system.clone();
        }
    }

    /// The store has crashed.
    pub(crate) fn reset(&mut self) {
        *self = Self::new(self.place, self.system.clone());
    }

    /// The system region has another leader, or another term. The next beat acts on it: until then
    /// the store takes itself for what it was, as a task that is not woken yet.
    pub(crate) fn on_role_change(&mut self, role: &RoleChange) {
        self.elected = role.is_leader.then_some(role.term.0);
    }

    /// Asks what there is to ask. The tickets are on their way to the own store.
    pub(crate) fn tick(
        &mut self,
        now_ms: u64,
        count: u64,
        stamps: &GrantedTimestamps,
        workload: &mut ClientWorkload,
    ) -> Vec<Ticket> {
        self.now_ms = now_ms;
        let mut step = self.follower.next(now_ms, self.elected);
        if let TermStep::End(_) = step {
            self.state = OracleState::Idle;
            step = self.follower.next(now_ms, self.elected);
        }
        let begun = if let TermStep::Begin(term) = step { Some(term) } else { None };
        let mut sent = Vec::new();
        let Some(term) = begun.or(self.follower.held()) else { return sent };
        let (place, system) = (self.place, &self.system);
        let mut ask = |body| {
            let owner = RequestOwner::TsoOracle(place);
            let mut request = ClientRequest::new(owner, system, place, body);
            // A store that leads again in a later term has not seen what was done meanwhile.
            request.term = Some(Term(term));
            let ticket = workload.send(request);
            sent.push(ticket);
            ticket
        };
        let read = RequestBody::Get(Bytes::from_static(TSO_KEY));
        if begun.is_some() {
            // A linearizable read sees all that a former leader has written.
            self.state = OracleState::Reading(ask(read));
            return sent;
        }
        match &mut self.state {
            OracleState::Idle | OracleState::Reading(_) => {}
            OracleState::Serving { tso, writing, pending } => {
                if writing.is_none() {
                    *writing = tso.wants(now_ms).map(|swap| {
                        ask(RequestBody::Write(vec![RawOp::CompareAndSwap {
                            key: Bytes::from_static(swap.key),
                            expected: swap.expected.map(Bytes::from),
                            value: Some(swap.value.into()),
                            ttl_s: 0,
                        }]))
                    });
                }
                if pending.is_none() {
                    // An error means that the window is not written yet.
                    *pending = tso.take(now_ms, count).ok().map(|stamp| {
                        // As of the asking: whatever was granted before a client asked has to lie
                        // below its answer.
                        let floor = stamps.latest();
                        PendingBatch { ticket: ask(read), stamp, count, floor }
                    });
                }
            }
        }
        sent
    }

    /// The own store answers.
    pub(crate) fn on_reply(
        &mut self,
        ticket: Ticket,
        reply: ClientReply,
        stamps: &mut GrantedTimestamps,
    ) -> Result<(), CheckFailure> {
        let wrong = |error: &dyn std::fmt::Display| format!("store {}: {error}", self.place + 1);
        match &mut self.state {
            OracleState::Reading(reading) if *reading == ticket => {
                self.state = match reply {
                    ClientReply::Got(row) => {
                        let tso = Tso::recover(row.as_deref()).map_err(|error| wrong(&error))?;
                        OracleState::Serving { tso, writing: None, pending: None }
                    }
                    _ => OracleState::Idle,
                };
                let has_begun = matches!(self.state, OracleState::Serving { .. });
                self.follower.note_begun(self.now_ms, has_begun);
            }
            OracleState::Serving { tso, writing, .. } if *writing == Some(ticket) => {
                *writing = None;
                tso.complete(swap_result(reply)).map_err(|error| wrong(&error))?;
            }
            OracleState::Serving { pending, .. }
                if pending.as_ref().is_some_and(|pending| pending.ticket == ticket) =>
            {
                let done = pending.take().expect("looked at just now");
                // Only with this proof that the store led when the timestamp was taken; without it
                // the batch is given up.
                if let ClientReply::Got(_) = reply {
                    stamps.grant(done.stamp, done.count, done.floor)?;
                }
            }
            // Asked under an earlier leadership.
            _ => {}
        }
        Ok(())
    }
}

fn swap_result(reply: ClientReply) -> SwapResult {
    match reply {
        ClientReply::Wrote(ApplyOutcome::Swapped { succeeded: true, .. }) => SwapResult::Done,
        ClientReply::Wrote(ApplyOutcome::Swapped { succeeded: false, previous }) => {
            SwapResult::Refused { current: previous.map(Into::into) }
        }
        // A refusal counts as unknown, too: the next swap finds out.
        _ => SwapResult::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(physical_ms: u64, logical: u64) -> Timestamp {
        Timestamp { physical_ms, logical }
    }

    #[test]
    fn timestamps_neither_overlap_nor_go_back() {
        let mut stamps = GrantedTimestamps::default();
        assert_eq!(stamps.grant(stamp(5, 10), 10, None), Ok(()));
        assert_eq!(stamps.grant(stamp(5, 30), 10, Some(stamp(5, 10))), Ok(()));
        // Two that were asked for at the same time may come in either order.
        assert_eq!(stamps.grant(stamp(5, 15), 5, Some(stamp(5, 10))), Ok(()));
        assert!(stamps.grant(stamp(5, 21), 2, Some(stamp(5, 10))).is_err(), "into the next batch");
        assert!(stamps.grant(stamp(5, 18), 4, Some(stamp(5, 10))).is_err(), "into the last one");
        assert!(stamps.grant(stamp(5, 30), 1, None).is_err(), "the same again");
        assert!(stamps.grant(stamp(5, 19), 1, stamps.latest()).is_err(), "went back");
        assert_eq!(stamps.grant(stamp(6, 1), 1, stamps.latest()), Ok(()));
    }
}
