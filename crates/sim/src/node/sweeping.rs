//! The sweep of rows that have expired, as the node's sweeper does it.

use std::time::Duration;

use flotilla_dispatch::{SWEEP_EXPIRED_MAX, SweepPlace, SweepStep};
use flotilla_region::Role;
use flotilla_store::{ExpiredPart, ReadError};

use super::running::RunningStore;
use super::{SWEEP_US, SimNode};
use crate::event_queue::SimTime;
use crate::layout;
use crate::task::{ExpiredRows, Outbox, Task};

/// How much faster than the run the time of the sweep goes: a pass of a minute in a fifth of a
/// second.
const HASTE: u32 = 300;
/// So few rows are looked at that a region takes several parts.
const ROWS_MAX: u64 = 3;

impl RunningStore {
    /// Takes the next step of the sweep.
    pub(super) fn sweep(
        &mut self,
        now: SimTime,
        wall_ms: u64,
        out: &mut Outbox,
    ) -> Result<(), ReadError> {
        out.tasks.push((SWEEP_US, Task::Sweep));
        let time = Duration::from_micros(now) * HASTE;
        match self.executor.sweep.next(time) {
            SweepStep::Wait(_) => {}
            SweepStep::Begin => {
                let shard = &self.shard;
                let is_led = |region: &_| {
                    *region != layout::SYSTEM
                        && shard.status(*region).is_some_and(|status| status.role == Role::Leader)
                };
                self.executor.sweep.begin(time, shard.regions().filter(is_led));
            }
            SweepStep::Look(SweepPlace { region, family, from }) => {
                let view = match self.executor.store().read().region(region, None) {
                    Ok(view) => view.in_family(family)?.at(wall_ms),
                    // Its replica has ended.
                    Err(ReadError::RegionNotFound) => {
                        self.executor.sweep.looked(time, 0, None);
                        return Ok(());
                    }
                    Err(error) => {
                        self.executor.sweep.looked(time, 0, None);
                        return Err(error);
                    }
                };
                let looked = view.expired(&from, ROWS_MAX, SWEEP_EXPIRED_MAX);
                let ExpiredPart { range, next } = match looked {
                    Ok(looked) => looked,
                    Err(error) => {
                        self.executor.sweep.looked(time, 0, None);
                        return Err(error);
                    }
                };
                self.executor.sweep.looked(
                    time,
                    range.as_ref().map_or(0, |range| range.rows),
                    next,
                );
                if let Some(range) = range {
                    let region = view.descriptor().clone();
                    out.expired.push(ExpiredRows { region, family, range, time_ms: wall_ms });
                }
            }
        }
        Ok(())
    }
}

impl SimNode {
    /// An answer waits for a time in the log.
    pub(crate) fn count_logged_time(&mut self) {
        self.coverage.reads.logged_times += 1;
    }

    /// Rows that had expired were removed.
    pub(crate) fn count_expired(&mut self, rows: u64) {
        self.coverage.driver.rows_expired += rows;
    }
}
