//! The status of a replica and the counters of a shard, for drivers, operators and tests.

use crate::descriptor::{Peer, RegionSize};
use crate::ids::{Index, PeerId, Term};

/// The role of a replica in its term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// It follows a leader, or waits for one.
    Follower,
    /// It asks for votes.
    Candidate,
    /// It leads.
    Leader,
}

/// One replica in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// The replica.
    pub peer: PeerId,
    /// Its term.
    pub term: Term,
    /// The leader, if known.
    pub leader: Option<Peer>,
    /// The role of the replica.
    pub role: Role,
    /// The first entry of its log.
    pub first: Index,
    /// Up to here applied.
    pub applied: Index,
    /// Up to here committed.
    pub commit: Index,
    /// Up to here on disk.
    pub persisted: Index,
    /// The last entry of its log.
    pub last: Index,
    /// No replica that is waited for lacks an entry up to here, as far as this one knows.
    pub gc_floor: Index,
    /// Proposals that wait to become an entry.
    pub queued: usize,
    /// Proposals in the log that wait to be committed.
    pub proposed: usize,
    /// Reads that wait.
    pub reads: usize,
    /// The size that the store has told last, since the replica leads or its range changed.
    pub size: Option<RegionSize>,
}

flotilla_base::metrics! { "raft",
    /// Counters of a shard since it was made. They only grow.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Stats {
        /// Entries proposed by leaders here.
        pub entries_proposed: u64 => Counter(None),
        /// Proposals in the entries that leaders here have proposed.
        pub proposals_joined: u64 => Counter(None),
        /// Reads granted on the strength of a lease.
        pub reads_by_lease: u64 => Counter(None),
        /// Reads granted after asking a quorum or the leader.
        pub reads_by_index: u64 => Counter(None),
        /// Followers that a leader under lease answered without a quorum.
        pub followers_answered: u64 => Counter(None),
        /// Steps that came too late to serve by a lease.
        pub late_steps: u64 => Counter(None),
        /// Reads for which a quorum is asked because a step came too late to serve by a lease.
        ///
        /// Requests of followers count too.
        pub reads_turned_back: u64 => Counter(None),
        /// Rounds of messages that asked a quorum, lease renewals included.
        pub read_rounds: u64 => Counter(None),
        /// Splits that were applied to replicas here.
        pub splits: u64 => Counter(None),
        /// Changes of the members that were applied to replicas here.
        pub membership_changes: u64 => Counter(None),
        /// Replicas that have ended here, durably.
        pub replicas_ended: u64 => Counter(None),
        /// Answers for replicas that have ended.
        pub late_answers: u64 => Counter(None),
        /// Transfers of leadership that leaders here have begun.
        pub transfers_begun: u64 => Counter(None),
        /// Transfers of leadership after which another replica led.
        pub transfers_done: u64 => Counter(None),
        /// Transfers of leadership that were refused, or not done in time.
        pub transfers_refused: u64 => Counter(None),
        /// Votes that were asked of replicas before their splits were applied here, and kept.
        pub held_votes: u64 => Counter(None),
        /// Snapshots that leaders here have sent.
        pub snapshots_sent: u64 => Counter(None),
        /// Requests of damaged replicas here for snapshots.
        pub snapshots_requested: u64 => Counter(None),
        /// Snapshots that were installed in replicas here.
        pub snapshots_installed: u64 => Counter(None),
        /// Replicas without data that messages have made here.
        pub uninitialised: u64 => Counter(None),
        /// Replicas that the log was not kept for any longer: all kept logs were too much.
        pub logs_given_up: u64 => Counter(None),
        /// Puts that were refused because disks are full.
        pub puts_refused: u64 => Counter(None),
        /// Transfers of leadership away from this store because its disk is full.
        pub disk_full_transfers: u64 => Counter(None),
        /// Messages that were given to raft.
        pub messages_taken: u64 => Counter(None),
        /// Messages that were not given to raft.
        pub dropped: Dropped => Nested(),
    }
}

flotilla_base::metrics! { "raft_dropped",
    /// Messages that were not given to raft, by reason.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Dropped {
        /// Messages for a region or a replica that is not here.
        pub misrouted: u64 => Counter(None),
        /// Messages from a sender that is no member of the region, or is at another store.
        pub strangers: u64 => Counter(None),
        /// Messages with numbers or entries that no sound replica sends.
        pub malformed: u64 => Counter(None),
        /// Messages with terms too far above ours to be plausible.
        pub wild_terms: u64 => Counter(None),
        /// Messages that prove that the log here has lost what it had acknowledged; the store ends.
        pub lost_logs: u64 => Counter(None),
        /// Vote requests while a leader may hold a lease that this replica backs.
        pub votes_withheld: u64 => Counter(None),
        /// Answers that were overtaken by later ones.
        pub stale: u64 => Counter(None),
        /// Messages with entries while too many wait to be applied.
        pub lagging: u64 => Counter(None),
        /// Messages with entries while the disk has no room for them.
        pub disk_full: u64 => Counter(None),
        /// Messages to damaged replicas that wait for a snapshot.
        pub damaged: u64 => Counter(None),
        /// Messages to replicas that end.
        pub ending: u64 => Counter(None),
        /// Messages to replicas that install a snapshot.
        pub installing: u64 => Counter(None),
    }
}
