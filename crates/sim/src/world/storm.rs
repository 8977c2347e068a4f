//! How faults strike the cluster, and how stores come back.

use flotilla_region::Event;

use crate::faults::Fault;
use crate::layout;
use crate::truth::Broken;

use super::{CUT_US_MAX, Happening, World};

impl World {
    /// Plans the next fault.
    pub(super) fn plan_strike(&mut self) {
        if let Some((delay_us, fault)) = self.swarm.next(&mut self.rng) {
            self.plan(delay_us, Happening::Strike(fault));
        }
    }

    /// Plans the next checkpoint of a store.
    pub(super) fn plan_save(&mut self, store: usize) {
        let life = self.machines[store].life();
        let delay_us = self.rng.u64(1..=2 * self.swarm.checkpoint_us);
        self.plan(delay_us, Happening::Save { store, life });
    }

    pub(super) fn strike(&mut self, fault: Fault) -> Result<(), Broken> {
        if !self.is_stormy {
            return Ok(());
        }
        self.plan_strike();
        self.say(format_args!("{fault:?}"));
        self.counts.faults += 1;
        match fault {
            Fault::PowerLoss(store) => self.crash(store, true),
            Fault::Kill(store) => self.crash(store, false),
            Fault::Blackout => (0..self.machines.len()).for_each(|store| self.crash(store, true)),
            Fault::CutInside { store, operations } => {
                self.machines[store].cut_inside(operations);
                self.plan_end(store);
            }
            Fault::SickDisk { store, writes_too } => {
                self.machines[store].sicken(writes_too);
                self.plan_end(store);
            }
            Fault::Campaign { store, region } => {
                self.machines[store].post(Event::Campaign { region }, &mut self.out);
                self.settle(store, Ok(()))?;
            }
            Fault::Pause { store, us } => {
                if self.machines[store].is_up() && self.paused[store].is_none() {
                    self.paused[store] = Some(Vec::new());
                    let life = self.machines[store].life();
                    self.plan(us, Happening::Resume { store, life });
                }
            }
            Fault::Cut { cut, us } => {
                self.network.cut(&cut);
                self.plan(us, Happening::HealLinks);
            }
            Fault::SlowDisk { store, us } => {
                self.machines[store].set_slow(true);
                self.plan(us, Happening::MendDisk(store));
            }
        }
        Ok(())
    }

    /// The store forgets everything that is not on its disk; without `power` even that lost what
    /// was not synced. It starts again some time later.
    pub(super) fn crash(&mut self, store: usize, power: bool) {
        if self.machines[store].is_up() {
            self.counts.crashes += 1;
        }
        self.say(format_args!("store {} is down", layout::id(store)));
        self.trace.add(&[self.now(), store as u64, u64::from(power)]);
        self.machines[store].crash(power);
        self.oracles[store].reset();
        // What it would have found is void, but for what others sent: it may still arrive.
        for happening in self.paused[store].take().into_iter().flatten() {
            self.plan(1, happening);
        }
        for client in self.workload.lose(store) {
            self.go_on(Some(client));
        }
        let delay_us = self.rng.u64(1_000..=self.swarm.restart_us_max);
        self.plan(delay_us, Happening::Start(store));
    }

    pub(super) fn start(&mut self, store: usize) -> Result<(), Broken> {
        self.say(format_args!("store {} starts", layout::id(store)));
        let now = self.now();
        let done = self.machines[store].start(now, &self.truth, &mut self.out);
        self.settle(store, done)?;
        if self.machines[store].is_up() {
            self.plan_save(store);
        }
        Ok(())
    }

    /// The store goes on and finds all that came meanwhile, in order.
    pub(super) fn resume(&mut self, store: usize) -> Result<(), Broken> {
        let found = self.paused[store].take();
        found.into_iter().flatten().try_for_each(|happening| self.happen(happening))
    }

    /// A store whose disk fails soon is dead at the latest then.
    fn plan_end(&mut self, store: usize) {
        let life = self.machines[store].life();
        let delay_us = self.rng.u64(1..=CUT_US_MAX);
        self.plan(delay_us, Happening::Expire { store, life });
    }
}
