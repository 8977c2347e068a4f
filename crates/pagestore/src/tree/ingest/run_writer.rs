//! Writing pages and long values straight to the file, one behind the other, in large writes.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::checkpoint::reservation::Reservation;
use crate::error::Result;
use crate::page::leaf::ValueExtent;
use crate::page::{self, CRC_END, PageRef, Span, UNIT_BYTES, units_for};
use crate::shared::StoreShared;

/// Units that are taken, and bytes that are written, at a time: 1 MiB.
const RUN_UNITS: u32 = 256;

/// Longer values get a span of their own and are written from where they are.
const BUFFERED_UNITS_MAX: u32 = RUN_UNITS / 4;

/// Where pages and long values go.
pub(crate) struct RunWriter {
    reservation: Reservation,
    /// The creating transaction of all that is written.
    created_txid: u64,
    run: Span,
    /// Units of the run that have been given out.
    used: u32,
    /// Bytes at the end of the used part that are not written yet.
    buffer: Vec<u8>,
    /// The span that was written last.
    on_its_way: Option<Span>,
}

impl RunWriter {
    pub(crate) fn new(shared: &Arc<StoreShared>) -> RunWriter {
        RunWriter {
            reservation: Reservation::new(Arc::clone(shared)),
            // Not that of a transaction to come: a transaction reads as of the root that it builds
            // on.
            created_txid: shared.current().txid,
            run: Span { start: 0, units: 0 },
            used: 0,
            buffer: Vec::new(),
            on_its_way: None,
        }
    }

    /// Writes a page of `units` that `fill` completes: it is blank but for its header, and its
    /// place is known.
    pub(crate) fn page(
        &mut self,
        kind: page::PageKind,
        level: u8,
        units: u32,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<PageRef> {
        let span = self.take_units(units)?;
        let at = self.buffer.len();
        self.buffer.resize(at + span.bytes() as usize, 0);
        let page = &mut self.buffer[at..];
        page::begin(page, kind, level, span.start, self.created_txid);
        fill(page);
        let crc = page::checksum(page);
        page[..CRC_END].copy_from_slice(&crc);
        Ok(PageRef::new(span, self.created_txid))
    }

    /// Writes a long value.
    pub(crate) fn extent(&mut self, value: &[u8]) -> Result<ValueExtent> {
        let units = units_for(value.len());
        let padding = units as usize * UNIT_BYTES - value.len();
        let span = if units <= BUFFERED_UNITS_MAX {
            let span = self.take_units(units)?;
            self.buffer.extend_from_slice(value);
            self.buffer.resize(self.buffer.len() + padding, 0);
            span
        } else {
            let span = self.reservation.take(units)?;
            let zeros = [0; UNIT_BYTES];
            self.write(&[IoSlice::new(value), IoSlice::new(&zeros[..padding])], span)?;
            span
        };
        let len = u32::try_from(value.len()).expect("16 MiB at most");
        Ok(ValueExtent {
            start: span.start,
            len,
            crc: crc32c::crc32c(value),
            created_txid: self.created_txid,
        })
    }

    /// Writes what is left and hands over the units.
    pub(crate) fn finish(mut self) -> Result<Reservation> {
        self.end_run()?;
        Ok(self.reservation)
    }

    /// The next units; their bytes go to the end of the buffer.
    fn take_units(&mut self, units: u32) -> Result<Span> {
        assert!(units <= RUN_UNITS && self.used <= self.run.units, "{units} units of a run");
        if self.run.units - self.used < units {
            self.end_run()?;
            self.run = self.reservation.take(RUN_UNITS)?;
        }
        let span = Span { start: self.run.start + u64::from(self.used), units };
        self.used += units;
        Ok(span)
    }

    fn end_run(&mut self) -> Result<()> {
        if !self.buffer.is_empty() {
            let units = units_for(self.buffer.len());
            assert!(units <= self.used, "more is buffered than was taken");
            let start = self.run.start + u64::from(self.used - units);
            let mut buffer = std::mem::take(&mut self.buffer);
            self.write(&[IoSlice::new(&buffer)], Span { start, units })?;
            buffer.clear();
            self.buffer = buffer;
        }
        if self.run.units > 0 {
            self.reservation.cut(self.run, self.used);
        }
        (self.run, self.used) = (Span { start: 0, units: 0 }, 0);
        Ok(())
    }

    /// Writes a span, and waits until the one before is on the disk: a sync of other bytes of the
    /// disk so waits for two of them at most, and not for all that was built meanwhile.
    fn write(&mut self, parts: &[IoSlice<'_>], span: Span) -> Result<()> {
        debug_assert_eq!(
            parts.iter().map(|part| part.len() as u64).sum::<u64>(),
            span.bytes(),
            "{span:?} is not filled"
        );
        let shared = self.reservation.shared();
        let file = shared.page_reader.file();
        file.write_all_at(parts, span.start * UNIT_BYTES as u64)?;
        file.start_write_back(span.byte_range())?;
        if let Some(before) = self.on_its_way.replace(span) {
            file.write_back(before.byte_range())?;
        }
        shared.counters.written_bytes.fetch_add(span.bytes(), Ordering::Relaxed);
        Ok(())
    }
}
