//! A log whose bytes were changed in any way: it opens or says what is wrong, and never gives out an
//! entry that nobody wrote.
#![no_main]

use std::path::Path;
use std::sync::{Arc, LazyLock};

use flotilla_raftlog::{Config, Durability, Entry, LogBatch, LogEngine};
use flotilla_vfs::fault::FaultFs;
use flotilla_vfs::{FileSystem, OpenMode};
use libfuzzer_sys::fuzz_target;

const SEGMENT: &str = "/log/00000000000000000001.log";
const GROUPS: u64 = 3;

fn entry(group: u64, index: u64) -> Entry {
    let data = vec![group as u8 ^ index as u8; (index * 37 % 300) as usize];
    Entry { index, term: 1 + index / 4, kind: 0, data: data.into() }
}

fn config() -> Config {
    Config { segment_bytes: 64 << 10, salt: Some(7), ..Config::default() }
}

/// The bytes of a small log.
static WHOLE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let fs = Arc::new(FaultFs::new(1));
    let (log, _) = LogEngine::open(fs.clone(), Path::new("/log"), config()).unwrap();
    for index in 1..=8 {
        let mut batch = LogBatch::new();
        for group in 1..=GROUPS {
            batch.append(group, &[entry(group, index)]);
            batch.put(group, b"hs", &index.to_be_bytes());
        }
        log.write(batch, Durability::Synced).wait().unwrap();
    }
    let file = fs.open(Path::new(SEGMENT), OpenMode::Read).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
});

fuzz_target!(|data: &[u8]| {
    let mut bytes = WHOLE.clone();
    for change in data.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % bytes.len();
        bytes[at] ^= change[2];
    }
    let fs = Arc::new(FaultFs::new(1));
    fs.create_dir_all(Path::new("/log")).unwrap();
    let file = fs.open(Path::new(SEGMENT), OpenMode::CreateNew).unwrap();
    file.write_at(&bytes, 0).unwrap();
    let Ok((log, _)) = LogEngine::open(fs, Path::new("/log"), config()) else { return };
    for id in log.group_ids() {
        let group = log.group(id).unwrap();
        assert!(id <= GROUPS && group.last_index() <= 8, "group {id} to {}", group.last_index());
        for found in group.entries(group.first_index()..group.last_index() + 1, u64::MAX).unwrap() {
            assert_eq!(found, entry(id, found.index));
        }
    }
});
