//! The transfer of a region's lead: finds the store that leads it, and asks that one.

use std::io::Write;
use std::time::{Duration, Instant};

use flotilla_client::StoreOperator;
use flotilla_proto::metapb;
use flotilla_proto::peers::{KnownStore, RegionStatus, Role};
use serde_json::json;

use super::text::ByteFormat;
use super::views;
use crate::tool::{ClusterTarget, Error, is_gone};

/// Between two looks for the leader.
const RETRY: Duration = Duration::from_millis(100);

/// Has store `to`, or the one that lacks least of the log, lead region `id`.
pub(super) async fn run(
    target: &ClusterTarget,
    id: u64,
    to: Option<&str>,
    format: ByteFormat,
    out: &mut impl Write,
) -> Result<(), Error> {
    let stores = target.stores().await?;
    let to = to.map(|name| find(&stores, name)).transpose()?;
    let until = target.end_of_request();
    loop {
        let leader = leader(target, id).await?;
        let store = stores.iter().find(|store| store_id(store) == leader);
        if let Some(store) = store {
            let address = store.store.clone().unwrap_or_default().address;
            let operator = StoreOperator::new(&address, &target.bounded_config())?;
            let response = operator.transfer_leader(id, to.map(store_id)).await?;
            if let Some(leader) = response.leader {
                return done(&stores, id, &leader, format, out);
            }
            if !response.is_led_elsewhere {
                let name = &store.name;
                let refusal = format!("{name} at {address}: {}", response.refusal);
                return Err(Error::Refused(refusal));
            }
        }
        // It has no leader at the moment, or has just got another one.
        if Instant::now() >= until {
            return Err(Error::NoQuorum(format!("region {id} has no leader")));
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// The store that leads, 0 if there is none.
pub(super) async fn leader(target: &ClusterTarget, id: u64) -> Result<u64, Error> {
    let wanted = |region: &RegionStatus| region.region.as_ref().is_some_and(|it| it.id == id);
    let found = views::gather_regions(target, wanted).await?;
    let Some(region) = found.get(&id) else {
        return Err(Error::Absent(format!("there is no region {id}")));
    };
    let leads = |replica: &&(u64, RegionStatus)| replica.1.role() == Role::Leader;
    // A leader that was replaced may not have heard of it.
    let best = region.replicas().iter().filter(leads).max_by_key(|(_, status)| status.term);
    Ok(best.map_or(0, |(store, _)| *store))
}

/// The store of this name, or of this number.
pub(super) fn find<'a>(stores: &'a [KnownStore], name: &str) -> Result<&'a KnownStore, Error> {
    // A store that was replaced has left its name to its successor.
    let named = || stores.iter().filter(|store| store.name == name);
    let by_name = named().find(|store| !is_gone(store)).or_else(|| named().last());
    let by_id = || stores.iter().find(|store| store_id(store).to_string() == name);
    by_name.or_else(by_id).ok_or_else(|| {
        let names: Vec<_> = stores.iter().map(|store| store.name.as_str()).collect();
        Error::Argument(format!("there is no store {name}; there are {}", names.join(", ")))
    })
}

pub(super) fn store_id(store: &KnownStore) -> u64 {
    store.store.as_ref().map_or(0, |store| store.id)
}

fn done(
    stores: &[KnownStore],
    region: u64,
    leader: &metapb::Peer,
    format: ByteFormat,
    out: &mut impl Write,
) -> Result<(), Error> {
    let store = stores.iter().find(|store| store_id(store) == leader.store_id);
    let name = store.map_or_else(String::new, |store| store.name.clone());
    if format.is_json {
        let leader = json!({ "peer": leader.id, "store": leader.store_id, "name": name });
        return Ok(writeln!(out, "{:#}", json!({ "region": region, "leader": leader }))?);
    }
    Ok(writeln!(out, "region {region} is led by {name}")?)
}

#[cfg(test)]
mod tests {
    use flotilla_proto::peers::StoreState;

    use super::*;

    fn stores() -> Vec<KnownStore> {
        let store = |id: u64, name: &str| KnownStore {
            name: name.to_owned(),
            store: Some(metapb::Store { id, ..Default::default() }),
            ..Default::default()
        };
        // A name that looks like the number of another one.
        vec![store(1, "s1"), store(2, "3"), store(3, "s3")]
    }

    #[test]
    fn a_store_is_found_by_its_name_and_then_by_its_number() {
        let stores = stores();
        let id = |name| find(&stores, name).map(store_id);
        assert_eq!((id("s1").unwrap(), id("1").unwrap(), id("3").unwrap()), (1, 1, 2));
        let error = id("s4").unwrap_err();
        assert!(error.to_string().contains("no store s4; there are s1, 3, s3"), "{error}");
        assert_eq!(error.exit_code(), 2);
    }

    #[test]
    fn a_name_is_that_of_the_successor() {
        let mut stores = stores();
        stores[0].state = StoreState::StoreLost.into();
        stores.push(KnownStore {
            name: "s1".to_owned(),
            store: Some(metapb::Store { id: 9, ..Default::default() }),
            ..Default::default()
        });
        let id = |stores: &[KnownStore], name| find(stores, name).map(store_id).unwrap();
        assert_eq!((id(&stores, "s1"), id(&stores, "1")), (9, 1));
        stores[3].state = StoreState::StoreRemoved.into();
        assert_eq!(id(&stores, "s1"), 9, "the last that had it");
    }

    #[test]
    fn the_new_leader_is_named() {
        let leader = metapb::Peer { id: 203, store_id: 3, ..Default::default() };
        let said = |is_json| {
            let mut out = vec![];
            let format = ByteFormat { is_hex: false, is_json, screen_width: None };
            done(&stores(), 2, &leader, format, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(said(false), "region 2 is led by s3\n");
        let row: serde_json::Value = serde_json::from_str(&said(true)).unwrap();
        assert_eq!(row["leader"], json!({ "peer": 203, "store": 3, "name": "s3" }));
    }
}
