//! Figures of the kernel about this process: time, bytes written, memory, disk.

use crate::Result;
use rustix::time::{ClockId, clock_gettime};
use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

/// The CPU time that all threads of this process have used so far.
pub fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Bytes written so far to the disk that holds `dir`, by everybody and with all metadata; `None` if
/// the directory is not on one block device that counts.
///
/// # Errors
///
/// If the directory cannot be looked at.
pub fn disk_written_bytes(dir: &Path) -> Result<Option<u64>> {
    use std::os::unix::fs::MetadataExt;
    let device = fs::metadata(dir)?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let stat = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat"));
    // The seventh field is sectors of 512 bytes written, whatever the disk's own sectors are.
    let sectors = |stat: String| stat.split_whitespace().nth(6)?.parse::<u64>().ok();
    Ok(stat.ok().and_then(sectors).map(|sectors| sectors * 512))
}

/// Bytes that this process has caused to be written to disk, as the kernel sees it: pages made
/// dirty, less those that were cut off before they were written. Where the page cache holds a file
/// in large pieces, a small write counts as a whole piece, though only the blocks that changed are
/// written.
///
/// # Errors
///
/// If the kernel does not count this.
pub fn dirtied_bytes() -> Result<u64> {
    let text = fs::read_to_string("/proc/self/io")?;
    let written = field(&text, "write_bytes:").ok_or("no write_bytes in /proc/self/io")?;
    Ok(written.saturating_sub(field(&text, "cancelled_write_bytes:").unwrap_or(0)))
}

/// Bytes that this process has handed to the kernel in calls that write, to files or elsewhere.
///
/// # Errors
///
/// If the kernel does not count this.
pub fn called_bytes() -> Result<u64> {
    let text = fs::read_to_string("/proc/self/io")?;
    Ok(field(&text, "wchar:").ok_or("no wchar in /proc/self/io")?)
}

/// Memory of this process that is no file's: heap and stacks, in bytes.
///
/// # Errors
///
/// If the kernel does not tell.
pub fn heap_bytes() -> Result<u64> {
    let text = fs::read_to_string("/proc/self/status")?;
    Ok(field(&text, "RssAnon:").ok_or("no RssAnon in /proc/self/status")? << 10)
}

fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|l| l.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

/// Bytes on disk of the files in `dir`, and their count.
///
/// # Errors
///
/// If the directory cannot be read.
pub fn on_disk(dir: &Path) -> Result<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let (mut bytes, mut files) = (0, 0);
    for entry in fs::read_dir(dir)? {
        // A file may go between the listing and this: then it takes nothing.
        if let Ok(metadata) = entry?.metadata() {
            bytes += metadata.blocks() * 512;
            files += 1;
        }
    }
    Ok((bytes, files))
}

/// Writes everything that is dirty on the file system of `dir`, so that no engine pays for what
/// another has left.
///
/// # Errors
///
/// Errors of the kernel.
pub fn settle(dir: &Path) -> Result<()> {
    rustix::fs::syncfs(File::open(dir)?)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "cancelled_write_bytes: 7\nwrite_bytes: 12\nRssAnon:\t  34 kB\n";
        assert_eq!(field(text, "write_bytes:"), Some(12));
        assert_eq!(field(text, "RssAnon:"), Some(34));
        assert_eq!(field(text, "rchar:"), None);
    }

    #[test]
    fn what_is_written_and_allocated_is_seen() {
        let dir = tempfile::tempdir_in(".").expect("a temporary directory");
        let (dirtied, heap) = (dirtied_bytes().expect("told"), heap_bytes().expect("told"));
        let on_disk_before = disk_written_bytes(dir.path()).expect("told");
        let data = vec![1; 16 << 20];
        assert!(heap_bytes().expect("told") >= heap + (15 << 20));
        fs::write(dir.path().join("file"), &data).expect("written");
        settle(dir.path()).expect("synced");
        assert!(dirtied_bytes().expect("told") >= dirtied + (16 << 20));
        let after = disk_written_bytes(dir.path()).expect("told");
        assert!(after.zip(on_disk_before).is_none_or(|(a, b)| a >= b + (16 << 20)));
        assert!(on_disk(dir.path()).expect("listed").0 >= 16 << 20);
        assert!(cpu() > Duration::ZERO);
    }
}
