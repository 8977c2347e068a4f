//! A full disk: the write that found no room is refused, and writes that free space stay queued.

use crate::batch::frame::Frame;
use crate::commit::group_commit::GroupCommit;
use crate::error::Error;
use crate::queue::callbacks::Completions;
use crate::queue::write_queue::{QueuedWrite, WriteQueue};
use std::collections::HashSet;

impl GroupCommit {
    /// Fails the first write of the queue, for which there was no room, and those behind it that
    /// depend on it or add data too. A write that only frees space of other groups helps: it stays
    /// in the queue. Returns whether any stays.
    pub(super) fn refuse_queued(
        &self,
        write_queue: &mut WriteQueue,
        error: &Error,
        completions: &mut Completions<'_>,
    ) -> bool {
        let mut refused = HashSet::new();
        let mut kept = Vec::new();
        for (at, mut write) in std::mem::take(&mut write_queue.writes).into_iter().enumerate() {
            let stays = |frame: &Frame| {
                let is_touched = frame.groups().any(|group| refused.contains(&group));
                // A stale compaction may be stale only because of a write that is refused here.
                at > 0 && frame.only_reclaims() && !frame.has_stale() && !is_touched
            };
            if write.frame.as_ref().is_none_or(stays) {
                kept.push(write);
                continue;
            }
            write_queue.release(write.bytes());
            refused.extend(write.frame.take().iter().flat_map(Frame::groups));
            completions.complete(&write.completion, Err(error.clone()));
        }
        // The bounds are computed again from the writes that stay.
        write_queue.queued_bounds.clear();
        for QueuedWrite { frame, write_number, .. } in &mut kept {
            if let Some(frame) = frame {
                let admitted = write_queue.queued_bounds.admit(frame, *write_number, &self.groups);
                admitted.expect("it was right before, and nothing of its groups was refused");
            }
        }
        write_queue.writes = kept;
        !write_queue.writes.is_empty()
    }
}
