//! A file system view that prefixes all names of files, so that two logs fit into one directory: a
//! file can then go from one to the other by an atomic rename.

use flotilla_vfs::{File, FileSystem, LockGuard, OpenMode};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Another file system, of which only the names with the prefix are visible, without it.
#[derive(Debug)]
pub(crate) struct PrefixedFs {
    fs: Arc<dyn FileSystem>,
    prefix: &'static str,
}

impl PrefixedFs {
    pub(crate) fn new(fs: Arc<dyn FileSystem>, prefix: &'static str) -> PrefixedFs {
        PrefixedFs { fs, prefix }
    }

    fn path(&self, path: &Path) -> PathBuf {
        let mut name = std::ffi::OsString::from(self.prefix);
        name.push(path.file_name().unwrap_or_default());
        path.with_file_name(name)
    }
}

impl FileSystem for PrefixedFs {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        self.fs.open(&self.path(path), mode)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let names = self.fs.list(dir)?;
        Ok(names.iter().filter_map(|name| name.strip_prefix(self.prefix)).map(Into::into).collect())
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.fs.create_dir_all(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.fs.rename(&self.path(from), &self.path(to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.fs.remove(&self.path(path))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.fs.sync_dir(dir)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn LockGuard>> {
        self.fs.lock(&self.path(path))
    }
}
