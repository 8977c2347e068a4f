//! A pass over the file, in steps, finds rot in whatever the last checkpoint relies on, and nothing
//! else.

use std::sync::Arc;

use flotilla_vfs::fault::FaultFs;
use flotilla_vfs::{File, FileSystem, OpenMode};

use super::problems::{Forger, filled};
use super::{disk, open, path, try_open};
use crate::page::UNIT_BYTES;
use crate::page::layout::META_UNITS;
use crate::page::slotted::{SLOT_BYTES, SLOTS_AT, SlottedPage};
use crate::{CommitDurability, Error, Options, PageStore, Scrub};

/// A pass in steps of `bytes_max`. Returns how many there were.
fn pass(store: &PageStore, bytes_max: u64) -> Result<u64, Error> {
    let mut scrub = Scrub::new();
    let mut steps = 0;
    while !scrub.is_done() {
        store.scrub(&mut scrub, bytes_max)?;
        steps += 1;
        assert!(steps < 100_000, "{scrub:?}");
    }
    Ok(steps)
}

fn corrupt_page(outcome: Result<u64, Error>) -> Option<u64> {
    match outcome {
        Ok(_) => None,
        Err(Error::Corrupt { page, .. }) => Some(page),
        Err(error) => panic!("{error}"),
    }
}

fn file(fs: &FaultFs) -> Arc<dyn File> {
    fs.open(&path(), OpenMode::Write).unwrap()
}

fn unit(fs: &FaultFs, unit: u64) -> Vec<u8> {
    let mut bytes = vec![0; UNIT_BYTES];
    file(fs).read_exact_at(&mut bytes, unit * UNIT_BYTES as u64).unwrap();
    bytes
}

/// Units that a pass over [`filled`] has to read: those in use, of the redo area the first, which
/// has the one frame, the place of the bitmap that counts, and both meta pages.
fn relied_on(fs: &FaultFs) -> Vec<u64> {
    let mut forger = Forger::new(fs);
    let area = forger.meta.redo.unwrap().span;
    let used = forger.used();
    let mut which = 0;
    forger.directory(|bytes| which = u64::from(bytes[0]));
    assert!(which == 1 || which == 2, "a bitmap is written");
    let bitmap = META_UNITS + which - 1;
    let is_used = |unit: u64| used.contains(unit - META_UNITS) || unit == bitmap;
    let is_behind_the_frame = |unit: u64| area.start < unit && unit < area.end();
    let behind = (META_UNITS..forger.meta.end).filter(|&unit| is_used(unit));
    (0..META_UNITS).chain(behind.filter(|&unit| !is_behind_the_frame(unit))).collect()
}

#[test]
fn rot_is_found_wherever_the_checkpoint_relies_on_the_file() {
    let fs = filled();
    let relied_on = relied_on(&fs);
    let store = try_open(&fs).unwrap();
    assert!(store.stats().deferred_free_bytes > 0 && store.stats().redo_bytes > 0);
    pass(&store, u64::MAX).unwrap();
    assert!(pass(&store, 1).unwrap() > relied_on.len() as u64 / 2);
    for unit in 0..store.stats().span_bytes / UNIT_BYTES as u64 {
        // In a frame this is its body, in a meta page one copy of eight.
        let at = unit * UNIT_BYTES as u64 + 60;
        fs.flip_bit(&path(), at, 3);
        // In small steps it takes longer.
        let bytes_max = if unit % 31 == 0 { 1 } else { 1 << 20 };
        let found = corrupt_page(pass(&store, bytes_max));
        fs.flip_bit(&path(), at, 3);
        match relied_on.binary_search(&unit) {
            // A long value has two units.
            Ok(_) => assert!(found == Some(unit) || found == Some(unit - 1), "{unit}: {found:?}"),
            Err(_) => assert_eq!(found, None, "{unit}"),
        }
    }
    pass(&store, u64::MAX).unwrap();
    store.check().unwrap();
}

#[test]
fn each_sector_of_a_meta_page_and_of_a_frame_is_read() {
    let fs = filled();
    let area = Forger::new(&fs).meta.redo.unwrap();
    let store = try_open(&fs).unwrap();
    let mut txn = store.write().unwrap();
    txn.tree("small").unwrap().put(b"a frame of its own", &[9; 900]).unwrap();
    txn.commit(CommitDurability::Sync).unwrap();
    let bytes = store.shared().redo.bytes().0;
    assert!(bytes >= 3 * 512, "{bytes}");
    let sectors = |from: u64, bytes: u64| (from..from + bytes).step_by(512);
    let begin = area.span.start * UNIT_BYTES as u64 + area.from;
    for at in sectors(0, 2 * UNIT_BYTES as u64).chain(sectors(begin, bytes)) {
        fs.flip_bit(&path(), at + 50, 0);
        let page = corrupt_page(pass(&store, u64::MAX)).expect("it is read");
        assert_eq!(page, at / UNIT_BYTES as u64, "byte {at}");
        fs.flip_bit(&path(), at + 50, 0);
    }
    pass(&store, u64::MAX).unwrap();
}

#[test]
fn what_a_power_loss_spoils_of_a_meta_page_is_no_rot() {
    let fs = filled();
    let newest = Forger::new(&fs).meta.unit();
    for (meta, sectors) in [(newest, 1..8), (newest ^ 1, 0..8)] {
        let torn = fs.crashed(0);
        let at = meta * UNIT_BYTES as u64 + sectors.start * 512;
        file(&torn).write_at(&vec![7; sectors.count() * 512], at).unwrap();
        let store = try_open(&torn).unwrap();
        pass(&store, u64::MAX).unwrap();
        // Written by two checkpoints, both are whole.
        for i in 0..2 {
            let mut txn = store.write().unwrap();
            txn.tree("small").unwrap().put(b"k", &[i]).unwrap();
            txn.publish().unwrap();
            store.checkpoint().unwrap();
        }
        pass(&store, u64::MAX).unwrap();
        torn.flip_bit(&path(), meta * UNIT_BYTES as u64 + 7 * 512 + 9, 0);
        assert_eq!(corrupt_page(pass(&store, u64::MAX)), Some(meta));
    }
}

#[test]
fn meta_page_and_bitmap_that_the_disk_has_lost_are_found() {
    let fs = filled();
    let newest = Forger::new(&fs).meta.unit();
    let bitmap = relied_on(&fs)[2];
    let old = [newest, bitmap].map(|at| unit(&fs, at));
    let store = try_open(&fs).unwrap();
    // A bitmap is written only when much has changed.
    for key in 0..200_u32 {
        let mut txn = store.write().unwrap();
        txn.tree("new").unwrap().put(&key.to_be_bytes(), &[3; 5000]).unwrap();
        txn.publish().unwrap();
    }
    store.checkpoint().unwrap();
    store.checkpoint().unwrap();
    let mut txn = store.write().unwrap();
    txn.delete_tree("new").unwrap();
    txn.publish().unwrap();
    store.reclaim(u64::MAX).unwrap();
    store.checkpoint().unwrap();
    pass(&store, u64::MAX).unwrap();
    for (at, old) in [newest, bitmap].into_iter().zip(old) {
        let new = unit(&fs, at);
        assert_ne!(new, old, "unit {at} was written again");
        file(&fs).write_at(&old, at * UNIT_BYTES as u64).unwrap();
        assert_eq!(corrupt_page(pass(&store, u64::MAX)), Some(at));
        file(&fs).write_at(&new, at * UNIT_BYTES as u64).unwrap();
    }
    pass(&store, u64::MAX).unwrap();
}

/// One thing that a store does, of any kind.
fn do_something(store: &PageStore, rng: &mut fastrand::Rng) {
    let mut txn = store.write().unwrap();
    let name = ["a", "b", "c"][rng.usize(..3)];
    match rng.u32(..10) {
        0 => drop(txn.delete_tree(name).unwrap()),
        1 | 2 => {
            let from = rng.u32(..3000).to_be_bytes();
            txn.tree(name).unwrap().delete_range(&from, None).unwrap();
        }
        _ => {
            for _ in 0..rng.usize(..200) {
                let len = [10, 100, 900, 6000][rng.usize(..4)];
                let key = rng.u32(..3000).to_be_bytes();
                txn.tree(name).unwrap().put(&key, &vec![7; len]).unwrap();
            }
        }
    }
    match rng.u32(..4) {
        0 => drop(txn.commit(CommitDurability::Sync).unwrap()),
        _ => drop(txn.publish().unwrap()),
    }
    match rng.u32(..8) {
        0 => drop(store.checkpoint().unwrap()),
        1 => drop(store.reclaim(1 << 20).unwrap()),
        2 => drop(store.defragment(1 << 18).unwrap()),
        3 => drop(store.trim_punch().unwrap()),
        _ => {}
    }
}

#[test]
fn a_pass_gets_to_its_end_beside_all_that_a_store_does() {
    for seed in 0..4 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let options = Options::default().growth_bytes(64 << 10).trim_bytes(64 << 10);
        let options = options.redo_bytes(64 << 10);
        let store = PageStore::open_with(Arc::new(disk(seed)), &path(), options).unwrap();
        let mut passes = 0;
        let mut scrub = Scrub::new();
        for step in 0..600 {
            do_something(&store, &mut rng);
            let bytes_max = [1, 20_000, 1 << 20][rng.usize(..3)];
            store.scrub(&mut scrub, bytes_max).unwrap_or_else(|error| {
                panic!("seed {seed}, step {step}: {error}, {scrub:?}");
            });
            if scrub.is_done() {
                passes += 1;
                scrub = Scrub::new();
            }
        }
        assert!(passes > 1, "seed {seed}: {passes}");
        store.check().unwrap();
    }
}

/// Makes a tree of some hundred pages, with keys from `first` on, and a checkpoint.
fn make_tree(store: &PageStore, name: &str, first: u32) {
    let mut txn = store.write().unwrap();
    for i in first..first + 2400 {
        txn.tree(name).unwrap().put(&i.to_be_bytes(), &[7; 900]).unwrap();
    }
    txn.publish().unwrap();
    store.checkpoint().unwrap();
}

/// Puts a tree into the trash, and makes a checkpoint.
fn delete_tree(store: &PageStore, name: &str) {
    let mut txn = store.write().unwrap();
    txn.delete_tree(name).unwrap();
    txn.publish().unwrap();
    store.checkpoint().unwrap();
}

/// Goes on until the pass has read so many bytes.
fn go_on(store: &PageStore, scrub: &mut Scrub, bytes: u64) {
    while scrub.bytes() < bytes {
        store.scrub(scrub, 1).unwrap();
    }
}

#[test]
fn a_step_ends_where_trees_have_no_pages() {
    let store = open(&disk(1));
    let mut txn = store.write().unwrap();
    for i in 0..500 {
        txn.create_tree(&format!("empty/{i:04}"), Default::default()).unwrap();
    }
    txn.publish().unwrap();
    store.checkpoint().unwrap();
    assert!(pass(&store, 1).unwrap() > 500);
}

#[test]
fn what_comes_in_the_place_of_what_was_being_read_is_read_from_its_beginning() {
    let store = open(&disk(1));
    make_tree(&store, "first", 5000);
    make_tree(&store, "second", 1000);
    let units = store.read().entry("second").unwrap().unwrap().size.units;
    let mut scrub = Scrub::new();
    go_on(&store, &mut scrub, 300_000);
    delete_tree(&store, "first");
    while store.reclaim(u64::MAX).unwrap() > 0 {}
    store.checkpoint().unwrap();
    let before = scrub.bytes();
    store.scrub(&mut scrub, u64::MAX).unwrap();
    assert!(scrub.is_done() && scrub.bytes() - before > units * UNIT_BYTES as u64);

    // Of the trash each has the same number.
    delete_tree(&store, "second");
    assert!(store.stats().deferred_free_bytes > 1 << 20);
    let mut scrub = Scrub::new();
    go_on(&store, &mut scrub, 300_000);
    while store.reclaim(u64::MAX).unwrap() > 0 {}
    make_tree(&store, "third", 0);
    delete_tree(&store, "third");
    let (before, deferred_free_bytes) = (scrub.bytes(), store.stats().deferred_free_bytes);
    store.scrub(&mut scrub, u64::MAX).unwrap();
    assert!(
        scrub.is_done() && scrub.bytes() - before > deferred_free_bytes,
        "{before} {deferred_free_bytes}"
    );
}

#[test]
fn a_pass_does_not_go_round_where_keys_do_not_rise() {
    let fs = filled();
    let forger = Forger::new(&fs);
    let root = forger.forge(forger.small, |page| {
        let last = SLOTS_AT + (SlottedPage(page).count() - 1) * SLOT_BYTES;
        for byte in 0..SLOT_BYTES {
            page.swap(SLOTS_AT + byte, last + byte);
        }
    });
    let store = try_open(&fs).unwrap();
    // Steps of one of these lengths end where the lowest key stands last.
    let steps = (2..12).map(|units| units * UNIT_BYTES as u64);
    let found: Vec<u64> = steps.filter_map(|bytes| corrupt_page(pass(&store, bytes))).collect();
    assert!(!found.is_empty() && found.iter().all(|&page| page == root), "{found:?}");
}

#[test]
fn a_pass_reads_no_tree_twice_whose_name_is_not_found() {
    let fs = filled();
    let forger = Forger::new(&fs);
    let catalogue = forger.forge(forger.meta.catalogue.id(), |page| {
        let last = SLOTS_AT + (SlottedPage(page).count() - 1) * SLOT_BYTES;
        page[last..last + 4].fill(0xff);
    });
    let mut scrub = Scrub::new();
    let store = try_open(&fs);
    let outcome = store.and_then(|store| store.scrub(&mut scrub, 64 << 20));
    assert_eq!(corrupt_page(outcome.map(|()| 0)), Some(catalogue));
}

#[test]
fn after_a_failed_checkpoint_trees_are_read_and_the_rest_is_refused() {
    let fs = disk(1);
    let store = open(&fs);
    let put = |value: u8| {
        let mut txn = store.write().unwrap();
        txn.tree("t").unwrap().put(b"k", &[value; 2000]).unwrap();
        txn.publish().unwrap();
    };
    put(1);
    store.checkpoint().unwrap();
    put(2);
    fs.fail_syncs(true);
    assert!(matches!(store.checkpoint(), Err(Error::Io(_))));
    fs.fail_syncs(false);
    let mut scrub = Scrub::new();
    assert!(matches!(store.scrub(&mut scrub, u64::MAX), Err(Error::Poisoned)));
    assert!(scrub.bytes() > 2 * UNIT_BYTES as u64 && !scrub.is_done(), "{scrub:?}");
}
