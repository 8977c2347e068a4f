//! Read-ahead of a range of entries: announces to the kernel which bytes of a segment are read
//! next, if they are not in memory.
//!
//! Maps of segments are advised that reads are random, so a page fault reads one page. A read of a
//! range knows its pages from the index and announces them together. A warm log must not pay for
//! that, so a range read times its first look at an append now and then; only after a slow one it
//! asks the kernel. `docs/decisions/0028-the-log-reads-ahead-by-its-index.md`

use crate::batch::frame::EntryRun;
use flotilla_vfs::{File, View};
use std::hint::black_box;
use std::ops::Range;
use std::time::{Duration, Instant};

/// The first look at each run of this many is timed.
pub(super) const RUNS_PER_LOOK: usize = 16;

/// Fewer bytes of one append are not worth a look at the clock.
const ITEM_BYTES_MIN: u64 = 8 << 10;

/// A look that takes longer has waited for the disk, or its thread has lost the CPU.
const SLOW: Duration = Duration::from_micros(5);

/// How many of the next runs are probed after a slow look.
const PROBES_MAX: usize = 4;

/// Bytes between two runs that are read along: another read costs as much.
const GAP_BYTES_MAX: u64 = 16 << 10;

const PAGE_BYTES: u64 = 4096;

/// Looks at the first of `runs`, and announces what is `wanted` of all of them if that was slow and
/// they are not in memory. `view` has the bytes of the segment from `begin` on. True if it has
/// announced them.
pub(super) fn look(
    file: &dyn File,
    view: &View,
    begin: u64,
    runs: &[EntryRun],
    wanted: &Range<u64>,
) -> bool {
    if runs.len() <= 2 && runs.iter().all(|run| is_short(run, wanted)) {
        return false;
    }
    let at = (u64::from(runs[0].offset) - begin) as usize;
    let start = Instant::now();
    black_box(view[at]);
    if start.elapsed() <= SLOW {
        return false;
    }
    let mut pieces = runs.iter().map(|run| needed(run, wanted));
    if is_resident(view, begin, runs, pieces.clone().next_back()) {
        return false;
    }
    let Some(mut whole) = pieces.next() else { return false };
    for piece in pieces {
        if piece.start >= whole.start && piece.start <= whole.end.saturating_add(GAP_BYTES_MAX) {
            whole.end = whole.end.max(piece.end);
        } else {
            file.will_need(std::mem::replace(&mut whole, piece));
        }
    }
    file.will_need(whole);
    true
}

/// Whether some of the runs behind the first, and the end of the last, are in memory.
fn is_resident(view: &View, begin: u64, runs: &[EntryRun], last: Option<Range<u64>>) -> bool {
    let step = (runs.len() / PROBES_MAX).max(1);
    let probed = runs.iter().skip(1).step_by(step).map(|run| u64::from(run.offset));
    let last = last.map(|last| last.end - 1);
    probed.chain(last).all(|offset| view.is_resident((offset - begin) as usize))
}

/// Whether the wanted entries of the run are short together. Without a division: each read of a
/// single entry comes here.
fn is_short(run: &EntryRun, wanted: &Range<u64>) -> bool {
    let wanted = wanted.end.min(run.end).saturating_sub(wanted.start.max(run.first));
    let wanted_bytes = u64::from(run.item_bytes).saturating_mul(wanted);
    wanted_bytes <= ITEM_BYTES_MIN.saturating_mul(run.end - run.first)
}

/// The bytes of the run that hold its wanted entries, if all are about equally long.
fn needed(run: &EntryRun, wanted: &Range<u64>) -> Range<u64> {
    let (begin, bytes) = (u64::from(run.offset), u64::from(run.item_bytes));
    let count = run.end - run.first;
    let share = |index: u64| {
        let before = index.clamp(run.first, run.end) - run.first;
        (bytes.saturating_mul(before) / count.max(1)).min(bytes)
    };
    let from = share(wanted.start).saturating_sub(PAGE_BYTES);
    let to = share(wanted.end).saturating_add(PAGE_BYTES).min(bytes);
    begin + from..begin + to
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(first: u64, end: u64, offset: u32, item_bytes: u32) -> EntryRun {
        EntryRun { first, end, segment: 1, offset, item_bytes }
    }

    #[test]
    fn a_warm_log_is_not_asked_for_and_a_cold_one_at_once() {
        use flotilla_vfs::os::OsFs;
        use flotilla_vfs::{FileSystem, OpenMode};
        let dir = tempfile::tempdir().expect("made");
        let file = OsFs::new().open(&dir.path().join("1"), OpenMode::CreateNew).expect("made");
        file.write_at(&[7; 1 << 20], 0).expect("written");
        let view = file.view(0..1 << 20).expect("mapped");
        let runs: Vec<EntryRun> =
            (0..64).map(|n| run(n + 1, n + 2, n as u32 * 16_384, 1000)).collect();
        // Slow looks of a thread that has lost the CPU are found out by the probes.
        assert!((0..20).all(|_| !look(&*file, &view, 0, &runs, &(1..65))));
        assert!(is_resident(&view, 0, &runs, None));
    }

    #[test]
    fn of_a_long_append_about_what_is_wanted_is_needed() {
        let long = run(100, 200, 50_000, 1_000_000);
        assert_eq!(needed(&long, &(1..500)), 50_000..1_050_000);
        assert_eq!(needed(&long, &(100..110)), 50_000..154_096);
        assert_eq!(needed(&long, &(150..151)), 545_904..564_096);
        assert_eq!(needed(&run(7, 8, 64, 1000), &(7..8)), 64..1064);
        let halves = run(100, 200, 64, 500_000);
        assert!(is_short(&halves, &(150..151)) && !is_short(&halves, &(150..152)));
        assert!(is_short(&run(7, 8, 64, 8 << 10), &(1..9)));
    }
}
