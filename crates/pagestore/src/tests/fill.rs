//! How full leaves are, by the order in which rows come.

use super::{disk, open};
use crate::page::leaf::inline_bytes_max;
use crate::page::slotted::{SLOT_BYTES, SLOTS_AT};
use crate::page::{PageSize, UNIT_BYTES};
use crate::store::PageStore;

/// Bytes of values from short to the longest that lie in a leaf.
const VALUE_BYTES: [usize; 11] = [16, 50, 100, 180, 262, 400, 600, 900, 1025, 1300, 1920];
const RUN_COUNT: u64 = 100;
/// Leaves that a run fills.
const RUN_LEAVES: usize = 12;
const KEY_BYTES: usize = 10;

/// Rows that a leaf has room for. Two bytes of each cell are the length of its value.
fn rows_in_a_leaf(value_bytes: usize) -> usize {
    (UNIT_BYTES - SLOTS_AT) / (SLOT_BYTES + 2 + KEY_BYTES + value_bytes)
}

/// The rows of a tree in units of those that its pages could have, if `keys` come in this order.
fn fill(value_bytes: usize, keys: impl Iterator<Item = (u16, u64)>) -> f64 {
    assert!(value_bytes <= inline_bytes_max(PageSize::UNIT), "it lies elsewhere");
    let store = open(&disk(1));
    let mut txn = store.write().unwrap();
    let mut tree = txn.tree("rows").unwrap();
    for (run, number) in keys {
        let key = [&run.to_be_bytes()[..], &number.to_be_bytes()].concat();
        tree.put(&key, &vec![7; value_bytes]).unwrap();
    }
    txn.publish().unwrap();
    fill_of(&store, value_bytes)
}

/// The same for a tree that is built bottom-up.
fn built_fill(value_bytes: usize, count: u64) -> f64 {
    let store = open(&disk(2));
    let mut txn = store.write().unwrap();
    let mut builder = store.tree_builder();
    for number in 0..count {
        let key = [&[0; 2][..], &number.to_be_bytes()].concat();
        builder.push(&key, &vec![7; value_bytes]).unwrap();
    }
    txn.tree("rows").unwrap().ingest(b"", None, builder.finish().unwrap()).unwrap();
    txn.publish().unwrap();
    fill_of(&store, value_bytes)
}

fn fill_of(store: &PageStore, value_bytes: usize) -> f64 {
    let report = store.check().unwrap();
    // Branches count as leaves here: they are few.
    report.key_count as f64 / (report.page_count as f64 * rows_in_a_leaf(value_bytes) as f64)
}

#[test]
fn leaves_are_full_in_any_order_of_rows() {
    for value_bytes in VALUE_BYTES {
        let count = RUN_COUNT * (RUN_LEAVES * rows_in_a_leaf(value_bytes)) as u64;
        let one = fill(value_bytes, (0..count).map(|number| (0, number)));
        let many = (0..count).map(|n| ((n % RUN_COUNT) as u16, n / RUN_COUNT));
        let many = fill(value_bytes, many);
        let falling = fill(value_bytes, (0..count).rev().map(|number| (0, number)));
        let mut rng = fastrand::Rng::with_seed(value_bytes as u64);
        let random = fill(value_bytes, (0..count).map(|_| (0, rng.u64(..))));
        let built = built_fill(value_bytes, count);
        assert!(built >= 0.9, "rows of {value_bytes} built at once: {built:.2}");
        assert!(one >= 0.95, "rows of {value_bytes} in one run: {one:.2}");
        assert!(many >= 0.9, "rows of {value_bytes} in {RUN_COUNT} runs: {many:.2}");
        assert!(falling >= 0.5, "falling rows of {value_bytes}: {falling:.2}");
        assert!(random >= 0.65, "rows of {value_bytes} in any order: {random:.2}");
    }
}
