//! Invariants of one replica, and of each of its steps.
//!
//! The numbers are compared after every step, in production too: they are few, and a replica that
//! breaks one must not go on. The whole state is checked by the simulator and tests.

use crate::ids::{Index, Term};

/// A replica's state in numbers, in the order in which they may not exceed each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProgressNumbers {
    pub(crate) term: Term,
    /// The entry before the first of the log.
    pub(crate) truncated: Index,
    /// The last entry that the driver has applied.
    pub(crate) applied: Index,
    /// The last entry that was given to the driver to be applied.
    pub(crate) handed_out: Index,
    /// The last entry known to be committed.
    pub(crate) commit: Index,
    /// The last entry on disk.
    pub(crate) persisted: Index,
    /// The last entry.
    pub(crate) last: Index,
    /// No replica that is waited for lacks an entry up to here.
    pub(crate) floor: Index,
}

/// Checks one state.
///
/// # Panics
///
/// If a rule is broken. The process must end: its writes and messages are not to be trusted.
pub(crate) fn check_state(now: &ProgressNumbers) {
    let order = [
        ("truncated", now.truncated, "applied", now.applied),
        ("applied", now.applied, "handed out", now.handed_out),
        ("handed out", now.handed_out, "committed", now.commit),
        // Raft 0.7 hands out nothing that its own replica may still lose
        // (docs/decisions/0002-raft-rs.md).
        ("handed out", now.handed_out, "persisted", now.persisted),
        ("committed", now.commit, "last", now.last),
        ("persisted", now.persisted, "last", now.last),
        // Above it an entry may be replaced by one that some replica lacks, and the floor does not
        // go back.
        ("floor", now.floor, "committed", now.commit),
    ];
    for (low_name, low, high_name, high) in order {
        assert!(low <= high, "{low_name} {low} is above {high_name} {high} in {now:?}");
    }
}

/// Checks one step.
///
/// # Panics
///
/// If a rule is broken.
pub(crate) fn check_step(before: &ProgressNumbers, now: &ProgressNumbers) {
    assert!(now.term >= before.term, "the term went back from {} to {}", before.term, now.term);
    let grow = [
        ("truncated", before.truncated, now.truncated),
        ("applied", before.applied, now.applied),
        ("handed out", before.handed_out, now.handed_out),
        ("committed", before.commit, now.commit),
        ("the floor", before.floor, now.floor),
    ];
    for (name, before, now) in grow {
        assert!(now >= before, "{name} went back from {before} to {now}");
    }
    // Uncommitted entries may be replaced; then less is on disk.
    let kept = before.persisted.min(before.commit);
    assert!(now.persisted >= kept, "committed entries left the disk: {before:?} to {now:?}");
    assert!(now.last >= before.commit, "committed entries were lost: {before:?} to {now:?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sound() -> ProgressNumbers {
        ProgressNumbers {
            term: Term(3),
            truncated: Index(1),
            applied: Index(4),
            handed_out: Index(5),
            commit: Index(7),
            persisted: Index(6),
            last: Index(9),
            floor: Index(2),
        }
    }

    #[test]
    fn a_sound_state_and_step_pass() {
        check_state(&sound());
        let later = ProgressNumbers { commit: Index(8), persisted: Index(7), ..sound() };
        check_step(&sound(), &later);
        check_step(&later, &ProgressNumbers { last: Index(8), ..later });
    }

    #[test]
    #[should_panic(expected = "handed out 5 is above persisted 4")]
    fn nothing_is_applied_that_is_not_on_disk() {
        check_state(&ProgressNumbers { persisted: Index(4), ..sound() });
    }

    #[test]
    #[should_panic(expected = "committed went back")]
    fn a_commit_is_for_ever() {
        check_step(&sound(), &ProgressNumbers { commit: Index(6), ..sound() });
    }
}
