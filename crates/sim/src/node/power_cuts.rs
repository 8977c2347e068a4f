//! Where the power goes next inside the work of a store.

use crate::executor::InstallArrow;

#[derive(Debug, Default)]
pub(super) struct PowerCuts {
    /// After this many lists of the next effects.
    pub(super) lists_left: Option<usize>,
    /// After this many lists of the next effects with a birth.
    pub(super) at_birth: Option<usize>,
    /// When an installation or an end passes this arrow.
    pub(super) at_arrow: Option<InstallArrow>,
    /// In this operation of the next write to the log.
    pub(super) in_flush: Option<u64>,
}
