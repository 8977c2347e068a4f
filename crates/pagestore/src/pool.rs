//! Pages and long values by address: from memory if the file does not have them, else from the file,
//! checked.
//!
//! What is dirty lies in [`Frames`]. What is clean is borrowed from the map of the file, once it was
//! proven whole there; where the file is not mapped it is read into the [`Cache`], checked, and
//! counted. A page that was checked is trusted until its unit is given out again.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use flotilla_vfs::{File, FileMap};

use crate::cache::Cache;
use crate::config::{Options, ReadMode};
use crate::error::{Error, Result};
use crate::frames::{Buffer, Found, Frames, Seal, Taken};
use crate::leaf::Extent;
use crate::node::Node;
use crate::page::{self, Frame, Kind, PageRef, Span, UNIT_BYTES};
use crate::prefetch;
use crate::root::Root;
use crate::source::Wanted;
use crate::view::{PageBytes, Value};

/// Pages and long values by address.
pub(crate) struct Pool {
    file: Arc<dyn File>,
    map: Option<FileMap>,
    frames: Frames,
    cache: Cache,
    reads: AtomicU64,
}

/// How much of the file is mapped, if the system can: half of the longest file. What lies beyond is
/// read into the cache.
const MAP_BYTES: u64 = 8 << 40;

/// The shortest map that is tried where a system has other limits.
const MAP_BYTES_MIN: u64 = 1 << 30;

impl Pool {
    pub(crate) fn new(file: Arc<dyn File>, options: &Options) -> Result<Pool> {
        let map = match options.read_mode {
            ReadMode::Mapped => map(&*file)?,
            ReadMode::Cached => None,
        };
        Ok(Pool {
            file,
            map,
            frames: Frames::new(),
            cache: Cache::new(options.cache_bytes.max(1 << 20)),
            reads: AtomicU64::new(0),
        })
    }

    pub(crate) fn file(&self) -> &dyn File {
        &*self.file
    }

    /// Bytes of clean pages that were read into memory.
    pub(crate) fn clean_bytes(&self) -> u64 {
        self.cache.bytes()
    }

    /// Pages and long values that were read from the file, or checked in the map, so far.
    pub(crate) fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// The page at `place`, as `root` sees it.
    #[inline]
    pub(crate) fn page<'a>(&'a self, root: &'a Root, place: PageRef) -> Result<PageBytes<'a>> {
        let Some(bytes) = self.at_hand(root, place) else { return self.load(root, place) };
        prefetch::search(bytes);
        if page::is_at(bytes, place) {
            return Ok(PageBytes::Borrowed(bytes));
        }
        Err(not_there(place.id()))
    }

    /// Says that the page at `place` is wanted soon. Reads nothing.
    #[inline]
    pub(crate) fn prefetch(&self, root: &Root, place: PageRef, wanted: Wanted) {
        match (self.at_hand(root, place), wanted) {
            (Some(bytes), Wanted::Search) => prefetch::search(bytes),
            (Some(bytes), Wanted::Whole) => prefetch::whole(bytes),
            (None, _) => {}
        }
    }

    /// The page at `place`, if nothing has to be read or proven for it.
    #[inline]
    fn at_hand<'a>(&'a self, root: &'a Root, place: PageRef) -> Option<&'a [u8]> {
        if self.frames.is_sealed(place.id(), place.units()) {
            return Some(self.map.as_ref()?.bytes(place.span().byte_range()));
        }
        match self.frames.find(root, place.id()) {
            Found::Page(bytes) => Some(bytes),
            _ => None,
        }
    }

    #[inline(never)]
    fn load<'a>(&'a self, root: &'a Root, place: PageRef) -> Result<PageBytes<'a>> {
        match self.frames.find(root, place.id()) {
            Found::Nothing => {}
            // Somebody else has just proven it.
            Found::Sealed(seal) if seal == Seal::page(place.units()) => {}
            _ => return Err(not_there(place.id())),
        }
        if let Some(map) = self.map_of(place.span())? {
            self.reads.fetch_add(1, Ordering::Relaxed);
            let bytes = map.bytes(place.span().byte_range());
            check_page(bytes, place, root.txid)?;
            self.frames.seal(place.id(), Seal::page(place.units()));
            return Ok(PageBytes::Borrowed(bytes));
        }
        if let Some(frame) = self.cache.get(place.id()) {
            if !page::is_at(&frame, place) {
                return Err(not_there(place.id()));
            }
            return Ok(PageBytes::Counted(frame));
        }
        let frame = self.read_page(place, root.txid)?;
        Ok(PageBytes::Counted(self.cache.put(place.id(), frame)))
    }

    /// The map, if the span lies inside it, and inside the file.
    fn map_of(&self, span: Span) -> Result<Option<&FileMap>> {
        let end = span.byte_range().end;
        let Some(map) = self.map.as_ref().filter(|map| end <= map.len_bytes()) else {
            return Ok(None);
        };
        if end > self.file.len()? {
            return Err(beyond_the_end(span.start));
        }
        Ok(Some(map))
    }

    /// Reads the page from the file, whatever memory holds, and checks it.
    pub(crate) fn read_page(&self, place: PageRef, newest: u64) -> Result<Frame> {
        let mut bytes = vec![0; place.units() as usize * UNIT_BYTES];
        self.read(&mut bytes, place.id())?;
        check_page(&bytes, place, newest)?;
        Ok(Frame::from(bytes))
    }

    /// As [`Pool::read_page`]; and where it is not whole, whoever looks at it next in the map is told,
    /// even if it was whole before.
    pub(crate) fn prove_page(&self, place: PageRef, newest: u64) -> Result<Frame> {
        self.read_page(place, newest).inspect_err(|_| self.doubt(place.id()))
    }

    /// As [`Pool::read_extent`], and as [`Pool::prove_page`].
    pub(crate) fn prove_extent(&self, extent: &Extent) -> Result<()> {
        self.read_extent(extent).map(|_| ()).inspect_err(|_| self.doubt(extent.start))
    }

    /// Forgets what was proven whole in units that are free: the file no longer has what was there, and a
    /// file that no store has written may name it nonetheless.
    pub(crate) fn doubt_all(&self, units: Range<u64>) {
        units.for_each(|unit| self.doubt(unit));
    }

    fn doubt(&self, id: u64) {
        self.frames.unseal(id);
        self.cache.remove(id);
    }

    /// The long value at `extent`, as `root` sees it.
    pub(crate) fn extent<'a>(&'a self, root: &'a Root, extent: &Extent) -> Result<Value<'a>> {
        match (self.frames.find(root, extent.start), &self.map) {
            (Found::Long(bytes, birth), _)
                if bytes.len() == extent.len as usize && birth == extent.birth =>
            {
                Ok(Value::borrowed(bytes))
            }
            (Found::Sealed(seal), Some(map)) if seal == Seal::long(extent.len, extent.birth) => {
                Ok(Value::borrowed(map.bytes(extent.byte_range())))
            }
            (Found::Nothing, _) => self.load_extent(extent),
            _ => Err(not_there(extent.start)),
        }
    }

    fn load_extent(&self, extent: &Extent) -> Result<Value<'_>> {
        let Some(map) = self.map_of(extent.span())? else {
            return self.read_extent(extent).map(Value::long);
        };
        self.reads.fetch_add(1, Ordering::Relaxed);
        let bytes = map.bytes(extent.byte_range());
        check_extent(bytes, extent)?;
        self.frames.seal(extent.start, Seal::long(extent.len, extent.birth));
        Ok(Value::borrowed(bytes))
    }

    /// Reads the long value from the file, whatever memory holds, and checks it.
    pub(crate) fn read_extent(&self, extent: &Extent) -> Result<Bytes> {
        let mut bytes = vec![0; extent.len as usize];
        self.read(&mut bytes, extent.start)?;
        check_extent(&bytes, extent)?;
        Ok(Bytes::from(bytes))
    }

    /// Reads from a unit on.
    pub(crate) fn read(&self, bytes: &mut [u8], unit: u64) -> Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.file.read_exact_at(bytes, unit * UNIT_BYTES as u64).map_err(|error| {
            match error.kind() {
                std::io::ErrorKind::UnexpectedEof => beyond_the_end(unit),
                _ => Error::Io(error),
            }
        })
    }

    /// Puts in a page that the file does not have.
    pub(crate) fn put_dirty(&self, id: u64, buffer: Buffer) {
        self.frames.put_page(id, buffer);
    }

    /// Puts in a long value that the file does not have, born in `birth`.
    pub(crate) fn put_extent(&self, start: u64, value: Bytes, birth: u64) {
        self.frames.put_long(start, value, birth);
    }

    /// The page or long value that lies at `id`, is not in the file, and is reached by `root`.
    pub(crate) fn dirty<'a>(&'a self, root: &'a Root, id: u64) -> Option<Dirty<'a>> {
        match self.frames.find(root, id) {
            Found::Page(bytes) => Some(Dirty::Page(bytes)),
            Found::Long(bytes, _) => Some(Dirty::Extent(bytes)),
            Found::Nothing | Found::Sealed(_) => None,
        }
    }

    /// Says that what lies at `id` and is not in the file is wanted soon, so many bytes of it.
    #[inline]
    pub(crate) fn prefetch_dirty(&self, id: u64, bytes: usize) {
        self.frames.prefetch(id, bytes);
    }

    /// Says that the file has what lies at `id` now. Readers may have borrowed what is returned, so
    /// it is kept until all have ended who could see it.
    pub(crate) fn written(&self, id: u64) -> Option<Taken> {
        // What was written just now is what lies there: the system has the bytes from us.
        let mapped = self.map.as_ref().map_or(0, FileMap::len_bytes);
        let taken = self.frames.take(id)?;
        let (seal, units) = match &taken {
            Taken::Page(buffer, _) => {
                let units = page::units_for(buffer.len());
                (Seal::page(units), units)
            }
            Taken::Long(long) => {
                let len = u32::try_from(long.0.len()).expect("16 MiB at most");
                (Seal::long(len, long.1), page::units_for(long.0.len()))
            }
        };
        if (Span { start: id, units }).byte_range().end <= mapped {
            self.frames.seal(id, seal);
        } else if let Taken::Page(buffer, _) = &taken {
            self.cache.put(id, Frame::from(&buffer[..]));
        }
        Some(taken)
    }

    /// Forgets what lies at the beginning of a span that becomes free, so that no root that is held
    /// reaches it. Returns what was in memory.
    pub(crate) fn forget(&self, span: Span) -> Option<Taken> {
        self.cache.remove(span.start);
        self.frames.take(span.start)
    }
}

/// Maps the file far ahead; as far as the system lets us.
fn map(file: &dyn File) -> Result<Option<FileMap>> {
    let mut len = MAP_BYTES;
    loop {
        match file.map_ahead(len) {
            Err(_) if len > MAP_BYTES_MIN => len /= 2,
            other => return Ok(other?),
        }
    }
}

fn check_page(bytes: &[u8], place: PageRef, newest: u64) -> Result<()> {
    let corrupt = |what| Err(Error::Corrupt { page: place.id(), what });
    if place.is_none() || place.units() == 0 {
        return corrupt("reference");
    }
    page::verify(bytes, place, newest)?;
    if !page::is_kind(bytes, Kind::Leaf) && !page::is_kind(bytes, Kind::Branch) {
        return corrupt("kind");
    }
    Node(bytes).validate(place.id())
}

fn check_extent(bytes: &[u8], extent: &Extent) -> Result<()> {
    if crc32c::crc32c(bytes) != extent.crc {
        return Err(Error::Corrupt { page: extent.start, what: "checksum of a long value" });
    }
    Ok(())
}

/// The page, or long value, is another than the one that is meant.
#[cold]
pub(crate) fn not_there(page: u64) -> Error {
    Error::Corrupt { page, what: "an older or younger page lies in its place" }
}

#[cold]
fn beyond_the_end(page: u64) -> Error {
    Error::Corrupt { page, what: "it lies beyond the end of the file" }
}

/// What the next checkpoint writes at one place.
pub(crate) enum Dirty<'a> {
    /// A page; its checksum is not yet in it.
    Page(&'a [u8]),
    /// A long value.
    Extent(&'a [u8]),
}

impl Dirty<'_> {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Dirty::Page(bytes) | Dirty::Extent(bytes) => bytes,
        }
    }
}
