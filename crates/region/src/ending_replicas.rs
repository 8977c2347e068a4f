//! Ends of replicas that the store was asked for, and the stores that want to know.
//!
//! A store that asks for an end is answered when a durable root has it (R12). Until then the
//! region's slot takes no message: a replica that is made meanwhile could not be told from the one
//! that ends. Some ends are remembered for a while after that, for a child of a split whose replica
//! has ended before it is made here (R17).

use std::collections::{BTreeMap, VecDeque};

use crate::effects::EndTask;
use crate::ids::{PeerId, RegionId};
use crate::message::Notice;

/// Ends under way that others have asked for, and ends that are remembered: a bound on the memory
/// that others can make this store use.
const ENDS_MAX: usize = 4096;
/// Stores that are told of one end. A region has fewer.
const ASKERS_MAX: usize = 16;

#[derive(Default)]
pub(crate) struct EndingReplicas {
    ends: BTreeMap<(RegionId, PeerId), EndState>,
    /// To be handed out at the end of the step.
    unsent: Vec<EndTask>,
    /// The greatest replica of a region that has ended.
    ended: BTreeMap<RegionId, PeerId>,
    /// Those in the order of their ends.
    order: VecDeque<RegionId>,
}

#[derive(Default)]
struct EndState {
    answers: Vec<Notice>,
    /// Whether the log has the replica, so that its group goes with it.
    has_log: bool,
}

/// An end that a root has.
pub(crate) struct EndedReplica {
    /// To those that have asked.
    pub(crate) answers: Vec<Notice>,
    /// Whether the log has the replica.
    pub(crate) has_log: bool,
}

impl EndingReplicas {
    /// A replica ends that is no replica of a shard: it was never here, or its rows alone are. Asks
    /// the store once.
    pub(crate) fn begin(&mut self, region: RegionId, peer: PeerId, has_log: bool) {
        let is_new = !self.ends.contains_key(&(region, peer));
        self.ends.entry((region, peer)).or_default().has_log |= has_log;
        if is_new {
            self.unsent.push(EndTask { region, peer });
        }
    }

    /// A store asks for the end of a replica that is no replica of this shard.
    pub(crate) fn ask(&mut self, request: &Notice) {
        let Notice { region, peer, .. } = *request;
        if self.ends.contains_key(&(region, peer)) || self.ends.len() < ENDS_MAX {
            self.begin(region, peer, false);
            self.await_end(request);
        }
    }

    /// A store waits for an end that is under way.
    pub(crate) fn await_end(&mut self, request: &Notice) {
        let Notice { region, peer, from, .. } = *request;
        if !self.ends.contains_key(&(region, peer)) && self.ends.len() >= ENDS_MAX {
            return;
        }
        let answers = &mut self.ends.entry((region, peer)).or_default().answers;
        if answers.len() < ASKERS_MAX && answers.iter().all(|answer| answer.to != from) {
            answers.push(request.ended());
        }
    }

    /// Whether a replica of the region ends, so that its slot is not free.
    pub(crate) fn blocks(&self, region: RegionId) -> bool {
        let mut ends = self.ends.range((region, PeerId(0))..=(region, PeerId(u64::MAX)));
        ends.next().is_some()
    }

    /// Whether this replica, or a later one, ends or has ended here.
    pub(crate) fn covers(&self, region: RegionId, peer: PeerId) -> bool {
        let mut ends = self.ends.range((region, peer)..=(region, PeerId(u64::MAX)));
        ends.next().is_some() || self.has_ended(region, peer)
    }

    /// Whether a root has the end of this replica, or of a later one.
    pub(crate) fn has_ended(&self, region: RegionId, peer: PeerId) -> bool {
        self.ended.get(&region).is_some_and(|ended| *ended >= peer)
    }

    pub(crate) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    pub(crate) fn take_unsent(&mut self) -> impl Iterator<Item = EndTask> + use<'_> {
        self.unsent.drain(..)
    }

    /// Checks the lists against each other.
    pub(crate) fn check(&self) {
        for EndTask { region, peer } in &self.unsent {
            let is_known = self.ends.contains_key(&(*region, *peer));
            assert!(is_known, "region {region}: the end of {peer} is asked for by none");
        }
        let (ended, ordered) = (self.ended.len(), self.order.len());
        assert_eq!(ended, ordered, "ends that are remembered");
    }

    /// A root has an end.
    pub(crate) fn ended(&mut self, region: RegionId, peer: PeerId) -> EndedReplica {
        let EndState { answers, has_log } = self.ends.remove(&(region, peer)).unwrap_or_default();
        let before = self.ended.insert(region, peer);
        match before {
            Some(before) => {
                self.ended.insert(region, before.max(peer));
            }
            None => self.order.push_back(region),
        }
        if self.order.len() > ENDS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.ended.remove(&oldest);
        }
        EndedReplica { answers, has_log }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::Epoch;
    use crate::ids::StoreId;
    use crate::message::NoticeKind;

    const REGION: RegionId = RegionId(7);

    fn request(region: RegionId, peer: u64, asker: u64) -> Notice {
        let (kind, epoch) = (NoticeKind::End, Epoch { conf_version: 5, version: 1 });
        let (from, to) = (StoreId(asker), StoreId(9));
        Notice { region, from, to, kind, peer: PeerId(peer), epoch }
    }

    #[test]
    fn the_store_is_asked_once_and_all_that_asked_are_told() {
        let mut ends = EndingReplicas::default();
        for asker in [1, 2, 1] {
            ends.ask(&request(REGION, 4, asker));
        }
        let tasks: Vec<_> = ends.take_unsent().collect();
        assert_eq!(tasks, [EndTask { region: REGION, peer: PeerId(4) }]);
        assert!(ends.blocks(REGION) && !ends.blocks(RegionId(8)));
        assert!(ends.covers(REGION, PeerId(4)) && !ends.covers(REGION, PeerId(5)));
        let EndedReplica { answers, has_log } = ends.ended(REGION, PeerId(4));
        let told: Vec<_> = answers.iter().map(|answer| (answer.from.0, answer.to.0)).collect();
        assert_eq!((told, has_log), (vec![(9, 1), (9, 2)], false));
        assert!(answers.iter().all(|answer| answer.kind == NoticeKind::Ended));
        assert!(!ends.blocks(REGION) && ends.has_ended(REGION, PeerId(4)));
        ends.ended(REGION, PeerId(3));
        assert!(ends.has_ended(REGION, PeerId(4)), "an older one does not take its place");
    }

    #[test]
    fn strangers_cannot_fill_the_memory() {
        let mut ends = EndingReplicas::default();
        for region in 0..2 * ENDS_MAX as u64 {
            ends.ask(&request(RegionId(region), 4, 1));
            ends.await_end(&request(RegionId(region), 5, 1));
        }
        assert_eq!(ends.ends.len(), ENDS_MAX);
        for region in 0..2 * ENDS_MAX as u64 {
            ends.ended(RegionId(region), PeerId(4));
        }
        assert_eq!((ends.ended.len(), ends.order.len()), (ENDS_MAX, ENDS_MAX));
        for asker in 0..2 * ASKERS_MAX as u64 {
            ends.ask(&request(RegionId(1 << 40), 4, asker));
        }
        assert_eq!(ends.ended(RegionId(1 << 40), PeerId(4)).answers.len(), ASKERS_MAX);
    }
}
