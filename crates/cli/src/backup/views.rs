//! Prints backups and what was done with them, as tables or as JSON.

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use flotilla_backup::{BackupManifest, BackupRegion};
use serde_json::{Value, json};

use super::create::{MadeBackup, total_file_bytes};
use super::directory::BackupDirectory;
use super::restore::RestoredBackup;
use crate::ctl::escape;
use crate::tool::{Error, TableCell, number, table};
use crate::units::{self, counted};
use crate::wall_clock_ms::now_ms;

/// The outcome of `flotilla backup`.
pub(super) fn made(made: &MadeBackup, is_json: bool) -> Result<(), Error> {
    let MadeBackup { manifest, resumed, known, written_bytes, took } = made;
    let out = &mut std::io::stdout().lock();
    if is_json {
        let mut told = summary(manifest);
        told["regions_resumed"] = json!(resumed);
        told["regions_unchanged"] = json!(known);
        told["written_bytes"] = json!(written_bytes);
        told["ms"] = json!(ms(*took));
        return Ok(writeln!(out, "{told:#}")?);
    }
    let totals = manifest.totals();
    writeln!(
        out,
        "backup {}: {}, {}, {}; {} unchanged, {} from before an interruption; {} written in {}",
        manifest.number,
        counted(manifest.regions.len() as u64, "region", "regions"),
        counted(totals.rows, "row", "rows"),
        units::bytes(totals.bytes),
        units::count(*known),
        units::count(*resumed),
        units::bytes(*written_bytes),
        units::time(*took),
    )?;
    Ok(out.flush()?)
}

/// The outcome of `flotilla restore`.
pub(super) fn restored(restored: &RestoredBackup, is_json: bool) -> Result<(), Error> {
    let RestoredBackup { manifest, resumed, rows, expired, took } = restored;
    let out = &mut std::io::stdout().lock();
    if is_json {
        let told = json!({
            "backup": manifest.number,
            "of_cluster": manifest.cluster_id,
            "regions": manifest.regions.len(),
            "regions_resumed": resumed,
            "rows_written": rows,
            "rows_expired": expired,
            "ms": ms(*took),
        });
        return Ok(writeln!(out, "{told:#}")?);
    }
    writeln!(
        out,
        "backup {} is restored: {}, {} from before an interruption; {} written, {} had expired; \
         in {}",
        manifest.number,
        counted(manifest.regions.len() as u64, "region", "regions"),
        units::count(*resumed),
        counted(*rows, "row", "rows"),
        units::count(*expired),
        units::time(*took),
    )?;
    Ok(out.flush()?)
}

/// `flotilla backup list`.
pub(super) fn list(dir: &Path, wanted: Option<u64>, is_json: bool) -> Result<(), Error> {
    let directory = BackupDirectory::open(dir)?;
    let out = &mut std::io::stdout().lock();
    if let Some(wanted) = wanted {
        let manifest = directory.manifest(wanted)?;
        if is_json {
            let mut told = summary(&manifest);
            told["parts"] = manifest.regions.iter().map(region_json).collect();
            return Ok(writeln!(out, "{told:#}")?);
        }
        let mut rows =
            table(&["region", "start", "version", "index", "term", "rows", "size", "file"]);
        for region in &manifest.regions {
            let BackupRegion { point, totals, .. } = region;
            rows.add_row([
                number(point.region),
                TableCell::new(escape(&point.start)),
                number(point.version),
                number(point.index),
                number(point.term),
                number(units::count(totals.rows)),
                number(units::bytes(totals.bytes)),
                TableCell::new(region.file_name()),
            ]);
        }
        return Ok(writeln!(out, "{rows}")?);
    }
    let manifests = directory.numbers()?.into_iter().map(|number| directory.manifest(number));
    let manifests = manifests.collect::<Result<Vec<_>, _>>()?;
    if is_json {
        let all: Value = manifests.iter().map(summary).collect();
        return Ok(writeln!(out, "{all:#}")?);
    }
    let mut rows = table(&["backup", "cluster", "ended", "regions", "rows", "size", "files"]);
    for manifest in &manifests {
        let totals = manifest.totals();
        let age = Duration::from_millis(now_ms().saturating_sub(manifest.ended_ms));
        rows.add_row([
            number(manifest.number),
            number(manifest.cluster_id),
            TableCell::new(format!("{} ago", units::time(age))),
            number(units::count(manifest.regions.len() as u64)),
            number(units::count(totals.rows)),
            number(units::bytes(totals.bytes)),
            number(units::bytes(total_file_bytes(&manifest.regions))),
        ]);
    }
    Ok(writeln!(out, "{rows}")?)
}

fn summary(manifest: &BackupManifest) -> Value {
    let totals = manifest.totals();
    json!({
        "backup": manifest.number,
        "cluster_id": manifest.cluster_id,
        "api_version": manifest.api_version,
        "begun_ms": manifest.begun_ms,
        "ended_ms": manifest.ended_ms,
        "regions": manifest.regions.len(),
        "rows": totals.rows,
        "bytes": totals.bytes,
        "file_bytes": total_file_bytes(&manifest.regions),
        "ids_end": manifest.placement.ids_end,
        "tso_end_ms": manifest.placement.tso_end_ms,
        "keyspaces": manifest.placement.keyspaces.len(),
    })
}

fn region_json(region: &BackupRegion) -> Value {
    let BackupRegion { point, totals, file_bytes } = region;
    json!({
        "region": point.region,
        "start": escape(&point.start),
        "end": escape(&point.end),
        "version": point.version,
        "conf_version": point.conf_version,
        "index": point.index,
        "term": point.term,
        "time_ms": point.time_ms,
        "rows": totals.rows,
        "bytes": totals.bytes,
        "digest": format!("{:016x}", totals.digest),
        "file": region.file_name(),
        "file_bytes": file_bytes,
    })
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
