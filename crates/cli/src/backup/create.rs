//! Makes a backup: region after region, and then the manifest. One that was interrupted is gone on
//! with.

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::path::Path;
use std::time::{Duration, Instant};

use flotilla_backup::{
    BackupKeyspace, BackupManifest, BackupRegion, CoveragePlan, JournalHead, NextRegion,
    PlacementPoint, check_coverage,
};
use flotilla_proto::peers::{HandedOut, PlacementStateResponse};

use super::directory::BackupDirectory;
use super::region_reader::{ReadRegion, RegionReader};
use crate::ctl::placement;
use crate::tool::{ClusterTarget, Error, tell};
use crate::units;
use crate::wall_clock_ms::now_ms;

/// The wishes of a caller.
#[derive(Clone, Copy, Debug)]
pub(super) struct CreateOptions {
    /// Bytes that are read in a second at most; 0 for no bound.
    pub(super) bytes_per_s: u64,
    /// The rows of all regions are fetched.
    pub(super) is_full: bool,
}

/// A backup that was made, and what that took.
#[derive(Debug)]
pub(super) struct MadeBackup {
    pub(super) manifest: BackupManifest,
    /// Regions that an interrupted backup had finished.
    pub(super) resumed: u64,
    /// Regions whose rows are those of the backup before.
    pub(super) known: u64,
    /// Bytes of data files that were written.
    pub(super) written_bytes: u64,
    pub(super) took: Duration,
}

/// Between two lines about how far it is.
const LINE_PAUSE: Duration = Duration::from_secs(5);

/// Makes a backup in `dir`.
pub(super) async fn run(
    target: &ClusterTarget,
    dir: &Path,
    options: CreateOptions,
) -> Result<MadeBackup, Error> {
    let began = Instant::now();
    let told = target.registered_stores().await?;
    let client = target.client().await?;
    let directory = BackupDirectory::open_to_write(dir)?;
    let last = directory.numbers()?.last().map(|number| directory.manifest(*number)).transpose()?;
    if let Some(last) = last.as_ref().filter(|last| last.cluster_id != told.cluster_id) {
        return Err(Error::Refused(format!(
            "{}: its backups are of cluster {}, and this is cluster {}: give each a directory of \
             its own",
            dir.display(),
            last.cluster_id,
            told.cluster_id
        )));
    }
    let fresh = JournalHead { cluster_id: told.cluster_id, begun_ms: now_ms() };
    let (mut journal, head, finished) = directory.journal(fresh)?;
    let resumed = finished.len() as u64;
    let known = last.as_ref().filter(|_| !options.is_full).map(|last| &last.regions[..]);
    let known = known.unwrap_or_default().iter().filter(|region| directory.has_data(region));
    let known: BTreeMap<_, _> = known.map(|region| (region.point.region, region.clone())).collect();
    let mut progress = BackupProgress::new(client.regions().await?.len());
    let mut reader = RegionReader::new(target, client, &directory, options.bytes_per_s);
    let mut plan = CoveragePlan::resume(finished);
    let (mut known_count, mut written_bytes) = (0, 0);
    while let NextRegion::Read(start) = plan.next_step() {
        let look = &mut |bytes| progress.read_bytes += bytes;
        let ReadRegion { region, is_known } = reader.read(&start, &known, look).await?;
        journal.finish(&region)?;
        if is_known {
            known_count += 1;
        } else {
            written_bytes += region.file_bytes;
        }
        plan.finish(region).map_err(|gap| Error::Refused(gap.to_string()))?;
        progress.show(plan.covered().len());
    }
    let regions = plan.covered().to_vec();
    check_coverage(&regions).map_err(|gap| Error::Refused(gap.to_string()))?;
    // Behind the rows: whatever they name was handed out before.
    let (placement, api_version) = placement_point(target).await?;
    let manifest = BackupManifest {
        number: last.map_or(0, |last| last.number) + 1,
        cluster_id: told.cluster_id,
        api_version,
        begun_ms: head.begun_ms,
        ended_ms: now_ms(),
        program: env!("CARGO_PKG_VERSION").to_owned(),
        placement,
        regions,
    };
    directory.keep_manifest(&manifest)?;
    let took = began.elapsed();
    Ok(MadeBackup { manifest, resumed, known: known_count, written_bytes, took })
}

async fn placement_point(target: &ClusterTarget) -> Result<(PlacementPoint, u8), Error> {
    let (stores, until) = (target.stores().await?, target.end_of_request());
    let asked = placement::ask(target, &stores, until, async |operator| {
        let response = operator.placement_state().await?;
        Ok((!response.is_led_elsewhere).then_some(response))
    });
    let answered = asked.await?;
    if !answered.answer.refusal.is_empty() {
        return Err(answered.refused(&answered.answer.refusal));
    }
    let PlacementStateResponse { handed_out, api_version, .. } = answered.answer;
    let HandedOut { ids_end, tso_end_ms, keyspaces } = handed_out.unwrap_or_default();
    let keyspaces = keyspaces.into_iter().map(|keyspace| BackupKeyspace {
        id: keyspace.id,
        name: keyspace.name,
        created_s: keyspace.created_s,
    });
    let point = PlacementPoint { ids_end, tso_end_ms, keyspaces: keyspaces.collect() };
    Ok((point, if api_version == 2 { 2 } else { 1 }))
}

/// The progress, on standard error.
struct BackupProgress {
    /// Regions when it was begun: more come by splits.
    regions: usize,
    read_bytes: u64,
    began: Instant,
    shown: Instant,
    is_terminal: bool,
}

impl BackupProgress {
    fn new(regions: usize) -> Self {
        let (began, is_terminal) = (Instant::now(), std::io::stderr().is_terminal());
        Self { regions, read_bytes: 0, began, shown: began, is_terminal }
    }

    fn show(&mut self, done: usize) {
        let pause = if self.is_terminal { LINE_PAUSE / 5 } else { LINE_PAUSE };
        if self.shown.elapsed() < pause {
            return;
        }
        self.shown = Instant::now();
        let per_s = self.read_bytes as f64 / self.began.elapsed().as_secs_f64();
        tell(format_args!(
            "{} of {} regions, {} read, {}/s",
            units::count(done as u64),
            units::count(self.regions.max(done) as u64),
            units::bytes(self.read_bytes),
            units::bytes(per_s as u64)
        ));
    }
}

/// For the last lines of a table.
pub(super) fn total_file_bytes(regions: &[BackupRegion]) -> u64 {
    regions.iter().map(|region| region.file_bytes).sum()
}
