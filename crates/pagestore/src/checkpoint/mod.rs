//! Checkpoint: makes the last published root durable.
//!
//! 1. Room in the file is reserved. If there is none, nothing has happened.
//! 2. Under the lock of the space: the root is taken, with the position in the redo area behind all
//!    that it contains, the list of dirty pages, and the bitmaps that have changed. This cut takes
//!    moments; writers go on right after it.
//! 3. Pages and long values are written in the order of their places, and brought to the disk in
//!    pieces of 1 MiB, then bitmaps and directory. All of it goes to units that the last durable
//!    root does not use. Sync.
//! 4. The meta page is written over the older of the two. Sync. From here on the new root counts.
//! 5. Dirty pages become clean, and the old durable root releases its pages. Spare space of the
//!    file is noted for `trim_punch`.
//!
//! A crash before the end of 4 finds the old root whole, or the new one.

pub(crate) mod file_end;
mod pace;
mod redo_ring;
pub(crate) mod reservation;
mod spill;

pub(crate) use redo_ring::CheckpointScope;

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::checkpoint::file_end::lock_with_room;
use crate::checkpoint::pace::{PACE_BYTES, Pace};
use crate::checkpoint::redo_ring::RingChange;
use crate::error::{Error, Result};
use crate::memory::meta::{ALL_COPIES, MetaPage};
use crate::memory::page_reader::DirtyData;
use crate::memory::root::Root;
use crate::page::layout::group_count;
use crate::page::leaf::ValueExtent;
use crate::page::unit_set::UnitSet;
use crate::page::{self, CRC_END, Span, UNIT_BYTES, units_for};
use crate::shared::{LastCheckpoint, StoreShared};
use crate::space::alloc_groups::BitmapPlan;
use crate::space::{RetiredBatch, SpaceManager};

/// Bytes of one write, at most by one page or value more.
const RUN_BYTES_MAX: usize = 1 << 20;

/// Prefetch distance in pages: dirty pages are scattered over memory, so each would be a cache
/// miss.
const AHEAD: usize = 8;

/// The cut of a checkpoint: all that has to be written so that one root becomes durable.
struct CheckpointCut {
    root: Arc<Root>,
    dirty: UnitSet,
    /// Bitmap pages and their units.
    bitmaps: Vec<(u64, Vec<u8>)>,
    directory: Vec<u8>,
    meta: MetaPage,
    /// The meta pages to be written: both, if the ring is another one from now on. The older one
    /// would name a ring to which no frame is appended any more.
    meta_count: u64,
    /// The last directory; free once the new root counts.
    old_directory: Option<Span>,
    /// Free space that may be given back to the file system once the new root counts.
    chosen: Vec<Span>,
}

/// Makes the last published root durable, as fast as it goes.
pub(crate) fn run(shared: &StoreShared, scope: CheckpointScope) -> Result<()> {
    // A checkpoint that is under way has to end first, so its rate limit is lifted.
    let _urgent = shared.background.notify.urge();
    // A caller that makes its own checkpoints learns of missing slabs nowhere else. Not for one
    // that a commit costs: its caller waits.
    let mut pace = |_| {
        if scope == CheckpointScope::Pages {
            shared.make_slabs();
        }
        Ok(())
    };
    run_paced(shared, scope, &mut pace)
}

/// Makes the last published root durable, at a pace.
pub(crate) fn run_paced(
    shared: &StoreShared,
    scope: CheckpointScope,
    pace: &mut Pace<'_>,
) -> Result<()> {
    let mut written = shared.last_checkpoint.lock();
    // Asked under the lock: the checkpoint that this one waited for may have failed.
    shared.refuse_if_poisoned()?;
    let cut = redo_ring::prepare(shared, &written, scope, pace)
        .and_then(|new_ring| cut(shared, &mut written, new_ring))
        .inspect_err(|error| {
            if matches!(error, Error::NoSpace) {
                shared.background.policy.lock().note_full();
            }
        });
    let Some(mut cut) = cut? else { return Ok(()) };
    let spill = spill::begin(shared, written.meta.txid, cut.root.txid);
    if let Err(error) = write(shared, &mut cut, pace) {
        shared.poison();
        return Err(error);
    }
    finish(shared, &mut written, cut);
    if let Some(plan) = spill {
        spill::run(shared, plan);
    }
    let free_bytes = shared.space.lock().freelist.free_units() * UNIT_BYTES as u64;
    shared.background.policy.lock().note_checkpoint(free_bytes, &shared.options);
    Ok(())
}

/// Takes the last published root and its dirty pages. Nothing if the root is durable already, and
/// the file is not trimmed.
fn cut(
    shared: &StoreShared,
    written: &mut LastCheckpoint,
    new_ring: Option<RingChange<'_>>,
) -> Result<Option<CheckpointCut>> {
    let old_directory = (written.meta.directory.len > 0).then(|| written.meta.directory.span());
    let mut trimmed = false;
    // Before the space is locked for the cut, which so takes moments.
    shared.reclaim_all_ended();
    let (mut space, root, spans) = loop {
        let mut space = lock_with_room(shared, 0)?;
        let root = shared.current();
        assert!(root.txid >= written.meta.txid, "the durable root is ahead of {}", root.txid);
        trimmed |= file_end::trim(shared, &mut space);
        if root.txid == written.meta.txid && !trimmed {
            return Ok(None);
        }
        let spans = allocate_spans(&mut space, written, new_ring.as_ref())?;
        if !space.holes.are_unreserved() {
            break (space, root, spans);
        }
        // They lie in a hole, which has to be reserved first. Then they are taken again.
        space.release(spans.directory);
        if let Some(change) = &new_ring {
            change.undo(&mut space);
        }
    };
    let CheckpointSpans { plan, directory_len, directory: span } = spans;
    let is_apart = |old: Span| old.end() <= span.start || span.end() <= old.start;
    assert!(old_directory.is_none_or(is_apart), "{span:?} overwrites the durable directory");
    space.enter(span);
    if let Some(old) = old_directory {
        space.leave(old);
    }
    let dirty_bytes = space.dirty_bytes();
    let dirty = space.take_dirty();
    shared.counters.writing_bytes.store(dirty_bytes, Ordering::Relaxed);
    let changed = std::mem::take(&mut space.changed);
    let bitmaps = written.groups.update(&plan, &changed, &space.published, root.txid);
    let SpaceManager { holes, freelist, .. } = &mut *space;
    let chosen = holes.choose(freelist, written.meta.number + 1);
    written.groups.note_holes(group_count(freelist.end()), holes.groups(&chosen));
    let end = space.freelist.end();
    let reserved = shared.counters.file_bytes.load(Ordering::Relaxed);
    assert!(end * UNIT_BYTES as u64 <= reserved, "unit {end} lies beyond {reserved} bytes");
    // Taken together with the root: a transaction that is published later has its record behind it.
    let meta_count = 1 + u64::from(new_ring.is_some());
    let redo = shared.redo.cut(new_ring.map(RingChange::adopt));
    drop(space);
    let directory = written.groups.encode(group_count(end), directory_len);
    let meta = MetaPage {
        number: written.meta.number + 1,
        txid: root.txid,
        catalogue: root.catalogue,
        end,
        directory: ValueExtent {
            start: span.start,
            len: u32::try_from(directory_len)
                .expect("some bytes for each 127 MiB of at most 16 TiB"),
            crc: crc32c::crc32c(&directory),
            created_txid: root.txid,
        },
        commit_metadata: root.commit_metadata.to_vec(),
        deferred_free: root.deferred_free,
        redo,
    };
    Ok(Some(CheckpointCut {
        root,
        dirty,
        bitmaps,
        directory,
        meta,
        meta_count,
        old_directory,
        chosen,
    }))
}

/// Spans that a checkpoint has allocated.
struct CheckpointSpans {
    plan: BitmapPlan,
    directory_len: usize,
    directory: Span,
}

/// Enters the new ring, if there is one, and allocates the span of the directory; both or none.
fn allocate_spans(
    space: &mut SpaceManager,
    written: &LastCheckpoint,
    new_ring: Option<&RingChange<'_>>,
) -> Result<CheckpointSpans> {
    // First: the bitmaps are planned with it.
    if let Some(change) = new_ring {
        change.enter(space);
    }
    let plan = written.groups.plan(&space.changed, &space.published);
    // The directory itself may begin a group.
    let group_count_max = group_count(space.freelist.end()) + 1;
    let old_units = units_for(written.meta.directory.len as usize);
    let directory_len = plan.directory_bytes(group_count_max, old_units);
    match space.allocate(units_for(directory_len)) {
        Ok(directory) => Ok(CheckpointSpans { plan, directory_len, directory }),
        Err(error) => {
            if let Some(change) = new_ring {
                change.undo(space);
            }
            Err(error)
        }
    }
}

/// Reserves the room in the file that a checkpoint of all that was allocated so far needs.
pub(crate) fn make_room(shared: &StoreShared, scope: CheckpointScope) -> Result<()> {
    lock_with_room(shared, redo_ring::first_units(shared, scope)).map(|_| ())
}

fn write(shared: &StoreShared, cut: &mut CheckpointCut, pace: &mut Pace<'_>) -> Result<()> {
    let file = shared.page_reader.file();
    let mut run = WriteRun::default();
    let mut under_way = 0..0;
    let mut ahead = cut.dirty.iter().skip(AHEAD);
    for start in cut.dirty.iter() {
        if let Some(next) = ahead.next() {
            shared.page_reader.prefetch_dirty(next, UNIT_BYTES);
        }
        let dirty = shared.page_reader.dirty(&cut.root, start);
        let dirty = dirty.expect("dirty frames stay until they are written");
        run.add(shared, start, dirty)?;
        if run.written >= PACE_BYTES {
            // Two pieces are under way: a sync of another file on this disk, as of a log, would
            // else wait for all pages of the checkpoint
            // (docs/decisions/0063-checkpoints-go-to-the-disk-in-pieces.md).
            let piece = run.take_piece();
            file.start_write_back(piece.clone())?;
            file.write_back(std::mem::replace(&mut under_way, piece))?;
            pace(std::mem::take(&mut run.written))?;
        }
    }
    run.flush(shared)?;
    pace(run.written)?;
    let bitmaps = cut.bitmaps.iter().map(|(unit, page)| (*unit, page));
    for (unit, bytes) in bitmaps.chain([(cut.meta.directory.start, &cut.directory)]) {
        write_at(shared, &[IoSlice::new(bytes)], unit)?;
        shared.counters.space_written_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    }
    file.sync()?;
    // Only after the sync: all that the meta page names is durable before it is.
    for number in (cut.meta.number..).take(cut.meta_count as usize) {
        cut.meta.number = number;
        write_at(shared, &[IoSlice::new(&cut.meta.encode())], cut.meta.unit())?;
        file.sync()?;
    }
    Ok(())
}

fn write_at(shared: &StoreShared, parts: &[IoSlice<'_>], unit: u64) -> Result<()> {
    let bytes: usize = parts.iter().map(|part| part.len()).sum();
    shared.counters.written_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    let end = unit * UNIT_BYTES as u64 + bytes as u64;
    let reserved = shared.counters.file_bytes.load(Ordering::Relaxed);
    debug_assert!(end <= reserved, "unit {unit} is written beyond {reserved} bytes");
    shared.page_reader.file().write_all_at(parts, unit * UNIT_BYTES as u64)?;
    Ok(())
}

/// Says that the cut is durable.
fn finish(shared: &StoreShared, written: &mut LastCheckpoint, cut: CheckpointCut) {
    // New readers find the pages in the file; older readers may have borrowed them from memory, so
    // the buffers are retired and not dropped.
    let mut ahead = cut.dirty.iter().skip(AHEAD);
    let written_at = |start| {
        // Of each its header is looked at.
        if let Some(next) = ahead.next() {
            shared.page_reader.prefetch_dirty(next, 1);
        }
        shared.page_reader.mark_clean(start)
    };
    let retired: RetiredBatch = cut.dirty.iter().filter_map(written_at).collect();
    shared.redo.checkpointed(cut.root.txid, cut.meta.number, cut.meta.redo);
    let end = cut.meta.end;
    let number = written.meta.number + cut.meta_count;
    assert_eq!(cut.meta.number, number, "two checkpoints ran at a time");
    assert!(cut.meta.txid >= written.meta.txid, "the durable root went back");
    written.copies[cut.meta.unit() as usize] = ALL_COPIES;
    if cut.meta_count > 1 {
        written.copies = [ALL_COPIES; 2];
    }
    written.meta = cut.meta;
    let mut space = shared.space.lock();
    // A checkpoint that only cuts the file off leaves the durable root as it was.
    if shared.durable.read().txid != cut.root.txid {
        space.make_durable(cut.root.txid);
        *shared.durable.write() = cut.root.of_the_file();
    }
    drop(cut.root);
    if let Some(old) = cut.old_directory {
        space.release(old);
    }
    if let Some(ring) = shared.redo.take_old_ring() {
        space.end_reservation(ring);
        space.release(ring);
    }
    space.retire(retired, shared.current().txid);
    space.holes.note_chosen(cut.chosen);
    file_end::note_durable(shared, &mut space, end);
    drop(space);
    shared.reclaim_all_ended();
    shared.trim_memory();
    shared.counters.writing_bytes.store(0, Ordering::Relaxed);
    shared.counters.checkpoints.fetch_add(1, Ordering::Relaxed);
    shared.background.write_throttle.progress();
}

/// Neighbouring pages and values that go to the file in one write.
#[derive(Default)]
struct WriteRun<'a> {
    start: u64,
    end: u64,
    bytes: usize,
    parts: Vec<DirtyData<'a>>,
    /// Bytes written since the last call of the pacing callback.
    written: u64,
    /// The place of the first of them.
    piece: Option<u64>,
}

impl<'a> WriteRun<'a> {
    fn add(&mut self, shared: &StoreShared, start: u64, dirty: DirtyData<'a>) -> Result<()> {
        if start != self.end || self.bytes >= RUN_BYTES_MAX {
            self.flush(shared)?;
            self.start = start;
        }
        debug_assert!(
            self.parts.is_empty() || start == self.end,
            "unit {start} does not follow {}",
            self.end
        );
        self.end = start + u64::from(units_for(dirty.bytes().len()));
        self.bytes += dirty.bytes().len();
        self.parts.push(dirty);
        Ok(())
    }

    /// The bytes of the file from the first one that was written since the last piece was taken, up
    /// to the run that is not written yet.
    fn take_piece(&mut self) -> Range<u64> {
        let first = self.piece.take().unwrap_or(self.start);
        assert!(first <= self.start, "a piece from {first} on ends at {}", self.start);
        first * UNIT_BYTES as u64..self.start * UNIT_BYTES as u64
    }

    fn flush(&mut self, shared: &StoreShared) -> Result<()> {
        const PADDING: [u8; UNIT_BYTES] = [0; UNIT_BYTES];
        if self.parts.is_empty() {
            return Ok(());
        }
        // Readers borrow the buffers, so checksums are written from a slice of their own, not into
        // the page.
        let checksums: Vec<[u8; CRC_END]> = self.parts.iter().map(checksum).collect();
        let mut slices = Vec::with_capacity(2 * self.parts.len());
        for (part, checksum) in self.parts.iter().zip(&checksums) {
            match part {
                DirtyData::Page(frame) => {
                    slices.push(IoSlice::new(checksum));
                    slices.push(IoSlice::new(&frame[CRC_END..]));
                }
                DirtyData::Extent(value) => {
                    slices.push(IoSlice::new(value));
                    let padding = value.len().next_multiple_of(UNIT_BYTES) - value.len();
                    slices.push(IoSlice::new(&PADDING[..padding]));
                }
            }
        }
        debug_assert_eq!(
            slices.iter().map(|slice| slice.len() as u64).sum::<u64>(),
            (self.end - self.start) * UNIT_BYTES as u64,
            "a run with a gap"
        );
        write_at(shared, &slices, self.start)?;
        let bytes = (self.end - self.start) * UNIT_BYTES as u64;
        self.written += bytes;
        self.piece.get_or_insert(self.start);
        shared.counters.writing_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.parts.clear();
        self.bytes = 0;
        Ok(())
    }
}

fn checksum(part: &DirtyData<'_>) -> [u8; CRC_END] {
    match part {
        DirtyData::Page(frame) => page::checksum(frame),
        // The leaf has it.
        DirtyData::Extent(_) => [0; CRC_END],
    }
}
