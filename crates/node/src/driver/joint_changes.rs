//! Joint configurations of the regions here: a leader leaves one by itself, without a request that
//! has the cause and the duration for its line in the log.

use std::collections::BTreeMap;

use flotilla_region::{Descriptor, RegionId};
use parking_lot::Mutex;
use tokio::time::Instant;

/// The cause of a step out of a configuration that an earlier leader, or start, has entered.
const INHERITED: &str = "begun under another leader";

/// The regions that are in a joint configuration, or are about to enter one.
pub(crate) struct JointChanges {
    by_region: Mutex<BTreeMap<RegionId, JointChange>>,
}

/// One joint configuration of a region.
struct JointChange {
    /// The version of the region's replicas in it.
    conf_version: u64,
    /// The cause of the step into it, where it is known.
    cause: Option<String>,
    /// When this store entered it, if it has.
    entered: Option<Instant>,
}

/// A joint configuration that was left.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LeftJoint {
    pub(crate) cause: String,
    /// When this store had entered it.
    pub(crate) entered: Instant,
}

impl JointChanges {
    /// The joint configurations that a start finds.
    pub(crate) fn new(descriptors: &[Descriptor], now: Instant) -> Self {
        let changes = Self { by_region: Mutex::default() };
        for descriptor in descriptors {
            changes.note(descriptor, now);
        }
        changes
    }

    /// A request is about to bring a region into the joint configuration with this version, or out
    /// of it.
    pub(crate) fn expect(&self, region: RegionId, conf_version: u64, cause: &str) {
        let mut by_region = self.by_region.lock();
        let known = by_region.get_mut(&region).filter(|known| known.conf_version == conf_version);
        let cause = Some(cause.to_owned());
        match known {
            Some(known) if known.cause.is_some() => {}
            Some(known) => known.cause = cause,
            None => {
                by_region.insert(region, JointChange { conf_version, cause, entered: None });
            }
        }
    }

    /// Records that a region has this descriptor now. The joint configuration that it has left by
    /// that, if there was one.
    pub(crate) fn note(&self, descriptor: &Descriptor, now: Instant) -> Option<LeftJoint> {
        let (region, conf_version) = (descriptor.id, descriptor.epoch.conf_version);
        let mut by_region = self.by_region.lock();
        if descriptor.is_joint() {
            // A split of it keeps the version of its replicas.
            match by_region.get_mut(&region).filter(|known| known.conf_version == conf_version) {
                Some(known) => _ = known.entered.get_or_insert(now),
                None => {
                    let change = JointChange { conf_version, cause: None, entered: Some(now) };
                    by_region.insert(region, change);
                }
            }
            return None;
        }
        // One that is only expected may still come.
        if by_region.get(&region)?.conf_version >= conf_version {
            return None;
        }
        let JointChange { cause, entered, .. } = by_region.remove(&region)?;
        let cause = cause.unwrap_or_else(|| INHERITED.to_owned());
        Some(LeftJoint { cause, entered: entered? })
    }

    /// The replica of a region here ends.
    pub(crate) fn forget(&self, region: RegionId) {
        self.by_region.lock().remove(&region);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use flotilla_region::{Epoch, PeerId, PeerRole, RegionPeer, RemovedPeers, Space, StoreId};

    use super::*;

    const REGION: RegionId = RegionId(7);

    fn region(conf_version: u64, role: PeerRole) -> Descriptor {
        Descriptor {
            removed: RemovedPeers::default(),
            id: REGION,
            space: Space::Raw,
            start: "".into(),
            end: "".into(),
            epoch: Epoch { conf_version, version: 1 },
            peers: vec![RegionPeer { id: PeerId(71), store: StoreId(1), role }],
        }
    }

    fn voter(conf_version: u64) -> Descriptor {
        region(conf_version, PeerRole::Voter)
    }

    fn joint(conf_version: u64) -> Descriptor {
        region(conf_version, PeerRole::Incoming)
    }

    #[test]
    fn a_joint_configuration_is_left_once_with_the_cause_and_the_time_of_its_entry() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let changes = JointChanges::new(&[voter(3)], now);
        changes.expect(REGION, 5, "balance");
        // A learner comes before that.
        assert_eq!(changes.note(&voter(4), now), None);
        assert_eq!(changes.note(&joint(5), now + second), None);
        // A split of it, or a snapshot.
        assert_eq!(changes.note(&joint(5), now + second * 2), None);
        changes.expect(REGION, 5, "placement saw it joint");
        let left = LeftJoint { cause: "balance".to_owned(), entered: now + second };
        assert_eq!(changes.note(&voter(7), now + second * 3), Some(left));
        assert_eq!(changes.note(&voter(8), now + second * 3), None, "it is left once");
    }

    #[test]
    fn the_cause_is_told_where_it_is_known() {
        let now = Instant::now();
        let inherited = || Some(LeftJoint { cause: INHERITED.to_owned(), entered: now });
        let changes = JointChanges::new(&[joint(5)], now);
        assert_eq!(changes.note(&voter(7), now), inherited(), "found by a start");
        assert_eq!(changes.note(&joint(9), now), None);
        assert_eq!(changes.note(&voter(11), now), inherited(), "of another leader");
        // Placement has it left.
        changes.note(&joint(13), now);
        changes.expect(REGION, 13, "asked for");
        assert_eq!(changes.note(&voter(15), now).unwrap().cause, "asked for");
    }

    #[test]
    fn a_configuration_that_was_never_entered_is_not_left() {
        let now = Instant::now();
        let changes = JointChanges::new(&[voter(3)], now);
        // The request was refused, and another leader has added a learner.
        changes.expect(REGION, 5, "balance");
        assert_eq!(changes.note(&voter(6), now), None);
        changes.note(&joint(8), now);
        changes.forget(REGION);
        assert_eq!(changes.note(&voter(9), now), None, "its replica here has ended");
    }
}
