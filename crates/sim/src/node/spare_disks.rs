//! Directory swaps by operators, and the disks that are not in use.

use fastrand::Rng;
use flotilla_vfs::fault::FaultFs;

/// The replacement of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DirectorySwap {
    /// Nothing.
    Wiped,
    /// Its log is gone.
    LogWiped,
    /// Its pages are gone.
    PagesWiped,
    /// A copy from before an earlier start.
    OlderCopy,
    /// The log of such a copy, with the newest pages.
    OlderLog,
}

impl DirectorySwap {
    const ALL: [Self; 5] =
        [Self::Wiped, Self::LogWiped, Self::PagesWiped, Self::OlderCopy, Self::OlderLog];

    /// One of them, by chance.
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        Self::ALL[rng.usize(..Self::ALL.len())]
    }

    /// Whether there must be a copy.
    pub(crate) fn needs_copy(self) -> bool {
        matches!(self, Self::OlderCopy | Self::OlderLog)
    }
}

/// The disks of a store that are not in use, and the change that was made of the one that is.
#[derive(Debug, Default)]
pub(super) struct SpareDisks {
    /// The newest disk, while another one is in its place, and the starts that it has seen.
    pub(super) kept: Option<(FaultFs, u64)>,
    /// An older copy, and the starts that it has seen.
    pub(super) copy: Option<(FaultFs, u64)>,
    /// Whether a script has altered rows on the disk in use.
    #[cfg(test)]
    pub(super) is_altered: bool,
}
