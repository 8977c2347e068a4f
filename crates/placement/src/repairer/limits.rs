//! The bounds of repair.

/// Bounds of repair.
#[derive(Clone, Copy, Debug)]
pub struct RepairLimits {
    /// Nothing is begun before this time of a term. Milliseconds.
    pub settle_ms: u64,
    /// A store that was silent for so long is replaced. Milliseconds.
    pub down_ms: u64,
    /// A store that was silent for so long gets no replica that is on its way. Milliseconds.
    pub target_silent_ms: u64,
    /// A step is asked for again after this time. Milliseconds.
    pub step_ms: u64,
    /// An operator is given up after this time. Milliseconds.
    pub operator_ms: u64,
    /// No operator for a region within this time after one that has failed. Milliseconds.
    pub retry_ms: u64,
    /// No second move of a region for balance within this time. Milliseconds.
    pub rest_ms: u64,
    /// Snapshots on their way into a store, and out of one.
    pub snapshots_max: usize,
    /// Operators under way.
    pub operators_max: usize,
    /// Replicas of the region of placement, as far as there are stores.
    pub system_replicas: usize,
}

impl Default for RepairLimits {
    fn default() -> Self {
        Self {
            settle_ms: 10_000,
            down_ms: 300_000,
            target_silent_ms: 30_000,
            step_ms: 2_000,
            operator_ms: 600_000,
            retry_ms: 5_000,
            rest_ms: 60_000,
            snapshots_max: 2,
            operators_max: 2_048,
            system_replicas: 5,
        }
    }
}
