//! Rows that only one store had, and that a bit of its disk has cost.

use flotilla_region::{Descriptor, Role};

use super::SimWorld;
use crate::layout;
use crate::node::SimNode;

impl SimWorld {
    /// Whether a region has lost rows for good, or for so long that the run is over: a damaged
    /// replica was its only voter; or it leads, and each other voter lacks entries that its log has
    /// no more, so that none can take over.
    pub(crate) fn has_lost_rows(&self) -> bool {
        let has_lost = |node: &SimNode| node.coverage().driver.disks.lost > 0;
        self.nodes.iter().any(has_lost)
            || self.reference_model.descriptors().any(|region| self.is_stuck(region))
    }

    fn is_stuck(&self, region: &Descriptor) -> bool {
        let status = |store| self.nodes[layout::place(store)].status(region.id);
        region.peers.iter().any(|peer| {
            let leader = status(peer.store).filter(|status| status.role == Role::Leader);
            let others = region.peers.iter().filter(|it| it.votes() && it.id != peer.id);
            leader.is_some_and(|leader| {
                self.nodes[layout::place(peer.store)].is_damaged(region.id)
                    && others
                        .filter_map(|it| status(it.store))
                        .all(|it| it.last.0 + 1 < leader.first.0)
            })
        })
    }
}
