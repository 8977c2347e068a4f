//! The way to a page file, how far the work has come, and what to say where it cannot be done.

use std::io::{self, IsTerminal as _};
use std::path::Path;
use std::sync::Arc;

use flotilla_pagestore as pagestore;
use flotilla_pagestore::tool::{PageFile, Progress};
use flotilla_vfs::FileSystem;
use flotilla_vfs::os::OsFs;
use indicatif::{ProgressBar, ProgressStyle};

use crate::tool::Error;

pub(super) fn disk() -> Arc<dyn FileSystem> {
    Arc::new(OsFs::new())
}

pub(super) fn open(file: &Path) -> Result<PageFile, Error> {
    PageFile::open(&OsFs::new(), file).map_err(|error| refused(file, error))
}

pub(super) fn named(file: &Path, error: &io::Error) -> Error {
    let what = format!("{}: {error}", file.display());
    match error.kind() {
        io::ErrorKind::NotFound => Error::Absent(what),
        io::ErrorKind::AlreadyExists => Error::Argument(what),
        _ => Error::Pages(what),
    }
}

/// What the page store says, and what to do about it.
pub(super) fn refused(file: &Path, error: pagestore::Error) -> Error {
    let hint = match &error {
        // Standard output is gone, most likely, and whoever reads has had enough.
        pagestore::Error::Io(cause) if cause.kind() == io::ErrorKind::BrokenPipe => {
            return Error::Output(io::ErrorKind::BrokenPipe.into());
        }
        pagestore::Error::Io(cause) => return named(file, cause),
        pagestore::Error::Locked => ". Stop its store first",
        _ => "",
    };
    Error::Pages(format!("{}: {error}{hint}", file.display()))
}

/// As [`refused`], where one file is copied into another, which alone may exist or lack a directory.
pub(super) fn copying(file: &Path, to: &Path, error: pagestore::Error) -> Error {
    match &error {
        pagestore::Error::Io(cause) if cause.kind() == io::ErrorKind::AlreadyExists => {
            named(to, cause)
        }
        pagestore::Error::Corrupt { .. } => Error::Pages(format!(
            "{}: {error}. `flotilla pages check` names all damage, `flotilla pages repair` rescues the rest",
            file.display()
        )),
        _ => refused(file, error),
    }
}

/// A bar on a terminal; nothing elsewhere.
pub(super) struct Bar(ProgressBar);

impl Bar {
    pub(super) fn new(name: &'static str) -> Bar {
        if !io::stderr().is_terminal() {
            return Bar(ProgressBar::hidden());
        }
        let style = "{prefix:>8} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
        let style = ProgressStyle::with_template(style).expect("the template is well formed");
        Bar(ProgressBar::new(0).with_style(style).with_prefix(name))
    }

    pub(super) fn show(&self, progress: Progress) {
        self.0.set_length(progress.bytes.max(progress.bytes_done));
        self.0.set_position(progress.bytes_done);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
