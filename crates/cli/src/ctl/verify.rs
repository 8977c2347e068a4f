//! `flotilla ctl region verify`: has the replicas of regions compared, one region after the other.

use std::io::Write;
use std::time::{Duration, Instant};

use flotilla_client::StoreOperator;
use flotilla_proto::peers::{KnownStore, RegionVerdict, ReplicaDigest, VerifyRegionResponse};
use serde_json::{Value, json};

use super::text::ByteFormat;
use super::transfer::{leader, store_id};
use super::views;
use crate::tool::{ClusterTarget, Error, TableCell, number, table};

/// Between two looks for the leader, and two requests that were refused for a moment.
const RETRY: Duration = Duration::from_millis(200);

/// Compares the replicas of region `id`, or of all regions, each for `wait` at most.
pub(super) async fn run(
    target: &ClusterTarget,
    id: Option<u64>,
    wait: Duration,
    format: ByteFormat,
    out: &mut impl Write,
) -> Result<(), Error> {
    let stores = target.stores().await?;
    let ids: Vec<u64> = match id {
        Some(id) => vec![id],
        None => views::gather_regions(target, |_| true).await?.into_keys().collect(),
    };
    let mut verdicts = vec![];
    for id in ids {
        verdicts.push(compare(target, &stores, id, wait).await?);
    }
    write(&verdicts, &stores, format, out)?;
    result(&verdicts, &stores)
}

/// The verdict about one region.
async fn compare(
    target: &ClusterTarget,
    stores: &[KnownStore],
    id: u64,
    wait: Duration,
) -> Result<RegionVerdict, Error> {
    let until = target.end_of_wait(wait);
    let (mut index, mut operator) = (0, None);
    loop {
        if index == 0 {
            operator = leading(target, stores, id).await?;
        }
        let answer = match &operator {
            Some(operator) => operator.verify_region(id, index).await?,
            None => VerifyRegionResponse { is_led_elsewhere: true, ..Default::default() },
        };
        let VerifyRegionResponse { verdict: Some(verdict), .. } = answer else {
            index = answer.index;
            let is_passing = answer.is_passing || answer.is_led_elsewhere;
            if !answer.refusal.is_empty() && !is_passing {
                return Err(Error::Refused(answer.refusal));
            }
            if Instant::now() >= until {
                return Err(late(id, &answer));
            }
            if is_passing {
                tokio::time::sleep(RETRY).await;
            }
            continue;
        };
        return Ok(verdict);
    }
}

/// Why there is no verdict in time.
fn late(id: u64, answer: &VerifyRegionResponse) -> Error {
    if answer.is_led_elsewhere {
        return Error::NoQuorum(format!("region {id} has no leader"));
    }
    let refusal = match answer.refusal.as_str() {
        "" => format!("region {id}: its replicas have not computed their digests in time"),
        refusal => refusal.to_owned(),
    };
    Error::Refused(refusal)
}

/// The store that leads a region, if one does.
async fn leading(
    target: &ClusterTarget,
    stores: &[KnownStore],
    id: u64,
) -> Result<Option<StoreOperator>, Error> {
    let leader = leader(target, id).await?;
    let Some(store) = stores.iter().find(|store| store_id(store) == leader) else {
        return Ok(None);
    };
    let address = store.store.clone().unwrap_or_default().address;
    Ok(Some(StoreOperator::new(&address, &target.bounded_config())?))
}

fn name(stores: &[KnownStore], id: u64) -> String {
    let found = stores.iter().find(|store| store_id(store) == id);
    found.map_or_else(|| format!("store {id}"), |store| store.name.clone())
}

fn compared(verdict: &RegionVerdict) -> usize {
    verdict.replicas.iter().filter(|replica| replica.digest.is_some()).count()
}

fn is_complete(verdict: &RegionVerdict) -> bool {
    compared(verdict) == verdict.replicas.len()
}

fn differs(verdict: &RegionVerdict) -> bool {
    verdict.replicas.iter().any(|replica| replica.differs)
}

/// The difference between the replicas of a region in words: which differ, or all digests if there
/// is no majority.
pub(super) fn difference(verdict: &RegionVerdict, stores: &[KnownStore]) -> String {
    let told = |replica: &ReplicaDigest| {
        let digest = replica.digest.map_or("no digest".to_owned(), |it| format!("{it:016x}"));
        format!("{} ({digest})", name(stores, replica.store_id))
    };
    let of = |differ: bool| {
        let replicas = verdict.replicas.iter().filter(|it| it.differs == differ);
        let compared = replicas.filter(|it| it.digest.is_some());
        compared.map(told).collect::<Vec<_>>().join(", ")
    };
    let (odd, usual) = (of(true), of(false));
    let id = verdict.region_id;
    match usual.is_empty() {
        true => format!("region {id} differ, and no majority is equal: {odd}"),
        false => format!("region {id} differ: {odd} has other rows than {usual}"),
    }
}

/// An error if replicas differ, or were not all compared.
fn result(verdicts: &[RegionVerdict], stores: &[KnownStore]) -> Result<(), Error> {
    let words: Vec<_> = verdicts
        .iter()
        .filter(|verdict| differs(verdict))
        .map(|verdict| difference(verdict, stores))
        .collect();
    if !words.is_empty() {
        return Err(Error::Inconsistent(words.join("; those of ")));
    }
    let absent = |verdict: &RegionVerdict| {
        let absent = verdict.replicas.iter().filter(|replica| replica.digest.is_none());
        let names: Vec<_> = absent.map(|replica| name(stores, replica.store_id)).collect();
        format!("region {}: {} took no part", verdict.region_id, names.join(", "))
    };
    let mut incomplete = verdicts.iter().filter(|verdict| !is_complete(verdict));
    match incomplete.next() {
        None => Ok(()),
        Some(first) => {
            let more = incomplete.count();
            let more = if more > 0 { format!("; {more} more regions") } else { String::new() };
            Err(Error::Refused(format!("not all replicas were compared: {}{more}", absent(first))))
        }
    }
}

fn write(
    verdicts: &[RegionVerdict],
    stores: &[KnownStore],
    format: ByteFormat,
    out: &mut impl Write,
) -> Result<(), Error> {
    if format.is_json {
        let rows = verdicts.iter().map(|verdict| verdict_to_json(verdict, stores)).collect();
        return Ok(writeln!(out, "{:#}", Value::Array(rows))?);
    }
    let mut table = table(&["region", "entry", "compared", "result"]);
    for verdict in verdicts {
        let result = match (differs(verdict), is_complete(verdict)) {
            (true, _) => "differ",
            (false, true) => "equal",
            (false, false) => "equal as far as compared",
        };
        table.add_row(vec![
            number(verdict.region_id),
            number(verdict.index),
            TableCell::new(format!("{} of {}", compared(verdict), verdict.replicas.len())),
            TableCell::new(result),
        ]);
    }
    Ok(writeln!(out, "{}", table.fitted(format.screen_width))?)
}

/// A verdict for programs. Digests are text, for many readers of JSON have no integers of 64 bits.
pub(super) fn verdict_to_json(verdict: &RegionVerdict, stores: &[KnownStore]) -> Value {
    let replicas = verdict.replicas.iter().map(|replica| {
        json!({
            "peer": replica.peer_id,
            "store": replica.store_id,
            "name": name(stores, replica.store_id),
            "digest": replica.digest.map(|digest| format!("{digest:016x}")),
            "differs": replica.differs,
        })
    });
    json!({
        "region": verdict.region_id,
        "index": verdict.index,
        "compared": compared(verdict),
        "is_complete": is_complete(verdict),
        "differs": differs(verdict),
        "replicas": replicas.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use flotilla_proto::metapb;

    use super::*;

    fn stores() -> Vec<KnownStore> {
        let store = |id: u64| KnownStore {
            name: format!("s{id}"),
            store: Some(metapb::Store { id, ..Default::default() }),
            ..Default::default()
        };
        (1..=3).map(store).collect()
    }

    fn verdict(replicas: &[(Option<u64>, bool)]) -> RegionVerdict {
        let replica = |(store_id, (digest, differs)): (u64, &(Option<u64>, bool))| ReplicaDigest {
            peer_id: 700 + store_id,
            store_id,
            digest: *digest,
            differs: *differs,
        };
        let replicas = (1..).zip(replicas).map(replica).collect();
        RegionVerdict { region_id: 7, index: 90, replicas }
    }

    #[test]
    fn a_difference_is_an_error_of_its_own_that_names_the_store() {
        let odd = verdict(&[(Some(5), false), (Some(5), false), (Some(6), true)]);
        let error = result(std::slice::from_ref(&odd), &stores()).unwrap_err();
        let words = "the replicas of region 7 differ: s3 (0000000000000006) has other rows than s1 \
                     (0000000000000005), s2 (0000000000000005)";
        assert!(error.to_string().starts_with(words), "{error}");
        assert_eq!(error.exit_code(), 5);
        let row = verdict_to_json(&odd, &stores());
        assert_eq!((&row["differs"], &row["is_complete"]), (&json!(true), &json!(true)));
        let replica = json!({ "peer": 703, "store": 3, "name": "s3", "digest": "0000000000000006",
            "differs": true });
        assert_eq!(row["replicas"][2], replica);
        let none = verdict(&[(Some(5), true), (Some(6), true), (None, false)]);
        let error = result(&[none], &stores()).unwrap_err().to_string();
        assert!(error.contains("no majority is equal: s1 (0000000000000005), s2 ("), "{error}");
    }

    #[test]
    fn a_replica_that_took_no_part_is_named() {
        let equal = verdict(&[(Some(5), false), (Some(5), false), (Some(5), false)]);
        let part = verdict(&[(Some(5), false), (Some(5), false), (None, false)]);
        assert!(result(std::slice::from_ref(&equal), &stores()).is_ok());
        let error = result(&[equal.clone(), part.clone()], &stores()).unwrap_err();
        assert!(error.to_string().contains("region 7: s3 took no part"), "{error}");
        assert_eq!(error.exit_code(), 1);
        let mut out = vec![];
        let format = ByteFormat { is_hex: false, is_json: false, screen_width: None };
        write(&[equal, part], &stores(), format, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("3 of 3") && text.contains("equal as far as compared"), "{text}");
    }
}
