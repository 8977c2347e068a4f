//! One page against a map, as a leaf and as a branch.

use std::collections::BTreeMap;

use super::*;
use crate::page::branch::{self, Child};
use crate::page::keys::joined;
use crate::page::leaf::{self, LeafValue, Payload};
use crate::page::subtree_size::SubtreeSize;
use crate::page::{PAGE_UNITS_MAX, PageKind, PageRef, Span, UNIT_BYTES};

fn blank(kind: PageKind, units: usize) -> Vec<u8> {
    let mut page = vec![0; units * UNIT_BYTES];
    let level = u8::from(kind == PageKind::Branch);
    page::begin(&mut page, kind, level, 9, 7);
    page
}

fn random_key(rng: &mut fastrand::Rng) -> Vec<u8> {
    let prefix = ["", "re", "region/", "region/1"][rng.usize(..4)];
    let mut key = prefix.as_bytes().to_vec();
    for _ in 0..rng.usize(..5) {
        key.push(rng.u8(..3));
    }
    key
}

/// Puts the cell before cell `i`; lays the page out anew if it must be. False if it is full.
fn put(page: &mut [u8], i: usize, cell: &Cell<'_>) -> bool {
    if SlottedPageMut(page).insert(i, cell) {
        return true;
    }
    let old = page.to_vec();
    let mut cells: Vec<Cell<'_>> = SlottedPage(&old).cells().collect();
    cells.insert(i, *cell);
    if bytes_for(&cells) > page.len() {
        return false;
    }
    SlottedPageMut(page).fill(&cells);
    true
}

fn assert_leaf(page: &[u8], map: &BTreeMap<Vec<u8>, Vec<u8>>) {
    let node = SlottedPage(page);
    node.validate(9).unwrap();
    let cells: Vec<Cell<'_>> = node.cells().collect();
    assert!(node.used() <= page.len());
    assert!(bytes_for(&cells) <= node.used().max(SLOTS_AT), "a new layout is never longer");
    assert_eq!(node.count(), map.len());
    for (i, (key, value)) in map.iter().enumerate() {
        assert_eq!(joined(node.key(i)), *key);
        assert_eq!(node.search(key), Ok(i));
        assert_eq!(leaf::value(node, i), LeafValue::Inline(value));
    }
}

#[test]
fn leaf_agrees_with_a_map() {
    for seed in 0..40 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let units = [1, 1, 3, PAGE_UNITS_MAX][seed as usize % 4];
        let mut page = blank(PageKind::Leaf, units);
        let mut map = BTreeMap::new();
        for _ in 0..300 {
            let key = random_key(&mut rng);
            let found = SlottedPage(&page).search(&key);
            assert_eq!(found.is_ok(), map.contains_key(&key));
            assert_eq!(found.unwrap_or_else(|i| i), map.range(..key.clone()).count());
            let value = vec![rng.u8(..); rng.usize(..60 * units)];
            let payload = Payload::new(LeafValue::Inline(&value));
            match found {
                Ok(i) if rng.bool() => {
                    SlottedPageMut(&mut page).remove(i..i + 1);
                    map.remove(&key);
                }
                Ok(i) => {
                    if SlottedPageMut(&mut page).replace(i, payload.lead(), payload.tail()) {
                        map.insert(key, value);
                    }
                }
                Err(i) => {
                    let cell =
                        Cell { key: (&[], &key), lead: payload.lead(), tail: payload.tail() };
                    if put(&mut page, i, &cell) {
                        map.insert(key, value);
                    }
                }
            }
            assert_leaf(&page, &map);
        }
    }
}

#[test]
fn branch_agrees_with_a_map() {
    let child = |n: u64| Child {
        page_ref: PageRef::new(Span { start: n, units: 1 }, n),
        size: SubtreeSize { keys: n * n, units: n },
    };
    for seed in 0..40 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut page = blank(PageKind::Branch, [1, 4][seed as usize % 2]);
        SlottedPageMut(&mut page).set_leftmost(&child(1).encode());
        // Children by the key from which on they are the right ones.
        let mut map = BTreeMap::from([(Vec::new(), child(1))]);
        for n in 2..200 {
            let key = random_key(&mut rng);
            if !key.is_empty() && !map.contains_key(&key) {
                let raw = child(n).encode();
                let i = branch::child_index(SlottedPage(&page), &key);
                if put_child(&mut page, i, &branch::cell((&[], &key), &raw)) {
                    map.insert(key, child(n));
                }
            }
            if rng.u32(..3) == 0 && map.len() > 2 {
                let from = rng.usize(1..map.len());
                let to = rng.usize(from..map.len().min(from + 3));
                branch::remove_children(&mut SlottedPageMut(&mut page), from..to);
                let gone: Vec<_> = map.keys().skip(from).take(to - from).cloned().collect();
                map.retain(|key, _| !gone.contains(key));
            }
            SlottedPage(&page).validate(9).unwrap();
            let key = random_key(&mut rng);
            let i = branch::child_index(SlottedPage(&page), &key);
            let expected = map.range(..=key).next_back().expect("the empty key is in it");
            assert_eq!(branch::sized_child(SlottedPage(&page), i), *expected.1);
            assert_eq!(branch::child_count(SlottedPage(&page)), map.len());
        }
        branch::remove_children(&mut SlottedPageMut(&mut page), 0..map.len() - 1);
        let last = *map.values().next_back().unwrap();
        assert_eq!(
            (SlottedPage(&page).count(), *SlottedPage(&page).leftmost()),
            (0, last.encode())
        );
    }
}

fn put_child(page: &mut [u8], i: usize, cell: &Cell<'_>) -> bool {
    let leftmost = *SlottedPage(page).leftmost();
    let done = put(page, i, cell);
    assert_eq!(
        *SlottedPage(page).leftmost(),
        leftmost,
        "the layout leaves the header's child alone"
    );
    done
}

#[test]
fn no_damage_leads_out_of_the_page() {
    let mut page = blank(PageKind::Leaf, 1);
    let keys: Vec<_> = (0..40).map(|i| format!("region/{i:03}")).collect();
    let payload = Payload::new(LeafValue::Inline(b"value"));
    let cell = |key| Cell { key: (&[], key), lead: payload.lead(), tail: payload.tail() };
    let cells: Vec<_> = keys.iter().map(|key| cell(key.as_bytes())).collect();
    SlottedPageMut(&mut page).fill(&cells);
    let mut rng = fastrand::Rng::with_seed(1);
    let mut refused = 0;
    for _ in 0..20_000 {
        let mut damaged = page.clone();
        for _ in 0..rng.usize(1..4) {
            damaged[rng.usize(24..400)] = rng.u8(..);
        }
        let node = SlottedPage(&damaged);
        if node.validate(9).is_err() {
            refused += 1;
            continue;
        }
        for i in 0..node.count() {
            let _ = (joined(node.key(i)), leaf::value(node, i));
        }
        let _ = node.search(b"region/020");
    }
    assert!(refused > 10_000, "{refused} refused");
}

#[test]
fn separator_is_short_and_separates() {
    for (left, right) in [("abc", "abd"), ("a", "aa"), ("abc", "b"), ("", "x"), ("az", "b")] {
        let (left, right) = (left.as_bytes(), right.as_bytes());
        let separator = branch::separator((&[], left), (&[], right));
        assert!(left < &separator[..] && &separator[..] <= right);
        assert!(separator.len() <= right.len());
    }
    assert_eq!(branch::separator((b"region", b"/1/a"), (b"region", b"/2/b")), b"region/2");
}

/// A leaf with one long value at `extent`, under a key of so many bytes.
fn leaf_of(extent: leaf::ValueExtent, key_len: usize) -> Vec<u8> {
    let mut page = vec![0; 3 * UNIT_BYTES];
    page::begin(&mut page, PageKind::Leaf, 0, 9, 7);
    let payload = Payload::new(LeafValue::Extent(extent));
    let key = vec![1; key_len];
    let cell = Cell { key: (&[], &key), lead: payload.lead(), tail: payload.tail() };
    SlottedPageMut(&mut page).fill(&[cell]);
    page
}

#[test]
fn what_cannot_be_is_refused_before_anything_counts_on_it() {
    let corrupt = |page: &[u8]| match SlottedPage(page).validate(9) {
        Err(Error::Corrupt { page: 9, what }) => what,
        other => panic!("{other:?}"),
    };
    let sound = leaf::ValueExtent { start: 2, len: 16 << 20, crc: 0, created_txid: 1 };
    let last = leaf::ValueExtent { start: (1 << 32) - 4096, ..sound };
    for extent in [sound, last] {
        SlottedPage(&leaf_of(extent, 8256)).validate(9).unwrap();
    }
    for extent in [
        leaf::ValueExtent { start: 1, ..sound },
        leaf::ValueExtent { start: last.start + 1, ..sound },
        leaf::ValueExtent { start: u64::MAX, ..sound },
        leaf::ValueExtent { len: (16 << 20) + 1, ..sound },
        leaf::ValueExtent { len: u32::MAX, ..sound },
    ] {
        assert_eq!(corrupt(&leaf_of(extent, 4)), "address of a long value", "{extent:?}");
    }
    assert_eq!(corrupt(&leaf_of(sound, 8257)), "length of a key");
    let mut page = leaf_of(sound, 4);
    page[5] = 1;
    assert_eq!(corrupt(&page), "level");
    let page_ref = PageRef::new(Span { start: 5, units: 1 }, 1);
    let only = Child { page_ref, size: SubtreeSize { keys: 1, units: 1 } };
    for (level, is_sound) in [(0, false), (1, true), (48, true), (49, false), (255, false)] {
        let mut page = blank(PageKind::Branch, 1);
        let mut node = SlottedPageMut(&mut page);
        node.fill(&[]);
        node.set_leftmost(&only.encode());
        page[5] = level;
        match is_sound {
            true => SlottedPage(&page).validate(9).unwrap(),
            false => assert_eq!(corrupt(&page), "level"),
        }
    }
}
