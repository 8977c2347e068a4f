//! `flotilla pages backup` and `restore`: streams in files.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read};
use std::path::{Path, PathBuf};

use flotilla_pagestore as pagestore;
use flotilla_pagestore::tools::{BackupIndex, BackupReport, RestoreReport, ScanProgress};
use flotilla_pagestore::{Options, PageStore};

use super::access::{copying, refused};
use crate::offline::{Bar, create_new, disk, finish, named};
use crate::tool::Error;

/// Writes the backup of a file that no store has open. It is whole and durable when this returns.
pub(super) fn backup(file: &Path, to: &Path, since: &[PathBuf]) -> Result<BackupReport, Error> {
    // A store would be made where there is none.
    File::open(file).map_err(|error| named(file, &error))?;
    let index = with_streams(since, to, |streams| BackupIndex::read(streams))?;
    let store = PageStore::open_with(disk(), file, Options::default())
        .map_err(|error| copying(file, to, error))?;
    let made = create_new(to)?;
    let mut out = BufWriter::with_capacity(1 << 20, made);
    let written = store.read().backup_to(&mut out, Some(&index));
    let done = written.map_err(|error| copying(file, to, error)).and_then(|written| {
        finish(out, to)?;
        Ok(written)
    });
    if done.is_err() {
        // A part of a backup is none, and would be in the way of the next.
        std::fs::remove_file(to)?;
    }
    done
}

/// Makes a page file of backups.
pub(super) fn restore(to: &Path, backups: &[PathBuf]) -> Result<RestoreReport, Error> {
    let bar = Bar::new("restore");
    let look = &mut |done: ScanProgress| bar.show(done.bytes_done, done.bytes);
    with_streams(backups, to, |streams| pagestore::tools::restore(&disk(), streams, to, look))
}

/// Opens the files of backups. Their damage is named by the file, other errors by `at`.
fn with_streams<T>(
    files: &[PathBuf],
    at: &Path,
    work: impl FnOnce(&mut [&mut dyn Read]) -> Result<T, pagestore::Error>,
) -> Result<T, Error> {
    let mut readers = Vec::new();
    for file in files {
        readers.push(BufReader::with_capacity(
            1 << 20,
            File::open(file).map_err(|error| named(file, &error))?,
        ));
    }
    let mut streams: Vec<&mut dyn Read> =
        readers.iter_mut().map(|reader| reader as &mut dyn Read).collect();
    work(&mut streams).map_err(|error| match error {
        pagestore::Error::Backup { stream, what } => {
            let file = files.get(stream as usize).map(|file| file.display().to_string());
            Error::Data(format!("{}: {what}", file.unwrap_or_default()))
        }
        other => refused(at, other),
    })
}
