//! Views of the cluster: regions, and who leads what.
//!
//! Each store is asked about itself, and all at the same time; one that does not answer is shown
//! as that. Nothing here needs placement, so the views work while placement has no leader: then
//! they do not say which regions are being changed.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::{Duration, Instant};

use bytes::Bytes;
use flotilla_client::Client;
use flotilla_proto::metapb;
use flotilla_proto::peers::{KnownStore, RegionRepair, RegionStatus, Role, Space};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::placement;
use super::text::{ByteFormat, escape, hex};
use crate::diagnosis::reason;
use crate::tool::{ClusterTarget, Error, TableCell, number, table, tell};
use crate::units;

/// How long the leader of placement is waited for where the rest of a view does not need it.
const PLACEMENT_PATIENCE: Duration = Duration::from_secs(2);

/// A store, and its answer or the error instead of it.
pub(super) struct StoreAnswer<A> {
    pub(super) store: KnownStore,
    pub(super) answer: Result<A, flotilla_client::Error>,
}

/// Asks each of these stores the same thing.
pub(super) async fn ask_all<A: Send + 'static, F>(
    target: &ClusterTarget,
    stores: Vec<KnownStore>,
    ask: impl Fn(flotilla_client::Observer) -> F,
) -> Result<Vec<StoreAnswer<A>>, Error>
where
    F: Future<Output = Result<A, flotilla_client::Error>> + Send + 'static,
{
    let mut asking = JoinSet::new();
    for (place, store) in stores.into_iter().enumerate() {
        let address = store.store.clone().unwrap_or_default().address;
        let answer = ask(target.observer(&address)?);
        asking.spawn(async move { (place, StoreAnswer { store, answer: answer.await }) });
    }
    let mut seen = asking.join_all().await;
    seen.sort_by_key(|(place, _)| *place);
    Ok(seen.into_iter().map(|(_, seen)| seen).collect())
}

/// Asks all stores about their regions: those of which `wanted` is true, by id.
pub(crate) async fn gather_regions(
    target: &ClusterTarget,
    wanted: impl Fn(&RegionStatus) -> bool,
) -> Result<BTreeMap<u64, RegionSummary>, Error> {
    let stores = target.stores().await?;
    let seen = ask_all(target, stores, async |observer| observer.regions().await).await?;
    let mut regions = BTreeMap::<u64, RegionSummary>::new();
    for StoreAnswer { store, answer } in seen {
        match answer {
            Ok(replicas) => {
                let id = store.store.unwrap_or_default().id;
                for replica in replicas.into_iter().filter(&wanted) {
                    let region = replica.region.as_ref().map_or(0, |region| region.id);
                    regions.entry(region).or_default().replicas.push((id, replica));
                }
            }
            // Half a picture should not look like a whole one.
            Err(error) => {
                let (name, address) = (store.name, store.store.unwrap_or_default().address);
                let reason = reason(&error);
                tell(format_args!("flotilla: no answer from {name} at {address}: {reason}"));
            }
        }
    }
    Ok(regions)
}

/// Notes which of the regions are being changed, and why, as the leader of placement says.
pub(crate) async fn note_work(
    target: &ClusterTarget,
    regions: &mut BTreeMap<u64, RegionSummary>,
) -> Result<(), Error> {
    let stores = target.stores().await?;
    let asked = placement::ask(target, &stores, Instant::now(), async |operator| {
        let response = operator.repair_status(0).await?;
        Ok((!response.is_led_elsewhere).then_some(response))
    });
    match tokio::time::timeout(PLACEMENT_PATIENCE, asked).await {
        Ok(Ok(status)) => {
            for RegionRepair { region_id, reason } in status.answer.under_way {
                if let Some(region) = regions.get_mut(&region_id) {
                    region.work = Some(reason);
                }
            }
        }
        Ok(Err(error)) => {
            tell(format_args!("flotilla: it is not known what is being changed: {error}"));
        }
        Err(_) => tell("flotilla: it is not known what is being changed: no answer"),
    }
    Ok(())
}

pub(crate) async fn regions(
    target: &ClusterTarget,
    format: ByteFormat,
    out: &mut impl Write,
) -> Result<(), Error> {
    let mut regions = gather_regions(target, |_| true).await?;
    note_work(target, &mut regions).await?;
    if format.is_json {
        let regions = regions.values().filter_map(RegionSummary::to_json).collect();
        return Ok(writeln!(out, "{:#}", Value::Array(regions))?);
    }
    write_regions(regions.values(), format, out)
}

/// A table with a line for each region.
pub(crate) fn write_regions<'a>(
    regions: impl Iterator<Item = &'a RegionSummary>,
    format: ByteFormat,
    out: &mut impl Write,
) -> Result<(), Error> {
    let mut headings = vec![
        "id",
        "space",
        "start",
        "end",
        "epoch",
        "stores",
        "leader",
        "term",
        "committed",
        "applied",
        "log",
        "size",
    ];
    let regions: Vec<_> = regions.collect();
    // A column that is empty mostly.
    let has_work = regions.iter().any(|region| region.work.is_some());
    headings.extend(has_work.then_some("work"));
    let mut table = table(&headings);
    for region in regions {
        let Some(mut row) = region.to_row(format) else { continue };
        if has_work {
            row.push(TableCell::new(region.work.as_deref().unwrap_or_default()));
        }
        table.add_row(row);
    }
    Ok(writeln!(out, "{}", table.fitted(format.screen_width))?)
}

/// The answers of the stores about one region.
#[derive(Default)]
pub(crate) struct RegionSummary {
    replicas: Vec<(u64, RegionStatus)>,
    /// Why its replicas are being changed, if they are.
    work: Option<String>,
}

impl RegionSummary {
    /// The replica that knows best: the leader of the highest term, or else a replica that has
    /// heard of that term.
    pub(crate) fn best(&self) -> Option<&RegionStatus> {
        let replicas = self.replicas.iter().map(|(_, status)| status);
        replicas.max_by_key(|status| (status.term, status.role() == Role::Leader, status.applied))
    }

    /// The replicas as their stores describe them, each with the store.
    pub(crate) fn replicas(&self) -> &[(u64, RegionStatus)] {
        &self.replicas
    }

    /// Where the slowest and the fastest replica that answers is.
    fn applied(&self) -> (u64, u64) {
        let applied = self.replicas.iter().map(|(_, status)| status.applied);
        (applied.clone().min().unwrap_or(0), applied.max().unwrap_or(0))
    }

    fn to_row(&self, format: ByteFormat) -> Option<Vec<TableCell>> {
        let best = self.best()?;
        let region = best.region.as_ref()?;
        let epoch = region.region_epoch.unwrap_or_default();
        let named = |peer: &metapb::Peer| format!("{}{}", peer.store_id, role_mark(peer));
        let stores: Vec<_> = region.peers.iter().map(named).collect();
        let leader =
            leader(best).map_or("none".to_owned(), |leader| format!("store {}", leader.store_id));
        let applied = match self.applied() {
            (slowest, fastest) if slowest == fastest => fastest.to_string(),
            (slowest, fastest) => format!("{slowest}..{fastest}"),
        };
        Some(vec![
            number(region.id),
            TableCell::new(space(best)),
            TableCell::new(bound(&region.start_key, format)),
            TableCell::new(bound(&region.end_key, format)),
            TableCell::new(format!("{}.{}", epoch.version, epoch.conf_ver)),
            TableCell::new(stores.join(" ")),
            TableCell::new(leader),
            number(best.term),
            number(best.committed),
            TableCell::new(applied),
            TableCell::new(format!("{}..{}", best.log_first, best.log_last)),
            number(best.bytes.map_or_else(|| "?".to_owned(), units::bytes)),
        ])
    }

    pub(crate) fn to_json(&self) -> Option<Value> {
        let best = self.best()?;
        let region = best.region.as_ref()?;
        let epoch = region.region_epoch.unwrap_or_default();
        let replicas = self.replicas.iter().map(|(store, status)| {
            json!({
                "store": store,
                "role": role(status),
                "term": status.term,
                "committed": status.committed,
                "applied": status.applied,
                "log_first": status.log_first,
                "log_last": status.log_last,
            })
        });
        let peers = region.peers.iter().map(peer_to_json);
        Some(json!({
            "id": region.id,
            "space": space(best),
            "start": escape(&region.start_key),
            "start_hex": hex(&region.start_key),
            "end": escape(&region.end_key),
            "end_hex": hex(&region.end_key),
            "version": epoch.version,
            "conf_version": epoch.conf_ver,
            "term": best.term,
            "leader_store": leader(best).map(|leader| leader.store_id),
            "bytes": best.bytes,
            "keys": best.keys,
            "work": self.work,
            "peers": peers.collect::<Value>(),
            "replicas": replicas.collect::<Value>(),
        }))
    }
}

fn leader(status: &RegionStatus) -> Option<&metapb::Peer> {
    status.leader.as_ref().filter(|leader| leader.id != 0)
}

/// A replica as its region lists it.
pub(crate) fn peer_to_json(peer: &metapb::Peer) -> Value {
    json!({ "id": peer.id, "store": peer.store_id, "role": peer_role(peer) })
}

/// The part of a replica in its region's decisions, behind its store: nothing for a voter.
pub(crate) fn role_mark(peer: &metapb::Peer) -> String {
    match peer.role() {
        metapb::PeerRole::Voter => String::new(),
        _ => format!(" ({})", peer_role(peer)),
    }
}

fn peer_role(peer: &metapb::Peer) -> &'static str {
    match peer.role() {
        metapb::PeerRole::Voter => "voter",
        metapb::PeerRole::Learner => "learner",
        metapb::PeerRole::IncomingVoter => "incoming",
        metapb::PeerRole::DemotingVoter => "outgoing",
    }
}

fn space(status: &RegionStatus) -> &'static str {
    match status.space() {
        Space::Raw => "raw",
        Space::System => "system",
    }
}

fn role(status: &RegionStatus) -> &'static str {
    match status.role() {
        Role::Follower => "follower",
        Role::Candidate => "candidate",
        Role::PreCandidate => "pre-candidate",
        Role::Leader => "leader",
    }
}

/// Both the first key and the missing end are empty; neither is worth a word in a table. Others
/// are quoted, for a key may end in spaces.
pub(crate) fn bound(key: &[u8], format: ByteFormat) -> String {
    if key.is_empty() { "-".to_owned() } else { format.quote(key) }
}

pub(crate) async fn leader_of(
    client: &Client,
    key: &Bytes,
    format: ByteFormat,
    out: &mut impl Write,
) -> Result<(), Error> {
    let found = client.region_of(key.clone()).await?;
    let region = &found.region;
    let Some(leader) = found.leader.filter(|leader| leader.id != 0) else {
        let id = region.id;
        return Err(Error::Absent(format!("region {id} has no leader that placement knows")));
    };
    let stores = client.stores().await?;
    let store = stores.iter().find(|store| store.id == leader.store_id);
    let address = store.map_or("an unknown address", |store| store.address.as_str());
    if format.is_json {
        let answer = json!({
            "key": escape(key),
            "key_hex": hex(key),
            "region": region.id,
            "start_hex": hex(&region.start_key),
            "end_hex": hex(&region.end_key),
            "leader_store": leader.store_id,
            "leader_peer": leader.id,
            "address": address,
        });
        return Ok(writeln!(out, "{answer:#}")?);
    }
    let store = leader.store_id;
    Ok(writeln!(out, "region {} led by store {store} at {address}", region.id)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(store: u64, term: u64, role: Role, applied: u64) -> (u64, RegionStatus) {
        let peers = (1..=3).map(|id| metapb::Peer { id, store_id: id, ..Default::default() });
        let region = metapb::Region { id: 2, peers: peers.collect(), ..Default::default() };
        let leader = (role == Role::Leader).then(|| region.peers[store as usize - 1]);
        let status = RegionStatus {
            region: Some(region),
            role: role.into(),
            leader,
            term,
            applied,
            ..Default::default()
        };
        (store, status)
    }

    #[test]
    fn an_old_leader_does_not_speak_for_its_region() {
        let region = RegionSummary {
            replicas: vec![
                replica(1, 5, Role::Leader, 90),
                replica(2, 6, Role::Follower, 95),
                replica(3, 6, Role::Leader, 97),
            ],
            ..Default::default()
        };
        let row = region.to_json().unwrap();
        assert_eq!(row["leader_store"], 3);
        assert_eq!(row["term"], 6);
        assert_eq!(row["replicas"][0]["role"], "leader");
        assert_eq!(region.applied(), (90, 97));
    }

    #[test]
    fn a_region_without_leader_has_none() {
        let replicas = vec![replica(2, 6, Role::Candidate, 95)];
        let region = RegionSummary { replicas, ..Default::default() };
        assert_eq!(region.to_json().unwrap()["leader_store"], Value::Null);
        assert_eq!(region.to_json().unwrap()["bytes"], Value::Null);
    }

    #[test]
    fn the_size_is_the_leaders_and_the_work_has_a_column_if_there_is_some() {
        let mut leader = replica(1, 6, Role::Leader, 95);
        (leader.1.bytes, leader.1.keys) = (Some(20 << 20), Some(7));
        let replicas = vec![leader, replica(2, 6, Role::Follower, 95)];
        let mut region = RegionSummary { replicas, ..Default::default() };
        let format = ByteFormat { is_hex: false, is_json: false, screen_width: None };
        let said = |region: &RegionSummary| {
            let mut out = vec![];
            write_regions([region].into_iter(), format, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert!(said(&region).contains("20.0 MiB") && !said(&region).contains("work"));
        region.work = Some("replicas are missing".to_owned());
        assert!(said(&region).contains("work") && said(&region).contains("replicas are missing"));
        let row = region.to_json().unwrap();
        assert_eq!((&row["bytes"], &row["keys"]), (&json!(20 << 20), &json!(7)));
        assert_eq!(row["work"], "replicas are missing");
    }
}
