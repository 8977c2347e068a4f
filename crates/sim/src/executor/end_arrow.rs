//! The arrows of the end of a replica.

/// How far the end of a replica has come: the power may go behind each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndArrow {
    /// The core has handed the task out.
    HandedOut,
    /// The rows are gone in memory.
    Published,
    /// A root has the end, and the core has not heard of it.
    Rooted,
    /// The removal of the log group waits for its sync.
    RemovalQueued,
}

impl EndArrow {
    pub(crate) const ALL: [Self; 4] =
        [Self::HandedOut, Self::Published, Self::Rooted, Self::RemovalQueued];
}
