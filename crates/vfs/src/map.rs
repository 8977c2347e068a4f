//! Memory-mapped views of a file, with owned bytes where mapping is not possible.
//!
//! A [`ChunkMaps`] maps a file in large chunks and keeps them, so that a view costs one atomic
//! increment and no system call. Chunks are mapped whole, beyond the end of the file too: a map
//! stays good while the file grows into it.

use std::fmt;
use std::fs;
use std::io;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use memmap2::{MmapMut, MmapOptions, MmapRaw};
use parking_lot::RwLock;

/// How much of a file one map covers. Address space is plenty; a map costs a system call.
const CHUNK_BYTES: u64 = 64 << 20;

/// Bytes of a file that stay good as long as the view lives, even if the file's name is removed.
///
/// Cloning is cheap. `Bytes::from_owner(view)` makes shared bytes of it without a copy.
#[derive(Clone)]
pub struct View {
    source: ViewSource,
    start: usize,
    len: usize,
}

#[derive(Clone)]
enum ViewSource {
    Mapped(Arc<MmapRaw>),
    /// A vector, because to make it a slice would copy it.
    Owned(Arc<Vec<u8>>),
}

impl View {
    /// Whether the byte at `offset` is in memory, as [`FileMap::is_resident`] says of a map. Owned
    /// bytes always are.
    ///
    /// # Panics
    ///
    /// If the offset does not lie inside the view.
    #[must_use]
    pub fn is_resident(&self, offset: usize) -> bool {
        assert!(offset < self.len, "byte {offset} of a view of {}", self.len);
        match &self.source {
            ViewSource::Mapped(map) => is_resident(map, self.start + offset),
            ViewSource::Owned(_) => true,
        }
    }

    /// A part of this view.
    ///
    /// # Panics
    ///
    /// If `range` does not lie inside the view.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end, "a range from {} to {}", range.start, range.end);
        assert!(range.end <= self.len, "a range to {} of a view of {}", range.end, self.len);
        Self {
            source: self.source.clone(),
            start: self.start + range.start,
            len: range.end - range.start,
        }
    }
}

impl From<Vec<u8>> for View {
    fn from(bytes: Vec<u8>) -> Self {
        Self { start: 0, len: bytes.len(), source: ViewSource::Owned(Arc::new(bytes)) }
    }
}

impl Deref for View {
    type Target = [u8];

    #[allow(unsafe_code)]
    fn deref(&self) -> &[u8] {
        match &self.source {
            ViewSource::Owned(bytes) => &bytes[self.start..self.start + self.len],
            // SAFETY: `ChunkMaps::view`, the only place that makes a mapped view, has checked that
            // the range lies inside the map and inside the file, and `slice` only narrows it. The
            // map lives as long as the `Arc` in `self`, from which the slice borrows. The bytes are
            // neither changed nor cut off while the slice lives: the caller of `File::view`
            // promises it for exactly this range, and keeps other programs away with
            // `FileSystem::lock`. No reference to any other part of the map is ever made.
            ViewSource::Mapped(map) => unsafe {
                std::slice::from_raw_parts(map.as_ptr().add(self.start), self.len)
            },
        }
    }
}

impl AsRef<[u8]> for View {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.source {
            ViewSource::Mapped(_) => "mapped",
            ViewSource::Owned(_) => "owned",
        };
        write!(f, "View({kind}, {} bytes)", self.len)
    }
}

/// How a map is going to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapAdvice {
    /// The kernel decides: a page fault may bring in as much around it as the disk is set up to
    /// read ahead, which may be some MiB.
    Normal,
    /// At random: a page fault brings in one page of the kernel and no other. A reader that knows
    /// its next pages announces them by [`File::will_need`](crate::File::will_need).
    Random,
}

/// A file mapped by [`File::map_ahead`](crate::File::map_ahead): one map, which stays where it is
/// as long as this lives.
pub struct FileMap {
    map: MmapRaw,
}

impl FileMap {
    pub(crate) fn new(file: &fs::File, len: u64) -> io::Result<FileMap> {
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        Ok(FileMap { map: MmapOptions::new().len(len).map_raw_read_only(file)? })
    }

    /// How many bytes are mapped; the file may be shorter.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.map.len() as u64
    }

    /// Advises the kernel how the whole map is going to be read. Only a hint.
    pub fn advise(&self, advice: MapAdvice) {
        self::advise(&self.map, advice);
    }

    /// Whether the byte at `offset` is in the page cache, so that a look at it does not wait for
    /// the disk. It may be gone right after. True as well where the kernel does not tell, or where
    /// the file ends before it. Costs a system call, some 300 ns.
    ///
    /// # Panics
    ///
    /// If the offset does not lie inside the map.
    #[must_use]
    pub fn is_resident(&self, offset: u64) -> bool {
        assert!(offset < self.len_bytes(), "byte {offset} is not mapped");
        is_resident(&self.map, offset as usize)
    }

    /// The bytes of `range`.
    ///
    /// The caller promises what [`File::view`](crate::File::view) asks for: the range lies inside
    /// the file, and as long as the bytes are borrowed they are neither written nor cut off. Where
    /// the file has ended, or the disk cannot read, the process ends by the signal `SIGBUS`.
    ///
    /// # Panics
    ///
    /// If the range does not lie inside the map.
    #[must_use]
    #[inline]
    #[allow(unsafe_code)]
    pub fn bytes(&self, range: Range<u64>) -> &[u8] {
        assert!(
            range.start <= range.end && range.end <= self.len_bytes(),
            "{range:?} is not mapped"
        );
        // SAFETY: The range lies inside the map, which lives as long as `self`, from which the
        // slice borrows. The bytes do not change while it lives: the caller promises it for exactly
        // this range, and keeps other programs away with `FileSystem::lock`. No reference to any
        // other part of the map is made here.
        unsafe {
            let start = self.map.as_ptr().add(range.start as usize);
            std::slice::from_raw_parts(start, (range.end - range.start) as usize)
        }
    }
}

/// Asks the kernel for one page of its own page cache.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn is_resident(map: &MmapRaw, offset: usize) -> bool {
    const IN_MEMORY: u8 = 1;
    let page_start = offset - offset % rustix::param::page_size();
    let mut state = IN_MEMORY;
    // SAFETY: The map lives as long as it is borrowed, and `page_start` lies inside of it and is a
    // multiple of the kernel's page size. A length of one byte is one page, so the call writes one
    // byte to `state`. It reads no byte of the map.
    let asked =
        unsafe { libc::mincore(map.as_mut_ptr().add(page_start).cast(), 1, &raw mut state) };
    asked != 0 || state & IN_MEMORY != 0
}

#[cfg(not(target_os = "linux"))]
fn is_resident(_map: &MmapRaw, _offset: usize) -> bool {
    true
}

fn advise(map: &MmapRaw, advice: MapAdvice) {
    // An older or another kernel reads ahead as it always does: only time is lost.
    #[cfg(unix)]
    let _ = match advice {
        MapAdvice::Normal => map.advise(memmap2::Advice::Normal),
        MapAdvice::Random => map.advise(memmap2::Advice::Random),
    };
}

impl fmt::Debug for FileMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileMap({} bytes)", self.len_bytes())
    }
}

/// An anonymous mapping: memory that is mapped from the kernel, outside of the heap.
#[derive(Debug)]
pub struct AnonymousMap {
    map: MmapRaw,
}

impl AnonymousMap {
    /// A mapping of `len` bytes, zero until they are written, in pages of the kernel's choice.
    ///
    /// # Errors
    ///
    /// If the kernel lacks the memory.
    pub fn new(len: usize) -> io::Result<AnonymousMap> {
        Ok(AnonymousMap { map: MmapRaw::from(MmapMut::map_anon(len)?) })
    }

    /// As [`AnonymousMap::new`], with transparent huge pages where the kernel has them.
    ///
    /// # Errors
    ///
    /// If the kernel lacks the memory.
    pub fn with_huge_pages(len: usize) -> io::Result<AnonymousMap> {
        let memory = AnonymousMap::new(len)?;
        // Where this is refused the memory comes in small pages.
        #[cfg(target_os = "linux")]
        memory.map.advise(memmap2::Advice::HugePage).ok();
        Ok(memory)
    }

    /// Prefaults all of `range`, so that later writes to it do not wait for page faults.
    ///
    /// # Panics
    ///
    /// If the range does not lie inside the memory.
    pub fn populate(&self, range: Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.map.len(), "{range:?}");
        // An older or another kernel maps the pages when they are first written: only time is lost.
        // A lack of memory shows then.
        #[cfg(target_os = "linux")]
        self.map.advise_range(memmap2::Advice::PopulateWrite, range.start, range.len()).ok();
    }

    /// The bytes of `range`.
    ///
    /// The caller promises that no thread writes to them as long as they are borrowed.
    ///
    /// # Panics
    ///
    /// If the range does not lie inside the memory.
    #[must_use]
    #[allow(unsafe_code)]
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.map.len(), "{range:?}");
        // SAFETY: The range lies inside the map, which lives as long as `self`, and was zero when
        // the kernel gave it. The caller promises that its bytes do not change.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(range.start), range.len()) }
    }

    /// Only Linux moves a map over another one in one step.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn remap(
        &self,
        _range: Range<usize>,
        _file: &fs::File,
        _offset: u64,
    ) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Puts `range` on the pages of `file` from `offset` on, in place of anonymous memory. Whole
    /// pages of the kernel only.
    #[cfg(target_os = "linux")]
    #[allow(unsafe_code)]
    pub(crate) fn remap(
        &self,
        range: Range<usize>,
        file: &fs::File,
        offset: u64,
    ) -> io::Result<()> {
        use std::os::fd::AsRawFd;
        assert!(range.start <= range.end && range.end <= self.map.len(), "{range:?}");
        let page = rustix::param::page_size();
        assert!(range.start.is_multiple_of(page) && range.len().is_multiple_of(page), "{range:?}");
        let offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_NORESERVE);
        // At any place first, where a refusal does no harm.
        // SAFETY: A new map of a file, at an address of the kernel's choice.
        let new = unsafe {
            let any = std::ptr::null_mut();
            libc::mmap(any, range.len(), protection, flags, file.as_raw_fd(), offset)
        };
        if new == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let moved = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: The range lies inside the map, which lives as long as `self` and is unmapped as a
        // whole. The kernel lets no thread look at the addresses between the old pages and the new
        // ones. These have the same bytes, so a reference to them does not see a change.
        let at = unsafe {
            let to = self.map.as_mut_ptr().add(range.start);
            libc::mremap(new, range.len(), range.len(), moved, to)
        };
        if at == libc::MAP_FAILED {
            // The memory may be gone, and threads may refer to it: none of them may go on.
            std::process::abort();
        }
        Ok(())
    }

    /// Where it begins. It stays there as long as this lives.
    #[must_use]
    #[inline]
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }
}

/// The maps of one open file.
#[derive(Debug, Default)]
pub(crate) struct ChunkMaps {
    chunks: RwLock<Vec<Option<Arc<MmapRaw>>>>,
    /// The file is at least this long; saves a system call for each view.
    len_seen: AtomicU64,
    /// Chunks are read at random.
    is_random: AtomicBool,
}

impl ChunkMaps {
    /// The bytes of `range` of `file`; `None` if the range crosses chunks and must be read.
    pub(crate) fn view(&self, file: &fs::File, range: &Range<u64>) -> io::Result<Option<View>> {
        if range.start > range.end {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.check_end(file, range.end)?;
        if range.is_empty() {
            return Ok(Some(View::from(Vec::new())));
        }
        let chunk = range.start / CHUNK_BYTES;
        if (range.end - 1) / CHUNK_BYTES != chunk {
            return Ok(None);
        }
        let source = ViewSource::Mapped(self.chunk(file, chunk)?);
        let start = (range.start % CHUNK_BYTES) as usize;
        Ok(Some(View { source, start, len: (range.end - range.start) as usize }))
    }

    /// Forgets how long the file is. To be called when it was cut.
    pub(crate) fn forget_len(&self) {
        self.len_seen.store(0, Ordering::Release);
    }

    /// Advises the kernel that all chunks, those of later too, are read at random.
    pub(crate) fn advise_random(&self) {
        // Under the lock: a chunk that is mapped meanwhile finds the mark, or is found here.
        let chunks = self.chunks.write();
        self.is_random.store(true, Ordering::Relaxed);
        chunks.iter().flatten().for_each(|map| advise(map, MapAdvice::Random));
    }

    fn check_end(&self, file: &fs::File, end: u64) -> io::Result<()> {
        if end <= self.len_seen.load(Ordering::Acquire) {
            return Ok(());
        }
        let len = len_of(file)?;
        if end > len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.len_seen.store(len, Ordering::Release);
        Ok(())
    }

    fn chunk(&self, file: &fs::File, number: u64) -> io::Result<Arc<MmapRaw>> {
        let slot = number as usize;
        // Shared first: almost every view finds its chunk mapped.
        if let Some(Some(map)) = self.chunks.read().get(slot) {
            return Ok(Arc::clone(map));
        }
        let mut chunks = self.chunks.write();
        if chunks.len() <= slot {
            chunks.resize(slot + 1, None);
        }
        if let Some(map) = &chunks[slot] {
            return Ok(Arc::clone(map));
        }
        let mut options = MmapOptions::new();
        options.offset(number * CHUNK_BYTES).len(CHUNK_BYTES as usize);
        let map = Arc::new(options.map_raw_read_only(file)?);
        if self.is_random.load(Ordering::Relaxed) {
            advise(&map, MapAdvice::Random);
        }
        chunks[slot] = Some(Arc::clone(&map));
        Ok(map)
    }
}

/// The length of a file. Nothing else is asked for: after a `stat` of a file's times the kernel
/// gives the next write a fine-grained time of its own, and the sync after that write may have to
/// bring the time to the disk as well.
#[cfg(target_os = "linux")]
pub(crate) fn len_of(file: &fs::File) -> io::Result<u64> {
    use rustix::fs::{AtFlags, StatxFlags, statx};
    match statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::SIZE) {
        Ok(found) => Ok(found.stx_size),
        Err(rustix::io::Errno::NOSYS) => Ok(file.metadata()?.len()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn len_of(file: &fs::File) -> io::Result<u64> {
    Ok(file.metadata()?.len())
}
