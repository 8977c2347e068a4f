//! What operators do to data directories: they empty them, lose a half, or put an older copy back.

use std::path::Path;

use flotilla_vfs::fault::FaultFs;

use super::shelf::Exchange;
use super::{DIRECTORY, Machine};

impl Machine {
    /// Whether a disk is in use that is not the newest.
    pub(crate) fn is_exchanged(&self) -> bool {
        self.shelf.kept.is_some()
    }

    /// Keeps a copy of the directory as it is now; the store must be down.
    pub(crate) fn copy_directory(&mut self) {
        if !self.is_exchanged() && self.was_member {
            self.shelf.copy = Some((copy_of(&self.fs), self.starts));
        }
    }

    /// The starts that the kept copy has seen.
    pub(crate) fn copied_starts(&self) -> Option<u64> {
        self.shelf.copy.as_ref().map(|(_, starts)| *starts)
    }

    /// Empties the directory for good; the store must be down, and there must be no cluster yet.
    pub(crate) fn wipe(&mut self) {
        assert!(!self.is_up() && !self.was_member, "store {} has data", self.place);
        self.fs.replace_below(Path::new(DIRECTORY), &FaultFs::new(0));
        self.reach.identity.exchanges += 1;
    }

    /// Puts something else in the directory's place; the store must be down. False if there is
    /// nothing of the kind.
    pub(crate) fn exchange(&mut self, how: Exchange) -> bool {
        assert!(!self.is_up(), "store {} is up", self.place);
        let has_all = self.starts > 0 && (!how.needs_copy() || self.shelf.copy.is_some());
        if self.is_exchanged() || !has_all {
            return false;
        }
        self.shelf.kept = Some((copy_of(&self.fs), self.starts));
        let empty = FaultFs::new(0);
        let copy = self.shelf.copy.as_ref().map_or(&empty, |(copy, _)| copy);
        let (part, from) = match how {
            Exchange::Wiped => ("", &empty),
            Exchange::LogWiped => ("log", &empty),
            Exchange::PagesWiped => ("pages", &empty),
            Exchange::OlderCopy => ("", copy),
            Exchange::OlderLog => ("log", copy),
        };
        self.fs.replace_below(&Path::new(DIRECTORY).join(part), from);
        self.reach.identity.exchanges += 1;
        true
    }

    /// Puts the newest disk back; the store must be down.
    pub(crate) fn put_back(&mut self) {
        assert!(!self.is_up(), "store {} is up", self.place);
        if let Some((kept, starts)) = self.shelf.kept.take() {
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
