//! The rules that walks break on purpose, one at a time, to see that the model notices.

/// A rule that does not hold in a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BrokenRule {
    /// R5: the commit index is written with the entries. Broken: a restart knows the applied one.
    CommitForgotten,
    /// R12: until a root has the end of a replica, the log keeps its group. Broken: it goes at
    /// once.
    LogGoneBeforeRoot,
    /// R12: the end is confirmed to others when a root has it. Broken: at once.
    EndConfirmedBeforeRoot,
    /// R12 for a replica without data: its end raises the tombstone too.
    UninitialisedEndForgotten,
    /// R13: a replica is added only above the peer floor.
    IdsMayShrink,
    /// R13: a store that never had a replica gets its tombstone only if it was a member. Broken:
    /// any number up to the floor that is no member.
    SpentIdsEnd,
    /// R14: the vote of a replica without data is durable before it leaves.
    VoteBeforeBirth,
    /// R14: a start finds a replica without data again by the birth in its group.
    BirthNotRead,
    /// R3: a start lets no message reach a replica whose split is to be applied again.
    UnbornTakesMessages,
    /// R17: a split makes no child whose number is at or below the tombstone.
    DeadChildMade,
    /// R18: no replica campaigns over a committed change that it has not applied.
    CampaignBeforeApplied,
    /// A joint configuration needs a majority of the old voters.
    OldHalfNotAsked,
    /// A joint configuration needs a majority of the new voters.
    NewHalfNotAsked,
    /// Several voters change in a joint configuration only.
    SwapWithoutJoint,
    /// A voter that goes is a learner first.
    VoterRemovedInOneStep,
    /// There is never a group of two voters.
    TwoVoters,
    /// A replica is promoted when it has the data.
    PromotedWithoutData,
    /// A leader proposes no change that costs its own vote.
    LeaderGivesUpItsVote,
    /// Votes and refusals bear the commit index.
    VotesWithoutCommit,
    /// A replica without data tells a leader of a lower term its own.
    UninitialisedHidesItsTerm,
    /// A store has one member of a group.
    SecondMemberOnStore,
}
