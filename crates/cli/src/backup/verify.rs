//! Reads a backup whole, and checks each byte of it.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;

use bytes::Bytes;
use flotilla_backup::{BackupError, BackupManifest, BackupRegion, check_coverage, rows_of};
use flotilla_client::ColumnFamily;
use serde_json::json;

use super::directory::BackupDirectory;
use crate::ctl::escape;
use crate::offline::{Bar, verdict};
use crate::tool::Error;
use crate::units::{self, counted};

/// `flotilla backup verify`.
pub(super) fn run(dir: &Path, number: Option<u64>, is_json: bool) -> Result<(), Error> {
    let directory = BackupDirectory::open(dir)?;
    let manifest = directory.manifest_or_last(number)?;
    let problems = problems(&directory, &manifest);
    let (totals, out) = (manifest.totals(), &mut std::io::stdout().lock());
    if is_json {
        let verified = json!({
            "backup": manifest.number,
            "regions": manifest.regions.len(),
            "rows": totals.rows,
            "bytes": totals.bytes,
            "problems": problems,
        });
        writeln!(out, "{verified:#}")?;
    } else {
        problems.iter().try_for_each(|problem| writeln!(out, "{problem}"))?;
        writeln!(
            out,
            "backup {}: {}, {}, {}",
            manifest.number,
            counted(manifest.regions.len() as u64, "region", "regions"),
            counted(totals.rows, "row", "rows"),
            units::bytes(totals.bytes)
        )?;
    }
    verdict(problems.len() as u64, is_json, out)
}

/// All that is wrong with a backup, in words. Reads each of its files.
pub(super) fn problems(directory: &BackupDirectory, manifest: &BackupManifest) -> Vec<String> {
    let mut problems = vec![];
    if let Err(gap) = check_coverage(&manifest.regions) {
        problems.push(format!("the manifest: {gap}"));
    }
    let total = manifest.regions.iter().map(|region| region.file_bytes).sum();
    let (bar, mut done) = (Bar::new("verify"), 0);
    // A file may be that of several regions: one that was split and had no rows.
    let mut verified = BTreeSet::new();
    for region in &manifest.regions {
        done += region.file_bytes;
        if verified.insert((region.file_name(), region.point.start.clone()))
            && let Err(error) = check(directory, region)
        {
            let path = directory.data_path(region);
            problems.push(format!("{}: {error}", path.display()));
        }
        bar.show(done, total);
    }
    problems
}

/// Checks that a region's data file has the rows that the manifest says.
fn check(directory: &BackupDirectory, region: &BackupRegion) -> Result<(), BackupError> {
    let damaged = |what: String| Err(BackupError::Damaged(what));
    let mut reader = directory.read_data(region)?;
    let mut last: Option<(ColumnFamily, Bytes)> = None;
    while let Some(block) = reader.next_block()? {
        for row in rows_of(block.rows) {
            let next = (block.family, row?.key);
            if last.as_ref().is_some_and(|last| *last >= next) {
                return damaged(format!("key \"{}\" is not above the last", escape(&next.1)));
            }
            let is_below_end = region.point.end.is_empty() || next.1 < region.point.end;
            if next.1 < region.point.start || !is_below_end {
                return damaged(format!("key \"{}\" is not in the region", escape(&next.1)));
            }
            last = Some(next);
        }
    }
    if reader.totals() != region.totals {
        return damaged("its rows are not those that the manifest names".to_owned());
    }
    if !directory.has_data(region) {
        return damaged(format!("it does not have {} bytes", region.file_bytes));
    }
    Ok(())
}
