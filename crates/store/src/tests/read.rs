//! Reads see one moment, one region, and all that was asked for.

use crate::{ReadError, ScanRequest, Store};
use bytes::Bytes;
use flotilla_region::RegionId;
use flotilla_vfs::fault::FaultFs;

use super::*;

fn store() -> Store {
    let (store, _) = open(&FaultFs::new(0));
    let all = ["h", "i", "j", "k", "l"].map(|key| put(key, &key.repeat(3)));
    run(&store, 3, &[ops(1, &all)]);
    run(&store, 2, &[ops(1, &[put("a", "left"), put("g", "left")])]);
    run(&store, 4, &[ops(1, &[put("p", "right")])]);
    store
}

fn keys(store: &Store, request: &ScanRequest) -> Vec<String> {
    let rows = view(store, 3).scan(request).unwrap().rows;
    rows.into_iter().map(|(key, _)| String::from_utf8(key.to_vec()).unwrap()).collect()
}

#[test]
fn a_scan_is_clipped_to_the_region_and_honours_its_limit() {
    let store = store();
    assert_eq!(keys(&store, &scan_all()), ["h", "i", "j", "k", "l"]);
    let wide = ScanRequest { start: "a".into(), end: "z".into(), ..scan_all() };
    assert_eq!(keys(&store, &wide), ["h", "i", "j", "k", "l"]);
    assert_eq!(keys(&store, &ScanRequest { limit: 2, ..wide.clone() }), ["h", "i"]);
    assert_eq!(keys(&store, &ScanRequest { limit: 0, ..wide.clone() }), [""; 0]);
    let narrow = ScanRequest { start: "hh".into(), end: "k".into(), ..scan_all() };
    assert_eq!(keys(&store, &narrow), ["i", "j"]);
    let inverted = ScanRequest { start: "k".into(), end: "i".into(), ..scan_all() };
    assert_eq!(keys(&store, &inverted), [""; 0]);
    let elsewhere = ScanRequest { start: "q".into(), ..scan_all() };
    assert_eq!(keys(&store, &elsewhere), [""; 0]);
}

#[test]
fn a_reverse_scan_goes_down_from_the_end() {
    let store = store();
    let down = ScanRequest { reverse: true, ..scan_all() };
    assert_eq!(keys(&store, &down), ["l", "k", "j", "i", "h"]);
    let part = ScanRequest { start: "i".into(), end: "l".into(), limit: 2, ..down };
    assert_eq!(keys(&store, &part), ["k", "j"]);
}

#[test]
fn keys_come_without_values_if_asked_for() {
    let store = store();
    let request = ScanRequest { key_only: true, reverse: true, limit: 2, ..scan_all() };
    let rows = view(&store, 3).scan(&request).unwrap().rows;
    assert_eq!(rows, [("l".into(), Bytes::new()), ("k".into(), Bytes::new())]);
}

#[test]
fn rows_that_are_too_large_are_an_error_and_never_cut() {
    let store = store();
    let fits = ScanRequest { bytes_max: 20, ..scan_all() };
    assert_eq!(keys(&store, &fits).len(), 5);
    let error = view(&store, 3).scan(&ScanRequest { bytes_max: 19, ..scan_all() }).unwrap_err();
    assert!(matches!(error, ReadError::TooLarge { bytes_max: 19 }), "{error}");
    let few = ScanRequest { bytes_max: 19, limit: 4, ..scan_all() };
    assert_eq!(keys(&store, &few).len(), 4);
    let keys_only = ScanRequest { bytes_max: 5, key_only: true, ..scan_all() };
    assert_eq!(keys(&store, &keys_only).len(), 5);
}

#[test]
fn the_parts_of_a_scan_are_all_of_it() {
    let store = store();
    let view = view(&store, 3);
    let all = ScanRequest { bytes_max: 20, ..scan_all() };
    let limited = ScanRequest { limit: 3, ..all.clone() };
    let keys_only = ScanRequest { key_only: true, ..all.clone() };
    for request in [all, limited, keys_only] {
        for reverse in [false, true] {
            let request = ScanRequest { reverse, ..request.clone() };
            let whole = view.scan(&request).unwrap().rows;
            for part_bytes in [1, 69, 150, 1000] {
                let (mut rows, mut parts) = (vec![], 0);
                let mut rest = Some(request.clone());
                while let Some(request) = rest {
                    let take = |key: &[u8], value: &[u8]| {
                        rows.push((Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
                    };
                    rest = view.scan_part(&request, part_bytes, take).unwrap();
                    parts += 1;
                }
                assert_eq!(rows, whole, "{request:?} in parts of {part_bytes}");
                assert_eq!(part_bytes == 1, parts >= whole.len(), "{parts} of {part_bytes}");
                assert!(part_bytes < 1000 || parts == 1, "{parts} of {part_bytes}");
            }
        }
    }
    let tight = ScanRequest { bytes_max: 19, ..scan_all() };
    let mut rest = Some(tight);
    let error = loop {
        match view.scan_part(&rest.take().unwrap(), 1, |_, _| ()) {
            Ok(part) => rest = part,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, ReadError::TooLarge { .. }), "{error}");
}

#[test]
fn a_read_of_another_version_or_region_is_refused() {
    let store = store();
    let snapshot = store.read();
    assert!(snapshot.region(RegionId(3), Some(1)).is_ok());
    let error = snapshot.region(RegionId(3), Some(2)).unwrap_err();
    assert!(matches!(error, ReadError::EpochNotMatch(current) if *current == regions()[2]));
    let error = snapshot.region(RegionId(9), None).unwrap_err();
    assert!(matches!(error, ReadError::RegionNotFound), "{error}");
    let error = view(&store, 3).get(b"a").unwrap_err();
    assert!(matches!(error, ReadError::KeyNotInRegion { .. }), "{error}");
}

#[test]
fn a_space_that_was_never_written_is_empty() {
    let (store, _) = open(&FaultFs::new(0));
    assert_eq!(rows(&store, 1), []);
    assert_eq!(get(&store, 2, "a"), None);
    assert_eq!(store.descriptors().unwrap(), regions());
    assert_eq!(view(&store, 2).descriptor(), &regions()[1]);
}
