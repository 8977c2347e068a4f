//! Any calls with any arguments: wrong ones are refused, and a log that is opened again says what
//! it said before.
#![no_main]

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use flotilla_raftlog::{Config, Durability, Entry, LogBatch, LogEngine};
use flotilla_vfs::fault::FaultFs;
use libfuzzer_sys::fuzz_target;

fn open(fs: &FaultFs) -> LogEngine {
    // Purge moves all the time, a little in each call.
    let config = Config::default()
        .segment_bytes(8 << 10)
        .purge_above_bytes(8 << 10)
        .move_bytes_max(2 << 10)
        .move_live_ratio_max(0.9)
        .compress_above_bytes(1 << 10)
        .recovery_threads(1);
    LogEngine::open_with(Arc::new(fs.clone()), Path::new("/log"), config).unwrap().0
}

type State = Vec<(u64, u64, u64, Vec<Entry>, Vec<(Bytes, Bytes)>)>;

fn state(log: &LogEngine) -> State {
    log.group_ids()
        .into_iter()
        .map(|id| {
            let group = log.group(id).unwrap();
            let (first, last) = (group.first_index(), group.last_index());
            let entries = if last < first {
                vec![]
            } else {
                group.entries(first..last + 1, u64::MAX).unwrap()
            };
            (id, first, last, entries, group.scan())
        })
        .collect()
}

fuzz_target!(|data: &[u8]| {
    let fs = FaultFs::new(1);
    let mut log = open(&fs);
    for call in data.chunks_exact(4) {
        let [what, group, index, term] = [call[0], call[1] % 4, call[2], call[3]].map(u64::from);
        let mut batch = LogBatch::new();
        match what % 9 {
            0..=2 => {
                let entries: Vec<Entry> = (0..what / 64 + 1)
                    .map(|i| {
                        let data = vec![call[3]; 16 * (what as usize)];
                        Entry { index: index + i, term, kind: 0, data: data.into() }
                    })
                    .collect();
                batch.append(group, &entries);
            }
            3 => batch.compact_to(group, index, term),
            4 => batch.put(group, &call[2..3], &call[3..]),
            5 => batch.delete(group, &call[2..3]),
            6 => batch.remove_group(group),
            7 => batch.truncate_from(group, index),
            _ => {
                let before = state(&log);
                log.purge_expired_files().unwrap();
                assert_eq!(state(&log), before);
                if index % 2 == 0 {
                    drop(log);
                    log = open(&fs);
                    assert_eq!(state(&log), before);
                }
                continue;
            }
        }
        // Wrong calls are errors, and change nothing.
        let _ = log.write(batch, Durability::Synced).wait();
        assert!(log.poisoned().is_none());
    }
});
