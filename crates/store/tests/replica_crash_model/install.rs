//! A snapshot comes in: it is taken, its rows are published, a root has them, the log is reset.

use crate::log::Item;
use crate::rules::BrokenRule;
use crate::store::{InstallStep, LocalReplica, ModelStore};
use crate::truth::RegionId;

impl ModelStore {
    /// Raft takes a snapshot, if nothing of the replica is under way.
    pub(crate) fn take_snapshot(&mut self) {
        let is_quiet = |own: &LocalReplica| own.is_free() && own.unsynced.is_empty();
        let Some(region) = self.pick(is_quiet) else { return };
        let truth = &self.truth[&region];
        let Some(own) = self.replica(region) else { return };
        let least = own.last().max(own.state.commit) + 1;
        let least = least.max(truth.since);
        if truth.replica != own.id || truth.is_removed || least > truth.last() {
            return;
        }
        // Committed entries are applied first: a split among them makes a child, maybe an unborn
        // one.
        let is_behind = own.is_initialised && own.applied < own.state.commit;
        let waits = is_behind && !self.breaks(BrokenRule::ParentInstallsBeforeBirth);
        let mut unheard = self.unheard.iter();
        let hears = unheard.any(|split| split.parent.1 == own.id);
        if waits || hears && !self.breaks(BrokenRule::SnapshotBeforeSplitHeard) {
            self.count("snapshots that waited");
            return;
        }
        let id = own.id;
        // Often from a leader that is behind, which may be from before a split.
        let index = match self.rng.bool() {
            true => least,
            false => self.rng.u32(least..=truth.last()),
        };
        let (start, end) = (truth.start, truth.at(index).0);
        if self.is_held(region, (start, end)) {
            self.count("ranges held");
            if !self.breaks(BrokenRule::OverlapInstalled) {
                return;
            }
        }
        let is_later_term = self.rng.bool();
        let own = self.replica_mut(region);
        own.installing = Some((index, InstallStep::Taken));
        if is_later_term {
            own.state.term += 1;
            own.state.vote = 0;
        }
        if !own.is_initialised {
            (own.start, own.end) = (start, end);
        }
        self.note(|| format!("{id} takes the snapshot at {index}"));
        self.count("snapshots");
    }

    /// One more step of a snapshot that comes in.
    pub(crate) fn install(&mut self) {
        let Some(region) = self.pick(|own| own.installing.is_some()) else { return };
        let own = self.replica_mut(region);
        match own.installing {
            Some((_, InstallStep::Taken)) => self.publish_snapshot(region),
            Some((_, InstallStep::Published)) => self.checkpoint(),
            Some((_, InstallStep::InRoot)) => {
                own.installing = None;
                let (id, index) = (own.id, own.applied);
                if !self.breaks(BrokenRule::ResetBeforeRoot) {
                    self.reset_log(region);
                }
                self.promises.entries.entry(id).or_default().insert(index);
                self.count("installed");
            }
            None => {}
        }
    }

    /// One transaction: the rows of the snapshot instead of those that were there.
    fn publish_snapshot(&mut self, region: RegionId) {
        let truth = self.truth[&region].clone();
        let own = self.replica_mut(region);
        let (index, _) = own.installing.expect("it takes a snapshot");
        let (end, rows) = truth.at(index);
        // Parts that were split off are no region's here until their own snapshots come.
        let (from, to) = (own.start, own.end.max(end));
        own.installing = Some((index, InstallStep::Published));
        (own.is_initialised, own.start, own.end) = (true, truth.start, end);
        (own.applied, own.state.commit) = (index, index);
        own.log.clear();
        let id = own.id;
        self.rows.retain(|key, _| *key < from || *key >= to);
        self.rows.extend(rows);
        if self.breaks(BrokenRule::ResetBeforeRoot) {
            self.reset_log(region);
        }
        if self.breaks(BrokenRule::ResetBeforeRoot)
            || self.breaks(BrokenRule::AcknowledgedBeforeRoot)
        {
            self.promises.entries.entry(id).or_default().insert(index);
        }
        self.note(|| format!("{id} publishes the snapshot at {index}"));
    }

    fn reset_log(&mut self, region: RegionId) {
        let loses_vote = self.breaks(BrokenRule::VoteLostAtReset);
        let own = self.replica_mut(region);
        if loses_vote {
            (own.state.term, own.state.vote) = (5, 0);
        }
        let batch = vec![own.item(Item::Reset(own.applied)), own.state_item()];
        self.log.write(batch);
        self.sync();
    }
}
