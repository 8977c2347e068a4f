//! Packets between stores: how a node receives them, and how its own messages leave.

use flotilla_identity::StoreHello;
use flotilla_region::{Envelope, Event, Notice};
use flotilla_store::Error;

use super::running::RunningStore;
use super::{SimNode, stop_of};
use crate::layout;
use crate::packet::{Packet, PacketBody};
use crate::task::{Outbox, StopReason};

impl SimNode {
    /// Takes what another store has sent.
    pub(crate) fn receive(&mut self, packet: Packet, out: &mut Outbox) -> Result<(), StopReason> {
        let Packet { from, body, is_sound, .. } = packet;
        match body {
            PacketBody::Frame { .. } => self.take_frame(from, body, out),
            PacketBody::FrameRefused { run } => {
                let running = self.running.as_mut();
                if running.is_some_and(|running| running.handshakes.unlink(from, run)) {
                    self.disconnect(from, out);
                }
            }
            PacketBody::Notice { uuid, run, notice } => {
                if let Some(running) = &mut self.running
                    && running.handshakes.takes_run(from, uuid, run)
                {
                    running.counts.membership.notices += 1;
                    self.post(Event::Notice(notice), out);
                }
            }
            PacketBody::SnapshotPart { uuid, run, stream, number, part } => {
                if let Some(running) = &mut self.running {
                    running.take_part(stream, (uuid, run), number, part, out);
                }
            }
            PacketBody::SnapshotVerdict { stream, verdict } => {
                if let Some(running) = &mut self.running {
                    let taken = running.take_verdict(stream, verdict, out);
                    self.survive_read(taken, None, out)?;
                }
            }
            PacketBody::Settings(settings) => self.take_settings(from, &settings, out)?,
            // The world is the leader of placement.
            PacketBody::SettingsTaken(_) => {}
            PacketBody::Question { incarnation, token, request } => {
                let response = match (&mut self.bootstrapping, &self.running) {
                    (Some(bootstrapping), _) => bootstrapping.answer(&request),
                    (None, Some(running)) => Ok(Some(running.handshakes.answer(&request))),
                    (None, None) => Ok(None),
                };
                if let Some(response) = response.map_err(|error| self.stop(&error))? {
                    let body = PacketBody::Answer { incarnation, token, response };
                    out.packets.push(Packet::new(self.place, from, body));
                }
            }
            PacketBody::Answer { incarnation, token, response } => {
                if incarnation == self.incarnation
                    && let Some(bootstrapping) = &mut self.bootstrapping
                {
                    let heard = bootstrapping.hear(from, token, &response);
                    heard.map_err(|end| end.into_stop(|error| self.stop(error)))?;
                }
            }
            PacketBody::Hello { incarnation, hello } => {
                let Some(accepted) = self.greeted(&hello, is_sound, out)? else { return Ok(()) };
                let running = self.running.as_ref().expect("it was greeted");
                out.packets.push(running.handshakes.answer_hello(from, incarnation, accepted));
            }
            PacketBody::HelloAnswer { incarnation, hello, accepted } => {
                if incarnation == self.incarnation
                    && self.greeted(&hello, is_sound, out)? == Some(true)
                    && accepted
                {
                    self.connect(from, out);
                }
            }
        }
        Ok(())
    }

    /// Decides about a greeting; `None` if this is no member.
    fn greeted(
        &mut self,
        hello: &StoreHello,
        is_sound: bool,
        out: &mut Outbox,
    ) -> Result<Option<bool>, StopReason> {
        let (place, has_disk_fault, is_swapped) =
            (self.place, self.disk.has_fault, self.is_swapped());
        let Some(RunningStore { handshakes, executor, .. }) = &mut self.running else {
            return Ok(None);
        };
        let failed = |error: &Error| stop_of(place, has_disk_fault, error);
        let accepted = handshakes.hear(executor.store(), hello, failed)?;
        let has_news = handshakes.has_news();
        // That a copy takes an old greeting of a sound store does no harm: no store takes its
        // answers.
        if accepted && !is_swapped && !is_sound {
            let (one, other) = (layout::id(self.place), hello.from.store);
            return Err(StopReason::CheckFailure(format!(
                "stores {one} and {other} greet each other, and the other has not its newest disk"
            )));
        }
        if accepted {
            self.coverage.identity.handshakes += 1;
            let from = layout::place(hello.from.store);
            self.accepted[from] = self.accepted[from].max(hello.run.starts);
        }
        if has_news {
            self.coverage.identity.settings_by_greeting += 1;
            self.schedule_taking_up(out);
        }
        Ok(Some(accepted))
    }

    fn take_frame(&mut self, from: usize, body: PacketBody, out: &mut Outbox) {
        let Some(running) = &mut self.running else { return };
        let takes = running.handshakes.takes(from, &body);
        let PacketBody::Frame { run, disk, envelope, .. } = body else { return };
        if takes {
            running.note_disk(layout::id(from), disk);
            self.post(Event::Message(*envelope), out);
        } else {
            let body = PacketBody::FrameRefused { run };
            out.packets.push(Packet::new(self.place, from, body));
        }
    }

    /// A notice as it travels, if there is a link to its receiver.
    pub(crate) fn notice(&self, notice: Notice) -> Option<Packet> {
        let running = self.running.as_ref()?;
        let to = layout::place(notice.to);
        let (uuid, run) = running.handshakes.own_run();
        let body = PacketBody::Notice { uuid, run, notice };
        running.handshakes.is_linked(to).then(|| Packet::new(self.place, to, body))
    }

    /// A message as it travels, if there is a link to its receiver; `is_forged`: whether there is
    /// or not.
    pub(crate) fn frame(&self, envelope: Envelope, is_forged: bool) -> Option<Packet> {
        let running = self.running.as_ref()?;
        let is_linked = running.handshakes.is_linked(layout::place(envelope.to.store));
        let store = running.executor.store();
        (is_linked || is_forged)
            .then(|| running.handshakes.frame(store, running.disks.usage(), envelope))
    }

    /// There is a link to a store.
    pub(super) fn connect(&mut self, to: usize, out: &mut Outbox) {
        if let Some(running) = &mut self.running {
            running.handshakes.link(to);
            running.outgoing.connect(to, out);
        }
    }

    /// A store does not take frames of this start any more.
    pub(super) fn disconnect(&mut self, to: usize, out: &mut Outbox) {
        let Some(running) = &mut self.running else { return };
        for event in running.outgoing.disconnect(to) {
            self.post(event, out);
        }
    }
}
