//! Plain HTTP for operators and their tools: metrics, whether the store is there and ready, one
//! region, and the filter and the last lines of the process's log.

use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::routing::{get, put};
use flotilla_region::{Descriptor, RegionId, Role, Space, Status};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::health::has_placement;
use super::process_log::ProcessLog;
use super::prometheus;
use super::reader::StatusReader;
use crate::net::answer::{self, Answer};

/// An answer that takes longer is given up: a thread of the store does not move.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a filter at most.
const FILTER_BYTES_MAX: usize = 4096;

/// The routes.
pub(crate) fn routes(reader: StatusReader) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/live", get(live))
        .route("/ready", get(ready))
        .route("/regions/{id}", get(region))
        .route("/log-lines", get(log_lines))
        .route("/log-level", put(set_log_level).get(log_level))
        .layer(DefaultBodyLimit::max(FILTER_BYTES_MAX))
        .with_state(reader)
}

async fn metrics(State(reader): State<StatusReader>) -> Answer {
    match timeout(ANSWER_TIMEOUT, prometheus::metrics(&reader)).await {
        Ok(Ok(text)) => answer::text_as(prometheus::CONTENT_TYPE, text),
        Ok(Err(stops)) => answer::unavailable(&stops.to_string()),
        Err(_) => answer::unavailable("a thread of the store does not answer"),
    }
}

/// The process runs and answers.
async fn live() -> Answer {
    answer::json(&json!({ "live": true }))
}

/// The store serves its clients, and its cluster has a quorum as far as it knows.
async fn ready(State(reader): State<StatusReader>) -> Answer {
    match has_placement(&reader.router) {
        true => answer::json(&json!({ "ready": true })),
        false => answer::unavailable("not ready: no leader of placement is known"),
    }
}

async fn region(State(reader): State<StatusReader>, Path(id): Path<u64>) -> Answer {
    let Some(descriptor) = reader.router.descriptor(RegionId(id)) else {
        return answer::not_found();
    };
    match timeout(ANSWER_TIMEOUT, reader.look(vec![descriptor])).await {
        Ok(Ok(looked)) => match looked.first() {
            Some((region, status)) => answer::json(&region_to_json(region, status)),
            None => answer::not_found(),
        },
        Ok(Err(stops)) => answer::unavailable(&stops.to_string()),
        Err(_) => answer::unavailable("the region's shard does not answer"),
    }
}

async fn log_lines() -> Answer {
    match ProcessLog::get() {
        Some(log) => answer::text((log.recent_lines)()),
        None => answer::not_found(),
    }
}

async fn log_level() -> Answer {
    match ProcessLog::get() {
        Some(log) => answer::text(format!("{}\n", (log.filter)())),
        None => answer::not_found(),
    }
}

async fn set_log_level(body: Bytes) -> Answer {
    let Some(log) = ProcessLog::get() else { return answer::not_found() };
    let Ok(filter) = std::str::from_utf8(&body) else {
        return answer::bad_request("the filter is no UTF-8");
    };
    match (log.set_filter)(filter.trim()) {
        Ok(()) => log_level().await,
        Err(words) => answer::bad_request(&words),
    }
}

/// Keys in hexadecimal, since they are bytes.
fn region_to_json(region: &Descriptor, status: &Status) -> Value {
    let peers = region.peers.iter().map(|peer| {
        let role = format!("{:?}", peer.role).to_lowercase();
        json!({ "id": peer.id.0, "store": peer.store.0, "role": role })
    });
    let role = match status.role {
        Role::Follower => "follower",
        Role::Candidate => "candidate",
        Role::Leader => "leader",
    };
    json!({
        "id": region.id.0,
        "space": match region.space { Space::Raw => "raw", Space::System => "system" },
        "start": hex(&region.start),
        "end": hex(&region.end),
        "version": region.epoch.version,
        "conf_version": region.epoch.conf_version,
        "peers": peers.collect::<Vec<_>>(),
        "peer": status.peer.0,
        "role": role,
        "leader": status.leader.map(|leader| json!({ "id": leader.id.0, "store": leader.store.0 })),
        "term": status.term.0,
        "log": { "first": status.first.0, "last": status.last.0, "persisted": status.persisted.0 },
        "committed": status.commit.0,
        "applied": status.applied.0,
        "waiting": {
            "queued": status.queued, "proposed": status.proposed, "reads": status.reads,
        },
        "size": status.size.map(|size| json!({ "bytes": size.bytes, "keys": size.keys })),
    })
}

fn hex(key: &[u8]) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}
