//! Views of the cluster: regions, stores, who leads what.
//!
//! Each store is asked about itself, and all at the same time; one that does not answer is shown
//! as that. Nothing here needs placement, so the views work while placement has no leader.

use std::collections::BTreeMap;
use std::io::Write;

use bytes::Bytes;
use comfy_table::Cell;
use flotilla_client::Client;
use flotilla_identity::StoreUuid;
use flotilla_proto::metapb;
use flotilla_proto::peers::{KnownStore, RegionStatus, Role, Space, StatsResponse};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::text::{ByteFormat, escape, hex};
use crate::diagnosis::reason;
use crate::tool::{ClusterTarget, Error, metric, number, table};

/// Digits of a directory's number in a table: as many as tell a few of them apart.
const UUID_DIGITS_SHOWN: usize = 8;

/// Columns of a store's place in its table, before those of its answer.
const STORE_COLUMNS: usize = 4;

/// A store, and its answer or the error instead of it.
struct StoreAnswer<A> {
    store: KnownStore,
    answer: Result<A, flotilla_client::Error>,
}

/// Asks every store of the cluster the same thing.
async fn ask_all<A: Send + 'static, F>(
    target: &ClusterTarget,
    ask: impl Fn(flotilla_client::Observer) -> F,
) -> Result<Vec<StoreAnswer<A>>, Error>
where
    F: Future<Output = Result<A, flotilla_client::Error>> + Send + 'static,
{
    let mut asking = JoinSet::new();
    for (place, store) in target.stores().await?.into_iter().enumerate() {
        let address = store.store.clone().unwrap_or_default().address;
        let answer = ask(target.observer(&address)?);
        asking.spawn(async move { (place, StoreAnswer { store, answer: answer.await }) });
    }
    let mut seen = asking.join_all().await;
    seen.sort_by_key(|(place, _)| *place);
    Ok(seen.into_iter().map(|(_, seen)| seen).collect())
}

pub(crate) async fn stores(
    target: &ClusterTarget,
    format: ByteFormat,
    out: &mut impl Write,
) -> Result<(), Error> {
    let seen = ask_all(target, async |observer| observer.stats().await).await?;
    if format.is_json {
        let stores = seen.iter().map(store_to_json).collect();
        return Ok(writeln!(out, "{:#}", Value::Array(stores))?);
    }
    let mut headings = vec![
        "id",
        "name",
        "address",
        "directory",
        "state",
        "replicas",
        "leaders",
        "writes",
        "log syncs",
        "page file",
        "free",
        "uptime",
    ];
    // A column that is empty in most clusters.
    let has_labels = seen.iter().any(|seen| !labels(&seen.store).is_empty());
    if has_labels {
        headings.insert(STORE_COLUMNS, "labels");
    }
    let mut table = table(&headings);
    for StoreAnswer { store, answer } in &seen {
        let place = store.store.clone().unwrap_or_default();
        let mut row = vec![number(place.id), Cell::new(&store.name), Cell::new(&place.address)];
        row.push(Cell::new(uuid(store).chars().take(UUID_DIGITS_SHOWN).collect::<String>()));
        if has_labels {
            row.push(Cell::new(labels(store)));
        }
        match answer {
            Ok(stats) => {
                let count = |group, name| metric(stats, group, name).unwrap_or_default();
                let mebibytes = |name| number(format!("{} MiB", count("pages", name) >> 20));
                row.push(Cell::new(StoreHealth::of(stats).words()));
                row.extend([stats.replicas, stats.leaders].map(number));
                row.push(number(count("requests", "writes_acknowledged")));
                row.push(number(count("log", "syncs")));
                row.extend(["file_bytes", "free_bytes"].map(mebibytes));
                row.push(Cell::new(format!("{} s", stats.uptime_ms / 1000)));
            }
            Err(error) => row.push(Cell::new(format!("{} ({})", absence(error), reason(error)))),
        }
        table.add_row(row);
    }
    Ok(writeln!(out, "{table}")?)
}

/// Keys of a store for programs, with group and name of the metric.
const STORE_KEYS: [(&str, &str, &str); 4] = [
    ("writes_acknowledged", "requests", "writes_acknowledged"),
    ("reads_failed", "requests", "reads_failed"),
    ("log_syncs", "log", "syncs"),
    ("log_reads_failed", "store", "log_reads_failed"),
];

/// Keys of a store's pages that do not have the name of a metric of the group `pages`.
const PAGE_KEYS: [(&str, &str, &str); 4] = [
    ("trash_bytes", "pages", "deferred_free_bytes"),
    ("checkpoints", "store", "checkpoints"),
    ("moved_bytes", "store", "pages_moved_bytes"),
    ("reclaimed_bytes", "store", "pages_reclaimed_bytes"),
];

fn store_to_json(seen: &StoreAnswer<StatsResponse>) -> Value {
    let place = seen.store.store.clone().unwrap_or_default();
    let mut row = json!({
        "id": place.id,
        "name": seen.store.name,
        "address": place.address,
        "up": seen.answer.is_ok(),
        "uuid": uuid(&seen.store),
        "starts": seen.store.starts,
        "feature_level": seen.store.level,
        "labels": place.labels.iter().map(|it| (it.key.clone(), it.value.clone())).collect::<Value>(),
    });
    match &seen.answer {
        Ok(stats) => {
            row["state"] = StoreHealth::of(stats).word().into();
            row["replicas_without_leader"] = stats.replicas_without_leader.into();
            row["stores_connected"] = stats.stores_connected.into();
            row["stores_known"] = stats.stores_known.into();
            row["version"] = stats.version.clone().into();
            row["replicas"] = stats.replicas.into();
            row["leaders"] = stats.leaders.into();
            row["uptime_ms"] = stats.uptime_ms.into();
            row["log_lines_lost"] = stats.log_lines_lost.into();
            for (key, group, name) in STORE_KEYS {
                row[key] = metric(stats, group, name).into();
            }
            row["pages"] = pages_to_json(stats);
        }
        Err(error) => {
            row["state"] = absence(error).into();
            row["reason"] = reason(error).into();
        }
    }
    row
}

fn pages_to_json(stats: &StatsResponse) -> Value {
    let pages = stats.metrics.iter().filter(|metric| metric.group == "pages");
    let mut row: Value = pages.map(|metric| (metric.name.clone(), metric.value)).collect();
    for (key, group, name) in PAGE_KEYS {
        row[key] = metric(stats, group, name).into();
    }
    let txid = |name| metric(stats, "pages", name);
    let age =
        txid("txid").zip(txid("oldest_txid")).map(|(last, oldest)| last.saturating_sub(oldest));
    row["oldest_root_age"] = age.into();
    row
}

/// Whether the replicas of a store that answers have leaders, as far as it knows.
struct StoreHealth {
    replicas: u64,
    without_leader: u64,
}

impl StoreHealth {
    fn of(stats: &StatsResponse) -> Self {
        // The two are counted one after the other.
        let without_leader = stats.replicas_without_leader.min(stats.replicas);
        Self { replicas: stats.replicas, without_leader }
    }

    /// For programs.
    fn word(&self) -> &'static str {
        if self.without_leader > 0 && self.without_leader == self.replicas {
            "no leader"
        } else {
            "up"
        }
    }

    /// For people.
    fn words(&self) -> String {
        let Self { replicas, without_leader } = self;
        match (self.word(), without_leader) {
            ("up", 0) => "up".to_owned(),
            ("up", _) => format!("up, {without_leader} of {replicas} without leader"),
            (word, _) => format!("{word} (of {replicas} replicas)"),
        }
    }
}

/// Where a store stands, as its operator says.
fn labels(store: &KnownStore) -> String {
    let labels = store.store.iter().flat_map(|place| &place.labels);
    labels.map(|label| format!("{}={}", label.key, label.value)).collect::<Vec<_>>().join(",")
}

/// The state that is shown for a store without an answer.
fn absence(error: &flotilla_client::Error) -> &'static str {
    match error {
        flotilla_client::Error::NotServing { .. } => "not serving",
        _ => "no answer",
    }
}

/// The number of a store's data directory as its log and its refusals have it. Empty if an older
/// version answered for it.
fn uuid(store: &KnownStore) -> String {
    let number = <[u8; 16]>::try_from(&store.uuid[..]).map(u128::from_le_bytes);
    number.map_or_else(|_| String::new(), |number| StoreUuid(number).to_string())
}

/// Asks all stores about their regions: those of which `wanted` is true, by id.
pub(crate) async fn gather_regions(
    target: &ClusterTarget,
    wanted: impl Fn(&RegionStatus) -> bool,
) -> Result<BTreeMap<u64, RegionSummary>, Error> {
    let seen = ask_all(target, async |observer| observer.regions().await).await?;
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
            Err(error) => eprintln!("flotilla: no answer from {}: {}", store.name, reason(&error)),
        }
    }
    Ok(regions)
}

pub(crate) async fn regions(
    target: &ClusterTarget,
    format: ByteFormat,
    out: &mut impl Write,
) -> Result<(), Error> {
    let regions = gather_regions(target, |_| true).await?;
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
    let headings = [
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
    ];
    let mut table = table(&headings);
    for row in regions.filter_map(|region| region.to_row(format)) {
        table.add_row(row);
    }
    Ok(writeln!(out, "{table}")?)
}

/// The answers of the stores about one region.
#[derive(Default)]
pub(crate) struct RegionSummary {
    replicas: Vec<(u64, RegionStatus)>,
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

    fn to_row(&self, format: ByteFormat) -> Option<Vec<Cell>> {
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
            Cell::new(space(best)),
            Cell::new(bound(&region.start_key, format)),
            Cell::new(bound(&region.end_key, format)),
            Cell::new(format!("{}.{}", epoch.version, epoch.conf_ver)),
            Cell::new(stores.join(" ")),
            Cell::new(leader),
            number(best.term),
            number(best.committed),
            Cell::new(applied),
            Cell::new(format!("{}..{}", best.log_first, best.log_last)),
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
        };
        let row = region.to_json().unwrap();
        assert_eq!(row["leader_store"], 3);
        assert_eq!(row["term"], 6);
        assert_eq!(row["replicas"][0]["role"], "leader");
        assert_eq!(region.applied(), (90, 97));
    }

    #[test]
    fn a_store_whose_replicas_have_no_leader_is_not_simply_up() {
        let words = |replicas, replicas_without_leader| {
            let stats = StatsResponse { replicas, replicas_without_leader, ..Default::default() };
            let health = StoreHealth::of(&stats);
            (health.word(), health.words())
        };
        assert_eq!(words(17, 0), ("up", "up".to_owned()));
        assert_eq!(words(17, 5), ("up", "up, 5 of 17 without leader".to_owned()));
        assert_eq!(words(17, 17), ("no leader", "no leader (of 17 replicas)".to_owned()));
        assert_eq!(words(0, 0), ("up", "up".to_owned()), "it has none that could lack one");
    }

    #[test]
    fn the_keys_that_programs_read_stay() {
        let mut stats = flotilla_node::metrics::NodeStats::default();
        stats.store.pages.trim_punch.punched_bytes = 7;
        stats.store.checkpoints = 8;
        (stats.store.pages.txid, stats.store.pages.oldest_txid) = (19, 10);
        let answer = Ok(stats.to_wire());
        let row = store_to_json(&StoreAnswer { store: KnownStore::default(), answer });
        let keys = "address feature_level id leaders log_lines_lost log_reads_failed log_syncs \
             name reads_failed replicas replicas_without_leader starts state stores_connected \
             stores_known up uptime_ms uuid version writes_acknowledged";
        let pages = "cached_bytes checkpoints dirty_bytes file_bytes free_bytes moved_bytes \
             oldest_root_age pending_bytes punched_bytes reclaimed_bytes retired_bytes roots \
             trash_bytes trimmed_bytes written_bytes";
        keys.split(' ').for_each(|key| assert!(!row[key].is_null(), "{key}"));
        let row = &row["pages"];
        pages.split(' ').for_each(|key| assert!(row[key].is_u64(), "{key}"));
        let given = ["punched_bytes", "checkpoints", "oldest_root_age"].map(|key| &row[key]);
        assert_eq!(given, [7, 8, 9]);
    }

    #[test]
    fn a_directory_is_named_as_refusals_name_it() {
        let bytes = 0xabcd_u128.to_le_bytes().to_vec();
        let store = KnownStore { uuid: bytes.into(), ..KnownStore::default() };
        assert_eq!(uuid(&store), StoreUuid(0xabcd).to_string());
        assert_eq!(uuid(&KnownStore::default()), "");
    }

    #[test]
    fn a_region_without_leader_has_none() {
        let region = RegionSummary { replicas: vec![replica(2, 6, Role::Candidate, 95)] };
        assert_eq!(region.to_json().unwrap()["leader_store"], Value::Null);
    }
}
