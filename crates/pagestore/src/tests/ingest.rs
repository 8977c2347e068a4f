//! Bulk load: trees that are built concurrently with all transactions, and ingested by one.

use std::ops::Bound;

use super::model::{Map, Maps, Taste, assert_same, change};
use super::{disk, open, try_open};
use crate::{BuiltTree, Error, KEY_BYTES_MAX, PageStore, TreeOptions, WriteTxn};

/// Entries within two bounds, as `taste` has them, with some keys in dense rows.
fn entries(
    start: &[u8],
    end: Option<&[u8]>,
    count: usize,
    taste: Taste,
    rng: &mut fastrand::Rng,
) -> Map {
    let mut map = Map::new();
    for i in 0..count {
        let mut key = [start, &taste.key(rng)].concat();
        if i % 3 > 0 {
            key = [start, format!("{:06}", i * 17).as_bytes()].concat();
        }
        if key.len() <= KEY_BYTES_MAX && end.is_none_or(|end| key[..] < *end) {
            map.insert(key, taste.value(rng));
        }
    }
    map
}

fn build(store: &PageStore, map: &Map, options: TreeOptions) -> Result<BuiltTree, Error> {
    let mut builder = store.tree_builder_with(options)?;
    for (key, value) in map {
        builder.push(key, value)?;
    }
    assert_eq!(builder.len(), map.len() as u64);
    builder.finish()
}

#[test]
fn ingest_agrees_with_maps() {
    for seed in 0..24 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let taste = Taste::of(seed);
        let fs = disk(seed);
        let mut store = open(&fs);
        let mut maps = Maps::from([("t".to_owned(), Map::new())]);
        let options = taste.tree_options("t");
        let create =
            |mut txn: WriteTxn<'_>| txn.create_tree("t", options).map(|_| ()).and(txn.publish());
        store.write().and_then(create).unwrap();
        for _ in 0..12 {
            let (mut start, mut end) = (taste.key(&mut rng), Some(taste.key(&mut rng)));
            if end.as_ref().is_some_and(|end| *end <= start) {
                (start, end) = (end.unwrap_or_default(), None);
            }
            let count = [0, 1, 40, 3000][rng.usize(..4)] / (1 + (seed as usize / 3 % 4) * 3);
            let built = entries(&start, end.as_deref(), count, taste, &mut rng);
            let tree = build(&store, &built, options).unwrap();
            assert_eq!(tree.len(), built.len() as u64);
            store.check().unwrap();
            let mut draft = maps.clone();
            let mut txn = store.write().unwrap();
            let map = draft.get_mut("t").unwrap();
            for _ in 0..rng.u32(..40) {
                change(&mut txn.tree("t").unwrap(), map, taste, &mut rng);
            }
            let point = txn.savepoint();
            let before = map.len();
            map.retain(|key, _| *key < start || end.as_ref().is_some_and(|end| key >= end));
            let removed = txn.tree("t").unwrap().ingest(&start, end.as_deref(), tree).unwrap();
            assert_eq!(removed, (before - map.len()) as u64);
            map.extend(built);
            for _ in 0..rng.u32(..40) {
                change(&mut txn.tree("t").unwrap(), map, taste, &mut rng);
            }
            match rng.u32(..8) {
                0 => drop(txn),
                1 => {
                    txn.rollback_to(&point).unwrap();
                    drop(txn);
                }
                _ => {
                    txn.publish().unwrap();
                    maps = draft;
                }
            }
            assert_same(&store.read(), &maps);
            assert_eq!(store.check().unwrap().reservation_bytes, 0);
            if rng.u32(..3) == 0 {
                store.checkpoint().unwrap();
                drop(store);
                fs.power_loss(seed);
                store = open(&fs);
                assert_same(&store.read(), &maps);
                store.check().unwrap();
            }
        }
    }
}

#[test]
fn large_tree_goes_in_without_memory_and_in_large_writes() {
    let fs = disk(1);
    let store = open(&fs);
    let before = fs.operations();
    let mut builder = store.tree_builder();
    for key in 0..100_000_u32 {
        builder.push(&key.to_be_bytes(), &[key as u8; 100]).unwrap();
    }
    let tree = builder.finish().unwrap();
    let megabytes = store.stats().written_bytes >> 20;
    assert!((10..14).contains(&megabytes), "{megabytes} MiB");
    assert!(fs.operations() - before < 3 * megabytes, "{} calls", fs.operations() - before);
    assert_eq!(store.stats().dirty_bytes, 0);
    assert!(store.check().unwrap().reservation_bytes > 10 << 20);
    let mut txn = store.write().unwrap();
    txn.tree("t").unwrap().put(&7_u32.to_be_bytes(), b"old").unwrap();
    assert_eq!(txn.tree("t").unwrap().ingest(b"", None, tree).unwrap(), 1);
    txn.publish().unwrap();
    assert!(store.stats().dirty_bytes < 10 * 4096, "{:?}", store.stats());
    let tree = store.read().tree("t").unwrap().unwrap();
    assert_eq!(tree.count(Bound::Unbounded, Bound::Unbounded).unwrap(), 100_000);
    assert_eq!(tree.get(&99_999_u32.to_be_bytes()).unwrap().unwrap(), [159; 100]);
    let leaf_bytes = tree.bytes(Bound::Unbounded, Bound::Unbounded).unwrap() / 100_000;
    assert!(leaf_bytes < 125, "{leaf_bytes} bytes an entry: leaves are packed");
    store.check().unwrap();
    store.checkpoint().unwrap();
    store.check().unwrap();
}

#[test]
fn what_is_dropped_gives_its_space_back() {
    let fs = disk(1);
    let store = open(&fs);
    let span_bytes = |store: &PageStore| store.stats().span_bytes;
    for round in 0..20_u32 {
        let mut builder = store.tree_builder();
        for key in 0..4000_u32 {
            builder.push(&key.to_be_bytes(), &[1; 300]).unwrap();
        }
        match round % 4 {
            0 => drop(builder),
            1 => drop(builder.finish().unwrap()),
            2 => {
                let tree = builder.finish().unwrap();
                store.write().unwrap().tree("t").unwrap().ingest(b"", None, tree).unwrap();
            }
            _ => {
                let tree = builder.finish().unwrap();
                let mut txn = store.write().unwrap();
                let point = txn.savepoint();
                txn.tree("t").unwrap().ingest(b"", None, tree).unwrap();
                txn.tree("t").unwrap().put(&5_u32.to_be_bytes(), b"new").unwrap();
                txn.rollback_to(&point).unwrap();
                txn.tree("t").unwrap().put(b"k", b"v").unwrap();
                txn.publish().unwrap();
            }
        }
        assert_eq!(store.check().unwrap().reservation_bytes, 0);
        assert!(span_bytes(&store) < 3 << 20, "round {round}: {}", span_bytes(&store));
    }
}

#[test]
fn what_does_not_fit_is_refused_before_anything_changes() {
    let (store, other) = (open(&disk(1)), open(&disk(2)));
    let mut builder = store.tree_builder();
    builder.push(b"b", b"1").unwrap();
    for key in [b"b", b"a"] {
        assert!(matches!(builder.push(key, b"2"), Err(Error::OutOfOrder { .. })));
    }
    let long = vec![b'x'; KEY_BYTES_MAX + 1];
    assert!(matches!(builder.push(&long, b"2"), Err(Error::TooLarge { .. })));
    builder.push(b"c", b"2").unwrap();
    let tree = builder.finish().unwrap();
    let mut txn = other.write().unwrap();
    let refused = txn.tree("t").unwrap().ingest(b"", None, tree);
    assert!(matches!(refused, Err(Error::Foreign { .. })));
    drop(txn);
    let map = Map::from([(b"b".to_vec(), b"1".to_vec()), (b"c".to_vec(), b"2".to_vec())]);
    for (start, end) in [(&b"bb"[..], None), (b"", Some(&b"c"[..])), (b"d", Some(b"e"))] {
        let tree = build(&store, &map, TreeOptions::default()).unwrap();
        let mut txn = store.write().unwrap();
        txn.tree("t").unwrap().put(b"b", b"old").unwrap();
        let refused = txn.tree("t").unwrap().ingest(start, end, tree);
        assert!(matches!(refused, Err(Error::OutOfOrder { .. })));
        txn.publish().unwrap();
        let tree = store.read().tree("t").unwrap().unwrap();
        assert_eq!(tree.get(b"b").unwrap().unwrap(), b"old");
    }
    assert_eq!(store.check().unwrap().reservation_bytes, 0);
}

#[test]
fn full_disk_ends_the_builder_and_nothing_else() {
    let fs = disk(3);
    let store = open(&fs);
    fs.set_capacity(Some(store.stats().file_bytes + (2 << 20)));
    let mut builder = store.tree_builder();
    let failed = (0..100_000_u32).find_map(|key| builder.push(&key.to_be_bytes(), &[1; 100]).err());
    assert!(matches!(failed, Some(Error::NoSpace)), "{failed:?}");
    assert!(matches!(builder.push(b"zzzzz", b""), Err(Error::Broken)));
    assert!(matches!(builder.finish(), Err(Error::Broken)));
    let mut txn = store.write().unwrap();
    txn.tree("t").unwrap().put(b"k", b"v").unwrap();
    txn.publish().unwrap();
    store.checkpoint().unwrap();
    assert_eq!(store.check().unwrap().reservation_bytes, 0);
}

#[test]
fn power_goes_at_every_operation_of_an_ingest() {
    for seed in [1, 2, 5] {
        let taste = Taste::of(seed);
        for cut in 1.. {
            let mut rng = fastrand::Rng::with_seed(seed);
            let fs = disk(seed);
            fs.cut_power_after(cut);
            let mut durable = Maps::new();
            let mut attempted = None;
            let outcome = try_open(&fs).and_then(|store| {
                let mut maps = Maps::from([("t".to_owned(), Map::new())]);
                let options = taste.tree_options("t");
                let mut txn = store.write()?;
                txn.create_tree("t", options)?;
                attempted = Some(maps.clone());
                txn.publish()?;
                for round in 0..4 {
                    let start = [b'0' + round];
                    let map = entries(&start, Some(&[b'1' + round]), 400, taste, &mut rng);
                    let tree = build(&store, &map, options)?;
                    let mut txn = store.write()?;
                    txn.tree("t")?.ingest(&start, Some(&[b'1' + round]), tree)?;
                    let all = maps.get_mut("t").unwrap();
                    all.extend(map);
                    change(&mut txn.tree("t")?, all, taste, &mut rng);
                    txn.publish()?;
                    // One that is under way when the checkpoint is made.
                    let beside = build(&store, all, options)?;
                    attempted = Some(maps.clone());
                    store.checkpoint()?;
                    durable = maps.clone();
                    drop(beside);
                }
                Ok(())
            });
            fs.power_loss(cut);
            let store = open(&fs);
            let report = store.check().unwrap();
            let names = store.read().tree_names().unwrap();
            let found = if names.is_empty() { Maps::new() } else { contents(&store) };
            assert!(found == durable || Some(found) == attempted, "seed {seed}, cut {cut}");
            assert_eq!(report.reservation_bytes, 0);
            if outcome.is_ok() {
                break;
            }
        }
    }
}

fn contents(store: &PageStore) -> Maps {
    let tree = store.read().tree("t").unwrap().unwrap();
    let mut all = tree.range(..);
    let mut map = Map::new();
    while let Some((key, value)) = all.next().unwrap() {
        map.insert(key.to_vec(), value.to_vec());
    }
    Maps::from([("t".to_owned(), map)])
}
