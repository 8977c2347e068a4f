//! Messages of a replica: their envelopes, and the range for receivers that may not have it.

use super::Replica;
use crate::convert;
use crate::descriptor::KeyRange;
use crate::ids::{Index, PeerId, Term};
use crate::message::{Envelope, MessageKind};
use crate::step_context::StepContext;

impl Replica {
    /// Puts what raft wants sent into envelopes.
    pub(super) fn send(&mut self, step: &mut StepContext<'_>) {
        let mut outgoing = std::mem::take(&mut self.output.messages);
        for message in outgoing.drain(..) {
            // A member may have gone since.
            let Some(to) = self.address(PeerId(message.to)) else { continue };
            let metadata = message.get_snapshot().get_metadata();
            let head = (Index(metadata.index), Term(metadata.term));
            let message = convert::message_from_raft(message);
            let envelope = Envelope {
                region: self.descriptor.id,
                from: self.me,
                to,
                epoch: self.descriptor.epoch,
                gc_floor: self.compactor.floor(),
                range: self.range_for(to.id, message.kind),
                message,
            };
            if envelope.message.kind == MessageKind::Snapshot {
                self.send_snapshot(envelope, head, step);
            } else {
                step.effects.messages.push(envelope);
            }
        }
        // Its memory is used again.
        self.output.messages = outgoing;
    }

    /// The range goes along where the receiver may not have the replica: its store then looks
    /// whether it may be made.
    fn range_for(&self, to: PeerId, kind: MessageKind) -> Option<Box<KeyRange>> {
        let may_be_absent = match kind {
            MessageKind::RequestVote | MessageKind::RequestPreVote => true,
            // It has not answered in this term.
            MessageKind::Append | MessageKind::Heartbeat => {
                self.consensus.is_leader() && self.consensus.matched(to) == Some(Index(0))
            }
            _ => false,
        };
        may_be_absent.then(|| Box::new(self.descriptor.range()))
    }
}
