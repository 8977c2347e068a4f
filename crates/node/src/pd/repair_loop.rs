//! Looks at all regions now and then, during a term of placement, and has their replicas changed.

use std::sync::{Arc, Weak};
use std::time::Duration;

use flotilla_identity::SYSTEM_REGION;
use flotilla_placement::{MembershipStep, RepairReason, ReplicaStep};
use flotilla_proto::metapb;
use flotilla_proto::peers::{self, LeaveJoint, VoteChange, replica_step};

use super::convert;
use super::leader::PdLeader;

/// Between two looks at all regions.
const LOOK: Duration = Duration::from_millis(500);

/// Runs as long as the term.
pub(super) async fn run(pd_leader: Weak<PdLeader>) {
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        let Some(pd_leader) = pd_leader.upgrade() else { return };
        look(&pd_leader).await;
        pd_leader.remove_emptied().await;
        pd_leader.roll_out_settings().await;
    }
}

async fn look(pd_leader: &Arc<PdLeader>) {
    let repair = pd_leader.repair();
    // The leader of the system region has it here: no report is needed.
    let system = pd_leader.router().descriptor(SYSTEM_REGION);
    let here = pd_leader.router().identity().store.0;
    let now_ms = pd_leader.now_ms();
    let steps = pd_leader.change_view(|view| {
        if let Some(system) = &system {
            view.note_system(convert::region_from_descriptor(system));
        }
        repair.look(now_ms, view, here)
    });
    pd_leader.set_busy(repair.busy());
    for (ReplicaStep { region, from_store, conf_version, step }, reason) in steps {
        // The store that carries it out says so in its log.
        tracing::debug!(region, store = from_store, ?step, "replicas are to be changed");
        let step = match step {
            MembershipStep::Add { store } => {
                // Above all that were given before, so above the peer floor of the region. It is
                // lost if the step comes to nothing.
                let Ok(id) = pd_leader.ids(1).await else { continue };
                replica_step::Step::Add(peer(id, store))
            }
            MembershipStep::Vote { promoted, demoted } => {
                replica_step::Step::Vote(VoteChange { promoted, demoted })
            }
            MembershipStep::LeaveJoint => replica_step::Step::LeaveJoint(LeaveJoint {}),
            MembershipStep::Remove { replica } => replica_step::Step::Remove(replica),
            MembershipStep::TransferLeader { to } => {
                replica_step::Step::Transfer(peer(to.id, to.store))
            }
        };
        let (step, cause) = (Some(step), reason.map_or("", RepairReason::words).to_owned());
        let step = peers::ReplicaStep { region_id: region, conf_version, step, cause };
        repair.wait(pd_leader.now_ms(), from_store, step);
    }
}

fn peer(id: u64, store_id: u64) -> metapb::Peer {
    metapb::Peer { id, store_id, ..metapb::Peer::default() }
}
