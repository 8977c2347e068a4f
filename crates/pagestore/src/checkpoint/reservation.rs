//! A reservation of units for a writer outside of transactions, until a transaction adopts them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::checkpoint::file_end;
use crate::error::Result;
use crate::page::{Span, UNIT_BYTES};
use crate::shared::StoreShared;

/// Reserved units: neither free nor in any tree. Dropped, it frees them; a crash does so too, for
/// no durable root uses them.
pub(crate) struct Reservation {
    shared: Arc<StoreShared>,
    spans: Vec<Span>,
}

impl Reservation {
    pub(crate) fn new(shared: Arc<StoreShared>) -> Reservation {
        Reservation { shared, spans: Vec::new() }
    }

    pub(crate) fn shared(&self) -> &Arc<StoreShared> {
        &self.shared
    }

    /// Takes a span, with room for it in the file.
    pub(crate) fn take(&mut self, units: u32) -> Result<Span> {
        let span = self.shared.space.lock().reserve(units)?;
        let needed = span.end() * UNIT_BYTES as u64;
        // The file is cut off only where nothing is allocated, so it stays as long as that.
        if self.shared.counters.file_bytes.load(Ordering::Relaxed) < needed
            && let Err(error) = file_end::grow(&self.shared, needed)
        {
            let mut space = self.shared.space.lock();
            space.end_reservation(span);
            space.release(span);
            // Else the next checkpoint would want room for what was not to be had.
            space.freelist.trim(1);
            return Err(error);
        }
        assert_eq!(span.units, units, "{span:?} was reserved");
        self.spans.push(span);
        Ok(span)
    }

    /// Frees what lies behind the first `units` units of a span that was taken.
    pub(crate) fn cut(&mut self, span: Span, units: u32) {
        assert!(units <= span.units, "{units} units of {span:?} are kept");
        let kept = Span { start: span.start, units };
        let rest = Span { start: kept.end(), units: span.units - units };
        if rest.units == 0 {
            return;
        }
        let at = self.spans.iter().rposition(|mine| *mine == span).expect("it was taken");
        let mut space = self.shared.space.lock();
        space.end_reservation(span);
        if units > 0 {
            space.enter_reservation(kept);
            self.spans[at] = kept;
        } else {
            self.spans.swap_remove(at);
        }
        space.release(rest);
    }

    /// Hands the spans over to a transaction that publishes a tree in them.
    pub(crate) fn into_spans(mut self) -> Vec<Span> {
        std::mem::take(&mut self.spans)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        for span in self.spans.drain(..) {
            // A transaction that was dropped may have read some of it.
            for start in span.start..span.end() {
                self.shared.page_reader.forget(Span { start, units: 1 });
            }
            // One lock for each: there may be a whole tree of them.
            let mut space = self.shared.space.lock();
            space.end_reservation(span);
            space.release(span);
        }
    }
}
