//! Ends of replicas: who asks for them, what is left to do until a root has them, and who is told.

use super::{ReplicaSlot, Shard};
use crate::effects::Effects;
use crate::error::Reject;
use crate::event::Event;
use crate::ids::{PeerId, RegionId};
use crate::kept_logs::KeptLog;
use crate::message::{Notice, NoticeKind};
use crate::message_filter::NUMBER_MAX;
use crate::step_context::StepContext;

impl Shard {
    /// Another store tells of a replica.
    pub(super) fn take_notice(&mut self, notice: Notice, effects: &mut Effects) {
        let Notice { region, kind, peer, .. } = notice;
        // A tombstone that high would keep each later replica of the region away for good.
        if !(1..NUMBER_MAX).contains(&peer.0) {
            self.stats.dropped.malformed += 1;
            return;
        }
        let here = self.replicas.get(&region).map(|slot| slot.replica.peer());
        if kind == NoticeKind::End {
            self.take_end_request(notice, here, effects);
        } else if here.is_some() && !self.is_ending(region) {
            self.touch(region, effects, |replica, step| replica.hear(notice, step));
        } else if kind == NoticeKind::Gone {
            self.end_uninitialised(region, peer, effects);
        }
        if kind == NoticeKind::End && self.is_ending(region) && here == Some(peer) {
            self.ends.await_end(&notice);
        }
    }

    /// A store asks for the end of a replica that its region has removed.
    fn take_end_request(&mut self, notice: Notice, here: Option<PeerId>, effects: &mut Effects) {
        let Notice { region, peer, .. } = notice;
        match here {
            // The replica here ends, for it is older, or the one that is meant. The store that asks
            // asks again.
            Some(here) if here <= peer => {
                if !self.is_ending(region) {
                    self.touch(region, effects, |replica, step| replica.hear(notice, step));
                }
            }
            Some(_) => self.ends.ask(&notice),
            None if self.unborn.contains_key(&region) => {}
            None => match self.uninitialised.get(&region).map(|slot| slot.peer()) {
                Some(slot) if slot <= peer => {
                    let is_ending = self.end_uninitialised(region, slot, effects);
                    if is_ending && slot == peer {
                        self.ends.await_end(&notice);
                    }
                }
                // A root has the end: the answer was lost.
                None if self.ends.has_ended(region, peer) && !self.ends.blocks(region) => {
                    effects.notices.push(notice.ended());
                }
                _ => {
                    // No answer that the store has given before may make the replica.
                    self.admissions.end(region, peer);
                    self.held_votes.take(region, self.now);
                    self.ends.ask(&notice);
                }
            },
        }
    }

    /// Ends the replica without data of a region, if it is this one. Returns whether it ends now.
    pub(super) fn end_uninitialised(
        &mut self,
        region: RegionId,
        peer: PeerId,
        effects: &mut Effects,
    ) -> bool {
        let (now, config) = (self.now, &self.config);
        let (stats, disks) = (&mut self.stats, &mut self.disks);
        let mut step = StepContext { now, config, effects, stats, disks };
        let slot = self.uninitialised.get_mut(&region).filter(|slot| slot.peer() == peer);
        let Some(slot) = slot else { return false };
        slot.begin_end(&mut step);
        self.uninitialised_touched.push(region);
        slot.is_ending()
    }

    /// Whether the region has a replica here that ends.
    pub(super) fn is_ending(&self, region: RegionId) -> bool {
        self.replicas.get(&region).is_some_and(|slot| slot.replica.is_ending())
    }

    /// An event for a replica that ends. It takes the completions that it waits for, and gives back
    /// what others want of it.
    pub(super) fn take_ending(&mut self, event: Event, effects: &mut Effects) {
        let region = event.region();
        let why = Reject::RegionNotFound(region);
        match event {
            Event::Persisted { .. }
            | Event::Applied { .. }
            | Event::Damaged { .. }
            | Event::Checkpointed { .. } => self.complete(event, effects),
            Event::Propose { ticket, .. }
            | Event::Read { ticket, .. }
            | Event::ChangeMembership { ticket, .. }
            | Event::CompareReplicas { ticket, .. }
            | Event::Split { ticket, .. } => effects.answers.rejected.push((ticket, why)),
            Event::TransferLeader { ticket, .. } => {
                effects.answers.rejected.extend(ticket.map(|ticket| (ticket, why)));
            }
            Event::SnapshotStaged { stage, .. } => {
                self.stats.dropped.ending += 1;
                effects.discards.push(stage);
            }
            Event::Message(_) => self.stats.dropped.ending += 1,
            // Raft sends nothing any more.
            Event::Fetched { .. }
            | Event::FetchFailed { .. }
            | Event::SnapshotBegun { .. }
            | Event::Digested { .. }
            | Event::SnapshotSent { .. } => self.stats.late_answers += 1,
            Event::Unreachable { .. } | Event::Campaign { .. } => {}
            Event::Create(_)
            | Event::Admitted(_)
            | Event::NotAdmitted { .. }
            | Event::Notice(_)
            | Event::Ended { .. } => unreachable!("it was taken before"),
        }
    }

    /// A root has an end: the log of the replica goes, the slot is free, and those that asked are
    /// told. Not before (R12): a start would find the replica again.
    pub(super) fn take_ended(&mut self, region: RegionId, peer: PeerId, effects: &mut Effects) {
        let is_this = |slot: &ReplicaSlot| slot.replica.is_ending() && slot.replica.peer() == peer;
        let mut has_log = false;
        if self.replicas.get(&region).is_some_and(|slot| is_this(slot))
            && let Some(slot) = self.replicas.remove(&region)
        {
            let is_asked = slot.replica.has_asked_for_end();
            assert!(is_asked, "region {region}: an end that was not asked for");
            self.timers.remove(region, slot.due);
            self.kept_logs.note(region, KeptLog::default());
            has_log = true;
        }
        let slot = self.uninitialised.get(&region);
        if slot.is_some_and(|slot| slot.is_ending() && slot.peer() == peer) {
            self.uninitialised.remove(&region);
            has_log = true;
        }
        // R12: else the slot has a replica whose rows are gone, and others were told that it is.
        let left = self.replicas.get(&region).map(|slot| slot.replica.peer());
        let left = left.max(self.uninitialised.get(&region).map(|slot| slot.peer()));
        assert!(left.is_none_or(|left| left > peer), "region {region}: {left:?} outlives {peer}");
        // A question of before would be answered from before.
        self.admissions.end(region, peer);
        let ended = self.ends.ended(region, peer);
        if has_log || ended.has_log {
            effects.log.removals.push(peer);
        }
        self.stats.replicas_ended += u64::from(has_log);
        effects.notices.extend(ended.answers);
    }
}
