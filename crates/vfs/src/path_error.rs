//! I/O errors that name the operation and the file.

use crate::{AnonymousMap, File, FileMap, View};
use std::error::Error;
use std::fmt::{self, Display, Formatter};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The system's error with its operation and its file.
#[derive(Debug)]
struct PathError {
    what: &'static str,
    path: PathBuf,
    error: io::Error,
}

impl Display for PathError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} {}: {}", self.what, self.path.display(), self.error)
    }
}

impl Error for PathError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.error)
    }
}

/// The same error, of the same kind, with what could not be done.
pub(crate) fn with_path<'a>(
    what: &'static str,
    path: &'a Path,
) -> impl Fn(io::Error) -> io::Error + 'a {
    move |error| io::Error::new(error.kind(), PathError { what, path: path.to_owned(), error })
}

/// The number of the error if the operating system refused something, as
/// [`io::Error::raw_os_error`], which does not find it in an error that names its file.
#[must_use]
pub fn os_error(error: &io::Error) -> Option<i32> {
    let with_path = || error.get_ref()?.downcast_ref::<PathError>()?.error.raw_os_error();
    error.raw_os_error().or_else(with_path)
}

/// A file whose errors name it.
#[derive(Debug)]
pub(crate) struct WithPath<F> {
    file: F,
    path: PathBuf,
}

impl<F> WithPath<F> {
    pub(crate) fn new(file: F, path: &Path) -> WithPath<F> {
        WithPath { file, path: path.to_owned() }
    }

    fn with_path(&self, what: &'static str) -> impl Fn(io::Error) -> io::Error + '_ {
        with_path(what, &self.path)
    }
}

impl<F: File> File for WithPath<F> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset).map_err(self.with_path("read"))
    }

    fn write_all_at(&self, parts: &[io::IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.file.write_all_at(parts, offset).map_err(self.with_path("write"))
    }

    fn write_synced(&self, parts: &[io::IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.file.write_synced(parts, offset).map_err(self.with_path("write and sync"))
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync().map_err(self.with_path("sync"))
    }

    fn write_back(&self, range: Range<u64>) -> io::Result<()> {
        self.file.write_back(range).map_err(self.with_path("write back"))
    }

    fn start_write_back(&self, range: Range<u64>) -> io::Result<()> {
        self.file.start_write_back(range).map_err(self.with_path("write back"))
    }

    fn allocate(&self, range: Range<u64>) -> io::Result<()> {
        self.file.allocate(range).map_err(self.with_path("reserve space for"))
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len().map_err(self.with_path("tell the length of"))
    }

    fn data_end(&self) -> io::Result<u64> {
        self.file.data_end().map_err(self.with_path("find the data of"))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len).map_err(self.with_path("change the length of"))
    }

    fn punch(&self, range: Range<u64>) -> io::Result<bool> {
        self.file.punch(range).map_err(self.with_path("give back space of"))
    }

    fn view(&self, range: Range<u64>) -> io::Result<View> {
        self.file.view(range).map_err(self.with_path("read"))
    }

    fn view_mapped(&self, range: Range<u64>) -> io::Result<Option<View>> {
        self.file.view_mapped(range).map_err(self.with_path("map"))
    }

    fn map_ahead(&self, len: u64) -> io::Result<Option<FileMap>> {
        self.file.map_ahead(len).map_err(self.with_path("map"))
    }

    fn remap(&self, memory: &AnonymousMap, range: Range<usize>, offset: u64) -> io::Result<bool> {
        self.file.remap(memory, range, offset).map_err(self.with_path("map"))
    }

    fn will_need(&self, range: Range<u64>) {
        self.file.will_need(range);
    }

    fn advise_random(&self) {
        self.file.advise_random();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::OsFs;
    use crate::{FileSystem, OpenMode};

    #[test]
    fn an_error_names_the_file_and_is_still_the_same() {
        let dir = tempfile::tempdir().expect("made");
        let (fs, missing) = (OsFs::new(), dir.path().join("none"));
        let other = dir.path().join("other");
        for (what, error) in [
            ("open", fs.open(&missing, OpenMode::Read).map(drop)),
            ("open", fs.open_direct(&missing).map(drop)),
            ("list", fs.list(&missing).map(drop)),
            ("rename", fs.rename(&missing, &other)),
            ("remove", fs.remove(&missing)),
            ("sync", fs.sync_dir(&missing)),
            ("lock", fs.lock(&missing.join("LOCK")).map(drop)),
        ] {
            let error = error.expect_err("there is no such file");
            let text = error.to_string();
            assert!(text.starts_with(&format!("cannot {what} {}", missing.display())), "{text}");
            assert_eq!((error.kind(), os_error(&error)), (io::ErrorKind::NotFound, Some(2)));
        }
        fs.open(&other, OpenMode::CreateNew).expect("made").write_at(b"abc", 0).expect("written");
        let file = fs.open(&other, OpenMode::Read).expect("there");
        let refused = file.write_at(b"x", 0).expect_err("it is open for reading");
        assert!(refused.to_string().starts_with(&format!("cannot write {}", other.display())));
        assert!(os_error(&refused).is_some());
        let short = file.view(1..4).expect_err("it ends before");
        assert_eq!((short.kind(), os_error(&short)), (io::ErrorKind::UnexpectedEof, None));
    }
}
