//! `flotilla ctl stores`: each store as the registry has it and as it describes itself, and how
//! many disks the registry is on.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::time::Duration;

use flotilla_client::Observer;
use flotilla_identity::StoreUuid;
use flotilla_proto::metapb::PeerRole;
use flotilla_proto::peers::{
    KnownStore, RegionStatus, RegionVerdict, Space, StatsResponse, StoreState,
};
use serde_json::{Value, json};

use super::text::ByteFormat;
use super::transfer::store_id;
use super::verify::{difference, verdict_to_json};
use super::views::{StoreAnswer, ask_all};
use crate::diagnosis::reason;
use crate::tool::{ClusterTarget, Error, TableCell, is_gone, metric, number, table};
use crate::units;

/// Digits of a directory's number in a table: as many as tell a few of them apart.
const UUID_DIGITS_SHOWN: usize = 8;

/// Columns of a store's place in its table, before those of its answer.
const STORE_COLUMNS: usize = 4;

const HEADINGS: [&str; 12] = [
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

/// The words of a store about itself.
struct StoreView {
    stats: StatsResponse,
    /// The stores that hold the registry, if this is one of them.
    registry: Option<RegistryHolders>,
}

/// The stores with a voter of the system region, as one of them has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct RegistryHolders {
    version: u64,
    stores: BTreeSet<u64>,
}

impl RegistryHolders {
    fn of(region: &RegionStatus) -> Option<Self> {
        let described = region.region.as_ref().filter(|_| region.space() == Space::System)?;
        let votes = |role| matches!(role, PeerRole::Voter | PeerRole::IncomingVoter);
        let voters = described.peers.iter().filter(|peer| votes(peer.role()));
        let version = described.region_epoch.map_or(0, |epoch| epoch.conf_ver);
        Some(Self { version, stores: voters.map(|peer| peer.store_id).collect() })
    }
}

async fn look(observer: Observer) -> Result<StoreView, flotilla_client::Error> {
    let stats = observer.stats().await?;
    // A region that cannot be looked at hides no store.
    let first = observer.first_region().await.ok().flatten();
    Ok(StoreView { stats, registry: first.as_ref().and_then(RegistryHolders::of) })
}

/// Lists all stores that the registry has.
pub(super) async fn run(
    target: &ClusterTarget,
    format: ByteFormat,
    out: &mut impl Write,
) -> Result<(), Error> {
    let (gone, here): (Vec<_>, Vec<_>) =
        target.registered_stores().await?.stores.into_iter().partition(is_gone);
    // The others are not asked: the address of one may be its successor's.
    let seen = ask_all(target, here, look).await?;
    let holders = seen.iter().filter_map(|seen| seen.answer.as_ref().ok()?.registry.clone());
    let holders = holders.max_by_key(|holders| holders.version);
    let stores: Vec<_> = seen.iter().map(|seen| seen.store.clone()).collect();
    if format.is_json {
        let mut rows: Vec<_> =
            seen.iter().map(|seen| store_to_json(seen, holders.as_ref(), &stores)).collect();
        rows.extend(gone.iter().map(gone_to_json));
        rows.sort_by_key(|row| row["id"].as_u64());
        return Ok(writeln!(out, "{:#}", Value::Array(rows))?);
    }
    write_table(&seen, &gone, format.screen_width, out)?;
    for verdict in latest_verdicts(&seen).values() {
        writeln!(out, "the replicas of {}", difference(verdict, &stores))?;
    }
    if let Some(words) = holders.and_then(|holders| holders.warning(&seen)) {
        writeln!(out, "{words}")?;
    }
    Ok(())
}

/// The regions whose replicas differ, each with the last verdict that a store has.
fn latest_verdicts(seen: &[StoreAnswer<StoreView>]) -> BTreeMap<u64, &RegionVerdict> {
    let answers = seen.iter().filter_map(|seen| seen.answer.as_ref().ok());
    let mut latest = BTreeMap::<u64, &RegionVerdict>::new();
    for verdict in answers.flat_map(|view| &view.stats.inconsistent) {
        let known = latest.entry(verdict.region_id).or_insert(verdict);
        if verdict.index > known.index {
            *known = verdict;
        }
    }
    latest
}

fn write_table(
    seen: &[StoreAnswer<StoreView>],
    gone: &[KnownStore],
    screen_width: Option<usize>,
    out: &mut impl Write,
) -> Result<(), Error> {
    let mut headings = HEADINGS.to_vec();
    // A column that is empty in most clusters.
    let all = || seen.iter().map(|seen| &seen.store).chain(gone);
    let has_labels = all().any(|store| !labels(store).is_empty());
    if has_labels {
        headings.insert(STORE_COLUMNS, "labels");
    }
    let mut rows = vec![];
    for store in all() {
        let place = store.store.clone().unwrap_or_default();
        let mut row =
            vec![number(place.id), TableCell::new(&store.name), TableCell::new(&place.address)];
        row.push(TableCell::new(uuid(store).chars().take(UUID_DIGITS_SHOWN).collect::<String>()));
        if has_labels {
            row.push(TableCell::new(labels(store)));
        }
        rows.push((place.id, row));
    }
    for (StoreAnswer { store, answer }, (_, row)) in seen.iter().zip(&mut rows) {
        // A store that is up is not worth the word.
        let standing = match store.state() {
            StoreState::StoreUp => String::new(),
            _ => format!("{}, ", state_word(store.state())),
        };
        match answer {
            Ok(StoreView { stats, .. }) => {
                let count = |group, name| metric(stats, group, name).unwrap_or_default();
                let size = |name| number(units::bytes(count("pages", name)));
                row.push(TableCell::new(format!("{standing}{}", StoreHealth::of(stats).words())));
                let counts = [
                    stats.replicas,
                    stats.leaders,
                    count("requests", "writes_acknowledged"),
                    count("log", "syncs"),
                ];
                row.extend(counts.map(units::count).map(number));
                row.extend(["file_bytes", "free_bytes"].map(size));
                row.push(number(units::time(Duration::from_millis(stats.uptime_ms))));
            }
            Err(error) => {
                let absence = absence(error);
                row.push(TableCell::new(format!("{standing}{absence} ({})", reason(error))));
            }
        }
    }
    for (store, (_, row)) in gone.iter().zip(&mut rows[seen.len()..]) {
        row.push(TableCell::new(state_word(store.state())));
    }
    rows.sort_by_key(|(id, _)| *id);
    let mut table = table(&headings);
    rows.into_iter().for_each(|(_, row)| table.add_row(row));
    Ok(writeln!(out, "{}", table.fitted(screen_width))?)
}

impl RegistryHolders {
    /// The words to say if the loss of one disk is the loss of the cluster.
    fn warning<A>(&self, seen: &[StoreAnswer<A>]) -> Option<String> {
        let [only] = self.stores.iter().collect::<Vec<_>>()[..] else { return None };
        let store = seen.iter().find(|seen| store_id(&seen.store) == *only);
        let name = store.map_or_else(|| format!("store {only}"), |seen| seen.store.name.clone());
        let remedy = match seen.len() {
            1 | 2 => "three stores keep three copies: add some with `flotilla serve --join`",
            _ => {
                "placement copies it to others as soon as it can; `flotilla ctl repair show` says \
                  what it does"
            }
        };
        Some(format!(
            "the registry is on one disk only, that of {name}: without it the cluster is lost; \
             {remedy}"
        ))
    }
}

/// The registry's word about a store, for people and for programs.
pub(super) fn state_word(state: StoreState) -> &'static str {
    match state {
        StoreState::StoreUp => "up",
        StoreState::StoreDraining => "draining",
        StoreState::StoreLeaving => "leaving",
        StoreState::StoreLost => "lost",
        StoreState::StoreRemoved => "removed",
    }
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

/// A store as the registry has it.
fn record_to_json(store: &KnownStore) -> Value {
    let place = store.store.clone().unwrap_or_default();
    json!({
        "id": place.id,
        "name": store.name,
        "address": place.address,
        "registry_state": state_word(store.state()),
        "uuid": uuid(store),
        "starts": store.starts,
        "feature_level": store.level,
        "labels": place.labels.iter().map(|it| (it.key.clone(), it.value.clone())).collect::<Value>(),
    })
}

/// A store that never answers again.
fn gone_to_json(store: &KnownStore) -> Value {
    let mut row = record_to_json(store);
    row["up"] = false.into();
    row["state"] = state_word(store.state()).into();
    row["holds_registry"] = false.into();
    row
}

fn store_to_json(
    seen: &StoreAnswer<StoreView>,
    registry: Option<&RegistryHolders>,
    stores: &[KnownStore],
) -> Value {
    let mut row = record_to_json(&seen.store);
    row["up"] = seen.answer.is_ok().into();
    let holds = registry.map(|holders| holders.stores.contains(&store_id(&seen.store)));
    row["holds_registry"] = holds.into();
    match &seen.answer {
        Ok(StoreView { stats, .. }) => {
            row["state"] = StoreHealth::of(stats).word().into();
            row["disk_usage"] = metric(stats, "disk", "usage").and_then(disk_usage).into();
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
            let verdicts = stats.inconsistent.iter();
            row["inconsistent_regions"] = verdicts.map(|it| verdict_to_json(it, stores)).collect();
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

/// Whether the replicas of a store that answers have leaders, as far as it knows, and room.
struct StoreHealth {
    replicas: u64,
    without_leader: u64,
    /// The usage of its disk, if that is to be told.
    disk: Option<&'static str>,
}

impl StoreHealth {
    fn of(stats: &StatsResponse) -> Self {
        // The two are counted one after the other.
        let without_leader = stats.replicas_without_leader.min(stats.replicas);
        let usage = metric(stats, "disk", "usage").and_then(disk_usage);
        let disk = usage.filter(|word| *word != "normal");
        Self { replicas: stats.replicas, without_leader, disk }
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
        let Self { replicas, without_leader, disk } = self;
        let words = match (self.word(), without_leader) {
            ("up", 0) => "up".to_owned(),
            ("up", _) => format!("up, {without_leader} of {replicas} without leader"),
            (word, _) => format!("{word} (of {replicas} replicas)"),
        };
        disk.map_or(words.clone(), |disk| format!("{words}, disk {disk}"))
    }
}

/// The word for how full a disk is; none of a later version's.
fn disk_usage(number: u64) -> Option<&'static str> {
    let words = ["normal", "almost full", "full", "exhausted"];
    words.get(usize::try_from(number).ok()?).copied()
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

#[cfg(test)]
mod tests {
    use flotilla_proto::metapb;

    use super::*;

    fn store(id: u64, state: StoreState) -> KnownStore {
        KnownStore {
            name: format!("s{id}"),
            store: Some(metapb::Store { id, ..Default::default() }),
            state: state.into(),
            ..Default::default()
        }
    }

    fn answers(stores: &[u64]) -> Vec<StoreAnswer<StoreView>> {
        let answer = |id: &u64| StoreAnswer {
            store: store(
                *id,
                if *id == 2 { StoreState::StoreLeaving } else { StoreState::StoreUp },
            ),
            answer: Ok(StoreView { stats: StatsResponse::default(), registry: None }),
        };
        stores.iter().map(answer).collect()
    }

    #[test]
    fn a_store_that_is_gone_is_listed_and_not_asked() {
        let mut out = vec![];
        let lost = [store(2, StoreState::StoreLost)];
        write_table(&answers(&[1, 3]), &lost, None, &mut out).unwrap();
        let table = String::from_utf8(out).unwrap();
        let states: Vec<_> = table.lines().filter(|line| line.contains(" s")).collect();
        let lost_row = states.iter().find(|line| line.contains("s2")).unwrap();
        assert!(lost_row.contains("lost") && !lost_row.contains("up"), "{table}");
        let row = gone_to_json(&lost[0]);
        assert_eq!((&row["state"], &row["registry_state"]), (&json!("lost"), &json!("lost")));
        assert_eq!((&row["up"], &row["holds_registry"]), (&json!(false), &json!(false)));
        let mut out = vec![];
        write_table(&answers(&[1, 2]), &[], None, &mut out).unwrap();
        assert!(String::from_utf8(out).unwrap().contains("leaving, up"));
        let [_, leaving] = &answers(&[1, 2])[..] else { panic!() };
        let holders = RegistryHolders { version: 1, stores: [2].into() };
        let row = store_to_json(leaving, Some(&holders), &[]);
        assert_eq!((&row["state"], &row["registry_state"]), (&json!("up"), &json!("leaving")));
        assert_eq!(row["holds_registry"], true);
    }

    #[test]
    fn of_the_verdicts_about_a_region_the_last_one_is_told() {
        let mut seen = answers(&[1, 2]);
        for (seen, index) in seen.iter_mut().zip([9, 7]) {
            let verdict = RegionVerdict { region_id: 7, index, replicas: vec![] };
            let Ok(view) = &mut seen.answer else { panic!() };
            view.stats.inconsistent.push(verdict);
        }
        let latest = latest_verdicts(&seen);
        assert_eq!(latest.values().map(|verdict| verdict.index).collect::<Vec<_>>(), [9]);
    }

    #[test]
    fn a_registry_on_one_disk_is_told() {
        let region = |voters: &[(u64, PeerRole)], conf_ver| {
            let peers = voters.iter().map(|(store_id, role)| metapb::Peer {
                id: 100 + store_id,
                store_id: *store_id,
                role: (*role).into(),
                ..Default::default()
            });
            let epoch = metapb::RegionEpoch { conf_ver, version: 1 };
            let (peers, region_epoch) = (peers.collect(), Some(epoch));
            let region = metapb::Region { id: 1, peers, region_epoch, ..Default::default() };
            let space = Space::System.into();
            RegionStatus { region: Some(region), space, ..Default::default() }
        };
        let one = region(&[(1, PeerRole::Voter), (2, PeerRole::Learner)], 4);
        let one = RegistryHolders::of(&one).unwrap();
        assert_eq!((one.version, one.stores.len()), (4, 1));
        let words = one.warning(&answers(&[1, 2])).unwrap();
        assert!(words.starts_with("the registry is on one disk only, that of s1:"), "{words}");
        assert!(words.contains("add some with `flotilla serve --join`"), "{words}");
        let words = one.warning(&answers(&[1, 2, 3])).unwrap();
        assert!(words.contains("ctl repair show"), "{words}");
        let three = [PeerRole::Voter, PeerRole::IncomingVoter, PeerRole::IncomingVoter];
        let three: Vec<_> = (1..).zip(three).collect();
        let three = RegistryHolders::of(&region(&three, 5)).unwrap();
        assert_eq!(three.warning(&answers(&[1, 2, 3])), None);
        let raw = RegionStatus { space: Space::Raw.into(), ..region(&[], 1) };
        assert_eq!(RegistryHolders::of(&raw), None);
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
        let mut stats = flotilla_node::metrics::NodeStats::default();
        stats.disk.usage = 2;
        let health = StoreHealth::of(&stats.to_wire());
        assert_eq!((health.word(), health.words()), ("up", "up, disk full".to_owned()));
    }

    #[test]
    fn the_keys_that_programs_read_stay() {
        let mut stats = flotilla_node::metrics::NodeStats::default();
        stats.store.pages.trim_punch.punched_bytes = 7;
        stats.store.checkpoints = 8;
        (stats.store.pages.txid, stats.store.pages.oldest_txid) = (19, 10);
        let answer = Ok(StoreView { stats: stats.to_wire(), registry: None });
        let row =
            store_to_json(&StoreAnswer { store: store(1, StoreState::StoreUp), answer }, None, &[]);
        let keys = "address disk_usage feature_level id inconsistent_regions leaders log_lines_lost log_reads_failed log_syncs \
             name reads_failed registry_state replicas replicas_without_leader starts state stores_connected \
             stores_known up uptime_ms uuid version writes_acknowledged";
        let pages = "cached_bytes checkpoints dirty_bytes ended_snapshots file_bytes free_bytes \
             moved_bytes old_version_bytes oldest_root_age pending_bytes punched_bytes \
             reclaimed_bytes retired_bytes roots spill_errors spill_file_bytes spilled_bytes \
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
}
