//! Handles to files, and to locks, of the faulty disk.

use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::disk::{FaultDisk, power_is_gone};
use crate::{AnonymousMap, File, LockGuard, View};

/// A handle to one file. It dies with the power.
#[derive(Debug)]
pub(super) struct FaultFile {
    disk: Arc<Mutex<FaultDisk>>,
    incarnation: u64,
    inode: u64,
    writable: bool,
}

impl FaultFile {
    /// A handle to a file of `disk`, which is locked as `locked`.
    pub(super) fn open(
        disk: &Arc<Mutex<FaultDisk>>,
        locked: &mut FaultDisk,
        inode: u64,
        writable: bool,
    ) -> Self {
        locked.inode_mut(inode).handles += 1;
        Self { disk: Arc::clone(disk), incarnation: locked.incarnation, inode, writable }
    }

    fn disk(&self) -> io::Result<MutexGuard<'_, FaultDisk>> {
        let disk = self.disk.lock();
        if disk.incarnation == self.incarnation { Ok(disk) } else { Err(power_is_gone()) }
    }

    fn disk_to_change(&self) -> io::Result<MutexGuard<'_, FaultDisk>> {
        if !self.writable {
            return Err(io::Error::other("the file was opened for reading"));
        }
        self.disk()
    }
}

impl Drop for FaultFile {
    fn drop(&mut self) {
        if let Ok(mut disk) = self.disk() {
            disk.close(self.inode);
        }
    }
}

impl File for FaultFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.disk()?.read(self.inode, buf, offset)
    }

    fn write_all_at(&self, parts: &[io::IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.disk_to_change()?.write(self.inode, parts, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.disk()?.sync(self.inode)
    }

    fn write_back(&self, _range: Range<u64>) -> io::Result<()> {
        self.disk()?.write_back(self.inode)
    }

    fn allocate(&self, range: Range<u64>) -> io::Result<()> {
        self.disk_to_change()?.reserve(self.inode, &range)
    }

    fn punch(&self, range: Range<u64>) -> io::Result<bool> {
        self.disk_to_change()?.punch(self.inode, &range).map(|()| true)
    }

    fn len(&self) -> io::Result<u64> {
        let disk = self.disk()?;
        disk.check_power()?;
        Ok(disk.inode(self.inode).len())
    }

    fn data_end(&self) -> io::Result<u64> {
        let disk = self.disk()?;
        disk.check_power()?;
        Ok(disk.inode(self.inode).data_end())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk_to_change()?.set_len(self.inode, len)
    }

    fn view(&self, range: Range<u64>) -> io::Result<View> {
        if range.start > range.end {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut disk = self.disk()?;
        if range.end > disk.inode(self.inode).len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut bytes = vec![0; (range.end - range.start) as usize];
        disk.read(self.inode, &mut bytes, range.start)?;
        Ok(View::from(bytes))
    }

    fn remap(&self, memory: &AnonymousMap, range: Range<usize>, offset: u64) -> io::Result<bool> {
        self.disk()?.remap(self.inode, memory, range, offset)
    }
}

/// A lock on one file. It dies with the power.
#[derive(Debug)]
pub(super) struct FaultLock {
    pub(super) disk: Arc<Mutex<FaultDisk>>,
    pub(super) incarnation: u64,
    pub(super) path: PathBuf,
}

impl LockGuard for FaultLock {}

impl Drop for FaultLock {
    fn drop(&mut self) {
        let mut disk = self.disk.lock();
        if disk.incarnation == self.incarnation {
            disk.unlock(&self.path);
        }
    }
}
