//! Checkpoint policy: due by time, by dirty bytes, or by the use of the redo area.

use std::time::Duration;

/// The inputs of the decision.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CheckpointInputs {
    /// Something is published that the last checkpoint has not made durable.
    pub(crate) has_changes: bool,
    /// Dirty bytes, which are in memory only.
    pub(crate) dirty_bytes: u64,
    /// Bytes of the redo area in use, and its length.
    pub(crate) redo_bytes: (u64, u64),
}

/// The state of the policy.
#[derive(Debug, Default)]
pub(crate) struct CheckpointPolicy {
    /// When it first saw what has changed since the last checkpoint.
    changed_at: Option<Duration>,
}

impl CheckpointPolicy {
    /// Whether a checkpoint is due at `now`; if so it is taken to be made. Above `soft_bytes` in
    /// memory, with half of the redo area in use, or once there have been changes for `interval`.
    pub(crate) fn is_due(
        &mut self,
        now: Duration,
        figures: CheckpointInputs,
        soft_bytes: u64,
        interval: Option<Duration>,
    ) -> bool {
        if !figures.has_changes {
            self.changed_at = None;
            return false;
        }
        let changed_at = *self.changed_at.get_or_insert(now);
        let (used, all) = figures.redo_bytes;
        debug_assert!(used <= all, "{used} bytes of a redo area of {all}");
        let is_late = interval.is_some_and(|interval| now.saturating_sub(changed_at) >= interval);
        let is_due = is_late || figures.dirty_bytes >= soft_bytes || all > 0 && 2 * used >= all;
        if is_due {
            self.changed_at = None;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn figures(dirty_bytes: u64, used: u64) -> CheckpointInputs {
        CheckpointInputs { has_changes: true, dirty_bytes, redo_bytes: (used, 100) }
    }

    #[test]
    fn size_and_redo_area_ask_at_once() {
        let mut checkpoint_policy = CheckpointPolicy::default();
        let mut is_due = |figures| checkpoint_policy.is_due(SECOND, figures, 1000, None);
        assert!(!is_due(figures(999, 49)));
        assert!(is_due(figures(1000, 0)));
        assert!(is_due(figures(0, 50)));
        assert!(
            !is_due(CheckpointInputs { redo_bytes: (0, 0), ..figures(0, 0) }),
            "there is no area"
        );
        assert!(!is_due(CheckpointInputs { has_changes: false, ..figures(1000, 50) }));
    }

    #[test]
    fn time_counts_from_the_first_change() {
        let mut checkpoint_policy = CheckpointPolicy::default();
        let mut is_due = |seconds: u32, has_changes| {
            let figures = CheckpointInputs { has_changes, ..figures(0, 0) };
            checkpoint_policy.is_due(seconds * SECOND, figures, 1000, Some(5 * SECOND))
        };
        assert!(!is_due(100, false));
        assert!(!is_due(200, true));
        assert!(!is_due(204, true));
        assert!(is_due(205, true));
        assert!(!is_due(206, true), "what came since is young");
        assert!(!is_due(207, false));
        assert!(!is_due(211, true));
        assert!(is_due(216, true));
    }
}
