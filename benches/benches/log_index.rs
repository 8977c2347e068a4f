//! What the log's index costs: a million appends of one entry of 1 KiB, over 1, 128 and 10,000 groups.
//!
//! Times are of a million entries: to take them into the index, to take them into the summaries of
//! their segments, to write those down, and to read and merge them as a start does. Behind the times
//! stand, by entry, the memory of the index, and what the summaries take and are said to take at most.
//!
//! The index is no part of the crate's interface, so its files are compiled in here.
#![allow(dead_code, unused_imports, missing_docs, unreachable_pub)]

use batch::{Append, Change};
use criterion::{BatchSize, Criterion, Throughput};
use groups::{Groups, Place};
use ledger::Ledger;
use std::time::Duration;
use summary::Summary;

#[path = "../../crates/raftlog/src/batch.rs"]
mod batch;
#[path = "../../crates/raftlog/src/block.rs"]
mod block;
#[path = "../../crates/raftlog/src/chunk.rs"]
mod chunk;
#[path = "../../crates/raftlog/src/config.rs"]
mod config;
#[path = "../../crates/raftlog/src/error.rs"]
mod error;
#[path = "../../crates/raftlog/src/extents/mod.rs"]
mod extents;
#[path = "../../crates/raftlog/src/format.rs"]
mod format;
#[path = "../../crates/raftlog/src/groups.rs"]
mod groups;
#[path = "../../crates/raftlog/src/hash.rs"]
mod hash;
#[path = "../../crates/raftlog/src/index/mod.rs"]
mod index;
#[path = "../../crates/raftlog/src/item.rs"]
mod item;
#[path = "../../crates/raftlog/src/keys.rs"]
mod keys;
#[path = "../../crates/raftlog/src/ledger.rs"]
mod ledger;
#[path = "../../crates/raftlog/src/summary/mod.rs"]
mod summary;

const ENTRIES: u64 = 1_000_000;
const SEGMENT_BYTES: u32 = 64 << 20;
/// One entry of 1 KiB with the heads of item and frame, and the hard state of its group behind it.
const ITEM_BYTES: u32 = 1024 + 24;
const FRAME_BYTES: u32 = 40 + ITEM_BYTES + 32;

/// Frames in the order of the log, each with one append to a group drawn at random.
struct Log {
    frames: Vec<(Place, Change)>,
    segments: u64,
}

fn log(group_count: u64) -> Log {
    let mut rng = fastrand::Rng::with_seed(group_count);
    let mut next = vec![1; group_count as usize];
    let mut place = Place { segment: 1, offset: 64, lsn: 0 };
    let frame = |lsn: u64| {
        let group = rng.u64(..group_count);
        let first = next[group as usize];
        next[group as usize] += 1;
        if place.offset + FRAME_BYTES > SEGMENT_BYTES {
            place = Place { segment: place.segment + 1, offset: 64, lsn };
        }
        let (terms, offset) = ([(1, 7)].as_slice().into(), 40);
        // Ids as a cluster gives them out: in steps.
        let group = 4 + group * 4;
        let append = Append { group, first, count: 1, terms, offset, item_bytes: ITEM_BYTES };
        let frame = (Place { lsn, ..place }, Change::Append(append));
        place.offset += FRAME_BYTES;
        frame
    };
    let frames: Vec<_> = (1..=ENTRIES).map(frame).collect();
    Log { segments: place.segment, frames }
}

impl Log {
    fn index(&self) -> (Groups, Ledger) {
        let (groups, mut ledger) = (Groups::default(), Ledger::default());
        for (place, change) in &self.frames {
            groups.apply(change, *place, &mut ledger).expect("it fits");
        }
        (groups, ledger)
    }

    fn summaries(&self) -> Vec<Summary> {
        let mut summaries: Vec<_> = (0..self.segments).map(|_| Summary::default()).collect();
        for (place, change) in &self.frames {
            let summary = &mut summaries[place.segment as usize - 1];
            summary.begin_frame(place.lsn);
            summary.apply(change, place.offset).expect("it fits");
        }
        summaries
    }
}

fn encode(summaries: &[Summary]) -> Vec<Vec<u8>> {
    let bytes = summaries.iter().map(|summary| {
        let mut bytes = Vec::new();
        summary.encode(&mut bytes);
        bytes
    });
    bytes.collect()
}

fn decode(encoded: &[Vec<u8>]) -> Vec<Summary> {
    encoded.iter().map(|bytes| Summary::decode(bytes).expect("it was written so")).collect()
}

fn merge(summaries: Vec<Summary>) -> (Groups, Ledger) {
    let (groups, mut ledger) = (Groups::default(), Ledger::default());
    for (segment, summary) in (1..).zip(summaries) {
        groups.merge(summary, segment, &mut ledger).expect("it fits");
    }
    groups.check_replayed().expect("nothing is missing");
    (groups, ledger)
}

fn log_index(criterion: &mut Criterion, group_count: u64) {
    let log = log(group_count);
    let summaries = log.summaries();
    let encoded = encode(&summaries);
    let mut cases = criterion.benchmark_group(format!("log_index/{group_count}_groups"));
    cases.throughput(Throughput::Elements(ENTRIES));
    cases.bench_function("append", |b| b.iter_with_large_drop(|| log.index()));
    cases.bench_function("summarize", |b| b.iter_with_large_drop(|| log.summaries()));
    cases.bench_function("encode", |b| b.iter_with_large_drop(|| encode(&summaries)));
    cases.bench_function("decode", |b| b.iter_with_large_drop(|| decode(&encoded)));
    cases.bench_function("merge", |b| {
        b.iter_batched(|| decode(&encoded), merge, BatchSize::PerIteration);
    });
    cases.finish();

    let by_entry = |bytes: u64| bytes as f64 / ENTRIES as f64;
    let (appended, merged) = (log.index().0, merge(decode(&encoded)).0);
    println!(
        "log_index/{group_count}_groups: memory {:.2} B an entry, {:.2} after a start; summaries {:.2} B, at \
         most {:.2}",
        by_entry(appended.memory_bytes()),
        by_entry(merged.memory_bytes()),
        by_entry(encoded.iter().map(|bytes| bytes.len() as u64).sum()),
        by_entry(summaries.iter().map(Summary::encoded_bytes_max).sum()),
    );
}

fn main() {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .sample_size(10)
        .configure_from_args();
    for group_count in [1, 128, 10_000] {
        log_index(&mut criterion, group_count);
    }
    criterion.final_summary();
}
