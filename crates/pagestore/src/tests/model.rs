//! Random operations on several trees against maps, with snapshots held across everything.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use super::{disk, on_a_mapped_file, open, path};
use crate::config::KEY_BYTES_MAX;
use crate::{Error, Options, PageStore, Snapshot, TreeMut, TreeOptions, WriteTxn};

pub(super) type Map = BTreeMap<Vec<u8>, Vec<u8>>;
pub(super) type Maps = BTreeMap<String, Map>;

/// The kind of keys and values that a run prefers, so that each shape of page is met often.
#[derive(Clone, Copy)]
pub(super) struct Taste {
    key_space: u32,
    long_keys: bool,
    value_bytes_max: usize,
    /// Units of the pages of three trees.
    page_units: [u32; 3],
}

const PAGE_UNITS: [[u32; 3]; 7] = [[1, 2, 15], [1; 3], [3; 3], [1; 3], [15; 3], [4, 1, 4], [2; 3]];

impl Taste {
    pub(super) fn of(seed: u64) -> Taste {
        Taste {
            key_space: [20, 300, 5000][seed as usize % 3],
            long_keys: seed % 4 == 3,
            value_bytes_max: [10, 200, 3000, 20_000][seed as usize / 3 % 4],
            page_units: PAGE_UNITS[seed as usize % PAGE_UNITS.len()],
        }
    }

    /// The options of the tree called `name`, if it is made.
    pub(super) fn tree_options(self, name: &str) -> TreeOptions {
        let which = usize::from(name.as_bytes()[0]) % 3;
        TreeOptions::default().page_units(self.page_units[which])
    }

    /// The tree called `name`, made as is preferred if it is missing.
    pub(super) fn tree<'a>(self, txn: &'a mut WriteTxn<'_>, name: &str) -> TreeMut<'a> {
        match txn.create_tree(name, self.tree_options(name)) {
            Ok(_) | Err(Error::TreeExists { .. }) => txn.tree(name).unwrap(),
            Err(error) => panic!("{error}"),
        }
    }

    pub(super) fn key(self, rng: &mut fastrand::Rng) -> Vec<u8> {
        let n = rng.u32(..self.key_space);
        match n % 7 {
            0 => n.to_be_bytes()[rng.usize(..4)..].to_vec(),
            1 if self.long_keys => {
                let mut key = vec![b'l'; rng.usize(..KEY_BYTES_MAX - 4)];
                key.extend(n.to_be_bytes());
                key
            }
            2 => format!("region/{:03}/row/{n}", n % 13).into_bytes(),
            _ => format!("{n:05}").into_bytes(),
        }
    }

    pub(super) fn value(self, rng: &mut fastrand::Rng) -> Vec<u8> {
        let len = rng.usize(..=self.value_bytes_max);
        let len = if rng.u32(..4) == 0 { len } else { len % 100 };
        vec![rng.u8(..); len]
    }
}

pub(super) fn change(tree: &mut TreeMut<'_>, map: &mut Map, taste: Taste, rng: &mut fastrand::Rng) {
    let key = taste.key(rng);
    match rng.u32(..100) {
        0..55 => {
            let value = taste.value(rng);
            tree.put(&key, &value).unwrap();
            map.insert(key, value);
        }
        55..60 => {
            // Rising keys, as a log would put them.
            for i in 0..rng.u32(..60) {
                let key = [&key[..], &i.to_be_bytes()[..]].concat();
                if key.len() <= KEY_BYTES_MAX {
                    tree.put(&key, &[7; 50]).unwrap();
                    map.insert(key, vec![7; 50]);
                }
            }
        }
        60..95 => assert_eq!(tree.delete(&key).unwrap(), map.remove(&key).is_some()),
        95..98 => {
            let end = taste.key(rng);
            let removed = tree.delete_range(&key, Some(&end)).unwrap();
            let before = map.len();
            map.retain(|k, _| *k < key || *k >= end);
            assert_eq!(removed as usize, before - map.len());
        }
        98 if rng.u32(..4) == 0 => {
            let removed = tree.delete_range(&key, None).unwrap();
            assert_eq!(removed as usize, map.split_off(&key).len());
        }
        _ => assert_eq!(tree.get(&key).unwrap().as_deref(), map.get(&key).map(Vec::as_slice)),
    }
    assert_eq!(tree.len() as usize, map.len());
}

pub(super) fn assert_same(snapshot: &Snapshot, maps: &Maps) {
    assert_eq!(snapshot.tree_names().unwrap(), maps.keys().cloned().collect::<Vec<_>>());
    for (name, map) in maps {
        let tree = snapshot.tree(name).unwrap().unwrap();
        assert_eq!(tree.len() as usize, map.len());
        let mut all = tree.range(..);
        for (key, value) in map {
            assert_eq!(all.next().unwrap(), Some((&key[..], &value[..])));
        }
        assert_eq!(all.next().unwrap(), None);
    }
}

/// Looks at one snapshot in every way there is.
fn look(snapshot: &Snapshot, maps: &Maps, taste: Taste, rng: &mut fastrand::Rng) {
    for (name, map) in maps {
        let tree = snapshot.tree(name).unwrap().unwrap();
        for _ in 0..5 {
            let key = taste.key(rng);
            assert_eq!(tree.get(&key).unwrap().as_deref(), map.get(&key).map(Vec::as_slice));
            let (low, high) = (bound(taste.key(rng), rng), bound(taste.key(rng), rng));
            let mut expected: Vec<_> = map
                .iter()
                .filter(|(k, _)| within(k, &low, &high))
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect();
            let low = low.as_ref().map(Vec::as_slice);
            let high = high.as_ref().map(Vec::as_slice);
            let mut range = tree.range((low, high));
            let mut keys = tree.keys((low, high));
            let mut expected: std::collections::VecDeque<_> = expected.drain(..).collect();
            let back_percent = [0, 100, 50][rng.usize(..3)];
            loop {
                let back = rng.u32(..100) < back_percent;
                let (entry, key, want) = if back {
                    (range.next_back(), keys.next_back(), expected.pop_back())
                } else {
                    (range.next(), keys.next(), expected.pop_front())
                };
                let entry = entry.unwrap().map(|(k, v)| (k.to_vec(), v.to_vec()));
                assert_eq!(key.unwrap(), entry.as_ref().map(|e| &e.0[..]));
                assert_eq!(entry, want);
                if want.is_none() {
                    break;
                }
            }
            let wanted: Vec<Vec<u8>> = (0..rng.usize(..40)).map(|_| taste.key(rng)).collect();
            let mut found = vec![None; wanted.len()];
            let note = |i: usize, value: Option<&[u8]>| {
                let old = found[i].replace(value.map(<[u8]>::to_vec));
                assert!(old.is_none(), "key {i} was told twice");
            };
            tree.multi_get(&wanted, note).unwrap();
            let expected: Vec<_> = wanted.iter().map(|key| Some(map.get(key).cloned())).collect();
            assert_eq!(found, expected);
            let prefix = wanted.first().unwrap_or(&key);
            let prefix = &prefix[..prefix.len().min(1)];
            let found = tree.prefix(prefix).copied().map(|entry| entry.unwrap().0);
            assert!(found.eq(map.keys().filter(|key| key.starts_with(prefix)).cloned()));
        }
    }
}

pub(super) fn bound(key: Vec<u8>, rng: &mut fastrand::Rng) -> Bound<Vec<u8>> {
    match rng.u32(..5) {
        0 => Bound::Unbounded,
        1 | 2 => Bound::Included(key),
        _ => Bound::Excluded(key),
    }
}

pub(super) fn within(key: &Vec<u8>, low: &Bound<Vec<u8>>, high: &Bound<Vec<u8>>) -> bool {
    let above = match low {
        Bound::Unbounded => true,
        Bound::Included(low) => key >= low,
        Bound::Excluded(low) => key > low,
    };
    let below = match high {
        Bound::Unbounded => true,
        Bound::Included(high) => key <= high,
        Bound::Excluded(high) => key < high,
    };
    above && below
}

/// One transaction, published or dropped.
fn transact(store: &PageStore, maps: &mut Maps, taste: Taste, rng: &mut fastrand::Rng) {
    let mut draft = maps.clone();
    let mut txn = store.write().unwrap();
    for _ in 0..rng.u32(..4) {
        let name = ["a", "b", "c"][rng.usize(..3)];
        let map = draft.entry(name.to_owned()).or_default();
        let mut tree = taste.tree(&mut txn, name);
        for _ in 0..rng.u32(..120) {
            change(&mut tree, map, taste, rng);
        }
        if rng.u32(..8) == 0 {
            let all = tree.range(..).copied();
            let held: Vec<_> = all.rev().map(Result::unwrap).collect();
            assert!(held.iter().map(|e| &e.0[..]).eq(map.keys().rev().map(Vec::as_slice)));
            change(&mut tree, map, taste, rng);
        }
    }
    if rng.u32(..4) > 0 {
        txn.publish().unwrap();
        *maps = draft;
    }
}

/// Random operations, with snapshots held and looked at, checkpoints, checks and new lives.
fn agree(seed: u64, open: &dyn Fn() -> PageStore) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let taste = Taste::of(seed);
    let mut store = open();
    let mut maps = Maps::new();
    let mut durable = Maps::new();
    let mut held: Vec<(Snapshot, Maps)> = Vec::new();
    for _ in 0..60 {
        match rng.u32(..20) {
            0..11 => transact(&store, &mut maps, taste, &mut rng),
            11..14 => held.push((store.read(), maps.clone())),
            14..16 if !held.is_empty() => {
                let (snapshot, maps) = held.swap_remove(rng.usize(..held.len()));
                look(&snapshot, &maps, taste, &mut rng);
            }
            16..18 => {
                store.checkpoint().unwrap();
                durable = maps.clone();
            }
            18 => {
                held.clear();
                drop(store);
                store = open();
                maps = durable.clone();
            }
            _ => {
                store.check().unwrap();
            }
        }
        assert_same(&store.read(), &maps);
    }
    for (snapshot, maps) in held {
        assert_same(&snapshot, &maps);
    }
    store.check().unwrap();
}

#[test]
fn agrees_with_maps() {
    for seed in 0..24 {
        let fs = disk(seed);
        agree(seed, &|| open(&fs));
    }
}

#[test]
fn agrees_with_maps_on_a_mapped_file() {
    for seed in 0..8 {
        on_a_mapped_file(|open| agree(seed * 5, open));
    }
}

#[test]
fn agrees_with_maps_on_a_small_cache() {
    for seed in 0..4 {
        let (fs, options) = (disk(seed), Options::default().cache_bytes(0));
        agree(seed, &|| {
            PageStore::open_with(Arc::new(fs.clone()), &path(), options.clone()).unwrap()
        });
    }
}
