//! Corners that many runs together must have reached: one that was never reached was not tried.

use super::Coverage;
use crate::options::Options;

/// So many runs reach every corner, but for the rare ones.
const SEEDS_MIN: u64 = 100;
/// So many reach those as well.
const SEEDS_MIN_OF_RARE: u64 = 500;

/// A name, and how often runs came there.
type Corner = (&'static str, u64);

impl Coverage {
    /// The corners that so many runs with these options have not reached although they should have.
    /// Few runs may miss some by chance.
    #[must_use]
    pub fn untried(&self, seeds: u64, options: Options) -> Vec<&'static str> {
        if seeds < SEEDS_MIN {
            return Vec::new();
        }
        let mut corners = Vec::from(self.corners_of_disks());
        corners.extend(self.corners_of_bounds());
        corners.extend(self.corners_of_time());
        corners.extend(self.corners_of_spills());
        corners.extend(self.corners_of_comparisons());
        corners.extend(self.corners_of_full_disks());
        corners.extend(self.corners_of_waiting());
        corners.extend(self.corners_of_snapshots());
        if options.splits {
            corners.extend(self.corners_of_splits());
        }
        if options.transfers {
            corners.extend(self.corners_of_transfers());
        }
        if options.membership {
            corners.extend(self.corners_of_membership());
            corners.extend(self.corners_of_ends());
        }
        if seeds >= SEEDS_MIN_OF_RARE {
            corners.extend(self.rare_corners());
        }
        // It takes seconds with many requests that one leader admits.
        if seeds >= SEEDS_MIN_OF_RARE && options.splits {
            corners.push(("splits by load", self.driver.wishes.by_load));
        }
        corners.into_iter().filter(|(_, count)| *count == 0).map(|(name, _)| name).collect()
    }

    fn corners_of_disks(&self) -> [Corner; 17] {
        [
            ("reads that waited for a time in the log", self.reads.logged_times),
            ("expired rows removed", self.driver.rows_expired),
            ("torn tails", self.starts.torn_tails),
            ("checkpoints", self.checkpoints),
            ("waits before applying", self.apply_stalls),
            ("failed reads of the log", self.log.fetches_failed),
            ("segments purged", self.log.segments_purged),
            ("bytes of the log scrubbed", self.log.scrubbed_bytes),
            ("bytes of pages moved", self.pages.moved_bytes),
            ("bytes of pages trimmed", self.pages.trimmed_bytes),
            ("bytes of pages punched", self.pages.punched_bytes),
            ("bytes of deferred frees reclaimed", self.pages.reclaimed_bytes),
            ("bytes of pages scrubbed", self.pages.scrubbed_bytes),
            ("directories exchanged", self.identity.directory_swaps),
            ("stores refused", self.identity.refusals),
            ("settings taken up", self.identity.settings_taken),
            ("settings learnt by a greeting", self.identity.settings_by_greeting),
        ]
    }

    fn corners_of_full_disks(&self) -> [Corner; 6] {
        let disks = &self.driver.disks;
        [
            ("full disks", disks.full),
            ("exhausted disks", disks.exhausted),
            ("reserves given up", disks.reserves_released),
            ("puts refused by full disks", disks.puts_refused),
            ("leaders that left a full disk", disks.transfers),
            ("entries refused by exhausted disks", disks.entries_refused),
        ]
    }

    fn corners_of_bounds(&self) -> [Corner; 5] {
        [
            ("malformed messages refused", self.bounds.malformed),
            ("messages of strangers refused", self.bounds.strangers),
            ("entries refused because applying lags", self.bounds.lagging),
            ("requests refused because too much waits", self.bounds.busy),
            ("proposals refused for their size", self.bounds.too_large),
        ]
    }

    fn corners_of_spills(&self) -> [Corner; 3] {
        let spills = &self.pages.spills;
        [
            ("bytes of pages spilled", spills.written_bytes),
            ("spills refused", spills.refused),
            ("views across a spill", spills.views),
        ]
    }

    fn corners_of_comparisons(&self) -> [Corner; 4] {
        let comparisons = &self.driver.comparisons;
        [
            ("comparisons of all replicas", comparisons.complete),
            ("comparisons of some replicas", comparisons.incomplete),
            ("digests", comparisons.digests),
            ("digests given up", comparisons.given_up),
        ]
    }

    fn corners_of_time(&self) -> [Corner; 4] {
        [
            ("suspended machines", self.bounds.suspended_us),
            ("late steps", self.bounds.late_steps),
            ("reads turned back by late steps", self.bounds.reads_turned_back),
            ("wild terms refused", self.bounds.wild_terms),
        ]
    }

    fn corners_of_waiting(&self) -> [Corner; 5] {
        [
            ("messages that found a full queue", self.driver.queues.full),
            ("messages kept for a store without a link", self.driver.queues.kept),
            ("messages left in their lanes", self.driver.queues.left),
            ("requests that waited for a leader", self.driver.waits.requests),
            ("requests that were tried again", self.driver.waits.retried),
        ]
    }

    fn corners_of_snapshots(&self) -> [Corner; 5] {
        [
            ("snapshots sent", self.snapshots.sent),
            ("snapshots that were not sent", self.snapshots.unsent),
            ("snapshots staged", self.snapshots.staged),
            ("snapshots installed", self.snapshots.installed),
            ("power losses inside an installation", self.snapshots.cuts_at_arrows),
        ]
    }

    fn corners_of_splits(&self) -> [Corner; 12] {
        [
            ("splits", self.splits.applied),
            ("replicas that only the log had", self.splits.unborn),
            ("votes held for a replica", self.splits.held_votes),
            ("splits applied at once", self.splits.several_at_once),
            ("reads turned back by a split", self.splits.reads_turned_back),
            ("proposals that came after a split", self.splits.rejected),
            ("splits by size", self.driver.wishes.by_size),
            ("wishes for splits that came to nothing", self.driver.wishes.void),
            ("replicas made by a message", self.snapshots.uninitialised),
            ("starts with replicas without data", self.snapshots.uninitialised_starts),
            ("votes of replicas without data", self.snapshots.uninitialised_votes),
            ("replicas that were not admitted", self.snapshots.not_admitted),
        ]
    }

    fn corners_of_transfers(&self) -> [Corner; 2] {
        [
            ("transfers of leaders", self.transfers.done),
            ("transfers of leaders that failed", self.transfers.refused),
        ]
    }

    fn corners_of_membership(&self) -> [Corner; 5] {
        [
            ("changes of members", self.membership.changes),
            ("joint configurations", self.membership.joint),
            ("changes of members that were refused", self.membership.refused),
            ("learners that got votes", self.membership.promoted),
            ("replicas removed", self.membership.removed),
        ]
    }

    /// A read that is turned back by an end is rarer than all of these; case C27 has it.
    fn corners_of_ends(&self) -> [Corner; 8] {
        [
            ("replicas ended", self.ends.replicas),
            ("replicas whose end a root has", self.membership.ended),
            ("ends of replicas that were not there", self.ends.without_replica),
            ("logs of ended replicas removed", self.ends.logs_removed),
            ("ends confirmed", self.membership.confirmed),
            ("notices that came", self.membership.notices),
            ("notices that came late", self.membership.late),
            ("power losses inside an end", self.membership.cuts_at_ends),
        ]
    }

    fn rare_corners(&self) -> [Corner; 7] {
        let spills = &self.pages.spills;
        [
            ("proposals that a snapshot or an end has passed over", self.snapshots.undecided),
            ("scans across a spill", spills.scans),
            ("streams of snapshots across a spill", spills.streams),
            ("snapshots ended because they were old", spills.ended),
            ("snapshots discarded", self.snapshots.discarded),
            ("streams of snapshots cut", self.snapshots.cut),
            ("checkpoints without room", self.driver.disks.checkpoints_refused),
        ]
    }
}
