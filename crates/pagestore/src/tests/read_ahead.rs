//! Read-ahead of scans: a source whose pages take as long as a disk, and that notes the order in
//! which pages are asked for and read.

use std::cell::Cell;
use std::collections::HashSet;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{disk, open};
use crate::error::Result;
use crate::page::PageRef;
use crate::page::leaf::ValueExtent;
use crate::page::slotted::SlottedPage;
use crate::page::source::PageSource;
use crate::page::view::{PageBytes, ValueRef};
use crate::tree::{self, Range};
use crate::txn::snapshot::Snapshot;

const KEYS: u32 = 20_000;

/// Pages of a snapshot as a slow disk has them.
struct SlowSource {
    snapshot: Snapshot,
    /// Whether the pages seem to be in memory when they are probed.
    is_resident: bool,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    calls: usize,
    asked: HashSet<PageRef>,
    asked_twice: usize,
    leaves_read: usize,
    leaves_asked_before_read: usize,
    branches_read: usize,
}

impl PageSource for SlowSource {
    fn page(&self, page_ref: PageRef) -> Result<PageBytes<'_>> {
        let page = self.snapshot.page(page_ref)?;
        let mut seen = self.seen.lock();
        if SlottedPage(&page).is_leaf() {
            seen.leaves_read += 1;
            seen.leaves_asked_before_read += usize::from(seen.asked.contains(&page_ref));
        } else {
            seen.branches_read += 1;
        }
        drop(seen);
        let (begin, latency) = (Instant::now(), Duration::from_micros(6));
        while begin.elapsed() < latency {
            std::hint::spin_loop();
        }
        Ok(page)
    }

    fn read_ahead(&self, pages: &mut Vec<PageRef>, _probes: usize) -> bool {
        let mut seen = self.seen.lock();
        seen.calls += 1;
        if !self.is_resident {
            for page_ref in pages.iter() {
                let is_new = seen.asked.insert(*page_ref);
                seen.asked_twice += usize::from(!is_new);
            }
        }
        !self.is_resident
    }

    fn extent(&self, extent: &ValueExtent) -> Result<ValueRef<'_>> {
        self.snapshot.extent(extent)
    }
}

/// A tree of all keys on a slow disk, and its root.
fn slow_tree(is_resident: bool) -> (SlowSource, PageRef) {
    let store = open(&disk(1));
    let mut txn = store.write().unwrap();
    let mut tree = txn.tree("t").unwrap();
    for key in 0..KEYS {
        // In an order that leaves neighbours apart.
        let key = key.wrapping_mul(7919) % KEYS;
        tree.put(&key.to_be_bytes(), &[1; 300]).unwrap();
    }
    txn.publish().unwrap();
    let snapshot = store.read();
    let root = snapshot.entry("t").unwrap().unwrap().root;
    (SlowSource { snapshot, is_resident, seen: Mutex::default() }, root)
}

/// A scan of `keys` keys in one direction, or of all.
fn scan(keys: u32, is_forward: bool, is_resident: bool) -> Seen {
    let (source, root) = slow_tree(is_resident);
    let count = Cell::new(0);
    let mut range = Range::new(&source, root, ..);
    while count.get() < keys {
        let next = if is_forward { range.next() } else { range.next_back() };
        if next.unwrap().is_none() {
            break;
        }
        count.set(count.get() + 1);
    }
    drop(range);
    assert_eq!(count.get(), keys.min(KEYS));
    source.seen.into_inner()
}

#[test]
fn a_long_scan_of_a_slow_disk_asks_before_it_reads() {
    for is_forward in [true, false] {
        let seen = scan(KEYS, is_forward, false);
        assert!(seen.leaves_read > 1000 && seen.branches_read > 5, "{}", seen.leaves_read);
        // The first three leaves, and the first one below each branch.
        let unasked = seen.leaves_read - seen.leaves_asked_before_read;
        assert!(unasked <= 3 + seen.branches_read, "{unasked} of {}", seen.leaves_read);
        assert_eq!(seen.asked_twice, 0);
        assert!(seen.calls < seen.leaves_read / 4, "{} calls", seen.calls);
    }
}

#[test]
fn a_short_scan_asks_for_little() {
    assert_eq!(scan(5, true, false).calls, 0);
    let seen = scan(30, true, false);
    assert!(seen.asked.len() <= 4 * seen.leaves_read, "{} pages", seen.asked.len());
}

#[test]
fn a_scan_of_memory_asks_for_nothing_and_probes_seldom() {
    let seen = scan(KEYS, true, true);
    assert!(seen.asked.is_empty());
    assert!(seen.calls <= 1 + seen.leaves_read / 8, "{} calls", seen.calls);
}

#[test]
fn leaves_for_puts_to_come_are_asked_for_before_they_are_read() {
    let keys: Vec<_> = (0..KEYS).step_by(200).map(u32::to_be_bytes).collect();
    let (source, root) = slow_tree(false);
    assert!(tree::read_leaves(&source, root, &keys).unwrap());
    let seen = source.seen.into_inner();
    assert_eq!(seen.leaves_read, keys.len());
    // But for the first one, which tells that the disk is slow.
    assert_eq!(seen.leaves_asked_before_read, keys.len() - 1);
    assert_eq!(seen.asked_twice, 0);
}

#[test]
fn leaves_for_puts_to_come_are_not_asked_for_if_they_are_in_memory_or_there_is_one() {
    let (source, root) = slow_tree(true);
    let keys = [1_u32, 10_000].map(u32::to_be_bytes);
    assert!(!tree::read_leaves(&source, root, &keys).unwrap());
    let (source, root) = slow_tree(false);
    assert!(!tree::read_leaves(&source, root, &keys[..1]).unwrap());
    assert_eq!(source.seen.lock().calls, 0);
    assert!(!tree::read_leaves(&source, PageRef::NONE, &keys).unwrap());
    assert!(!tree::read_leaves::<&[u8]>(&source, root, &[]).unwrap());
}
