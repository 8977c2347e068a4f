//! Opens logs on disk for the tools, and explains errors of the log engine.

use std::io;
use std::path::Path;

use flotilla_raftlog as raftlog;
use flotilla_raftlog::{Config, LogEngine};

use crate::offline::disk;
use crate::tool::Error;

pub(super) fn read_only(dir: &Path) -> Result<LogEngine, Error> {
    let opened = LogEngine::open_read_only(disk(), dir, Config::default());
    opened.map(|(log, _)| log).map_err(refused)
}

/// The error of the log engine, with a hint.
pub(super) fn refused(error: raftlog::Error) -> Error {
    let hint = match &error {
        raftlog::Error::NoLog { .. } | raftlog::Error::NoGroup { .. } => {
            return Error::Absent(error.to_string());
        }
        raftlog::Error::Invalid(_) => return Error::Argument(error.to_string()),
        // Standard output is gone, most likely because its reader has ended.
        raftlog::Error::Io(cause) if cause.kind() == io::ErrorKind::BrokenPipe => {
            return Error::Output(io::ErrorKind::BrokenPipe.into());
        }
        raftlog::Error::Io(cause) if cause.kind() == io::ErrorKind::NotFound => {
            ". If its store is running, ask again"
        }
        raftlog::Error::Corrupt { .. } => {
            ". `flotilla log verify` names all damage, `flotilla log salvage` rescues the rest"
        }
        raftlog::Error::Locked { .. } => ". Stop its store first",
        _ => "",
    };
    Error::Data(format!("{error}{hint}"))
}
