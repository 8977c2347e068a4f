//! The rate of one large snapshot, without and with the default bucket, beside that of a plain
//! write and sync of as many bytes to the same disk.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use flotilla_cli::tool::Error;
use serde_json::json;

use super::rows::EvenRows;
use crate::load_record::median;
use crate::report::{FigureLimit, ScenarioReport};
use crate::store_processes::{ClusterPlan, StoreProcesses, field, lines_of, until};
use crate::test_bench::{TestBench, random_bytes};

/// Bytes of a value of the rows.
const VALUE_BYTES: usize = 1024;
/// The rate without a bucket: as many MB a second, or this share of the plain one.
const MB_PER_S_LEAST: f64 = 300.0;
const PLAIN_SHARE_LEAST: f64 = 0.5;
/// The default bucket, and how near to it the rate comes.
const BUCKET_MIB_PER_S: f64 = 400.0;
const BUCKET_SHARE_LEAST: f64 = 0.95;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SnapshotArgs {
    /// MiB of values in the region [default: 1024, or 16 if quick]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    mib: Option<u64>,
    /// How often each of the three is measured [default: 3, or 1 if quick]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
}

/// One snapshot.
#[derive(Clone, Copy, Debug)]
struct SnapshotFigures {
    bytes: u64,
    /// From when it was wanted until all rows were staged.
    sent_ms: u64,
    /// From then until it was the region's durable state.
    install_ms: u64,
}

impl SnapshotFigures {
    /// MB a second until all rows were staged.
    fn rate(self) -> f64 {
        self.bytes as f64 / 1e3 / self.sent_ms.max(1) as f64
    }

    /// MB a second until it was in place.
    fn whole_rate(self) -> f64 {
        self.bytes as f64 / 1e3 / (self.sent_ms + self.install_ms).max(1) as f64
    }
}

pub(crate) async fn measure(
    bench: &TestBench,
    args: &SnapshotArgs,
) -> Result<ScenarioReport, Error> {
    let bytes = args.mib.unwrap_or(bench.args.pick(1024, 16)) << 20;
    let rounds = args.rounds.unwrap_or(bench.args.pick(3, 1));
    let tables = |bucket: &str| {
        format!("[split]\nautomatic = false\nregion_bytes_max = 1099511627776\n{bucket}")
    };
    let [free, limited] = [tables("[snapshot]\nbytes_per_s = 0\n"), tables("")];
    let plan = ClusterPlan { regions: 1, tables: free.clone() };
    let mut cluster = StoreProcesses::start(bench, "snapshot", 3, &plan).await?;
    cluster.join("s4").await?;
    cluster.flotilla("ctl repair pause").await?;
    let client = cluster.client().await?;
    EvenRows::of(bytes, VALUE_BYTES).fill(&client, bench.args.seed).await?;
    drop(client);
    let (mut plain, mut frees, mut limiteds) = (vec![], vec![], vec![]);
    // Where the replica that moves is, and where there is none.
    let mut places = (2, 3);
    for round in 1..=rounds {
        bench.say(&format!("round {round}"));
        for (tables, figures) in [(&free, &mut frees), (&limited, &mut limiteds)] {
            set(&mut cluster, tables).await?;
            figures.push(copy(&cluster, places).await?);
            places = (places.1, places.0);
        }
        let as_many = frees.last().map_or(bytes, |it: &SnapshotFigures| it.bytes);
        plain.push(write(&bench.dir().join("plain"), as_many, bench.args.seed)?);
    }
    Ok(told(&plain, &frees, &limiteds))
}

fn told(plain: &[f64], frees: &[SnapshotFigures], limiteds: &[SnapshotFigures]) -> ScenarioReport {
    let mut report = ScenarioReport::new("snapshot");
    let middle = |of: Vec<f64>| median(&of).unwrap_or(f64::NAN);
    let rate = |of: &[SnapshotFigures]| middle(of.iter().map(|it| it.rate()).collect());
    let whole = |of: &[SnapshotFigures]| middle(of.iter().map(|it| it.whole_rate()).collect());
    let bytes = frees.first().map_or(0, |it| it.bytes);
    report.tell("mib", "MiB of the snapshot", bytes as f64 / f64::from(1 << 20));
    let plain_rate = middle(plain.to_vec());
    report.tell("plain_mb_per_s", "plain write and sync, MB/s", plain_rate);
    let least = MB_PER_S_LEAST.min(plain_rate * PLAIN_SHARE_LEAST);
    let free = rate(frees);
    let words = "snapshot without a bucket, MB/s";
    report.time("free_mb_per_s", words, free, FigureLimit::AtLeast(least));
    report.tell("free_whole_mb_per_s", "the same until it is in place, MB/s", whole(frees));
    let bucket = BUCKET_MIB_PER_S * f64::from(1 << 20) / 1e6;
    let least = bucket.min(free) * BUCKET_SHARE_LEAST;
    let words = "snapshot with the default bucket, MB/s";
    report.time("limited_mb_per_s", words, rate(limiteds), FigureLimit::AtLeast(least));
    report.tell("limited_whole_mb_per_s", "the same until it is in place, MB/s", whole(limiteds));
    let each = |of: &[SnapshotFigures]| {
        let each =
            of.iter().map(|it| json!({ "sent_ms": it.sent_ms, "install_ms": it.install_ms }));
        each.collect::<Vec<_>>()
    };
    report.detail("plain", plain);
    report.detail("free", each(frees));
    report.detail("limited", each(limiteds));
    report
}

/// Starts the stores again with other settings.
async fn set(cluster: &mut StoreProcesses, tables: &str) -> Result<(), Error> {
    cluster.configure(tables);
    for place in 0..cluster.stores.len() {
        cluster.stop(place).await?;
        cluster.restart(place)?;
    }
    cluster.ready().await
}

/// Moves a replica of the only region of clients' keys to another store, which takes a snapshot.
async fn copy(
    cluster: &StoreProcesses,
    (from, to): (usize, usize),
) -> Result<SnapshotFigures, Error> {
    let (source, target) = (&cluster.stores[from], &cluster.stores[to]);
    let regions = cluster.regions().await;
    let region = regions.iter().find(|(_, region)| !region.is_system).map_or(0, |(id, _)| *id);
    let change = format!("ctl region move {region} --from {} --to {}", source.name, target.name);
    cluster.flotilla(&change).await?;
    let last = |lines: Vec<String>, name: &str| lines.last().and_then(|line| field(line, name));
    let mut figures = None;
    until("the stores were to say how long the snapshot took", async || {
        // By the leader: which one that is, is chance.
        let said = cluster.stores.iter().map(|store| store.said(true)).collect::<String>();
        let sent = || lines_of(&said, "a snapshot was sent");
        let installed = || lines_of(&target.said(true), "a snapshot was installed");
        let bytes = last(sent(), "bytes").zip(last(sent(), "ms"));
        figures = bytes.zip(last(installed(), "ms"));
        Ok(figures.is_some())
    })
    .await?;
    let ((bytes, sent_ms), install_ms) = figures.unwrap_or_default();
    Ok(SnapshotFigures { bytes, sent_ms, install_ms })
}

/// Writes bytes to a new file and syncs it: MB a second. The file goes again.
fn write(path: &Path, bytes: u64, seed: u64) -> Result<f64, Error> {
    let block = random_bytes(seed, 1 << 20);
    let began = Instant::now();
    let mut file = File::create(path)?;
    let mut left = bytes;
    while left > 0 {
        let some = left.min(block.len() as u64);
        file.write_all(&block[..some as usize])?;
        left -= some;
    }
    file.sync_all()?;
    let rate = bytes as f64 / 1e6 / began.elapsed().as_secs_f64();
    std::fs::remove_file(path)?;
    Ok(rate)
}
