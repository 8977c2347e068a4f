//! Opening a log: for writing or for reading only, with or without a salvage.

use crate::config::{Config, RecoveryMode};
use crate::engine::LogEngine;
use crate::error::Error;
use crate::recovery::report::RecoveryReport;
use crate::segments::directory::LogDirectory;
use crate::tools::salvage_in_place;
use flotilla_vfs::FileSystem;
use flotilla_vfs::os::OsFs;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// How often opening for reading only is attempted while a writer changes the log.
const READ_ONLY_ATTEMPTS: usize = 10;

impl LogEngine {
    /// Opens the log in the directory `dir` of the operating system, with the defaults; see
    /// [`LogEngine::open_with`].
    ///
    /// # Errors
    ///
    /// As [`LogEngine::open_with`].
    pub fn open(dir: impl AsRef<Path>) -> Result<LogEngine, Error> {
        let fs = Arc::new(OsFs::new());
        LogEngine::open_with(fs, dir.as_ref(), Config::default()).map(|(log, _)| log)
    }

    /// Opens the log in `dir`, which is made if missing. Reads the footers of sealed segments, with
    /// [`Config::recovery_threads`] threads, and all of those without one.
    ///
    /// The remains of batches that were never acknowledged as synced are cut off; see
    /// [`RecoveryReport::torn_bytes`]. All that is then in the log is durable. If bytes that were
    /// synced are damaged or missing it does not open, unless [`RecoveryMode::Salvage`] is asked
    /// for; [`RecoveryReport::salvaged`] reports the loss.
    ///
    /// # Errors
    ///
    /// [`Error::Locked`] if another engine has it open; [`Error::Corrupt`] if bytes that were
    /// synced are damaged or missing, or if the end is torn and [`Config::recovery`] forbids that,
    /// and then nothing on disk was changed; [`Error::Invalid`] if the configuration is, or if
    /// segments are still there that an earlier salvage took out; [`Error::Io`]; [`Error::NoSpace`]
    /// if there is no room for the salvaged log next to the damaged one.
    pub fn open_with(
        fs: Arc<dyn FileSystem>,
        dir: &Path,
        config: Config,
    ) -> Result<(LogEngine, RecoveryReport), Error> {
        config.check()?;
        let directory = LogDirectory::writable(fs, dir, config)?;
        salvage_in_place::finish(&directory)?;
        let may_salvage = directory.config.recovery == RecoveryMode::Salvage;
        match LogEngine::start(directory.clone()) {
            Err(Error::Corrupt { .. }) if may_salvage => {}
            opened => return opened,
        }
        let salvaged = Some(salvage_in_place::by_what_is_whole(&directory)?);
        let (log, report) = LogEngine::start(directory)?;
        Ok((log, RecoveryReport { salvaged, ..report }))
    }

    /// Opens the log in `dir` for reading only: nothing on disk is changed, and every write is
    /// refused with [`Error::ReadOnly`]. Of the configuration only the cache and the threads of
    /// recovery matter.
    ///
    /// The log may be closed, left behind by a crash, or open for writing, here or in another
    /// process, which is not hindered. The view is the log as it was at one moment, up to some
    /// batch; that batch need not be durable. Segments that the writer purges later can no longer
    /// be read: [`Error::Io`] of the kind `NotFound`.
    ///
    /// # Errors
    ///
    /// [`Error::NoLog`]; [`Error::UnknownFormat`]; [`Error::Corrupt`] as in
    /// [`LogEngine::open_with`], if it is so again when the log is read once more, since a writer
    /// may have come in between; [`Error::Io`], also if the writer is too fast for ten attempts.
    pub fn open_read_only(
        fs: Arc<dyn FileSystem>,
        dir: &Path,
        config: Config,
    ) -> Result<(LogEngine, RecoveryReport), Error> {
        config.check()?;
        let mut before = None;
        for _ in 1..READ_ONLY_ATTEMPTS {
            let error = match LogEngine::attempt_read_only(&fs, dir, &config) {
                Err(error) => error,
                opened => return opened,
            };
            let is_same = before.replace(error.to_string()) == Some(error.to_string());
            match &error {
                // Files vanish while they are read, and those that are left no longer fit.
                Error::Io(io) if is_vanished(io) => {}
                Error::Corrupt { .. } if !is_same => {}
                _ => return Err(error),
            }
        }
        LogEngine::attempt_read_only(&fs, dir, &config)
    }

    fn attempt_read_only(
        fs: &Arc<dyn FileSystem>,
        dir: &Path,
        config: &Config,
    ) -> Result<(LogEngine, RecoveryReport), Error> {
        LogEngine::start(LogDirectory::read_only(fs.clone(), dir, config.clone())?)
    }
}

/// Whether the error may come from another process that renames, removes and cuts the files.
fn is_vanished(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof)
}
