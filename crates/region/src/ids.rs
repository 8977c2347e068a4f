//! Ids of stores, regions and replicas; log index and term; tickets; the driver's time.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number!(
    /// One range of keys and the raft group that replicates it. Never 0, never reused.
    RegionId
);
number!(
    /// One replica of one region. Unique in the cluster, never 0, never reused; names the
    /// replica's log group as well.
    PeerId
);
number!(
    /// One store: a data directory and the process that owns it. Never 0.
    StoreId
);
number!(
    /// A place in a region's log. The first entry has index 1.
    Index
);
number!(
    /// A leader's term of office.
    Term
);
number!(
    /// The id of a waiting request. Made by the driver, returned unread.
    Ticket
);
number!(
    /// A snapshot that was received whole and waits to be installed. Made by the driver.
    StageId
);
number!(
    /// Milliseconds since the driver started, on a clock that never goes back.
    Time
);

impl Time {
    /// The time `ms` milliseconds later.
    #[must_use]
    pub fn after_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }
}
