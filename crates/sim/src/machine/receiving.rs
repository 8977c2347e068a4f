//! What a store does with what others send it, and in which form its own messages leave.

use flotilla_identity::StoreHello;
use flotilla_region::{Envelope, Event};
use flotilla_store::Error;

use super::running::Running;
use super::{Machine, stop_of};
use crate::layout;
use crate::packet::{Content, Packet};
use crate::task::{Outbox, Stop};

impl Machine {
    /// Takes what another store has sent.
    pub(crate) fn receive(&mut self, packet: Packet, out: &mut Outbox) -> Result<(), Stop> {
        let Packet { from, content, is_sound, .. } = packet;
        match content {
            Content::Frame { .. } => self.take_frame(from, content, out),
            Content::FrameRefused { run } => {
                if let Some(running) = &mut self.running {
                    running.greeter.unlink(from, run);
                }
            }
            Content::Question { life, token, request } => {
                let response = match (&mut self.founding, &self.running) {
                    (Some(founding), _) => founding.answer(&request),
                    (None, Some(running)) => Ok(Some(running.greeter.answer(&request))),
                    (None, None) => Ok(None),
                };
                if let Some(response) = response.map_err(|error| self.stop(&error))? {
                    let content = Content::Answer { life, token, response };
                    out.letters.push(Packet::new(self.place, from, content));
                }
            }
            Content::Answer { life, token, response } => {
                if life == self.life
                    && let Some(founding) = &mut self.founding
                {
                    let heard = founding.hear(from, token, &response);
                    heard.map_err(|end| end.into_stop(|error| self.stop(error)))?;
                }
            }
            Content::Hello { life, hello } => {
                let Some(accepted) = self.greeted(&hello, is_sound)? else { return Ok(()) };
                let running = self.running.as_ref().expect("it was greeted");
                out.letters.push(running.greeter.answer_hello(from, life, accepted));
            }
            Content::HelloAnswer { life, hello, accepted } => {
                if life == self.life
                    && self.greeted(&hello, is_sound)? == Some(true)
                    && accepted
                    && let Some(running) = &mut self.running
                {
                    running.greeter.link(from);
                }
            }
        }
        Ok(())
    }

    /// Decides about a greeting; `None` if this is no member.
    fn greeted(&mut self, hello: &StoreHello, is_sound: bool) -> Result<Option<bool>, Stop> {
        let (place, is_ill, is_exchanged) = (self.place, self.is_ill, self.is_exchanged());
        let Some(Running { greeter, hands, .. }) = &mut self.running else { return Ok(None) };
        let failed = |error: &Error| stop_of(place, is_ill, error);
        let accepted = greeter.hear(hands.store(), hello, failed)?;
        // That a copy takes an old greeting of a sound store does no harm: nobody takes its answers.
        if accepted && !is_exchanged && !is_sound {
            let (one, other) = (layout::id(self.place), hello.from.store);
            return Err(Stop::Broken(format!(
                "stores {one} and {other} greet each other, and the other has not its newest disk"
            )));
        }
        if accepted {
            self.reach.identity.handshakes += 1;
            let from = layout::place(hello.from.store);
            self.accepted[from] = self.accepted[from].max(hello.run.starts);
        }
        Ok(Some(accepted))
    }

    fn take_frame(&mut self, from: usize, content: Content, out: &mut Outbox) {
        let Some(running) = &mut self.running else { return };
        let takes = running.greeter.takes(from, &content);
        let Content::Frame { run, envelope, .. } = content else { return };
        if takes {
            self.post(Event::Message(*envelope), out);
        } else {
            let content = Content::FrameRefused { run };
            out.letters.push(Packet::new(self.place, from, content));
        }
    }

    /// A message as it travels, if there is a link to its receiver; `is_forged`: whether there is
    /// or not.
    pub(crate) fn frame(&self, envelope: Envelope, is_forged: bool) -> Option<Packet> {
        let running = self.running.as_ref()?;
        let is_linked = running.greeter.is_linked(layout::place(envelope.to.store));
        let store = running.hands.store();
        (is_linked || is_forged).then(|| running.greeter.frame(store, envelope))
    }
}
