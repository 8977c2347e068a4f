//! Regions without a replica here: asked about, held, uninitialised, unborn.

use super::Shard;
use crate::descriptor::{Descriptor, Epoch};
use crate::effects::{Effects, NewReplica};
use crate::error::{CreateReplicaError, Reject};
use crate::event::{Event, NotAdmitted};
use crate::ids::{PeerId, RegionId};
use crate::lease::Promise;
use crate::message::{Envelope, MessageKind, Notice, NoticeKind};
use crate::message_filter;
use crate::persistence::EarlierWrites;
use crate::recovered_replica::{RecoveredReplica, UnbornReplica, UninitialisedReplica};
use crate::step_context::StepContext;
use crate::uninitialised::{InitialisedReplica, UninitialisedSlot};

impl Shard {
    /// Keeps what the log has of a replica until the split that made it is applied again.
    ///
    /// # Errors
    ///
    /// If the region is here already.
    pub fn keep_unborn(&mut self, unborn: UnbornReplica) -> Result<(), CreateReplicaError> {
        let region = unborn.region;
        self.check_free(region)?;
        self.unborn.insert(region, unborn);
        Ok(())
    }

    /// Takes in a replica without data that was found in the log.
    ///
    /// # Errors
    ///
    /// If the region is here already.
    pub fn keep_uninitialised(
        &mut self,
        found: UninitialisedReplica,
    ) -> Result<(), CreateReplicaError> {
        let region = found.region;
        self.check_free(region)?;
        self.uninitialised.insert(region, UninitialisedSlot::recovered(found));
        Ok(())
    }

    pub(super) fn check_free(&self, region: RegionId) -> Result<(), CreateReplicaError> {
        let is_here = self.replicas.contains_key(&region)
            || self.unborn.contains_key(&region)
            || self.uninitialised.contains_key(&region);
        if is_here { Err(CreateReplicaError::Exists(region)) } else { Ok(()) }
    }

    /// The replicas without data that are here, in order of their regions.
    pub fn uninitialised(&self) -> impl Iterator<Item = (RegionId, PeerId)> + '_ {
        self.uninitialised.iter().map(|(region, slot)| (*region, slot.peer()))
    }

    /// Creates a replica that a split has made.
    pub(super) fn create_new(&mut self, new: NewReplica, effects: &mut Effects) {
        let NewReplica { descriptor, peer, campaigns, is_damaged } = new;
        let region = descriptor.id;
        if self.is_dead_child(region, peer) {
            return self.end_child(region, peer, effects);
        }
        let (found, earlier) = self.find_child(descriptor, peer, effects);
        let found = RecoveredReplica { is_damaged, ..found };
        // With this state it has answered no leader, so none counts on it: with the wait of a
        // start, a split would hold up its keys for an election timeout.
        let is_silent = found.hard_state == RecoveredReplica::hard_state_of_split();
        let promise = if is_silent {
            Promise::none()
        } else {
            Promise::at_start(found.hard_state.term, self.config.election_ticks)
        };
        self.insert(found, promise, earlier, campaigns)
            .unwrap_or_else(|error| panic!("a split has made what cannot be: {error}"));
        if let Some(asked) = self.held_votes.take(region, self.now) {
            self.stats.held_votes += 1;
            self.take(Event::Message(asked), effects);
        }
    }

    /// Whether a replica that a split makes was removed before (R17): its slot has a later one, or
    /// its end is under way or was a moment ago. The store knows of older ends.
    fn is_dead_child(&self, region: RegionId, peer: PeerId) -> bool {
        let slot = self.uninitialised.get(&region);
        let is_later = slot.is_some_and(|slot| slot.peer() > peer);
        is_later || self.is_ending_without_data(region, peer) || self.ends.covers(region, peer)
    }

    fn is_ending_without_data(&self, region: RegionId, peer: PeerId) -> bool {
        let slot = self.uninitialised.get(&region);
        slot.is_some_and(|slot| slot.peer() == peer && slot.is_ending())
    }

    /// The split has made rows and a birth of a replica that was removed: they go again.
    fn end_child(&mut self, region: RegionId, peer: PeerId, effects: &mut Effects) {
        // The task of that end is carried out behind the split, or the store would not have made
        // the rows. It takes them along.
        if self.is_ending_without_data(region, peer) {
            return;
        }
        if self.ends.has_ended(region, peer) {
            effects.log.removals.push(peer);
        } else {
            self.ends.begin(region, peer, true);
        }
    }

    /// The child of a split as it goes on from what is here of it.
    fn find_child(
        &mut self,
        descriptor: Descriptor,
        peer: PeerId,
        effects: &mut Effects,
    ) -> (RecoveredReplica, EarlierWrites) {
        let region = descriptor.id;
        if let Some(unborn) = self.unborn.remove(&region) {
            let here = unborn.peer;
            assert_eq!(here, peer, "region {region}: the log has another replica than the split");
            return (unborn.born(descriptor), EarlierWrites::default());
        }
        let of_split = RecoveredReplica::hard_state_of_split();
        let slot = self.uninitialised.remove(&region);
        let Some(slot) = slot else {
            let found = RecoveredReplica::of_split(descriptor, peer, of_split);
            return (found, EarlierWrites::default());
        };
        let here = slot.peer();
        let is_same = here == peer;
        let (now, config) = (self.now, &self.config);
        let (stats, disks) = (&mut self.stats, &mut self.disks);
        let mut step = StepContext { now, config, effects, stats, disks };
        let (hard_state, earlier) = slot.into_child(&mut step);
        // The vote that it has given counts on. An older one was made by a message for a replica
        // that does not exist: the split names the first one of this store. It ends here.
        let hard_state = if is_same { of_split.merge(hard_state) } else { of_split };
        if !is_same {
            self.ends.begin(region, here, true);
        }
        (RecoveredReplica::of_split(descriptor, peer, hard_state), earlier)
    }

    /// An event for a region that has no replica here.
    pub(super) fn take_absent(&mut self, region: RegionId, event: Event, effects: &mut Effects) {
        match event {
            Event::Message(envelope) if !self.uninitialised.contains_key(&region) => {
                self.stats.dropped.misrouted += 1;
                self.ask_about(envelope, effects);
            }
            Event::Propose { ticket, .. }
            | Event::Read { ticket, .. }
            | Event::ChangeMembership { ticket, .. }
            | Event::CompareReplicas { ticket, .. }
            | Event::Split { ticket, .. } => {
                effects.answers.rejected.push((ticket, Reject::RegionNotFound(region)));
            }
            Event::TransferLeader { ticket, .. } => {
                let why = Reject::RegionNotFound(region);
                effects.answers.rejected.extend(ticket.map(|ticket| (ticket, why)));
            }
            // A checkpoint may have the rows of a split before its replica is here, which begins
            // with the index that it reports.
            Event::Checkpointed { installed: None, .. }
            | Event::Unreachable { .. }
            | Event::Campaign { .. } => {}
            event if event.answered_replica().is_some() => self.stats.late_answers += 1,
            event => self.take_uninitialised(region, event, effects),
        }
    }

    fn take_uninitialised(&mut self, region: RegionId, event: Event, effects: &mut Effects) {
        if let Event::Message(envelope) = &event {
            self.end_older(region, envelope, effects);
        }
        let (now, config) = (self.now, &self.config);
        let Some(slot) = self.uninitialised.get_mut(&region) else {
            match event {
                // Others may send what they like.
                Event::SnapshotStaged { stage, .. } => {
                    self.stats.dropped.misrouted += 1;
                    return effects.discards.push(stage);
                }
                // Regions never leave a shard, so this completes an effect of another one, which
                // would wait for it for ever.
                event => panic!("{event:?} answers nothing that region {region} asked for"),
            }
        };
        let (stats, disks) = (&mut self.stats, &mut self.disks);
        let mut step = StepContext { now, config, effects, stats, disks };
        let mut initialised = None;
        match event {
            Event::Message(envelope) => slot.receive(&envelope, &mut step),
            Event::SnapshotStaged { envelope, stage } => {
                slot.snapshot_staged(envelope, stage, &mut step);
            }
            Event::Persisted { number, .. } => initialised = slot.persisted(number),
            Event::Checkpointed { installed: Some(stage), .. } => slot.rooted(stage),
            event => panic!("{event:?} answers nothing that region {region} asked for"),
        }
        match initialised {
            None => self.uninitialised_touched.push(region),
            Some(initialised) => self.initialise(initialised, effects),
        }
    }

    /// A message for a later replica ends one without data: that has no configuration which could
    /// be the later one.
    fn end_older(&mut self, region: RegionId, envelope: &Envelope, effects: &mut Effects) {
        let Some(here) = self.uninitialised.get(&region).map(UninitialisedSlot::peer) else {
            return;
        };
        if envelope.to.id > here && message_filter::check_unknown(envelope).is_ok() {
            self.end_uninitialised(region, here, effects);
        }
    }

    /// A replica has got its data, durably.
    fn initialise(&mut self, initialised: InitialisedReplica, effects: &mut Effects) {
        let InitialisedReplica { replica, acknowledgement, writes } = initialised;
        let descriptor = replica.descriptor.clone();
        self.uninitialised.remove(&descriptor.id);
        // It has made no promise, but it may have given a vote, whose leader it does not know yet.
        let promise = Promise::at_start(replica.hard_state.term, self.config.election_ticks);
        self.insert(replica, promise, writes, false)
            .unwrap_or_else(|error| panic!("a snapshot has made what cannot be: {error}"));
        self.stats.snapshots_installed += 1;
        effects.ranges.push(descriptor);
        effects.messages.push(acknowledgement);
    }

    /// Turns what came of the step's events into effects.
    pub(super) fn finish_uninitialised(&mut self, effects: &mut Effects) {
        let (now, config) = (self.now, &self.config);
        let (stats, disks) = (&mut self.stats, &mut self.disks);
        let mut step = StepContext { now, config, effects, stats, disks };
        for region in self.uninitialised_touched.drain(..) {
            // A split may have made it a replica.
            if let Some(slot) = self.uninitialised.get_mut(&region) {
                slot.finish(&mut step);
            }
        }
    }

    /// A message for a region that is not here: may it make a replica?
    fn ask_about(&mut self, envelope: Envelope, effects: &mut Effects) {
        let region = envelope.region;
        let may_make = match envelope.message.kind {
            MessageKind::RequestVote | MessageKind::RequestPreVote => {
                self.held_votes.hold(envelope.clone(), self.now);
                true
            }
            MessageKind::Append | MessageKind::Heartbeat => true,
            _ => false,
        };
        // An unborn replica has its state in the log, and waits for its split.
        let is_sound = message_filter::check_unknown(&envelope).is_ok();
        // One that ends blocks its slot.
        let is_free = !self.unborn.contains_key(&region) && !self.ends.blocks(region);
        if may_make && is_sound && is_free {
            let is_asked = self.admissions.ask(region, self.now);
            effects.unknown.extend(is_asked.then_some(envelope));
        }
    }

    /// A message may make a replica.
    pub(super) fn admit(&mut self, envelope: Envelope, effects: &mut Effects) {
        let region = envelope.region;
        let ended = self.admissions.answered(region);
        let held = self.held_votes.take(region, self.now).filter(|held| *held != envelope);
        // The store has answered before an end that others may know of by now.
        if envelope.to.id <= ended || self.ends.blocks(region) {
            self.stats.dropped.ending += 1;
            return;
        }
        // A split may have made it meanwhile.
        if self.check_free(region).is_ok() {
            let slot = UninitialisedSlot::new(region, envelope.to.id);
            self.uninitialised.insert(region, slot);
            self.uninitialised_touched.push(region);
            self.stats.uninitialised += 1;
        }
        for envelope in [Some(envelope), held].into_iter().flatten() {
            self.take(Event::Message(envelope), effects);
        }
    }

    /// A message makes no replica.
    pub(super) fn refuse(&mut self, envelope: Envelope, why: NotAdmitted, effects: &mut Effects) {
        let region = envelope.region;
        match why {
            // The vote is kept: mostly the parent has not applied the split yet.
            NotAdmitted::Held => self.admissions.held(region, self.now),
            NotAdmitted::Gone => {
                self.admissions.answered(region);
                self.held_votes.take(region, self.now);
                // R12: no store hears of an end that no root has.
                if !self.ends.blocks(region) && self.check_free(region).is_ok() {
                    let (from, to) = (envelope.to.store, envelope.from.store);
                    let (kind, peer, epoch) = (NoticeKind::Ended, envelope.to.id, Epoch::default());
                    effects.notices.push(Notice { region, from, to, kind, peer, epoch });
                }
            }
        }
        // A split may have made it meanwhile.
        if self.replicas.contains_key(&region) {
            self.take(Event::Message(envelope), effects);
        }
    }
}
