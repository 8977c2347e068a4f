//! The part of PD's HTTP API that clients and `pd-ctl` read: stores, regions, members, health and
//! settings (`pd/server/api`). It changes nothing.
//!
//! The leader of placement answers; another store sends the caller there. Keys are in hexadecimal
//! with capitals, as PD has them; under API V2 they are encoded as for other clients.

use axum::Router;
use axum::extract::{Path, State};
use axum::http::Uri;
use axum::routing::get;
use bytes::Bytes;
use flotilla_placement::{ClusterView, RegionInfo, RegionRoute, ReplicaInfo, StoreInfo};
use serde_json::{Value, json};

use super::context::PdContext;
use super::convert::{self, member_to_proto};
use super::leader::PdLeader;
use crate::border_codec::BorderCodec;
use crate::membership::KnownStore;
use crate::net::answer::{self, Answer};
use crate::net::dial::Dialer;

/// Regions that one answer lists; the count is that of all.
const REGIONS_MAX: usize = 10_000;

/// The routes of the API.
pub(super) fn routes(context: PdContext) -> Router {
    Router::new()
        .route("/pd/api/v1/stores", get(stores))
        .route("/pd/api/v1/store/{id}", get(store))
        .route("/pd/api/v1/regions", get(regions))
        .route("/pd/api/v1/region/id/{id}", get(region))
        .route("/pd/api/v1/members", get(members))
        .route("/pd/api/v1/leader", get(leader))
        .route("/pd/api/v1/health", get(health))
        .route("/pd/api/v1/config", get(config))
        .route("/pd/api/v1/config/replicate", get(replication))
        .route("/pd/api/v1/cluster", get(cluster))
        .route("/pd/api/v1/version", get(version))
        .with_state(context)
}

async fn stores(State(context): State<PdContext>, uri: Uri) -> Answer {
    by_leader(&context, &uri, |pd_leader| {
        pd_leader.see(|view| {
            let stores = view.stores().filter(|store| !store.standing.is_lost);
            let stores: Vec<_> = stores.map(|store| store_with_status(view, store)).collect();
            Some(json!({ "count": stores.len(), "stores": stores }))
        })
    })
    .await
}

async fn store(State(context): State<PdContext>, uri: Uri, Path(id): Path<u64>) -> Answer {
    by_leader(&context, &uri, |pd_leader| {
        pd_leader.see(|view| Some(store_with_status(view, view.store(id)?)))
    })
    .await
}

async fn regions(State(context): State<PdContext>, uri: Uri) -> Answer {
    let borders = context.borders();
    by_leader(&context, &uri, |pd_leader| {
        let now_ms = pd_leader.now_ms();
        pd_leader.see(|view| {
            let count = view.scan(now_ms, b"", b"").count();
            let listed = view.scan(now_ms, b"", b"").take(REGIONS_MAX);
            let regions: Vec<_> = listed.map(|route| region_to_json(&route, borders)).collect();
            Some(json!({ "count": count, "regions": regions }))
        })
    })
    .await
}

async fn region(State(context): State<PdContext>, uri: Uri, Path(id): Path<u64>) -> Answer {
    let borders = context.borders();
    by_leader(&context, &uri, |pd_leader| {
        let now_ms = pd_leader.now_ms();
        pd_leader.see(|view| view.region(now_ms, id).map(|route| region_to_json(&route, borders)))
    })
    .await
}

async fn members(State(context): State<PdContext>) -> Answer {
    let member = |store: &KnownStore| member_to_json(store, context.dialer());
    let leader = context.leader().await.as_ref().map(member);
    let members: Vec<_> = context.shared.membership.stores().iter().map(member).collect();
    let header = json!({ "cluster_id": context.cluster_id() });
    answer::json(&json!({
        "header": header, "members": members, "leader": leader, "etcd_leader": leader,
    }))
}

async fn leader(State(context): State<PdContext>) -> Answer {
    match context.leader().await {
        Some(leader) => answer::json(&member_to_json(&leader, context.dialer())),
        None => answer::unavailable("no leader of placement is known"),
    }
}

async fn health(State(context): State<PdContext>) -> Answer {
    let shared = &context.shared;
    let here = shared.router.identity().store;
    let stores = shared.membership.stores();
    let stores = stores.iter().map(|store| {
        let mut health = member_to_json(store, context.dialer());
        health["health"] = (store.store == here || shared.connections.is_up(store.store)).into();
        health
    });
    answer::json(&Value::Array(stores.collect()))
}

async fn config(State(context): State<PdContext>, uri: Uri) -> Answer {
    by_leader(&context, &uri, |pd_leader| {
        Some(json!({
            "replication": replication_to_json(pd_leader),
            "pd-server": { "key-type": "raw" },
            "cluster-version": crate::TIKV_VERSION,
        }))
    })
    .await
}

async fn replication(State(context): State<PdContext>, uri: Uri) -> Answer {
    by_leader(&context, &uri, |pd_leader| Some(replication_to_json(pd_leader))).await
}

async fn cluster(State(context): State<PdContext>, uri: Uri) -> Answer {
    let id = context.cluster_id();
    by_leader(&context, &uri, |pd_leader| {
        let (_, replicas) = pd_leader.repair().settings();
        Some(json!({ "id": id, "max_peer_count": replicas }))
    })
    .await
}

async fn version() -> Answer {
    answer::json(&json!({ "version": crate::TIKV_VERSION }))
}

/// The answer of the leader of placement, or the way to it. None: there is no such thing.
async fn by_leader(
    context: &PdContext,
    uri: &Uri,
    answer: impl FnOnce(&PdLeader) -> Option<Value>,
) -> Answer {
    if let Ok(pd_leader) = context.pd_leader().await {
        return match answer(&pd_leader) {
            Some(value) => answer::json(&value),
            None => answer::not_found(),
        };
    }
    let here = context.shared.router.identity().store;
    match context.leader().await.filter(|leader| leader.store != here) {
        Some(leader) => {
            answer::elsewhere(&format!("{}{uri}", context.dialer().url(&leader.address)))
        }
        None => answer::unavailable("no leader of placement is known"),
    }
}

fn store_with_status(view: &ClusterView, store: &StoreInfo) -> Value {
    let proto = convert::store_to_proto(store);
    let state = if store.standing.is_lost { "Tombstone" } else { "Up" };
    let labels = store.labels.iter().map(|(key, value)| json!({ "key": key, "value": value }));
    let leads = |route: &RegionRoute<'_>| route.leader.is_some_and(|at| at.store == store.id);
    // The silence of a store does not count here: what it leads is told as it was heard last.
    let leaders = view.scan(u64::MAX, b"", b"").filter(leads).count();
    json!({
        "store": {
            "id": proto.id,
            "address": proto.address,
            "status_address": proto.status_address,
            "version": proto.version,
            "labels": labels.collect::<Vec<_>>(),
            "state_name": state,
        },
        "status": { "leader_count": leaders, "region_count": store.replicas },
    })
}

fn region_to_json(route: &RegionRoute<'_>, borders: BorderCodec) -> Value {
    let RegionInfo { id, start, end, conf_version, version, replicas } = route.region;
    let shown = |border: &[u8]| hex(&borders.encode(Bytes::copy_from_slice(border)));
    json!({
        "id": id,
        "start_key": shown(start),
        "end_key": shown(end),
        "epoch": { "conf_ver": conf_version, "version": version },
        "peers": replicas.iter().map(peer_to_json).collect::<Vec<_>>(),
        "leader": route.leader.as_ref().map(peer_to_json),
    })
}

fn peer_to_json(replica: &ReplicaInfo) -> Value {
    let role = convert::replica_to_proto(replica).role().as_str_name().to_owned();
    json!({ "id": replica.id, "store_id": replica.store, "role_name": role })
}

fn member_to_json(store: &KnownStore, dialer: &Dialer) -> Value {
    let member = member_to_proto(store, dialer);
    json!({
        "name": member.name,
        "member_id": member.member_id,
        "client_urls": member.client_urls,
        "peer_urls": member.peer_urls,
        "binary_version": member.binary_version,
    })
}

fn replication_to_json(pd_leader: &PdLeader) -> Value {
    let (_, replicas) = pd_leader.repair().settings();
    json!({ "max-replicas": replicas, "location-labels": "zone" })
}

fn hex(key: &[u8]) -> String {
    key.iter().map(|byte| format!("{byte:02X}")).collect()
}

#[cfg(test)]
mod tests {
    use flotilla_identity::ApiVersion;
    use flotilla_placement::{LeaderStatus, ReplicaRole};

    use super::*;

    #[test]
    fn a_region_is_told_as_pd_does() {
        let voter = ReplicaInfo { id: 201, store: 1, role: ReplicaRole::Voter };
        let learner = ReplicaInfo { id: 202, store: 2, role: ReplicaRole::Learner };
        let region = RegionInfo {
            id: 2,
            start: b"a\xff".to_vec(),
            end: vec![],
            conf_version: 3,
            version: 4,
            replicas: vec![voter, learner],
        };
        let leader_status = LeaderStatus::Fresh;
        let route = RegionRoute { region: &region, leader: Some(voter), leader_status };
        let expected = json!({
            "id": 2, "start_key": "61FF", "end_key": "",
            "epoch": { "conf_ver": 3, "version": 4 },
            "peers": [
                { "id": 201, "store_id": 1, "role_name": "Voter" },
                { "id": 202, "store_id": 2, "role_name": "Learner" },
            ],
            "leader": { "id": 201, "store_id": 1, "role_name": "Voter" },
        });
        let json = |api| region_to_json(&route, BorderCodec(api));
        assert_eq!(json(ApiVersion::V1Ttl), expected);
        let encoded = json(ApiVersion::V2);
        assert_eq!(
            (&encoded["start_key"], &encoded["end_key"]),
            (&json!("61FF000000000000F9"), &json!(""))
        );
    }
}
