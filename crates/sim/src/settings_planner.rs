//! Changes of the cluster's settings: when, and to which values; and the row of the system region
//! with the term of placement that rolls it out. Drawn from a generator of its own, so that old
//! seeds draw the rest as ever.

use fastrand::Rng;
use flotilla_identity::{
    ClusterSettings, SettingChange, SettingsRollout, StoreRecord, StoreRegistry,
};

use crate::layout;

/// Parts the generator of changes from the others of a seed.
const SALT: u64 = 0x5e77_1465;

/// Ticks on both sides of the first, that of `Config::default`.
const TICKS_MS: [u64; 5] = [15, 30, 50, 70, 90];
/// Bounds of entries: one that refuses some, and the first.
const ENTRY_BYTES: [u64; 2] = [2_000, 8 << 20];

/// Draws changes, and has the row.
#[derive(Clone, Debug)]
pub(crate) struct SettingsPlanner {
    rng: Rng,
    /// Between two changes; 0 for never.
    mean_us: u64,
    rollout: SettingsRollout,
    registry: StoreRegistry,
    /// The store that leads placement.
    home: Option<usize>,
}

impl SettingsPlanner {
    /// Draws how often settings are changed. In half of the runs, never.
    pub(crate) fn draw(seed: u64, stores: usize) -> Self {
        let mut rng = Rng::with_seed(seed ^ SALT);
        let mean_us = [0, 0, 0, 150_000, 600_000, 2_500_000][rng.usize(..6)];
        Self { rng, mean_us, ..Self::idle(stores) }
    }

    /// Draws no change by itself.
    pub(crate) fn idle(stores: usize) -> Self {
        let records = (0..stores).map(|place| StoreRecord {
            id: layout::id(place),
            name: format!("s{}", place + 1),
            ..StoreRecord::default()
        });
        // No store comes or goes: all of them have this one.
        let registry = StoreRegistry { version: 1, stores: records.collect(), level: 0 };
        let rollout = SettingsRollout::new(ClusterSettings::default());
        Self { rng: Rng::with_seed(SALT), mean_us: 0, rollout, registry, home: None }
    }

    /// Whether changes are drawn.
    pub(crate) fn is_active(&self) -> bool {
        self.mean_us > 0
    }

    /// The time until the next change, if there is one.
    pub(crate) fn delay_us(&mut self) -> Option<u64> {
        self.is_active().then(|| self.rng.u64(1..=2 * self.mean_us))
    }

    /// An operator wants another value. A new cluster's first change, and one that is the value
    /// that there is, are none.
    pub(crate) fn change(&mut self) -> Option<SettingChange> {
        let change = match self.rng.u8(..8) {
            0 => SettingChange::ReadLeases(false),
            1 | 2 => SettingChange::ReadLeases(true),
            3 => SettingChange::EntryBytesMax(ENTRY_BYTES[self.rng.usize(..2)]),
            _ => SettingChange::TickMs(TICKS_MS[self.rng.usize(..TICKS_MS.len())]),
        };
        self.write(change).then_some(change)
    }

    /// Writes the row with a change. False if it has that already.
    pub(crate) fn write(&mut self, change: SettingChange) -> bool {
        let changed = self.rollout.settings().with_change(change);
        changed.map(|changed| self.rollout.replace(changed)).is_some()
    }

    /// The row.
    pub(crate) fn row(&self) -> ClusterSettings {
        *self.rollout.settings()
    }

    /// A store leads placement now. A term begins without the answers that another has heard.
    pub(crate) fn lead(&mut self, home: usize) {
        if self.home != Some(home) {
            self.home = Some(home);
            self.rollout = SettingsRollout::new(self.row());
        }
    }

    /// A store has told the leader what it has.
    pub(crate) fn note(&mut self, to: usize, from: usize, version: u64) {
        if self.home == Some(to) {
            self.rollout.note(layout::id(from), version, self.registry.version);
        }
    }

    /// Takes the next step of a change, if it is due.
    pub(crate) fn advance(&mut self, now_ms: u64) -> bool {
        let next = self.rollout.advance(now_ms, &self.registry);
        next.map(|next| self.rollout.replace(next)).is_some()
    }
}
