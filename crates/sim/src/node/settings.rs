//! Settings of the cluster that change: how a store takes them up, and what it says of them.

use flotilla_identity::ClusterSettings;
use flotilla_region::{Config, RegionSettings};

use super::SimNode;
use super::running::RunningStore;
use crate::layout;
use crate::packet::{Packet, PacketBody};
use crate::task::{Outbox, StopReason};

impl RunningStore {
    /// Puts into force what was kept since the last step. Between two steps, as the node does:
    /// what the last one has granted by a lease has left.
    pub(super) fn take_up_settings(&mut self, drawn: &Config) -> bool {
        let Some(settings) = self.handshakes.take_up() else { return false };
        self.shard.reconfigure(layout::region_settings(&settings, drawn));
        true
    }
}

impl SimNode {
    /// Settings have come from the leader of placement.
    pub(super) fn take_settings(
        &mut self,
        from: usize,
        settings: &ClusterSettings,
        out: &mut Outbox,
    ) -> Result<(), StopReason> {
        let Some(running) = &mut self.running else { return Ok(()) };
        let kept = running.handshakes.learn(running.executor.store(), settings);
        kept.map_err(|error| self.stop(&error))?;
        self.schedule_taking_up(out);
        let Some(running) = &self.running else { return Ok(()) };
        // Asked again and again: a later answer has what this one lacks.
        let body = PacketBody::SettingsTaken(running.handshakes.in_force());
        out.packets.push(Packet::new(self.place, from, body));
        Ok(())
    }

    /// Has the next step take up what is kept.
    pub(super) fn schedule_taking_up(&mut self, out: &mut Outbox) {
        if self.running.as_ref().is_some_and(|running| running.handshakes.has_news()) {
            self.schedule_step(out);
        }
    }

    /// The version of the settings that are in force, and what they say of regions.
    pub(crate) fn settings_in_force(&self) -> Option<(u64, RegionSettings)> {
        let running = self.running.as_ref()?;
        Some((running.handshakes.in_force(), running.shard.settings()))
    }
}
