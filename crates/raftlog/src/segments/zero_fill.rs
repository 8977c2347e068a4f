//! Zero filling of the preallocated segment: which bytes of it, and at which pace.
//!
//! A sync of frames that overwrite zeros writes their bytes only, and no metadata of the file
//! system; so it is quicker if the next segment was filled with zeros before. The zeros are written
//! in small pieces, at the pace at which the active segment becomes full. A piece is skipped if the
//! log is not synced often when it is due.
//! `docs/decisions/0009-zeros-ahead-where-there-are-syncs.md`,
//! `docs/decisions/0027-segments-grow-and-zeros-are-paced.md`

use flotilla_base::event_count::EventCount;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The length of one piece of zeros. The kernel may keep a longer write as one large folio of its
/// page cache, and then check every block of that folio in every small write that comes later.
pub(super) const PIECE_BYTES: u64 = 64 << 10;

/// The source of a piece.
pub(super) static ZEROS: [u8; PIECE_BYTES as usize] = [0; PIECE_BYTES as usize];

/// Zeros are written if the active segment was synced at least once for this many bytes. Where one
/// sync covers more of them, the doubled write costs more than quicker syncs gain.
const BYTES_PER_SYNC: u64 = 16 << 10;

/// The part of the file that is skipped at once: each step wakes the thread that fills.
const SKIPPED_PARTS: u64 = 16;

/// No zeros are written once this much was written without a sync.
const UNSYNCED_BYTES_MAX: u64 = 64 * BYTES_PER_SYNC;

/// The next step of zero filling.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FillStep {
    /// This piece is due.
    Write(Range<u64>),
    /// No piece is due before the active segment has grown.
    Later,
    /// Nothing up to here is to be filled any more.
    Skip(u64),
}

/// The use of the active segment, as far as zero filling wants to know it. All of it is a hint: a
/// stale value costs time, never correctness.
#[derive(Debug)]
pub(super) struct FillPace {
    /// Syncs since the active segment was begun.
    sync_count: AtomicU64,
    /// Bytes of writes since the last sync that want none; the newest may not be written yet.
    unsynced_bytes: AtomicU64,
    /// Where the frames of the active segment end, and the length of its file. 0: there is none.
    active_end: AtomicU64,
    active_bytes: AtomicU64,
    /// The end of the active segment at which the next piece is due.
    due_end: AtomicU64,
    /// A write waits for the next segment.
    pub(super) is_write_waiting: AtomicBool,
    /// Notified when a piece is due.
    event_count: Arc<EventCount>,
}

impl FillPace {
    /// The pace of a log without an active segment.
    pub(super) fn new(event_count: Arc<EventCount>) -> FillPace {
        FillPace {
            sync_count: AtomicU64::default(),
            unsynced_bytes: AtomicU64::default(),
            active_end: AtomicU64::default(),
            active_bytes: AtomicU64::default(),
            due_end: AtomicU64::new(u64::MAX),
            is_write_waiting: AtomicBool::default(),
            event_count,
        }
    }

    /// A segment of `file_bytes` becomes the active one.
    pub(super) fn begin_active(&self, file_bytes: u64) {
        self.sync_count.store(0, Ordering::Relaxed);
        self.active_end.store(0, Ordering::Relaxed);
        self.active_bytes.store(file_bytes, Ordering::Relaxed);
    }

    /// The frames of the active segment now end at `end`. Each append comes here.
    pub(super) fn advance(&self, end: u64) {
        self.active_end.store(end, Ordering::Relaxed);
        if end >= self.due_end.load(Ordering::Relaxed) {
            self.due_end.store(u64::MAX, Ordering::Relaxed);
            self.event_count.notify();
        }
    }

    pub(super) fn count_sync(&self) {
        self.sync_count.fetch_add(1, Ordering::Relaxed);
        self.unsynced_bytes.store(0, Ordering::Relaxed);
    }

    /// Counts bytes that are about to be written and need not be synced. To be called by one thread
    /// at a time, which so needs no locked instruction.
    pub(super) fn expect_unsynced(&self, bytes: u64) {
        let before = self.unsynced_bytes.load(Ordering::Relaxed);
        self.unsynced_bytes.store(before.saturating_add(bytes), Ordering::Relaxed);
    }

    /// The next step for a segment of `file_bytes`, of which `unfilled`, up to its end, was neither
    /// filled nor skipped.
    pub(super) fn next(&self, unfilled: &Range<u64>, file_bytes: u64) -> FillStep {
        if unfilled.is_empty() {
            self.due_end.store(u64::MAX, Ordering::Relaxed);
            return FillStep::Later;
        }
        // A write that waits for the segment waits for no piece that is not begun.
        if self.is_write_waiting.load(Ordering::Relaxed) {
            return FillStep::Later;
        }
        let due_end = self.due_end(unfilled.start, file_bytes);
        self.due_end.store(due_end, Ordering::Relaxed);
        // Behind the store: an append in between has seen it, or is seen here.
        if self.active_end.load(Ordering::Relaxed) < due_end {
            return FillStep::Later;
        }
        let end_at = |end: u64| end.next_multiple_of(PIECE_BYTES).min(unfilled.end);
        if self.is_synced_often() {
            FillStep::Write(unfilled.start..end_at(unfilled.start + 1))
        } else {
            FillStep::Skip(end_at(unfilled.start + (file_bytes / SKIPPED_PARTS).max(1)))
        }
    }

    /// How far the active segment has to be for the piece at `start` to be due: the last one is at
    /// seven eighths of it. The first segment after opening is filled at once.
    fn due_end(&self, start: u64, file_bytes: u64) -> u64 {
        let active_bytes = self.active_bytes.load(Ordering::Relaxed);
        let due_end = u128::from(start) * u128::from(active_bytes - active_bytes / 8);
        u64::try_from(due_end / u128::from(file_bytes.max(1))).unwrap_or(u64::MAX)
    }

    fn is_synced_often(&self) -> bool {
        let is_first = self.active_bytes.load(Ordering::Relaxed) == 0;
        let synced_bytes = self.sync_count.load(Ordering::Relaxed).saturating_mul(BYTES_PER_SYNC);
        self.unsynced_bytes.load(Ordering::Relaxed) <= UNSYNCED_BYTES_MAX
            && (is_first || self.active_end.load(Ordering::Relaxed) <= synced_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE_BYTES: u64 = 1 << 20;

    fn pace() -> FillPace {
        FillPace::new(Arc::default())
    }

    fn pieces(pace: &FillPace, unfilled: &mut Range<u64>) -> (u64, u64) {
        let (mut written, mut skipped) = (0, 0);
        loop {
            match pace.next(unfilled, FILE_BYTES) {
                FillStep::Write(piece) => {
                    assert_eq!(piece.start, unfilled.start);
                    (written, unfilled.start) = (written + 1, piece.end);
                }
                FillStep::Skip(end) => (skipped, unfilled.start) = (skipped + 1, end),
                FillStep::Later => return (written, skipped),
            }
        }
    }

    #[test]
    fn the_first_segment_is_filled_at_once_unless_writes_want_no_syncs() {
        for (unsynced_bytes, count) in [(UNSYNCED_BYTES_MAX, 16), (2 << 20, 0)] {
            let (pace, mut unfilled) = (pace(), 4096..FILE_BYTES);
            pace.expect_unsynced(unsynced_bytes);
            assert_eq!(pieces(&pace, &mut unfilled).0, count, "{unsynced_bytes}");
            assert!(unfilled.is_empty());
        }
    }

    #[test]
    fn zeros_keep_pace_with_the_active_segment() {
        let (pace, mut unfilled) = (pace(), 0..FILE_BYTES);
        pace.begin_active(FILE_BYTES);
        pace.count_sync();
        assert_eq!(pieces(&pace, &mut unfilled), (1, 0), "the first piece is due at once");
        for end in (8 << 10..=FILE_BYTES / 8 * 7).step_by(8 << 10) {
            pace.count_sync();
            let before = pace.event_count.wait(u64::MAX, std::time::Duration::ZERO);
            pace.advance(end);
            let is_notified = pace.event_count.wait(u64::MAX, std::time::Duration::ZERO) > before;
            let (written, skipped) = pieces(&pace, &mut unfilled);
            assert_eq!((written == 1, skipped), (is_notified, 0), "at {end}");
            assert!(written <= 1, "at {end}");
        }
        assert!(unfilled.is_empty(), "{unfilled:?}");
    }

    #[test]
    fn pieces_that_are_due_while_syncs_are_rare_are_skipped() {
        let (pace, mut unfilled) = (pace(), 0..FILE_BYTES);
        pace.begin_active(FILE_BYTES);
        // One sync for each 16 KiB up to the half, and none from there on.
        (0..32).for_each(|_| pace.count_sync());
        pace.advance(FILE_BYTES / 2);
        let (written, _) = pieces(&pace, &mut unfilled);
        pace.advance(FILE_BYTES);
        let (more, skipped) = pieces(&pace, &mut unfilled);
        assert_eq!((more, written + skipped), (0, 16), "{written} were written");
        assert!((8..=10).contains(&written), "{written}");
    }

    #[test]
    fn a_write_that_waits_goes_first() {
        let pace = pace();
        pace.is_write_waiting.store(true, Ordering::Relaxed);
        assert_eq!(pace.next(&(0..FILE_BYTES), FILE_BYTES), FillStep::Later);
    }
}
