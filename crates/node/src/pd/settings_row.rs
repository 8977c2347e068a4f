//! The row of the cluster's settings, as the leader of placement saw it last.

use flotilla_identity::{ClusterSettings, SettingsRollout, StoreRegistry, TickChange};

/// A step that takes longer than this is logged, with the stores that it waits for.
const SLOW_STEP_MS: u64 = 3_000;

/// The settings of the cluster, in one term.
pub(super) struct SettingsRow {
    pub(super) rollout: SettingsRollout,
    /// Whether the row is known to have them. After a write of which nothing was heard it is not.
    pub(super) is_certain: bool,
    /// Since when the step is under way, and whether its length was logged.
    step: (u64, bool),
}

impl SettingsRow {
    /// The row as a term begins with it.
    pub(super) fn new(settings: ClusterSettings) -> Self {
        Self { rollout: SettingsRollout::new(settings), is_certain: true, step: (0, false) }
    }

    /// The settings, as far as is known.
    pub(super) fn settings(&self) -> &ClusterSettings {
        self.rollout.settings()
    }

    /// Logs a step that takes long, once, with the stores that it waits for.
    pub(super) fn log_slow_step(&mut self, now_ms: u64, registry: &StoreRegistry) {
        let (since_ms, is_logged) = self.step;
        let is_slow = self.settings().tick_change != TickChange::Settled
            && now_ms.saturating_sub(since_ms) > SLOW_STEP_MS;
        let missing = self.rollout.missing(registry);
        if is_slow && !is_logged && !missing.is_empty() {
            tracing::warn!("{}; waiting for {}", step_words(self.settings()), missing.join(", "));
            self.step.1 = true;
        }
    }

    /// The row is known to have these settings.
    pub(super) fn note(&mut self, now_ms: u64, settings: ClusterSettings) {
        self.is_certain = true;
        if settings.version > self.settings().version {
            self.step = (now_ms, false);
        }
        self.rollout.replace(settings);
    }
}

/// The step of a change that is under way; empty if none is.
pub(super) fn step_words(settings: &ClusterSettings) -> String {
    match settings.tick_change {
        TickChange::Settled => String::new(),
        TickChange::LeasesOff { next_ms } => format!(
            "raft.tick_ms becomes {next_ms}ms once no store uses leases; until then it is {}ms",
            settings.tick_ms
        ),
        TickChange::Spreading => format!(
            "raft.tick_ms becomes {}ms store by store; leases are off until all have it",
            settings.tick_ms
        ),
    }
}
