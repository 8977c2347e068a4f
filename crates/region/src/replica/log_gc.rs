//! The log of a replica: which entries it keeps for others, and which it drops.

use super::Replica;
use crate::compaction::LogMeasure;
use crate::effects::Compaction;
use crate::ids::{Index, PeerId};
use crate::kept_logs::KeptLog;
use crate::message::{Message, MessageKind};
use crate::step_context::StepContext;

/// A replica is silent that was not heard for so long.
const SILENT_MS: u64 = 10_000;
/// The part of a region's size that its log may have: a snapshot costs all of it.
const REGION_PART: u64 = 4;

impl Replica {
    /// The part of the log that is kept for others.
    pub(crate) fn kept_log(&self) -> KeptLog {
        // That goes with the reset of the log, or with all of it.
        let goes = self.is_installing() || self.is_ending();
        if goes { KeptLog::default() } else { self.compactor.kept() }
    }

    /// A message was received.
    pub(super) fn note_heard(&mut self, from: PeerId, message: &Message) {
        // A leader waits for members only.
        let is_listed = self.descriptor.peer(from).is_some();
        if is_listed && self.consensus.is_leader() && message.term == self.consensus.term() {
            let wants_snapshot =
                message.kind == MessageKind::AppendResponse && message.request_snapshot > Index(0);
            self.compactor.note_heard(from, wants_snapshot);
        }
    }

    /// Weighs what others need of the log.
    pub(super) fn weigh_log(&mut self, step: &StepContext<'_>) {
        let limits = &step.config.window;
        let size = self.split_policy.size().map_or(0, |size| size.bytes);
        let silent_ticks = SILENT_MS / step.config.tick_ms;
        let measure = LogMeasure {
            window: self.consensus.window(),
            applied: self.consensus.applied_index(),
            allowance: limits.log_kept_region_bytes.max(size / REGION_PART),
            allowance_max: limits.log_kept_bytes_max,
            silent_ticks: u32::try_from(silent_ticks).unwrap_or(u32::MAX),
        };
        if !self.consensus.is_leader() {
            return self.compactor.weigh_floor(&measure);
        }
        let me = self.me.id;
        let others = self.consensus.matched_by_each().filter(|(peer, _)| *peer != me);
        let own = self.consensus.persisted_index();
        self.compactor.weigh_followers(own, others, &measure);
        // Only up to the commit index: an entry above may be on every disk and still be replaced,
        // and the floor has to stay true under each later leader.
        let needed = self.compactor.needed().unwrap_or_default();
        self.compactor.raise_floor(needed.min(self.consensus.commit()));
    }

    /// All that the shard keeps for others is too much: keeps nothing for the replica that most is
    /// kept for.
    pub(crate) fn give_up_log(&mut self, step: &mut StepContext<'_>) {
        self.compactor.give_up();
        self.weigh_log(step);
        self.compact(step);
        self.note_numbers();
    }

    pub(super) fn compact(&mut self, step: &mut StepContext<'_>) {
        let window = self.consensus.window();
        let (truncated, last) = (window.truncated(), window.last());
        let plan = self.compactor.plan(truncated, self.consensus.applied_index(), last);
        let Some(first) = plan else { return };
        let term_before = self.consensus.window_mut().compact(first);
        let region = self.descriptor.id;
        step.effects.log.compact.push(Compaction { region, peer: self.me.id, first, term_before });
    }
}
