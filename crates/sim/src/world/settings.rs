//! Changes of the cluster's settings: the operator, and the leader of placement that rolls them
//! out.

use super::{SimEvent, SimWorld};
use crate::layout;
use crate::packet::{Packet, PacketBody};
use crate::reference_model::CheckFailure;

/// Between two looks of the leader of placement at what is to be rolled out.
const ROLL_OUT_US: u64 = 20_000;

impl SimWorld {
    /// Plans the first change, and the looks of placement.
    pub(super) fn schedule_settings(&mut self) {
        if self.swarm.settings().is_active() {
            self.schedule(ROLL_OUT_US, SimEvent::RollOut);
        }
        self.schedule_change();
    }

    fn schedule_change(&mut self) {
        if let Some(delay_us) = self.swarm.settings().delay_us() {
            self.schedule(delay_us, SimEvent::ChangeSetting);
        }
    }

    /// An operator changes a setting.
    pub(super) fn change_setting_by_hand(&mut self) {
        if !self.has_faults {
            return;
        }
        self.schedule_change();
        // There is a row once there is a leader that has written it.
        if self.leader(layout::SYSTEM).is_some()
            && let Some(change) = self.swarm.settings().change()
        {
            self.counts.faults += 1;
            let row = self.swarm.settings().row();
            self.say(format_args!("{change:?} makes {row:?}"));
        }
    }

    /// The leader of placement hands the settings out, and takes the next step.
    pub(super) fn roll_out(&mut self) -> Result<(), CheckFailure> {
        self.schedule(ROLL_OUT_US, SimEvent::RollOut);
        self.check_ticks()?;
        let Some(home) = self.leader(layout::SYSTEM) else { return Ok(()) };
        let now_ms = self.now() / 1_000;
        self.swarm.settings().lead(home);
        if self.swarm.settings().advance(now_ms) {
            let row = self.swarm.settings().row();
            self.say(format_args!("the next step: {row:?}"));
        }
        let row = self.swarm.settings().row();
        for to in 0..self.nodes.len() {
            let packet = Packet::new(home, to, PacketBody::Settings(row));
            self.send_or_keep(packet);
        }
        Ok(())
    }

    /// Sends a packet, also one to the store itself.
    fn send_or_keep(&mut self, packet: Packet) {
        if packet.from == packet.to {
            return self.schedule(1, SimEvent::Packet(Box::new(packet)));
        }
        self.send_packet(packet);
    }

    /// A store has told the leader of placement what it has taken up.
    pub(super) fn note_settings(&mut self, packet: &Packet) {
        if let PacketBody::SettingsTaken(version) = packet.body
            && packet.is_sound
        {
            self.swarm.settings().note(packet.to, packet.from, version);
        }
    }

    /// While any store uses leases, none has another tick.
    fn check_ticks(&self) -> Result<(), CheckFailure> {
        let sound = self.nodes.iter().filter(|node| !node.is_swapped());
        let seen: Vec<_> = sound.filter_map(|node| node.settings_in_force()).collect();
        let leases = seen.iter().find(|(_, settings)| settings.leases);
        let Some((version, with)) = leases else { return Ok(()) };
        match seen.iter().find(|(_, settings)| settings.tick_ms != with.tick_ms) {
            None => Ok(()),
            Some((other, of_other)) => Err(format!(
                "a store uses leases with {with:?} of version {version}, and another has \
                 {of_other:?} of version {other}"
            )),
        }
    }

    /// Whether all stores have the settings of the row, and no change is under way.
    ///
    /// # Errors
    ///
    /// In words, one that has not.
    pub(crate) fn are_settings_settled(&mut self) -> Result<(), CheckFailure> {
        let row = self.swarm.settings().row();
        let has_row = |node: &crate::node::SimNode| {
            node.settings_in_force().is_some_and(|(version, _)| version == row.version)
        };
        let is_settled = row.tick_change == flotilla_identity::TickChange::Settled;
        if is_settled && (self.nodes.iter().all(has_row) || row.version == 1) {
            return Ok(());
        }
        let seen: Vec<_> = self.nodes.iter().map(|node| node.settings_in_force()).collect();
        Err(format!("the row has {row:?}, and stores have {seen:?}"))
    }
}
