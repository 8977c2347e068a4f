//! Votes that candidates ask of regions that are not here.
//!
//! Mostly a split has made the region elsewhere and is not applied here yet. Without the vote a
//! candidate waits for an election timeout before it asks again, so its last request is kept for a
//! moment and answered when the replica is there. A late vote request is legal, and so is a lost
//! one.

use std::collections::BTreeMap;

use crate::ids::{RegionId, Time};
use crate::message::{Envelope, MessageKind};

/// How long a request is kept. A candidate asks again after an election timeout.
const KEPT_MS: u64 = 1000;
/// Regions for which one is kept: a bound on what others can make this store remember.
const REGIONS_MAX: usize = 4096;

#[derive(Default)]
pub(crate) struct HeldVotes {
    asked: BTreeMap<RegionId, (Envelope, Time)>,
}

impl HeldVotes {
    /// Keeps a message if it asks for a vote; of a region, the last one.
    pub(crate) fn hold(&mut self, envelope: Envelope, now: Time) {
        let kind = envelope.message.kind;
        if !matches!(kind, MessageKind::RequestVote | MessageKind::RequestPreVote) {
            return;
        }
        let region = envelope.region;
        if self.asked.len() >= REGIONS_MAX && !self.asked.contains_key(&region) {
            self.asked.retain(|_, (_, until)| now < *until);
            if self.asked.len() >= REGIONS_MAX {
                return;
            }
        }
        self.asked.insert(region, (envelope, now.after_ms(KEPT_MS)));
        assert!(self.asked.len() <= REGIONS_MAX, "a message makes room for itself");
    }

    /// The request that is kept for a region, if it is not too old.
    pub(crate) fn take(&mut self, region: RegionId, now: Time) -> Option<Envelope> {
        let (envelope, until) = self.asked.remove(&region)?;
        (now < until).then_some(envelope)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::{Epoch, Peer};
    use crate::ids::{Index, Term};
    use crate::message::Message;

    fn envelope(region: u64, kind: MessageKind, term: u64) -> Envelope {
        Envelope {
            region: RegionId(region),
            from: Peer::default(),
            to: Peer::default(),
            epoch: Epoch::default(),
            gc_floor: Index(0),
            range: None,
            message: Message { kind, term: Term(term), ..Message::default() },
        }
    }

    #[test]
    fn the_last_request_is_kept_for_a_moment() {
        let mut held = HeldVotes::default();
        held.hold(envelope(7, MessageKind::Heartbeat, 1), Time(0));
        assert_eq!(held.take(RegionId(7), Time(0)), None, "no vote");
        held.hold(envelope(7, MessageKind::RequestPreVote, 6), Time(0));
        let last = envelope(7, MessageKind::RequestVote, 7);
        held.hold(last.clone(), Time(10));
        assert_eq!(held.take(RegionId(7), Time(1009)), Some(last.clone()));
        assert_eq!(held.take(RegionId(7), Time(1009)), None, "taken once");
        held.hold(last, Time(10));
        assert_eq!(held.take(RegionId(7), Time(1010)), None, "too old");
    }

    #[test]
    fn strangers_cannot_fill_the_memory() {
        let mut held = HeldVotes::default();
        for region in 0..2 * REGIONS_MAX as u64 {
            held.hold(envelope(region, MessageKind::RequestVote, 6), Time(0));
        }
        assert_eq!(held.asked.len(), REGIONS_MAX);
        held.hold(envelope(1 << 40, MessageKind::RequestVote, 6), Time(KEPT_MS));
        assert_eq!(held.asked.len(), 1, "old ones make room");
    }
}
