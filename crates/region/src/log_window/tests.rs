//! Tests of the log window: the entries that it holds, serves and forgets.

use bytes::Bytes;

use super::*;
use crate::descriptor::{Descriptor, Epoch, Peer, RemovedPeers, Space};
use crate::ids::{PeerId, RegionId, StoreId};

const LIMITS: WindowConfig = WindowConfig {
    tail_bytes_max: u64::MAX,
    tail_count_max: 4,
    log_kept_region_bytes: 0,
    log_kept_bytes_max: 0,
};

fn empty() -> LogWindow {
    let descriptor = Descriptor {
        removed: RemovedPeers::default(),
        id: RegionId(1),
        space: Space::Raw,
        start: Bytes::new(),
        end: Bytes::new(),
        epoch: Epoch { conf_version: 1, version: 1 },
        peers: vec![Peer { id: PeerId(1), store: StoreId(1) }.into()],
    };
    LogWindow::new(&RecoveredReplica::fresh(descriptor, PeerId(1)), LIMITS)
}

fn entry(index: u64, term: u64) -> Entry {
    Entry { index, term, data: Bytes::from(vec![0; 68]), ..Default::default() }
}

fn filled(terms: &[u64]) -> LogWindow {
    let mut window = empty();
    let entries: Vec<_> = (1..).zip(terms).map(|(index, term)| entry(index, *term)).collect();
    window.append(&entries, Index(0));
    window
}

fn read(window: &LogWindow, low: u64, high: u64, bytes_max: Option<u64>) -> Vec<u64> {
    let entries = window.entries(low, high, bytes_max, GetEntriesContext::empty(false)).unwrap();
    entries.iter().map(|entry| entry.index).collect()
}

#[test]
fn at_least_one_entry_is_read_whatever_the_limit() {
    let window = filled(&[1, 1, 1, 1]);
    assert_eq!(read(&window, 1, 5, None), [1, 2, 3, 4]);
    assert_eq!(read(&window, 2, 4, None), [2, 3]);
    assert_eq!(read(&window, 2, 5, Some(0)), [2]);
    assert_eq!(read(&window, 2, 5, Some(200)), [2, 3]);
}

#[test]
fn appending_replaces_the_suffix_and_its_terms() {
    let mut window = filled(&[1, 1, 2, 2, 3]);
    window.append(&[entry(4, 5), entry(5, 6)], Index(2));
    let terms: Vec<_> = (0..7).map(|index| window.term(index).ok()).collect();
    let known = [Some(0), Some(1), Some(1), Some(2), Some(5), Some(6), None];
    assert_eq!(terms, known);
    window.append(&[entry(3, 7)], Index(2));
    assert_eq!((window.last_index().unwrap(), window.term(3).unwrap()), (3, 7));
    window.check(Index(2));
}

#[test]
#[should_panic(expected = "replaces one that is applied")]
fn what_is_applied_is_not_replaced() {
    filled(&[1, 1, 1]).append(&[entry(2, 2)], Index(2));
}

#[test]
fn release_keeps_what_is_not_applied() {
    let mut window = filled(&[1; 10]);
    window.release(Index(3));
    assert_eq!(window.tail_start(), 4);
    window.release(Index(9));
    assert_eq!(window.tail_start(), 7, "a short tail stays");
    window.check(Index(9));
    assert_eq!(window.bytes_between(Index(8), Index(9)), 200);
}

#[test]
fn the_term_before_the_first_entry_is_known_after_compaction() {
    let mut window = filled(&[1, 1, 2, 2, 3]);
    assert_eq!(window.compact(Index(3)), Term(1));
    assert_eq!((window.first_index().unwrap(), window.term(2).unwrap()), (3, 1));
    assert!(window.term(1).is_err());
    assert_eq!(window.compact(Index(4)), Term(2));
    assert_eq!((window.term(3).unwrap(), window.term(4).unwrap()), (2, 2));
    assert_eq!(window.compact(Index(6)), Term(3));
    assert_eq!((window.first_index().unwrap(), window.last_index().unwrap()), (6, 5));
    assert_eq!(window.term(5).unwrap(), 3);
    window.append(&[entry(6, 3), entry(7, 4)], Index(5));
    assert_eq!(
        (window.term(5).unwrap(), window.term(6).unwrap(), window.term(7).unwrap()),
        (3, 3, 4)
    );
    window.check(Index(5));
}

#[test]
fn what_is_not_held_is_fetched_once_for_all_who_ask() {
    let mut window = filled(&[1; 10]);
    window.release(Index(10));
    for _ in 0..3 {
        let asked = window.entries(2, 11, None, GetEntriesContext::empty(true));
        let error = asked.unwrap_err();
        assert_eq!(error, Error::Store(StorageError::LogTemporarilyUnavailable));
    }
    let new: Vec<_> = window.fetches().take_unsent(RegionId(1), PeerId(1)).collect();
    assert_eq!(new.len(), 1);
    assert_eq!((new[0].low, new[0].high), (Index(2), Index(7)), "only what is missing");
    assert_eq!(window.fetches().take_unsent(RegionId(1), PeerId(1)).count(), 0);
    let (low, high, askers) = window.fetches().end(new[0].context);
    assert_eq!((low, high, askers.len()), (2, 7, 3));
    window.lend((2..5).map(|index| entry(index, 1)).collect());
    assert_eq!(read(&window, 2, 11, None), [2, 3, 4]);
    assert_eq!(read(&window, 3, 11, None), [3, 4]);
}

#[test]
fn fetches_are_bounded() {
    let mut window = filled(&[1; 100]);
    window.release(Index(100));
    for low in 1..=90 {
        assert!(window.entries(low, 101, None, GetEntriesContext::empty(true)).is_err());
    }
    assert_eq!(window.fetches().take_unsent(RegionId(1), PeerId(1)).count(), 16);
}

#[test]
#[should_panic(expected = "raft cannot wait")]
fn what_raft_cannot_wait_for_must_be_here() {
    let mut window = filled(&[1; 10]);
    window.release(Index(10));
    let _ = window.entries(1, 3, None, GetEntriesContext::empty(false));
}
