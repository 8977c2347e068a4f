//! Coverage of comparisons of replicas.

use std::ops::AddAssign;

/// Sums over comparisons of replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ComparisonCoverage {
    /// Verdicts about all replicas of a region, by each of them.
    pub complete: u64,
    /// Verdicts about a part of them.
    pub incomplete: u64,
    /// Digests that were computed.
    pub digests: u64,
    /// Entries that asked for one and got none, and digests that were given up.
    pub given_up: u64,
    /// Parts of digests that were not the last.
    pub parts: u64,
}

impl AddAssign for ComparisonCoverage {
    fn add_assign(&mut self, more: Self) {
        self.complete += more.complete;
        self.incomplete += more.incomplete;
        self.digests += more.digests;
        self.given_up += more.given_up;
        self.parts += more.parts;
    }
}
