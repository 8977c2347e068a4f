//! Opens page files for the tools, and explains errors of the page store.

use std::io;
use std::path::Path;

use flotilla_pagestore as pagestore;
use flotilla_pagestore::tools::PageFile;
use flotilla_vfs::os::OsFs;

use crate::offline::named;
use crate::tool::Error;

pub(super) fn open(file: &Path) -> Result<PageFile, Error> {
    PageFile::open(&OsFs::new(), file).map_err(|error| refused(file, error))
}

/// The error of the page store, with a hint.
pub(super) fn refused(file: &Path, error: pagestore::Error) -> Error {
    let hint = match &error {
        // Standard output is gone, most likely because its reader has ended.
        pagestore::Error::Io(cause) if cause.kind() == io::ErrorKind::BrokenPipe => {
            return Error::Output(io::ErrorKind::BrokenPipe.into());
        }
        pagestore::Error::Io(cause) => return named(file, cause),
        pagestore::Error::Locked => ". Stop its store first",
        _ => "",
    };
    Error::Data(format!("{}: {error}{hint}", file.display()))
}

/// As [`refused`], where one file is copied into another, which alone may exist or lack a
/// directory.
pub(super) fn copying(file: &Path, to: &Path, error: pagestore::Error) -> Error {
    match &error {
        pagestore::Error::Io(cause) if cause.kind() == io::ErrorKind::AlreadyExists => {
            named(to, cause)
        }
        pagestore::Error::Corrupt { .. } => Error::Data(format!(
            "{}: {error}. `flotilla pages check` names all damage, `flotilla pages repair` rescues the rest",
            file.display()
        )),
        _ => refused(file, error),
    }
}
