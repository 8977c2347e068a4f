//! The view of the stores: what each says of itself, and the registry of it.

use std::io::Write;

use comfy_table::Cell;
use flotilla_identity::StoreUuid;
use flotilla_proto::peers::{KnownStore, StatsResponse, StoreState};
use serde_json::{Value, json};

use super::text::ByteFormat;
use super::transfer::is_gone;
use super::views::{StoreAnswer, ask_all};
use crate::diagnosis::reason;
use crate::tool::{ClusterTarget, Error, metric, number, table};

/// Digits of a directory's number in a table: as many as tell a few of them apart.
const UUID_DIGITS_SHOWN: usize = 8;

/// Columns of a store's place in its table, before those of its answer.
const STORE_COLUMNS: usize = 4;

pub(crate) async fn stores(
    target: &ClusterTarget,
    format: ByteFormat,
    out: &mut impl Write,
) -> Result<(), Error> {
    let known = target.stores().await?;
    let gone: Vec<KnownStore> = known.iter().filter(|store| is_gone(store)).cloned().collect();
    let seen = ask_all(target, known, async |observer| observer.stats().await).await?;
    if format.is_json {
        let stores = seen.iter().map(store_to_json).chain(gone.iter().map(gone_to_json));
        return Ok(writeln!(out, "{:#}", Value::Array(stores.collect()))?);
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
        let mut row = place_cells(store, has_labels);
        match answer {
            Ok(stats) => {
                let count = |group, name| metric(stats, group, name).unwrap_or_default();
                let mebibytes = |name| number(format!("{} MiB", count("pages", name) >> 20));
                let words = StoreHealth::of(stats).words();
                row.push(Cell::new(match state_word(store) {
                    "up" => words,
                    state => format!("{words}, {state}"),
                }));
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
    for store in &gone {
        let mut row = place_cells(store, has_labels);
        row.push(Cell::new(state_word(store)));
        table.add_row(row);
    }
    Ok(writeln!(out, "{table}")?)
}

/// The cells of a store before those of its answer.
fn place_cells(store: &KnownStore, has_labels: bool) -> Vec<Cell> {
    let place = store.store.clone().unwrap_or_default();
    let mut row = vec![number(place.id), Cell::new(&store.name), Cell::new(&place.address)];
    row.push(Cell::new(uuid(store).chars().take(UUID_DIGITS_SHOWN).collect::<String>()));
    if has_labels {
        row.push(Cell::new(labels(store)));
    }
    row
}

/// What the registry says of a store.
pub(super) fn state_word(store: &KnownStore) -> &'static str {
    match store.state() {
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

/// The keys of a store that need no answer.
fn place_to_json(store: &KnownStore) -> Value {
    let place = store.store.clone().unwrap_or_default();
    json!({
        "id": place.id,
        "name": store.name,
        "address": place.address,
        "uuid": uuid(store),
        "starts": store.starts,
        "feature_level": store.level,
        "labels": place.labels.iter().map(|it| (it.key.clone(), it.value.clone())).collect::<Value>(),
        "registry_state": state_word(store),
    })
}

fn gone_to_json(store: &KnownStore) -> Value {
    let mut row = place_to_json(store);
    row["up"] = false.into();
    row["state"] = state_word(store).into();
    row
}

fn store_to_json(seen: &StoreAnswer<StatsResponse>) -> Value {
    let mut row = place_to_json(&seen.store);
    row["up"] = seen.answer.is_ok().into();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_is_gone_has_a_row_without_an_answer() {
        let state = StoreState::StoreRemoved.into();
        let row = gone_to_json(&KnownStore { state, ..KnownStore::default() });
        let given = [&row["up"], &row["state"], &row["registry_state"]];
        assert_eq!(given, [&json!(false), &json!("removed"), &json!("removed")]);
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
             name reads_failed registry_state replicas replicas_without_leader starts state stores_connected \
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
}
