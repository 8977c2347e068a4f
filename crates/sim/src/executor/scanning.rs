//! Long scans of clients, a part at a time.

use flotilla_region::Ticket;
use flotilla_store::ReadError;

use super::Executor;
use super::damaged_reads::refuse_if_damaged;
use super::long_scans::ScanStep;
use crate::expiry;
use crate::task::{Outbox, Task};

impl Executor {
    /// Reads the next part of a long scan.
    pub(crate) fn scan_on(&mut self, ticket: Ticket, out: &mut Outbox) -> Result<(), ReadError> {
        let (written, spills) = (self.spill_written_bytes(), &mut self.coverage.pages.spills);
        let read = self.long_scans.read_part(ticket, written, spills);
        match refuse_if_damaged(ticket, read, out)? {
            ScanStep::More => self.plan_scan(ticket, out),
            ScanStep::Done(reply) => out.replies.push((ticket, reply)),
            ScanStep::Read(reply, region) => expiry::reply(ticket, reply, &region, out),
            ScanStep::Unknown => {}
        }
        Ok(())
    }

    pub(super) fn plan_scan(&mut self, ticket: Ticket, out: &mut Outbox) {
        out.tasks.push((self.rng.u64(1..=self.delays.scan_us_max), Task::Scan(ticket)));
    }
}
