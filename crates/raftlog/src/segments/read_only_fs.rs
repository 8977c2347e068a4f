//! A file system view that changes nothing, for a log that another process may be writing.
//!
//! Files are opened for reading, whatever was asked, and every change is refused. Views are copies:
//! the writer may cut a file or recycle it at any time, and a mapping would then change, or end,
//! under its readers.
//!
//! Invariant: bytes that are handed out of a file were in it while it still was the segment that it
//! was when it was opened.

use crate::format::layout::SEGMENT_HEADER_BYTES;
use crate::segments::segment::read_available;
use flotilla_vfs::{File, FileSystem, LockGuard, OpenMode, View};
use std::io::{self, IoSlice};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Another file system, to read from.
#[derive(Debug)]
pub(crate) struct ReadOnlyFs {
    fs: Arc<dyn FileSystem>,
}

#[derive(Debug)]
struct ReadOnlyFile {
    file: Arc<dyn File>,
    /// The header of a segment, or the first bytes of another file.
    beginning: Vec<u8>,
}

/// A lock that was not taken.
#[derive(Debug)]
struct NoLock;

impl LockGuard for NoLock {}

impl ReadOnlyFs {
    pub(crate) fn new(fs: Arc<dyn FileSystem>) -> ReadOnlyFs {
        ReadOnlyFs { fs }
    }
}

impl FileSystem for ReadOnlyFs {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        if mode == OpenMode::CreateNew {
            return Err(refused());
        }
        let file = self.fs.open(path, OpenMode::Read)?;
        let beginning = beginning(&*file)?;
        Ok(Arc::new(ReadOnlyFile { file, beginning }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.fs.list(dir)
    }

    fn create_dir_all(&self, _: &Path) -> io::Result<()> {
        Err(refused())
    }

    fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
        Err(refused())
    }

    fn remove(&self, _: &Path) -> io::Result<()> {
        Err(refused())
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        Err(refused())
    }

    fn lock(&self, _: &Path) -> io::Result<Box<dyn LockGuard>> {
        Ok(Box::new(NoLock))
    }
}

impl ReadOnlyFile {
    /// Called after bytes were read: a file becomes another segment by its header first.
    fn check(&self) -> io::Result<()> {
        if beginning(&*self.file)? == self.beginning {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::NotFound, "the segment was purged by whoever writes"))
    }
}

impl File for ReadOnlyFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let count = self.file.read_at(buf, offset)?;
        self.check()?;
        Ok(count)
    }

    fn write_all_at(&self, _: &[IoSlice<'_>], _: u64) -> io::Result<()> {
        Err(refused())
    }

    fn sync(&self) -> io::Result<()> {
        Err(refused())
    }

    fn allocate(&self, _: Range<u64>) -> io::Result<()> {
        Err(refused())
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(refused())
    }

    fn view(&self, range: Range<u64>) -> io::Result<View> {
        let len = range.end.checked_sub(range.start).ok_or(io::ErrorKind::InvalidInput)?;
        if range.end > self.len()? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut bytes = vec![0; len as usize];
        self.read_exact_at(&mut bytes, range.start)?;
        Ok(View::from(bytes))
    }
}

fn beginning(file: &dyn File) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; SEGMENT_HEADER_BYTES];
    read_available(file, &mut bytes)?;
    Ok(bytes)
}

fn refused() -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, "the directory is open for reading only")
}

#[cfg(test)]
mod tests {
    use super::*;
    use flotilla_vfs::fault::FaultFs;

    #[test]
    fn nothing_is_changed_whatever_is_asked() {
        let disk = FaultFs::new(1);
        let (dir, path) = (Path::new("/log"), Path::new("/log/a"));
        disk.create_dir_all(dir).expect("made");
        let own = disk.open(path, OpenMode::CreateNew).expect("made");
        own.write_at(&[7; 200], 0).expect("written");
        let before = disk.operations();
        let fs = ReadOnlyFs::new(Arc::new(disk.clone()));
        let file = fs.open(path, OpenMode::Write).expect("opened to be read");
        for refused in [
            file.write_at(b"x", 0),
            file.sync(),
            file.allocate(0..1000),
            file.set_len(3),
            fs.create_dir_all(Path::new("/other")),
            fs.rename(path, Path::new("/log/b")),
            fs.remove(path),
            fs.sync_dir(dir),
            fs.open(Path::new("/log/c"), OpenMode::CreateNew).map(drop),
        ] {
            let error = refused.expect_err("it would change something");
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        }
        let _lock = fs.lock(&dir.join("LOCK")).expect("not taken");
        assert_eq!((disk.operations(), fs.list(dir).expect("listed")), (before, vec!["a".into()]));
        assert_eq!(*file.view(10..20).expect("read"), [7; 10]);
        let short = file.view(150..201).expect_err("beyond the end");
        assert_eq!(short.kind(), io::ErrorKind::UnexpectedEof);
        // The file becomes another segment.
        let view = file.view(100..110).expect("read");
        own.write_at(&[8; 200], 0).expect("written");
        assert_eq!(*view, [7; 10], "a view is a copy");
        let gone = file.view(100..110).expect_err("it is another file's life");
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
    }
}
