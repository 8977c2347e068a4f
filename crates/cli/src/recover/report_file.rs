//! The report of a survivor as a file: JSON, with regions and the registry as the store has them,
//! in hexadecimal digits.

use std::path::Path;

use bytes::Bytes;
use flotilla_identity::StoreRegistry;
use flotilla_region::{Descriptor, Index, PeerId, StoreId, Term};
use flotilla_store::{SurvivingReplica, SurvivorReport};
use serde_json::{Value, json};

use crate::ctl::hex;
use crate::offline::named;
use crate::tool::Error;

/// The version of the file.
const FORMAT: u64 = 1;

pub(super) fn to_json(report: &SurvivorReport) -> Value {
    let replicas = report.replicas.iter().map(|replica| {
        json!({
            "region": replica.descriptor.id.0,
            "descriptor": hex(&replica.descriptor.encode()),
            "peer": replica.peer.0,
            "committed": replica.committed.0,
            "last_index": replica.last.0.0,
            "last_term": replica.last.1.0,
        })
    });
    json!({
        "format": FORMAT,
        // In digits: a program that takes it for a float would round it.
        "cluster_id": report.cluster_id.to_string(),
        "store": report.store.0,
        "registry": hex(&report.registry.encode()),
        "replicas": replicas.collect::<Value>(),
    })
}

pub(super) fn read(file: &Path) -> Result<SurvivorReport, Error> {
    let text = std::fs::read_to_string(file).map_err(|error| named(file, &error))?;
    let wrong = |what: &str| Error::Data(format!("{}: {what}", file.display()));
    let json: Value =
        serde_json::from_str(&text).map_err(|error| wrong(&format!("no report: {error}")))?;
    if json["format"] != FORMAT {
        return Err(wrong("no report that this version knows"));
    }
    from_json(&json).ok_or_else(|| wrong("a report with fields that are missing or malformed"))
}

fn from_json(json: &Value) -> Option<SurvivorReport> {
    let replicas = json["replicas"].as_array()?.iter().map(|replica| {
        let number = |field: &str| replica[field].as_u64();
        Some(SurvivingReplica {
            descriptor: Descriptor::decode(unhex(&replica["descriptor"])?).ok()?,
            peer: PeerId(number("peer")?),
            committed: Index(number("committed")?),
            last: (Index(number("last_index")?), Term(number("last_term")?)),
        })
    });
    Some(SurvivorReport {
        cluster_id: json["cluster_id"].as_str()?.parse().ok()?,
        store: StoreId(json["store"].as_u64()?),
        registry: StoreRegistry::decode(&unhex(&json["registry"])?).ok()?,
        replicas: replicas.collect::<Option<_>>()?,
    })
}

fn unhex(value: &Value) -> Option<Bytes> {
    let digits = value.as_str()?.as_bytes();
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let byte = |pair: &[u8]| match pair {
        [high, low] => u8::try_from(digit(*high)? * 16 + digit(*low)?).ok(),
        _ => None,
    };
    digits.chunks(2).map(byte).collect::<Option<Vec<_>>>().map(Bytes::from)
}

#[cfg(test)]
mod tests {
    use flotilla_region::{Epoch, Peer, RegionId, RemovedPeers, Space};

    use super::*;

    #[test]
    fn a_report_comes_back_as_it_was_written() {
        let descriptor = Descriptor {
            id: RegionId(7),
            space: Space::Raw,
            start: "b".into(),
            end: Bytes::new(),
            epoch: Epoch { conf_version: 1, version: 2 },
            peers: vec![Peer { id: PeerId(9), store: StoreId(1) }.into()],
            removed: RemovedPeers::default(),
        };
        let replica = SurvivingReplica {
            descriptor,
            peer: PeerId(9),
            committed: Index(4),
            last: (Index(5), Term(6)),
        };
        let report = SurvivorReport {
            cluster_id: u64::MAX,
            store: StoreId(1),
            registry: StoreRegistry { version: 3, ..StoreRegistry::default() },
            replicas: vec![replica],
        };
        let mut json = to_json(&report);
        assert_eq!(from_json(&json), Some(report));
        for (field, wrong) in [("descriptor", "0"), ("descriptor", "zz"), ("peer", "9")] {
            let mut other = json.clone();
            other["replicas"][0][field] = wrong.into();
            assert_eq!(from_json(&other), None, "{field}");
        }
        json["registry"] = Value::Null;
        assert_eq!(from_json(&json), None);
    }
}
