//! Entries come back as they were, from whatever part of whatever append, or not at all.

use crate::kit::{
    DIR, batch, entry, random_entry, reopen, segment_path, squeezed, text_entry, write,
};
use flotilla_raftlog::{Durability, Entry, Error, LogEngine};
use flotilla_vfs::FileSystem;
use flotilla_vfs::fault::FaultFs;
use flotilla_vfs::os::OsFs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const SIZES: [usize; 12] =
    [0, 1, 40, 900, 999, 1001, 4_000, 16_383, 16_385, 40_000, 65_535, 70_000];

/// An entry of some size and kind, the same for the same index.
fn any_entry(index: u64) -> Entry {
    let mut rng = fastrand::Rng::with_seed(index);
    let len = match rng.u8(0..4) {
        0 => SIZES[rng.usize(..SIZES.len())],
        _ => rng.usize(0..600),
    };
    let term = 1 + index / 50;
    match rng.u8(0..3) {
        0 => entry(index, term, len),
        1 => random_entry(index, term, len),
        _ => text_entry(index, term, len),
    }
}

/// A log of group 1 with so many entries, one to forty in each append.
fn filled(log: &LogEngine, count: u64) -> Vec<Entry> {
    let entries: Vec<Entry> = (1..=count).map(any_entry).collect();
    let (mut rest, mut rng) = (&entries[..], fastrand::Rng::with_seed(7));
    while !rest.is_empty() {
        let (now, later) = rest.split_at(rng.usize(1..=40).min(rest.len()));
        log.write(batch(|b| b.append(1, now)), Durability::Buffered).wait().expect("written");
        rest = later;
    }
    entries
}

/// The entries that a read of a range under a limit has to return.
fn wanted(entries: &[Entry], begin: usize, end: usize, max_bytes: u64) -> &[Entry] {
    let mut bytes = 0;
    let fits = |(at, entry): &(usize, &Entry)| {
        bytes += entry.data.len() as u64;
        *at == 0 || bytes <= max_bytes
    };
    let count = entries[begin..end].iter().enumerate().take_while(fits).count();
    &entries[begin..begin + count]
}

#[test]
fn any_part_of_the_log_is_read_with_any_cache() {
    for cache_bytes_max in [0, 3_000, 20_000, 1 << 20] {
        any_part_is_read(Arc::new(FaultFs::new(1)), Path::new(DIR), cache_bytes_max);
    }
}

#[test]
fn any_part_of_the_log_is_read_from_mapped_files() {
    let dir = tempfile::tempdir().expect("a directory");
    any_part_is_read(Arc::new(OsFs::new()), dir.path(), 20_000);
}

fn any_part_is_read(disk: Arc<dyn FileSystem>, dir: &Path, cache_bytes_max: u64) {
    let config = squeezed().cache_bytes_max(cache_bytes_max).segment_bytes(64 << 10);
    let (log, _) = LogEngine::open_with(disk, dir, config).expect("it opens");
    let entries = filled(&log, 600);
    let stored = log.stats().bytes_written;
    let raw = entries.iter().map(|e| e.data.len() as u64).sum::<u64>();
    assert!(stored < raw * 3 / 4, "{raw} bytes are stored as {stored}");
    let group = log.group(1).expect("there");
    let mut rng = fastrand::Rng::with_seed(cache_bytes_max);
    for _ in 0..400 {
        let begin = rng.usize(..entries.len());
        let end = (begin + rng.usize(1..80)).min(entries.len());
        let max_bytes = if rng.bool() { u64::MAX } else { rng.u64(0..100_000) };
        let range = begin as u64 + 1..end as u64 + 1;
        let read = group.entries(range, max_bytes).expect("it is there");
        assert!(read == wanted(&entries, begin, end, max_bytes), "{begin}..{end}");
        assert!(log.stats().cache_bytes <= cache_bytes_max);
    }
    assert_eq!(log.stats().cache_bytes > 0, cache_bytes_max > 0);
}

#[test]
fn nothing_is_compressed_if_nobody_wants_it() {
    let disk = Arc::new(FaultFs::new(1));
    let config = squeezed().compress_above_bytes(u64::MAX);
    let (log, _) = LogEngine::open_with(disk, Path::new(DIR), config).expect("it opens");
    write(&log, |b| b.append(1, &[text_entry(1, 1, 100_000)])).expect("written");
    assert!(log.stats().bytes_written > 100_000);
}

#[test]
fn any_flipped_bit_of_an_append_is_an_error_and_never_other_data() {
    let plain = vec![entry(5, 3, 30), random_entry(6, 3, 50), entry(7, 4, 0)];
    let large = vec![text_entry(5, 3, 700), random_entry(6, 3, 300), text_entry(7, 4, 500)];
    for (entries, is_compressed) in [(plain, false), (large, true)] {
        let disk = FaultFs::new(1);
        let config = squeezed().cache_bytes_max(0);
        let (log, _) =
            LogEngine::open_with(Arc::new(disk.clone()), Path::new(DIR), config).expect("it opens");
        let before = batch(|b| b.append(1, &entries)).bytes();
        write(&log, |b| b.append(1, &entries)).expect("written");
        let group = log.group(1).expect("there");
        let frame_bytes = log.stats().bytes_written;
        assert_eq!(frame_bytes < before, is_compressed);
        // Behind the headers of the segment and the frame, up to the padding.
        let item = 104..64 + frame_bytes - 8;
        let mut same_count = 0;
        for bit in item.start * 8..item.end * 8 {
            disk.flip_bit(&segment_path(1), bit / 8, (bit % 8) as u8);
            match group.entries(5..8, u64::MAX) {
                Err(Error::Corrupt { segment: 1, offset: 104, .. }) => {}
                // The same bytes can be compressed in more than one way.
                Ok(read) if is_compressed => {
                    assert!(read == entries, "bit {bit}");
                    same_count += 1;
                }
                other => panic!("bit {bit}: {other:?}"),
            }
            disk.flip_bit(&segment_path(1), bit / 8, (bit % 8) as u8);
        }
        assert!(
            same_count < (item.end - item.start) * 8 / 20,
            "{same_count} flips changed nothing"
        );
        assert_eq!(group.entries(5..8, u64::MAX).expect("all is mended"), entries);
    }
}

#[test]
fn what_was_read_stays_while_its_segments_are_purged_and_written_over() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = squeezed().segment_bytes(64 << 10).salt(None);
    let (log, _) =
        LogEngine::open_with(Arc::new(OsFs::new()), dir.path(), config).expect("it opens");
    let (is_over, last) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|seed| {
                let (log, is_over, last) = (&log, &is_over, &last);
                scope.spawn(move || {
                    let mut rng = fastrand::Rng::with_seed(seed);
                    let mut held: Vec<Entry> = Vec::new();
                    let mut read_count = 0;
                    while !is_over.load(Ordering::Acquire) {
                        let Some(group) = log.group(1) else { continue };
                        let begin = rng.u64(
                            group.first_index()
                                ..=last.load(Ordering::Acquire).max(group.first_index()),
                        );
                        match group.entries(
                            begin..(begin + 60).min(group.last_index() + 1).max(begin),
                            200_000,
                        ) {
                            Ok(read) => {
                                read_count += read.len();
                                held.extend(read);
                            }
                            Err(Error::Compacted { .. } | Error::Unavailable { .. }) => {}
                            Err(other) => panic!("{other}"),
                        }
                        if held.len() > 1_000 {
                            // By now much of it is purged.
                            assert!(held.drain(..).all(|entry| entry == any_entry(entry.index)));
                        }
                    }
                    assert!(held.drain(..).all(|entry| entry == any_entry(entry.index)));
                    read_count
                })
            })
            .collect();
        let mut purged = 0;
        for index in 1..=3_000 {
            let batch = batch(|b| b.append(1, &[any_entry(index)]));
            log.write(batch, Durability::Buffered).wait().expect("written");
            last.store(index, Ordering::Release);
            if index % 100 == 0 {
                write(&log, |b| b.compact_to(1, index - 40, 1)).expect("written");
                purged += log.purge_expired_files().expect("purged").segments;
            }
        }
        is_over.store(true, Ordering::Release);
        assert!(purged > 20, "{purged} segments were purged");
        for reader in readers {
            assert!(reader.join().expect("it saw nothing wrong") > 1_000);
        }
    });
}

#[test]
fn a_read_that_finds_nothing_costs_nothing() {
    let log = reopen(&FaultFs::new(1));
    write(&log, |b| b.append(1, &[entry(1, 1, 10)])).expect("written");
    let group = log.group(1).expect("there");
    let range = |start, end| group.entries(start..end, u64::MAX);
    assert!(matches!(range(2, 1), Err(Error::Invalid(_))));
    assert!(matches!(range(u64::MAX, 0), Err(Error::Invalid(_))));
    assert!(matches!(range(1, u64::MAX), Err(Error::Unavailable { last: 1 })));
    assert!(matches!(range(0, u64::MAX), Err(Error::Compacted { first: 1 })));
    assert!(range(u64::MAX, u64::MAX).expect("an empty range").is_empty());
}
