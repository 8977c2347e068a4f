//! The answers of TiKV's status server that clients and PD read: that the store is there, and a few
//! of its settings (decision 43, `docs/decisions/0043-plain-http-on-the-port-of-grpc.md`).

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use flotilla_identity::ClusterSettings;
use serde_json::{Value, json};

use crate::config::{ResolvedConfig, SplitConfig};
use crate::membership::Membership;
use crate::net::answer::{self, Answer};

/// The routes.
pub(crate) fn routes(resolved: &ResolvedConfig, membership: &Membership) -> Router {
    let state = Arc::new((resolved.config.split.clone(), membership.clone()));
    Router::new().route("/status", get(status)).route("/config", get(config)).with_state(state)
}

async fn status() -> Answer {
    answer::text(String::new())
}

async fn config(State(state): State<Arc<(SplitConfig, Membership)>>) -> Answer {
    let (split, membership) = &*state;
    answer::json(&settings(split, &membership.settings()))
}

/// The settings by TiKV's names, as far as there is something like them here. Values may expire
/// under each API version.
fn settings(split: &SplitConfig, cluster: &ClusterSettings) -> Value {
    let size = format!("{}KiB", split.region_bytes_max >> 10);
    json!({
        "storage": {
            "api-version": cluster.api.number(), "enable-ttl": true, "engine": "raft-kv",
        },
        "coprocessor": {
            "region-max-size": size,
            "region-split-size": size,
            "region-max-keys": split.region_keys_max,
            "region-split-keys": split.region_keys_max,
            "enable-region-bucket": false,
        },
        "raftstore": { "raft-entry-max-size": format!("{}B", cluster.entry_bytes_max) },
    })
}
