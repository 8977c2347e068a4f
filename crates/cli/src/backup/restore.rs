//! Restores a backup into a cluster that was just bootstrapped: splits it at the borders of the
//! backup, and writes the rows, region after region. The cluster remembers how far that is, so
//! that a restore which was interrupted goes on, from whichever machine
//! (`docs/decisions/0055-a-backup-is-a-manifest-and-files-by-digest.md`).

use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use flotilla_backup::{
    BackupManifest, BackupRegion, BackupRow, PlacementPoint, RowBlock, borders, rows_of,
};
use flotilla_client::{Client, ColumnFamily, Config, Pair, Scan};
use flotilla_proto::peers::restore_step_request::Step;
use flotilla_proto::peers::{
    HandedOut, KnownStore, MadeKeyspace, RestoreBegin, RestoreStepRequest, RestoreStepResponse,
};

use super::directory::{BackupDirectory, at};
use super::verify;
use crate::ctl::placement;
use crate::tool::{ClusterTarget, Error, tell};
use crate::units;
use crate::wall_clock_ms::now_ms;

/// Bytes of rows that are written together, each region's part at once.
const BATCH_BYTES: usize = 2 << 20;
/// The longest time of one batch: an election, and stores that are slow under the load.
const BATCH_TIME_MAX: Duration = Duration::from_secs(60);
/// Between two lines about how far it is.
const LINE_PAUSE: Duration = Duration::from_secs(5);

/// A backup that was restored, and what that took.
#[derive(Debug)]
pub(super) struct RestoredBackup {
    pub(super) manifest: BackupManifest,
    /// Regions that an interrupted restore had written.
    pub(super) resumed: u64,
    pub(super) rows: u64,
    /// Rows that had expired.
    pub(super) expired: u64,
    pub(super) took: Duration,
}

/// Restores the backup of this number, or the last one, of `dir`.
pub(super) async fn run(
    target: &ClusterTarget,
    dir: &Path,
    number: Option<u64>,
    bytes_per_s: u64,
) -> Result<RestoredBackup, Error> {
    let began = Instant::now();
    let directory = BackupDirectory::open(dir)?;
    let manifest = directory.manifest_or_last(number)?;
    let told = target.registered_stores().await?;
    let api_version = if told.api_version == 2 { 2 } else { 1 };
    if manifest.api_version != api_version {
        let given = if manifest.api_version == 2 { "v2" } else { "v1ttl" };
        return Err(Error::Refused(format!(
            "the backup is of a cluster of API V{}, and this one is of V{api_version}: bootstrap \
             one with `--api {given}`",
            manifest.api_version
        )));
    }
    // Before a row is written: a part of a backup in a cluster is of no use.
    if let Some(problem) = verify::problems(&directory, &manifest).first() {
        return Err(Error::Data(format!("the backup is damaged: {problem}")));
    }
    let config = Config { deadline: BATCH_TIME_MAX, ..target.config() };
    let config = target.config_of_cluster(config).await?;
    let client = Client::connect(&target.endpoints, config).await.map_err(Error::from)?;
    let mark = RestoreSteps { target, stores: target.stores().await?, backup: manifest.identity() };
    let begin = RestoreBegin {
        holds_rows: holds_rows(&client, api_version).await?,
        handed_out: Some(to_wire(&manifest.placement)),
    };
    let resumed = mark.step(Step::Begin(begin)).await?;
    split(&client, &manifest.regions).await?;
    let mut writer = RowWriter {
        client,
        pace: WritePace { bytes_per_s, next: Instant::now() },
        rows: 0,
        expired: 0,
    };
    let (count, mut shown) = (manifest.regions.len() as u64, Instant::now());
    for (done, region) in (1..).zip(&manifest.regions).skip(resumed as usize) {
        writer.write(&directory, region).await?;
        mark.step(Step::RegionsDone(done)).await?;
        if shown.elapsed() >= LINE_PAUSE {
            shown = Instant::now();
            let (done, count) = (units::count(done), units::count(count));
            tell(format_args!("{done} of {count} regions, {} rows", units::count(writer.rows)));
        }
    }
    mark.step(Step::End(true)).await?;
    let RowWriter { rows, expired, .. } = writer;
    Ok(RestoredBackup { manifest, resumed, rows, expired, took: began.elapsed() })
}

/// Whether there is any row.
async fn holds_rows(client: &Client, api_version: u8) -> Result<bool, Error> {
    // Under V2 there are no other column families.
    let families = if api_version == 2 { 1 } else { ColumnFamily::ALL.len() };
    for family in ColumnFamily::ALL.into_iter().take(families) {
        let first = Scan { limit: 1, key_only: true, ..Scan::default() };
        if !client.in_family(family).scan(first).await?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Has regions begin where those of the backup did. Borders that are there already stay.
async fn split(client: &Client, regions: &[BackupRegion]) -> Result<(), Error> {
    let mut left: Vec<_> = borders(regions).collect();
    for located in client.regions().await? {
        let region = located.region;
        let is_inside = |key: &Bytes| {
            *key > region.start_key && (region.end_key.is_empty() || *key < region.end_key)
        };
        let (inside, rest): (Vec<_>, Vec<_>) = left.into_iter().partition(is_inside);
        left = rest;
        if !inside.is_empty() {
            client.split_region(region.id, inside).await?;
        }
    }
    Ok(())
}

/// The mark of the restore in the cluster.
struct RestoreSteps<'a> {
    target: &'a ClusterTarget,
    stores: Vec<KnownStore>,
    backup: Bytes,
}

impl RestoreSteps<'_> {
    /// Carries out a step; the answer's number of regions that are done.
    async fn step(&self, step: Step) -> Result<u64, Error> {
        let until = self.target.end_of_wait(BATCH_TIME_MAX);
        let request = RestoreStepRequest { backup: self.backup.clone(), step: Some(step) };
        let asked = placement::ask(self.target, &self.stores, until, async |operator| {
            let response = operator.restore_step(request.clone()).await?;
            Ok((!response.is_led_elsewhere).then_some(response))
        });
        let answered = asked.await?;
        let RestoreStepResponse { refusal, regions_done, .. } = &answered.answer;
        match refusal.is_empty() {
            true => Ok(*regions_done),
            false => Err(answered.refused(refusal)),
        }
    }
}

/// Writes the rows of regions, at a bounded rate.
struct RowWriter {
    client: Client,
    pace: WritePace,
    rows: u64,
    expired: u64,
}

impl RowWriter {
    async fn write(
        &mut self,
        directory: &BackupDirectory,
        region: &BackupRegion,
    ) -> Result<(), Error> {
        let damaged = |error| at(&directory.data_path(region), &error);
        let mut reader = directory.read_data(region).map_err(damaged)?;
        let mut batch = RowBatch::default();
        while let Some(RowBlock { family, rows }) = reader.next_block().map_err(damaged)? {
            if family != batch.family {
                self.put(std::mem::take(&mut batch)).await?;
                batch.family = family;
            }
            for row in rows_of(rows) {
                let row = row.map_err(|malformed| damaged(malformed.into()))?;
                batch.bytes += row.key.len() + row.value.len();
                batch.rows.push(row);
                if batch.bytes >= BATCH_BYTES {
                    self.put(std::mem::take(&mut batch)).await?;
                    batch.family = family;
                }
            }
        }
        self.put(batch).await
    }

    async fn put(&mut self, batch: RowBatch) -> Result<(), Error> {
        let RowBatch { family, rows, bytes } = batch;
        self.pace.rest(bytes).await;
        let (now_ms, count) = (now_ms(), rows.len());
        let pairs: Vec<_> = rows.into_iter().filter_map(|row| living(row, now_ms)).collect();
        self.expired += (count - pairs.len()) as u64;
        self.rows += pairs.len() as u64;
        Ok(self.client.in_family(family).batch_put_with_ttl(pairs).await?)
    }
}

/// Rows of a column family that are written together.
#[derive(Default)]
struct RowBatch {
    family: ColumnFamily,
    rows: Vec<BackupRow>,
    bytes: usize,
}

/// The pair of a row and the seconds that it still lives, rounded up; `None` if it has expired.
fn living(row: BackupRow, now_ms: u64) -> Option<(Pair, u64)> {
    let BackupRow { key, expires_ms, value } = row;
    match expires_ms {
        0 => Some(((key, value), 0)),
        expires_ms if expires_ms <= now_ms => None,
        expires_ms => Some(((key, value), (expires_ms - now_ms).div_ceil(1000))),
    }
}

/// A bound on the bytes of a second. Time that was lost is not made up for.
struct WritePace {
    bytes_per_s: u64,
    next: Instant,
}

impl WritePace {
    async fn rest(&mut self, bytes: usize) {
        if self.bytes_per_s == 0 {
            return;
        }
        tokio::time::sleep_until(self.next.into()).await;
        let took = Duration::from_secs_f64(bytes as f64 / self.bytes_per_s as f64);
        self.next = self.next.max(Instant::now()) + took;
    }
}

fn to_wire(point: &PlacementPoint) -> HandedOut {
    let PlacementPoint { ids_end, tso_end_ms, keyspaces } = point.clone();
    let made = keyspaces.into_iter().map(|keyspace| MadeKeyspace {
        id: keyspace.id,
        name: keyspace.name,
        created_s: keyspace.created_s,
    });
    HandedOut { ids_end, tso_end_ms, keyspaces: made.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_lives_as_long_as_it_would_have_rounded_up_to_seconds() {
        let row = |expires_ms| BackupRow { key: "k".into(), expires_ms, value: "v".into() };
        let ttl_s = |expires_ms| living(row(expires_ms), 10_000).map(|(_, ttl_s)| ttl_s);
        assert_eq!(ttl_s(0), Some(0), "for ever");
        assert_eq!([ttl_s(1), ttl_s(10_000)], [None, None]);
        assert_eq!([ttl_s(10_001), ttl_s(11_000), ttl_s(11_001)], [Some(1), Some(1), Some(2)]);
    }
}
