//! The expected contents of a store: maps, and the same calls on both.

use std::collections::BTreeMap;

use fastrand::Rng;
use flotilla_pagestore::{
    Error, PageStore, Snapshot, Tree, TreeMut, TreeOptions, ValueRef, WriteTxn,
};

pub(crate) type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// Trees by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct State {
    trees: BTreeMap<String, Map>,
    /// Units of the pages of each tree.
    page_units: BTreeMap<String, u32>,
}

/// The preferences of a run, so that each shape of page is met often.
#[derive(Clone, Copy)]
pub(crate) struct Taste {
    keys: u32,
    value_bytes_max: usize,
    /// Units that the pages of a new tree may have.
    page_units: &'static [u32],
}

const NAMES: [&str; 3] = ["a", "b", "c"];

impl Taste {
    pub(crate) fn of(seed: u64) -> Taste {
        Taste {
            keys: [30, 400, 3000][seed as usize % 3],
            value_bytes_max: [20, 900, 9000][seed as usize / 3 % 3],
            page_units: [&[1][..], &[2], &[1, 3, 3, 15]][seed as usize % 5 % 3],
        }
    }

    fn key(self, rng: &mut Rng) -> Vec<u8> {
        let number = rng.u32(..self.keys);
        match number % 5 {
            0 => number.to_be_bytes()[rng.usize(..4)..].to_vec(),
            1 if number.is_multiple_of(3) => [&[b'l'; 1500][..], &number.to_be_bytes()].concat(),
            _ => format!("row {number:05}").into_bytes(),
        }
    }

    fn value(self, rng: &mut Rng) -> Vec<u8> {
        let most = if rng.u8(..4) == 0 { self.value_bytes_max } else { 60 };
        vec![rng.u8(..); rng.usize(..=most)]
    }
}

impl State {
    /// Some calls on the transaction and on this.
    pub(crate) fn change(
        &mut self,
        store: &PageStore,
        txn: &mut WriteTxn<'_>,
        taste: Taste,
        rng: &mut Rng,
    ) {
        for _ in 0..rng.u8(1..=4) {
            match rng.u8(..20) {
                0 => self.delete_tree(txn, rng),
                1 => self.rename_tree(txn, rng),
                2 => {
                    let (point, before) = (txn.savepoint(), self.clone());
                    self.change_tree(txn, taste, rng);
                    self.delete_tree(txn, rng);
                    txn.rollback_to(&point).expect("it is this transaction's");
                    *self = before;
                }
                3 | 4 => self.move_end(txn, taste, rng),
                5 => self.ingest(store, txn, taste, rng),
                _ => self.change_tree(txn, taste, rng),
            }
        }
    }

    fn delete_tree(&mut self, txn: &mut WriteTxn<'_>, rng: &mut Rng) {
        let name = NAMES[rng.usize(..NAMES.len())];
        let removed = self.trees.remove(name).map(|map| map.len() as u64);
        assert_eq!(txn.delete_tree(name).expect("deleted"), removed);
        self.page_units.remove(name);
    }

    /// A tree, which is made if it is missing, and what it should hold.
    fn tree<'a>(
        &mut self,
        txn: &'a mut WriteTxn<'_>,
        name: &str,
        taste: Taste,
        rng: &mut Rng,
    ) -> (TreeMut<'a>, &mut Map) {
        if !self.trees.contains_key(name) {
            let units = taste.page_units[rng.usize(..taste.page_units.len())];
            let options = TreeOptions::default().page_units(units);
            txn.create_tree(name, options).expect("there is none");
            self.page_units.insert(name.to_owned(), units);
        }
        let tree = txn.tree(name).expect("there");
        assert_eq!(Some(&tree.page_units()), self.page_units.get(name), "tree {name}");
        (tree, self.trees.entry(name.to_owned()).or_default())
    }

    fn rename_tree(&mut self, txn: &mut WriteTxn<'_>, rng: &mut Rng) {
        let [from, to] = [(); 2].map(|()| NAMES[rng.usize(..NAMES.len())]);
        if self.trees.contains_key(from) && !self.trees.contains_key(to) {
            assert!(txn.rename_tree(from, to).expect("renamed"));
            let map = self.trees.remove(from).expect("it is there");
            self.trees.insert(to.to_owned(), map);
            let units = self.page_units.remove(from).expect("it is there");
            self.page_units.insert(to.to_owned(), units);
        }
    }

    /// Takes the end off one tree and puts it behind another, or back, or drops it.
    fn move_end(&mut self, txn: &mut WriteTxn<'_>, taste: Taste, rng: &mut Rng) {
        let [from, to] = [(); 2].map(|()| NAMES[rng.usize(..NAMES.len())]);
        let key = taste.key(rng);
        let (mut tree, map) = self.tree(txn, from, taste, rng);
        let part = tree.split_off(&key).expect("split");
        let (end, page_units) = (map.split_off(&key), tree.page_units());
        assert_eq!(part.len(), end.len() as u64);
        if rng.u8(..4) == 0 {
            return;
        }
        let (mut tree, map) = self.tree(txn, to, taste, rng);
        let rises = end.keys().next().zip(map.keys().next_back()).is_none_or(|(a, b)| a > b);
        let fits = rises && tree.page_units() == page_units;
        let appended = tree.append(&part);
        assert_eq!(appended.is_ok(), fits, "{appended:?}");
        if fits {
            map.extend(end);
        }
    }

    /// Builds a tree and puts it in place of a range of another, or drops it.
    fn ingest(&mut self, store: &PageStore, txn: &mut WriteTxn<'_>, taste: Taste, rng: &mut Rng) {
        let map: Map = (0..rng.u8(..60)).map(|_| (taste.key(rng), taste.value(rng))).collect();
        let name = NAMES[rng.usize(..NAMES.len())];
        let options = TreeOptions::default();
        let units = self.page_units.get(name).copied().unwrap_or(options.page_units);
        let mut builder =
            store.tree_builder_with(options.page_units(units)).expect("it is a tree's");
        for (key, value) in &map {
            builder.push(key, value).expect("they rise");
        }
        let built = builder.finish().expect("the disk is well");
        let Some((start, _)) = map.first_key_value().filter(|_| rng.u8(..4) > 0) else { return };
        let (mut tree, old) = self.tree(txn, name, taste, rng);
        if tree.page_units() != units {
            let refused = tree.ingest(start, None, built);
            assert!(matches!(refused, Err(Error::PageUnitsDiffer { .. })), "{refused:?}");
            return;
        }
        let before = old.len();
        old.retain(|key, _| key < start);
        let replaced = tree.ingest(start, None, built);
        assert_eq!(replaced.expect("ingested"), (before - old.len()) as u64);
        old.extend(map);
    }

    fn change_tree(&mut self, txn: &mut WriteTxn<'_>, taste: Taste, rng: &mut Rng) {
        let name = NAMES[rng.usize(..NAMES.len())];
        let (mut tree, map) = self.tree(txn, name, taste, rng);
        for _ in 0..rng.u8(1..30) {
            change_one(&mut tree, map, taste, rng);
        }
        assert_eq!(tree.len(), map.len() as u64);
    }

    /// Proves that the snapshot is this.
    pub(crate) fn assert_is(&self, snapshot: &Snapshot) {
        self.compare(snapshot).expect("read");
    }

    /// Proves that the snapshot is this, as far as it can be read.
    pub(crate) fn compare(&self, snapshot: &Snapshot) -> Result<(), Error> {
        let names = snapshot.tree_names()?;
        assert_eq!(names, self.trees.keys().cloned().collect::<Vec<_>>());
        for (name, map) in &self.trees {
            let tree = snapshot.tree(name)?.expect("it is named");
            let mut range = tree.range(..);
            for (key, value) in map {
                let found = range.next()?.expect("another entry");
                assert_eq!((found.0, found.1), (&key[..], &value[..]), "tree {name}");
            }
            assert!(range.next()?.is_none(), "tree {name} has more");
            assert_eq!(tree.len(), map.len() as u64);
            assert_eq!(tree.page_units(), self.page_units[name], "tree {name}");
        }
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.trees.is_empty()
    }

    /// The trees of a snapshot of this, and what they hold.
    pub(crate) fn trees(&self, snapshot: &Snapshot) -> Vec<(Tree, &Map)> {
        let tree = |name: &String| snapshot.tree(name).expect("read").expect("it is named");
        self.trees.iter().map(|(name, map)| (tree(name), map)).collect()
    }

    /// All values of a tree, borrowed, and what they should be.
    pub(crate) fn borrow<'a>(tree: &'a Tree, map: &'a Map) -> Vec<(ValueRef<'a>, &'a Vec<u8>)> {
        let found = |key: &Vec<u8>| tree.get(key).expect("read").expect("it is there");
        map.iter().map(|(key, value)| (found(key), value)).collect()
    }
}

fn change_one(tree: &mut TreeMut<'_>, map: &mut Map, taste: Taste, rng: &mut Rng) {
    let key = taste.key(rng);
    match rng.u8(..40) {
        0..24 => {
            let value = taste.value(rng);
            tree.put(&key, &value).expect("put");
            map.insert(key, value);
        }
        24..26 => {
            let value = taste.value(rng);
            let is_new = tree.insert(&key, &value).expect("inserted");
            assert_eq!(is_new, !map.contains_key(&key));
            map.entry(key).or_insert(value);
        }
        26..36 => {
            assert_eq!(tree.delete(&key).expect("deleted"), map.remove(&key).is_some());
        }
        36..38 => {
            let end = taste.key(rng);
            let before = map.len();
            map.retain(|k, _| *k < key || *k >= end);
            let removed = tree.delete_range(&key, Some(&end)).expect("deleted");
            assert_eq!(removed, (before - map.len()) as u64);
        }
        _ => {
            let found = tree.get(&key).expect("read");
            assert_eq!(found.as_deref(), map.get(&key).map(Vec::as_slice));
        }
    }
}
