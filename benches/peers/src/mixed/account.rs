//! What a run costs: CPU time, bytes written, disk held.

use super::cluster::{Cluster, log_dir};
use crate::engines::Contender;
use crate::log::Result;
use peers::measure;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// Counters of one moment.
#[derive(Clone, Copy, Debug)]
pub struct Account {
    cpu: Duration,
    called: u64,
    dirtied: u64,
    device: Option<u64>,
    pages: u64,
}

/// What was used between two moments.
#[derive(Clone, Copy, Debug)]
pub struct Used {
    /// CPU time of all threads.
    pub cpu: Duration,
    /// `wchar` of `/proc/self/io`: bytes in calls that write.
    pub called: u64,
    /// `write_bytes` of `/proc/self/io`.
    pub dirtied: u64,
    /// Bytes that the block device has counted, by whomever, with metadata of the file system.
    pub device: Option<u64>,
    /// Bytes that the page stores say they wrote.
    pub pages: u64,
}

impl Account {
    /// The counters now. What is dirty is not written out for it.
    ///
    /// # Errors
    ///
    /// If the kernel does not count.
    pub fn now(cluster: &Cluster, dir: &Path) -> Result<Account> {
        Ok(Account {
            cpu: measure::cpu(),
            called: measure::passed_bytes()?,
            dirtied: measure::dirtied_bytes()?,
            device: measure::disk_written_bytes(dir)?,
            pages: cluster.pages_written(),
        })
    }

    /// What was used since `before`.
    pub fn since(&self, before: &Account) -> Used {
        Used {
            cpu: self.cpu - before.cpu,
            called: self.called - before.called,
            dirtied: self.dirtied - before.dirtied,
            device: self.device.zip(before.device).map(|(now, before)| now - before),
            pages: self.pages - before.pages,
        }
    }
}

/// Bytes on disk of the three logs, and of the three page files.
///
/// # Errors
///
/// If a directory cannot be read.
pub fn on_disk(cluster: &Cluster, engine: Contender) -> Result<(u64, u64)> {
    let (mut logs, mut pages) = (0, 0);
    for context in &cluster.stores {
        logs += tree_bytes(&log_dir(engine, &context.dir))?;
        pages += tree_bytes(&context.dir.join("pages"))?;
    }
    Ok((logs, pages))
}

/// Blocks of a file, or of all files below a directory. A file that goes meanwhile takes nothing.
fn tree_bytes(path: &Path) -> Result<u64> {
    let Ok(metadata) = fs::symlink_metadata(path) else { return Ok(0) };
    if !metadata.is_dir() {
        return Ok(metadata.blocks() * 512);
    }
    let mut bytes = 0;
    for entry in fs::read_dir(path)? {
        bytes += tree_bytes(&entry?.path())?;
    }
    Ok(bytes)
}
