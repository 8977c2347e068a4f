//! Scans and batches in many parts give the same rows as in one, over keys that extend each other
//! by zero bytes, also if they begin again, and for each end and limit.

use std::collections::BTreeMap;
use std::sync::Arc;

use flotilla_kv::raw::{self, RawOp};
use flotilla_proto::kvrpcpb::{
    Context, KeyRange, KvPair, RawChecksumRequest, RawChecksumResponse, RawScanResponse,
};
use flotilla_region::{RequestPrecondition, Space};
use flotilla_vfs::fault::FaultFs;
use prost::Message;
use tokio::net::TcpListener;

use super::super::read_scheduler::ReadSchedulerConfig;
use super::super::service::RawKvLimits;
use super::*;
use crate::descriptor_proto::region_to_proto;
use crate::{Node, NodeConfig};

type Model = BTreeMap<Bytes, Bytes>;

/// A row of this size is a part of its own.
const LARGE_BYTES: usize = PART_BYTES as usize;

/// One place for a long read, so that of several at once all but one lose theirs and begin again.
const ONE_PLACE: ReadSchedulerConfig =
    ReadSchedulerConfig { short_max: 2, long_max: 1, long_at_once_max: 1 };

/// Keys that follow each other as closely as keys can, and some others.
fn keys() -> Vec<Bytes> {
    let keys: [&[u8]; 13] = [
        b"",
        b"\0",
        b"\0\0",
        b"k",
        b"k\0",
        b"k\0\0",
        b"k\0\0\0",
        b"k\0\x01",
        b"k\x01",
        b"k\xff",
        b"k\xff\0",
        b"l",
        b"\xff\xff",
    ];
    keys.into_iter().map(Bytes::from_static).collect()
}

/// A node with these keys; `large` says which of them have a value that fills a part.
struct World {
    node: Node,
    service: RawKv,
    context: Option<Context>,
    model: Model,
}

impl World {
    async fn new(large: fn(usize) -> bool, limits: RawKvLimits) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let config = NodeConfig { regions: 1, data_dir: "/s".into(), ..NodeConfig::default() };
        let disk = Arc::new(FaultFs::new(1));
        let node = Node::start_on_disk(listener, config, disk).await.unwrap();
        let router = node.router().clone();
        let descriptor = router.locate(Space::Raw, b"k").unwrap();
        let region = descriptor.id;
        let mut model = Model::new();
        for (place, key) in keys().into_iter().enumerate() {
            let bytes = if large(place) { LARGE_BYTES } else { 10 };
            let value = Bytes::from(vec![place as u8; bytes]);
            model.insert(key.clone(), value.clone());
            let put = raw::encode(&[RawOp::put(key, value)]);
            while router.propose(region, RequestPrecondition::default(), put.clone()).await.is_err()
            {
            }
        }
        let service = RawKv::new(router, limits);
        let region_epoch = region_to_proto(&descriptor).region_epoch;
        let context = Some(Context { region_id: region.0, region_epoch, ..Default::default() });
        Self { node, service, context, model }
    }

    fn request(
        &self,
        range: &KeyRange,
        limit: u32,
        reverse: bool,
        key_only: bool,
    ) -> RawScanRequest {
        let KeyRange { start_key, end_key } = range.clone();
        let (context, cf) = (self.context.clone(), String::new());
        RawScanRequest { context, start_key, end_key, limit, reverse, key_only, cf }
    }

    /// The rows that a scan must find, by the simplest means.
    fn expected(&self, range: &KeyRange, limit: u32, reverse: bool, key_only: bool) -> Vec<KvPair> {
        let (low, high) = match reverse {
            false => (&range.start_key, &range.end_key),
            true => (&range.end_key, &range.start_key),
        };
        let inside = |key: &Bytes| key >= low && (high.is_empty() || key < high);
        let mut rows: Vec<_> = self.model.iter().filter(|(key, _)| inside(key)).collect();
        if reverse {
            rows.reverse();
        }
        let value = |value: &Bytes| if key_only { Bytes::new() } else { value.clone() };
        let rows = rows.into_iter().take(limit as usize);
        rows.map(|(key, it)| KvPair { key: key.clone(), value: value(it) }).collect()
    }

    async fn end(self) {
        drop(self.service);
        self.node.shutdown().await.unwrap();
    }
}

fn range(start: &Bytes, end: &Bytes) -> KeyRange {
    KeyRange { start_key: start.clone(), end_key: end.clone() }
}

/// The rows of an answer, as a client finds them.
fn pairs(rows: RowEncoder) -> Vec<KvPair> {
    RawScanResponse::decode(&rows.into_pieces().concat()[..]).unwrap().kvs
}

/// Compares without printing megabytes.
fn assert_rows(found: RowEncoder, expected: &[KvPair], what: &str) {
    let found = pairs(found);
    let names = |rows: &[KvPair]| -> Vec<(Bytes, usize)> {
        rows.iter().map(|row| (row.key.clone(), row.value.len())).collect()
    };
    assert_eq!(names(&found), names(expected), "{what}");
    assert!(found == *expected, "{what}: another value");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scans_of_many_parts_are_whole_for_each_end_and_limit() {
    let mixed: [fn(usize) -> bool; 2] = [|_| true, |place| place % 3 == 1];
    for large in mixed {
        let world = World::new(large, RawKvLimits::default()).await;
        let mut bounds = keys();
        bounds.push(Bytes::new());
        for bound in &bounds {
            for (reverse, key_only) in [(false, false), (true, false), (false, true), (true, true)]
            {
                for limit in [2, 5, 100] {
                    let all = Bytes::new();
                    for range in [range(bound, &all), range(&all, bound)] {
                        let request = world.request(&range, limit, reverse, key_only);
                        let expected = world.expected(&range, limit, reverse, key_only);
                        let what = format!("{range:?}, {limit} rows, reverse {reverse}");
                        let found = world.service.scan(request).await.unwrap();
                        assert_rows(found, &expected, &what);
                    }
                }
            }
        }
        world.end().await;
    }
}

/// Ranges that end with a part, within one and behind each other, that overlap and that are empty.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_of_many_parts_are_whole_and_in_order() {
    let world = World::new(|place| place % 2 == 0, RawKvLimits::default()).await;
    let all = keys();
    let neighbours: Vec<_> = all.windows(2).map(|pair| range(&pair[0], &pair[1])).collect();
    let overlapping: Vec<_> = all.windows(5).map(|five| range(&five[0], &five[4])).collect();
    let empty = vec![range(&all[3], &all[3]), range(&all[2], &all[8]), range(&all[9], &all[1])];
    for ranges in [neighbours, overlapping, empty] {
        for each_limit in [1, 3, 100] {
            for reverse in [false, true] {
                let turned = |range: KeyRange| match reverse {
                    false => range,
                    true => KeyRange { start_key: range.end_key, end_key: range.start_key },
                };
                let ranges: Vec<_> = ranges.iter().cloned().map(turned).collect();
                let scan = |range| world.expected(range, each_limit, reverse, false);
                let expected: Vec<_> = ranges.iter().flat_map(scan).collect();
                let found = world.service.batch_scan(RawBatchScanRequest {
                    context: world.context.clone(),
                    ranges,
                    each_limit,
                    reverse,
                    ..Default::default()
                });
                let what = format!("{each_limit} rows of each, reverse {reverse}");
                assert_rows(found.await.unwrap(), &expected, &what);
            }
        }
    }
    // Backwards, some twice, some that are not there.
    let mut options: Vec<_> = all.iter().rev().cloned().collect();
    options.insert(4, Bytes::from_static(b"k\0\0\0\0"));
    options.extend(all[2..9].iter().cloned());
    let row = |key: &Bytes| {
        let value = world.model.get(key)?.clone();
        Some(KvPair { key: key.clone(), value })
    };
    let expected: Vec<_> = options.iter().filter_map(row).collect();
    let (context, cf) = (world.context.clone(), String::new());
    let gets = RawBatchGetRequest { context, keys: options, cf };
    assert_rows(world.service.batch_get(gets).await.unwrap(), &expected, "gets");
    world.end().await;
}

/// Reads as the read scheduler does, but begins again after `parts`.
fn read_with_restart<T: RowReader<Output = RowEncoder>>(
    mut job: SnapshotRead<T>,
    parts: usize,
) -> (RowEncoder, usize) {
    for _ in 0..parts {
        if let Some(SnapshotRows { output: rows, .. }) = job.read_on().unwrap() {
            return (rows, 0);
        }
    }
    job.restart();
    for count in 1.. {
        if let Some(SnapshotRows { output: rows, .. }) = job.read_on().unwrap() {
            return (rows, count);
        }
    }
    unreachable!("counts without end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_that_begins_again_after_any_part_is_whole() {
    let world = World::new(|place| place != 4, RawKvLimits::default()).await;
    let service = &world.service;
    let everything = range(&Bytes::new(), &Bytes::new());
    // Exactly what the answer has: what was read before it began again counts for nothing.
    let bytes = |rows: &[KvPair]| -> u64 {
        rows.iter().map(|row| (row.key.len() + row.value.len()) as u64).sum()
    };
    for reverse in [false, true] {
        for parts in 1..12 {
            let checked = service.check_context(world.context.clone()).unwrap();
            let view = service.snapshot(checked).await.unwrap();
            let options = ScanOptions { limit: 7, reverse, key_only: false };
            let all = range::KeyBounds { start: Bytes::new(), end: Bytes::new() };
            let once = world.expected(&everything, 7, reverse, false);
            let expected = [once.clone(), once].concat();
            let bytes_max = bytes(&expected);
            // The second range begins within an answer and reads the first one's rows again.
            let ranges = vec![all.clone(), all];
            let rows = RowEncoder::default();
            let scans =
                BatchScan { ranges, options, next: 0, rest: None, rows, bytes: 0, bytes_max };
            let (found, count) =
                read_with_restart(SnapshotRead { view: view.clone(), reading: Some(scans) }, parts);
            assert!(count > 10, "a scan of {count} parts");
            assert_rows(found, &expected, &format!("again after {parts}"));

            // In the order in which they are asked for, whatever the order of the keys.
            let expected = world.expected(&everything, 100, reverse, false);
            let bytes_max = bytes(&expected);
            let mut keys = keys();
            if reverse {
                keys.reverse();
            }
            let gets = BatchGet {
                keys,
                next: 0,
                at_once: KEYS_AT_ONCE_MAX,
                rows: RowEncoder::default(),
                bytes: 0,
                bytes_max,
            };
            let (found, count) =
                read_with_restart(SnapshotRead { view, reading: Some(gets) }, parts.min(6));
            assert!(count > 6, "a batch of {count} parts");
            assert_rows(found, &expected, &format!("gets again after {parts}"));
        }
    }
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_that_lose_their_place_to_others_are_whole() {
    let limits = RawKvLimits { reads: ONE_PLACE, ..RawKvLimits::default() };
    let world = World::new(|_| true, limits).await;
    let everything = range(&Bytes::new(), &Bytes::new());
    let mut reads = tokio::task::JoinSet::new();
    for number in 0..12 {
        let service = world.service.clone();
        let request = world.request(&everything, 100, number % 2 == 1, false);
        let (context, cf) = (world.context.clone(), String::new());
        let gets = RawBatchGetRequest { context, keys: keys(), cf };
        reads.spawn(async move {
            let rows = match number % 3 {
                0 => service.batch_get(gets).await,
                _ => service.scan(request).await,
            };
            (number, rows.unwrap())
        });
    }
    while let Some(read) = reads.join_next().await {
        let (number, rows) = read.unwrap();
        let reverse = number % 3 != 0 && number % 2 == 1;
        let expected = world.expected(&everything, 100, reverse, false);
        assert_rows(rows, &expected, &format!("read {number}"));
    }
    world.end().await;
}

/// The bound of an answer is one for all its parts and ranges.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_is_bounded_as_a_whole() {
    let row_bytes = |key: &Bytes| (LARGE_BYTES + key.len()) as u64;
    let all = keys();
    let whole: u64 = all.iter().map(row_bytes).sum();
    for (answer_bytes_max, fits) in [(whole, true), (whole - 1, false)] {
        let limits = RawKvLimits { answer_bytes_max, ..RawKvLimits::default() };
        let world = World::new(|_| true, limits).await;
        let everything = range(&Bytes::new(), &Bytes::new());
        let halves = vec![range(&Bytes::new(), &all[6]), range(&all[6], &Bytes::new())];
        let context = || world.context.clone();
        let service = &world.service;
        let found = [
            service.scan(world.request(&everything, 100, false, false)).await,
            service.scan(world.request(&everything, 100, true, false)).await,
            service
                .batch_scan(RawBatchScanRequest {
                    context: context(),
                    ranges: halves,
                    each_limit: 100,
                    ..Default::default()
                })
                .await,
            service
                .batch_get(RawBatchGetRequest {
                    context: context(),
                    keys: keys(),
                    cf: String::new(),
                })
                .await,
        ];
        for (what, found) in ["scan", "reverse", "ranges", "gets"].into_iter().zip(found) {
            assert_eq!(found.is_ok(), fits, "{what} of {whole} bytes, {answer_bytes_max} allowed");
        }
        world.end().await;
    }
}

/// In parts and whole, with ranges that are empty, and of each range by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checksums_of_ranges_join_to_that_of_all() {
    let world = World::new(|place| place % 3 == 1, RawKvLimits::default()).await;
    let sum = async |ranges: Vec<KeyRange>| {
        let (context, algorithm) = (world.context.clone(), 0);
        let found = world.service.checksum(RawChecksumRequest { context, algorithm, ranges }).await;
        let RawChecksumResponse { checksum, total_kvs, total_bytes, .. } = found.unwrap();
        (checksum, total_kvs, total_bytes)
    };
    let all = sum(vec![range(&Bytes::new(), &Bytes::new())]).await;
    let bytes = world.model.iter().map(|(key, value)| key.len() + value.len());
    assert_eq!((all.1, all.2), (world.model.len() as u64, bytes.sum::<usize>() as u64));
    let mut borders = keys();
    borders.push(Bytes::new());
    let ranges: Vec<_> = borders.windows(2).map(|pair| range(&pair[0], &pair[1])).collect();
    assert_eq!(sum(ranges.clone()).await, all);
    let mut joined = (0, 0, 0);
    for part in ranges {
        let part = sum(vec![part]).await;
        joined = (joined.0 ^ part.0, joined.1 + part.1, joined.2 + part.2);
    }
    assert_eq!(joined, all);
    let key = &keys()[4];
    assert_eq!(sum(vec![range(key, key)]).await, (0, 0, 0));
    // Twice the same: the checksum is gone, the counts are not.
    let twice = vec![range(&Bytes::new(), &Bytes::new()); 2];
    assert_eq!(sum(twice).await, (0, 2 * all.1, 2 * all.2));
    let other = RawChecksumRequest { algorithm: 7, ..Default::default() };
    assert!(matches!(world.service.checksum(other).await, Err(RequestFailure::Refused(_))));
    world.end().await;
}
