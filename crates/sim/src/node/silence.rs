//! Replicas that may send nothing: they install a snapshot, or have ended.
//!
//! A replica that installs is silent from the step that takes the snapshot until its log is emptied
//! behind it (R15); one that ends is so for good (R12).

use std::collections::BTreeMap;

use flotilla_region::{Effects, Event, PeerId, RegionId, StoreId};

use crate::reference_model::CheckFailure;

/// The silent replicas of one start of a store.
#[derive(Debug, Default)]
pub(super) struct SilentReplicas {
    installing: BTreeMap<RegionId, Installing>,
    /// By region, the greatest replica that was to end.
    ending: BTreeMap<RegionId, PeerId>,
}

#[derive(Debug)]
struct Installing {
    peer: PeerId,
    /// The write that empties its log, once there is one.
    reset: Option<u64>,
}

impl SilentReplicas {
    /// Whether the end of this replica, or of a later one, was handed out.
    pub(super) fn is_to_end(&self, region: RegionId, peer: PeerId) -> bool {
        self.ending.get(&region).is_some_and(|ended| peer <= *ended)
    }

    /// The core hears of these events in its next step.
    pub(super) fn hear(&mut self, events: &[Event]) {
        for event in events {
            let Event::Persisted { region, number } = event else { continue };
            let is_reset = |it: &Installing| it.reset.is_some_and(|reset| reset <= *number);
            if self.installing.get(region).is_some_and(is_reset) {
                self.installing.remove(region);
            }
        }
    }

    /// Checks that no silent replica sends anything, and notes those that are from now on.
    pub(super) fn check(&mut self, store: StoreId, effects: &Effects) -> Result<(), CheckFailure> {
        let sent = effects.snapshots.iter().map(|send| &send.envelope);
        for envelope in effects.messages.iter().chain(sent) {
            let (region, from) = (envelope.region, envelope.from.id);
            let installs = self.installing.get(&region).is_some_and(|it| it.peer == from);
            let ends = self.is_to_end(region, from);
            if installs || ends {
                let kind = envelope.message.kind;
                let why = if ends { "it was to end" } else { "it installs a snapshot" };
                return Err(format!(
                    "store {store}, region {region}: replica {from} sends {kind:?}, and {why}"
                ));
            }
        }
        for task in &effects.installs {
            let region = task.head.descriptor.id;
            self.installing.insert(region, Installing { peer: task.peer, reset: None });
        }
        for write in effects.log.writes.iter().filter(|write| write.reset.is_some()) {
            if let Some(installing) = self.installing.get_mut(&write.region) {
                installing.reset = Some(write.number);
            }
        }
        for end in &effects.ends {
            let ended = self.ending.entry(end.region).or_default();
            *ended = end.peer.max(*ended);
            // It ends in the place of the snapshot, or behind it.
            let installs = self.installing.get(&end.region);
            if installs.is_some_and(|installing| installing.peer <= end.peer) {
                self.installing.remove(&end.region);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use flotilla_region::{
        EndTask, Envelope, Epoch, Index, LogReset, LogWrite, Message, Peer, Term,
    };

    use super::*;

    const REGION: RegionId = RegionId(2);

    fn says(silent: &mut SilentReplicas, peer: u64) -> bool {
        let from = Peer { id: PeerId(peer), store: StoreId(1) };
        let to = Peer { id: PeerId(99), store: StoreId(2) };
        let (epoch, gc_floor, message) = (Epoch::default(), Index(0), Message::default());
        let said = Envelope { region: REGION, from, to, epoch, gc_floor, range: None, message };
        let effects = Effects { messages: vec![said], ..Effects::default() };
        silent.check(StoreId(1), &effects).is_ok()
    }

    #[test]
    fn a_replica_that_was_to_end_is_silent_for_good_and_a_later_one_is_not() {
        let mut silent = SilentReplicas::default();
        assert!(says(&mut silent, 5));
        let ends = vec![EndTask { region: REGION, peer: PeerId(5) }];
        let effects = Effects { ends, ..Effects::default() };
        silent.check(StoreId(1), &effects).unwrap();
        silent.hear(&[Event::Ended { region: REGION, peer: PeerId(5) }]);
        assert!(!says(&mut silent, 5) && !says(&mut silent, 4) && says(&mut silent, 6));
    }

    #[test]
    fn a_replica_that_installs_is_silent_until_its_log_is_emptied() {
        let mut silent = SilentReplicas::default();
        silent.installing.insert(REGION, Installing { peer: PeerId(5), reset: None });
        assert!(!says(&mut silent, 5) && says(&mut silent, 6));
        silent.hear(&[Event::Persisted { region: REGION, number: 7 }]);
        assert!(!says(&mut silent, 5), "an earlier write");
        let mut effects = Effects::default();
        effects.log.writes.push(LogWrite {
            region: REGION,
            peer: PeerId(5),
            number: 8,
            hard_state: None,
            entries: vec![],
            sync: true,
            reset: Some(LogReset { index: Index(9), term: Term(2) }),
        });
        silent.check(StoreId(1), &effects).unwrap();
        assert!(!says(&mut silent, 5), "it is not synced");
        silent.hear(&[Event::Persisted { region: REGION, number: 8 }]);
        assert!(says(&mut silent, 5));
    }
}
