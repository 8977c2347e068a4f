//! Any stream, imported: it is refused, or all of it is there. Never half a group, and never a log
//! that is broken afterwards.
//!
//! Changes are made to the records of a sound stream, which then get their right checksums, so that
//! what is behind the checksums is reached; or to its bytes as they are.
#![no_main]

use std::path::Path;
use std::sync::{Arc, LazyLock};

use crc32c::{crc32c, crc32c_append};
use flotilla_raftlog::{Config, Durability, Entry, LogBatch, LogEngine, VerifyLevel};
use flotilla_vfs::fault::FaultFs;
use libfuzzer_sys::fuzz_target;

const HEAD_BYTES: usize = 12;

/// Kind and body.
type Record = (u8, Vec<u8>);

fn open() -> LogEngine {
    let fs = Arc::new(FaultFs::new(1));
    let config = Config::default().segment_bytes(16 << 10).recovery_threads(1).salt(Some(7));
    LogEngine::open_with(fs, Path::new("/log"), config).unwrap().0
}

fn export(log: &LogEngine) -> Vec<u8> {
    let mut stream = Vec::new();
    flotilla_raftlog::export(log, None, &mut stream, &mut |_| {}).unwrap();
    stream
}

/// Head and records of a small sound stream.
static SOUND: LazyLock<(Vec<u8>, Vec<Record>)> = LazyLock::new(|| {
    let log = open();
    let mut batch = LogBatch::new();
    for group in 1..=3 {
        let entry = |index: u64| {
            let data = vec![index as u8; (index * 7 % 40) as usize];
            Entry { index, term: 1 + index / 4, kind: 0, data: data.into() }
        };
        batch.compact_to(group, group * 2, 1);
        batch.append(group, &(group * 2..group * 4).map(entry).collect::<Vec<_>>());
        batch.put(group, b"hs", b"vote");
    }
    batch.put(4, b"only", b"keys");
    log.write(batch, Durability::Synced).wait().unwrap();
    let stream = export(&log);
    let (mut records, mut rest) = (Vec::new(), &stream[HEAD_BYTES..]);
    while let [kind, a, b, c, d, more @ ..] = rest {
        let (body, more) = more.split_at(u32::from_le_bytes([*a, *b, *c, *d]) as usize);
        records.push((*kind, body.to_vec()));
        rest = &more[4..];
    }
    (stream[..HEAD_BYTES].to_vec(), records)
});

/// One change of the records.
fn change(records: &mut Vec<Record>, what: u8, which: u8, at: u8, value: u8) {
    let count = records.len();
    let which = usize::from(which) % (count + 1);
    match what % 8 {
        0 if which < count => drop(records.remove(which)),
        1 if which < count => records.insert(which, records[which].clone()),
        2 if which < count => records.swap(which, usize::from(at) % count),
        3 => records.insert(which, (at, vec![value; usize::from(value)])),
        4 if which < count => records[which].1.truncate(at.into()),
        5 if which < count => records[which].0 = value,
        _ if which < count && !records[which].1.is_empty() => {
            let body = &mut records[which].1;
            let at = usize::from(at) % body.len();
            body[at] ^= value;
        }
        _ => {}
    }
}

fn stream(head: &[u8], records: &[Record]) -> Vec<u8> {
    let mut stream = head.to_vec();
    for (number, (kind, body)) in (0_u64..).zip(records) {
        let mut record = vec![*kind];
        record.extend_from_slice(&(body.len() as u32).to_le_bytes());
        record.extend_from_slice(body);
        let checksum = crc32c_append(crc32c(&number.to_le_bytes()), &record);
        stream.extend_from_slice(&record);
        stream.extend_from_slice(&checksum.to_le_bytes());
    }
    stream
}

fuzz_target!(|data: &[u8]| {
    let Some((mode, changes)) = data.split_first() else { return };
    let (head, mut records) = SOUND.clone();
    let mut bytes = match mode % 4 {
        0 => data.to_vec(),
        1 => [&head[..], changes].concat(),
        _ => {
            for c in changes.chunks_exact(4) {
                change(&mut records, c[0], c[1], c[2], c[3]);
            }
            stream(&head, &records)
        }
    };
    if mode % 4 == 3 {
        // Cut short, or with one wrong byte.
        let at = changes.iter().map(|byte| usize::from(*byte)).sum::<usize>() % (bytes.len() + 1);
        match bytes.get_mut(at) {
            Some(byte) if mode & 4 != 0 => *byte ^= mode | 1,
            _ => bytes.truncate(at),
        }
    }

    let log = open();
    let mut looked = 0;
    let result = flotilla_raftlog::import(&log, &mut &bytes[..], &mut |_| looked += 1);
    assert!(looked <= bytes.len());
    assert!(log.poisoned().is_none());
    let report = log.verify(VerifyLevel::Entries, &mut |_| {}).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    let stream = export(&log);
    let again = open();
    let exported = flotilla_raftlog::import(&again, &mut &stream[..], &mut |_| {}).unwrap();
    assert_eq!(export(&again), stream);
    if let Ok(imported) = result {
        assert!(exported.entries == imported.entries && exported.groups <= imported.groups);
    }
});
