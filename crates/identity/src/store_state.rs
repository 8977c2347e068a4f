//! The state of a store in the registry.

/// Whether a store takes part. PD's store states, with what an operator can say in between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreState {
    /// It takes part.
    #[default]
    Up,
    /// It leads no regions and gets no replicas; it keeps those that it has. For a restart.
    Draining,
    /// Its replicas are being moved away; it goes.
    Leaving,
    /// Its directory is gone for ever.
    Lost,
    /// It has left.
    Removed,
}

impl StoreState {
    /// For people and for programs.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Draining => "draining",
            Self::Leaving => "leaving",
            Self::Lost => "lost",
            Self::Removed => "removed",
        }
    }

    /// Whether it is a store of the cluster no more.
    #[must_use]
    pub fn is_gone(self) -> bool {
        matches!(self, Self::Lost | Self::Removed)
    }
}
