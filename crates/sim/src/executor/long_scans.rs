//! Long scans: the snapshot is taken when the read is granted, the rows are read part by part.
//!
//! As in the node, other reads, writes and checkpoints come between two parts. The page store may
//! spill what the snapshot sees, or end it: then the client is told that the store is busy.

use std::collections::BTreeMap;

use bytes::Bytes;

use flotilla_region::{Reject, Ticket};
use flotilla_store::{PagesError, ReadError, RegionSnapshot, ScanRequest};

use super::{Executor, reads};
use crate::request::ClientReply;
use crate::task::{Outbox, Task};

/// Bytes of a part: a few rows.
const PART_BYTES: u64 = 64;
/// The rest of a scan is read at once behind this many parts.
const PARTS_MAX: u32 = 6;

/// Scans that have begun.
#[derive(Debug, Default)]
pub(super) struct LongScans(BTreeMap<Ticket, LongScan>);

#[derive(Debug)]
struct LongScan {
    region: RegionSnapshot,
    rest: ScanRequest,
    parts: u32,
    rows: Vec<(Bytes, Bytes)>,
    /// Bytes that were spilled before it began.
    spilled_before: u64,
}

impl Executor {
    /// Begins a scan, whose rows are read later.
    pub(super) fn begin_scan(&mut self, ticket: Ticket, region: RegionSnapshot, out: &mut Outbox) {
        let (rest, spilled_before) = (reads::all(), self.spill_written_bytes());
        let scan = LongScan { region, rest, parts: 0, rows: Vec::new(), spilled_before };
        self.long_scans.0.insert(ticket, scan);
        out.tasks.push((self.rng.u64(1..=self.delays.scan_us_max), Task::Scan(ticket)));
    }

    /// Reads the next part of a scan, and answers behind the last one.
    ///
    /// # Errors
    ///
    /// The rows cannot be read.
    pub(crate) fn scan_on(&mut self, ticket: Ticket, out: &mut Outbox) -> Result<(), ReadError> {
        let Some(mut scan) = self.long_scans.0.remove(&ticket) else { return Ok(()) };
        scan.parts += 1;
        let part_bytes = if scan.parts < PARTS_MAX { PART_BYTES } else { u64::MAX };
        let LongScan { region, rest, rows, .. } = &mut scan;
        let copy = |key: &[u8], value: &[u8]| {
            rows.push((Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
        };
        let rest = match region.scan_part(rest, part_bytes, copy) {
            Ok(rest) => rest,
            // The client asks again.
            Err(ReadError::Pages(PagesError::SnapshotTooOld { .. })) => {
                self.coverage.pages.spills.scans_refused += 1;
                let reason = "the snapshot of the read is too old";
                out.replies.push((ticket, ClientReply::Refused(Reject::Busy { reason })));
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        match rest {
            Some(rest) => {
                scan.rest = rest;
                self.long_scans.0.insert(ticket, scan);
                out.tasks.push((self.rng.u64(1..=self.delays.scan_us_max), Task::Scan(ticket)));
            }
            None => {
                let was_spilled = self.spill_written_bytes() > scan.spilled_before;
                self.coverage.pages.spills.scans += u64::from(was_spilled);
                out.replies.push((ticket, ClientReply::Scanned(scan.rows)));
            }
        }
        Ok(())
    }

    /// Bytes that the store has written to its spill file so far.
    pub(crate) fn spill_written_bytes(&self) -> u64 {
        self.store.stats().pages.spill.written_bytes
    }
}
