//! Puts what can be had of a damaged log in its place.
//!
//! The new log is written beside the damaged one, in the same directory, under names of its own. Once
//! it is durable a file, the *mark*, says that it counts: then the damaged segments are renamed, a
//! second mark says that all of them are, and then those of the new log get their names. Whatever
//! cuts that short, the next opening sees a mark and goes on, or sees none and the damaged log as it was.
//!
//! The damaged segments are kept: they are all there is of what was lost, and it is for the operator
//! to look at them. Until they are removed nothing else is salvaged, so they never take more than once
//! the room of the log, and none of them is overwritten.

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

/// What the names of the new log begin with until it is the log.
const NEW: &str = "salvaged-";
/// What the names of damaged segments begin with.
const DAMAGED: &str = "damaged-";

/// Replaces the log in the directory by what is whole of it.
///
/// # Errors
///
/// [`Error::Invalid`] if there are segments that were found damaged earlier; those of
/// [`crate::salvage`]: then the damaged log is what it was.
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
        // What is left of it now is removed by the next try.
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
            // Numbers begin anew, and a spare may hold frames from when it had one of them.
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

/// Removes what is there of a new log and is not needed.
fn clear(directory: &LogDirectory) -> io::Result<()> {
    let names = directory.fs.list(&directory.path)?;
    let new = names.iter().filter(|name| name.starts_with(NEW));
    new.map(|name| directory.path.join(name)).try_for_each(|path| directory.fs.remove(&path))
}

fn with_prefix(path: &Path, prefix: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{prefix}{name}"))
}
