//! Shared by `flotilla log` and `flotilla pages`: the file system, progress, and the verdict.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use flotilla_vfs::FileSystem;
use flotilla_vfs::os::OsFs;
use indicatif::{ProgressBar, ProgressStyle};

use crate::tool::Error;

pub(crate) fn disk() -> Arc<dyn FileSystem> {
    Arc::new(OsFs::new())
}

/// Makes a file for the user alone: it holds rows.
pub(crate) fn create_new(file: &Path) -> Result<File, Error> {
    let made = File::options().write(true).create_new(true).mode(0o600).open(file);
    made.map_err(|error| named(file, &error))
}

/// Makes durable what was written to a new file, and its name.
pub(crate) fn finish(out: BufWriter<File>, file: &Path) -> io::Result<()> {
    out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty());
    disk().sync_dir(dir.unwrap_or(Path::new(".")))
}

/// The error of the kernel about a file, with its path.
pub(crate) fn named(file: &Path, error: &io::Error) -> Error {
    let what = format!("{}: {error}", file.display());
    match error.kind() {
        io::ErrorKind::NotFound => Error::Absent(what),
        io::ErrorKind::AlreadyExists => Error::Argument(what),
        _ => Error::Data(what),
    }
}

/// Prints the verdict; with problems it is an error as well.
pub(crate) fn verdict(problems: u64, is_json: bool, out: &mut impl Write) -> Result<(), Error> {
    if problems == 0 && !is_json {
        writeln!(out, "nothing is wrong")?;
    }
    out.flush()?;
    if problems == 0 { Ok(()) } else { Err(Error::Unsound(problems)) }
}

/// A bar on a terminal; nothing elsewhere.
pub(crate) struct Bar(ProgressBar);

impl Bar {
    pub(crate) fn new(name: &'static str) -> Bar {
        if !io::stderr().is_terminal() {
            return Bar(ProgressBar::hidden());
        }
        let style = "{prefix:>8} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
        let style = ProgressStyle::with_template(style).expect("the template is well formed");
        Bar(ProgressBar::new(0).with_style(style).with_prefix(name))
    }

    /// Shows progress in bytes. The total may be a guess.
    pub(crate) fn show(&self, bytes_done: u64, bytes: u64) {
        self.0.set_length(bytes.max(bytes_done));
        self.0.set_position(bytes_done);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
