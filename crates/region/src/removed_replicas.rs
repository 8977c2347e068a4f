//! The removed replicas whose ends a leader has to confirm: when it asks which store.
//!
//! A leader asks at once, then after 1, 2, 4 .. 60 seconds. The end of one that is confirmed is an
//! entry of its own; a leader proposes it again if it was asked about and confirmed again.

use crate::descriptor::Peer;
use crate::ids::{Index, PeerId, Time};

/// From the first question to the second.
const WAIT_MS_MIN: u64 = 1000;
/// The longest wait.
const WAIT_MS_MAX: u64 = 60_000;

/// A leader's questions. As many as the region lists removed replicas, which is bounded.
#[derive(Default)]
pub(crate) struct RemovedReplicas {
    asked: Vec<AskedEnd>,
}

struct AskedEnd {
    peer: PeerId,
    next: Time,
    wait_ms: u64,
    /// The entry that takes it from the list, if one was proposed.
    forgotten: Option<Index>,
}

impl RemovedReplicas {
    /// Another leader, or none.
    pub(crate) fn restart(&mut self) {
        self.asked.clear();
    }

    /// The replicas whose stores are to be asked now, of those that are listed.
    pub(crate) fn due(&mut self, now: Time, unconfirmed: &[Peer]) -> Vec<Peer> {
        self.asked.retain(|asked| unconfirmed.iter().any(|peer| peer.id == asked.peer));
        let mut due = vec![];
        for removed in unconfirmed {
            let asked = self.asked_end(removed.id, now);
            if now >= asked.next {
                asked.next = now.after_ms(asked.wait_ms);
                asked.wait_ms = (2 * asked.wait_ms).min(WAIT_MS_MAX);
                due.push(*removed);
            }
        }
        due
    }

    /// Whether an entry that forgets a replica is to be proposed: none waits to be applied.
    pub(crate) fn wants_entry(&mut self, peer: PeerId, applied: Index, now: Time) -> bool {
        self.asked_end(peer, now).forgotten.is_none_or(|index| index <= applied)
    }

    /// It was proposed.
    pub(crate) fn note_entry(&mut self, peer: PeerId, index: Index, now: Time) {
        self.asked_end(peer, now).forgotten = Some(index);
    }

    fn asked_end(&mut self, peer: PeerId, now: Time) -> &mut AskedEnd {
        let known = self.asked.iter().position(|asked| asked.peer == peer);
        let at = known.unwrap_or_else(|| {
            let new = AskedEnd { peer, next: now, wait_ms: WAIT_MS_MIN, forgotten: None };
            self.asked.push(new);
            self.asked.len() - 1
        });
        &mut self.asked[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::StoreId;

    const REMOVED: [Peer; 1] = [Peer { id: PeerId(4), store: StoreId(4) }];

    #[test]
    fn a_store_is_asked_at_once_and_then_ever_more_rarely() {
        let mut removed = RemovedReplicas::default();
        let mut now = Time(7);
        for wait_ms in [1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000] {
            assert_eq!(removed.due(now, &REMOVED), REMOVED);
            assert_eq!(removed.due(now.after_ms(wait_ms - 1), &REMOVED), []);
            now = now.after_ms(wait_ms);
        }
        assert_eq!(removed.due(now, &[]), [], "it is forgotten");
        assert_eq!(removed.due(now, &REMOVED), REMOVED, "and would begin anew");
        removed.restart();
        assert_eq!(removed.due(now, &REMOVED), REMOVED, "as another leader does");
    }

    #[test]
    fn one_entry_at_a_time_forgets_a_replica() {
        let mut removed = RemovedReplicas::default();
        let peer = REMOVED[0].id;
        assert!(removed.wants_entry(peer, Index(5), Time(0)));
        removed.note_entry(peer, Index(7), Time(0));
        assert!(!removed.wants_entry(peer, Index(6), Time(0)));
        assert!(removed.wants_entry(peer, Index(7), Time(0)), "it had no effect");
    }
}
