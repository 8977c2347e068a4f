//! The options of a run.

/// The options of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Events before the faults end.
    pub events: u64,
    /// Stores; drawn by the seed if `None`.
    pub stores: Option<usize>,
    /// Whether regions are split by hand, in those seeds that draw it.
    pub splits: bool,
    /// Whether leaders are transferred by hand, in those seeds that draw it.
    pub transfers: bool,
    /// Whether members change by hand, in those seeds that draw it.
    pub membership: bool,
    /// Whether bits flip in pages, in those seeds that draw it.
    pub bit_rot: bool,
    /// Whether to print all that happens.
    pub printed: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            events: 20_000,
            stores: None,
            splits: true,
            transfers: true,
            membership: true,
            bit_rot: false,
            printed: false,
        }
    }
}
