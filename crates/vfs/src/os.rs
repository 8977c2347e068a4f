//! The file system of the operating system.
//!
//! Files and directories that are made are for their owner alone, whatever else the umask would
//! allow. Those that are there already stay as they are.

use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt as _, FileExt, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;

#[cfg(target_os = "linux")]
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

#[cfg(target_os = "linux")]
use crate::AnonymousMap;
use crate::map::{self, ChunkMaps, FileMap};
use crate::path_error::{WithPath, with_path};
use crate::{File, FileSystem, LockGuard, OpenMode, View};

/// How many buffers one vectored write may take; the least that POSIX systems agree on is 1024.
const PARTS_MAX: usize = 1024;

/// Permissions of new files: reading and writing for the owner.
const FILE_MODE: u32 = 0o600;

/// Permissions of new directories: everything for the owner.
const DIRECTORY_MODE: u32 = 0o700;

/// The data ranges that are walked over in search of the last one. A file with more of them is
/// written here and there, and full of data.
#[cfg(target_os = "linux")]
const DATA_RANGES_MAX: usize = 64;

/// The file system of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsFs {
    is_unmapped: bool,
}

impl OsFs {
    /// The file system of the operating system. Views are mapped: where the disk cannot read the
    /// bytes of a view, the process ends by the signal `SIGBUS` when they are accessed.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The same, but views are read into memory: a system call and a copy each, and a disk that
    /// cannot read is an error of [`File::view`].
    #[must_use]
    pub fn unmapped() -> Self {
        Self { is_unmapped: true }
    }
}

impl FileSystem for OsFs {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let mut options = fs::OpenOptions::new();
        options.read(true);
        match mode {
            OpenMode::Read => {}
            OpenMode::Write => {
                options.write(true);
            }
            OpenMode::CreateNew => {
                options.write(true).create_new(true).mode(FILE_MODE);
            }
        }
        let maps = (!self.is_unmapped).then(ChunkMaps::default);
        let file = options.open(path).map_err(with_path("open", path))?;
        Ok(Arc::new(WithPath::new(OsFile { file, maps, direct: None }, path)))
    }

    fn open_direct(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let opened = fs::OpenOptions::new().read(true).write(true).open(path);
        let file = opened.map_err(with_path("open", path))?;
        let maps = (!self.is_unmapped).then(ChunkMaps::default);
        let direct = open_direct(path, &file);
        Ok(Arc::new(WithPath::new(OsFile { file, maps, direct }, path)))
    }

    #[cfg(target_os = "linux")]
    fn open_temporary(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        use rustix::fs::{Mode, OFlags, open};
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        match open(dir.unwrap_or(Path::new(".")), flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => {
                let maps = (!self.is_unmapped).then(ChunkMaps::default);
                let file = OsFile { file: file.into(), maps, direct: None };
                Ok(Arc::new(WithPath::new(file, path)))
            }
            // Some file systems have no files without a name; an old kernel knows of none.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => {
                crate::open_and_unlink(self, path)
            }
            Err(errno) => Err(with_path("make a temporary file at", path)(errno.into())),
        }
    }

    fn can_remap(&self) -> bool {
        cfg!(target_os = "linux") && !self.is_unmapped
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir).map_err(with_path("list", dir))? {
            let entry = entry.map_err(with_path("list", dir))?;
            if entry.file_type().map_err(with_path("list", dir))?.is_dir() {
                continue;
            }
            // A name that is not UTF-8 is none of ours, so it cannot be asked for.
            if let Ok(name) = entry.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        let missing: Vec<&Path> = dir
            .ancestors()
            .take_while(|dir| !dir.as_os_str().is_empty() && !dir.is_dir())
            .collect();
        // The last run may have made the deepest existing directory and died before it was synced.
        // Where we may not even read the parent, we cannot have made it.
        let existing = missing.last().map_or(Some(dir), |dir| dir.parent());
        if let Some(parent) =
            existing.filter(|dir| !dir.as_os_str().is_empty()).and_then(Path::parent)
        {
            match self.sync_dir(parent) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                other => other?,
            }
        }
        for dir in missing.into_iter().rev() {
            match fs::DirBuilder::new().mode(DIRECTORY_MODE).create(dir) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => {}
                other => other.map_err(with_path("make", dir))?,
            }
            self.sync_dir(dir.parent().unwrap_or(Path::new("")))?;
        }
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to).map_err(with_path("rename", from))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path).map_err(with_path("remove", path))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
        fs::File::open(dir).and_then(|dir| dir.sync_all()).map_err(with_path("sync", dir))
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn LockGuard>> {
        let file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .mode(FILE_MODE)
            .truncate(false)
            .open(path)
            .map_err(with_path("lock", path))?;
        match file.try_lock() {
            Ok(()) => Ok(Box::new(OsLock { _file: file })),
            Err(fs::TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
            Err(fs::TryLockError::Error(error)) => Err(with_path("lock", path)(error)),
        }
    }
}

/// Closing the file gives up the lock.
#[derive(Debug)]
struct OsLock {
    _file: fs::File,
}

impl LockGuard for OsLock {}

#[derive(Debug)]
struct OsFile {
    file: fs::File,
    /// `None`: views are read.
    maps: Option<ChunkMaps>,
    /// The same file, for writes of whole sectors that pass the cache by.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "there are no such writes"))]
    direct: Option<fs::File>,
}

/// A disk that wants more than this as a whole is written through the cache.
#[cfg(target_os = "linux")]
const SECTOR_BYTES: usize = 512;

/// Opens a file for direct writes of sectors, where the file system says that it can.
#[cfg(target_os = "linux")]
fn open_direct(path: &Path, file: &fs::File) -> Option<fs::File> {
    use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, open, statx};
    let found = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    let aligns = [found.stx_dio_mem_align, found.stx_dio_offset_align];
    let is_fitting = |align: u32| align > 0 && align as usize <= SECTOR_BYTES;
    if found.stx_mask & StatxFlags::DIOALIGN.bits() == 0 || !aligns.into_iter().all(is_fitting) {
        return None;
    }
    let flags = OFlags::WRONLY | OFlags::DIRECT | OFlags::CLOEXEC;
    Some(open(path, flags, Mode::empty()).ok()?.into())
}

#[cfg(not(target_os = "linux"))]
fn open_direct(_path: &Path, _file: &fs::File) -> Option<fs::File> {
    None
}

/// Whether these are whole sectors in one part, at multiples of a sector in memory and in the file.
#[cfg(target_os = "linux")]
fn are_sectors(parts: &[io::IoSlice<'_>], offset: u64) -> bool {
    let [part] = parts else { return false };
    let places = [part.as_ptr().addr() as u64, part.len() as u64, offset];
    places.into_iter().all(|place| place.is_multiple_of(SECTOR_BYTES as u64))
}

/// Writes all of `parts` by calls of `write`, which says how many bytes it wrote.
fn write_vectored(
    parts: &[io::IoSlice<'_>],
    offset: u64,
    mut write: impl FnMut(&[io::IoSlice<'_>], u64) -> Result<usize, Errno>,
) -> io::Result<()> {
    let mut parts = parts.to_vec();
    let mut rest = &mut parts[..];
    let mut offset = offset;
    // Drops empty parts at the front, so that a write of nothing is not taken for a full disk.
    io::IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        match write(&rest[..rest.len().min(PARTS_MAX)], offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                offset += n as u64;
                io::IoSlice::advance_slices(&mut rest, n);
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

impl File for OsFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match self.file.read_at(&mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_all_at(&self, parts: &[io::IoSlice<'_>], offset: u64) -> io::Result<()> {
        if let [part] = parts {
            return self.write_part(part, offset);
        }
        write_vectored(parts, offset, |batch, at| rustix::io::pwritev(&self.file, batch, at))
    }

    /// One system call, and the kernel brings only these bytes to the disk.
    #[cfg(target_os = "linux")]
    fn write_synced(&self, parts: &[io::IoSlice<'_>], offset: u64) -> io::Result<()> {
        use rustix::io::{ReadWriteFlags, pwritev2};
        let direct = self.direct.as_ref().filter(|_| are_sectors(parts, offset));
        let file = direct.unwrap_or(&self.file);
        write_vectored(parts, offset, |batch, at| pwritev2(file, batch, at, ReadWriteFlags::DSYNC))
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    #[cfg(target_os = "linux")]
    fn write_back(&self, range: Range<u64>) -> io::Result<()> {
        let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
            | libc::SYNC_FILE_RANGE_WRITE
            | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        self.sync_range(&range, flags)
    }

    #[cfg(target_os = "linux")]
    fn start_write_back(&self, range: Range<u64>) -> io::Result<()> {
        self.sync_range(&range, libc::SYNC_FILE_RANGE_WRITE)
    }

    #[cfg(target_os = "linux")]
    fn allocate(&self, range: Range<u64>) -> io::Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        loop {
            let bytes = range.end - range.start;
            match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), range.start, bytes) {
                Err(Errno::INTR) => {}
                // Some file systems cannot reserve. Zeros reserve as well, only slower.
                Err(Errno::OPNOTSUPP) => return self.grow_with_zeros(range.end),
                other => return other.map_err(io::Error::from),
            }
        }
    }

    /// Elsewhere the call that reserves is missing, or truncates a longer file at the end of the
    /// range. As no holes are made there, existing bytes are reserved, and zeros reserve the rest.
    #[cfg(not(target_os = "linux"))]
    fn allocate(&self, range: Range<u64>) -> io::Result<()> {
        if range.is_empty() { Ok(()) } else { self.grow_with_zeros(range.end) }
    }

    #[cfg(target_os = "linux")]
    fn punch(&self, range: Range<u64>) -> io::Result<bool> {
        if range.is_empty() {
            return Ok(true);
        }
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        loop {
            let bytes = range.end - range.start;
            match rustix::fs::fallocate(&self.file, how, range.start, bytes) {
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP) => return Ok(false),
                other => return other.map(|()| true).map_err(io::Error::from),
            }
        }
    }

    /// If the kernel refuses to read ahead, the read itself will report the error.
    #[cfg(target_os = "linux")]
    fn will_need(&self, range: Range<u64>) {
        let len = std::num::NonZeroU64::new(range.end.saturating_sub(range.start));
        if len.is_some() {
            let advice = rustix::fs::Advice::WillNeed;
            rustix::fs::fadvise(&self.file, range.start, len, advice).ok();
        }
    }

    fn advise_random(&self) {
        if let Some(maps) = &self.maps {
            maps.advise_random();
        }
    }

    fn len(&self) -> io::Result<u64> {
        map::len_of(&self.file)
    }

    /// Asks the file system's map of the file, which knows what was reserved and not written.
    #[cfg(target_os = "linux")]
    fn data_end(&self) -> io::Result<u64> {
        use rustix::fs::{SeekFrom, seek};
        let mut end = 0;
        for _ in 0..DATA_RANGES_MAX {
            // The file's position, which this moves, is not used: all reads and writes name theirs.
            match seek(&self.file, SeekFrom::Data(end)) {
                Ok(begin) => end = seek(&self.file, SeekFrom::Hole(begin))?,
                Err(Errno::NXIO) => return Ok(end),
                Err(Errno::INVAL | Errno::OPNOTSUPP) => break,
                Err(errno) => return Err(errno.into()),
            }
        }
        self.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let result = self.file.set_len(len);
        if let Some(maps) = &self.maps {
            maps.forget_len();
        }
        result
    }

    fn view(&self, range: Range<u64>) -> io::Result<View> {
        if let Some(view) = self.view_mapped(range.clone())? {
            return Ok(view);
        }
        let len = range.end.checked_sub(range.start).ok_or(io::ErrorKind::InvalidInput)?;
        // Before there is memory for them: the range may be anything.
        if range.end > self.len()? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut bytes = vec![0; len as usize];
        self.read_exact_at(&mut bytes, range.start)?;
        Ok(View::from(bytes))
    }

    fn view_mapped(&self, range: Range<u64>) -> io::Result<Option<View>> {
        match &self.maps {
            Some(maps) => maps.view(&self.file, &range),
            None => Ok(None),
        }
    }

    #[cfg(target_os = "linux")]
    fn remap(&self, memory: &AnonymousMap, range: Range<usize>, offset: u64) -> io::Result<bool> {
        if self.maps.is_none() {
            return Ok(false);
        }
        let end = offset.checked_add(range.len() as u64);
        if end.is_none_or(|end| self.len().is_ok_and(|len| end > len)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        memory.remap(range, &self.file, offset).map(|()| true)
    }

    fn map_ahead(&self, len: u64) -> io::Result<Option<FileMap>> {
        self.maps.is_some().then(|| FileMap::new(&self.file, len)).transpose()
    }
}

impl OsFile {
    /// `sync_file_range(2)`.
    #[cfg(target_os = "linux")]
    #[allow(unsafe_code)]
    fn sync_range(&self, range: &Range<u64>, flags: libc::c_uint) -> io::Result<()> {
        use std::os::fd::AsRawFd;
        let bytes = range.end.saturating_sub(range.start);
        let (Ok(begin), Ok(bytes)) = (i64::try_from(range.start), i64::try_from(bytes)) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        if bytes == 0 {
            // To the kernel, no bytes are all up to the end of the file.
            return Ok(());
        }
        loop {
            // SAFETY: The call takes numbers only and touches no memory of this process; the
            // descriptor is open as long as `self.file` is.
            let done = unsafe { libc::sync_file_range(self.file.as_raw_fd(), begin, bytes, flags) };
            match io::Error::last_os_error() {
                _ if done == 0 => return Ok(()),
                error if error.kind() == io::ErrorKind::Interrupted => {}
                // Some file systems cannot: then the sync has more to do.
                error if error.raw_os_error() == Some(libc::ENOSYS) => return Ok(()),
                error => return Err(error),
            }
        }
    }

    /// The system is called without the C library, whose calls of threads that might be cancelled
    /// take a tenth longer.
    fn write_part(&self, mut part: &[u8], mut offset: u64) -> io::Result<()> {
        while !part.is_empty() {
            match rustix::io::pwrite(&self.file, part, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    offset += n as u64;
                    part = &part[n..];
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    fn grow_with_zeros(&self, end: u64) -> io::Result<()> {
        let zeros = [0; 64 << 10];
        let mut at = self.len()?;
        while at < end {
            let count = (end - at).min(zeros.len() as u64);
            self.write_part(&zeros[..count as usize], at)?;
            at += count;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn files_and_directories_are_for_their_owner_alone() {
        let temporary = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let (parent, fs) = (temporary.path().join("parent"), OsFs::new());
        let dir = parent.join("dir");
        fs.create_dir_all(&dir).unwrap();
        let [file, lock] = ["file", "LOCK"].map(|name| dir.join(name));
        fs.open(&file, OpenMode::CreateNew).unwrap();
        let _locked = fs.lock(&lock).unwrap();
        assert_eq!([&*parent, &*dir].map(mode), [0o700; 2]);
        assert_eq!([&*file, &*lock].map(mode), [0o600; 2]);
        // Files that are there keep their own.
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
        fs.open(&file, OpenMode::Write).unwrap();
        fs.create_dir_all(&dir).unwrap();
        assert_eq!(mode(&file), 0o640);
    }
}
