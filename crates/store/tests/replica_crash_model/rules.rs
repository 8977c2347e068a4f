//! The rules that histories break on purpose, one at a time, to see that the model notices.

/// A rule that does not hold in a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BrokenRule {
    /// R1: the log is synced before a root that knows as much.
    RootBeforeLog,
    /// R3: the log gives up what a durable root has. Broken: what is applied in memory.
    LogGoneByMemory,
    /// R3 at the seam: the parent's commit index is in the log before anything of the child.
    ParentCommitLate,
    /// R3 at the seam, for a parent that ends meanwhile: the same.
    EndedParentSaysNothing,
    /// At a start the log's groups without rows are looked at before any message is taken. Broken:
    /// a child whose split is to be applied again gives votes as a replica without data.
    UnbornTakesMessages,
    /// A replica without data, whose row a root has, may have been made a child by a split since:
    /// its birth in the log counts. Broken: it has a row, so its birth is not read.
    BirthHiddenByRow,
    /// A replica whose children are unborn does not end.
    ParentEndsBeforeBirth,
    /// A replica takes no snapshot before it has applied what is committed, unborn children's
    /// splits above all.
    ParentInstallsBeforeBirth,
    /// The vote that waited for the split is given like any other. Broken: it is not written.
    HeldVoteUnwritten,
    /// R12: the log keeps the group of a replica until a root has its end.
    EndEmptiesLog,
    /// R12: no successor before a root has the end.
    SuccessorBeforeRoot,
    /// R12: no other store hears of an end before a root has it.
    GoneBeforeRoot,
    /// R14: a replica without data is in the log before its vote leaves.
    VoteBeforeBirth,
    /// R15: raft takes a snapshot when the shard has heard of all that was applied. Broken: the
    /// births of a split are written while it installs, behind a commit index above the log.
    SnapshotBeforeSplitHeard,
    /// R15: a replica that installs a snapshot gives no votes.
    VoteWhileInstalling,
    /// R15: the log is reset when a root has the rows.
    ResetBeforeRoot,
    /// R15: the snapshot is acknowledged when the log is reset. Broken: with its rows.
    AcknowledgedBeforeRoot,
    /// R15: the reset keeps term and vote.
    VoteLostAtReset,
    /// R16: a snapshot is taken only if no other replica holds a part of its range.
    OverlapInstalled,
    /// R17: a split makes no child whose replica is at or below the tombstone.
    DeadChildMade,
}
