//! Column families: the same key in each, through all that regions go through.

use flotilla_region::AdminCommand;

use super::ends::end_of;
use super::snapshots::{install_task, receive, send};
use super::uninitialised::{CHILD, split_entry};
use super::*;
use crate::ReadError;

/// Puts `<key>-<family>` as the value of each key in each family; those of `lock` expire.
fn fill(store: &Store, region: u64, first: u64, keys: &[&str]) {
    for (index, family) in (first..).zip(ColumnFamily::ALL) {
        let ttl_s = if family == ColumnFamily::Lock { 5 } else { 0 };
        let put = |key: &&str| RawOp::Put {
            key: (*key).to_owned().into(),
            value: format!("{key}-{family}").into(),
            ttl_s,
        };
        let put: Vec<_> = keys.iter().map(put).collect();
        run(store, region, &[entry(index, 1, data_in(family, 7_000, &[(1, &put)]))]);
    }
}

fn rows_in(store: &Store, region: u64, family: ColumnFamily) -> Vec<String> {
    let view = view(store, region).in_family(family).unwrap();
    let text = |(_, value): Row| String::from_utf8(value.to_vec()).unwrap();
    view.scan(&scan_all()).unwrap().rows.into_iter().map(text).collect()
}

/// All rows of a region, family by family.
fn all_rows(store: &Store, region: u64) -> Vec<String> {
    ColumnFamily::ALL.into_iter().flat_map(|family| rows_in(store, region, family)).collect()
}

#[test]
fn each_family_has_a_row_of_its_own_for_a_key() {
    let fs = FaultFs::new(1);
    let (store, _) = open(&fs);
    fill(&store, 3, 1, &["ha", "hb"]);
    assert_eq!(
        all_rows(&store, 3),
        ["ha-default", "hb-default", "ha-lock", "hb-lock", "ha-write", "hb-write"]
    );
    assert_eq!(view(&store, 3).size().unwrap().keys, 6);
    let before = store.region_digest(RegionId(3)).unwrap();
    let gone = delete_range("", None);
    run(&store, 3, &[entry(4, 1, data_in(ColumnFamily::Write, 0, &[(1, &[gone])]))]);
    assert_eq!(all_rows(&store, 3), ["ha-default", "hb-default", "ha-lock", "hb-lock"]);
    assert_ne!(store.region_digest(RegionId(3)).unwrap().1, before.1);
    let swapped = RawOp::CompareAndSwap {
        key: "ha".into(),
        expected: Some("ha-lock".into()),
        value: Some("new".into()),
        ttl_s: 0,
    };
    let outcome =
        run(&store, 3, &[entry(5, 1, data_in(ColumnFamily::Lock, 8_000, &[(1, &[swapped])]))]);
    let previous = Some(Bytes::from_static(b"ha-lock"));
    assert_eq!(outcome, [ApplyOutcome::Swapped { succeeded: true, previous }]);
    assert_eq!(rows_in(&store, 3, ColumnFamily::Lock), ["new", "hb-lock"]);
    store.check().unwrap();
    store.checkpoint().unwrap();
    drop(store);
    let (store, _) = open(&fs);
    assert_eq!(all_rows(&store, 3), ["ha-default", "hb-default", "new", "hb-lock"]);
}

#[test]
fn rows_expire_in_their_own_family() {
    let (store, _) = open(&FaultFs::new(1));
    fill(&store, 3, 1, &["ha", "hb"]);
    let expired = |family, now_ms| {
        let view = view(&store, 3).in_family(family).unwrap().at(now_ms);
        let part = view.expired(b"", 100, 100).unwrap();
        (part.range.map_or(0, |range| range.rows), view.scan(&scan_all()).unwrap().rows.len())
    };
    assert_eq!(expired(ColumnFamily::Lock, 11_999), (0, 2));
    assert_eq!(expired(ColumnFamily::Lock, 12_000), (2, 0));
    assert_eq!(expired(ColumnFamily::Write, 12_000), (0, 2));
    let remove = |family| {
        let remove = RawOp::RemoveExpired { start: Bytes::new(), end: None };
        data_in(family, 12_000, &[(1, &[remove])])
    };
    let removed = |rows| ApplyOutcome::RemovedExpired { rows };
    let families = [(4, ColumnFamily::Default, 0), (5, ColumnFamily::Lock, 2)];
    for (index, family, rows) in families {
        assert_eq!(run(&store, 3, &[entry(index, 1, remove(family))]), [removed(rows)]);
    }
    assert_eq!(all_rows(&store, 3), ["ha-default", "hb-default", "ha-write", "hb-write"]);
    store.check().unwrap();
}

#[test]
fn a_split_cuts_all_families_and_an_end_takes_all() {
    let (store, _) = open(&FaultFs::new(0));
    fill(&store, 2, 1, &["a", "e"]);
    let split = split_entry(4);
    assert!(AdminCommand::is_in(&split));
    append(&store, 2, std::slice::from_ref(&split), 4);
    store.apply(&[task(2, &[split])]).unwrap();
    assert_eq!(all_rows(&store, CHILD), ["a-default", "a-lock", "a-write"]);
    assert_eq!(all_rows(&store, 2), ["e-default", "e-lock", "e-write"]);
    let ended = store.end(&end_of(2, 201)).unwrap();
    assert_eq!(ended.rows_removed, 3);
    assert!(ended.bytes_removed > 0);
    assert_eq!(all_rows(&store, CHILD), ["a-default", "a-lock", "a-write"]);
    let lock = view(&store, CHILD).in_family(ColumnFamily::Lock).unwrap();
    assert_eq!(lock.expiring_rows().unwrap(), 1);
}

#[test]
fn a_snapshot_has_all_families() {
    let (from, _) = open(&FaultFs::new(0));
    let keys: Vec<_> = (0..40).map(|number| format!("a{number:02}")).collect();
    let keys: Vec<_> = keys.iter().map(|key| &key[..]).collect();
    fill(&from, 2, 1, &keys);
    let (to, _) = open(&FaultFs::new(0));
    fill(&to, 2, 1, &["a00"]);
    for chunk_bytes in [1, 300, usize::MAX] {
        let sent = send(&from, 2, chunk_bytes);
        assert_eq!((sent.end.rows, sent.total.keys), (120, 120));
        assert!(sent.chunks.len() >= 3, "a chunk is of one family");
    }
    let sent = send(&from, 2, 300);
    let index = Index(3);
    assert_eq!(sent.head.index, index);
    // The replica there must be behind it.
    let behind = RawOp::Delete { key: "a00".into() };
    run(&from, 2, &[entry(4, 1, data_in(ColumnFamily::Write, 0, &[(1, &[behind])]))]);
    let sent = send(&from, 2, 300);
    let stage = receive(&to, &sent);
    let installed = to.install(&install_task(&sent, stage, hard_state(1, 0, 0))).unwrap();
    assert_eq!((installed.rows, installed.rows_removed), (119, 3));
    assert_eq!(to.region_digest(RegionId(2)).unwrap(), from.region_digest(RegionId(2)).unwrap());
    assert_eq!(all_rows(&to, 2), all_rows(&from, 2));
    let lock = view(&to, 2).in_family(ColumnFamily::Lock).unwrap();
    assert_eq!(lock.expiring_rows().unwrap(), 40);
    to.check().unwrap();
}

#[test]
fn a_region_is_cut_where_its_rows_are_and_the_system_has_one_family() {
    let (store, _) = open(&FaultFs::new(0));
    let put = |number: u64| put(&format!("a{number:03}"), &"v".repeat(500));
    let lots: Vec<_> = (0..100).map(put).collect();
    run(&store, 2, &[entry(1, 1, data_in(ColumnFamily::Write, 0, &[(1, &lots)]))]);
    let size = view(&store, 2).size().unwrap();
    assert!(size.keys == 100 && size.bytes > 50_000, "{size:?}");
    let keys = view(&store, 2).split_keys(2, 1).unwrap();
    assert!(keys.len() == 1 && keys[0] > "a03" && keys[0] < "a07", "{keys:?}");
    // Two rows share a page, which is none of theirs alone.
    let few = [super::put("ha", "v"), super::put("hb", "v")];
    run(&store, 3, &[entry(1, 1, data_in(ColumnFamily::Lock, 0, &[(1, &few)]))]);
    assert_eq!(view(&store, 3).split_keys(2, 1).unwrap(), ["hb"]);
    let system = store.read().region(RegionId(1), None).unwrap();
    assert!(matches!(
        system.in_family(ColumnFamily::Lock),
        Err(ReadError::NoFamily { family: ColumnFamily::Lock })
    ));
}
