//! The page store's upkeep: space comes back, in steps, and nothing is lost by it.

use std::path::Path;
use std::time::Duration;

use flotilla_raftlog::Error as LogError;
use flotilla_vfs::FileSystem as _;
use flotilla_vfs::fault::FaultFs;

use super::*;
use crate::{Config, PageOptions, Store, StoreMaintenance};

fn small_files() -> Config {
    Config {
        pages: PageOptions::default()
            .growth_bytes(0)
            .trim_bytes(64 << 10)
            .checkpoint_interval(None)
            .defragment(64 << 10, 0.3),
        ..config()
    }
}

fn open_with(fs: &FaultFs, config: Config) -> Store {
    try_open_with(fs, config).unwrap().0
}

/// Writes to region 3, entry by entry.
struct Writer(u64);

impl Writer {
    fn write(&mut self, store: &Store, all: &[RawOp]) {
        self.0 += 1;
        run(store, 3, &[ops(self.0, all)]);
    }

    /// 2,000 rows of a kilobyte each.
    fn fill(&mut self, store: &Store) {
        for first in (0..2000).step_by(100) {
            let row = |n: u64| put(&format!("h{n:04}"), &"v".repeat(1000));
            self.write(store, &(first..first + 100).map(row).collect::<Vec<_>>());
        }
        store.checkpoint().unwrap();
    }
}

/// Steps until there is nothing to do; how many there were.
fn keep(store: &Store) -> usize {
    let steps = std::iter::repeat_with(|| store.maintain(Duration::ZERO).unwrap());
    steps.take(10_000).take_while(|step| !matches!(step, StoreMaintenance::Rest { .. })).count()
}

/// Maintains the store until `end`, in the time that it asks for.
fn maintain_until(store: &Store, end: Duration) -> Result<u64, LogError> {
    let (mut now, mut rests) = (Duration::ZERO, 0);
    while now < end {
        match store.maintain(now).unwrap() {
            StoreMaintenance::Rest { until } => {
                now = until.expect("the scrub goes on for ever");
                rests += 1;
            }
            StoreMaintenance::LogUnreadable { error, .. } => return Err(error),
            _ => {}
        }
    }
    Ok(rests)
}

#[test]
fn each_entry_of_the_log_is_read_again_within_the_interval_and_damage_is_found() {
    let fs = FaultFs::new(0);
    let interval = Duration::from_secs(100);
    let scrubbing = || Config { log_scrub_interval: Some(interval), ..small_files() };
    let store = open_with(&fs, scrubbing());
    Writer(0).fill(&store);
    let rests = maintain_until(&store, interval).unwrap();
    let bytes = store.stats().log_scrubbed_bytes;
    assert!((2_000_000..2_300_000).contains(&bytes), "{bytes} bytes in {rests} pieces");
    assert!((2..10).contains(&rests), "{bytes} bytes in {rests} pieces");
    maintain_until(&store, interval).unwrap();
    // Behind the headers of the segment and its first frame, in the first entry.
    let dir = Path::new("/data/store/log");
    let mut segments = fs.list(dir).unwrap();
    segments.retain(|name| name.starts_with('0'));
    segments.sort_unstable();
    fs.flip_bit(&dir.join(&segments[segments.len() / 2]), 300, 1);
    let damaged = maintain_until(&store, 2 * interval).unwrap_err();
    assert!(matches!(damaged, LogError::Corrupt { .. }), "{damaged}");
    assert_eq!(store.stats().log_reads_failed, 1);
    assert_eq!(store.stats().damaged_replicas, 1, "another store has the entry");
    // And the others are read.
    let before = store.stats().log_scrubbed_bytes;
    maintain_until(&store, 2 * interval).unwrap();
    assert!(store.stats().log_scrubbed_bytes > before);
}

#[test]
fn a_file_that_is_mostly_free_becomes_short_within_its_budget() {
    let fs = FaultFs::new(0);
    let store = open_with(&fs, small_files());
    let mut writer = Writer(0);
    writer.fill(&store);
    // Each row but every fourth goes, so that what is left lies everywhere.
    for n in (0..2000).filter(|n| n % 4 != 0) {
        writer.write(&store, &[delete(&format!("h{n:04}"))]);
    }
    for _ in 0..2 {
        store.checkpoint().unwrap();
    }
    let before = store.stats().pages;
    let rows_before = rows(&store, 3);
    assert_eq!(rows_before.len(), 500);
    let mut moved = 0;
    for _ in 0..200 {
        keep(&store);
        let now = store.stats().pages_moved_bytes;
        assert!(now - moved <= 128 << 10, "{} bytes between two checkpoints", now - moved);
        moved = now;
        writer.write(&store, &[put("h0000", "v")]);
        store.checkpoint().unwrap();
    }
    let after = store.stats().pages;
    assert!(moved > 0);
    assert!(after.file_bytes < before.file_bytes / 2, "{before:?} {after:?}");
    assert_eq!(rows(&store, 3).len(), 500);
    store.check().unwrap();
    drop(store);
    let store = open_with(&fs, small_files());
    assert_eq!(rows(&store, 3).len(), 500);
    store.check().unwrap();
}

#[test]
fn nothing_is_moved_if_nothing_may_be() {
    let store = open_with(&FaultFs::new(0), {
        let pages = small_files().pages.defragment(0, 0.3);
        Config { pages, ..small_files() }
    });
    let mut writer = Writer(0);
    writer.fill(&store);
    writer.write(&store, &[delete_range("h", Some("i"))]);
    store.checkpoint().unwrap();
    store.checkpoint().unwrap();
    keep(&store);
    assert_eq!(store.stats().pages_moved_bytes, 0);
}

#[test]
fn a_large_range_is_given_back_step_by_step() {
    let store = open_with(&FaultFs::new(0), small_files());
    let mut writer = Writer(0);
    writer.fill(&store);
    let before = store.stats().pages;
    writer.write(&store, &[delete_range("h", Some("i"))]);
    let cut = store.stats().pages;
    assert!(cut.deferred_free_bytes > 0, "{cut:?}");
    assert!(keep(&store) >= 1);
    assert_eq!(store.stats().pages.deferred_free_bytes, 0);
    assert!(store.stats().pages_reclaimed_bytes > 0);
    store.checkpoint().unwrap();
    writer.write(&store, &[put("h", "v")]);
    store.checkpoint().unwrap();
    let after = store.stats().pages;
    assert!(after.span_bytes - after.free_bytes < (before.span_bytes - before.free_bytes) / 4);
    store.check().unwrap();
}
