//! One region: what its replicas say, its split, the transfer of its lead, and their comparison.

use std::io::Write;
use std::time::Duration;

use bytes::Bytes;
use flotilla_client::Client;
use flotilla_proto::metapb;
use flotilla_proto::peers::{RegionStatus, Space};
use serde_json::{Value, json};

use super::replicas::{self, ReplicaChange};
use super::text::{ByteFormat, escape, hex};
use super::{transfer, verify, views};
use crate::split_keys;
use crate::tool::{ClusterTarget, Error, TableCell, number, table};

#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum RegionCommand {
    /// Shows a region as its replicas have it: `flotilla ctl region show 7`, or `--key user7`
    Show {
        /// Which
        #[arg(required_unless_present = "key", conflicts_with = "key")]
        id: Option<u64>,
        /// The region that holds this key
        #[arg(long)]
        key: Option<String>,
    },
    /// Splits a region at keys, or into halves: `flotilla ctl region split --key m --key t`
    ///
    /// Without a number the keys may be of several regions: each is split where it holds one, and a
    /// key at which a region begins is left alone. `flotilla ctl region split 7` halves region 7.
    Split {
        /// Which [default: those that hold the keys]
        #[arg(required_unless_present = "keys")]
        id: Option<u64>,
        /// Where a part is to begin; may be given several times [default: the middle of its bytes]
        #[arg(long = "key", value_name = "KEY")]
        keys: Vec<String>,
    },
    /// Has another store lead a region: `flotilla ctl region transfer 2 --to s3`
    ///
    /// Requests for the region go on meanwhile: writes wait for a few milliseconds. Placement evens
    /// out how many regions each store leads, and may transfer the lead of any of them again.
    Transfer {
        /// Which
        id: u64,
        /// Name or number of the store [default: the one that lacks least of the log]
        #[arg(long, value_name = "STORE")]
        to: Option<String>,
    },
    /// Compares the rows of all replicas of a region, or of all: `flotilla ctl region verify 7`
    ///
    /// Each replica reads all of its rows behind the same entry of the log, at the rate of its
    /// store's `verify.bytes_per_s`; requests go on meanwhile. Nothing is repaired. Exit code 5 if
    /// replicas differ, and 1 if there is no difference but some replica took no part.
    Verify {
        /// Which [default: all, one after the other]
        id: Option<u64>,
        /// Seconds until a comparison is not waited for any longer, though it goes on
        #[arg(long = "wait", value_name = "SECONDS", default_value_t = 1800)]
        wait_seconds: u64,
    },
    /// Gives a region replicas on further stores: `flotilla ctl region add 7 --store s4`
    ///
    /// Each begins as a learner, gets the data, and then its vote. A region has the number of
    /// replicas of the cluster, so this is refused unless repair is paused:
    /// `flotilla ctl repair pause`.
    Add {
        /// Which
        id: u64,
        /// Name or number of a store; may be given twice
        #[arg(long = "store", value_name = "STORE", required = true)]
        stores: Vec<String>,
        #[command(flatten)]
        wait: Wait,
    },
    /// Takes replicas of a region away: `flotilla ctl region remove 7 --store s4`
    ///
    /// A region has the number of replicas of the cluster, so this is refused unless repair is
    /// paused, or the region has too many.
    Remove {
        /// Which
        id: u64,
        /// Name or number of a store; may be given several times
        #[arg(long = "store", value_name = "STORE", required = true)]
        stores: Vec<String>,
        #[command(flatten)]
        wait: Wait,
    },
    /// Moves a replica to another store: `flotilla ctl region move 7 --from s1 --to s4`
    ///
    /// Requests for the region go on meanwhile. If the replica leads, another one leads first.
    Move {
        /// Which
        id: u64,
        /// Name or number of the store that has the replica
        #[arg(long, value_name = "STORE")]
        from: String,
        /// Name or number of the store that gets it
        #[arg(long, value_name = "STORE")]
        to: String,
        #[command(flatten)]
        wait: Wait,
    },
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Wait {
    /// Seconds until the command ends, though the change goes on
    #[arg(long = "wait", value_name = "SECONDS", default_value_t = 600)]
    pub(super) seconds: u64,
}

pub(crate) async fn run(
    target: &ClusterTarget,
    command: &RegionCommand,
    format: ByteFormat,
    out: &mut impl Write,
) -> Result<(), Error> {
    match command {
        RegionCommand::Show { id, key } => {
            let key = key.as_ref().map(|key| format.key(key)).transpose()?;
            let wanted = |region: &RegionStatus| match (id, &key) {
                (Some(id), _) => region.region.as_ref().is_some_and(|region| region.id == *id),
                (None, key) => key.as_ref().is_some_and(|key| holds(region, key)),
            };
            let absent = match (id, &key) {
                (Some(id), _) => format!("there is no region {id}"),
                (None, _) => "no region holds the key".to_owned(),
            };
            show(target, wanted, absent, format, out).await
        }
        RegionCommand::Split { id, keys } => {
            let keys = keys.iter().map(|key| format.key(key)).collect::<Result<Vec<_>, _>>()?;
            let client = target.client().await?;
            let made = match id {
                Some(id) => client.split_region(*id, keys).await?,
                None => split_where_held(&client, &keys).await?,
            };
            parts(&made, format, out)
        }
        RegionCommand::Transfer { id, to } => {
            transfer::run(target, *id, to.as_deref(), format, out).await
        }
        RegionCommand::Verify { id, wait_seconds } => {
            verify::run(target, *id, Duration::from_secs(*wait_seconds), format, out).await
        }
        RegionCommand::Add { id, stores, wait } => {
            let change = ReplicaChange { added: stores.clone(), ..wait.change() };
            replicas::change(target, *id, &change, format, out).await
        }
        RegionCommand::Remove { id, stores, wait } => {
            let change = ReplicaChange { removed: stores.clone(), ..wait.change() };
            replicas::change(target, *id, &change, format, out).await
        }
        RegionCommand::Move { id, from, to, wait } => {
            let (added, removed) = (vec![to.clone()], vec![from.clone()]);
            let change = ReplicaChange { added, removed, ..wait.change() };
            replicas::change(target, *id, &change, format, out).await
        }
    }
}

/// Splits the regions that hold keys. The regions that end or begin at one of them.
async fn split_where_held(client: &Client, keys: &[Bytes]) -> Result<Vec<metapb::Region>, Error> {
    if let Some(place) = keys.iter().position(Bytes::is_empty) {
        let place = place + 1;
        return Err(Error::Argument(format!(
            "key {place} is empty: the first region begins there"
        )));
    }
    split_keys::split(client, keys).await?;
    let at_key = |region: &metapb::Region| {
        keys.contains(&region.start_key) || keys.contains(&region.end_key)
    };
    let regions = client.regions().await?.into_iter().map(|located| located.region);
    Ok(regions.filter(at_key).collect())
}

impl Wait {
    fn change(&self) -> ReplicaChange {
        ReplicaChange { wait_seconds: self.seconds, ..ReplicaChange::default() }
    }
}

async fn show(
    target: &ClusterTarget,
    wanted: impl Fn(&RegionStatus) -> bool,
    absent: String,
    format: ByteFormat,
    out: &mut impl Write,
) -> Result<(), Error> {
    let mut found = views::gather_regions(target, wanted).await?;
    views::note_work(target, &mut found).await?;
    // Several hold the key while a store has not applied a split that another one has.
    let version = |region: &&views::RegionSummary| {
        let best = region.best().and_then(|best| best.region.as_ref()?.region_epoch);
        best.map(|epoch| epoch.version)
    };
    let Some(region) = found.values().max_by_key(version) else {
        return Err(Error::Absent(absent));
    };
    if format.is_json {
        return Ok(writeln!(out, "{:#}", region.to_json().unwrap_or_default())?);
    }
    views::write_regions([region].into_iter(), format, out)
}

fn holds(status: &RegionStatus, key: &[u8]) -> bool {
    status.space() == Space::Raw
        && status.region.as_ref().is_some_and(|region| {
            region.start_key <= key && (region.end_key.is_empty() || key < region.end_key.as_ref())
        })
}

/// The parts of a split.
fn parts(
    regions: &[metapb::Region],
    format: ByteFormat,
    out: &mut impl Write,
) -> Result<(), Error> {
    if format.is_json {
        let parts = regions.iter().map(part_to_json).collect();
        return Ok(writeln!(out, "{:#}", Value::Array(parts))?);
    }
    let mut table = table(&["id", "start", "end", "epoch"]);
    for region in regions {
        let epoch = region.region_epoch.unwrap_or_default();
        table.add_row(vec![
            number(region.id),
            TableCell::new(views::bound(&region.start_key, format)),
            TableCell::new(views::bound(&region.end_key, format)),
            TableCell::new(format!("{}.{}", epoch.version, epoch.conf_ver)),
        ]);
    }
    Ok(writeln!(out, "{}", table.fitted(format.screen_width))?)
}

fn part_to_json(region: &metapb::Region) -> Value {
    let epoch = region.region_epoch.unwrap_or_default();
    json!({
        "id": region.id,
        "start": escape(&region.start_key),
        "start_hex": hex(&region.start_key),
        "end": escape(&region.end_key),
        "end_hex": hex(&region.end_key),
        "version": epoch.version,
        "conf_version": epoch.conf_ver,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_held_by_the_region_of_clients_around_it() {
        let region = metapb::Region {
            id: 2,
            start_key: "b".into(),
            end_key: "m".into(),
            ..Default::default()
        };
        let status = |space: Space| RegionStatus {
            region: Some(region.clone()),
            space: space.into(),
            ..Default::default()
        };
        for (key, held) in [("a", false), ("b", true), ("lz", true), ("m", false)] {
            assert_eq!(holds(&status(Space::Raw), key.as_bytes()), held, "{key}");
        }
        assert!(!holds(&status(Space::System), b"c"));
    }

    #[test]
    fn the_parts_are_printed_with_their_borders_and_versions() {
        let region = metapb::Region {
            id: 9,
            end_key: "m ".into(),
            region_epoch: Some(metapb::RegionEpoch { conf_ver: 1, version: 4 }),
            ..Default::default()
        };
        let mut out = vec![];
        parts(
            std::slice::from_ref(&region),
            ByteFormat { is_hex: false, is_json: false, screen_width: None },
            &mut out,
        )
        .unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("\"m \"") && text.contains("4.1"), "{text}");
        let row = part_to_json(&region);
        assert_eq!((&row["end_hex"], &row["version"]), (&json!("6d20"), &json!(4)));
    }
}
