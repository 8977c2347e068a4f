//! Files and streams with right checksums that name impossible places: no call panics, loops for
//! ever, or makes it worse.

use std::path::Path;
use std::sync::Arc;

use flotilla_vfs::FileSystem;
use flotilla_vfs::fault::FaultFs;

use super::problems::{Forger, filled};
use super::try_open;
use crate::page::branch::{self, Child};
use crate::page::layout::META_UNITS;
use crate::page::leaf::ValueExtent;
use crate::page::slotted::{SlottedPage, SlottedPageMut};
use crate::page::{self, CRC_END, PageRef, Span, UNIT_BYTES};
use crate::{Error, PageStore, Stats, WriteTxn};

/// The branch that waits in the trash, and its first two children.
fn trashed(forger: &Forger) -> (u64, [PageRef; 2]) {
    let list = forger.page(forger.meta.deferred_free.list.root.id());
    let tail = SlottedPage(&list).tail(0);
    let branch = Child::decode(&list[tail]).page_ref.id();
    let page = forger.page(branch);
    (branch, [0, 1].map(|i| branch::child(SlottedPage(&page), i)))
}

/// Makes a branch say that its second child lies at `page_ref`.
fn misplace(forger: &Forger, branch: u64, page_ref: PageRef) -> u64 {
    forger.forge(branch, |page| {
        let child = Child { page_ref, ..branch::sized_child(SlottedPage(page), 1) };
        branch::set_child(&mut SlottedPageMut(page), 1, child);
    });
    page_ref.id()
}

/// Forges a file, is told a unit that is free, and returns the page that is to be named.
type Make = fn(&Forger, u64) -> u64;
type Act = fn(&PageStore) -> Result<(), Error>;
type Change = fn(&mut WriteTxn<'_>) -> Result<(), Error>;

/// The first unit that is free once the store is open: that takes some of what the file has free.
fn first_free(fs: &FaultFs) -> u64 {
    let store = try_open(&fs.crashed(0)).unwrap();
    let space = store.shared().space.lock();
    let span = space.freelist.spans().next().unwrap();
    span.start
}

#[test]
fn page_of_a_transaction_is_not_one_that_a_tree_names_by_mistake() {
    let base = filled();
    let free = first_free(&base);
    for units in [1, 3] {
        let fs = base.crashed(0);
        let forger = Forger::new(&fs);
        misplace(&forger, forger.small, PageRef::new(Span { start: free, units }, 1));
        let store = try_open(&fs).unwrap();
        let used = |stats: Stats| stats.span_bytes - stats.free_bytes;
        let before = used(store.stats());
        let mut txn = store.write().unwrap();
        // More than is free, so that the unit is taken.
        for i in 0..4000_u32 {
            txn.tree("new").unwrap().put(&i.to_be_bytes(), &[1; 900]).unwrap();
        }
        let mut named = 0;
        for i in 0..600_u32 {
            match txn.tree("small").unwrap().get(format!("key/{i:04}").as_bytes()) {
                Ok(found) => assert_eq!(found.unwrap(), [5; 50]),
                Err(Error::Corrupt { page, what }) => {
                    assert_eq!(page, free);
                    assert_eq!(what, "an older or younger page lies in its place");
                    named += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(named > 0, "the unit was given out");
        let point = txn.savepoint();
        // The part that cannot be read stays, as a deferred free.
        txn.tree("small").unwrap().delete_range(b"", None).unwrap();
        txn.rollback_to(&point).unwrap();
        assert!(txn.tree("small").unwrap().put(b"key/0100", b"new").is_err());
        drop(txn);
        assert_eq!(used(store.stats()), before, "{units}");
    }
}

#[test]
fn what_a_transaction_has_made_is_not_given_back_by_who_names_it_by_mistake() {
    let base = filled();
    let free = first_free(&base);
    let span = Span { start: free, units: 3 };
    for value_len in [900, 2000] {
        let fs = base.crashed(0);
        let forger = Forger::new(&fs);
        // A leaf is given back without being read if its parent says that nothing is below it.
        forger.child(1, |child| {
            child.page_ref = PageRef::new(span, 1);
            child.size.units = 3;
        });
        let extent = ValueExtent { start: free, ..forger.first_extent() };
        forger.forge(forger.long, |page| {
            let tail = SlottedPage(page).tail(0);
            page[tail].copy_from_slice(&extent.encode());
        });
        let store = try_open(&fs).unwrap();
        let before = (store.read().txid(), store.check().is_err());
        // In one of the two the unit is given to a page, in the other to a long value.
        let fill = |txn: &mut WriteTxn<'_>| {
            for i in 0..4000_u32 {
                txn.tree("new").unwrap().put(&i.to_be_bytes(), &vec![1; value_len]).unwrap();
            }
        };
        let acts: [Change; 2] = [
            |txn| txn.tree("small")?.delete_range(b"", None).map(drop),
            |txn| txn.tree("long")?.delete(&[0]).map(drop),
        ];
        for act in acts {
            let mut txn = store.write().unwrap();
            fill(&mut txn);
            act(&mut txn).unwrap();
            let error = txn.publish().unwrap_err();
            let is_named = matches!(error, Error::Corrupt { page, .. } if page == free);
            assert!(is_named, "{value_len}: {error}");
        }
        assert_eq!((store.read().txid(), store.check().is_err()), before);
        let mut txn = store.write().unwrap();
        fill(&mut txn);
        txn.publish().unwrap();
        store.checkpoint().unwrap();
    }
}

/// Faults of the trash; each returns the page that cannot be given back.
const TRASH_FAULTS: [Make; 5] = [
    |forger, free| {
        let (branch, _) = trashed(forger);
        misplace(forger, branch, PageRef::new(Span { start: free, units: 1 }, 1))
    },
    |forger, _| {
        let (branch, _) = trashed(forger);
        misplace(forger, branch, PageRef::new(Span { start: 1, units: 1 }, 1))
    },
    |forger, _| {
        let (branch, [first, _]) = trashed(forger);
        misplace(forger, branch, first)
    },
    // A whole page where nothing is in use.
    |forger, free| {
        let mut leaf = forger.page(forger.leaves[0].id());
        let created_txid = page::created_txid(&leaf);
        page::readdress(&mut leaf, free, created_txid);
        let crc = page::checksum(&leaf);
        leaf[..CRC_END].copy_from_slice(&crc);
        forger.file.write_at(&leaf, free * UNIT_BYTES as u64).unwrap();
        forger.forge(forger.meta.deferred_free.list.root.id(), |page| {
            let tail = SlottedPage(page).tail(0);
            let page_ref = PageRef::new(Span { start: free, units: 1 }, created_txid);
            let child = Child { page_ref, ..Child::decode(&page[tail.clone()]) };
            page[tail].copy_from_slice(&child.encode());
        });
        free
    },
    // A branch that names itself.
    |forger, _| {
        let (branch, _) = trashed(forger);
        let created_txid = page::created_txid(&forger.page(branch));
        misplace(forger, branch, PageRef::new(Span { start: branch, units: 1 }, created_txid))
    },
];

#[test]
fn trash_that_names_what_it_cannot_have_keeps_nobody_from_publishing() {
    let base = filled();
    let free = first_free(&base);
    for (i, make) in TRASH_FAULTS.into_iter().enumerate() {
        let fs = base.crashed(0);
        let page = make(&Forger::new(&fs), free);
        let is_named =
            |error: &Error| matches!(error, Error::Corrupt { page: named, .. } if *named == page);
        let store = try_open(&fs).unwrap();
        // Each owes a sweep.
        for round in 0..4_u8 {
            let mut txn = store.write().unwrap();
            for key in 0..800_u32 {
                txn.tree("new").unwrap().put(&key.to_be_bytes(), &[round; 900]).unwrap();
            }
            // Trash of its own is given back.
            txn.tree("more").unwrap().put(b"k", &[round; 20_000]).unwrap();
            txn.publish().unwrap_or_else(|error| panic!("{i}: {error}"));
            let mut txn = store.write().unwrap();
            txn.delete_tree("more").unwrap();
            txn.publish().unwrap_or_else(|error| panic!("{i}: {error}"));
        }
        let error = store.reclaim(u64::MAX).unwrap_err();
        assert!(is_named(&error), "{i}: {error}, not page {page}");
        assert!(store.stats().deferred_free_bytes > 0, "{i}: it stays");
        store.checkpoint().unwrap();
        let now = std::time::Duration::ZERO;
        let told: Vec<Error> = (0..9).filter_map(|_| store.maintain(now).err()).collect();
        assert!(told.len() == 1 && is_named(&told[0]), "{i}: told once, {told:?}");
        let tree = store.read().tree("new").unwrap().unwrap();
        for key in 0..800_u32 {
            let row = tree.get(&key.to_be_bytes());
            let row = row.unwrap_or_else(|error| panic!("{i}: {error}"));
            assert_eq!(row.unwrap(), [3; 900], "{i}");
        }
        assert!(store.check().is_err(), "{i}");
    }
}

#[test]
fn what_is_not_in_use_is_not_given_back() {
    let base = filled();
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
    let faults: [(Make, Act); 2] = [
        (|forger, _| misplace(forger, forger.small, forger.leaves[0]), delete),
        (|forger, _| misplace(forger, forger.small, forger.leaves[0]), delete_and_ingest),
    ];
    for (i, (make, act)) in faults.into_iter().enumerate() {
        let fs = base.crashed(0);
        let page = make(&Forger::new(&fs), 0);
        let store = try_open(&fs).unwrap();
        let before = (store.read().txid(), store.stats().free_bytes);
        let Err(error) = act(&store) else { panic!("{i}: page {page} was given back") };
        let is_named = matches!(error, Error::Corrupt { page: named, .. } if named == page);
        assert!(is_named, "{i}: {error}, not page {page}");
        assert_eq!((store.read().txid(), store.stats().free_bytes), before, "{i}");
        // Transactions that do not touch it go on.
        let mut txn = store.write().unwrap();
        txn.tree("long").unwrap().put(b"k", b"v").unwrap();
        txn.publish().unwrap();
        store.checkpoint().unwrap();
        let tree = store.read().tree("long").unwrap().unwrap();
        assert_eq!(tree.get(b"k").unwrap().unwrap(), b"v");
    }
}

/// The stream that [`crate::Snapshot::backup_to`] makes of a file.
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
                let tail = SlottedPage(page).tail(1);
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
    let created_txid = page::created_txid(&leaf);
    page::readdress(&mut leaf, unit, created_txid);
    let crc = page::checksum(&leaf);
    leaf[..CRC_END].copy_from_slice(&crc);
    forger.file.write_at(&leaf, unit * UNIT_BYTES as u64).unwrap();
    let page_ref = PageRef::new(Span { start: unit, units: 1 }, created_txid);
    forger.child(0, |child| child.page_ref = page_ref);
    drop(forger);
    let stream = backup(&fs).unwrap();
    let to = Path::new("/data/restored");
    let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let error = crate::tools::restore(&arc, &mut [&mut &stream[..]], to, &mut |_| ()).unwrap_err();
    let what = "a bitmap's place is in use";
    let is_named =
        matches!(error, Error::Corrupt { page, what: found } if page == unit && found == what);
    assert!(is_named, "{error}, not page {unit}");
}
