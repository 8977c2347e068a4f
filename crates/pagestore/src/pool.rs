//! Pages and extents by address: from memory if they are there, else from the file, checked.
//!
//! A page is checked when it comes from the file; from then on it is trusted. Clean frames are
//! kept up to a limit and evicted by a clock in sixteen parts. Readers meet at a lock only for the
//! one page that they both want, or on a miss, where the file is slower than any lock.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use flotilla_vfs::File;
use parking_lot::{Mutex, RwLock};

use crate::error::{Error, Result};
use crate::frames::{Frames, Hand};
use crate::leaf::Extent;
use crate::node::Node;
use crate::page::{self, Frame, Kind, PageRef, Span, UNIT_BYTES};
use crate::view::{PageBytes, Value};

const PARTS: usize = 16;

/// Pages and extents by address.
pub(crate) struct Pool {
    file: Arc<dyn File>,
    frames: Frames,
    /// Long values that the file does not have.
    extents: [RwLock<HashMap<u64, Bytes>>; PARTS],
    clocks: [Mutex<VecDeque<u64>>; PARTS],
    clean_bytes: AtomicU64,
    clean_bytes_max: u64,
    reads: AtomicU64,
}

impl Pool {
    pub(crate) fn new(file: Arc<dyn File>, clean_bytes_max: u64) -> Pool {
        Pool {
            file,
            frames: Frames::new(),
            extents: Default::default(),
            clocks: Default::default(),
            clean_bytes: AtomicU64::new(0),
            clean_bytes_max: clean_bytes_max.max(1 << 20),
            reads: AtomicU64::new(0),
        }
    }

    pub(crate) fn file(&self) -> &dyn File {
        &*self.file
    }

    pub(crate) fn clean_bytes(&self) -> u64 {
        self.clean_bytes.load(Ordering::Relaxed)
    }

    /// Pages and extents read from the file so far.
    pub(crate) fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// The page at `place`, seen from a snapshot of transaction `newest`.
    pub(crate) fn page(&self, place: PageRef, newest: u64) -> Result<PageBytes<'_>> {
        match self.frames.get(place.id()) {
            Some(frame) => Ok(PageBytes::Counted(frame)),
            None => self.load(place, newest).map(PageBytes::Counted),
        }
    }

    #[cold]
    fn load(&self, place: PageRef, newest: u64) -> Result<Frame> {
        let frame = self.read_page(place, newest)?;
        let (frame, added) = self.frames.put_clean(place.id(), frame);
        if let Some(new_to_ring) = added {
            self.added(place.id(), frame.len(), new_to_ring);
        }
        Ok(frame)
    }

    /// Reads the page from the file, whatever memory holds, and checks it.
    pub(crate) fn read_page(&self, place: PageRef, newest: u64) -> Result<Frame> {
        let corrupt = |what| Err(Error::Corrupt { page: place.id(), what });
        let units = place.units() as usize;
        if place.is_none() || units == 0 {
            return corrupt("reference");
        }
        let mut bytes = vec![0; units * UNIT_BYTES];
        self.read(&mut bytes, place.id())?;
        page::verify(&bytes, place, newest)?;
        if !page::is_kind(&bytes, Kind::Leaf) && !page::is_kind(&bytes, Kind::Branch) {
            return corrupt("kind");
        }
        Node(&bytes).validate(place.id())?;
        Ok(Frame::from(bytes))
    }

    /// The long value at `extent`.
    pub(crate) fn extent(&self, extent: &Extent) -> Result<Value<'_>> {
        match self.extents[part(extent.start)].read().get(&extent.start) {
            Some(value) => Ok(Value::long(value.clone())),
            None => self.read_extent(extent).map(Value::long),
        }
    }

    /// Reads the long value from the file and checks it.
    pub(crate) fn read_extent(&self, extent: &Extent) -> Result<Bytes> {
        let mut bytes = vec![0; extent.len as usize];
        self.read(&mut bytes, extent.start)?;
        if crc32c::crc32c(&bytes) != extent.crc {
            return Err(Error::Corrupt { page: extent.start, what: "checksum of a long value" });
        }
        Ok(Bytes::from(bytes))
    }

    fn read(&self, bytes: &mut [u8], unit: u64) -> Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.file.read_exact_at(bytes, unit * UNIT_BYTES as u64).map_err(|error| {
            match error.kind() {
                std::io::ErrorKind::UnexpectedEof => {
                    Error::Corrupt { page: unit, what: "it lies beyond the end of the file" }
                }
                _ => Error::Io(error),
            }
        })
    }

    pub(crate) fn put_dirty(&self, id: u64, frame: Frame) {
        self.frames.put_dirty(id, frame);
    }

    pub(crate) fn put_extent(&self, start: u64, value: Bytes) {
        let old = self.extents[part(start)].write().insert(start, value);
        assert!(old.is_none(), "unit {start} was given out while its value was in memory");
    }

    /// The page or long value that lies at `id` and is not in the file.
    pub(crate) fn dirty(&self, id: u64) -> Option<Dirty> {
        if let Some(value) = self.extents[part(id)].read().get(&id) {
            return Some(Dirty::Extent(value.clone()));
        }
        self.frames.get(id).map(Dirty::Page)
    }

    /// The page `id`, if the file does not have it.
    pub(crate) fn dirty_page(&self, id: u64) -> Option<Frame> {
        self.frames.get(id).filter(|_| self.frames.is_dirty(id))
    }

    /// Says that the file has what lies at `id` now.
    pub(crate) fn mark_clean(&self, id: u64) {
        if self.extents[part(id)].write().remove(&id).is_some() {
            return;
        }
        if let Some((len, new_to_ring)) = self.frames.mark_clean(id) {
            self.added(id, len, new_to_ring);
        }
    }

    /// Forgets what lies at the beginning of a span that becomes free. Returns the frame, if there
    /// was one.
    pub(crate) fn forget(&self, span: Span) -> Option<Frame> {
        if let Some((frame, clean)) = self.frames.remove(span.start) {
            if clean {
                self.clean_bytes.fetch_sub(frame.len() as u64, Ordering::Relaxed);
            }
            return Some(frame);
        }
        self.extents[part(span.start)].write().remove(&span.start);
        None
    }

    fn added(&self, id: u64, len: usize, new_to_ring: bool) {
        self.clean_bytes.fetch_add(len as u64, Ordering::Relaxed);
        let mut clock = self.clocks[part(id)].lock();
        if new_to_ring {
            clock.push_back(id);
        }
        // Once round at most, twice because the first look only takes the touch away.
        for _ in 0..2 * clock.len() {
            if self.clean_bytes.load(Ordering::Relaxed) <= self.clean_bytes_max {
                break;
            }
            let Some(candidate) = clock.pop_front() else { break };
            match self.frames.sweep(candidate) {
                Hand::Evicted(len) => {
                    self.clean_bytes.fetch_sub(len as u64, Ordering::Relaxed);
                }
                Hand::Touched => clock.push_back(candidate),
                Hand::Nothing => {}
            }
        }
    }
}

/// What the next checkpoint writes at one place.
pub(crate) enum Dirty {
    /// A page; its checksum is not yet in it.
    Page(Frame),
    /// A long value.
    Extent(Bytes),
}

impl Dirty {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Dirty::Page(frame) => frame,
            Dirty::Extent(value) => value,
        }
    }
}

fn part(id: u64) -> usize {
    // Neighbours go to different parts; the multiplier spreads ids that differ by a power of two.
    (id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize
}
