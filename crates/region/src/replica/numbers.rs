//! A replica in numbers: its status, and the progress that each step is checked by.

use super::Replica;
use crate::ids::Index;
use crate::invariants::{self, ProgressNumbers};
use crate::status::Status;

impl Replica {
    pub(crate) fn status(&self) -> Status {
        let numbers = self.numbers();
        Status {
            peer: self.me.id,
            term: numbers.term,
            leader: self.leader(),
            role: self.consensus.role(),
            first: Index(numbers.truncated.0 + 1),
            applied: numbers.applied,
            commit: numbers.commit,
            persisted: numbers.persisted,
            last: numbers.last,
            gc_floor: numbers.floor,
            queued: self.proposals.queued(),
            proposed: self.proposals.proposed(),
            reads: self.read_path.count(),
            size: self.split_policy.size(),
        }
    }

    pub(super) fn numbers(&self) -> ProgressNumbers {
        // Raft's commit index is that of the snapshot from its taking on, and its log that of the
        // snapshot from the reset on. The rows are, and it counts, when both are durable.
        if self.is_installing() {
            return self.reported.numbers;
        }
        ProgressNumbers {
            term: self.consensus.term(),
            truncated: self.consensus.window().truncated(),
            applied: self.consensus.applied_index(),
            handed_out: self.applying.handed_out(),
            commit: self.consensus.commit(),
            persisted: self.consensus.persisted_index(),
            last: self.consensus.last(),
            floor: self.compactor.floor(),
        }
    }

    pub(super) fn note_numbers(&mut self) {
        let now = self.numbers();
        invariants::check_step(&self.reported.numbers, &now);
        invariants::check_state(&now);
        self.reported.numbers = now;
    }
}
