//! A disk in memory that loses, tears, refuses and fills up by seed.
//!
//! It keeps the promises of this crate's traits and no other: what is not synced may be lost in any
//! part when the power goes, sector by sector and name by name, and a failed sync may have dropped
//! what it was to make durable. All of it follows from the seeds and the order of the calls, so a
//! run can be repeated.

use std::io;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

mod disk;
mod file;
mod inode;
mod sparse;
mod temporary;
#[cfg(test)]
mod tests;

pub use disk::FaultStats;
pub use temporary::TemporaryFault;

use crate::{File, FileSystem, LockGuard, OpenMode};
use disk::FaultDisk;
use file::{FaultFile, FaultLock};

/// A file system on a faulty disk. A clone is another handle to the same disk.
#[derive(Clone, Debug)]
pub struct FaultFs {
    disk: Arc<Mutex<FaultDisk>>,
}

impl FaultFs {
    /// An empty disk without faults until some are injected. `seed` decides how much of a refused
    /// write or sync is done all the same.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { disk: Arc::new(Mutex::new(FaultDisk::new(seed))) }
    }

    /// Turns the power off and on again. Unsynced data is kept, lost or torn by `seed`. From now on
    /// files and locks of before are dead: every call on them fails. Paths may be opened anew.
    pub fn power_loss(&self, seed: u64) {
        self.disk.lock().lose_power(seed);
    }

    /// Another disk, in a state that this one might have if its power went now: unsynced data is
    /// kept, lost or torn by `seed`. This one goes on.
    #[must_use]
    pub fn crashed(&self, seed: u64) -> FaultFs {
        let mut disk = self.disk.lock().clone();
        disk.lose_power(seed);
        FaultFs { disk: Arc::new(Mutex::new(disk)) }
    }

    /// Removes all that is below `dir`, and puts copies of what `from` has there in its place, as
    /// an operator does while no process has it open: files and locks of before are dead. From an
    /// empty disk, this wipes the directory.
    pub fn replace_below(&self, dir: &Path, from: &FaultFs) {
        let from = from.disk.lock().clone();
        self.disk.lock().replace_below(dir, &from);
    }

    /// Lets the power go in the middle of the `operations`-th changing operation from now: it and
    /// all that is asked for later fails, until [`FaultFs::power_loss`].
    pub fn cut_power_after(&self, operations: u64) {
        let mut disk = self.disk.lock();
        disk.injected.cut_at = Some(disk.operations + operations.max(1));
    }

    /// How many changing operations there were so far: writes, syncs, reservations, changes of
    /// length and of names. To enumerate the points at which the power may go.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.disk.lock().operations
    }

    /// Refuses all syncs and write backs, or does them again. A refused one may drop unsynced
    /// bytes of its file.
    pub fn fail_syncs(&self, on: bool) {
        self.disk.lock().injected.fail_syncs = on;
    }

    /// Refuses all writes and changes of names, or does them again. A refused write may have been
    /// done in part.
    pub fn fail_writes(&self, on: bool) {
        self.disk.lock().injected.fail_writes = on;
    }

    /// Refuses all reads and views of what files hold, or does them again, as a medium with bad
    /// sectors does. Views that were taken before stay good.
    pub fn fail_reads(&self, on: bool) {
        self.disk.lock().injected.fail_reads = on;
    }

    /// Refuses something to temporary files only, or nothing any more.
    pub fn fail_temporary(&self, fault: Option<TemporaryFault>) {
        self.disk.lock().injected.temporary = fault;
    }

    /// Limits the space for files, in blocks of 4 KiB; `None` is boundless.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.disk.lock().injected.capacity_bytes = bytes;
    }

    /// Flips one bit, as a rotting medium does.
    ///
    /// # Panics
    ///
    /// If there is no such file, byte or bit: the test that asks is wrong.
    pub fn flip_bit(&self, path: &Path, offset: u64, bit: u8) {
        let mut disk = self.disk.lock();
        let inode = disk.find(path).expect("the file whose bit is flipped exists");
        let inode = disk.inode_mut(inode);
        assert!(offset < inode.len(), "byte {offset} of a file of {} bytes", inode.len());
        assert!(bit < 8, "bit {bit} of a byte");
        inode.flip_bit(offset, bit);
    }

    /// The operations of the disk so far.
    #[must_use]
    pub fn stats(&self) -> FaultStats {
        self.disk.lock().stats
    }
}

impl FileSystem for FaultFs {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let mut disk = self.disk.lock();
        disk.check_power()?;
        let inode = match mode {
            OpenMode::Read | OpenMode::Write => disk.find(path)?,
            OpenMode::CreateNew => disk.create(path)?,
        };
        let writable = mode != OpenMode::Read;
        Ok(Arc::new(FaultFile::open(&self.disk, &mut disk, inode, writable)))
    }

    fn open_temporary(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let mut disk = self.disk.lock();
        let inode = disk.create_temporary(path)?;
        Ok(Arc::new(FaultFile::open(&self.disk, &mut disk, inode, true)))
    }

    fn can_remap(&self) -> bool {
        cfg!(all(target_os = "linux", not(miri)))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let disk = self.disk.lock();
        disk.check_power()?;
        disk.list(dir)
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.disk.lock().create_dir_all(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.lock().rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.lock().remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.lock().sync_dir(dir)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn LockGuard>> {
        let mut disk = self.disk.lock();
        disk.lock(path)?;
        let incarnation = disk.incarnation;
        Ok(Box::new(FaultLock { disk: Arc::clone(&self.disk), incarnation, path: path.to_owned() }))
    }
}
