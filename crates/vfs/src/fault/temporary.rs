//! Temporary files of the faulty disk: their faults, and an image of each that can be mapped.
//!
//! Memory that is put on a file shows the file's bytes, also those that come later. So the visible
//! bytes are kept once more, in a file of memory of the kernel.

use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use crate::AnonymousMap;

/// An operation that is refused to temporary files, and to no others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TemporaryFault {
    /// To make one.
    Open,
    /// Reservations: the disk is full.
    NoSpace,
    /// Writes, which may be done in part.
    Write,
    /// Syncs, which may drop what was not yet synced.
    Sync,
    /// To put memory on one.
    Remap,
}

impl TemporaryFault {
    /// All of them.
    pub const ALL: [TemporaryFault; 5] = [
        TemporaryFault::Open,
        TemporaryFault::NoSpace,
        TemporaryFault::Write,
        TemporaryFault::Sync,
        TemporaryFault::Remap,
    ];
}

/// The bytes of a temporary file, to be mapped; nothing where that is not possible.
#[derive(Debug)]
pub(super) struct TemporaryImage {
    file: Option<fs::File>,
}

impl TemporaryImage {
    /// An empty one.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { file: open()? })
    }

    /// Writes `bytes` at `offset` of a file that is `len` bytes long from now on.
    pub(super) fn write(&self, bytes: &[u8], offset: u64, len: u64) {
        let Some(file) = &self.file else { return };
        let written = file.set_len(len).and_then(|()| file.write_all_at(bytes, offset));
        // A fault that was not injected.
        written.expect("memory of the kernel takes what is written to it");
    }

    /// Puts `range` of `memory` on its bytes from `offset` on. False where that is not possible.
    pub(super) fn remap(
        &self,
        memory: &AnonymousMap,
        range: Range<usize>,
        offset: u64,
    ) -> io::Result<bool> {
        let Some(file) = &self.file else { return Ok(false) };
        memory.remap(range, file, offset).map(|()| true)
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
fn open() -> io::Result<Option<fs::File>> {
    use rustix::fs::{MemfdFlags, memfd_create};
    Ok(Some(memfd_create("temporary", MemfdFlags::CLOEXEC)?.into()))
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn open() -> io::Result<Option<fs::File>> {
    Ok(None)
}
