//! The engine's calls for operators: verify a log, and copy it.

use crate::config::Config;
use crate::engine::LogEngine;
use crate::error::Error;
use crate::read::group::Group;
use crate::segments::directory::LogDirectory;
use crate::tools::checkpoint::{self, LogCheckpoint};
use crate::tools::inspect::{self, LogSnapshot};
use crate::tools::verify::{ToolProgress, VerifyLevel, VerifyReport};
use flotilla_vfs::FileSystem;
use std::path::Path;
use std::sync::Arc;

impl LogEngine {
    /// Reads every byte of the log up to its present last batch, and reports all damage.
    /// `on_progress` is called after each segment.
    ///
    /// Reads and writes go on meanwhile, but for the moment in which the index of all groups is
    /// added up. One segment is in memory at a time.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] of the kind `NotFound` if the log is open for reading only and its writer has
    /// purged a segment meanwhile. Any other unreadable file is a problem of the report, not an
    /// error.
    pub fn verify(
        &self,
        level: VerifyLevel,
        on_progress: &mut dyn FnMut(ToolProgress),
    ) -> Result<VerifyReport, Error> {
        let snapshot = LogSnapshot::take(&self.group_commit, &self.segments);
        let mut report = inspect::verify_open(&snapshot, level, on_progress)?;
        drop(snapshot);
        if level >= VerifyLevel::Entries {
            inspect::verify_usage(&self.group_commit, &mut report);
            let cache = inspect::no_cache();
            for id in self.group_ids() {
                if let Some(index) = self.group_commit.groups.get(id) {
                    let group = Group::new(id, index, self.segments.clone(), cache.clone());
                    inspect::verify_group(id, &group, &mut report)?;
                }
            }
        }
        Ok(report)
    }

    /// Reads every byte of the log in `dir`, whether or not it can be opened, and reports all
    /// damage. Nothing is changed, and a process that has it open is not hindered.
    ///
    /// If the log can be opened for reading only this is [`LogEngine::verify`] of it. Else the
    /// files are read as they are.
    ///
    /// # Errors
    ///
    /// [`Error::NoLog`]; [`Error::Io`] if the directory cannot be listed, or as
    /// [`LogEngine::verify`].
    pub fn verify_directory(
        fs: Arc<dyn FileSystem>,
        dir: &Path,
        level: VerifyLevel,
        on_progress: &mut dyn FnMut(ToolProgress),
    ) -> Result<VerifyReport, Error> {
        match LogEngine::open_read_only(fs.clone(), dir, Config::default()) {
            Ok((log, recovered)) => {
                let mut report = log.verify(level, on_progress)?;
                report.torn_bytes = report.torn_bytes.max(recovered.torn_bytes);
                return Ok(report);
            }
            Err(Error::Corrupt { .. } | Error::UnknownFormat { .. }) => {}
            // The medium fails: the report will name the files.
            Err(Error::Io(error)) if flotilla_vfs::os_error(&error).is_some() => {}
            Err(error) => return Err(error),
        }
        let directory = LogDirectory::read_only(fs, dir, Config::default())?;
        Ok(inspect::verify_files(&directory, level, on_progress)?.0)
    }

    /// Copies the log, as it is now up to its last batch, to the directory `dir` of `fs`, which
    /// must be empty or missing. When this returns the copy is durable and opens as a log of its
    /// own.
    ///
    /// Reads, writes and purges go on meanwhile. One segment is in memory at a time, and is checked
    /// frame by frame, as by [`VerifyLevel::Frames`]. If it fails or the power goes, the unfinished
    /// copy does not open. `on_progress` is called after each segment.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the directory is not empty; [`Error::Corrupt`] if the log is damaged;
    /// [`Error::Io`], also if the log is open for reading only and its writer has purged a segment
    /// meanwhile: `NotFound`.
    pub fn checkpoint(
        &self,
        fs: &dyn FileSystem,
        dir: &Path,
        on_progress: &mut dyn FnMut(ToolProgress),
    ) -> Result<LogCheckpoint, Error> {
        let snapshot = LogSnapshot::take(&self.group_commit, &self.segments);
        checkpoint::copy(&snapshot, fs, dir, on_progress)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::log_batch::{EntryRef, LogBatch};
    use crate::index::segment_usage::LiveUsage;
    use crate::queue::write_queue::Durability;
    use flotilla_vfs::fault::FaultFs;

    #[test]
    fn a_ledger_that_is_not_what_the_index_says_is_found() {
        let fs = Arc::new(FaultFs::new(1));
        let (log, _) =
            LogEngine::open_with(fs, Path::new("/log"), Config::default()).expect("it opens");
        let mut batch = LogBatch::new();
        batch.put(7, b"k", b"v");
        log.write(batch, Durability::Synced).wait().expect("written");
        let found = || -> Vec<(u64, &str)> {
            let report = log.verify(VerifyLevel::Entries, &mut |_| {}).expect("read");
            report.problems.iter().map(|problem| (problem.segment, problem.what)).collect()
        };
        assert_eq!(found(), []);
        let what = "what the segment holds is not what the index says";
        // In a segment that is there; and in one of which the index knows nothing.
        for (live, segment, named) in [
            (LiveUsage { entries: 1, keys: 0, bytes: 0 }, 1, 1),
            (LiveUsage { entries: 0, keys: 1, bytes: 0 }, 1, 1),
            (LiveUsage { entries: 0, keys: 0, bytes: 9 }, 1, 1),
            (LiveUsage { entries: 1, keys: 0, bytes: 9 }, 5, 0),
        ] {
            log.group_commit.with_log(|log| log.usage.hold(segment, live));
            assert_eq!(found(), [(named, what)], "{live:?}");
            log.group_commit.with_log(|log| log.usage.release(segment, live));
            assert_eq!(found(), []);
        }
        let report = log.verify(VerifyLevel::Frames, &mut |_| {}).expect("read");
        assert!(report.problems.is_empty());
    }

    #[test]
    fn what_the_disk_refuses_to_read_is_a_problem_and_no_error() {
        let fs = FaultFs::new(1);
        let opened =
            LogEngine::open_with(Arc::new(fs.clone()), Path::new("/log"), Config::default());
        let (log, _) = opened.expect("it opens");
        for first in [5, 8] {
            let mut batch = LogBatch::new();
            let entries =
                (first..first + 3).map(|index| EntryRef { index, term: 1, kind: 0, data: b"x" });
            batch.append(7, entries);
            log.write(batch, Durability::Synced).wait().expect("written");
        }
        fs.fail_reads(true);
        let report = log.verify(VerifyLevel::Entries, &mut |_| {}).expect("it goes on");
        let found: Vec<_> = report
            .problems
            .iter()
            .map(|problem| (problem.group, problem.entries.clone()))
            .collect();
        assert_eq!(found, [(None, None), (Some(7), Some(5..8)), (Some(7), Some(8..11))]);
        assert!(report.problems.iter().all(|problem| problem.segment == 1));
    }
}
