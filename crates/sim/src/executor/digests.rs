//! Digests of regions for comparisons of their replicas, as the node's checker computes them: part
//! by part, while entries are applied. Now and then one is given up.

use std::time::Duration;

use flotilla_region::{Event, RegionChange};
use flotilla_store::{AppliedReplica, DigestReport, DigestStep, ReadError};

use super::Executor;
use crate::event_queue::SimTime;
use crate::task::{Outbox, Task};

/// So few bytes are read at a time that a region takes several parts.
const PART_BYTES: u64 = 100;
/// One of this many parts is the last of its digest, whatever is left.
const PARTS_TO_GIVING_UP: u64 = 40;
/// How much faster than the run the time of comparisons goes: each region has its turn once in two
/// seconds.
const HASTE: u32 = 43_200;

impl Executor {
    /// The time by which regions have their turns.
    pub(crate) fn comparison_time(now: SimTime) -> Duration {
        Duration::from_micros(now) * HASTE
    }

    /// Entries were applied: some may ask for digests, or say what has come of them.
    pub(super) fn note_comparisons(
        &mut self,
        replicas: &[AppliedReplica],
        now: SimTime,
        out: &mut Outbox,
    ) {
        for AppliedReplica { region, changes, .. } in replicas {
            for change in changes {
                match change {
                    RegionChange::DigestDue { .. } => {
                        out.tasks.push((self.notify_delay_us(), Task::Digest));
                    }
                    RegionChange::Compared { verdict, .. } => {
                        let time = Self::comparison_time(now);
                        self.comparisons.compared(time, *region, verdict.is_complete());
                    }
                    _ => {}
                }
            }
        }
    }

    /// Computes the next part of a digest that an entry has asked for.
    pub(crate) fn digest(&mut self, out: &mut Outbox) -> Result<(), ReadError> {
        match self.store.compute_digest(PART_BYTES).map_err(|(_, error)| error)? {
            DigestStep::Idle => return Ok(()),
            DigestStep::More { .. } => {
                self.coverage.driver.comparisons.parts += 1;
                // Not drawn, so that a case has its digests for certain.
                if self.coverage.driver.comparisons.parts.is_multiple_of(PARTS_TO_GIVING_UP) {
                    self.store.give_up_digest();
                }
            }
            DigestStep::Done { report, .. } => {
                let DigestReport { region, peer, index, digest } = report;
                let of = &mut self.coverage.driver.comparisons;
                *(if digest.is_some() { &mut of.digests } else { &mut of.given_up }) += 1;
                let done = Event::Digested { region, peer, index, digest };
                out.tasks.push((self.notify_delay_us(), Task::Post(vec![done])));
            }
        }
        out.tasks.push((self.notify_delay_us(), Task::Digest));
        Ok(())
    }
}
