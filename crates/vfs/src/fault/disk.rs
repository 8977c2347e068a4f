//! The faulty disk: files, names, locks, and when it refuses.
//!
//! Names are like bytes: the visible ones are kept, and next to them the durable ones with the list
//! of changes in between. A power loss carries out some of these changes and forgets the others.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use fastrand::Rng;

use super::inode::{Inode, SECTOR_BYTES};
use super::temporary::{TemporaryFault, TemporaryImage};
use crate::AnonymousMap;

/// Operations of the faulty disk so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultStats {
    /// Reads and views.
    pub reads: u64,
    /// Writes to files.
    pub writes: u64,
    /// Syncs of files and directories.
    pub syncs: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written to files.
    pub bytes_written: u64,
    /// Bytes that syncs had to bring to the medium, in whole sectors. With `syncs`, what a model of
    /// a slow disk needs.
    pub bytes_synced: u64,
}

/// The injected faults.
#[derive(Clone, Debug, Default)]
pub(super) struct InjectedFaults {
    pub(super) fail_reads: bool,
    pub(super) fail_writes: bool,
    pub(super) fail_syncs: bool,
    /// For temporary files only.
    pub(super) temporary: Option<TemporaryFault>,
    pub(super) capacity_bytes: Option<u64>,
    /// The number of the operation at which the power goes.
    pub(super) cut_at: Option<u64>,
}

/// A change of names that is kept or lost as a whole.
#[derive(Clone, Debug)]
struct NameChange {
    dir: PathBuf,
    names: Vec<(PathBuf, Option<u64>)>,
}

/// Everything behind the lock of a faulty file system.
#[derive(Clone, Debug)]
pub(super) struct FaultDisk {
    rng: Rng,
    /// Counts power losses; handles of an earlier life are dead.
    pub(super) incarnation: u64,
    pub(super) operations: u64,
    pub(super) injected: InjectedFaults,
    pub(super) stats: FaultStats,
    inodes: BTreeMap<u64, Inode>,
    next_inode: u64,
    dirs: BTreeSet<PathBuf>,
    names: BTreeMap<PathBuf, u64>,
    durable_names: BTreeMap<PathBuf, u64>,
    unsynced_names: Vec<NameChange>,
    locks: BTreeSet<PathBuf>,
    power_gone: bool,
}

impl FaultDisk {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            rng: Rng::with_seed(seed),
            incarnation: 0,
            operations: 0,
            injected: InjectedFaults::default(),
            stats: FaultStats::default(),
            inodes: BTreeMap::new(),
            next_inode: 1,
            dirs: [PathBuf::new(), PathBuf::from("/")].into(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            unsynced_names: Vec::new(),
            locks: BTreeSet::new(),
            power_gone: false,
        }
    }

    /// Loses or keeps by seed what is not synced, and ends the lives of handles and locks.
    pub(super) fn lose_power(&mut self, seed: u64) {
        let mut rng = Rng::with_seed(seed);
        // A disk that keeps its order loses a suffix; one that does not, any part.
        let in_order = rng.bool();
        let prefix = rng.usize(0..=self.unsynced_names.len());
        for (i, change) in std::mem::take(&mut self.unsynced_names).into_iter().enumerate() {
            if if in_order { i < prefix } else { rng.bool() } {
                apply(&mut self.durable_names, &change);
            }
        }
        self.inodes.retain(|_, inode| !inode.is_temporary());
        for inode in self.inodes.values_mut() {
            inode.lose_power(&mut rng);
        }
        self.names = self.durable_names.clone();
        self.locks.clear();
        self.injected.cut_at = None;
        self.power_gone = false;
        self.incarnation += 1;
        self.free_unnamed();
    }

    /// Puts copies of the files of another disk in place of all that is below `dir`, durably.
    pub(super) fn replace_below(&mut self, dir: &Path, from: &FaultDisk) {
        self.unsynced_names.clear();
        self.inodes.retain(|_, inode| !inode.is_temporary());
        self.names.retain(|path, _| !path.starts_with(dir));
        self.dirs.extend(from.dirs.iter().cloned());
        for (path, id) in from.names.iter().filter(|(path, _)| path.starts_with(dir)) {
            let mut inode = from.inodes[id].clone();
            inode.sync();
            inode.handles = 0;
            self.inodes.insert(self.next_inode, inode);
            self.names.insert(path.clone(), self.next_inode);
            self.next_inode += 1;
        }
        self.durable_names = self.names.clone();
        self.locks.clear();
        self.incarnation += 1;
        self.free_unnamed();
    }

    /// Counts one changing operation. `Ok(true)` if the power goes during it: its effect may be
    /// there, but the caller gets [`power_is_gone`].
    pub(super) fn begin(&mut self) -> io::Result<bool> {
        self.check_power()?;
        self.operations += 1;
        self.power_gone = self.injected.cut_at.is_some_and(|at| self.operations >= at);
        Ok(self.power_gone)
    }

    pub(super) fn check_power(&self) -> io::Result<()> {
        if self.power_gone { Err(power_is_gone()) } else { Ok(()) }
    }

    // Names

    pub(super) fn find(&self, path: &Path) -> io::Result<u64> {
        self.names.get(path).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    pub(super) fn create(&mut self, path: &Path) -> io::Result<u64> {
        if self.names.contains_key(path) || self.dirs.contains(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.check_dir(parent(path))?;
        let cut = self.begin_name_change()?;
        let id = self.next_inode;
        self.next_inode += 1;
        self.inodes.insert(id, Inode::default());
        self.change_names(parent(path), vec![(path.to_owned(), Some(id))]);
        finish(cut).map(|()| id)
    }

    /// Makes a file without a name.
    pub(super) fn create_temporary(&mut self, path: &Path) -> io::Result<u64> {
        self.check_dir(parent(path))?;
        let cut = self.begin_name_change()?;
        if self.injected.temporary == Some(TemporaryFault::Open) {
            return Err(refused("a temporary file"));
        }
        finish(cut)?;
        let id = self.next_inode;
        self.next_inode += 1;
        self.inodes.insert(id, Inode::temporary(TemporaryImage::new()?));
        Ok(id)
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let id = self.find(from)?;
        self.check_dir(parent(to))?;
        if self.dirs.contains(to) {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        let cut = self.begin_name_change()?;
        let (old, new) = ((from.to_owned(), None), (to.to_owned(), Some(id)));
        if parent(from) == parent(to) {
            // In this order, so that a file that is renamed to its own name keeps it.
            self.change_names(parent(to), vec![old, new]);
        } else {
            self.change_names(parent(to), vec![new]);
            self.change_names(parent(from), vec![old]);
        }
        self.free_unnamed();
        finish(cut)
    }

    pub(super) fn remove(&mut self, path: &Path) -> io::Result<()> {
        self.find(path)?;
        let cut = self.begin_name_change()?;
        self.change_names(parent(path), vec![(path.to_owned(), None)]);
        self.free_unnamed();
        finish(cut)
    }

    pub(super) fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.check_dir(dir)?;
        // Paths below a directory lie together behind it.
        let inside = self.names.range(dir.to_owned()..).map(|(path, _)| path);
        Ok(inside
            .take_while(|path| path.starts_with(dir))
            .filter(|path| parent(path) == dir)
            .filter_map(|path| path.file_name()?.to_str().map(str::to_owned))
            .collect())
    }

    pub(super) fn create_dir_all(&mut self, dir: &Path) -> io::Result<()> {
        if self.dirs.contains(dir) {
            return self.check_power();
        }
        if dir.ancestors().any(|part| self.names.contains_key(part)) {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let cut = self.begin_name_change()?;
        if !cut || self.rng.bool() {
            self.dirs.extend(dir.ancestors().map(Path::to_owned));
        }
        finish(cut)
    }

    pub(super) fn sync_dir(&mut self, dir: &Path) -> io::Result<()> {
        self.check_dir(dir)?;
        let cut = self.begin()?;
        self.stats.syncs += 1;
        finish(cut)?;
        if self.injected.fail_syncs {
            return Err(refused("a sync"));
        }
        let (synced, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.unsynced_names).into_iter().partition(|c| c.dir == dir);
        self.unsynced_names = rest;
        for change in synced {
            apply(&mut self.durable_names, &change);
        }
        self.free_unnamed();
        Ok(())
    }

    pub(super) fn lock(&mut self, path: &Path) -> io::Result<()> {
        self.check_power()?;
        if self.locks.contains(path) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if !self.names.contains_key(path) {
            self.create(path)?;
        }
        self.locks.insert(path.to_owned());
        Ok(())
    }

    pub(super) fn unlock(&mut self, path: &Path) {
        self.locks.remove(path);
    }

    // Files

    pub(super) fn inode(&self, id: u64) -> &Inode {
        self.inodes.get(&id).expect("a file lives as long as its handles")
    }

    pub(super) fn inode_mut(&mut self, id: u64) -> &mut Inode {
        self.inodes.get_mut(&id).expect("a file lives as long as its handles")
    }

    pub(super) fn close(&mut self, id: u64) {
        let inode = self.inode_mut(id);
        inode.handles -= 1;
        if inode.handles == 0 {
            self.free_unnamed();
        }
    }

    pub(super) fn read(&mut self, id: u64, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.check_power()?;
        if self.injected.fail_reads {
            return Err(refused("a read"));
        }
        let count = self.inode(id).read(buf, offset);
        self.stats.reads += 1;
        self.stats.bytes_read += count as u64;
        Ok(count)
    }

    pub(super) fn write(
        &mut self,
        id: u64,
        parts: &[io::IoSlice<'_>],
        offset: u64,
    ) -> io::Result<()> {
        let bytes: u64 = parts.iter().map(|part| part.len() as u64).sum();
        let cut = self.begin()?;
        let room = self.room_for(id, &(offset..offset + bytes));
        let is_temporary = self.refuses_temporary(id, TemporaryFault::Write);
        let refused_here = self.injected.fail_writes || is_temporary;
        let whole = room.is_ok() && !refused_here;
        // A write that fails may have come any way, as the trait says.
        let mut left = match whole {
            true => bytes,
            // Of a long write even a small part has all that is looked at.
            false if is_temporary && self.rng.bool() => 0,
            false => self.part_that_fits(id, offset, bytes),
        };
        let mut at = offset;
        let inode = self.inode_mut(id);
        for part in parts {
            let count = left.min(part.len() as u64);
            if count > 0 {
                inode.write(&part[..count as usize], at);
            }
            at += count;
            left -= count;
        }
        self.stats.writes += 1;
        self.stats.bytes_written += at - offset;
        finish(cut)?;
        if refused_here { Err(refused("a write")) } else { room }
    }

    pub(super) fn sync(&mut self, id: u64) -> io::Result<()> {
        let cut = self.begin()?;
        self.stats.syncs += 1;
        finish(cut)?;
        if self.injected.fail_syncs || self.refuses_temporary(id, TemporaryFault::Sync) {
            return Err(self.fail_to_sync(id, "a sync"));
        }
        self.stats.bytes_synced += self.inode_mut(id).sync();
        Ok(())
    }

    /// Brings nothing to the disk, which a caller may not rely on anyhow, and fails as a sync does:
    /// the kernel tells an error of the disk to one of the two and not to the other.
    pub(super) fn write_back(&mut self, id: u64) -> io::Result<()> {
        self.check_power()?;
        if !self.injected.fail_syncs {
            return Ok(());
        }
        Err(self.fail_to_sync(id, "a write back"))
    }

    fn fail_to_sync(&mut self, id: u64, what: &str) -> io::Error {
        let inode = self.inodes.get_mut(&id).expect("a file lives as long as its handles");
        inode.drop_unsynced(&mut self.rng);
        refused(what)
    }

    pub(super) fn reserve(&mut self, id: u64, range: &Range<u64>) -> io::Result<()> {
        let cut = self.begin()?;
        if self.injected.fail_writes {
            return Err(refused("a reservation"));
        }
        if self.refuses_temporary(id, TemporaryFault::NoSpace) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.room_for(id, range)?;
        if !range.is_empty() {
            self.inode_mut(id).reserve(range);
        }
        finish(cut)
    }

    pub(super) fn punch(&mut self, id: u64, range: &Range<u64>) -> io::Result<()> {
        let cut = self.begin()?;
        if self.injected.fail_writes {
            return Err(refused("to give space back"));
        }
        self.inode_mut(id).punch(range);
        finish(cut)
    }

    pub(super) fn set_len(&mut self, id: u64, len: u64) -> io::Result<()> {
        let cut = self.begin()?;
        if self.injected.fail_writes {
            return Err(refused("a change of length"));
        }
        self.inode_mut(id).set_len(len);
        finish(cut)
    }

    /// Puts memory on the file, if it is a temporary one.
    pub(super) fn remap(
        &self,
        id: u64,
        memory: &AnonymousMap,
        range: Range<usize>,
        offset: u64,
    ) -> io::Result<bool> {
        self.check_power()?;
        if self.refuses_temporary(id, TemporaryFault::Remap) {
            return Err(refused("to map a file"));
        }
        self.inode(id).remap(memory, range, offset)
    }

    fn refuses_temporary(&self, id: u64, fault: TemporaryFault) -> bool {
        self.injected.temporary == Some(fault) && self.inode(id).is_temporary()
    }

    #[cfg(test)]
    pub(super) fn inode_count(&self) -> usize {
        self.inodes.len()
    }

    fn room_for(&self, id: u64, range: &Range<u64>) -> io::Result<()> {
        let Some(capacity) = self.injected.capacity_bytes else { return Ok(()) };
        let wanted = self.inode(id).space_wanted(range);
        // A write into reserved space always fits.
        if wanted == 0 || self.space() + wanted <= capacity {
            return Ok(());
        }
        Err(io::ErrorKind::StorageFull.into())
    }

    /// How many bytes of a write that is going to fail reach the file all the same.
    fn part_that_fits(&mut self, id: u64, offset: u64, bytes: u64) -> u64 {
        let sectors = self.rng.u64(0..=bytes.div_ceil(SECTOR_BYTES));
        let mut part = (sectors * SECTOR_BYTES).min(bytes);
        while part > 0 && self.room_for(id, &(offset..offset + part)).is_err() {
            part = part / 2 / SECTOR_BYTES * SECTOR_BYTES;
        }
        part
    }

    fn space(&self) -> u64 {
        self.inodes.values().map(Inode::space).sum()
    }

    fn check_dir(&self, dir: &Path) -> io::Result<()> {
        if self.dirs.contains(dir) { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    fn begin_name_change(&mut self) -> io::Result<bool> {
        let cut = self.begin()?;
        if self.injected.fail_writes { Err(refused("a change of names")) } else { Ok(cut) }
    }

    fn change_names(&mut self, dir: &Path, names: Vec<(PathBuf, Option<u64>)>) {
        let change = NameChange { dir: dir.to_owned(), names };
        apply(&mut self.names, &change);
        self.unsynced_names.push(change);
    }

    /// Forgets files that neither a name, nor a change that may yet be kept or lost, nor a handle
    /// leads to.
    fn free_unnamed(&mut self) {
        let pending = self.unsynced_names.iter().flat_map(|c| &c.names).filter_map(|(_, id)| *id);
        let named: BTreeSet<u64> = self
            .names
            .values()
            .chain(self.durable_names.values())
            .copied()
            .chain(pending)
            .collect();
        self.inodes.retain(|id, inode| inode.handles > 0 || named.contains(id));
    }
}

fn apply(names: &mut BTreeMap<PathBuf, u64>, change: &NameChange) {
    for (path, id) in &change.names {
        match id {
            Some(id) => names.insert(path.clone(), *id),
            None => names.remove(path),
        };
    }
}

/// The directory that holds `path`.
fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(path)
}

fn finish(cut: bool) -> io::Result<()> {
    if cut { Err(power_is_gone()) } else { Ok(()) }
}

pub(super) fn power_is_gone() -> io::Error {
    io::Error::other("the power is gone")
}

fn refused(what: &str) -> io::Error {
    io::Error::other(format!("the disk refused {what}"))
}
