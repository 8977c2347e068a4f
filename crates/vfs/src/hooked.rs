//! A wrapper for tests: a file system that calls a hook before each operation on the bytes of a
//! file, and before names are looked up, to hold the disk up or to do something else meanwhile. It
//! changes nothing else.

use crate::{AnonymousMap, File, FileMap, FileSystem, LockGuard, OpenMode, View};
use std::fmt;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// The operation that follows the hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A file is opened or made.
    Open,
    /// A directory is listed.
    List,
    /// Bytes are read, or a view of them is taken.
    Read,
    /// Bytes are written.
    Write,
    /// The file is synced.
    Sync,
    /// Bytes are written back.
    WriteBack,
    /// Room is reserved.
    Allocate,
    /// The file is cut or grown.
    SetLen,
    /// Space is given back.
    Punch,
}

type Hook = Arc<dyn Fn(Operation) + Send + Sync>;

/// A file system with a hook.
#[derive(Clone)]
pub struct HookedFs(Arc<dyn FileSystem>, Hook);

struct HookedFile(Arc<dyn File>, Hook);

impl HookedFs {
    /// The same file system with a hook. It is called on the thread that asks, which waits for it.
    pub fn new(fs: Arc<dyn FileSystem>, hook: impl Fn(Operation) + Send + Sync + 'static) -> Self {
        Self(fs, Arc::new(hook))
    }
}

impl FileSystem for HookedFs {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        (self.1)(Operation::Open);
        Ok(Arc::new(HookedFile(self.0.open(path, mode)?, self.1.clone())))
    }
    fn open_direct(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        (self.1)(Operation::Open);
        Ok(Arc::new(HookedFile(self.0.open_direct(path)?, self.1.clone())))
    }
    fn open_temporary(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        (self.1)(Operation::Open);
        Ok(Arc::new(HookedFile(self.0.open_temporary(path)?, self.1.clone())))
    }
    fn can_remap(&self) -> bool {
        self.0.can_remap()
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        (self.1)(Operation::List);
        self.0.list(dir)
    }
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.0.create_dir_all(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.remove(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.0.sync_dir(dir)
    }
    fn lock(&self, path: &Path) -> io::Result<Box<dyn LockGuard>> {
        self.0.lock(path)
    }
}

impl HookedFile {
    fn before(&self, operation: Operation) -> &dyn File {
        (self.1)(operation);
        &*self.0
    }
}

impl File for HookedFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.before(Operation::Read).read_at(buf, offset)
    }
    fn write_all_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.before(Operation::Write).write_all_at(parts, offset)
    }
    fn sync(&self) -> io::Result<()> {
        self.before(Operation::Sync).sync()
    }
    fn write_back(&self, range: Range<u64>) -> io::Result<()> {
        self.before(Operation::WriteBack).write_back(range)
    }
    fn start_write_back(&self, range: Range<u64>) -> io::Result<()> {
        self.before(Operation::WriteBack).start_write_back(range)
    }
    fn allocate(&self, range: Range<u64>) -> io::Result<()> {
        self.before(Operation::Allocate).allocate(range)
    }
    fn punch(&self, range: Range<u64>) -> io::Result<bool> {
        self.before(Operation::Punch).punch(range)
    }
    fn will_need(&self, range: Range<u64>) {
        self.0.will_need(range);
    }
    fn advise_random(&self) {
        self.0.advise_random();
    }
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn data_end(&self) -> io::Result<u64> {
        self.0.data_end()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.before(Operation::SetLen).set_len(len)
    }
    fn view(&self, range: Range<u64>) -> io::Result<View> {
        self.before(Operation::Read).view(range)
    }
    fn view_mapped(&self, range: Range<u64>) -> io::Result<Option<View>> {
        self.before(Operation::Read).view_mapped(range)
    }
    fn remap(&self, memory: &AnonymousMap, range: Range<usize>, offset: u64) -> io::Result<bool> {
        self.0.remap(memory, range, offset)
    }
    fn map_ahead(&self, len: u64) -> io::Result<Option<FileMap>> {
        self.0.map_ahead(len)
    }
}

impl fmt::Debug for HookedFs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for HookedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
