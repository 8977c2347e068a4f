//! Changes of a region's replicas, and repair: finds the store that leads placement, asks that one,
//! and follows what comes of it.

use std::collections::BTreeSet;
use std::io::Write;
use std::time::{Duration, Instant};

use flotilla_proto::metapb;
use flotilla_proto::peers::{
    ChangeReplicasRequest, ChangeReplicasResponse, ChangeState, KnownStore, RegionStatus,
    RepairStatusResponse, SetRepairRequest, SetRepairResponse,
};
use serde_json::{Value, json};

use super::placement::{self, Answered, LOOK};
use super::text::ByteFormat;
use super::transfer::{find, store_id};
use super::views;
use crate::tool::{self, ClusterTarget, Error};

/// The stores that a region should be brought to.
#[derive(Clone, Debug, Default)]
pub(super) struct ReplicaChange {
    /// Names or numbers of those that get a replica.
    pub(super) added: Vec<String>,
    /// Names or numbers of those whose replica goes.
    pub(super) removed: Vec<String>,
    /// How long it is waited for.
    pub(super) wait_seconds: u64,
}

#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum RepairCommand {
    /// Says whether repair is paused, and which regions are being changed: `flotilla ctl repair
    /// show`
    Show,
    /// Has placement move no replicas by itself, until it is resumed: `flotilla ctl repair pause`
    ///
    /// Regions keep the replicas that they have, also if a store dies. Changes by hand may then
    /// give a region another number of replicas than the cluster's: `flotilla ctl region add`.
    Pause,
    /// Has placement bring regions to their number of replicas again: `flotilla ctl repair resume`
    Resume,
}

/// Brings a region to other stores, and waits until it is there.
pub(super) async fn change(
    target: &ClusterTarget,
    id: u64,
    change: &ReplicaChange,
    format: ByteFormat,
    out: &mut impl Write,
) -> Result<(), Error> {
    let stores = target.stores().await?;
    let numbers = |names: &[String]| {
        names
            .iter()
            .map(|name| Ok(store_id(find(&stores, name)?)))
            .collect::<Result<Vec<_>, Error>>()
    };
    let (added, removed) = (numbers(&change.added)?, numbers(&change.removed)?);
    let until = target.end_of_wait(Duration::from_secs(change.wait_seconds));
    let mut progress = Progress::default();
    loop {
        let now = region(target, id).await?;
        if progress.is_begun && is_reached(&now, &added, &removed) {
            return done(&stores, &now, format, out);
        }
        let answered = begin(target, &stores, id, (&added, &removed), until).await?;
        let begun = &answered.answer;
        if begun.is_passing && Instant::now() < until {
            progress.tell(id, begun.refusal.clone());
            tokio::time::sleep(LOOK).await;
            continue;
        }
        // Asked for before, at a leader of placement that is none any more.
        if !begun.is_begun {
            return Err(answered.refused(&format!("region {id}: {}", begun.refusal)));
        }
        progress.is_begun = true;
        if follow(target, &stores, id, until, &mut progress).await? {
            let now = region(target, id).await?;
            return done(&stores, &now, format, out);
        }
    }
}

/// The part of a change that was told.
#[derive(Default)]
struct Progress {
    is_begun: bool,
    told: String,
}

impl Progress {
    /// One line on standard error for each thing that is new.
    fn tell(&mut self, id: u64, words: String) {
        if words != self.told {
            tool::tell(format_args!("region {id}: {words}"));
            self.told = words;
        }
    }
}

/// Asks the leader of placement to begin.
async fn begin(
    target: &ClusterTarget,
    stores: &[KnownStore],
    region_id: u64,
    (added, removed): (&[u64], &[u64]),
    until: Instant,
) -> Result<Answered<ChangeReplicasResponse>, Error> {
    let request = ChangeReplicasRequest {
        region_id,
        add_stores: added.to_vec(),
        remove_stores: removed.to_vec(),
    };
    placement::ask(target, stores, until, async |operator| {
        let response = operator.change_replicas(request.clone()).await?;
        Ok((!response.is_led_elsewhere).then_some(response))
    })
    .await
}

/// Waits for the end of a change. False if the leader of placement does not know it: there is
/// another one, and it has to be asked for again.
async fn follow(
    target: &ClusterTarget,
    stores: &[KnownStore],
    id: u64,
    until: Instant,
    progress: &mut Progress,
) -> Result<bool, Error> {
    loop {
        let answered = status(target, stores, id, until).await?;
        let status = &answered.answer;
        match status.state() {
            ChangeState::ChangeDone => return Ok(true),
            ChangeState::ChangeUnknown => return Ok(false),
            ChangeState::ChangeFailed => {
                return Err(answered.refused(&format!("region {id}: {}", status.note)));
            }
            ChangeState::ChangeUnderWay => {}
        }
        let now = region(target, id).await?;
        let held = format!("on {}", held_by(stores, &now.peers));
        let note =
            if status.note.is_empty() { String::new() } else { format!(" ({})", status.note) };
        progress.tell(id, format!("{held}{note}"));
        if Instant::now() >= until {
            return Err(Error::Refused(format!(
                "region {id} is not there yet: {held}{note}; the change goes on"
            )));
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn status(
    target: &ClusterTarget,
    stores: &[KnownStore],
    id: u64,
    until: Instant,
) -> Result<Answered<RepairStatusResponse>, Error> {
    placement::ask(target, stores, until, async |operator| {
        let response = operator.repair_status(id).await?;
        Ok((!response.is_led_elsewhere).then_some(response))
    })
    .await
}

/// The region, as the replica that knows best has it.
async fn region(target: &ClusterTarget, id: u64) -> Result<metapb::Region, Error> {
    let wanted = |status: &RegionStatus| status.region.as_ref().is_some_and(|it| it.id == id);
    let found = views::gather_regions(target, wanted).await?;
    let best = found.get(&id).and_then(|summary| summary.best()?.region.clone());
    best.ok_or_else(|| Error::Absent(format!("there is no region {id}")))
}

fn is_reached(region: &metapb::Region, added: &[u64], removed: &[u64]) -> bool {
    let voters: BTreeSet<u64> =
        region.peers.iter().filter(|at| is_voter(at)).map(|at| at.store_id).collect();
    let held: BTreeSet<u64> = region.peers.iter().map(|at| at.store_id).collect();
    added.iter().all(|store| voters.contains(store))
        && removed.iter().all(|store| !held.contains(store))
}

fn is_voter(peer: &metapb::Peer) -> bool {
    peer.role() == metapb::PeerRole::Voter
}

/// The stores of a region by name, with the role where it is another than a voter's.
fn held_by(stores: &[KnownStore], peers: &[metapb::Peer]) -> String {
    let names = peers.iter().map(|peer| {
        let store = stores.iter().find(|store| store_id(store) == peer.store_id);
        let name = store.map_or_else(|| peer.store_id.to_string(), |store| store.name.clone());
        format!("{name}{}", views::role_mark(peer))
    });
    names.collect::<Vec<_>>().join(" ")
}

fn done(
    stores: &[KnownStore],
    region: &metapb::Region,
    format: ByteFormat,
    out: &mut impl Write,
) -> Result<(), Error> {
    if format.is_json {
        let peers: Value = region.peers.iter().map(views::peer_to_json).collect();
        return Ok(writeln!(out, "{:#}", json!({ "region": region.id, "peers": peers }))?);
    }
    Ok(writeln!(out, "region {} is on {}", region.id, held_by(stores, &region.peers))?)
}

/// Shows, pauses or resumes repair.
pub(super) async fn repair(
    target: &ClusterTarget,
    command: &RepairCommand,
    format: ByteFormat,
    out: &mut impl Write,
) -> Result<(), Error> {
    match command {
        RepairCommand::Show => {
            let stores = target.stores().await?;
            let until = target.end_of_request();
            show(&status(target, &stores, 0, until).await?.answer, format, out)
        }
        RepairCommand::Pause => {
            set(target, SetRepairRequest { is_paused: Some(true), replicas: 0 }, format, out).await
        }
        RepairCommand::Resume => {
            set(target, SetRepairRequest { is_paused: Some(false), replicas: 0 }, format, out).await
        }
    }
}

/// Sets the number of replicas of each region.
pub(super) async fn set_replicas(
    target: &ClusterTarget,
    replicas: u32,
    format: ByteFormat,
    out: &mut impl Write,
) -> Result<(), Error> {
    set(target, SetRepairRequest { is_paused: None, replicas }, format, out).await
}

async fn set(
    target: &ClusterTarget,
    request: SetRepairRequest,
    format: ByteFormat,
    out: &mut impl Write,
) -> Result<(), Error> {
    let stores = target.stores().await?;
    let until = target.end_of_request();
    let response = placement::ask(target, &stores, until, async |operator| {
        let response = operator.set_repair(request).await?;
        Ok((!response.is_led_elsewhere).then_some(response))
    });
    let answered = response.await?;
    let SetRepairResponse { refusal, is_paused, replicas, .. } = &answered.answer;
    if !refusal.is_empty() {
        return Err(answered.refused(refusal));
    }
    let (is_paused, replicas) = (*is_paused, *replicas);
    let status = RepairStatusResponse { is_paused, replicas, ..Default::default() };
    if format.is_json {
        return show(&status, format, out);
    }
    Ok(writeln!(out, "{}", words(&status))?)
}

fn show(
    status: &RepairStatusResponse,
    format: ByteFormat,
    out: &mut impl Write,
) -> Result<(), Error> {
    if format.is_json {
        let under_way = status.under_way.iter();
        let under_way: Value =
            under_way.map(|it| json!({ "region": it.region_id, "reason": it.reason })).collect();
        let answer = json!({
            "paused": status.is_paused,
            "replicas": status.replicas,
            "under_way": under_way,
        });
        return Ok(writeln!(out, "{answer:#}")?);
    }
    writeln!(out, "{}", words(status))?;
    for region in &status.under_way {
        writeln!(out, "region {}: {}", region.region_id, region.reason)?;
    }
    Ok(())
}

fn words(status: &RepairStatusResponse) -> String {
    let state = if status.is_paused { "is paused" } else { "goes on" };
    format!(
        "repair {state}; regions should have {} replicas, as far as there are stores",
        status.replicas
    )
}

#[cfg(test)]
mod tests {
    use flotilla_proto::peers::RegionRepair;

    use super::*;

    fn region(peers: &[(u64, metapb::PeerRole)]) -> metapb::Region {
        let peers = peers.iter().map(|(store_id, role)| metapb::Peer {
            id: 200 + store_id,
            store_id: *store_id,
            role: (*role).into(),
            ..Default::default()
        });
        metapb::Region { id: 2, peers: peers.collect(), ..Default::default() }
    }

    #[test]
    fn a_change_is_reached_when_the_new_vote_and_the_old_are_gone() {
        use metapb::PeerRole::{DemotingVoter, IncomingVoter, Learner, Voter};
        for (peers, reached) in [
            (vec![(2, Voter), (3, Voter), (4, Voter)], true),
            (vec![(2, Voter), (3, Voter), (4, Learner)], false),
            (vec![(1, Learner), (2, Voter), (3, Voter), (4, Voter)], false),
            (vec![(1, DemotingVoter), (2, Voter), (3, Voter), (4, IncomingVoter)], false),
        ] {
            assert_eq!(is_reached(&region(&peers), &[4], &[1]), reached, "{peers:?}");
        }
    }

    #[test]
    fn the_end_names_the_stores_and_their_roles() {
        let store = |id: u64| KnownStore {
            name: format!("s{id}"),
            store: Some(metapb::Store { id, ..Default::default() }),
            ..Default::default()
        };
        let stores = [store(1), store(2)];
        let region = region(&[(1, metapb::PeerRole::Voter), (2, metapb::PeerRole::Learner)]);
        let said = |is_json| {
            let mut out = vec![];
            done(
                &stores,
                &region,
                ByteFormat { is_hex: false, is_json, screen_width: None },
                &mut out,
            )
            .unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(said(false), "region 2 is on s1 s2 (learner)\n");
        let row: Value = serde_json::from_str(&said(true)).unwrap();
        assert_eq!(row["peers"][1], json!({ "id": 202, "store": 2, "role": "learner" }));
    }

    #[test]
    fn the_state_of_repair_is_shown() {
        let under_way = vec![RegionRepair { region_id: 7, reason: "asked for".to_owned() }];
        let status =
            RepairStatusResponse { is_paused: true, replicas: 3, under_way, ..Default::default() };
        let said = |is_json| {
            let mut out = vec![];
            show(&status, ByteFormat { is_hex: false, is_json, screen_width: None }, &mut out)
                .unwrap();
            String::from_utf8(out).unwrap()
        };
        assert!(said(false).starts_with("repair is paused; regions should have 3 replicas"));
        assert!(said(false).ends_with("region 7: asked for\n"));
        let row: Value = serde_json::from_str(&said(true)).unwrap();
        assert_eq!((&row["paused"], &row["replicas"]), (&json!(true), &json!(3)));
        assert_eq!(row["under_way"][0]["region"], 7);
    }
}
