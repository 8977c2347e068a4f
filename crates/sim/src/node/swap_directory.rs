//! Operators and data directories: they empty them, lose a half, or put an older copy back.

use std::path::Path;

use flotilla_vfs::fault::FaultFs;

use super::spare_disks::DirectorySwap;
use super::{DIRECTORY, SimNode};

impl SimNode {
    /// Whether a disk is in use that is not the newest.
    pub(crate) fn is_swapped(&self) -> bool {
        self.spare_disks.kept.is_some()
    }

    /// Keeps a copy of the directory as it is now; the store must be down.
    pub(crate) fn copy_directory(&mut self) {
        // Of a member's newest disk only: an older one in its place would pass for the newest.
        if !self.is_swapped() && self.was_member {
            self.spare_disks.copy = Some((copy_of(&self.fs), self.starts));
        }
    }

    /// The starts that the kept copy has seen.
    pub(crate) fn copied_starts(&self) -> Option<u64> {
        self.spare_disks.copy.as_ref().map(|(_, starts)| *starts)
    }

    /// Empties the directory for good; the store must be down, and there must be no cluster yet.
    pub(crate) fn wipe(&mut self) {
        assert!(!self.is_up() && !self.was_member, "store {} has data", self.place);
        self.fs.replace_below(Path::new(DIRECTORY), &FaultFs::new(0));
        self.coverage.identity.directory_swaps += 1;
    }

    /// Puts something else in the directory's place; the store must be down. False if there is
    /// nothing of the kind.
    pub(crate) fn swap_directory(&mut self, how: DirectorySwap) -> bool {
        assert!(!self.is_up(), "store {} is up", self.place);
        let has_all = self.starts > 0 && (!how.needs_copy() || self.spare_disks.copy.is_some());
        if self.is_swapped() || !has_all {
            return false;
        }
        self.spare_disks.kept = Some((copy_of(&self.fs), self.starts));
        let empty = FaultFs::new(0);
        let copy = self.spare_disks.copy.as_ref().map_or(&empty, |(copy, _)| copy);
        let (part, from) = match how {
            DirectorySwap::Wiped => ("", &empty),
            DirectorySwap::LogWiped => ("log", &empty),
            DirectorySwap::PagesWiped => ("pages", &empty),
            DirectorySwap::OlderCopy => ("", copy),
            DirectorySwap::OlderLog => ("log", copy),
        };
        self.fs.replace_below(&Path::new(DIRECTORY).join(part), from);
        self.coverage.identity.directory_swaps += 1;
        true
    }

    /// Puts the newest disk back; the store must be down.
    pub(crate) fn restore_directory(&mut self) {
        assert!(!self.is_up(), "store {} is up", self.place);
        if let Some((kept, starts)) = self.spare_disks.kept.take() {
            self.starts = starts;
            self.fs.replace_below(Path::new(DIRECTORY), &kept);
        }
    }
}

fn copy_of(fs: &FaultFs) -> FaultFs {
    let copy = FaultFs::new(0);
    copy.replace_below(Path::new(DIRECTORY), fs);
    copy
}
