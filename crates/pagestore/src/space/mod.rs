//! Space manager: the state of each unit of the file, the epochs that pin it, and the dirty units.
//!
//! A unit is reserved (meta pages, heads of groups), or *published* (the last published root
//! reaches it), or *pending* (an older root does), or held by the open transaction, or free.
//! Everything here changes under one lock that is held for moments; readers never take it.

pub(crate) mod alloc_groups;
pub(crate) mod double_free;
pub(crate) mod epoch_list;
pub(crate) mod freelist;
pub(crate) mod holes;
pub(crate) mod space_map;

use std::collections::{BTreeMap, VecDeque};

use crate::error::{Error, Result};
use crate::memory::page_alloc::PageAlloc;
use crate::memory::page_reader::PageReader;
use crate::memory::page_table::UnlinkedFrame;
use crate::memory::root::{EndedRoot, EndedRoots};
use crate::page::Span;
use crate::page::layout::{META_UNITS, group_of, group_start};
use crate::page::unit_set::UnitSet;
use crate::space::epoch_list::EpochList;
use crate::space::freelist::{Freelist, PendingSpans};
use crate::space::holes::Holes;

/// The state of each unit of the file.
pub(crate) struct SpaceManager {
    /// Free units.
    pub(crate) freelist: Freelist,
    /// Replaced spans that wait for snapshots to end.
    pub(crate) pending: PendingSpans,
    /// Units that the last published root reaches, counted from the first group on.
    pub(crate) published: UnitSet,
    /// Groups in which `published` differs from the last bitmap that a checkpoint wrote.
    pub(crate) changed: UnitSet,
    /// First units of published spans that the file does not have.
    dirty: UnitSet,
    dirty_bytes: u64,
    /// Retired buffers: a checkpoint has written them, and readers may have borrowed them from
    /// memory nonetheless.
    retired: EpochList<UnlinkedFrame>,
    retired_bytes: RetiredBytes,
    /// Bytes of pending spans that were replaced before a checkpoint wrote them.
    superseded: SupersededBytes,
    /// Memory for pages.
    pub(crate) page_alloc: PageAlloc,
    ended: EndedRoots,
    /// Roots that have ended and were not looked at yet.
    endings: VecDeque<EndedRoot>,
    /// Reservations: spans that are written to concurrently with all transactions, by their first
    /// units.
    reservations: BTreeMap<u64, u32>,
    /// Free units that are holes of the file.
    pub(crate) holes: Holes,
    /// The end of the file: its goal, and its durable end.
    pub(crate) tail: FileTail,
    /// Transactions whose roots are durable, and whether all others for whom they were kept have
    /// ended.
    durable: BTreeMap<u64, bool>,
}

/// The end of the file: its goal, and its durable end.
pub(crate) struct FileTail {
    /// The end that the file shall have, if it is being emptied beyond.
    goal: Option<u64>,
    /// The end that the durable root names.
    pub(crate) durable_end: u64,
    /// The file is to be truncated behind that.
    pub(crate) is_cut: bool,
}

/// Bytes of the retired buffers.
#[derive(Default)]
struct RetiredBytes {
    all: u64,
    /// The youngest state whose readers may have borrowed some of them, and the bytes of those.
    newest: (u64, u64),
}

impl RetiredBytes {
    fn add(&mut self, bytes: u64, newest: u64) {
        self.all += bytes;
        let (last, others) = self.newest;
        self.newest = (newest, bytes + if last == newest { others } else { 0 });
    }

    fn remove(&mut self, bytes: u64) {
        debug_assert!(self.all >= bytes, "a buffer was not counted");
        self.all -= bytes;
    }

    /// Without those that only readers of the state of `txid`, which the caller holds, may have
    /// borrowed: they stay until it has ended.
    fn of_states_before(&self, txid: u64) -> u64 {
        let (last, bytes) = self.newest;
        let young = if last == txid { bytes } else { 0 };
        debug_assert!(young <= self.all, "{young} of {}", self.all);
        self.all - young
    }
}

/// Bytes of pages and values that were replaced before a checkpoint wrote them: only old snapshots
/// need their memory.
#[derive(Default)]
struct SupersededBytes {
    held: u64,
    /// The same at the cut of the last checkpoint.
    at_cut: u64,
    /// By how much they had grown at that cut since the one before.
    before_cut: u64,
}

impl SupersededBytes {
    fn grown(&self) -> u64 {
        self.held.saturating_sub(self.at_cut)
    }

    fn cut(&mut self) {
        self.before_cut = self.grown();
        self.at_cut = self.held;
    }
}

/// Things of ended snapshots that a transaction looks at, at least, when it begins and when it
/// ends: some microseconds.
pub(crate) const ENDED_MIN: usize = 64;

impl SpaceManager {
    /// The space of a file that ends at `end`, whose durable root is `txid` and uses `published`.
    pub(crate) fn new(
        published: UnitSet,
        end: u64,
        txid: u64,
        holes: Holes,
        ended: EndedRoots,
    ) -> SpaceManager {
        let mut pending = PendingSpans::default();
        pending.open(txid);
        let mut retired = EpochList::default();
        retired.open(txid);
        SpaceManager {
            freelist: Freelist::restore(&published, end),
            pending,
            published,
            changed: UnitSet::default(),
            dirty: UnitSet::default(),
            dirty_bytes: 0,
            retired,
            retired_bytes: RetiredBytes::default(),
            superseded: SupersededBytes::default(),
            page_alloc: PageAlloc::default(),
            ended,
            endings: VecDeque::new(),
            reservations: BTreeMap::new(),
            holes,
            tail: FileTail { goal: None, durable_end: end, is_cut: false },
            durable: BTreeMap::from([(txid, false)]),
        }
    }

    /// Counts all that is free in some groups as holes.
    pub(crate) fn expect_holes(&mut self, has_holes: impl Fn(usize) -> bool) {
        for span in self.freelist.spans_of(has_holes) {
            self.holes.add(span);
        }
    }

    /// Wants the file to end at `goal`: units beyond it are given out only if none below fit, and
    /// each checkpoint gives up what is free at the end.
    pub(crate) fn shrink_to(&mut self, goal: u64) {
        debug_assert!(goal >= META_UNITS, "a file cannot end at unit {goal}");
        self.tail.goal = Some(goal);
        self.freelist.set_limit(Some(goal));
    }

    /// Units that the last published root and the checkpoints use, from unit `from` on.
    pub(crate) fn used_units(&self, from: u64) -> u64 {
        self.published.count_from(from.saturating_sub(META_UNITS))
    }

    pub(crate) fn is_shrinking(&self) -> bool {
        self.tail.goal.is_some()
    }

    /// Notes that the file is as short as it can be now.
    pub(crate) fn note_shrunk(&mut self) {
        if self.tail.goal.is_some_and(|goal| self.freelist.end() <= goal) {
            self.tail.goal = None;
            self.freelist.set_limit(None);
        }
    }

    /// A span for the open transaction.
    pub(crate) fn allocate(&mut self, units: u32) -> Result<Span> {
        let full = "the file's limit of 2^32 pages is reached";
        let span = self.freelist.allocate(units);
        let span = span.ok_or_else(|| Error::Io(std::io::Error::other(full)))?;
        debug_assert!(!self.is_published(span), "{span:?} was given out while in use");
        self.holes.give_out(span);
        Ok(span)
    }

    /// A span for the open transaction before the end that the file shall have, if there is one.
    pub(crate) fn allocate_below(&mut self, units: u32) -> Option<Span> {
        let span = self.freelist.allocate_below(units)?;
        debug_assert!(!self.is_published(span), "{span:?} was given out while in use");
        self.holes.give_out(span);
        Some(span)
    }

    /// Gives up the free units at the end of the file, if they are at least `units_min`.
    pub(crate) fn trim(&mut self, units_min: u64) -> bool {
        let end = self.freelist.end();
        let trimmed = self.freelist.trim(units_min);
        debug_assert!(self.freelist.end() <= end, "a trim made the file longer");
        let mut from = self.freelist.end();
        while self.holes.count() > 0 && from < end {
            let to = end.min(group_start(group_of(from) + 1));
            self.holes.forget(Span { start: from, units: (to - from) as u32 });
            from = to;
        }
        trimmed
    }

    /// A span of at most `units` that a checkpoint has chosen to be a hole, if it is still free; it
    /// is reserved then.
    pub(crate) fn take_chosen(&mut self, units: u32) -> Option<Span> {
        loop {
            let span = self.holes.next_chosen(units)?;
            if self.freelist.is_free(span) {
                self.freelist.take_free(span);
                self.enter_reservation(span);
                return Some(span);
            }
        }
    }

    /// A span that is written to concurrently with all transactions.
    pub(crate) fn reserve(&mut self, units: u32) -> Result<Span> {
        let span = self.allocate(units)?;
        self.enter_reservation(span);
        Ok(span)
    }

    /// Notes that a span, which is not free, is reserved.
    pub(crate) fn enter_reservation(&mut self, span: Span) {
        let old = self.reservations.insert(span.start, span.units);
        assert!(old.is_none(), "unit {} is reserved twice", span.start);
    }

    /// Whether the last published root reaches any unit of a span.
    fn is_published(&self, span: Span) -> bool {
        self.published.count_run(span.start - META_UNITS, u64::from(span.units)) > 0
    }

    /// Ends a reservation. The span belongs to the caller then.
    pub(crate) fn end_reservation(&mut self, span: Span) {
        let units = self.reservations.remove(&span.start);
        assert_eq!(units, Some(span.units), "unit {} was not reserved like that", span.start);
    }

    /// Spans that are reserved.
    pub(crate) fn reservations(&self) -> impl Iterator<Item = Span> {
        self.reservations.iter().map(|(&start, &units)| Span { start, units })
    }

    /// Enters reserved spans as published; the file has their contents.
    pub(crate) fn adopt(&mut self, spans: &[Span]) {
        for &span in spans {
            self.end_reservation(span);
            self.enter(span);
        }
    }

    /// Takes back a span that was never published.
    pub(crate) fn release(&mut self, span: Span) {
        debug_assert!(!self.is_published(span), "{span:?} was freed while in use");
        self.freelist.release(span);
    }

    /// Collects the snapshots that have ended, and releases what no snapshot needs any more: looks
    /// at up to `count` of them, and of the things that waited for them. Returns at how many it has
    /// looked: fewer than `count` if that was all.
    pub(crate) fn reclaim_ended(&mut self, page_reader: &PageReader, count: usize) -> usize {
        self.endings.extend(std::mem::take(&mut *self.ended.lock()));
        // The endings first: a thing that waits for none but them is released at once, however much
        // waits for others.
        let ending_count = self.endings.len().min(count);
        for _ in 0..ending_count {
            let ending = self.endings.pop_front().expect("there are as many");
            self.close(ending);
        }
        ending_count + self.release_unneeded(page_reader, count - ending_count)
    }

    fn close(&mut self, ending: EndedRoot) {
        match ending {
            EndedRoot::Readers(txid) => {
                self.retired.close(txid);
                // The durable root still pins its spans, until another root is durable.
                match self.durable.get_mut(&txid) {
                    Some(others_ended) => *others_ended = true,
                    None => self.pending.close(txid),
                }
            }
            EndedRoot::Durable(txid) => {
                // Its readers may go on; then they release the spans.
                if self.durable.remove(&txid) == Some(true) {
                    self.pending.close(txid);
                }
            }
        }
    }

    /// Looks at up to `count` things that waited for ended snapshots: retired buffers, then spans.
    fn release_unneeded(&mut self, page_reader: &PageReader, count: usize) -> usize {
        let SpaceManager {
            retired, retired_bytes, superseded, pending, freelist, page_alloc, ..
        } = self;
        let retired_count = retired.collect(count, |taken| {
            retired_bytes.remove(taken.len() as u64);
            page_alloc.recycle(taken);
        });
        let span_count = pending.collect(count - retired_count, |span| {
            if let Some(taken) = page_reader.forget(span) {
                superseded.held = superseded.held.saturating_sub(span.bytes());
                page_alloc.recycle(taken);
            }
            freelist.release(span);
        });
        retired_count + span_count
    }

    /// Says that the root of `txid`, which is held, is durable now.
    pub(crate) fn make_durable(&mut self, txid: u64) {
        let last = self.durable.last_key_value().map(|(&txid, _)| txid);
        assert!(last.is_none_or(|last| last < txid), "{txid} is durable after {last:?}");
        let old = self.durable.insert(txid, false);
        assert!(old.is_none(), "transaction {txid} was made durable twice");
    }

    /// Says that the root of `txid`, the next one, may be read from now on.
    pub(crate) fn open(&mut self, txid: u64) {
        self.pending.open(txid);
        self.retired.open(txid);
    }

    /// Retires the buffers that a checkpoint has written and unlinked, as long as a reader may have
    /// borrowed them: until all snapshots have ended that see them and are not younger than
    /// `newest`, the last published transaction.
    pub(crate) fn retire(&mut self, written: RetiredBatch, newest: u64) {
        self.retired_bytes.add(written.bytes, newest);
        self.retired.add_all(written.things, newest);
    }

    /// Bytes that [`SpaceManager::retire`] keeps.
    pub(crate) fn retired_bytes(&self) -> u64 {
        self.retired_bytes.all
    }

    /// Takes out of use what a transaction replaced, some of which it may have adopted: the first
    /// step of publishing it.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] if a span is not in use, or is named twice: the file is damaged or
    /// forged. Then nothing has changed.
    pub(crate) fn leave_all(&mut self, replaced: &[(Span, u64)]) -> Result<()> {
        for (i, &(span, _)) in replaced.iter().enumerate() {
            if let Err(error) = self.take_out(span) {
                for &(span, _) in &replaced[..i] {
                    self.published.insert_run(span.start - META_UNITS, u64::from(span.units));
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Proves that the last published root reaches a span.
    pub(crate) fn verify_in_use(&self, span: Span) -> Result<()> {
        let is_used = |unit: u64| {
            unit.checked_sub(META_UNITS).is_some_and(|bit| self.published.contains(bit))
        };
        if span.units == 0 || !(span.start..span.end()).all(is_used) {
            let what = "it is given back, and not in use";
            return Err(Error::Corrupt { page: span.start, what });
        }
        Ok(())
    }

    fn take_out(&mut self, span: Span) -> Result<()> {
        self.verify_in_use(span)?;
        for unit in span.start..span.end() {
            self.published.remove(unit - META_UNITS);
        }
        Ok(())
    }

    /// Takes back the spans that a transaction has written and adopted, and that cannot be
    /// published.
    pub(crate) fn take_back(
        &mut self,
        page_reader: &PageReader,
        written: &[Span],
        adopted: &[Span],
    ) {
        for &span in written {
            if let Some(taken) = page_reader.forget(span) {
                self.page_alloc.recycle(taken);
            }
            self.freelist.release(span);
        }
        for &span in adopted {
            // The transaction may have read some of it.
            for start in span.start..span.end() {
                page_reader.forget(Span { start, units: 1 });
            }
            self.leave(span);
            self.freelist.release(span);
        }
    }

    /// Enters the spans that transaction `txid` wrote and those that it replaced, with the creating
    /// transactions of the latter. The caller has made the new root current just now, and
    /// [`SpaceManager::leave_all`] before.
    pub(crate) fn publish(
        &mut self,
        page_reader: &PageReader,
        txid: u64,
        written: &[Span],
        replaced: &[(Span, u64)],
    ) {
        // More than it adds itself, so that the backlog shrinks.
        self.reclaim_ended(page_reader, ENDED_MIN + 4 * (written.len() + replaced.len()));
        for &span in written {
            self.enter(span);
            self.dirty.insert(span.start);
            self.dirty_bytes += span.bytes();
        }
        for &(span, created_txid) in replaced {
            self.changed.insert(group_of(span.start) as u64);
            // Replaced before a checkpoint came: it is never written.
            let was_dirty = self.dirty.remove(span.start);
            if was_dirty {
                self.dirty_bytes -= span.bytes();
            }
            let is_free = self.pending.add(span, created_txid, txid);
            if was_dirty && !is_free {
                self.superseded.held += span.bytes();
            }
            if is_free {
                if let Some(taken) = page_reader.forget(span) {
                    self.page_alloc.recycle(taken);
                }
                self.freelist.release(span);
            }
        }
    }

    /// Marks a span as reached by the last published root.
    pub(crate) fn enter(&mut self, span: Span) {
        let new = self.published.insert_run(span.start - META_UNITS, u64::from(span.units));
        assert!(new, "{span:?} was given out while in use");
        self.changed.insert(group_of(span.start) as u64);
    }

    /// Marks a span as no longer reached by the last published root.
    pub(crate) fn leave(&mut self, span: Span) {
        for unit in span.start..span.end() {
            assert!(
                self.published.remove(unit - META_UNITS),
                "unit {unit} was freed while not in use"
            );
        }
        self.changed.insert(group_of(span.start) as u64);
    }

    /// Bytes that the last published root reaches and that no checkpoint has begun to write.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes
    }

    /// Bytes in memory that snapshots need which are older than the state of `txid`, a published
    /// one. Buffers that only readers of that state may have borrowed go with it, mostly as soon
    /// as the next one is published. A part of the rest may wait for no more than the next
    /// transaction.
    pub(crate) fn old_version_bytes(&self, txid: u64) -> u64 {
        let held = self.retired_bytes.of_states_before(txid) + self.superseded.held;
        held.saturating_sub(self.page_alloc.spilled_bytes())
    }

    /// Bytes by which the memory has grown since the last checkpoint: dirty ones, and those that
    /// were replaced before they were written and that a snapshot needs.
    pub(crate) fn grown_bytes(&self) -> u64 {
        self.dirty_bytes + self.superseded.grown()
    }

    /// By how much [`SpaceManager::grown_bytes`] was more than the dirty bytes, at the last cut.
    pub(crate) fn superseded_before_cut(&self) -> u64 {
        self.superseded.before_cut
    }

    /// The oldest transaction whose state a snapshot, or a transaction, reads.
    pub(crate) fn oldest_reader(&self) -> Option<u64> {
        self.retired.oldest()
    }

    /// The same, of transactions from `txid` on.
    pub(crate) fn oldest_reader_from(&self, txid: u64) -> Option<u64> {
        self.retired.oldest_from(txid)
    }

    /// First units of what is dirty.
    pub(crate) fn dirty_starts(&self) -> impl Iterator<Item = u64> {
        self.dirty.iter()
    }

    /// Hands over the dirty units, for a checkpoint of the last published root.
    pub(crate) fn take_dirty(&mut self) -> UnitSet {
        self.dirty_bytes = 0;
        self.superseded.cut();
        std::mem::take(&mut self.dirty)
    }
}

/// Buffers that a checkpoint has written and unlinked, with their creating transactions.
#[derive(Default)]
pub(crate) struct RetiredBatch {
    things: Vec<(UnlinkedFrame, u64)>,
    bytes: u64,
}

impl FromIterator<UnlinkedFrame> for RetiredBatch {
    fn from_iter<I: IntoIterator<Item = UnlinkedFrame>>(written: I) -> RetiredBatch {
        let mut retired = RetiredBatch::default();
        for taken in written {
            retired.bytes += taken.len() as u64;
            let created_txid = taken.created_txid();
            retired.things.push((taken, created_txid));
        }
        retired
    }
}
