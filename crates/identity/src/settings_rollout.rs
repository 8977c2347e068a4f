//! Rollout of changed settings: which change comes next, and which stores have to have the last.
//!
//! The row of the system region has the settings; the leader of placement changes it by
//! compare-and-swap, hands it to the stores, and hears from each which version it has *taken up*:
//! durably, so that no restart brings an earlier one back, and in force in all of its regions.
//! [`TickChange`] has the steps and their rule.
//!
//! A store that is away holds a step up, for it may serve reads by a lease of the settings that it
//! has. One that is lost or has left does not: the stores that are left know that it is gone, and
//! take none of its messages. It may still hold a lease from before that, so the tick waits for as
//! long as such a lease can last.

use std::collections::BTreeMap;

use flotilla_region::StoreId;

use crate::registry::StoreRegistry;
use crate::settings::ClusterSettings;
use crate::tick_change::TickChange;

/// A setting of the cluster that may change while its stores run, with its next value. Ranges are
/// the caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingChange {
    /// [`ClusterSettings::tick_ms`].
    TickMs(u64),
    /// [`ClusterSettings::entry_bytes_max`].
    EntryBytesMax(u64),
    /// [`ClusterSettings::read_leases`].
    ReadLeases(bool),
}

impl ClusterSettings {
    /// The settings with a change, or on the way to it; `None` if that is how they are, or the way
    /// that they are on.
    #[must_use]
    pub fn with_change(&self, change: SettingChange) -> Option<Self> {
        let mut changed = *self;
        match change {
            // One step each: a store that does not have it yet refuses more, or asks a quorum less
            // often, as it did before.
            SettingChange::EntryBytesMax(bytes) => changed.entry_bytes_max = bytes,
            SettingChange::ReadLeases(is_on) => changed.read_leases = is_on,
            SettingChange::TickMs(next_ms) => match self.tick_change {
                TickChange::Settled if next_ms == self.tick_ms => {}
                // Taken back before any store has it.
                TickChange::LeasesOff { .. } if next_ms == self.tick_ms => {
                    changed.tick_change = TickChange::Settled;
                }
                TickChange::Settled | TickChange::LeasesOff { .. } => {
                    changed.tick_change = TickChange::LeasesOff { next_ms };
                }
                // No store uses leases before all have this one.
                TickChange::Spreading => changed.tick_ms = next_ms,
            },
        }
        (changed != *self).then(|| changed.counted())
    }

    /// The next step of a change that is under way, once all stores have this one.
    fn next_step(&self) -> Option<Self> {
        let next = match self.tick_change {
            TickChange::Settled => return None,
            TickChange::LeasesOff { next_ms } => {
                Self { tick_ms: next_ms, tick_change: TickChange::Spreading, ..*self }
            }
            TickChange::Spreading => Self { tick_change: TickChange::Settled, ..*self },
        };
        Some(next.counted())
    }

    fn counted(self) -> Self {
        Self { version: self.version + 1, ..self }
    }
}

/// The versions that a store has said to have.
#[derive(Clone, Copy, Debug)]
struct TakenUp {
    settings: u64,
    registry: u64,
}

/// The rollout of the settings in one term of placement.
#[derive(Clone, Debug)]
pub struct SettingsRollout {
    settings: ClusterSettings,
    heard: BTreeMap<StoreId, TakenUp>,
    /// Since when all stores have them.
    complete_since_ms: Option<u64>,
}

impl SettingsRollout {
    /// In a term that begins with these settings in the row.
    #[must_use]
    pub fn new(settings: ClusterSettings) -> Self {
        Self { settings, heard: BTreeMap::new(), complete_since_ms: None }
    }

    /// The settings in the row.
    #[must_use]
    pub fn settings(&self) -> &ClusterSettings {
        &self.settings
    }

    /// The row has these settings now. Dropped if they are of an earlier version: another write
    /// came between.
    pub fn replace(&mut self, settings: ClusterSettings) {
        if settings.version > self.settings.version {
            self.settings = settings;
            self.complete_since_ms = None;
        }
    }

    /// A store has taken up these versions of settings and registry. Returns the settings of the
    /// row, if it lacks them.
    pub fn note(
        &mut self,
        store: StoreId,
        settings: u64,
        registry: u64,
    ) -> Option<ClusterSettings> {
        // An earlier report counts no more: a store may start with an earlier registry.
        self.heard.insert(store, TakenUp { settings, registry });
        (settings < self.settings.version).then_some(self.settings)
    }

    /// The stores that have not said yet that they have the settings of the row, by name. One that
    /// does not know the registry may take messages of a store that is gone.
    #[must_use]
    pub fn missing<'a>(&self, registry: &'a StoreRegistry) -> Vec<&'a str> {
        let has_all = |store: &StoreId| {
            self.heard.get(store).is_some_and(|heard| {
                heard.settings >= self.settings.version && heard.registry >= registry.version
            })
        };
        let here = registry.stores.iter().filter(|store| store.is_here());
        here.filter(|store| !has_all(&store.id)).map(|store| store.name.as_str()).collect()
    }

    /// The next settings to write, if a step is due: all stores have the last one, and leases of
    /// stores that are gone are over. `now_ms` never goes back.
    pub fn advance(&mut self, now_ms: u64, registry: &StoreRegistry) -> Option<ClusterSettings> {
        if !self.missing(registry).is_empty() {
            self.complete_since_ms = None;
            return None;
        }
        let since_ms = *self.complete_since_ms.get_or_insert(now_ms);
        let wait_ms = match self.settings.tick_change {
            // From when all stores refuse it, a store that is gone has its last lease for less than
            // a promise.
            TickChange::LeasesOff { .. } => self.settings.promise_ms(),
            TickChange::Settled | TickChange::Spreading => 0,
        };
        self.settings.next_step().filter(|_| now_ms - since_ms >= wait_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::{StoreRecord, StoreState};

    fn registry(version: u64, states: &[StoreState]) -> StoreRegistry {
        let stores = (1..).zip(states).map(|(id, state)| StoreRecord {
            id: StoreId(id),
            name: format!("s{id}"),
            state: *state,
            ..StoreRecord::default()
        });
        StoreRegistry { version, level: crate::SETTINGS_LEVEL, stores: stores.collect() }
    }

    fn changing(change: SettingChange) -> SettingsRollout {
        let settings = ClusterSettings::default();
        SettingsRollout::new(settings.with_change(change).unwrap())
    }

    fn note_all(rollout: &mut SettingsRollout, registry: u64) {
        let version = rollout.settings().version;
        for store in 1..=3 {
            rollout.note(StoreId(store), version, registry);
        }
    }

    #[test]
    fn a_tick_changes_only_while_no_store_uses_leases() {
        let stores = registry(1, &[StoreState::Up; 3]);
        let mut rollout = changing(SettingChange::TickMs(100));
        assert_eq!((rollout.settings().tick_ms, rollout.settings().uses_leases()), (50, false));
        assert_eq!(rollout.missing(&stores), ["s1", "s2", "s3"]);
        for store in [1, 3] {
            assert_eq!(rollout.note(StoreId(store), 2, 1), None);
        }
        let behind = rollout.note(StoreId(2), 1, 1);
        assert_eq!(behind, Some(*rollout.settings()), "it is shown what it lacks");
        assert_eq!((rollout.missing(&stores), rollout.advance(0, &stores)), (vec!["s2"], None));
        rollout.note(StoreId(2), 2, 1);
        assert_eq!(rollout.advance(1_000, &stores), None, "leases of gone stores");
        assert_eq!(rollout.advance(1_549, &stores), None);
        let spreading = rollout.advance(1_550, &stores).unwrap();
        assert_eq!((spreading.tick_ms, spreading.uses_leases()), (100, false));
        rollout.replace(spreading);
        assert_eq!(rollout.advance(9_000, &stores), None, "no store has it");
        note_all(&mut rollout, 1);
        let settled = rollout.advance(9_000, &stores).unwrap();
        assert_eq!((settled.version, settled.tick_ms, settled.uses_leases()), (4, 100, true));
        rollout.replace(settled);
        note_all(&mut rollout, 1);
        assert_eq!(rollout.advance(10_000, &stores), None, "there is no more to do");
    }

    #[test]
    fn a_store_that_is_gone_is_not_waited_for_once_all_others_know() {
        let mut rollout = changing(SettingChange::TickMs(100));
        let before = registry(1, &[StoreState::Up; 3]);
        let lost = registry(2, &[StoreState::Up, StoreState::Up, StoreState::Lost]);
        rollout.note(StoreId(1), 2, 1);
        rollout.note(StoreId(2), 2, 1);
        assert_eq!(rollout.missing(&before), ["s3"]);
        assert_eq!(rollout.missing(&lost), ["s1", "s2"], "they may still take its messages");
        rollout.note(StoreId(1), 2, 2);
        rollout.note(StoreId(2), 2, 2);
        assert!(rollout.missing(&lost).is_empty());
        assert_eq!(rollout.advance(100, &lost), None);
        // It has started again, with an earlier copy of the registry.
        rollout.note(StoreId(2), 2, 1);
        assert_eq!(rollout.advance(9_000, &lost), None);
        rollout.note(StoreId(2), 2, 2);
        assert_eq!(rollout.advance(9_100, &lost), None, "the time counts anew");
        assert!(rollout.advance(9_650, &lost).is_some());
    }

    #[test]
    fn a_change_is_taken_back_at_once_only_before_any_store_can_have_it() {
        let settings = ClusterSettings::default();
        let off = settings.with_change(SettingChange::TickMs(100)).unwrap();
        let back = off.with_change(SettingChange::TickMs(50)).unwrap();
        assert_eq!((back.version, back.uses_leases()), (3, true));
        let spreading = off.next_step().unwrap();
        let back = spreading.with_change(SettingChange::TickMs(50)).unwrap();
        assert_eq!(
            (back.tick_ms, back.uses_leases()),
            (50, false),
            "stores may have the other one"
        );
        let other = off.with_change(SettingChange::TickMs(200)).unwrap();
        assert_eq!(other.tick_change, TickChange::LeasesOff { next_ms: 200 });
        assert_eq!(off.with_change(SettingChange::TickMs(100)), None);
        assert_eq!(settings.with_change(SettingChange::TickMs(50)), None);
    }

    #[test]
    fn other_settings_change_at_once_and_beside_a_change_of_the_tick() {
        let settings = ClusterSettings::default();
        let smaller = settings.with_change(SettingChange::EntryBytesMax(1 << 20)).unwrap();
        assert_eq!((smaller.version, smaller.entry_bytes_max), (2, 1 << 20));
        assert_eq!(smaller.with_change(SettingChange::EntryBytesMax(1 << 20)), None);
        assert!(smaller.uses_leases());
        let off = smaller.with_change(SettingChange::TickMs(100)).unwrap();
        let off = off.with_change(SettingChange::ReadLeases(false)).unwrap();
        assert_eq!(off.tick_change, TickChange::LeasesOff { next_ms: 100 });
        let settled = off.next_step().and_then(|it| it.next_step()).unwrap();
        assert_eq!((settled.tick_change, settled.uses_leases()), (TickChange::Settled, false));
        let on = off.with_change(SettingChange::ReadLeases(true)).unwrap();
        assert!(!on.uses_leases(), "not while the tick changes");
    }

    #[test]
    fn what_came_between_is_not_taken_back() {
        let mut rollout = changing(SettingChange::TickMs(100));
        let later = ClusterSettings { version: 5, ..*rollout.settings() };
        rollout.replace(later);
        rollout.replace(ClusterSettings { version: 4, tick_ms: 10, ..later });
        assert_eq!(rollout.settings(), &later);
    }
}
