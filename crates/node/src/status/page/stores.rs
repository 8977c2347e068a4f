//! `/status/store` and `/status/stores`: this store in short, and all stores of the cluster, each
//! as the registry has it and as it describes itself.

use std::time::Instant;

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use flotilla_identity::StoreRecord;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::load::newest_to_json;
use super::state::PageState;
use crate::driver::split_pace::SplitInFlight;
use crate::membership::KnownStore;
use crate::net::answer::{self, Answer};
use crate::status::reader::StatusReader;
use crate::transport::SnapshotInFlight;

/// Splits and snapshots that are listed at most; there are hardly ever as many.
const WORK_MAX: usize = 100;

pub(super) fn routes() -> Router<PageState> {
    Router::new().route("/status/store", get(store)).route("/status/stores", get(stores))
}

async fn store(State(state): State<PageState>) -> Answer {
    answer::json(&own_to_json(&state))
}

async fn stores(State(state): State<PageState>) -> Answer {
    let document = state.stores.get(all_to_json(&state)).await;
    answer::json(&document)
}

/// This store in short. Only what costs little: each store of the cluster asks for it each second.
fn own_to_json(state: &PageState) -> Value {
    let reader = &state.reader;
    let (id, facts) = (reader.membership.id(), reader.facts());
    let disk = rustix::fs::statvfs(&reader.data_dir).ok().map(|disk| {
        let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
        json!({ "bytes": bytes(disk.f_blocks), "free_bytes": bytes(disk.f_bavail) })
    });
    let work = work_to_json(reader);
    json!({
        "id": id.store.0,
        "name": reader.membership.name(),
        // A number of 64 bits, which a script would round.
        "cluster_id": id.cluster_id.to_string(),
        "version": crate::VERSION,
        "uptime_ms": facts.uptime_milliseconds,
        "replicas": facts.replicas,
        "leaders": facts.leaders,
        "replicas_without_leader": facts.replicas_without_leader,
        "stores_connected": facts.stores_connected,
        "stores_known": facts.stores_known,
        "disk": disk,
        "load": newest_to_json(&state.history.newest()),
        "work_total": work.len(),
        "work": work.into_iter().take(WORK_MAX).collect::<Vec<_>>(),
        "splits_waiting": reader.stats.context.queues.split_wishes.count(),
    })
}

/// The splits and snapshots that are in flight here, the oldest of each kind first.
fn work_to_json(reader: &StatusReader) -> Vec<Value> {
    let ms = |began: Instant| u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    let splits = reader.router.splits().in_flight().items();
    let splits = splits.into_iter().map(|(began, SplitInFlight { region, parts })| {
        json!({ "kind": "split", "region": region.0, "parts": parts, "ms": ms(began) })
    });
    let snapshots = reader.stats.counters.snapshots_in_flight().items();
    let snapshots = snapshots.into_iter().map(|(began, snapshot)| {
        let SnapshotInFlight { region, from, to, bytes, bytes_total } = snapshot;
        json!({
            "kind": "snapshot", "region": region.0, "from": from.0, "to": to.0,
            "bytes": bytes, "bytes_total": bytes_total, "ms": ms(began),
        })
    });
    splits.chain(snapshots).collect()
}

async fn all_to_json(state: &PageState) -> Value {
    let membership = &state.reader.membership;
    let (own, registry) = (membership.id(), membership.registry());
    let known = membership.registered_stores();
    state.relay.retain(&known);
    let mut asked = JoinSet::new();
    // All at once: a cluster has few stores, and each has the same time to answer.
    for other in known.iter().filter(|it| it.store != own.store && !membership.is_gone(it.store)) {
        let (relay, other) = (state.relay.clone(), other.clone());
        asked.spawn(async move { (other.store, relay.get(&other.address, "/status/store").await) });
    }
    let mut answers = std::collections::BTreeMap::from([(own.store, Ok(own_to_json(state)))]);
    while let Some(answered) = asked.join_next().await {
        answers.extend(answered.ok());
    }
    // The address of a store may be another one's by now.
    let checked = |store: &KnownStore, answer: Result<Value, String>| match answer {
        Ok(document) if document["id"] != store.store.0 => {
            Err(format!("store {} answers at {}", document["id"], store.address))
        }
        other => other,
    };
    let rows = known.iter().map(|store| {
        let record = registry.store(store.store).cloned().unwrap_or_default();
        let answer = answers.remove(&store.store).map(|answer| checked(store, answer));
        store_to_json(state, store, &record, answer)
    });
    let rows: Vec<_> = rows.collect();
    json!({
        "here": own.store.0,
        "cluster_id": own.cluster_id.to_string(),
        "api_version": membership.settings().api.number(),
        "registry_version": registry.version,
        "placement_leader": state.regions.leader().map(|leader| leader.store.0),
        "stores": rows,
    })
}

fn store_to_json(
    state: &PageState,
    store: &KnownStore,
    record: &StoreRecord,
    answer: Option<Result<Value, String>>,
) -> Value {
    let reader = &state.reader;
    let is_here = store.store == reader.membership.id().store;
    let link = match is_here {
        true => Some((true, reader.started.elapsed())),
        false => state.links.state(Instant::now(), store.store),
    };
    let (status, reason) = match answer {
        Some(Ok(document)) => (document, None),
        Some(Err(words)) => (Value::Null, Some(words)),
        // It is gone for good, and not asked.
        None => (Value::Null, None),
    };
    let labels = record.labels.iter().map(|(key, value)| (key.clone(), value.clone()));
    json!({
        "id": store.store.0,
        "name": store.name,
        "address": store.address,
        "labels": labels.collect::<Value>(),
        "state": record.state.word(),
        "connected": link.map(|(is_up, _)| is_up),
        "since_ms": link.map(|(_, lasts)| u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX)),
        "fault": reader.connections.fault(store.store).filter(|_| link.is_some_and(|it| !it.0)),
        "status": status,
        "reason": reason,
    })
}
