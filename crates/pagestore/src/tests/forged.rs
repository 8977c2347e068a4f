//! Files and streams with right checksums that name what cannot be: nobody panics, goes on for ever, or
//! makes it worse.

use std::path::Path;
use std::sync::Arc;

use flotilla_vfs::FileSystem;
use flotilla_vfs::fault::FaultFs;

use super::problems::{Forger, filled};
use super::try_open;
use crate::branch::{self, Child};
use crate::freelist::{HEAD_UNITS, META_UNITS};
use crate::node::{Node, NodeMut};
use crate::page::{self, CRC_END, PageRef, Span, UNIT_BYTES};
use crate::{Error, PageStore};

/// The branch that waits in the trash, and its first two children.
fn trashed(forger: &Forger) -> (u64, [PageRef; 2]) {
    let list = forger.page(forger.meta.trash.list.root.id());
    let tail = Node(&list).tail(0);
    let branch = Child::decode(&list[tail]).place.id();
    let page = forger.page(branch);
    (branch, [0, 1].map(|i| branch::child(Node(&page), i)))
}

/// Makes a branch say that its second child lies at `place`.
fn misplace(forger: &Forger, branch: u64, place: PageRef) -> u64 {
    forger.forge(branch, |page| {
        let child = Child { place, ..branch::sized_child(Node(page), 1) };
        branch::set_child(&mut NodeMut(page), 1, child);
    });
    place.id()
}

/// Forges a file, is told a unit that is free, and returns the page that is to be named.
type Make = fn(&Forger, u64) -> u64;
type Act = fn(&PageStore) -> Result<(), Error>;

#[test]
fn what_is_not_in_use_is_not_given_back() {
    let base = filled();
    let reclaim: Act = |store| store.reclaim(u64::MAX).map(drop);
    let delete: Act = |store| {
        let mut txn = store.write()?;
        txn.delete_tree("small")?;
        txn.publish().map(drop)
    };
    let delete_and_ingest: Act = |store| {
        let mut builder = store.tree_builder();
        builder.push(b"k", &[1; 9000])?;
        let built = builder.finish()?;
        let mut txn = store.write()?;
        txn.tree("new")?.ingest(b"", None, built)?;
        txn.delete_tree("small")?;
        txn.publish().map(drop)
    };
    // Opening the store takes some of what the file has free.
    let opened = try_open(&base.crashed(0)).unwrap();
    let (end, published) = {
        let space = opened.shared().space.lock();
        (space.freelist.end(), space.published.clone())
    };
    let is_free = |unit: &u64| !published.contains(unit - META_UNITS);
    let free = (META_UNITS + HEAD_UNITS..end).find(is_free).unwrap();
    drop(opened);
    let faults: [(Make, Act); 5] = [
        (
            |forger, free| {
                let (branch, _) = trashed(forger);
                misplace(forger, branch, PageRef::new(Span { start: free, units: 1 }, 1))
            },
            reclaim,
        ),
        (
            |forger, _| {
                let (branch, _) = trashed(forger);
                misplace(forger, branch, PageRef::new(Span { start: 1, units: 1 }, 1))
            },
            reclaim,
        ),
        (
            |forger, _| {
                let (branch, [first, _]) = trashed(forger);
                misplace(forger, branch, first)
            },
            reclaim,
        ),
        (|forger, _| misplace(forger, forger.small, forger.leaves[0]), delete),
        (|forger, _| misplace(forger, forger.small, forger.leaves[0]), delete_and_ingest),
    ];
    for (i, (make, act)) in faults.into_iter().enumerate() {
        let fs = base.crashed(0);
        let page = make(&Forger::new(&fs), free);
        let store = try_open(&fs).unwrap();
        let before = (store.read().txid(), store.stats().free_bytes);
        let Err(error) = act(&store) else { panic!("{i}: page {page} was given back") };
        let is_named = matches!(error, Error::Corrupt { page: named, .. } if named == page);
        assert!(is_named, "{i}: {error}, not page {page}");
        assert_eq!((store.read().txid(), store.stats().free_bytes), before, "{i}");
        // Who has nothing to do with it goes on.
        let mut txn = store.write().unwrap();
        txn.tree("long").unwrap().put(b"k", b"v").unwrap();
        txn.publish().unwrap();
        store.checkpoint().unwrap();
        let tree = store.read().tree("long").unwrap().unwrap();
        assert_eq!(tree.get(b"k").unwrap().unwrap(), b"v");
    }
}

/// What [`crate::Snapshot::backup_to`] makes of a file.
fn backup(fs: &FaultFs) -> Result<Vec<u8>, Error> {
    let mut stream = Vec::new();
    try_open(fs)?.read().backup_to(&mut stream, None)?;
    Ok(stream)
}

#[test]
fn a_backup_has_no_page_twice() {
    let base = filled();
    backup(&base).unwrap();
    let faults: [fn(&Forger) -> u64; 3] = [
        |forger| misplace(forger, forger.small, forger.leaves[0]),
        |forger| {
            let (branch, _) = trashed(forger);
            misplace(forger, branch, forger.leaves[0])
        },
        |forger| {
            let extent = forger.first_extent();
            forger.forge(forger.long, |page| {
                let tail = Node(page).tail(1);
                page[tail].copy_from_slice(&extent.encode());
            });
            extent.start
        },
    ];
    for make in faults {
        let fs = base.crashed(0);
        let page = make(&Forger::new(&fs));
        let error = backup(&fs).map(drop).unwrap_err();
        let is_named = matches!(error, Error::Corrupt { page: named, what } if named == page && what == "it is reached twice");
        assert!(is_named, "{error}, not page {page}");
    }
}

#[test]
fn nothing_is_restored_to_a_bitmaps_place() {
    let fs = filled();
    let mut forger = Forger::new(&fs);
    // The place that does not count now.
    let mut which = 0;
    forger.directory(|bytes| which = u64::from(bytes[0]));
    let unit = META_UNITS + 2 - which;
    let mut leaf = forger.page(forger.leaves[0].id());
    let birth = page::birth(&leaf);
    page::readdress(&mut leaf, unit, birth);
    let crc = page::checksum(&leaf);
    leaf[..CRC_END].copy_from_slice(&crc);
    forger.file.write_at(&leaf, unit * UNIT_BYTES as u64).unwrap();
    let place = PageRef::new(Span { start: unit, units: 1 }, birth);
    forger.child(0, |child| child.place = place);
    drop(forger);
    let stream = backup(&fs).unwrap();
    let to = Path::new("/data/restored");
    let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let error = crate::tool::restore(&arc, &mut [&mut &stream[..]], to, &mut |_| ()).unwrap_err();
    let what = "a bitmap's place is in use";
    let is_named =
        matches!(error, Error::Corrupt { page, what: found } if page == unit && found == what);
    assert!(is_named, "{error}, not page {unit}");
}
