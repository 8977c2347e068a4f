//! `/status/log`: the segments of this store's log, and the regions that keep the oldest one.

use std::collections::BTreeMap;

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use flotilla_region::{PeerId, RegionId};
use flotilla_store::{LogSegments, SegmentHolder, SegmentState};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::state::PageState;
use crate::net::answer::{self, Answer};
use crate::status::http::ANSWER_TIMEOUT;
use crate::status::reader::StatusReader;

/// Segments that are listed at most, the oldest.
const SEGMENTS_MAX: usize = 1000;
/// Holders of the oldest segment that are listed at most, those that hold most of it.
const HOLDERS_MAX: usize = 20;

pub(super) fn routes() -> Router<PageState> {
    Router::new().route("/status/log", get(log))
}

async fn log(State(state): State<PageState>) -> Answer {
    let reader = state.reader.clone();
    // A group commit may be waited for, and the disk may hang.
    match timeout(ANSWER_TIMEOUT, state.log.get_blocking(move || read(&reader))).await {
        Ok(Some(document)) => answer::json(&document),
        Ok(None) => answer::unavailable("the log cannot be looked at"),
        Err(_) => answer::unavailable("the log does not answer: a write of it takes long"),
    }
}

fn read(reader: &StatusReader) -> Value {
    let own = reader.membership.id().store;
    let replicas = reader.router.descriptors().into_iter().filter_map(|region| {
        let here = region.peers.iter().find(|peer| peer.store == own)?;
        Some((here.id, region.id))
    });
    match reader.stats.context.store.log_segments() {
        Ok(found) => segments_to_json(&found, &replicas.collect()),
        Err(error) => json!({ "error": error.to_string() }),
    }
}

fn segments_to_json(found: &LogSegments, replicas: &BTreeMap<PeerId, RegionId>) -> Value {
    let LogSegments { segments, holders } = found;
    let mut holders = holders.clone();
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
    let holder_to_json = |holder: &SegmentHolder| {
        json!({
            "region": holder.replica.and_then(|peer| replicas.get(&peer)).map(|region| region.0),
            "peer": holder.replica.map(|peer| peer.0),
            "bytes": holder.bytes,
            "has_entries": holder.has_entries,
        })
    };
    let listed = segments.iter().take(SEGMENTS_MAX).map(|segment| {
        let state = match segment.state {
            SegmentState::Active => "active",
            SegmentState::Full => "full",
            SegmentState::Sealed => "sealed",
        };
        json!({
            "number": segment.number,
            "bytes": segment.bytes,
            "live_bytes": segment.live_bytes,
            "state": state,
        })
    });
    json!({
        "segments_total": segments.len(),
        "bytes": segments.iter().map(|segment| segment.bytes).sum::<u64>(),
        "live_bytes": segments.iter().map(|segment| segment.live_bytes).sum::<u64>(),
        "segments": listed.collect::<Vec<_>>(),
        "holders_total": holders.len(),
        "holders": holders.iter().take(HOLDERS_MAX).map(holder_to_json).collect::<Vec<_>>(),
    })
}
