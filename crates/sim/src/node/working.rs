//! The work of a store: tasks, one at a time, and steps of its core.

use flotilla_dispatch::OpenLanes;
use flotilla_region::{Event, ReadGrant};
use flotilla_store::AppliedReplica;

use super::{COMPARED_OF, GREET_US_MAX, SimNode};
use crate::event_queue::SimTime;
use crate::executor::{ChangedRows, InstallArrow};
use crate::layout;
use crate::reference_model::ReferenceModel;
use crate::task::{Outbox, StopReason, Task};
use crate::wall_clock;
use crate::workload::ClientWorkload;

impl SimNode {
    /// Does one piece of work. The power may go behind it.
    pub(crate) fn act(
        &mut self,
        task: Task,
        now: SimTime,
        reference_model: &mut ReferenceModel,
        workload: &ClientWorkload,
        out: &mut Outbox,
    ) -> Result<(), StopReason> {
        self.work(task, now, reference_model, workload, out)?;
        let Some(running) = &mut self.running else { return Ok(()) };
        let passed = running.executor.take_arrow();
        if passed.is_some() && passed == running.cuts.at_arrow {
            running.cuts.at_arrow = None;
            let of_end = passed.is_some_and(|arrow| InstallArrow::ENDS.contains(&arrow));
            let cuts = if of_end {
                &mut self.coverage.membership.cuts_at_ends
            } else {
                &mut self.coverage.snapshots.cuts_at_arrows
            };
            *cuts += 1;
            return Err(StopReason::Died);
        }
        Ok(())
    }

    fn work(
        &mut self,
        task: Task,
        now: SimTime,
        reference_model: &mut ReferenceModel,
        workload: &ClientWorkload,
        out: &mut Outbox,
    ) -> Result<(), StopReason> {
        if matches!(task, Task::Bootstrap) {
            return self.step_bootstrap(now, reference_model, out);
        }
        let (store, is_swapped) = (layout::id(self.place), self.is_swapped());
        let Some(running) = &mut self.running else { return Ok(()) };
        match task {
            Task::Bootstrap => {}
            Task::Greet => {
                running.handshakes.greet(out);
                out.tasks.push((self.rng.u64(1..=GREET_US_MAX), Task::Greet));
            }
            Task::Step => return self.step(now, reference_model, workload, out),
            Task::Wake(moment) => {
                // A later step has asked for another moment; this wake-up is of an earlier wish.
                if running.wake != Some(moment) {
                    return Ok(());
                }
                running.wake = None;
                return self.step(now, reference_model, workload, out);
            }
            Task::Post(events) => {
                // The newest disk has no end of an older one's.
                for event in events.iter().filter(|_| !is_swapped) {
                    if let Event::Ended { region, peer } = *event {
                        running.counts.membership.ended += 1;
                        reference_model.note_ended(store, region, peer);
                    }
                }
                running.inbox.extend(events);
                self.schedule_step(out);
            }
            Task::Flush => {
                if let Some(operations) = running.cuts.in_flush.take() {
                    self.fs.cut_power_after(operations);
                }
                running.executor.flush(now, out).map_err(|error| self.stop(&error))?;
            }
            Task::Fetch(fetch) => {
                running.executor.fetch(&fetch, out).map_err(|error| self.stop(&error))?;
            }
            Task::Apply => return self.apply(now, reference_model, out),
            Task::Read(grant) => {
                return self.read(grant, workload, wall_clock::read(self.place, now), out);
            }
            Task::ReadLogged(grant) => {
                return self.read(grant, workload, wall_clock::NONE, out);
            }
            Task::Maintain => {
                let maintained = running.executor.maintain(now, out);
                self.survive(maintained, out)?;
            }
            Task::Purge => {
                let purged = running.executor.purge(now, out);
                self.survive(purged, out)?;
            }
            Task::Checkpoint
            | Task::Admit(_)
            | Task::SendSnapshot(_)
            | Task::SendSnapshots
            | Task::EndSending(_)
            | Task::EndReceiving(_) => return self.work_for_snapshot(task, out),
            Task::SendFrame { .. }
            | Task::Split(_)
            | Task::Scan(_)
            | Task::Sweep
            | Task::Verify
            | Task::Digest => return self.work_beside(task, now, out),
            Task::DispatchEffects => {
                running.dispatch_effects(self.clock, now, store, reference_model, out)?;
            }
        }
        Ok(())
    }

    fn read(
        &mut self,
        grant: ReadGrant,
        workload: &ClientWorkload,
        wall_ms: u64,
        out: &mut Outbox,
    ) -> Result<(), StopReason> {
        let Some(running) = &mut self.running else { return Ok(()) };
        let request = workload.request(grant.ticket);
        // The power may go while memory is spilled, which does not fail the store: then a read is
        // the first to meet it.
        let region = grant.region;
        let read = running.executor.read(grant, request, wall_ms, out);
        self.survive_read(read, Some(region), out)
    }

    fn work_beside(
        &mut self,
        task: Task,
        now: SimTime,
        out: &mut Outbox,
    ) -> Result<(), StopReason> {
        let Some(running) = &mut self.running else { return Ok(()) };
        match task {
            Task::SendFrame { to, kind } => running.outgoing.send(to, kind, out),
            Task::Split(wish) => {
                let region = wish.region;
                let looked = running.look_up_borders(wish, out);
                return self.survive_read(looked, Some(region), out);
            }
            Task::Sweep => {
                let wall_ms = wall_clock::read(self.place, now);
                let swept = running.sweep(now, wall_ms, out);
                return self.survive_read(swept, None, out);
            }
            Task::Verify => running.verify(now, out),
            Task::Digest => {
                let computed = running.executor.digest(out);
                return self.survive_read(computed, None, out);
            }
            Task::Scan(ticket) => {
                let read = running.executor.scan_on(ticket, out);
                return self.survive_read(read, None, out);
            }
            task => unreachable!("{task:?} is of another kind"),
        }
        Ok(())
    }

    fn work_for_snapshot(&mut self, task: Task, out: &mut Outbox) -> Result<(), StopReason> {
        let Some(running) = &mut self.running else { return Ok(()) };
        match task {
            Task::Checkpoint => running.executor.checkpoint(out),
            Task::Admit(envelope) => running.executor.admit(*envelope, out),
            Task::SendSnapshot(send) => {
                let region = send.envelope.region;
                let begun = running.queue_snapshot(*send, out);
                return self.survive_read(begun, Some(region), out);
            }
            Task::SendSnapshots => {
                let begun = running.begin_snapshots(out);
                return self.survive_read(begun, None, out);
            }
            Task::EndSending(stream) => {
                running.end_outgoing(stream, false, out);
                Ok(())
            }
            Task::EndReceiving(stream) => {
                running.end_incoming(stream, out);
                Ok(())
            }
            task => unreachable!("{task:?} is of another kind"),
        }
        .map_err(|error| self.stop(&error))
    }

    fn apply(
        &mut self,
        now: SimTime,
        reference_model: &ReferenceModel,
        out: &mut Outbox,
    ) -> Result<(), StopReason> {
        let Some(running) = &mut self.running else { return Ok(()) };
        let changed = running.executor.apply(now, out);
        let ChangedRows { applied, has_installed, ended } =
            changed.map_err(|error| self.stop(&error))?;
        // An end must not touch rows of other regions.
        if has_installed || !ended.is_empty() {
            self.compare_all(reference_model)?;
        }
        for AppliedReplica { region, changes, .. } in applied {
            changes.iter().for_each(|change| self.coverage.membership.count(change));
            if self.rng.u32(..COMPARED_OF) == 0 {
                self.compare(region, reference_model)?;
            }
            if !changes.is_empty() {
                self.compare_all(reference_model)?;
            }
        }
        Ok(())
    }

    fn step(
        &mut self,
        now: SimTime,
        reference_model: &mut ReferenceModel,
        workload: &ClientWorkload,
        out: &mut Outbox,
    ) -> Result<(), StopReason> {
        let (store, is_swapped) = (layout::id(self.place), self.is_swapped());
        let Some(running) = &mut self.running else { return Ok(()) };
        running.is_step_scheduled = false;
        running.effects.clear();
        running.stall.note_terms(&running.shard);
        if running.take_up_settings(&self.settings.region) {
            self.coverage.identity.settings_taken += 1;
        }
        let behind = running.executor.backlog();
        let events = running.take_events(OpenLanes::beside(behind, self.settings.backlog_max));
        running.silent.hear(&events);
        running.shard.step(self.clock.read(now), events.into_iter(), &mut running.effects);
        // The walk over all entries, for which the node has no time.
        running.shard.check_invariants();
        if !running.effects.ranges.is_empty() {
            let shard = &running.shard;
            layout::check_disjoint(shard.regions().filter_map(|region| shard.descriptor(region)))
                .map_err(StopReason::CheckFailure)?;
        }
        for envelope in running.effects.messages.iter().filter(|_| !is_swapped) {
            reference_model
                .check_alive(store, envelope.region, envelope.from.id)
                .map_err(StopReason::CheckFailure)?;
        }
        self.coverage.leaderships +=
            running.note_leaders(reference_model).map_err(StopReason::CheckFailure)?;
        // When they are handed out, not when they are applied: a crash in between must not hide an
        // entry that this replica took for committed.
        for task in &running.effects.apply {
            reference_model
                .agree(store, task, |ticket| workload.command(ticket))
                .map_err(StopReason::CheckFailure)?;
        }
        for task in running.effects.ends.iter().filter(|_| !is_swapped) {
            reference_model.end(store, task).map_err(StopReason::CheckFailure)?;
        }
        if running.stall.begins(&running.effects, out) {
            return Ok(());
        }
        running.dispatch_effects(self.clock, now, store, reference_model, out)
    }
}
