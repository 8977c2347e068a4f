//! Rows that expire: what reads see of them, and what removes them.

use std::collections::BTreeMap;

use flotilla_region::{InstallTask, SnapshotHead};

use super::expected_state::stored_rows;
use super::*;
use crate::{ExpiredRange, StageOffer};

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

fn put_for(key: &str, value: &str, ttl_s: u64) -> RawOp {
    RawOp::Put { key: key.to_owned().into(), value: value.to_owned().into(), ttl_s }
}

fn at(index: u64, time_ms: u64, ops: &[RawOp]) -> LogEntry {
    entry(index, 1, data_at(time_ms, &[(1, ops)]))
}

fn remove(start: &str, end: Option<&str>) -> RawOp {
    let end = end.map(|end| end.to_owned().into());
    RawOp::RemoveExpired { start: start.to_owned().into(), end }
}

/// The keys that a client sees at a time, by each kind of read.
fn seen(store: &Store, region: u64, now_ms: u64) -> Vec<String> {
    let view = || view(store, region).at(now_ms);
    let text = |key: &[u8]| String::from_utf8(key.to_vec()).unwrap();
    let scan = |request: ScanRequest| -> Vec<String> {
        view().scan(&request).unwrap().rows.iter().map(|(key, _)| text(key)).collect()
    };
    let keys = scan(scan_all());
    assert_eq!(scan(ScanRequest { key_only: true, ..scan_all() }), keys);
    for key_only in [false, true] {
        let mut back = scan(ScanRequest { reverse: true, key_only, ..scan_all() });
        back.reverse();
        assert_eq!(back, keys);
    }
    let all: Vec<Bytes> = rows(store, region).into_iter().map(|(key, _)| key).collect();
    let mut found = vec![];
    view().multi_get(&all, |at, _| found.push(text(&all[at]))).unwrap();
    assert_eq!(found, keys);
    let got = all.iter().filter(|key| view().get(key).unwrap().is_some());
    assert_eq!(got.map(|key| text(key)).collect::<Vec<_>>(), keys);
    let has_ttl = all.iter().filter(|key| view().ttl_s(key).unwrap().is_some());
    assert_eq!(has_ttl.map(|key| text(key)).collect::<Vec<_>>(), keys);
    keys
}

#[test]
fn a_row_is_there_until_its_time_and_not_after() {
    let fs = FaultFs::new(1);
    let (store, _) = open(&fs);
    run(
        &store,
        3,
        &[at(1, 5_000, &[put_for("ha", "1", 10), put("hb", "2"), put_for("hc", "3", 1)])],
    );
    assert_eq!(seen(&store, 3, 5_999), ["ha", "hb", "hc"]);
    assert_eq!(seen(&store, 3, 6_000), ["ha", "hb"]);
    assert_eq!(seen(&store, 3, 14_999), ["ha", "hb"]);
    assert_eq!(seen(&store, 3, DAY_MS), ["hb"]);
    let ttl = |key: &str, now_ms| view(&store, 3).at(now_ms).ttl_s(key.as_bytes()).unwrap();
    assert_eq!(ttl("ha", 5_000), Some(10));
    assert_eq!(ttl("ha", 5_001), Some(10));
    assert_eq!(ttl("ha", 14_999), Some(1));
    assert_eq!(ttl("ha", 15_000), None);
    assert_eq!((ttl("hb", DAY_MS), ttl("none", 0)), (Some(0), None));
    store.check().unwrap();
}

#[test]
fn the_log_has_to_name_a_time_that_the_clock_alone_says() {
    let fs = FaultFs::new(1);
    let (store, _) = open(&fs);
    run(&store, 3, &[at(1, 5_000, &[put_for("ha", "1", 10), put("hb", "2")])]);
    let read = |now_ms| {
        let view = view(&store, 3).at(now_ms);
        (view.get(b"ha").unwrap().is_some(), view.unlogged_ms())
    };
    assert_eq!(read(14_999), (true, None));
    assert_eq!(read(16_000), (false, Some(16_100)));
    run(&store, 3, &[at(2, 16_000, &[RawOp::RaiseWatermark])]);
    assert_eq!(read(16_000), (false, None));
    assert_eq!(read(5_000), (false, None), "a slower clock does not bring it back");
    // Nor does a leader with a slower clock make the next row live shorter.
    run(&store, 3, &[at(3, 9_000, &[put_for("ha", "1", 10), RawOp::RaiseWatermark])]);
    assert_eq!(store.read().state(RegionId(3)).unwrap().watermark_ms, 16_000);
    assert_eq!(read(25_999), (true, None));
    assert_eq!(read(26_000), (false, Some(26_100)));
    let keys = view(&store, 3).at(26_000);
    keys.scan(&ScanRequest { key_only: true, ..scan_all() }).unwrap();
    assert_eq!(keys.unlogged_ms(), Some(26_100));
}

#[test]
fn a_swap_decides_by_the_time_of_its_entry() {
    let fs = FaultFs::new(1);
    let (store, _) = open(&fs);
    run(&store, 3, &[at(1, 5_000, &[put_for("ha", "1", 10)])]);
    let swap_for = |expected, value, ttl_s| match swap("ha", expected, value) {
        RawOp::CompareAndSwap { key, expected, value, .. } => {
            RawOp::CompareAndSwap { key, expected, value, ttl_s }
        }
        _ => unreachable!(),
    };
    let swapped = |succeeded, previous: Option<&str>| {
        let previous = previous.map(|text| Bytes::from(text.to_owned()));
        vec![ApplyOutcome::Swapped { succeeded, previous }]
    };
    let outcome = run(&store, 3, &[at(2, 14_999, &[swap_for(None, Some("2"), 0)])]);
    assert_eq!(outcome, swapped(false, Some("1")));
    assert_eq!(store.read().state(RegionId(3)).unwrap().watermark_ms, 0, "nothing has expired");
    let outcome = run(&store, 3, &[at(3, 15_000, &[swap_for(None, Some("2"), 5)])]);
    assert_eq!(outcome, swapped(true, None));
    assert_eq!(store.read().state(RegionId(3)).unwrap().watermark_ms, 15_000);
    // A leader with a slower clock: the time that was seen counts.
    let outcome = run(&store, 3, &[at(4, 9_000, &[swap_for(Some("2"), Some("3"), 5)])]);
    assert_eq!(outcome, swapped(true, Some("2")));
    assert_eq!((seen(&store, 3, 19_999).len(), seen(&store, 3, 20_000).len()), (1, 0));
    let outcome = run(&store, 3, &[at(5, 19_000, &[swap_for(Some("3"), None, 0)])]);
    assert_eq!(outcome, swapped(true, Some("3")));
    assert_eq!(stored_rows(&store, 3).rows, BTreeMap::new());
    store.check().unwrap();
}

#[test]
fn expired_rows_are_found_part_by_part_and_removed() {
    let fs = FaultFs::new(1);
    let (store, _) = open(&fs);
    let key = |number: u64| format!("h{number:03}");
    let puts: Vec<_> = (0..100).map(|n| put_for(&key(n), "v", 1 + n % 10)).collect();
    run(&store, 3, &[at(1, 1_000, &[&puts[..], &[put("hz", "stays")]].concat())]);
    assert_eq!(view(&store, 3).expiring_rows().unwrap(), 100);
    let view = view(&store, 3).at(3_000);
    let part = view.expired(b"", 25, 100).unwrap();
    // Those with one and two seconds.
    let range = ExpiredRange { start: key(0).into(), end: (key(21) + "\0").into(), rows: 6 };
    assert_eq!(part.range, Some(range));
    let part = view.expired(&part.next.unwrap(), 100, 3).unwrap();
    let range = ExpiredRange { start: key(30).into(), end: (key(40) + "\0").into(), rows: 3 };
    assert_eq!(part.range, Some(range));
    let rest = view.expired(&part.next.unwrap(), 100, 100).unwrap();
    assert_eq!((rest.range.unwrap().rows, rest.next), (11, None));
    let removed = |outcome: Vec<ApplyOutcome>| match outcome[..] {
        [ApplyOutcome::RemovedExpired { rows }] => rows,
        _ => panic!("{outcome:?}"),
    };
    let first = run(&store, 3, &[at(2, 3_000, &[remove(&key(0), Some(&key(22)))])]);
    assert_eq!(removed(first), 6);
    // Beyond the region on both sides, and by a clock that is behind what was seen.
    assert_eq!(removed(run(&store, 3, &[at(3, 2_000, &[remove("", None)])])), 14);
    assert_eq!(rows(&store, 3).len(), 81);
    assert_eq!(removed(run(&store, 3, &[at(4, DAY_MS, &[remove("", None)])])), 80);
    assert_eq!(seen(&store, 3, 0), ["hz"]);
    store.check().unwrap();
}

/// Every change of a row leaves the time of the new row, and no other.
#[test]
fn the_times_are_those_of_the_rows() {
    let fs = FaultFs::new(1);
    let (store, _) = open(&fs);
    let mut index = 0;
    let mut go = |ops: &[RawOp]| {
        index += 1;
        run(&store, 3, &[at(index, 1_000, ops)]);
        store.check().unwrap();
        view(&store, 3).expiring_rows().unwrap()
    };
    assert_eq!(go(&[put_for("ha", "1", 5), put_for("hb", "1", 5)]), 2);
    assert_eq!(go(&[put_for("ha", "2", 9)]), 2);
    assert_eq!(go(&[put("ha", "3")]), 1);
    assert_eq!(go(&[put_for("ha", "4", 5), delete("ha")]), 1);
    assert_eq!(go(&[put_for("ha", "5", 5), delete_range("h", Some("hb"))]), 1);
    assert_eq!(go(&[swap("hb", Some("1"), Some("2"))]), 0);
    assert_eq!(go(&[put_for("hb", "3", u64::MAX)]), 1);
    assert_eq!(go(&[swap("hb", Some("3"), None)]), 0);
    assert_eq!(rows(&store, 3), []);
}

#[test]
fn a_snapshot_brings_the_times_and_the_watermark() {
    let fs = FaultFs::new(1);
    let (store, _) = open(&fs);
    let ops = [put_for("ha", "1", 5), put("hb", "2"), put_for("hc", "3", 9), RawOp::RaiseWatermark];
    run(&store, 3, &[at(1, 1_000, &ops)]);
    let mut reader = store.open_snapshot(RegionId(3)).unwrap();
    let head = reader.head().clone();
    let mut chunks = vec![];
    while let Some(chunk) = reader.next_chunk(10).unwrap() {
        chunks.push(chunk.bytes);
    }
    let (end, total) = (reader.end(), reader.total());
    assert_eq!(end.watermark_ms, 1_000);
    // At a later index, over rows with other times.
    run(&store, 3, &[at(2, 1_000, &[put_for("ha", "4", 3), put_for("hd", "5", 2), delete("hc")])]);
    let before = stored_rows(&store, 3);
    let head = SnapshotHead { index: Index(5), ..head };
    let StageOffer::Go(stage) = store.begin_stage(peer(3), &head, total).unwrap() else { panic!() };
    chunks.into_iter().for_each(|chunk| store.stage_chunk(stage, chunk).unwrap());
    store.finish_stage(stage, end).unwrap();
    let task = InstallTask { peer: peer(3), stage, head, hard_state: hard_state(1, 0, 5) };
    store.install(&task).unwrap();
    let after = stored_rows(&store, 3);
    assert_ne!(after, before);
    let times: Vec<u64> = after.rows.values().map(|row| row.expires_ms).collect();
    assert_eq!((times, after.watermark_ms), (vec![6_000, 0, 10_000], 1_000));
    store.check().unwrap();
}
