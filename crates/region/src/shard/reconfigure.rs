//! Settings of a shard that change while its regions run.

use super::Shard;
use crate::config::RegionSettings;

impl Shard {
    /// The settings that are in force.
    #[must_use]
    pub fn settings(&self) -> RegionSettings {
        self.config.settings()
    }

    /// Puts other settings into effect, from the next step on. Called between two steps.
    ///
    /// Every lease ends here, and one is earned again only by a round that is asked later: a lease
    /// is as long as the promises of those who answered, and these go by the tick that they had.
    /// The caller makes sure that no store runs with another tick while leases are on
    /// (decision 58, `docs/decisions/0058-settings-change-online.md`).
    ///
    /// # Panics
    ///
    /// If the settings are ones that [`crate::Config::check`] refuses.
    pub fn reconfigure(&mut self, settings: RegionSettings) {
        let before = self.config.settings();
        self.config.apply(settings);
        self.config.check().expect("the driver checks the settings that it was given");
        let leases = |it: RegionSettings| (it.tick_ms, it.leases);
        if leases(before) == leases(settings) {
            return;
        }
        let now = self.now;
        let soonest = now.after_ms(settings.tick_ms);
        for (region, slot) in &mut self.replicas {
            slot.replica.settle_lease(now);
            // A leader whose next tick is that of a longer time would be silent for longer than its
            // followers wait by now. A promise has its ticks left: the next may come at any time.
            if slot.due > soonest {
                self.timers.remove(*region, slot.due);
                self.timers.set(*region, soonest);
                slot.due = soonest;
            }
        }
    }
}
