//! Long scans: the snapshot is taken when the read is granted, the rows are read part by part.
//!
//! As in the node, other reads, writes and checkpoints come between two parts. The page store may
//! spill what the snapshot sees, or end it: then the client is told that the store is busy.

use std::collections::BTreeMap;

use bytes::Bytes;

use flotilla_region::{Reject, Ticket};
use flotilla_store::{PagesError, ReadError, RegionSnapshot, ScanRequest};

use super::reads::all;
use crate::coverage::SpillCoverage;
use crate::request::ClientReply;

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

/// The outcome of reading a part.
pub(super) enum ScanStep {
    /// There are more rows.
    More,
    /// The answer, and the snapshot that it was read from.
    Read(ClientReply, Box<RegionSnapshot>),
    /// The answer, which is a refusal.
    Done(ClientReply),
    /// There is no such scan.
    Unknown,
}

impl LongScans {
    /// Begins a scan, whose rows are read later. The store has spilled so many bytes by then.
    pub(super) fn begin(&mut self, ticket: Ticket, region: RegionSnapshot, spilled_before: u64) {
        let scan = LongScan { region, rest: all(), parts: 0, rows: Vec::new(), spilled_before };
        self.0.insert(ticket, scan);
    }

    /// Reads the next part of a scan. The store has spilled `written` bytes by now.
    ///
    /// # Errors
    ///
    /// The rows cannot be read.
    pub(super) fn read_part(
        &mut self,
        ticket: Ticket,
        written: u64,
        spills: &mut SpillCoverage,
    ) -> Result<ScanStep, ReadError> {
        let Some(mut scan) = self.0.remove(&ticket) else { return Ok(ScanStep::Unknown) };
        scan.parts += 1;
        let part_bytes = if scan.parts < PARTS_MAX { PART_BYTES } else { u64::MAX };
        let LongScan { region, rest, rows, .. } = &mut scan;
        let copy = |key: &[u8], value: &[u8]| {
            rows.push((Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
        };
        match region.scan_part(rest, part_bytes, copy) {
            Ok(Some(rest)) => {
                scan.rest = rest;
                self.0.insert(ticket, scan);
                Ok(ScanStep::More)
            }
            Ok(None) => {
                spills.scans += u64::from(written > scan.spilled_before);
                Ok(ScanStep::Read(ClientReply::Scanned(scan.rows), Box::new(scan.region)))
            }
            // The client asks again.
            Err(ReadError::Pages(PagesError::SnapshotTooOld { .. })) => {
                spills.scans_refused += 1;
                let reason = "the snapshot of the read is too old";
                Ok(ScanStep::Done(ClientReply::Refused(Reject::Busy { reason })))
            }
            Err(error) => Err(error),
        }
    }
}
