//! `/status/regions`: the regions of the clients' keys with their leaders, as the leader of
//! placement knows them, or as far as this store does.

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::routing::get;
use flotilla_placement::{LeaderStatus, ReplicaInfo, ReplicaRole};
use serde_json::{Value, json};

use super::query;
use super::state::PageState;
use crate::config::escape_key;
use crate::net::answer::{self, Answer};
use crate::pd::{NoSuchRegion, RegionPage, RegionView};

/// Regions of one answer, at most.
const REGIONS_MAX: usize = 2000;
/// Bytes of a key that are shown at most: borders may have thousands.
const KEY_BYTES_SHOWN: usize = 128;

/// A request for regions.
struct RegionsQuery {
    /// The last region of the answer before this one; 0 at the beginning.
    after: u64,
    limit: usize,
    /// Asked by another store: it is not sent on, for else two stores that take each other for the
    /// leader of placement would send it to and fro.
    is_relayed: bool,
}

impl RegionsQuery {
    fn parse(query: Option<&str>) -> Result<Self, String> {
        let number = |name| query::number(query, name);
        let limit =
            number("limit")?.map_or(REGIONS_MAX, |it| usize::try_from(it).unwrap_or(REGIONS_MAX));
        Ok(Self {
            after: number("after")?.unwrap_or(0),
            limit: limit.clamp(1, REGIONS_MAX),
            is_relayed: number("relayed")?.is_some_and(|relayed| relayed != 0),
        })
    }
}

pub(super) fn routes() -> Router<PageState> {
    Router::new().route("/status/regions", get(regions))
}

async fn regions(State(state): State<PageState>, RawQuery(query): RawQuery) -> Answer {
    let RegionsQuery { after, limit, is_relayed } = match RegionsQuery::parse(query.as_deref()) {
        Ok(query) => query,
        Err(words) => return answer::bad_request(&words),
    };
    let here = state.reader.membership.id().store;
    let reason = match state.regions.of_cluster(after, limit).await {
        Some(found) => return answer_with(found, after, "placement", here.0, None),
        None if is_relayed => return answer::unavailable("it does not lead placement"),
        None => match state.regions.leader().filter(|leader| leader.store != here) {
            None => "no leader of placement is known".to_owned(),
            Some(leader) => {
                let path = format!("/status/regions?after={after}&limit={limit}&relayed=1");
                match state.relay.get(&leader.address, &path).await {
                    Ok(document) => return answer::json(&document),
                    Err(words) => {
                        format!("store {}, the leader of placement: {words}", leader.store)
                    }
                }
            }
        },
    };
    // Better than nothing, and it is said: the regions of which a replica is here.
    let found = state.regions.of_store(after, limit);
    answer_with(found, after, "store", here.0, Some(&reason))
}

fn answer_with(
    found: Result<RegionPage, NoSuchRegion>,
    after: u64,
    view: &str,
    store: u64,
    reason: Option<&str>,
) -> Answer {
    let Ok(RegionPage { total, regions, has_more, without_leader }) = found else {
        return answer::bad_request(&format!("there is no region {after} to go on behind"));
    };
    answer::json(&json!({
        "view": view,
        "store": store,
        "reason": reason,
        "total": total,
        "without_leader": without_leader,
        "more": has_more,
        "regions": regions.iter().map(region_to_json).collect::<Vec<_>>(),
    }))
}

fn region_to_json(seen: &RegionView) -> Value {
    let RegionView { region, leader, leader_status, down, repair } = seen;
    json!({
        "id": region.id,
        "start": shown(&region.start),
        "end": shown(&region.end),
        "version": region.version,
        "conf_version": region.conf_version,
        "leader": leader.map(|leader| leader.store),
        "leader_status": match leader_status {
            LeaderStatus::Fresh => "fresh",
            LeaderStatus::Suspect => "suspect",
            LeaderStatus::Unknown => "unknown",
        },
        "replicas": region.replicas.iter().map(replica_to_json).collect::<Vec<_>>(),
        "down": down,
        "work": repair.map(|reason| reason.words()),
    })
}

fn replica_to_json(replica: &ReplicaInfo) -> Value {
    let role = match replica.role {
        ReplicaRole::Voter => "voter",
        ReplicaRole::Learner => "learner",
        ReplicaRole::Incoming => "incoming",
        ReplicaRole::Outgoing => "outgoing",
    };
    json!({ "id": replica.id, "store": replica.store, "role": role })
}

/// A key as `ctl` prints it, or its beginning and how many bytes follow.
fn shown(key: &[u8]) -> String {
    match key.len().checked_sub(KEY_BYTES_SHOWN) {
        None | Some(0) => escape_key(key),
        Some(more) => format!("{}… and {more} bytes", escape_key(&key[..KEY_BYTES_SHOWN])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_shown_as_ctl_prints_it_and_a_long_one_in_part() {
        assert_eq!(shown(b"r\x00\x00\x01user\\"), "r\\x00\\x00\\x01user\\\\");
        let long = shown(&[b'k'; 8192]);
        assert_eq!(long, format!("{}… and 8064 bytes", "k".repeat(128)));
    }
}
