//! Log compaction: the first entry that is still needed here, or by a replica that is waited for.
//!
//! An entry goes when a *durable* root of the page store has it (later ones are lost there in a
//! crash, and applied again from the log), and no replica that is waited for lacks it. The leader
//! knows how far the log of each replica is on disk. It waits for one that is behind as long as the
//! entries that this one lacks stay within an allowance; beyond it the replica gets a snapshot. For
//! a replica with a snapshot on its way it keeps the entries from the snapshot on, within the same
//! allowance, and within twice as much for the next one if the first was given up.
//!
//! The leader sends the least entry that is needed, as the *floor*, with every message; the others
//! keep what is above. They could do with less: an entry in their durable rows is kept only for the
//! case that they lead.
//!
//! The rule and its price: `docs/decisions/0035-log-gc-by-need.md`.

use crate::ids::{Index, PeerId};
use crate::kept_logs::KeptLog;
use crate::log_window::LogWindow;

/// Entries kept below the bound while a region is written to.
///
/// Raft 0.7 can look a little below what a follower has acknowledged when an old rejection arrives
/// late. A region at rest has nothing under way, keeps nothing and does not hold back old segments.
const KEEP_COUNT: u64 = 64;

/// Entries by which the floor must have moved before a slow follower's progress is worth one more
/// compaction record.
const STEP_COUNT: u64 = 256;

/// How often the allowance of a snapshot's follower is doubled at most.
const DOUBLINGS_MAX: u32 = 6;

/// The bounds of the log: the last durable entry here, and what others need.
pub(crate) struct Compactor {
    durable: Index,
    floor: Index,
    /// The least entry that a replica which is waited for has; none if this one does not lead.
    needed: Option<Index>,
    /// Entries up to here are kept for no other replica: the shard keeps too much.
    released: Index,
    /// A leader's. Few, and mostly in every leader: a map would take more room.
    followers: Vec<(PeerId, FollowerNeed)>,
    kept: KeptLog,
}

#[derive(Default)]
struct FollowerNeed {
    /// Ticks since the last message.
    silent_ticks: u32,
    /// It has no data, and asks for a snapshot: no entry is of use to it.
    wants_snapshot: bool,
    /// A snapshot of this entry is on its way, or arrived and was not acknowledged.
    snapshot: Option<Index>,
    doublings: u32,
    /// Its last entry when it was given up. It is waited for again once it has more.
    given_up: Option<Index>,
}

/// The measure of the needs of others.
pub(crate) struct LogMeasure<'a> {
    pub(crate) window: &'a LogWindow,
    pub(crate) applied: Index,
    /// Bytes that are kept for a replica.
    pub(crate) allowance: u64,
    /// The most that it may grow to.
    pub(crate) allowance_max: u64,
    /// A replica is silent after so many ticks without a message.
    pub(crate) silent_ticks: u32,
}

impl Compactor {
    /// For a replica whose page store was found with `applied`.
    pub(crate) fn new(applied: Index) -> Self {
        Self {
            durable: applied,
            floor: Index(0),
            needed: None,
            released: Index(0),
            followers: vec![],
            kept: KeptLog::default(),
        }
    }

    pub(crate) fn floor(&self) -> Index {
        self.floor
    }

    /// The part of the log that is kept for others.
    pub(crate) fn kept(&self) -> KeptLog {
        self.kept
    }

    /// The leader needs no entries up to here.
    pub(crate) fn raise_floor(&mut self, floor: Index) {
        self.floor = self.floor.max(floor);
    }

    /// The page store holds the region durably up to here.
    pub(crate) fn raise_durable(&mut self, durable: Index) {
        self.durable = self.durable.max(durable);
    }

    /// Another leader, or none: what was known of the others is not known any more.
    pub(crate) fn restart(&mut self) {
        self.followers.clear();
        self.needed = None;
    }

    /// Members may have gone: keeps what is known of those for which `is_listed` holds.
    pub(crate) fn retain(&mut self, is_listed: impl Fn(PeerId) -> bool) {
        self.followers.retain(|(peer, _)| is_listed(*peer));
    }

    /// Time has passed, once, for a leader.
    pub(crate) fn tick(&mut self) {
        for (_, follower) in &mut self.followers {
            follower.silent_ticks = follower.silent_ticks.saturating_add(1);
        }
    }

    /// A message of a follower was received.
    pub(crate) fn note_heard(&mut self, from: PeerId, wants_snapshot: bool) {
        let follower = self.follower(from);
        follower.silent_ticks = 0;
        follower.wants_snapshot |= wants_snapshot;
    }

    /// A snapshot goes to a follower, or its stream begins: it will have all up to `index`.
    pub(crate) fn note_snapshot(&mut self, to: PeerId, index: Index) {
        let follower = self.follower(to);
        follower.snapshot = follower.snapshot.max(Some(index));
        follower.given_up = None;
    }

    /// It will not arrive.
    pub(crate) fn note_failed_snapshot(&mut self, to: PeerId) {
        self.follower(to).snapshot = None;
    }

    /// Weighs the needs of a leader's followers: each one's log is on disk up to the entry that is
    /// told with it. `me` counts as well: `own` is on its disk.
    pub(crate) fn weigh_followers(
        &mut self,
        own: Index,
        matched: impl Iterator<Item = (PeerId, Index)>,
        measure: &LogMeasure<'_>,
    ) {
        let durable = self.durable.min(measure.applied);
        let mut needed = own;
        self.kept = KeptLog::default();
        for (peer, matched) in matched {
            let follower = self.follower(peer);
            let Some((from, kept)) = follower.weigh(peer, matched, durable, measure) else {
                continue;
            };
            needed = needed.min(from);
            if kept.bytes > self.kept.bytes {
                self.kept = kept;
            }
        }
        assert!(needed >= measure.window.truncated() || needed == own, "{needed} is gone already");
        self.needed = Some(needed);
    }

    fn follower(&mut self, peer: PeerId) -> &mut FollowerNeed {
        let known = self.followers.iter().position(|(known, _)| *known == peer);
        let at = known.unwrap_or_else(|| {
            self.followers.push((peer, FollowerNeed::default()));
            self.followers.len() - 1
        });
        &mut self.followers[at].1
    }

    /// Weighs the log of a replica that does not lead.
    pub(crate) fn weigh_floor(&mut self, measure: &LogMeasure<'_>) {
        let durable = self.durable.min(measure.applied);
        let from = self.floor.max(self.released).max(measure.window.truncated());
        let bytes = if from < durable { measure.window.log_bytes(from, durable) } else { 0 };
        self.needed = None;
        self.kept = KeptLog { bytes, is_silent: false, follower: None };
    }

    /// The least entry that is needed by others, as a leader tells it.
    pub(crate) fn needed(&self) -> Option<Index> {
        self.needed
    }

    /// Keeps nothing any more for the replica that most is kept for.
    pub(crate) fn give_up(&mut self) {
        match self.kept.follower {
            Some((peer, had)) => self.follower(peer).given_up = Some(had),
            None => self.released = self.durable,
        }
    }

    /// The first entry to be kept, if there is something to drop.
    pub(crate) fn plan(&self, truncated: Index, applied: Index, last: Index) -> Option<Index> {
        // The event of a checkpoint may arrive before that of the entries which it made durable.
        let durable = self.durable.min(applied);
        // Below both: a restart applies again from the durable index on, and a replica that is
        // waited for has its entries from the log (docs/decisions/0035-log-gc-by-need.md).
        let bound = durable.min(self.needed.unwrap_or(self.floor.max(self.released)));
        let worth = bound == durable || bound.0 >= truncated.0 + STEP_COUNT;
        // An idle region keeps nothing, so that it does not hold an old segment.
        let keep = if bound == last { 0 } else { KEEP_COUNT };
        let target = Index(bound.0.saturating_sub(keep));
        assert!(target <= durable, "{target} is dropped, and {durable} is durable");
        (worth && target > truncated).then_some(Index(target.0 + 1))
    }
}

impl FollowerNeed {
    /// The last entry that it has, and what is kept for it, if it is waited for.
    fn weigh(
        &mut self,
        peer: PeerId,
        matched: Index,
        durable: Index,
        measure: &LogMeasure<'_>,
    ) -> Option<(Index, KeptLog)> {
        if self.snapshot.is_some_and(|index| matched >= index) {
            (self.snapshot, self.doublings) = (None, 0);
        }
        self.wants_snapshot &= matched == Index(0);
        if self.given_up.is_some_and(|had| matched <= had) {
            return None;
        }
        self.given_up = None;
        let truncated = measure.window.truncated();
        let from = match self.snapshot {
            Some(index) => index.max(matched),
            None if self.wants_snapshot => return None,
            // It has not answered this leader: it may lack all that is here.
            None if matched == Index(0) => truncated,
            None => matched,
        };
        // Entries that it lacks are gone already.
        if from < truncated {
            return None;
        }
        let bytes = if from < durable { measure.window.log_bytes(from, durable) } else { 0 };
        let has_snapshot = self.snapshot.is_some();
        let doublings = if has_snapshot { self.doublings } else { 0 };
        let allowance = measure.allowance.saturating_mul(1 << doublings);
        if bytes > allowance.min(measure.allowance_max) {
            self.given_up = Some(matched);
            if self.snapshot.take().is_some() {
                self.doublings = (self.doublings + 1).min(DOUBLINGS_MAX);
            }
            return None;
        }
        let is_silent = self.silent_ticks >= measure.silent_ticks;
        // A snapshot that is on its way would be in vain without the entries behind it.
        let follower = (!has_snapshot).then_some((peer, matched));
        let bytes = if has_snapshot { 0 } else { bytes };
        Some((from, KeptLog { bytes, is_silent, follower }))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use raft::eraftpb::Entry;

    use super::*;
    use crate::config::WindowConfig;
    use crate::descriptor::{Descriptor, Epoch, Peer, RemovedPeers, Space};
    use crate::ids::{RegionId, StoreId};
    use crate::recovered_replica::RecoveredReplica;

    const KIB: u64 = 1024;
    const FAST: PeerId = PeerId(2);
    const SLOW: PeerId = PeerId(3);

    /// A log of entries of a KiB each.
    fn window(last: u64) -> LogWindow {
        let descriptor = Descriptor {
            removed: RemovedPeers::default(),
            id: RegionId(1),
            space: Space::Raw,
            start: Bytes::new(),
            end: Bytes::new(),
            epoch: Epoch::default(),
            peers: vec![Peer { id: PeerId(1), store: StoreId(1) }.into()],
        };
        let found = RecoveredReplica::fresh(descriptor, PeerId(1));
        let mut window = LogWindow::new(&found, WindowConfig::default());
        let data = Bytes::from(vec![0; 1024 - 32]);
        let entry = |index| Entry { index, term: 1, data: data.clone(), ..Entry::default() };
        window.append(&(1..=last).map(entry).collect::<Vec<_>>(), Index(0));
        window
    }

    fn measure(window: &LogWindow) -> LogMeasure<'_> {
        LogMeasure {
            window,
            applied: window.last(),
            allowance: 1000 * KIB,
            allowance_max: 4000 * KIB,
            silent_ticks: 10,
        }
    }

    /// The first entry that is kept; all of the log is durable.
    fn weigh(compactor: &mut Compactor, window: &LogWindow, slow: u64) -> u64 {
        let last = window.last();
        compactor.raise_durable(last);
        let matched = [(FAST, last), (SLOW, Index(slow))];
        compactor.weigh_followers(last, matched.into_iter(), &measure(window));
        compactor.needed().unwrap().0 + 1
    }

    fn plan(durable: u64, floor: u64, truncated: u64, last: u64) -> Option<u64> {
        let mut compactor = Compactor::new(Index(0));
        compactor.raise_durable(Index(durable));
        compactor.raise_floor(Index(floor));
        compactor.plan(Index(truncated), Index(last), Index(last)).map(|first| first.0)
    }

    #[test]
    fn neither_bound_is_passed_and_a_tail_is_kept_under_load() {
        assert_eq!(plan(1000, 5000, 0, 5000), Some(1000 - 64 + 1));
        assert_eq!(plan(5000, 1000, 0, 5000), Some(1000 - 64 + 1));
        assert_eq!(plan(5000, 0, 0, 5000), None);
        assert_eq!(plan(0, 5000, 0, 5000), None);
    }

    #[test]
    fn a_region_at_rest_keeps_nothing() {
        assert_eq!(plan(50, 50, 0, 50), Some(51));
        assert_eq!(plan(50, 50, 50, 50), None);
        assert_eq!(plan(50, 49, 0, 50), None, "one replica lacks the last entry");
    }

    #[test]
    fn a_creeping_floor_is_followed_in_steps() {
        assert_eq!(plan(5000, 1100, 1000, 5000), None);
        assert_eq!(plan(5000, 1256, 1000, 5000), Some(1256 - 64 + 1));
    }

    #[test]
    fn a_checkpoint_heard_of_before_its_applying_counts_as_far_as_applied() {
        let mut compactor = Compactor::new(Index(0));
        compactor.raise_durable(Index(10));
        compactor.raise_floor(Index(10));
        assert_eq!(compactor.plan(Index(0), Index(4), Index(4)), Some(Index(5)));
    }

    #[test]
    fn a_follower_is_waited_for_within_the_allowance() {
        let window = window(3000);
        let mut compactor = Compactor::new(Index(0));
        assert_eq!(weigh(&mut compactor, &window, 2500), 2501);
        let KeptLog { bytes, follower, .. } = compactor.kept();
        assert!(bytes.abs_diff(500 * KIB) <= 64 * KIB, "{bytes}");
        assert_eq!(follower, Some((SLOW, Index(2500))));
        assert_eq!(weigh(&mut compactor, &window, 1500), 3001, "it gets a snapshot");
        assert_eq!(compactor.kept(), KeptLog::default());
        assert_eq!(weigh(&mut compactor, &window, 1500), 3001, "and is not waited for again");
        assert_eq!(weigh(&mut compactor, &window, 2600), 2601, "until it has caught up");
    }

    #[test]
    fn one_that_has_not_answered_may_lack_all_but_data_that_it_asks_for() {
        let mut window = window(900);
        let mut compactor = Compactor::new(Index(0));
        assert_eq!(weigh(&mut compactor, &window, 0), 1);
        compactor.note_heard(SLOW, true);
        assert_eq!(weigh(&mut compactor, &window, 0), 901, "it asks for a snapshot");
        window.compact(Index(501));
        let mut compactor = Compactor::new(Index(0));
        assert_eq!(weigh(&mut compactor, &window, 0), 501);
        assert_eq!(weigh(&mut compactor, &window, 400), 901, "what it lacks is gone");
    }

    #[test]
    fn the_log_behind_a_snapshot_is_kept_until_it_is_acknowledged() {
        let window = window(3000);
        let mut compactor = Compactor::new(Index(0));
        compactor.note_heard(SLOW, true);
        compactor.note_snapshot(SLOW, Index(2400));
        assert_eq!(weigh(&mut compactor, &window, 0), 2401);
        compactor.note_snapshot(SLOW, Index(2500));
        assert_eq!(weigh(&mut compactor, &window, 0), 2501, "the view has more");
        assert_eq!(compactor.kept().bytes, 0, "nothing else may take it away");
        assert_eq!(weigh(&mut compactor, &window, 2600), 2601);
        compactor.note_snapshot(SLOW, Index(2700));
        compactor.note_failed_snapshot(SLOW);
        assert_eq!(weigh(&mut compactor, &window, 0), 1 + 3000, "given up: it lacks too much");
    }

    #[test]
    fn the_snapshot_after_one_that_was_too_slow_has_twice_the_allowance() {
        let window = window(5000);
        let mut compactor = Compactor::new(Index(0));
        for (index, kept) in [(3900, 5001), (3200, 3201), (2500, 5001), (1500, 1501)] {
            // It is given up if more is behind it than the allowance, which doubles then.
            compactor.note_snapshot(SLOW, Index(index));
            assert_eq!(weigh(&mut compactor, &window, 0), kept, "{index}");
            compactor.note_failed_snapshot(SLOW);
        }
        compactor.note_snapshot(SLOW, Index(4100));
        weigh(&mut compactor, &window, 4200);
        compactor.note_snapshot(SLOW, Index(3900));
        assert_eq!(weigh(&mut compactor, &window, 0), 5001, "a success begins anew");
    }

    #[test]
    fn silence_counts_in_ticks_and_a_shard_may_take_the_log_away() {
        let window = window(900);
        let mut compactor = Compactor::new(Index(0));
        weigh(&mut compactor, &window, 300);
        (0..9).for_each(|_| compactor.tick());
        weigh(&mut compactor, &window, 300);
        assert!(!compactor.kept().is_silent);
        compactor.tick();
        weigh(&mut compactor, &window, 300);
        assert!(compactor.kept().is_silent);
        compactor.note_heard(SLOW, false);
        weigh(&mut compactor, &window, 300);
        assert!(!compactor.kept().is_silent);
        compactor.give_up();
        assert_eq!(weigh(&mut compactor, &window, 300), 901);
        assert_eq!(weigh(&mut compactor, &window, 301), 302, "it moves, and has its entries");
    }

    #[test]
    fn a_follower_keeps_what_its_leader_tells_unless_the_shard_keeps_too_much() {
        let window = window(900);
        let mut compactor = Compactor::new(Index(0));
        compactor.raise_durable(Index(900));
        compactor.raise_floor(Index(300));
        compactor.weigh_floor(&measure(&window));
        let kept = compactor.kept().bytes;
        assert!(kept.abs_diff(600 * KIB) <= 64 * KIB, "{kept}");
        compactor.give_up();
        compactor.weigh_floor(&measure(&window));
        assert_eq!(compactor.kept(), KeptLog::default());
        assert_eq!(compactor.plan(Index(0), Index(900), Index(900)), Some(Index(901)));
    }
}
