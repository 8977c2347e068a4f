//! What must be true of a cluster a while after all faults ended: it recovers, and it agrees.

use std::collections::BTreeMap;

use bytes::Bytes;
use flotilla_region::command::Op;
use flotilla_region::{Descriptor, RegionId, Ticket};

use crate::layout;
use crate::request::{Ask, Fate, Owner, Request};
use crate::task::Stop;
use crate::truth::Broken;
use crate::world::World;

/// Simulated time within which a healed cluster must do what it is asked.
const CALM_US_MAX: u64 = 30_000_000;
/// Events between two looks at whether it has.
const LOOK_EVERY: usize = 64;

/// Every region must take a write again, while clients go on.
pub(crate) fn writes(world: &mut World) -> Result<(), Broken> {
    let mut keys: BTreeMap<RegionId, Bytes> = BTreeMap::new();
    for (region, key) in world.workload().keys() {
        keys.entry(region).or_insert_with(|| key.clone());
    }
    let put = |key: Bytes| {
        let value = [b"audit of ", &key[..]].concat().into();
        Ask::Write(vec![Op::Put { key, value }])
    };
    serve(world, "takes no writes", keys.into_iter().map(|(region, key)| (region, put(key))))
}

/// Every key must be readable; what is read is checked like all else.
pub(crate) fn reads(world: &mut World) -> Result<(), Broken> {
    let get = |(region, key): (RegionId, &Bytes)| (region, Ask::Get(key.clone()));
    let asks: Vec<_> = world.workload().keys().map(get).collect();
    serve(world, "serves no reads", asks.into_iter())
}

/// All replicas come to the same index, nobody waits any more, and all hold the same.
pub(crate) fn replicas(world: &mut World) -> Result<(), Broken> {
    let regions = world.regions().to_vec();
    wait(world, |world| {
        if let Some(ticket) = world.workload().open().first() {
            let request = world.workload().request(*ticket);
            return Err(format!("ticket {ticket} is not answered: {request:?}"));
        }
        regions.iter().try_for_each(|region| is_level(world, region))
    })?;
    for region in &regions {
        let mut first = None;
        for peer in &region.peers {
            let machine = &world.machines()[layout::place(peer.store)];
            machine.compare(region.id, world.truth()).map_err(|stop| match stop {
                Stop::Broken(what) | Stop::Refused(what) => what,
                Stop::Died => format!("store {} died in the calm", peer.store),
            })?;
            let digest = machine.digest(region.id)?;
            if *first.get_or_insert(digest) != digest {
                let (store, id) = (peer.store, region.id);
                return Err(format!("region {id}: store {store} has {digest:?}, not {first:?}"));
            }
        }
    }
    world.machines().iter().try_for_each(|machine| machine.check())
}

/// Asks every replica in turn until each request is served.
fn serve(
    world: &mut World,
    complaint: &str,
    asks: impl Iterator<Item = (RegionId, Ask)>,
) -> Result<(), Broken> {
    let regions = world.regions().to_vec();
    // Each counts its own turns: looks may come in step with refusals, as those of many keys do.
    let mut open: Vec<(RegionId, Ask, usize, Option<Ticket>)> =
        asks.map(|(region, ask)| (region, ask, 0, None)).collect();
    wait(world, |world| {
        open.retain_mut(|(region, ask, turn, ticket)| {
            let fate = ticket.map(|ticket| world.workload().request(ticket).fate);
            if matches!(fate, None | Some(Fate::Refused | Fate::Lost)) {
                let peers = &peers_of(&regions, *region).peers;
                *turn += 1;
                let store = layout::place(peers[*turn % peers.len()].store);
                let request = Request::new(Owner::Auditor, *region, store, ask.clone());
                *ticket = Some(world.send(request));
            }
            fate != Some(Fate::Served)
        });
        match open.first() {
            None => Ok(()),
            Some((region, ..)) => {
                let statuses: Vec<_> =
                    world.machines().iter().map(|machine| machine.status(*region)).collect();
                Err(format!("region {region} {complaint}: {statuses:?}"))
            }
        }
    })
}

/// Lets things happen until `look` is content; its last complaint if that takes too long.
fn wait(
    world: &mut World,
    mut look: impl FnMut(&mut World) -> Result<(), Broken>,
) -> Result<(), Broken> {
    let end = world.now() + CALM_US_MAX;
    while let Err(complaint) = look(world) {
        if world.now() > end {
            let seconds = CALM_US_MAX / 1_000_000;
            return Err(format!("{seconds} s after the faults ended: {complaint}"));
        }
        for _ in 0..LOOK_EVERY {
            world.advance()?;
        }
    }
    Ok(())
}

/// Whether all replicas have applied all that any of them has.
fn is_level(world: &World, region: &Descriptor) -> Result<(), Broken> {
    let mut ends = Vec::new();
    for peer in &region.peers {
        let status = world.machines()[layout::place(peer.store)].status(region.id);
        let status = status.ok_or_else(|| format!("region {} is not on {peer:?}", region.id))?;
        ends.extend([status.applied, status.commit, status.last]);
    }
    if ends.windows(2).all(|pair| pair[0] == pair[1]) {
        return Ok(());
    }
    Err(format!("region {}: applied, committed and last of each replica are {ends:?}", region.id))
}

fn peers_of(regions: &[Descriptor], id: RegionId) -> &Descriptor {
    regions.iter().find(|region| region.id == id).expect("clients ask for regions that are")
}
