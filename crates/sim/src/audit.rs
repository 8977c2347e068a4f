//! The audit at the end of a run: some time after all faults ended, the cluster must have
//! recovered, and its replicas must agree.

use bytes::Bytes;
use flotilla_kv::ColumnFamily;
use flotilla_kv::raw::RawOp;
use flotilla_region::{Descriptor, Space, Ticket};

use crate::event_queue::SimTime;
use crate::layout;
use crate::node::SimNode;
use crate::reference_model::CheckFailure;
use crate::request::{ClientRequest, RequestBody, RequestOwner, RequestState};
use crate::task::StopReason;
use crate::world::SimWorld;

/// Simulated time within which a healed cluster must do what it is asked.
const CALM_US_MAX: u64 = 60_000_000;
/// The same for the ends of removed replicas: a leader asks for them at last once a minute.
const ENDS_US_MAX: u64 = 180_000_000;
/// Events between two looks at whether it has.
const LOOK_EVERY: usize = 64;
/// From a request of the audit to the next one in its place. A store that is down refuses within a
/// microsecond, and every request is kept to the end of the run.
const ASK_AGAIN_US: SimTime = 5_000;

/// Every region must take a write again, while clients go on.
pub(crate) fn writes(world: &mut SimWorld) -> Result<(), CheckFailure> {
    let put = |region: &Descriptor| match world.workload().keys_in(region).into_iter().next() {
        Some(key) => {
            let value = [b"audit of ", &key[..]].concat().into();
            (key.clone(), RequestBody::Write(vec![RawOp::put(key, value)]))
        }
        // A region without a client's key: what is asked leaves no row.
        None => {
            let key = region.start.clone();
            (key.clone(), RequestBody::Write(vec![RawOp::Delete { key }]))
        }
    };
    let regions = world.reference_model().descriptors();
    let data = regions.filter(|region| region.space == Space::Raw);
    let asks: Vec<_> = data.map(put).collect();
    serve(world, "takes no writes", in_family(ColumnFamily::Default, asks))
}

/// Every key must be readable; what is read is checked like all else.
pub(crate) fn reads(world: &mut SimWorld) -> Result<(), CheckFailure> {
    let get = |key: &Bytes| (key.clone(), RequestBody::Get(key.clone()));
    let asks: Vec<_> = world.workload().keys().map(get).collect();
    let asks = ColumnFamily::ALL.into_iter().flat_map(|family| in_family(family, asks.clone()));
    serve(world, "serves no reads", asks.collect())
}

fn in_family(family: ColumnFamily, asks: Vec<(Bytes, RequestBody)>) -> Vec<Ask> {
    asks.into_iter()
        .map(|(key, body)| Ask { family, key, body, turn: 0, again_at: 0, ticket: None })
        .collect()
}

/// A request of the audit.
struct Ask {
    family: ColumnFamily,
    key: Bytes,
    body: RequestBody,
    /// Each counts its own turns: looks may come in step with refusals, as those of many keys do.
    turn: usize,
    /// Not asked again before.
    again_at: SimTime,
    ticket: Option<Ticket>,
}

/// All replicas reach the same index, no request waits any more, and all hold the same rows.
pub(crate) fn replicas(world: &mut SimWorld) -> Result<(), CheckFailure> {
    wait(world, ENDS_US_MAX, |world| {
        // First the requests: one that still waits may yet change a replica.
        if let Some(ticket) = world.workload().open().first() {
            let request = world.workload().request(*ticket);
            return Err(format!("ticket {ticket} is not answered: {request:?}"));
        }
        world.are_members_repaired()?;
        world.are_settings_settled()?;
        world.check_placement()?;
        world.reference_model().descriptors().try_for_each(|region| is_level(world, region))?;
        world.nodes().iter().try_for_each(|node| node.has_wanted(world.reference_model()))?;
        // Expensive, and looked at only once the rest is right.
        world.nodes().iter().try_for_each(SimNode::has_nothing_left)
    })?;
    for region in world.reference_model().descriptors() {
        let mut first = None;
        for peer in &region.peers {
            let node = &world.nodes()[layout::place(peer.store)];
            node.compare(region.id, world.reference_model()).map_err(|stop| match stop {
                StopReason::CheckFailure(what)
                | StopReason::Refused(what)
                | StopReason::Lost(what) => what,
                StopReason::Died => format!("store {} died after the faults ended", peer.store),
            })?;
            let digest = node.digest(region.id)?;
            if *first.get_or_insert(digest) != digest {
                let (store, id) = (peer.store, region.id);
                return Err(format!("region {id}: store {store} has {digest:?}, not {first:?}"));
            }
        }
    }
    world.nodes().iter().try_for_each(|node| node.check())
}

/// Asks every replica in turn until each request is served, in the region that has its key then.
fn serve(world: &mut SimWorld, complaint: &str, mut open: Vec<Ask>) -> Result<(), CheckFailure> {
    wait(world, CALM_US_MAX, |world| {
        open.retain_mut(|Ask { family, key, body, turn, again_at, ticket }| {
            let state = ticket.map(|ticket| world.workload().request(ticket).state);
            // No limit but the time: any number of refusals may come before there is a leader.
            let is_open = matches!(state, None | Some(RequestState::Refused | RequestState::Lost));
            if is_open && world.now() >= *again_at {
                *again_at = world.now() + ASK_AGAIN_US;
                let region = world.reference_model().region_of(key).clone();
                *turn += 1;
                let store = layout::place(region.peers[*turn % region.peers.len()].store);
                let request =
                    ClientRequest::new(RequestOwner::Auditor, &region, store, body.clone());
                *ticket = Some(world.send(request.in_family(*family)));
            }
            state != Some(RequestState::Served)
        });
        match open.first() {
            None => Ok(()),
            Some(Ask { key, .. }) => {
                let region = world.reference_model().region_of(key).id;
                let statuses: Vec<_> =
                    world.nodes().iter().map(|node| node.status(region)).collect();
                Err(format!("region {region} {complaint}: {statuses:?}"))
            }
        }
    })
}

/// Lets things happen until `look` is content; its last complaint if that takes too long.
fn wait(
    world: &mut SimWorld,
    us_max: u64,
    mut look: impl FnMut(&mut SimWorld) -> Result<(), CheckFailure>,
) -> Result<(), CheckFailure> {
    // Simulated time: a cluster that hangs would otherwise go on having timers for ever.
    let end = world.now() + us_max;
    while let Err(complaint) = look(world) {
        if world.now() > end {
            let seconds = us_max / 1_000_000;
            return Err(format!("{seconds} s after the faults ended: {complaint}"));
        }
        // A look at all regions costs more than an event.
        for _ in 0..LOOK_EVERY {
            world.advance()?;
        }
    }
    Ok(())
}

/// Whether all replicas have applied all that any of them has.
fn is_level(world: &SimWorld, region: &Descriptor) -> Result<(), CheckFailure> {
    let mut ends = Vec::new();
    for peer in &region.peers {
        let status = world.nodes()[layout::place(peer.store)].status(region.id);
        let status = status.ok_or_else(|| format!("region {} is not on {peer:?}", region.id))?;
        ends.extend([status.applied, status.commit, status.last]);
    }
    if ends.windows(2).all(|pair| pair[0] == pair[1]) {
        return Ok(());
    }
    Err(format!("region {}: applied, committed and last of each replica are {ends:?}", region.id))
}
