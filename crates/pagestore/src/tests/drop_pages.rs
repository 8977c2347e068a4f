//! Damaged pages are taken out of a tree: what is left is whole, and what is lost is said.

use std::collections::BTreeSet;

use super::{disk, open, path};
use crate::page::UNIT_BYTES;
use crate::{Error, LostKeys, PageStore};

const KEYS: u32 = 20_000;

/// A tree of three levels, durable.
fn filled(value_bytes: usize) -> flotilla_vfs::fault::FaultFs {
    let fs = disk(0);
    let store = open(&fs);
    let mut txn = store.write().unwrap();
    let mut tree = txn.tree("t").unwrap();
    for key in 0..KEYS {
        tree.put(&key.to_be_bytes(), &vec![7; value_bytes]).unwrap();
    }
    txn.publish().unwrap();
    store.checkpoint().unwrap();
    fs
}

/// The damaged page that a look at a key meets.
fn met(store: &PageStore, key: u32) -> Option<u64> {
    let tree = store.read().tree("t").unwrap().unwrap();
    match tree.get(&key.to_be_bytes()) {
        Ok(_) => None,
        Err(Error::Corrupt { page, .. }) => Some(page),
        Err(error) => panic!("{error}"),
    }
}

/// Flips a bit of each page in which a tree may have some key, and returns those that were found.
fn spoil(fs: &flotilla_vfs::fault::FaultFs, units: &[u64]) {
    for unit in units {
        fs.flip_bit(&path(), unit * UNIT_BYTES as u64 + 100, 1);
    }
}

fn drop_pages(store: &PageStore, units: &BTreeSet<u64>) -> Result<Vec<LostKeys>, Error> {
    let mut txn = store.write()?;
    let lost = txn.tree("t")?.drop_pages(units)?;
    txn.publish()?;
    Ok(lost)
}

fn is_in(key: &[u8], lost: &[LostKeys]) -> bool {
    lost.iter().any(|keys| {
        keys.start.as_deref().is_none_or(|start| start <= key)
            && keys.end.as_deref().is_none_or(|end| key < end)
    })
}

/// Takes out what is met from then on, until nothing is. Returns what was lost.
fn mend(store: &PageStore, mut units: BTreeSet<u64>) -> Vec<LostKeys> {
    loop {
        match drop_pages(store, &units) {
            Ok(lost) => return lost,
            // One that had to be read to mend the tree.
            Err(Error::Corrupt { page, .. }) => assert!(units.insert(page), "page {page} again"),
            Err(error) => panic!("{error}"),
        }
    }
}

fn assert_whole_but_for(store: &PageStore, lost: &[LostKeys]) {
    let tree = store.read().tree("t").unwrap().unwrap();
    let mut all = tree.range(..);
    let mut found = BTreeSet::new();
    while let Some((key, _)) = all.next().unwrap() {
        found.insert(key.to_vec());
    }
    let expected = (0..KEYS).map(|key| key.to_be_bytes().to_vec());
    let expected: BTreeSet<_> = expected.filter(|key| !is_in(key, lost)).collect();
    assert_eq!(found.len(), expected.len());
    assert!(found == expected && tree.len() == expected.len() as u64);
    let count: u64 = lost.iter().map(|keys| keys.count).sum();
    assert_eq!(count, u64::from(KEYS) - tree.len());
}

/// The leaves of some keys.
fn leaves(fs: &flotilla_vfs::fault::FaultFs, keys: impl Iterator<Item = u32>) -> BTreeSet<u64> {
    let units = open(fs).stats().span_bytes / UNIT_BYTES as u64;
    let file = crate::tools::PageFile::open(fs, &path()).unwrap();
    let keys: BTreeSet<_> = keys.map(|key| key.to_be_bytes().to_vec()).collect();
    let of = |unit: &u64| {
        let Ok(page) = file.page(*unit) else { return false };
        page.kind == "leaf" && page.cells.iter().any(|cell| keys.contains(&cell.key))
    };
    (0..units).filter(of).collect()
}

#[test]
fn a_damaged_leaf_is_lost_alone_wherever_it_lies() {
    for key in [0, 1, 777, KEYS / 2, KEYS - 1] {
        let fs = filled(20);
        let units: Vec<_> = leaves(&fs, [key].into_iter()).into_iter().collect();
        spoil(&fs, &units);
        let store = open(&fs);
        let page = met(&store, key).expect("it is damaged");
        let lost = mend(&store, BTreeSet::from([page]));
        assert!(is_in(&key.to_be_bytes(), &lost) && lost.len() == 1 && lost[0].count < 400);
        assert_whole_but_for(&store, &lost);
        store.checkpoint().unwrap();
        store.check().unwrap();
        drop(store);
        let store = open(&fs);
        assert_whole_but_for(&store, &lost);
        store.check().unwrap();
        // The keys can be put again.
        let mut txn = store.write().unwrap();
        txn.tree("t").unwrap().put(&key.to_be_bytes(), b"new").unwrap();
        txn.publish().unwrap();
        store.check().unwrap();
    }
}

#[test]
fn many_damaged_leaves_next_to_each_other_are_lost() {
    let fs = filled(20);
    let units: Vec<_> = leaves(&fs, 5_000..9_000).into_iter().collect();
    assert!(units.len() > 20);
    spoil(&fs, &units);
    let store = open(&fs);
    let lost = mend(&store, units.iter().copied().collect());
    assert_eq!(lost.len(), units.len());
    assert!((5_000..9_000_u32).all(|key| is_in(&key.to_be_bytes(), &lost)));
    assert_whole_but_for(&store, &lost);
    store.checkpoint().unwrap();
    store.check().unwrap();
}

#[test]
fn all_leaves_are_lost_and_the_tree_is_empty() {
    let fs = filled(20);
    let units: Vec<_> = leaves(&fs, 0..KEYS).into_iter().collect();
    spoil(&fs, &units);
    let store = open(&fs);
    let lost = mend(&store, units.into_iter().collect());
    assert_whole_but_for(&store, &lost);
    assert!(store.read().tree("t").unwrap().unwrap().is_empty());
    store.checkpoint().unwrap();
    store.check().unwrap();
}

#[test]
fn a_damaged_branch_takes_its_subtree_along_and_its_space() {
    let fs = filled(20);
    let units = open(&fs).stats().span_bytes / UNIT_BYTES as u64;
    let file = crate::tools::PageFile::open(&fs, &path()).unwrap();
    let is_low = |unit: &u64| file.page(*unit).is_ok_and(|it| it.kind == "branch" && it.level == 1);
    let branches: Vec<_> = (0..units).filter(is_low).collect();
    drop(file);
    assert!(branches.len() > 1, "the tree has three levels");
    spoil(&fs, &branches[..1]);
    let store = open(&fs);
    let lost = mend(&store, BTreeSet::from([branches[0]]));
    assert!(lost.len() == 1 && lost[0].count > 1_000, "{lost:?}");
    assert_whole_but_for(&store, &lost);
    store.checkpoint().unwrap();
    let check = store.check().unwrap_err();
    assert!(matches!(check, Error::Corrupt { what: "neither reachable nor free", .. }), "{check}");
}

#[test]
fn pages_of_other_trees_are_not_found() {
    let fs = filled(20);
    let all = leaves(&fs, 0..KEYS);
    let store = open(&fs);
    let mut txn = store.write().unwrap();
    txn.tree("other").unwrap().put(b"k", b"v").unwrap();
    txn.publish().unwrap();
    store.checkpoint().unwrap();
    let mut txn = store.write().unwrap();
    assert_eq!(txn.tree("other").unwrap().drop_pages(&all).unwrap(), []);
    drop(txn);
    assert_eq!(drop_pages(&store, &BTreeSet::from([1 << 30])).unwrap(), []);
    assert_whole_but_for(&store, &[]);
}
