//! The log engine: entries, compressed and not, keys, truncations, a purge, no orderly end.

use std::path::Path;
use std::sync::Arc;

use flotilla_raftlog::{Config, Durability, EntryRef, LogBatch, LogEngine};
use flotilla_vfs::os::OsFs;

use crate::{copy_of, is_written_alike, noise};

const FIXTURES: [&str; 2] = ["log", "log-2"];

fn open(dir: &Path) -> LogEngine {
    let config = Config::default()
        .segment_bytes(16 << 10)
        .compress_above_bytes(1 << 10)
        .purge_above_bytes(48 << 10)
        .recovery_threads(1)
        .salt(Some(42));
    LogEngine::open_with(Arc::new(OsFs::new()), dir, config).unwrap().0
}

/// The data of an entry: every third is long and compresses well.
fn data(group: u64, index: u64, term: u64) -> Vec<u8> {
    match index % 3 {
        0 => format!("{group}/{index}/{term} ").repeat(300).into_bytes(),
        _ => noise(group << 32 | index << 8 | term, 200),
    }
}

fn append(batch: &mut LogBatch, group: u64, term: u64, indexes: std::ops::RangeInclusive<u64>) {
    let data: Vec<_> = indexes.map(|index| (index, data(group, index, term))).collect();
    let entries = data.iter().map(|(index, data)| {
        let kind = (index % 2) as u8;
        EntryRef { index: *index, term, kind, data }
    });
    batch.append(group, entries);
}

fn write(dir: &Path) {
    let log = open(dir);
    let synced = |batch| log.write(batch, Durability::Synced).wait().unwrap();
    for step in 0..40 {
        let mut batch = LogBatch::new();
        for group in [1, 2, 3] {
            append(&mut batch, group, 1 + step / 20, step * 3 + 1..=step * 3 + 3);
            batch.put(group, format!("key {}", step % 7).as_bytes(), &noise(step, 20));
        }
        synced(batch);
        if step == 5 {
            let mut batch = LogBatch::new();
            batch.put(9, b"gone", b"soon");
            batch.put(8, b"alone", b"in its group");
            synced(batch);
        }
    }
    let mut batch = LogBatch::new();
    batch.compact_to(1, 100, 2);
    batch.compact_to(2, 90, 2);
    batch.truncate_from(2, 115);
    append(&mut batch, 2, 3, 115..=117);
    batch.compact_to(3, 80, 2);
    batch.delete(3, b"key 6");
    batch.remove_group(9);
    synced(batch);
    log.purge_expired_files().unwrap();
    let mut batch = LogBatch::new();
    append(&mut batch, 1, 4, 121..=121);
    // Of the process's last moments: in the file, not synced.
    log.write(batch, Durability::Buffered).wait().unwrap();
}

#[test]
fn a_log_is_read() {
    FIXTURES.into_iter().for_each(is_read);
}

fn is_read(fixture: &str) {
    let dir = copy_of(fixture);
    let log = open(dir.path());
    assert_eq!(log.group_ids(), [1, 2, 3, 8]);
    let bounds = [(1, 100..122), (2, 90..118), (3, 80..121)];
    for (id, range) in bounds {
        let group = log.group(id).unwrap();
        assert_eq!(group.first_index()..group.last_index() + 1, range, "group {id}");
        assert_eq!(group.term(range.start - 1).unwrap(), 2, "group {id}");
        let entries = group.entries(range.clone(), u64::MAX).unwrap();
        for (index, entry) in range.zip(entries) {
            let term = match (id, index) {
                (1, 121) => 4,
                (2, 115..) => 3,
                _ => 2,
            };
            assert_eq!((entry.index, entry.term), (index, term), "group {id}");
            assert_eq!(u64::from(entry.kind), index % 2, "group {id}, entry {index}");
            assert_eq!(entry.data, data(id, index, term), "group {id}, entry {index}");
        }
        for key in 0..7 {
            let expected = Some(noise(if key < 5 { 35 + key } else { 28 + key }, 20))
                .filter(|_| (id, key) != (3, 6));
            let value = group.get(format!("key {key}").as_bytes());
            assert_eq!(value.map(|value| value.to_vec()), expected, "group {id}, key {key}");
        }
    }
    assert_eq!(log.group(8).unwrap().get(b"alone").unwrap(), "in its group");
}

#[test]
fn a_log_is_written_byte_for_byte() {
    is_written_alike(FIXTURES[1], write);
}
