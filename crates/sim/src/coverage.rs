//! Coverage: how often runs reached each corner. A corner with count 0 was not tried.

use std::ops::AddAssign;

use flotilla_region::{MembershipChange, RegionChange, Reject};

mod comparisons;
mod corners;
mod disks;
mod spills;

pub(crate) use comparisons::ComparisonCoverage;
pub(crate) use disks::DiskCoverage;
pub(crate) use spills::SpillCoverage;

/// Sums over the incarnations of all stores of a run, or of many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Starts of stores, and their deaths.
    pub starts: StartCoverage,
    /// Checkpoints that wrote something.
    pub checkpoints: u64,
    /// Times that applying had to wait because too much was in memory only.
    pub apply_stalls: u64,
    /// Operations on the logs.
    pub log: LogCoverage,
    /// Operations on the space of the pages' files.
    pub pages: PagesCoverage,
    /// Terms led.
    pub leaderships: u64,
    /// Reads that were granted.
    pub reads: ReadsCoverage,
    /// Votes withheld because of a promise.
    pub votes_withheld: u64,
    /// Bootstraps, handshakes and refusals.
    pub identity: IdentityCoverage,
    /// Effects of the bounds on time and on messages.
    pub bounds: BoundsCoverage,
    /// Regions that were split.
    pub splits: SplitCoverage,
    /// Decisions of the driver.
    pub driver: DriverCoverage,
    /// Snapshots, and replicas without data.
    pub snapshots: SnapshotCoverage,
    /// Leaders that handed over.
    pub transfers: TransferCoverage,
    /// Regions whose replicas changed.
    pub membership: MembershipCoverage,
    /// Replicas that have ended.
    pub ends: EndCoverage,
}

/// Sums over starts of stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StartCoverage {
    /// Stores opened.
    pub stores: u64,
    /// Of these, with a log whose end was torn.
    pub torn_tails: u64,
    /// Entries found above the applied ones of the pages, to be applied again.
    pub replayed_entries: u64,
    /// Stores that died of their disk, inside an operation.
    pub deaths_inside: u64,
}

/// Sums over ends of replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndCoverage {
    /// Tasks that were carried out.
    pub tasks: u64,
    /// Replicas that have ended by them.
    pub replicas: u64,
    /// Tasks that found no replica: it never was here, or had ended before.
    pub without_replica: u64,
    /// Logs that were removed.
    pub logs_removed: u64,
    /// Reads that were granted and found their replica gone.
    pub reads_turned_back: u64,
}

/// Sums over reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadsCoverage {
    /// Granted under a lease.
    pub by_lease: u64,
    /// Those for which a quorum was asked.
    pub by_index: u64,
    /// Those whose answer waited for a time in the log.
    pub logged_times: u64,
}

/// Sums over snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotCoverage {
    /// Snapshots that the receiver acknowledged.
    pub sent: u64,
    /// Snapshots that were asked for and not sent, or not acknowledged.
    pub unsent: u64,
    /// Offers that were refused.
    pub refused: u64,
    /// Streams that were lost on their way.
    pub cut: u64,
    /// Snapshots that came whole.
    pub staged: u64,
    /// Of these, installed.
    pub installed: u64,
    /// Of these, not wanted.
    pub discarded: u64,
    /// Replicas that a message has made.
    pub uninitialised: u64,
    /// Replicas without data that a start found.
    pub uninitialised_starts: u64,
    /// Votes that replicas without data gave.
    pub uninitialised_votes: u64,
    /// Messages for replicas that the store did not admit.
    pub not_admitted: u64,
    /// Proposals that a snapshot has passed over.
    pub undecided: u64,
    /// Power losses between two arrows of an installation.
    pub cuts_at_arrows: u64,
}

impl AddAssign for SnapshotCoverage {
    fn add_assign(&mut self, more: Self) {
        self.sent += more.sent;
        self.unsent += more.unsent;
        self.refused += more.refused;
        self.cut += more.cut;
        self.staged += more.staged;
        self.installed += more.installed;
        self.discarded += more.discarded;
        self.uninitialised += more.uninitialised;
        self.uninitialised_starts += more.uninitialised_starts;
        self.uninitialised_votes += more.uninitialised_votes;
        self.not_admitted += more.not_admitted;
        self.undecided += more.undecided;
        self.cuts_at_arrows += more.cuts_at_arrows;
    }
}

/// Sums over splits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SplitCoverage {
    /// Splits that replicas have applied.
    pub applied: u64,
    /// Replicas that a start found in the log alone.
    pub unborn: u64,
    /// Votes that were asked of a replica before it was there, and given to it.
    pub held_votes: u64,
    /// Applies at once of more than one split.
    pub several_at_once: u64,
    /// Reads that were granted before a split, and refused after it.
    pub reads_turned_back: u64,
    /// Proposals and splits that had no effect because a split came before them.
    pub rejected: u64,
}

/// Sums over the decisions of the driver, which are the node's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverCoverage {
    /// Splits that leaders wished for.
    pub wishes: SplitWishCoverage,
    /// Messages that waited for other stores, and for the shard.
    pub queues: QueueCoverage,
    /// Requests that waited for a leader.
    pub waits: WaitCoverage,
    /// Rows that had expired and were removed.
    pub rows_expired: u64,
    /// Comparisons of replicas.
    pub comparisons: ComparisonCoverage,
    /// Full disks.
    pub disks: DiskCoverage,
}

impl AddAssign for DriverCoverage {
    fn add_assign(&mut self, more: Self) {
        self.wishes += more.wishes;
        self.queues += more.queues;
        self.waits += more.waits;
        self.rows_expired += more.rows_expired;
        self.comparisons += more.comparisons;
        self.disks += more.disks;
    }
}

/// Sums over messages that wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCoverage {
    /// Dropped because the queue to their store was full.
    pub full: u64,
    /// Kept for a store to which there was no link.
    pub kept: u64,
    /// Replicas whose entries were lost with a link.
    pub lost: u64,
    /// Left in their lane by a step because work was behind.
    pub left: u64,
}

impl AddAssign for QueueCoverage {
    fn add_assign(&mut self, more: Self) {
        self.full += more.full;
        self.kept += more.kept;
        self.lost += more.lost;
        self.left += more.left;
    }
}

/// Sums over requests whose region had no leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitCoverage {
    /// Requests that waited.
    pub requests: u64,
    /// Tries of them.
    pub retried: u64,
}

impl AddAssign for WaitCoverage {
    fn add_assign(&mut self, more: Self) {
        self.requests += more.requests;
        self.retried += more.retried;
    }
}

/// Sums over splits that leaders wished for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SplitWishCoverage {
    /// Made because of the size of a region.
    pub by_size: u64,
    /// Made because of its load.
    pub by_load: u64,
    /// Wishes whose region had changed, or had too few rows, when their turn came.
    pub void: u64,
}

impl AddAssign for SplitWishCoverage {
    fn add_assign(&mut self, more: Self) {
        self.by_size += more.by_size;
        self.by_load += more.by_load;
        self.void += more.void;
    }
}

/// Sums over transfers of leadership.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferCoverage {
    /// Begun by a leader.
    pub begun: u64,
    /// Of these, those after which another one led.
    pub done: u64,
    /// Refused, or not done in time.
    pub refused: u64,
}

/// Sums over changes of members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MembershipCoverage {
    /// Changes that replicas have applied.
    pub changes: u64,
    /// Of these, those that entered a joint configuration.
    pub joint: u64,
    /// Changes that a leader was asked for and did not propose, by its own checks.
    pub refused: u64,
    /// Replicas that got a vote.
    pub promoted: u64,
    /// Replicas that were removed.
    pub removed: u64,
    /// Replicas whose end a root has.
    pub ended: u64,
    /// Entries of the list of removed replicas that were cleared.
    pub confirmed: u64,
    /// Notices that came.
    pub notices: u64,
    /// Notices that came a second time, much later.
    pub late: u64,
    /// Power losses between two arrows of an end.
    pub cuts_at_ends: u64,
}

impl MembershipCoverage {
    /// A replica has applied a change of its region.
    pub(crate) fn count(&mut self, change: &RegionChange) {
        match change {
            RegionChange::Split { .. }
            | RegionChange::DigestDue { .. }
            | RegionChange::Compared { .. } => {}
            RegionChange::Forgotten { .. } => self.confirmed += 1,
            RegionChange::Membership { change, descriptor, .. } => {
                self.changes += 1;
                match change {
                    MembershipChange::Vote { promoted, .. } => {
                        self.joint += u64::from(descriptor.is_joint());
                        self.promoted += promoted.len() as u64;
                    }
                    MembershipChange::Remove(_) => self.removed += 1,
                    MembershipChange::Add(_) | MembershipChange::LeaveJoint => {}
                }
            }
        }
    }
}

impl AddAssign for MembershipCoverage {
    fn add_assign(&mut self, more: Self) {
        self.changes += more.changes;
        self.joint += more.joint;
        self.refused += more.refused;
        self.promoted += more.promoted;
        self.removed += more.removed;
        self.ended += more.ended;
        self.confirmed += more.confirmed;
        self.notices += more.notices;
        self.late += more.late;
        self.cuts_at_ends += more.cuts_at_ends;
    }
}

/// Sums over the logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogCoverage {
    /// Times that a region's log was shortened.
    pub compactions: u64,
    /// Segments removed.
    pub segments_purged: u64,
    /// Bytes moved to the end of a log so that a segment could go.
    pub moved_bytes: u64,
    /// Entries read again by the scrub, in bytes.
    pub scrubbed_bytes: u64,
    /// Times that entries were read from disk for a follower.
    pub fetches: u64,
    /// Of these, answered that it cannot be done now.
    pub fetches_failed: u64,
}

/// Sums over bootstraps, handshakes, and directories that were exchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdentityCoverage {
    /// Stores that became members.
    pub bootstraps: u64,
    /// Greetings that were accepted.
    pub handshakes: u64,
    /// Starts, or stores that ran, that were refused in words.
    pub refusals: u64,
    /// Directories that were wiped, halved or replaced by an older copy.
    pub directory_swaps: u64,
    /// Settings of the cluster that were put into force.
    pub settings_taken: u64,
    /// Of these, learnt by a greeting.
    pub settings_by_greeting: u64,
}

/// Sums over what came too late, or from too far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BoundsCoverage {
    /// How long machines were suspended.
    pub suspended_us: u64,
    /// Steps that were too late to serve by a lease.
    pub late_steps: u64,
    /// Reads that they turned back.
    pub reads_turned_back: u64,
    /// Messages refused for their terms.
    pub wild_terms: u64,
    /// Messages refused for other numbers, or for their entries.
    pub malformed: u64,
    /// Messages refused for their senders.
    pub strangers: u64,
    /// Messages refused because too many entries wait to be applied.
    pub lagging: u64,
    /// Requests refused because too much waits.
    pub busy: u64,
    /// Proposals refused because no entry may be so large.
    pub too_large: u64,
}

impl BoundsCoverage {
    /// A request is refused.
    pub(crate) fn count(&mut self, reject: &Reject) {
        match reject {
            Reject::Busy { .. } => self.busy += 1,
            Reject::EntryTooLarge { .. } => self.too_large += 1,
            _ => {}
        }
    }
}

impl AddAssign for BoundsCoverage {
    fn add_assign(&mut self, more: Self) {
        self.suspended_us += more.suspended_us;
        self.late_steps += more.late_steps;
        self.reads_turned_back += more.reads_turned_back;
        self.wild_terms += more.wild_terms;
        self.malformed += more.malformed;
        self.strangers += more.strangers;
        self.lagging += more.lagging;
        self.busy += more.busy;
        self.too_large += more.too_large;
    }
}

/// Sums over the files of pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PagesCoverage {
    /// Moved towards the beginning of their file.
    pub moved_bytes: u64,
    /// Cut off from the end of the files.
    pub trimmed_bytes: u64,
    /// Holes made in the files.
    pub punched_bytes: u64,
    /// Freed by deferred frees, not by the operations that dropped the pages.
    pub reclaimed_bytes: u64,
    /// Read again by the scrub.
    pub scrubbed_bytes: u64,
    /// Memory and snapshots that were too much.
    pub spills: SpillCoverage,
}

impl AddAssign for Coverage {
    fn add_assign(&mut self, more: Self) {
        self.starts.stores += more.starts.stores;
        self.identity.bootstraps += more.identity.bootstraps;
        self.identity.handshakes += more.identity.handshakes;
        self.identity.refusals += more.identity.refusals;
        self.identity.directory_swaps += more.identity.directory_swaps;
        self.identity.settings_taken += more.identity.settings_taken;
        self.identity.settings_by_greeting += more.identity.settings_by_greeting;
        self.starts.torn_tails += more.starts.torn_tails;
        self.starts.replayed_entries += more.starts.replayed_entries;
        self.checkpoints += more.checkpoints;
        self.apply_stalls += more.apply_stalls;
        self.log.compactions += more.log.compactions;
        self.log.segments_purged += more.log.segments_purged;
        self.log.moved_bytes += more.log.moved_bytes;
        self.log.scrubbed_bytes += more.log.scrubbed_bytes;
        self.pages.moved_bytes += more.pages.moved_bytes;
        self.pages.trimmed_bytes += more.pages.trimmed_bytes;
        self.pages.punched_bytes += more.pages.punched_bytes;
        self.pages.reclaimed_bytes += more.pages.reclaimed_bytes;
        self.pages.scrubbed_bytes += more.pages.scrubbed_bytes;
        self.pages.spills += more.pages.spills;
        self.log.fetches += more.log.fetches;
        self.log.fetches_failed += more.log.fetches_failed;
        self.starts.deaths_inside += more.starts.deaths_inside;
        self.leaderships += more.leaderships;
        self.reads.by_lease += more.reads.by_lease;
        self.reads.by_index += more.reads.by_index;
        self.reads.logged_times += more.reads.logged_times;
        self.votes_withheld += more.votes_withheld;
        self.bounds += more.bounds;
        self.splits.applied += more.splits.applied;
        self.splits.unborn += more.splits.unborn;
        self.splits.held_votes += more.splits.held_votes;
        self.splits.several_at_once += more.splits.several_at_once;
        self.splits.reads_turned_back += more.splits.reads_turned_back;
        self.splits.rejected += more.splits.rejected;
        self.driver += more.driver;
        self.snapshots += more.snapshots;
        self.transfers.begun += more.transfers.begun;
        self.transfers.done += more.transfers.done;
        self.transfers.refused += more.transfers.refused;
        self.membership += more.membership;
        self.ends.tasks += more.ends.tasks;
        self.ends.replicas += more.ends.replicas;
        self.ends.without_replica += more.ends.without_replica;
        self.ends.logs_removed += more.ends.logs_removed;
        self.ends.reads_turned_back += more.ends.reads_turned_back;
    }
}
