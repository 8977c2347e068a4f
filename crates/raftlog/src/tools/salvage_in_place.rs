//! Salvage in place: replaces a damaged log by its whole part.
//!
//! The new log is written next to the damaged one, in the same directory, with a prefix to its
//! names. Once it is durable a file, the *mark*, makes it count: then the damaged segments are
//! renamed, a second mark says that all of them are, and then those of the new log get their names.
//! After a crash the next opening finds a mark and goes on, or finds none and the damaged log as it
//! was.
//!
//! The damaged segments are kept for the operator: they are all there is of the lost entries. Until
//! they are removed no other salvage begins, so they never take more than once the space of the
//! log, and none of them is overwritten.

use crate::config::Config;
use crate::error::Error;
use crate::recovery::report::SalvageReport;
use crate::segments::directory::{self, IN_MARK, LogDirectory, OUT_MARK};
use crate::segments::prefixed_fs::PrefixedFs;
use crate::tools::salvage;
use flotilla_vfs::OpenMode;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The prefix of the new log's names.
const NEW: &str = "salvaged-";
/// The prefix of damaged segments' names.
const DAMAGED: &str = "damaged-";

/// Replaces the log in the directory by its whole part.
///
/// # Errors
///
/// [`Error::Invalid`] if there are damaged segments of an earlier salvage; those of
/// [`crate::salvage`]: then the damaged log is as it was.
pub(crate) fn by_what_is_whole(directory: &LogDirectory) -> Result<SalvageReport, Error> {
    let names = directory.fs.list(&directory.path)?;
    if names.iter().any(|name| name.starts_with(DAMAGED)) {
        return Err(Error::Invalid(format!(
            "the log in {} is damaged, and damaged segments of an earlier salvage are still there",
            directory.path.display()
        )));
    }
    clear(directory)?;
    let report = write_new(directory).inspect_err(|_| {
        // The next attempt removes the files that are left now.
        let _ = clear(directory);
    })?;
    directory.fs.open(&directory.path.join(OUT_MARK), OpenMode::CreateNew)?;
    directory.sync()?;
    finish(directory)?;
    Ok(report)
}

/// Goes on with a replacement that was cut short, if there is one.
pub(crate) fn finish(directory: &LogDirectory) -> io::Result<()> {
    let path = |name: &str| directory.path.join(name);
    match directory.mark()? {
        None => return Ok(()),
        Some(OUT_MARK) => {
            let listing = directory.list()?;
            for number in listing.segments {
                let segment = directory.segment_path(number);
                directory.fs.rename(&segment, &with_prefix(&segment, DAMAGED))?;
            }
            // Numbers begin anew, and a recycled segment may hold frames from when it had one of
            // them.
            listing
                .recycled
                .into_iter()
                .try_for_each(|number| directory.remove_recycled(number))?;
            directory.sync()?;
            directory.fs.rename(&path(OUT_MARK), &path(IN_MARK))?;
            directory.sync()?;
        }
        Some(_) => {}
    }
    for name in directory.fs.list(&directory.path)? {
        let new = name.strip_prefix(NEW).filter(|name| directory::number(name).is_some());
        if let Some(new) = new {
            directory.fs.rename(&path(&name), &path(new))?;
        }
    }
    directory.sync()?;
    clear(directory)?;
    directory.fs.remove(&path(IN_MARK))?;
    directory.sync()
}

fn write_new(directory: &LogDirectory) -> Result<SalvageReport, Error> {
    let (fs, dir) = (directory.fs.clone(), &directory.path);
    let beside = Arc::new(PrefixedFs::new(fs.clone(), NEW));
    let config = Config { disk_bytes_max: None, ..directory.config.clone() };
    salvage::copy_whole(fs, dir, beside, dir, config, &mut |_| ())
}

/// Removes unfinished or surplus files of a new log.
fn clear(directory: &LogDirectory) -> io::Result<()> {
    let names = directory.fs.list(&directory.path)?;
    let new = names.iter().filter(|name| name.starts_with(NEW));
    new.map(|name| directory.path.join(name)).try_for_each(|path| directory.fs.remove(&path))
}

fn with_prefix(path: &Path, prefix: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{prefix}{name}"))
}
