//! A log whose bytes were changed in any way, closed or not: it opens or says what is wrong, and
//! never gives out an entry that no call wrote.
#![no_main]

use std::path::Path;
use std::sync::{Arc, LazyLock};

use flotilla_raftlog::{Config, Durability, Entry, Error, LogBatch, LogEngine};
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
    Config::default().segment_bytes(64 << 10).recovery_threads(1).salt(Some(7))
}

/// The bytes of a small log: as they are while it is written, and with the footer of a closed one.
static WHOLE: LazyLock<[Vec<u8>; 2]> = LazyLock::new(|| [false, true].map(whole));

fn whole(is_closed: bool) -> Vec<u8> {
    let fs = Arc::new(FaultFs::new(1));
    let (log, _) = LogEngine::open_with(fs.clone(), Path::new("/log"), config()).unwrap();
    for index in 1..=8 {
        let mut batch = LogBatch::new();
        for group in 1..=GROUPS {
            batch.append(group, &[entry(group, index)]);
            batch.put(group, b"hs", &index.to_be_bytes());
        }
        log.write(batch, Durability::Synced).wait().unwrap();
    }
    if is_closed {
        log.close().unwrap();
    }
    let file = fs.open(Path::new(SEGMENT), OpenMode::Read).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fuzz_target!(|data: &[u8]| {
    let Some((mode, changes)) = data.split_first() else { return };
    let mut bytes = WHOLE[usize::from(mode & 1)].clone();
    for change in changes.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % bytes.len();
        bytes[at] ^= change[2];
    }
    let fs = Arc::new(FaultFs::new(1));
    fs.create_dir_all(Path::new("/log")).unwrap();
    let file = fs.open(Path::new(SEGMENT), OpenMode::CreateNew).unwrap();
    file.write_at(&bytes, 0).unwrap();
    let Ok((log, _)) = LogEngine::open_with(fs, Path::new("/log"), config()) else { return };
    for id in log.group_ids() {
        let group = log.group(id).unwrap();
        assert!(id <= GROUPS && group.last_index() <= 8, "group {id} to {}", group.last_index());
        let range = group.first_index()..group.last_index() + 1;
        match group.entries(range, u64::MAX) {
            Ok(read) => read.into_iter().for_each(|e| assert_eq!(e, entry(id, e.index))),
            // Of a sealed segment only the footer is read when it is opened.
            Err(Error::Corrupt { .. }) if mode & 1 == 1 => {}
            Err(error) => panic!("{error}"),
        }
    }
});
