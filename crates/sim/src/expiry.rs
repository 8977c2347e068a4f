//! Values that expire: the bounds on when they are gone, and answers that wait for the log.

use std::collections::BTreeMap;

use flotilla_region::{Reject, Ticket};
use flotilla_store::{ApplyOutcome, ApplyReject, RegionSnapshot, WATERMARK_AHEAD_MS};

use crate::request::ClientReply;
use crate::task::{HeldReply, Outbox};
use crate::wall_clock::OFFSET_MS_MAX;

/// A clock may be behind when a value is put and before its time when it is read, or the other way
/// round; the watermark may be ahead of the clock that has raised it.
const SLACK_MS: u64 = 2 * OFFSET_MS_MAX + WATERMARK_AHEAD_MS;

/// The least time after a request has come that a value which it puts is gone.
pub(crate) fn least_ms(ttl_ms: u64) -> u64 {
    ttl_ms.saturating_sub(SLACK_MS)
}

/// The time after which no answer may show a value that was put.
pub(crate) fn most_ms(ttl_ms: u64) -> u64 {
    ttl_ms + SLACK_MS
}

/// Gives an answer that was read from `region`, or holds it.
pub(crate) fn reply(ticket: Ticket, reply: ClientReply, region: &RegionSnapshot, out: &mut Outbox) {
    match region.unlogged_ms() {
        None => out.replies.push((ticket, reply)),
        Some(time_ms) => {
            let region = region.descriptor().clone();
            out.held_replies.push(HeldReply { ticket, reply, region, time_ms });
        }
    }
}

/// The answers that wait.
#[derive(Debug, Default)]
pub(crate) struct HeldReplies(BTreeMap<Ticket, ClientReply>);

impl HeldReplies {
    /// Holds an answer.
    pub(crate) fn hold(&mut self, ticket: Ticket, reply: ClientReply) {
        self.0.insert(ticket, reply);
    }

    /// The answer to a read, once the log was told of its time or was not; `None` if a crash has
    /// taken the read.
    pub(crate) fn release(&mut self, ticket: Ticket, told: &ClientReply) -> Option<ClientReply> {
        let held = self.0.remove(&ticket)?;
        Some(match told {
            ClientReply::Refused(reject) => ClientReply::Refused(reject.clone()),
            ClientReply::Wrote(ApplyOutcome::Rejected(reject)) => {
                let current = match reject {
                    ApplyReject::EpochNotMatch { current } => current.clone(),
                    _ => Vec::new(),
                };
                ClientReply::Refused(Reject::EpochNotMatch { current })
            }
            _ => held,
        })
    }
}
