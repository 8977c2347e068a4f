//! A faulty disk at which other threads may come in before each write and each sync.

use flotilla_vfs::fault::FaultFs;
use flotilla_vfs::{File, FileSystem, LockGuard, OpenMode, View};
use shuttle::sync::atomic::{AtomicU64, Ordering};
use std::io::{self, IoSlice};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// The disk, and a count whose only use is that the model changes threads where it is raised.
#[derive(Clone, Debug)]
pub(crate) struct SharedDisk {
    pub(crate) disk: FaultFs,
    operations: Arc<AtomicU64>,
}

#[derive(Debug)]
struct SharedFile {
    file: Arc<dyn File>,
    operations: Arc<AtomicU64>,
}

impl SharedDisk {
    pub(crate) fn new(seed: u64) -> SharedDisk {
        SharedDisk { disk: FaultFs::new(seed), operations: Arc::new(AtomicU64::new(0)) }
    }
}

impl SharedFile {
    fn let_others_in(&self) {
        self.operations.fetch_add(1, Ordering::SeqCst);
    }
}

impl FileSystem for SharedDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let file = self.disk.open(path, mode)?;
        Ok(Arc::new(SharedFile { file, operations: self.operations.clone() }))
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.disk.list(dir)
    }
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.disk.create_dir_all(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.sync_dir(dir)
    }
    fn lock(&self, path: &Path) -> io::Result<Box<dyn LockGuard>> {
        self.disk.lock(path)
    }
}

impl File for SharedFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }
    fn write_all_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.let_others_in();
        self.file.write_all_at(parts, offset)
    }
    fn sync(&self) -> io::Result<()> {
        self.let_others_in();
        self.file.sync()
    }
    fn allocate(&self, range: Range<u64>) -> io::Result<()> {
        self.file.allocate(range)
    }
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
    fn view(&self, range: Range<u64>) -> io::Result<View> {
        self.file.view(range)
    }
}
