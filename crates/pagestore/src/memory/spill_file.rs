//! The spill file: memory that only old snapshots need, on disk, by slots of one slab.
//!
//! It is a temporary file without a name, so a crash leaves nothing of it, and no state of the
//! store depends on it. The space of a slot goes back to the file system when its slab is dropped.

use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;

use flotilla_vfs::{AnonymousMap, File, FileSystem};
use parking_lot::Mutex;

use std::io;
use std::ops::Range;

/// A temporary file, cut into slots of equal length.
#[derive(Debug)]
pub(crate) struct SpillFile {
    file: Arc<dyn File>,
    slot_bytes: u64,
    slots: Mutex<SlotList>,
}

#[derive(Debug, Default)]
struct SlotList {
    free: Vec<u64>,
    count: u64,
}

/// A slot of the file, owned.
#[derive(Debug)]
pub(crate) struct SpillSlot {
    spill_file: Arc<SpillFile>,
    number: u64,
}

impl SpillFile {
    /// Makes the file in the directory of `path`. A file that a crash has left there, where the
    /// file system needs a name to make it, is removed.
    pub(crate) fn create(fs: &dyn FileSystem, path: &Path, slot_bytes: u64) -> io::Result<Self> {
        match fs.remove(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = fs.open_temporary(path)?;
        Ok(SpillFile { file, slot_bytes, slots: Mutex::default() })
    }

    /// Writes `bytes` to a free slot. Not synced.
    pub(crate) fn write(self: &Arc<Self>, bytes: &[u8]) -> io::Result<SpillSlot> {
        assert!(bytes.len() as u64 <= self.slot_bytes, "{} bytes for a slot", bytes.len());
        let number = {
            let mut slots = self.slots.lock();
            slots.free.pop().unwrap_or_else(|| {
                slots.count += 1;
                slots.count - 1
            })
        };
        let slot = SpillSlot { spill_file: Arc::clone(self), number };
        // A full disk is found here, and not when the kernel writes the bytes back.
        self.file.allocate(slot.range())?;
        self.file.write_all_at(&[IoSlice::new(bytes)], slot.range().start)?;
        Ok(slot)
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
}

impl SpillSlot {
    /// Puts `range` of `memory`, whose bytes the slot has durably, on the file.
    pub(crate) fn remap(&self, memory: &AnonymousMap, range: Range<usize>) -> io::Result<bool> {
        self.spill_file.file.remap(memory, range, self.range().start)
    }

    fn range(&self) -> Range<u64> {
        let len = self.spill_file.slot_bytes;
        self.number * len..(self.number + 1) * len
    }
}

impl Drop for SpillSlot {
    fn drop(&mut self) {
        // If it is refused the space goes back when the slot is used again, or the store is closed.
        let _ = self.spill_file.file.punch(self.range());
        self.spill_file.slots.lock().free.push(self.number);
    }
}
