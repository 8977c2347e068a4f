//! Values that expire: the bounds on when they are gone, and reads that wait for the log.

use std::collections::BTreeMap;

use flotilla_region::{RegionId, Reject, Ticket};
use flotilla_store::{ApplyOutcome, ApplyReject, RegionSnapshot, WATERMARK_AHEAD_MS};

use crate::request::ClientReply;
use crate::task::{HeldRead, Outbox};
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

/// Gives an answer that was read from `region`, or has the read wait for the log: until that has
/// named the time, a swap that is under way may find a value which this read has left out.
pub(crate) fn reply(ticket: Ticket, reply: ClientReply, region: &RegionSnapshot, out: &mut Outbox) {
    match region.unlogged_ms() {
        None => out.replies.push((ticket, reply)),
        Some(time_ms) => {
            let region = region.descriptor().clone();
            out.held_reads.push(HeldRead { ticket, region, time_ms });
        }
    }
}

/// A start of a store, where a read waits that is made again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadPlace {
    pub(crate) store: usize,
    pub(crate) incarnation: u64,
    pub(crate) region: RegionId,
}

/// The reads that wait.
#[derive(Debug, Default)]
pub(crate) struct HeldReads(BTreeMap<Ticket, ReadPlace>);

impl HeldReads {
    /// Has a read wait.
    pub(crate) fn hold(&mut self, ticket: Ticket, place: ReadPlace) {
        self.0.insert(ticket, place);
    }

    /// The log was told of the time of a read, or was not: where it is made again, or its refusal.
    /// `None` if a crash has taken the read.
    pub(crate) fn release(
        &mut self,
        ticket: Ticket,
        told: &ClientReply,
    ) -> Option<Result<ReadPlace, ClientReply>> {
        let place = self.0.remove(&ticket)?;
        Some(match told {
            ClientReply::Refused(reject) => Err(ClientReply::Refused(reject.clone())),
            ClientReply::Wrote(ApplyOutcome::Rejected(reject)) => {
                let current = match reject {
                    ApplyReject::EpochNotMatch { current } => current.clone(),
                    _ => Vec::new(),
                };
                Err(ClientReply::Refused(Reject::EpochNotMatch { current }))
            }
            _ => Ok(place),
        })
    }
}
