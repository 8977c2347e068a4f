//! The virtual file system, the only access to the disk: two traits, their contract, and two
//! implementations.
//!
//! [`os::OsFs`] is the real file system. [`fault::FaultFs`] is a disk in memory that loses, tears,
//! delays and refuses by seed, so that an engine can be tried on a disk that lies. Both pass the
//! suite in `tests/conformance`. [`hooked::HookedFs`] lets a test in between.
//!
//! The contract:
//! - Bytes written are readable at once, through every handle of the file.
//! - Bytes are durable only after [`File::sync`] has returned `Ok`. Until then a power loss keeps
//!   any part of them: none, all, or some sectors of 512 bytes.
//! - After a failed `write_at` or `sync` nothing is known about the bytes since the last good
//!   `sync`. Trying again proves nothing; the owner must stop and open the file anew.
//! - A name that was created, renamed or removed is durable only after [`FileSystem::sync_dir`].

use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

pub mod fault;
pub mod hooked;
mod map;
pub mod os;
mod path_error;

pub use map::{AnonymousMap, FileMap, MapAdvice, View};
pub use path_error::os_error;

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// For reading; the file must exist.
    Read,
    /// For reading and writing; the file must exist.
    Write,
    /// For reading and writing; the file must not exist yet.
    CreateNew,
}

/// Names, and the way to files.
pub trait FileSystem: Send + Sync + Debug {
    /// Opens a file.
    ///
    /// # Errors
    ///
    /// `NotFound` and `AlreadyExists` as `mode` says; otherwise the system's error.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>>;

    /// Opens a file that exists for reading and writing, so that [`File::write_synced`] bypasses
    /// the page cache where it can (direct I/O): a write of whole sectors of 512 bytes, in one part
    /// that begins at such a multiple in memory too, then goes to the disk as it is. Nothing has to
    /// be read for it first, and it does not wait behind the kernel's writeback. Any other write
    /// goes its usual way; all are seen by all handles.
    ///
    /// # Errors
    ///
    /// As [`FileSystem::open`].
    fn open_direct(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.open(path, OpenMode::Write)
    }

    /// Makes a temporary file in the directory of `path`, for reading and writing: it has no name,
    /// so it is gone with its last handle, or when the power goes. Where the file system knows no
    /// such files it is made at `path`, where there must be none, and its name is removed.
    ///
    /// # Errors
    ///
    /// The system's error. A file may be left at `path`, also by a loss of power.
    fn open_temporary(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        open_and_unlink(self, path)
    }

    /// Whether [`File::remap`] can put memory on a temporary file.
    fn can_remap(&self) -> bool {
        false
    }

    /// The names of all files directly in `dir`, sorted. Directories are left out.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is no such directory.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// Makes `dir` and its parents, durably. It is no error if they exist.
    ///
    /// # Errors
    ///
    /// The system's error.
    fn create_dir_all(&self, dir: &Path) -> io::Result<()>;

    /// Gives `from` the name `to`, replacing what had it.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is no `from`.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file's name. Open handles and views stay good.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is no such file.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in `dir` durable.
    ///
    /// # Errors
    ///
    /// The system's error; see the module's third rule.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Takes an exclusive lock on the file `path`, made if missing, until the guard is dropped or
    /// the process ends. Never waits.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if another holder, in this process or another, has it.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn LockGuard>>;
}

/// A temporary file of a file system that needs a name for it.
fn open_and_unlink<F: FileSystem + ?Sized>(fs: &F, path: &Path) -> io::Result<Arc<dyn File>> {
    let file = fs.open(path, OpenMode::CreateNew)?;
    fs.remove(path)?;
    Ok(file)
}

/// Holds a lock on a file until it is dropped.
pub trait LockGuard: Send + Sync + Debug {}

/// One open file. All methods may be called from many threads.
pub trait File: Send + Sync + Debug {
    /// Reads up to `buf.len()` bytes; fewer only at the end of the file.
    ///
    /// # Errors
    ///
    /// The system's error.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all of `parts`, one after the other, as if they were one buffer. Grows the file as
    /// needed.
    ///
    /// # Errors
    ///
    /// The system's error; `StorageFull` if the disk is full. Any part may have been written.
    fn write_all_at(&self, parts: &[io::IoSlice<'_>], offset: u64) -> io::Result<()>;

    /// Writes all of `parts`, as [`File::write_all_at`], and makes these bytes durable before it
    /// returns. It makes no promise about earlier writes, and waits for none of them where the
    /// kernel can tell them apart: so it is quick next to heavy writers.
    ///
    /// # Errors
    ///
    /// Those of [`File::write_all_at`] and of [`File::sync`].
    fn write_synced(&self, parts: &[io::IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.write_all_at(parts, offset)?;
        self.sync()
    }

    /// Makes all bytes written so far, and the length, durable.
    ///
    /// # Errors
    ///
    /// The system's error; see the module's third rule.
    fn sync(&self) -> io::Result<()>;

    /// Brings the bytes of `range` to the disk and waits until they are there. Only a step towards
    /// a [`File::sync`], which is quicker afterwards: nothing is durable by it, because neither the
    /// file's metadata nor the disk's own cache are written. It waits for no other bytes, and makes
    /// no other file's sync wait.
    ///
    /// # Errors
    ///
    /// The system's error, which a later sync may not report again; see the module's third rule.
    fn write_back(&self, _range: Range<u64>) -> io::Result<()> {
        Ok(())
    }

    /// Asks the disk for the bytes of `range` to be written, and does not wait for it: a
    /// [`File::write_back`] of them has less to wait for.
    ///
    /// # Errors
    ///
    /// As [`File::write_back`].
    fn start_write_back(&self, _range: Range<u64>) -> io::Result<()> {
        Ok(())
    }

    /// Reserves space for `range` and grows the file to its end, so that writes there neither fill
    /// the disk nor change metadata. New bytes read as zero.
    ///
    /// # Errors
    ///
    /// `StorageFull` if the disk cannot hold it.
    fn allocate(&self, range: Range<u64>) -> io::Result<()>;

    /// The file's length in bytes.
    ///
    /// # Errors
    ///
    /// The system's error.
    fn len(&self) -> io::Result<u64>;

    /// Whether the file holds no byte.
    ///
    /// # Errors
    ///
    /// As [`File::len`].
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// The end of the bytes that were ever written, as far as the file system knows without reading
    /// them: from there on to the end of the file all are zero. It may be too far, by a block or by
    /// all that was reserved; a file system that does not know returns the file's length.
    ///
    /// # Errors
    ///
    /// The system's error.
    fn data_end(&self) -> io::Result<u64> {
        self.len()
    }

    /// Cuts the file to `len` bytes or grows it with zeros.
    ///
    /// # Errors
    ///
    /// The system's error.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Gives the space of `range`, which must lie inside the file and begin and end at multiples of
    /// 4096, back to the file system. It reads as zero then, and the length stays. False, and
    /// nothing has happened, if the file system cannot do that.
    ///
    /// A write there may find the disk full, unless the range is reserved again.
    ///
    /// # Errors
    ///
    /// The system's error.
    fn punch(&self, _range: Range<u64>) -> io::Result<bool> {
        Ok(false)
    }

    /// The bytes of `range`, which must lie inside the file, without a copy where possible.
    ///
    /// The range must be sealed: until the view is dropped it is neither written nor cut off. A
    /// file is cut only through a handle that all its views come from.
    ///
    /// # Errors
    ///
    /// `UnexpectedEof` if the range ends beyond the file.
    fn view(&self, range: Range<u64>) -> io::Result<View>;

    /// As [`File::view`], but nothing if the bytes would have to be copied: a caller that wants a
    /// few pieces of a long range then asks for each of them.
    ///
    /// # Errors
    ///
    /// Those of [`File::view`].
    fn view_mapped(&self, _range: Range<u64>) -> io::Result<Option<View>> {
        Ok(None)
    }

    /// Announces that views of the file are going to be read at random: a page fault of theirs
    /// brings in one page of the kernel, and not as much around it as the disk is set up to read
    /// ahead. A reader that knows its next pages announces them by [`File::will_need`]. Only a
    /// hint.
    fn advise_random(&self) {}

    /// Puts `range` of `memory` on the file's bytes from `offset` on, in place of anonymous memory:
    /// the addresses stay, the kernel reads the bytes when they are looked at, and may evict them
    /// again. Later writes to the memory do not reach the file. False, and nothing has happened, if
    /// the file system cannot do that.
    ///
    /// The caller promises that the file has the same bytes there, durably, and keeps them as long
    /// as the memory lives; and that no thread writes to the memory meanwhile. Where the disk
    /// cannot read, the process ends by the signal `SIGBUS`.
    ///
    /// # Errors
    ///
    /// The system's error, or `InvalidInput` if the file ends before: nothing has happened.
    fn remap(
        &self,
        _memory: &AnonymousMap,
        _range: Range<usize>,
        _offset: u64,
    ) -> io::Result<bool> {
        Ok(false)
    }

    /// The file from its beginning on, mapped for reading `len` bytes long, which may be far beyond
    /// its end: later writes there are seen through the same map. Nothing where mapping is not
    /// possible, or is switched off.
    ///
    /// # Errors
    ///
    /// The system's error, such as a length beyond its limit.
    fn map_ahead(&self, _len: u64) -> io::Result<Option<FileMap>> {
        Ok(None)
    }

    /// Announces that `range` is going to be read soon, so that the disk may fetch it concurrently.
    /// Only a hint: a caller that announces many ranges first and reads them then waits for the
    /// disk about once.
    fn will_need(&self, _range: Range<u64>) {}

    /// Fills all of `buf`.
    ///
    /// # Errors
    ///
    /// `UnexpectedEof` if the file ends first; else as [`File::read_at`].
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        while done < buf.len() {
            match self.read_at(&mut buf[done..], offset + done as u64)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => done += n,
            }
        }
        Ok(())
    }

    /// Writes all of `data`; [`File::write_all_at`] with one part.
    ///
    /// # Errors
    ///
    /// As [`File::write_all_at`].
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(&[io::IoSlice::new(data)], offset)
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
