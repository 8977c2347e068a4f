//! The timestamp oracle of one store: drives `placement`'s clock as the node does, and checks that
//! what all stores hand out together never goes back.

use std::collections::BTreeMap;

use bytes::Bytes;
use flotilla_placement::rows::TSO_KEY;
use flotilla_placement::{SwapResult, Timestamp, Tso};
use flotilla_region::command::Op;
use flotilla_region::{RoleChange, Ticket};
use flotilla_store::Outcome;

use crate::layout;
use crate::request::{Ask, Owner, Reply, Request};
use crate::truth::Broken;
use crate::workload::Workload;

/// All timestamps that clients got.
#[derive(Debug, Default)]
pub(crate) struct Stamps {
    /// The last of each batch and its size.
    given: BTreeMap<Timestamp, u64>,
}

impl Stamps {
    pub(crate) fn count(&self) -> u64 {
        self.given.len() as u64
    }

    /// The greatest timestamp that anybody has by now.
    fn greatest(&self) -> Option<Timestamp> {
        self.given.last_key_value().map(|(stamp, _)| *stamp)
    }

    /// A client gets a batch that it asked for when `floor` was the greatest.
    fn give(
        &mut self,
        stamp: Timestamp,
        count: u64,
        floor: Option<Timestamp>,
    ) -> Result<(), Broken> {
        let first = stamp.logical + 1 - count;
        let above =
            |other: Timestamp| (stamp.physical_ms, first) > (other.physical_ms, other.logical);
        if let Some(floor) = floor.filter(|floor| !above(*floor)) {
            return Err(format!("timestamp {stamp:?} x {count} after {floor:?} was given"));
        }
        let before = self.given.range(..stamp).next_back();
        if let Some((before, _)) = before.filter(|(before, _)| !above(**before)) {
            return Err(format!("timestamps {stamp:?} x {count} and {before:?} overlap"));
        }
        let after = self.given.range(stamp..).next();
        if let Some((after, size)) = after.filter(|(after, size)| {
            after.physical_ms == stamp.physical_ms && after.logical + 1 - **size <= stamp.logical
        }) {
            return Err(format!("timestamps {stamp:?} x {count} and {after:?} x {size} overlap"));
        }
        self.given.insert(stamp, count);
        Ok(())
    }
}

/// A batch that was taken and waits for the proof that its store led then.
#[derive(Debug)]
struct Taken {
    ticket: Ticket,
    stamp: Timestamp,
    count: u64,
    floor: Option<Timestamp>,
}

#[derive(Debug)]
enum State {
    Idle,
    /// Leads and reads where its predecessor ended; not asked yet if `None`.
    Reading(Option<Ticket>),
    Serving {
        tso: Tso,
        writing: Option<Ticket>,
        taken: Option<Taken>,
    },
}

#[derive(Debug)]
pub(crate) struct Oracle {
    place: usize,
    state: State,
}

impl Oracle {
    pub(crate) fn new(place: usize) -> Self {
        Self { place, state: State::Idle }
    }

    /// The store has crashed.
    pub(crate) fn reset(&mut self) {
        self.state = State::Idle;
    }

    /// The system region has another leader, or another term.
    pub(crate) fn hear(&mut self, role: &RoleChange) {
        self.state = if role.is_leader { State::Reading(None) } else { State::Idle };
    }

    /// Asks what there is to ask. The tickets are on their way to the own store.
    pub(crate) fn beat(
        &mut self,
        now_ms: u64,
        count: u64,
        stamps: &Stamps,
        workload: &mut Workload,
    ) -> Vec<Ticket> {
        let mut sent = Vec::new();
        let place = self.place;
        let mut ask = |ask| {
            let request = Request::new(Owner::Oracle(place), layout::SYSTEM, place, ask);
            let ticket = workload.send(request);
            sent.push(ticket);
            ticket
        };
        let read = Ask::Get(Bytes::from_static(TSO_KEY));
        match &mut self.state {
            State::Reading(reading @ None) => *reading = Some(ask(read)),
            State::Idle | State::Reading(Some(_)) => {}
            State::Serving { tso, writing, taken } => {
                if writing.is_none() {
                    *writing = tso.wants(now_ms).map(|swap| {
                        ask(Ask::Write(vec![Op::CompareAndSwap {
                            key: Bytes::from_static(swap.key),
                            expected: swap.expected.map(Bytes::from),
                            value: Some(swap.value.into()),
                        }]))
                    });
                }
                if taken.is_none() {
                    // An error means that the window is not written yet.
                    *taken = tso.take(now_ms, count).ok().map(|stamp| {
                        let floor = stamps.greatest();
                        Taken { ticket: ask(read), stamp, count, floor }
                    });
                }
            }
        }
        sent
    }

    /// The own store answers.
    pub(crate) fn answer(
        &mut self,
        ticket: Ticket,
        reply: Reply,
        stamps: &mut Stamps,
    ) -> Result<(), Broken> {
        let wrong = |error: &dyn std::fmt::Display| format!("store {}: {error}", self.place + 1);
        match &mut self.state {
            State::Reading(reading) if *reading == Some(ticket) => match reply {
                Reply::Got(row) => {
                    let tso = Tso::recover(row.as_deref()).map_err(|error| wrong(&error))?;
                    self.state = State::Serving { tso, writing: None, taken: None };
                }
                _ => *reading = None,
            },
            State::Serving { tso, writing, .. } if *writing == Some(ticket) => {
                *writing = None;
                tso.complete(settled(reply)).map_err(|error| wrong(&error))?;
            }
            State::Serving { taken, .. }
                if taken.as_ref().is_some_and(|taken| taken.ticket == ticket) =>
            {
                let done = taken.take().expect("looked at just now");
                if let Reply::Got(_) = reply {
                    stamps.give(done.stamp, done.count, done.floor)?;
                }
            }
            // Asked under an earlier leadership.
            _ => {}
        }
        Ok(())
    }
}

fn settled(reply: Reply) -> SwapResult {
    match reply {
        Reply::Wrote(Outcome::Swapped { succeeded: true, .. }) => SwapResult::Done,
        Reply::Wrote(Outcome::Swapped { succeeded: false, previous }) => {
            SwapResult::Refused { current: previous.map(Into::into) }
        }
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
        let mut stamps = Stamps::default();
        assert_eq!(stamps.give(stamp(5, 10), 10, None), Ok(()));
        assert_eq!(stamps.give(stamp(5, 30), 10, Some(stamp(5, 10))), Ok(()));
        // Two that were asked for at the same time may come in either order.
        assert_eq!(stamps.give(stamp(5, 15), 5, Some(stamp(5, 10))), Ok(()));
        assert!(stamps.give(stamp(5, 21), 2, Some(stamp(5, 10))).is_err(), "into the next batch");
        assert!(stamps.give(stamp(5, 18), 4, Some(stamp(5, 10))).is_err(), "into the last one");
        assert!(stamps.give(stamp(5, 30), 1, None).is_err(), "the same again");
        assert!(stamps.give(stamp(5, 19), 1, stamps.greatest()).is_err(), "went back");
        assert_eq!(stamps.give(stamp(6, 1), 1, stamps.greatest()), Ok(()));
    }
}
