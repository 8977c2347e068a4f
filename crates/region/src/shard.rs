//! Many regions, one step: the batch of effects that comes out is what one log write is made of.

use std::collections::BTreeMap;

use crate::admissions::Admissions;
use crate::config::Config;
use crate::descriptor::Descriptor;
use crate::disk_usage::{ShardDisks, StoreDisks};
use crate::effects::Effects;
use crate::ending_replicas::EndingReplicas;
use crate::error::CreateReplicaError;
use crate::event::Event;
use crate::held_votes::HeldVotes;
use crate::ids::{PeerId, RegionId, Ticket, Time};
use crate::kept_logs::KeptLogs;
use crate::lease::Promise;
use crate::message::{Envelope, MessageKind};
use crate::persistence::EarlierWrites;
use crate::recovered_replica::{RecoveredReplica, UnbornReplica};
use crate::replica::Replica;
use crate::status::{Stats, Status};
use crate::step_context::StepContext;
use crate::timers::Timers;
use crate::uninitialised::UninitialisedSlot;

mod absent;
mod ends;
mod reconfigure;

/// The replicas that one thread drives. Makes no call to the world: events and the time go in,
/// effects come out. Two shards that are given the same do the same.
pub struct Shard {
    config: Config,
    /// Boxed: a search passes by many of them, and is not to pass over their bytes.
    replicas: BTreeMap<RegionId, Box<ReplicaSlot>>,
    /// Replicas of the log whose splits are applied again first. They take no message: what they
    /// know of their regions is not here yet.
    unborn: BTreeMap<RegionId, UnbornReplica>,
    /// Replicas without data. They have no timer.
    uninitialised: BTreeMap<RegionId, UninitialisedSlot>,
    /// Those with events since they were last finished; maybe doubled.
    uninitialised_touched: Vec<RegionId>,
    /// Questions to the store about regions that are not here.
    admissions: Admissions,
    /// Votes that were asked of regions that are not here.
    held_votes: HeldVotes,
    /// Ends that the store was asked for.
    ends: EndingReplicas,
    timers: Timers,
    kept_logs: KeptLogs,
    /// Regions with events since they were last finished.
    touched: Vec<RegionId>,
    now: Time,
    stats: Stats,
    disks: ShardDisks,
}

struct ReplicaSlot {
    replica: Replica,
    is_touched: bool,
    /// Its deadline in the table.
    due: Time,
}

impl Shard {
    /// A shard without regions.
    ///
    /// # Panics
    ///
    /// If the configuration is one that [`Config::check`] refuses.
    #[must_use]
    pub fn new(config: Config) -> Self {
        config.check().expect("the driver checks the configuration that it was given");
        Self {
            config,
            replicas: BTreeMap::new(),
            unborn: BTreeMap::new(),
            uninitialised: BTreeMap::new(),
            uninitialised_touched: vec![],
            admissions: Admissions::default(),
            held_votes: HeldVotes::default(),
            ends: EndingReplicas::default(),
            timers: Timers::default(),
            kept_logs: KeptLogs::default(),
            touched: vec![],
            now: Time(0),
            stats: Stats::default(),
            disks: ShardDisks::default(),
        }
    }

    /// Takes a replica in. If it should `campaign` it does so in the next step, but only if it has
    /// never seen a leader: else it may have promised one to keep still, and does so for
    /// `election_ticks` ticks. One that its region lists no more, because no root has the end that
    /// its removal began, is not made: it ends again.
    ///
    /// # Errors
    ///
    /// If the recovered state cannot be a replica of the region. Nothing has changed then.
    pub fn create(
        &mut self,
        now: Time,
        found: RecoveredReplica,
        campaign: bool,
    ) -> Result<(), CreateReplicaError> {
        self.move_time(now);
        let RecoveredReplica { descriptor, peer, .. } = &found;
        let is_removed = descriptor.peer(*peer).is_none()
            && descriptor.has_sound_members()
            && (PeerId(1)..=descriptor.floor()).contains(peer);
        if is_removed {
            self.check_free(descriptor.id)?;
            self.ends.begin(descriptor.id, *peer, true);
            return Ok(());
        }
        let promise = Promise::at_start(found.hard_state.term, self.config.election_ticks);
        self.insert(found, promise, EarlierWrites::default(), campaign)
    }

    fn insert(
        &mut self,
        found: RecoveredReplica,
        promise: Promise,
        earlier: EarlierWrites,
        campaign: bool,
    ) -> Result<(), CreateReplicaError> {
        found.check()?;
        let region = found.descriptor.id;
        self.check_free(region)?;
        let mut replica = Replica::new(found, promise, earlier, &self.config);
        if campaign {
            replica.campaign();
        }
        let due = self.now.after_ms(self.config.tick_ms);
        self.timers.set(region, due);
        // Entries that are committed and not applied are handed out in the next step.
        self.touched.push(region);
        self.replicas.insert(region, Box::new(ReplicaSlot { replica, is_touched: true, due }));
        Ok(())
    }

    /// Takes what happened, and adds to `effects` what is to be done about it.
    ///
    /// `now` must have been read *after* the last of the events was there: a driver empties its
    /// inbox, then looks at the clock. The other way round, a process that stands still in between
    /// would grant reads under a lease that is over. Before the effects are carried out it looks
    /// again, for [`Shard::drop_leases_if_late`]. Ticks come first, and a late clock ticks once:
    /// replicas keep still for a number of ticks, so that these must never come faster than the
    /// time.
    ///
    /// # Panics
    ///
    /// If time goes back, if a completion arrives that was not asked for, or if a replica's state
    /// breaks an invariant. The process must end then. No message from another store causes it.
    pub fn step(&mut self, now: Time, events: impl Iterator<Item = Event>, effects: &mut Effects) {
        self.move_time(now);
        // Ticks come before events: ticks that are caught up right after a heartbeat was read would
        // end the promise that it renewed (docs/decisions/0005).
        while let Some(region) = self.timers.take_due(now) {
            // From now, not from the deadline that has passed: a clock that stood still ticks once,
            // else it would end promises that heartbeats in the mailbox are about to renew.
            let due = now.after_ms(self.config.tick_ms);
            self.timers.set(region, due);
            self.tick(region, due, effects);
        }
        for event in events {
            self.take(event, effects);
        }
        self.finish_uninitialised(effects);
        let mut touched = std::mem::take(&mut self.touched);
        // Once for each region, after all events: proposals of a step share an entry, and its reads
        // one question to the quorum.
        let (config, stats, disks) = (&self.config, &mut self.stats, &mut self.disks);
        let mut step = StepContext { now, config, effects, stats, disks };
        for region in touched.drain(..) {
            // It may have ended since.
            let Some(slot) = self.replicas.get_mut(&region) else { continue };
            slot.is_touched = false;
            let waits = slot.replica.has_staged_snapshot() || slot.replica.is_ending();
            let has_unborn = waits && self.unborn.values().any(|unborn| unborn.parent == region);
            slot.replica.finish(has_unborn, &mut step);
            self.kept_logs.note(region, slot.replica.kept_log());
        }
        self.touched = touched;
        self.give_up_logs(effects);
        effects.ends.extend(self.ends.take_unsent());
    }

    /// Time has passed for a region. Most of its followers have nothing to do then.
    fn tick(&mut self, region: RegionId, due: Time, effects: &mut Effects) {
        let (now, config) = (self.now, &self.config);
        let (stats, disks) = (&mut self.stats, &mut self.disks);
        let mut step = StepContext { now, config, effects, stats, disks };
        let slot = self.replicas.get_mut(&region).expect("those that are here have timers");
        slot.due = due;
        slot.replica.tick(&mut step);
        if !slot.replica.is_idle_follower() && !std::mem::replace(&mut slot.is_touched, true) {
            self.touched.push(region);
        }
    }

    /// Keeps what is kept for other replicas within its bound.
    fn give_up_logs(&mut self, effects: &mut Effects) {
        let (now, config) = (self.now, &self.config);
        let (stats, disks) = (&mut self.stats, &mut self.disks);
        let mut step = StepContext { now, config, effects, stats, disks };
        let bytes_max = config.window.log_kept_bytes_max;
        while let Some(region) = self.kept_logs.next_to_give_up(bytes_max) {
            let slot = self.replicas.get_mut(&region).expect("replicas here keep logs");
            slot.replica.give_up_log(&mut step);
            step.stats.logs_given_up += 1;
            self.kept_logs.note(region, slot.replica.kept_log());
        }
    }

    /// Revokes the lease reads of the last step, if it is too late to serve them: `served` is the
    /// driver's clock, read again once the step has returned. Called before any of `effects`, which
    /// are those of the step, is carried out. Returns whether the step was late.
    ///
    /// A thread that was not scheduled, or a machine that stood still, may come here long after the
    /// step's time. Then the leases in use are over, and their reads ask a quorum in the next step:
    /// they take longer and do not fail.
    pub fn drop_leases_if_late(&mut self, served: Time, effects: &mut Effects) -> bool {
        if served < self.now.after_ms(self.config.lateness_ms_max()) {
            return false;
        }
        self.stats.late_steps += 1;
        let grants: Vec<_> = effects.answers.reads.extract_if(.., |grant| grant.by_lease).collect();
        // Each region counts as touched, so `next_step` is at once and the quorum is asked without
        // waiting for a tick.
        for grant in grants {
            self.touch(grant.region, effects, |replica, step| {
                replica.revoke_grant(&grant, served, step)
            });
        }
        // A follower would serve its read by such an answer, so it is as much a lease read as a
        // grant.
        let is_answer =
            |envelope: &Envelope| envelope.message.kind == MessageKind::ReadIndexResponse;
        if effects.messages.iter().any(is_answer) {
            for envelope in std::mem::take(&mut effects.messages) {
                let mut leaves = true;
                if is_answer(&envelope) {
                    self.touch(envelope.region, effects, |replica, step| {
                        leaves = !replica.revoke_answer(&envelope, step);
                    });
                }
                if leaves {
                    effects.messages.push(envelope);
                }
            }
        }
        true
    }

    /// When to call [`Shard::step`] if nothing happens before.
    #[must_use]
    pub fn next_step(&self) -> Option<Time> {
        let is_idle = self.touched.is_empty() && !self.ends.has_unsent();
        if is_idle { self.timers.next() } else { Some(self.now) }
    }

    /// Takes over how full the disks of the stores are, this one's included. The next requests,
    /// messages and ticks follow it.
    pub fn note_disks(&mut self, disks: StoreDisks) {
        self.disks.stores = disks;
    }

    /// The region's descriptor, if it is here.
    #[must_use]
    pub fn descriptor(&self, region: RegionId) -> Option<&Descriptor> {
        self.replicas.get(&region).map(|slot| slot.replica.descriptor())
    }

    /// The region in numbers, if it is here.
    #[must_use]
    pub fn status(&self, region: RegionId) -> Option<Status> {
        self.replicas.get(&region).map(|slot| slot.replica.status())
    }

    /// The regions that are here, in order.
    pub fn regions(&self) -> impl Iterator<Item = RegionId> + '_ {
        self.replicas.keys().copied()
    }

    /// The counters of the shard.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Gives back all tickets, before the driver stops. Requests that had no effect are rejected;
    /// the result are those that are in the log, whose fate is open.
    pub fn drain(&mut self, effects: &mut Effects) -> Vec<Ticket> {
        let (now, config) = (self.now, &self.config);
        let (stats, disks) = (&mut self.stats, &mut self.disks);
        let mut step = StepContext { now, config, effects, stats, disks };
        self.replicas.values_mut().flat_map(|slot| slot.replica.drain(&mut step)).collect()
    }

    /// Checks every replica's whole state. For simulators and tests: it walks every entry in
    /// memory. The changes of the most important numbers are checked in each step anyway.
    ///
    /// # Panics
    ///
    /// If an invariant does not hold.
    pub fn check_invariants(&self) {
        for (region, slot) in &self.replicas {
            let is_listed = self.touched.contains(region);
            assert_eq!(slot.is_touched, is_listed, "region {region} would be left out");
            slot.replica.check();
            let is_elsewhere =
                self.uninitialised.contains_key(region) || self.unborn.contains_key(region);
            assert!(!is_elsewhere, "region {region} has two replicas in its slot");
        }
        self.ends.check();
    }

    fn move_time(&mut self, now: Time) {
        // A lease is compared with this time: a clock that goes back would make it hold longer than
        // the promises that it rests on.
        assert!(now >= self.now, "time goes back from {} to {now}", self.now);
        self.now = now;
    }

    fn take(&mut self, event: Event, effects: &mut Effects) {
        let event = match event {
            Event::Create(new) => return self.create_new(new, effects),
            Event::Admitted(envelope) => return self.admit(envelope, effects),
            Event::NotAdmitted { envelope, why } => return self.refuse(envelope, why, effects),
            Event::Notice(notice) => return self.take_notice(notice, effects),
            Event::Ended { region, peer } => return self.take_ended(region, peer, effects),
            event => event,
        };
        let region = event.region();
        let Some(slot) = self.replicas.get(&region) else {
            return self.take_absent(region, event, effects);
        };
        if slot.replica.is_ending() {
            return self.take_ending(event, effects);
        }
        // Only these may come late: all others are awaited before a replica ends.
        if event.answered_replica().is_some_and(|peer| peer != slot.replica.peer()) {
            self.stats.late_answers += 1;
            return;
        }
        self.complete(event, effects);
    }

    /// An event for a replica that is here.
    fn complete(&mut self, event: Event, effects: &mut Effects) {
        let region = event.region();
        self.touch(region, effects, |replica, step| match event {
            Event::Message(envelope) => replica.receive(envelope, step),
            Event::Propose { ticket, precondition, command, .. } => {
                replica.propose(ticket, &precondition, command, step);
            }
            Event::Read { ticket, precondition, follower, .. } => {
                replica.read(ticket, &precondition, follower, step);
            }
            Event::Persisted { number, .. } => replica.persisted(number, step),
            Event::Split { ticket, split, .. } => replica.propose_split(ticket, split, step),
            Event::ChangeMembership { ticket, command, .. } => {
                replica.change_membership(ticket, &command, step);
            }
            Event::CompareReplicas { ticket, digest_version, .. } => {
                replica.compare_replicas(ticket, digest_version, step);
            }
            Event::Damaged { .. } => replica.damaged(step),
            Event::Digested { index, digest, .. } => replica.digested(index, digest, step),
            Event::TransferLeader { to, ticket, .. } => replica.transfer_leader(to, ticket, step),
            Event::Applied { index, changes, size, .. } => {
                replica.applied(index, changes, size, step);
            }
            Event::Fetched { context, entries, .. } => replica.fetched(context, entries),
            Event::FetchFailed { context, .. } => replica.fetch_failed(context),
            Event::Checkpointed { applied, installed, .. } => {
                replica.checkpointed(applied, installed);
            }
            Event::SnapshotStaged { envelope, stage } => {
                replica.snapshot_staged(envelope, stage, step);
            }
            Event::SnapshotBegun { to, number, index, .. } => {
                replica.snapshot_begun(to, number, index);
            }
            Event::SnapshotSent { to, number, ok, .. } => {
                replica.snapshot_sent(to, number, ok, step);
            }
            Event::Unreachable { peer: other, .. } => replica.unreachable(other),
            Event::Campaign { .. } => replica.campaign(),
            Event::Create(_)
            | Event::Admitted(_)
            | Event::NotAdmitted { .. }
            | Event::Notice(_)
            | Event::Ended { .. } => unreachable!("it was taken before"),
        });
    }

    fn touch(
        &mut self,
        region: RegionId,
        effects: &mut Effects,
        act: impl FnOnce(&mut Replica, &mut StepContext<'_>),
    ) {
        let (now, config) = (self.now, &self.config);
        let slot = self.replicas.get_mut(&region).expect("asked for by those that are here");
        let (stats, disks) = (&mut self.stats, &mut self.disks);
        act(&mut slot.replica, &mut StepContext { now, config, effects, stats, disks });
        if !std::mem::replace(&mut slot.is_touched, true) {
            self.touched.push(region);
        }
    }
}
