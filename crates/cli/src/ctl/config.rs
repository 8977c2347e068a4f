//! `flotilla ctl config`: the settings in force, store by store, and changes of those of the
//! cluster.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::{Duration, Instant};

use flotilla_client::StoreOperator;
use flotilla_proto::peers::{
    ChangeSettingRequest, ClusterSettingsResponse, KnownStore, SettingValue, StoreSettingsResponse,
};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::placement::{self, Answered, LOOK};
use super::text::ByteFormat;
use super::transfer::{find, store_id};
use crate::diagnosis::reason;
use crate::tool::{self, ClusterTarget, Error, TableCell, table};

#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum SettingCommand {
    /// Shows the settings in force, of the cluster and of each store, with where they come from:
    /// `flotilla ctl config get raft. limits.slow_request_ms`
    ///
    /// A KEY is the name of a setting, or the beginning of some. A value of a store that waits for
    /// its next start is shown beside the one in force. Stores that agree share a row.
    Get {
        /// Names, or beginnings of them; all if there is none
        keys: Vec<String>,
        /// Only those of this store, by name or number
        #[arg(long, value_name = "STORE")]
        store: Option<String>,
    },
    /// Changes a setting of the cluster while it runs: `flotilla ctl config set raft.tick_ms 100ms`
    ///
    /// It holds for all stores, also after restarts. Ends once all of them have it. A change of the
    /// tick takes leases off until then, and waits for stores that are away; to take it back before
    /// any store has the new tick, set the former value.
    Set {
        /// `replicas`, or one of `raft`
        key: String,
        /// With a unit, as in a file
        value: String,
        /// Seconds until the change is not waited for any longer, though it goes on
        #[arg(long = "wait", value_name = "SECONDS", default_value_t = 60)]
        wait_seconds: u64,
    },
}

pub(super) async fn run(
    target: &ClusterTarget,
    command: &SettingCommand,
    format: ByteFormat,
    out: &mut impl Write,
) -> Result<(), Error> {
    match command {
        SettingCommand::Get { keys, store } => {
            get(target, keys, store.as_deref(), format, out).await
        }
        SettingCommand::Set { key, value, wait_seconds } => {
            let until = target.end_of_wait(Duration::from_secs(*wait_seconds));
            set(target, (key, value), until, format, out).await
        }
    }
}

/// Has a setting changed, and waits until all stores have it.
async fn set(
    target: &ClusterTarget,
    (key, value): (&str, &str),
    until: Instant,
    format: ByteFormat,
    out: &mut impl Write,
) -> Result<(), Error> {
    let stores = target.stores().await?;
    let request = ChangeSettingRequest { key: key.to_owned(), value: value.to_owned() };
    let version = loop {
        let answered = placement::ask(target, &stores, until, async |operator| {
            let response = operator.change_setting(request.clone()).await?;
            Ok((!response.is_led_elsewhere).then_some(response))
        });
        let answered = answered.await?;
        let response = &answered.answer;
        if response.refusal.is_empty() {
            break response.version;
        }
        if !response.is_passing || Instant::now() >= until {
            return Err(answered.refused(&response.refusal));
        }
        tokio::time::sleep(LOOK).await;
    };
    let mut told = String::new();
    loop {
        let now = cluster(target, &stores, until).await?.answer;
        let value = now.values.iter().find(|it| it.key == key).cloned().unwrap_or_default();
        let words = rest(&now);
        if now.version >= version && words.is_empty() {
            return done(&value, now.version, format, out);
        }
        if Instant::now() >= until {
            return Err(Error::Refused(format!(
                "{key}: not all stores have it: {words}; the change goes on"
            )));
        }
        if words != told {
            tool::tell(format_args!("{key}: {words}"));
            told = words;
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// The rest of a change, in words.
fn rest(now: &ClusterSettingsResponse) -> String {
    let missing = match now.missing.is_empty() {
        true => String::new(),
        false => format!("waiting for {}", now.missing.join(", ")),
    };
    let both = if now.change.is_empty() || missing.is_empty() { "" } else { "; " };
    format!("{}{both}{missing}", now.change)
}

fn done(
    value: &SettingValue,
    version: u64,
    format: ByteFormat,
    out: &mut impl Write,
) -> Result<(), Error> {
    if format.is_json {
        let changed = json!({ "key": value.key, "value": typed(value), "version": version });
        return Ok(writeln!(out, "{changed:#}")?);
    }
    Ok(writeln!(out, "{} is {} on all stores", value.key, value.value)?)
}

async fn cluster(
    target: &ClusterTarget,
    stores: &[KnownStore],
    until: Instant,
) -> Result<Answered<ClusterSettingsResponse>, Error> {
    placement::ask(target, stores, until, async |operator| {
        let response = operator.cluster_settings().await?;
        Ok((!response.is_led_elsewhere).then_some(response))
    })
    .await
}

/// The settings of one store.
struct StoreValues {
    name: String,
    answer: StoreSettingsResponse,
}

/// Shows settings.
async fn get(
    target: &ClusterTarget,
    keys: &[String],
    store: Option<&str>,
    format: ByteFormat,
    out: &mut impl Write,
) -> Result<(), Error> {
    let mut stores = target.stores().await?;
    let mut of_cluster = None;
    match store {
        Some(name) => {
            let id = store_id(find(&stores, name)?);
            stores.retain(|store| store_id(store) == id);
        }
        None => {
            let asked = cluster(target, &stores, target.end_of_request()).await?;
            of_cluster = Some(asked.answer);
        }
    }
    let seen = ask_stores(target, &stores).await?;
    let is_wanted = |value: &SettingValue| {
        keys.is_empty() || keys.iter().any(|key| value.key.starts_with(key.as_str()))
    };
    let rows = rows_of(of_cluster.as_ref(), &seen, is_wanted);
    if rows.is_empty() {
        return Err(Error::Absent(format!("no setting begins with {}", keys.join(" or "))));
    }
    if format.is_json {
        let rows: Value = rows.iter().map(SettingRow::to_json).collect();
        return Ok(writeln!(out, "{rows:#}")?);
    }
    write_table(&rows, format, out)?;
    if let Some(now) = of_cluster.filter(|now| !now.change.is_empty()) {
        writeln!(out, "{}", rest(&now))?;
    }
    Ok(())
}

/// Asks each store; one that does not answer is named, and left out.
async fn ask_stores(
    target: &ClusterTarget,
    stores: &[KnownStore],
) -> Result<Vec<StoreValues>, Error> {
    let mut asking = JoinSet::new();
    for (place, store) in stores.iter().enumerate() {
        let (name, address) = (store.name.clone(), store.store.clone().unwrap_or_default().address);
        let operator = StoreOperator::new(&address, &target.bounded_config())?;
        asking.spawn(async move { (place, name, address, operator.store_settings().await) });
    }
    let mut answers = asking.join_all().await;
    answers.sort_by_key(|(place, ..)| *place);
    let mut seen = Vec::new();
    for (_, name, address, answer) in answers {
        match answer {
            Ok(answer) => seen.push(StoreValues { name, answer }),
            Err(error @ flotilla_client::Error::Rejected(_)) => return Err(error.into()),
            Err(error) => {
                let reason = reason(&error);
                tool::tell(format_args!("flotilla: no answer from {name} at {address}: {reason}"));
            }
        }
    }
    Ok(seen)
}

/// A value, and who has it.
struct SettingRow {
    /// Empty: the cluster.
    stores: Vec<String>,
    /// Whether all stores that answered have it.
    is_on_all: bool,
    value: SettingValue,
}

impl SettingRow {
    fn to_json(&self) -> Value {
        let SettingValue { key, source, place, at_next_start, .. } = &self.value;
        json!({
            "key": key,
            "value": typed(&self.value),
            "stores": self.stores,
            "source": source,
            "place": (!place.is_empty()).then_some(place),
            "at_next_start": at_next_start,
        })
    }
}

/// The rows in the order of the keys: first the cluster's value, then those of the stores, but for
/// a store that has the cluster's.
fn rows_of(
    of_cluster: Option<&ClusterSettingsResponse>,
    seen: &[StoreValues],
    is_wanted: impl Fn(&SettingValue) -> bool,
) -> Vec<SettingRow> {
    let mut order: Vec<&str> = Vec::new();
    let mut by_key: BTreeMap<&str, Vec<SettingRow>> = BTreeMap::new();
    let of_cluster = of_cluster.into_iter().flat_map(|it| &it.values).map(|value| (None, value));
    let of_stores = seen
        .iter()
        .flat_map(|seen| seen.answer.values.iter().map(|value| (Some(seen.name.clone()), value)));
    for (store, value) in of_cluster.chain(of_stores).filter(|(_, value)| is_wanted(value)) {
        let rows = by_key.entry(&value.key).or_insert_with(|| {
            order.push(&value.key);
            Vec::new()
        });
        let same = rows.iter().position(|row| row.value == *value);
        match (store, same) {
            (Some(_), Some(at)) if rows[at].stores.is_empty() => {}
            (Some(store), Some(at)) => rows[at].stores.push(store),
            (store, _) => {
                let stores = store.into_iter().collect();
                rows.push(SettingRow { stores, is_on_all: false, value: value.clone() });
            }
        }
    }
    let of_key = |key: &str| by_key.remove(key).unwrap_or_default();
    let mut rows: Vec<_> = order.into_iter().flat_map(of_key).collect();
    rows.iter_mut().for_each(|row| row.is_on_all = row.stores.len() == seen.len());
    rows
}

fn write_table(rows: &[SettingRow], format: ByteFormat, out: &mut impl Write) -> Result<(), Error> {
    let mut shown = table(&["key", "store", "value", "from", "at next start"]);
    for SettingRow { stores, is_on_all, value } in rows {
        let whose = match (stores.is_empty(), stores.len() > 1 && *is_on_all) {
            (true, _) => "cluster".to_owned(),
            (false, true) => "all".to_owned(),
            (false, false) => stores.join(" "),
        };
        let from = if value.place.is_empty() { &value.source } else { &value.place };
        let next = value.at_next_start.as_deref().unwrap_or_default();
        shown.add_row([value.key.as_str(), &whose, &value.value, from, next].map(TableCell::new));
    }
    Ok(writeln!(out, "{}", shown.fitted(format.screen_width))?)
}

/// The value as programs want it.
fn typed(value: &SettingValue) -> Value {
    serde_json::from_str(&value.json).unwrap_or_else(|_| Value::from(value.value.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(key: &str, value: &str, source: &str) -> SettingValue {
        SettingValue {
            key: key.to_owned(),
            value: value.to_owned(),
            json: json!(value).to_string(),
            source: source.to_owned(),
            ..SettingValue::default()
        }
    }

    fn seen(name: &str, values: Vec<SettingValue>) -> StoreValues {
        let answer = StoreSettingsResponse { values, version: 1 };
        StoreValues { name: name.to_owned(), answer }
    }

    #[test]
    fn stores_that_agree_share_a_row_and_one_that_lags_has_its_own() {
        let tick = |words| value("raft.tick_ms", words, "cluster");
        let log = |words, source| value("log", words, source);
        let of_cluster =
            ClusterSettingsResponse { values: vec![tick("100ms")], ..Default::default() };
        let seen = [
            seen("s1", vec![tick("100ms"), log("info", "default")]),
            seen("s2", vec![tick("50ms"), log("info", "default")]),
            seen("s3", vec![tick("100ms"), log("warn", "flag")]),
        ];
        let rows = rows_of(Some(&of_cluster), &seen, |_| true);
        let shown: Vec<_> =
            rows.iter().map(|row| (row.stores.join(" "), row.value.value.clone())).collect();
        let expected = [("", "100ms"), ("s2", "50ms"), ("s1 s2", "info"), ("s3", "warn")];
        assert_eq!(shown, expected.map(|(one, other)| (one.to_owned(), other.to_owned())));
        assert!(rows.iter().all(|row| !row.is_on_all));
        let wanted = rows_of(Some(&of_cluster), &seen, |value| value.key.starts_with("raft."));
        assert_eq!(wanted.len(), 2);
        let json = wanted[1].to_json();
        assert_eq!((&json["stores"], &json["source"]), (&json!(["s2"]), &json!("cluster")));
    }

    #[test]
    fn what_is_left_of_a_change_is_said() {
        let now = |change: &str, missing: &[&str]| ClusterSettingsResponse {
            change: change.to_owned(),
            missing: missing.iter().map(|name| (*name).to_owned()).collect(),
            ..ClusterSettingsResponse::default()
        };
        assert_eq!(rest(&now("", &[])), "");
        assert_eq!(rest(&now("the tick changes", &[])), "the tick changes");
        let both = rest(&now("the tick changes", &["s1", "s3"]));
        assert_eq!(both, "the tick changes; waiting for s1, s3");
        assert_eq!(rest(&now("", &["s1"])), "waiting for s1");
    }
}
