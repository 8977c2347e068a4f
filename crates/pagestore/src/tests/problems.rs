//! Each thing that a check can find wrong, made on purpose in a file whose checksums are all right:
//! what the tool says of it, and that a store does not take it for whole.

use std::sync::Arc;

use flotilla_vfs::fault::FaultFs;
use flotilla_vfs::{File, FileSystem, OpenMode};

use super::{disk, path, try_open};
use crate::memory::meta::MetaPage;
use crate::page::branch::{self, Child};
use crate::page::layout::{HEAD_UNITS, META_UNITS};
use crate::page::leaf::{self, ValueExtent};
use crate::page::slotted::{CHILD_BYTES, SLOT_BYTES, SLOTS_AT, SlottedPage, SlottedPageMut};
use crate::page::unit_set::UnitSet;
use crate::page::{self, CRC_END, PageKind, PageRef, Span, UNIT_BYTES, u16_at, u32_at};
use crate::redo::{FrameReader, frame};
use crate::space::alloc_groups::AllocGroups;
use crate::tools::{FilePart, FileProblem, PageFile};
use crate::{CommitDurability, Error, Options, PageStore};

/// Where fields lie in a page, and how long a record of the directory is, by `docs/page-format.md`.
const KIND: usize = 4;
const LEVEL: usize = 5;
const COUNT: usize = 24;
const GARBAGE: usize = 28;
const PREFIX_LEN: usize = 30;
const RECORD_BYTES: usize = 16;

/// A file with a tree of some depth, long values, trash, a bitmap, and a frame in the redo area.
pub(super) fn filled() -> FaultFs {
    let fs = disk(1);
    let options = Options::default().growth_bytes(64 << 10).redo_bytes(64 << 10);
    let store = PageStore::open_with(Arc::new(fs.clone()), &path(), options).unwrap();
    let mut txn = store.write().unwrap();
    for i in 0..600_u32 {
        txn.tree("small").unwrap().put(format!("key/{i:04}").as_bytes(), &[5; 50]).unwrap();
    }
    // Of three branches the one in the middle goes to the trash.
    for i in 0..3000_u32 {
        txn.tree("cut").unwrap().put(&i.to_be_bytes(), &[7; 900]).unwrap();
    }
    for i in 0..3_u8 {
        txn.tree("long").unwrap().put(&[i], &[i; 5000]).unwrap();
    }
    txn.commit(CommitDurability::Sync).unwrap();
    let mut txn = store.write().unwrap();
    txn.tree("cut").unwrap().delete_range(&[0], Some(&2990_u32.to_be_bytes())).unwrap();
    txn.publish().unwrap();
    store.checkpoint().unwrap();
    let mut txn = store.write().unwrap();
    txn.tree("small").unwrap().put(b"later", b"not in the checkpoint").unwrap();
    txn.commit(CommitDurability::Sync).unwrap();
    drop(store);
    fs
}

/// Changes a file and makes its checksums right again.
pub(super) struct Forger {
    pub(super) file: Arc<dyn File>,
    pub(super) meta: MetaPage,
    /// The root of the tree `small`, its first two children; the root of `long`.
    pub(super) small: u64,
    pub(super) leaves: [PageRef; 2],
    pub(super) long: u64,
}

impl Forger {
    pub(super) fn new(fs: &FaultFs) -> Forger {
        let info = PageFile::open(fs, &path()).unwrap().info();
        let root = |name: &str| info.trees.iter().find(|tree| tree.name == name).unwrap().root;
        let file = fs.open(&path(), OpenMode::Write).unwrap();
        let mut pages = vec![0; 2 * UNIT_BYTES];
        file.read_exact_at(&mut pages, 0).unwrap();
        let meta = MetaPage::newest(&pages).unwrap();
        let none = [PageRef::NONE; 2];
        let mut forger =
            Forger { file, meta, small: root("small"), leaves: none, long: root("long") };
        let page = forger.page(forger.small);
        forger.leaves = [0, 1].map(|i| branch::child(SlottedPage(&page), i));
        forger
    }

    fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, at * UNIT_BYTES as u64).unwrap();
        bytes
    }

    pub(super) fn page(&self, unit: u64) -> Vec<u8> {
        self.read(unit, UNIT_BYTES)
    }

    /// Changes a page. Returns it.
    pub(super) fn forge(&self, unit: u64, change: impl FnOnce(&mut [u8])) -> u64 {
        let mut page = self.page(unit);
        change(&mut page);
        let crc = page::checksum(&page);
        page[..CRC_END].copy_from_slice(&crc);
        self.file.write_at(&page, unit * UNIT_BYTES as u64).unwrap();
        unit
    }

    /// Changes the first leaf of `small`.
    fn leaf(&self, change: impl FnOnce(&mut [u8])) -> u64 {
        self.forge(self.leaves[0].id(), change)
    }

    /// Changes what the root of `small` says of child `i`.
    pub(super) fn child(&self, i: usize, change: impl FnOnce(&mut Child)) {
        self.forge(self.small, |page| {
            let mut child = branch::sized_child(SlottedPage(page), i);
            change(&mut child);
            branch::set_child(&mut SlottedPageMut(page), i, child);
        });
    }

    pub(super) fn first_extent(&self) -> ValueExtent {
        let page = self.page(self.long);
        leaf::extents(SlottedPage(&page), 0..1).next().expect("the value is long")
    }

    /// Changes the address of the first long value.
    fn extent(&self, change: impl FnOnce(&mut ValueExtent)) -> u64 {
        let mut extent = self.first_extent();
        change(&mut extent);
        self.forge(self.long, |page| {
            let tail = SlottedPage(page).tail(0);
            page[tail].copy_from_slice(&extent.encode());
        })
    }

    /// Makes the inline value of a leaf's first cell one byte shorter.
    fn shorten(&self, unit: u64) -> u64 {
        self.forge(unit, |page| {
            let (at, len) = (u16_at(page, SLOTS_AT + 4), SlottedPage(page).tail(0).len());
            page::put_u16(page, at, len - 1);
            let garbage = u16_at(page, GARBAGE);
            page::put_u16(page, GARBAGE, garbage + 1);
        })
    }

    /// The unit of the place where the next frame belongs.
    fn redo_unit(&self) -> u64 {
        self.meta.redo.unwrap().span.start
    }

    fn meta(&mut self, change: impl FnOnce(&mut MetaPage)) {
        change(&mut self.meta);
        let at = self.meta.unit() * UNIT_BYTES as u64;
        self.file.write_at(&self.meta.encode(), at).unwrap();
    }

    /// Changes the directory of free space.
    pub(super) fn directory(&mut self, change: impl FnOnce(&mut Vec<u8>)) {
        let extent = self.meta.directory;
        let mut bytes = self.read(extent.start, extent.len as usize);
        change(&mut bytes);
        self.file.write_at(&bytes, extent.start * UNIT_BYTES as u64).unwrap();
        self.meta(|meta| {
            meta.directory.crc = crc32c::crc32c(&bytes);
            meta.directory.len = bytes.len() as u32;
        });
    }

    /// The units in use, as the free space says.
    pub(super) fn used(&self) -> UnitSet {
        let extent = self.meta.directory;
        let bytes = self.read(extent.start, extent.len as usize);
        AllocGroups::load(&bytes, extent.start, 1, &*self.file, self.meta.txid).unwrap().1
    }

    /// Makes the free space say the opposite of `unit`, which lies in the first group.
    fn delta(&mut self, unit: u64) {
        let is_used = self.used().contains(unit - META_UNITS);
        self.directory(|bytes| {
            let used = u32_at(bytes, 8).wrapping_add_signed(if is_used { -1 } else { 1 });
            let delta = (unit - META_UNITS) as u16;
            let count = u32_at(bytes, 12) as usize;
            let mut deltas: Vec<u16> =
                (0..count).map(|i| u16_at(bytes, RECORD_BYTES + 2 * i) as u16).collect();
            match deltas.binary_search(&delta) {
                Ok(at) => drop(deltas.remove(at)),
                Err(at) => deltas.insert(at, delta),
            }
            bytes[8..12].copy_from_slice(&used.to_le_bytes());
            bytes[12..16].copy_from_slice(&(deltas.len() as u32).to_le_bytes());
            bytes[RECORD_BYTES..].fill(0);
            for (i, delta) in deltas.iter().enumerate() {
                page::put_u16(bytes, RECORD_BYTES + 2 * i, usize::from(*delta));
            }
        });
    }

    /// Writes a frame into the redo area, `behind` bytes behind where the next one belongs.
    fn frame(&self, behind: u64, checkpoint: u64, body: &[u8]) {
        let area = self.meta.redo.unwrap();
        let mut frames = FrameReader::new(area, &*self.file, self.meta.number);
        while frames.next().unwrap().is_some() {}
        let mut frame = frame::SectorBuffer::default();
        let position = frames.position() + behind;
        frame::encode(&mut frame, position, checkpoint, 9, body);
        area.append(&*self.file, position, frame.bytes()).unwrap();
    }
}

/// Damage to a file, the problem that the check has to report, and its place.
type Fault = (&'static str, Where, fn(&mut Forger) -> u64);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Where {
    Catalogue,
    Small,
    Long,
    DeferredFree,
    FreeSpace,
    Redo,
}

impl Where {
    fn part(self) -> FilePart {
        match self {
            Where::Catalogue => FilePart::Catalogue,
            Where::Small => FilePart::Tree("small".to_owned()),
            Where::Long => FilePart::Tree("long".to_owned()),
            Where::DeferredFree => FilePart::DeferredFree,
            Where::FreeSpace => FilePart::FreeSpace,
            Where::Redo => FilePart::Redo,
        }
    }
}

/// Of one page: what it says of itself, its slots and cells, its keys.
const PAGES: &[Fault] = &[
    ("checksum", Where::Small, |forger| {
        let (at, page) = (forger.leaves[0].id(), forger.page(forger.leaves[0].id()));
        forger.file.write_at(&[page[200] ^ 1], at * UNIT_BYTES as u64 + 200).unwrap();
        at
    }),
    ("another page lies in its place", Where::Small, |forger| {
        let other = forger.page(forger.leaves[1].id());
        forger.leaf(|page| page.copy_from_slice(&other))
    }),
    ("length", Where::Small, |forger| forger.leaf(|page| page[page::UNITS] = 2)),
    ("an older or younger page lies in its place", Where::Small, |forger| {
        forger.leaf(|page| {
            let (id, created_txid) = (page::u64_at(page, 8), page::created_txid(page));
            page::readdress(page, id, created_txid + 1);
        })
    }),
    ("kind", Where::Small, |forger| forger.leaf(|page| page[KIND] = PageKind::Bitmap as u8)),
    ("prefix", Where::Small, |forger| forger.leaf(|page| page::put_u16(page, PREFIX_LEN, 4090))),
    ("slots", Where::Small, |forger| forger.leaf(|page| page::put_u16(page, COUNT, 4000))),
    ("cell", Where::Small, |forger| forger.leaf(|page| page::put_u16(page, SLOTS_AT + 4, 60))),
    ("garbage", Where::Small, |forger| forger.leaf(|page| page::put_u16(page, GARBAGE, 1))),
    ("leftmost child", Where::Small, |forger| {
        let unit = forger.small;
        forger.forge(unit, |page| SlottedPageMut(page).set_leftmost(&[0; CHILD_BYTES]))
    }),
    ("level", Where::Small, |forger| forger.leaf(|page| page[LEVEL] = 1)),
    ("order of keys", Where::Small, |forger| {
        forger.leaf(|page| {
            let (first, second) =
                page[SLOTS_AT..SLOTS_AT + 2 * SLOT_BYTES].split_at_mut(SLOT_BYTES);
            first.swap_with_slice(second);
        })
    }),
    ("heads of keys", Where::Small, |forger| forger.leaf(|page| page[SLOTS_AT] ^= 0x80)),
    ("empty leaf", Where::Small, |forger| forger.leaf(|page| SlottedPageMut(page).fill(&[]))),
];

/// Of what stands in a page about others.
const TREES: &[Fault] = &[
    ("reference", Where::Small, |forger| {
        let id = forger.leaves[0].id();
        forger.child(0, |child| child.page_ref = PageRef::new(Span { start: id, units: 0 }, 1));
        id
    }),
    ("it lies beyond the end", Where::Small, |forger| {
        let end = forger.meta.end;
        forger.child(0, |child| child.page_ref = PageRef::new(Span { start: end, units: 1 }, 1));
        end
    }),
    ("a meta page's place is in use", Where::Small, |forger| {
        forger.child(0, |child| child.page_ref = PageRef::new(Span { start: 1, units: 1 }, 1));
        1
    }),
    ("a bitmap's place is in use", Where::Small, |forger| {
        let page_ref = PageRef::new(Span { start: META_UNITS, units: 1 }, 1);
        forger.child(0, |child| child.page_ref = page_ref);
        META_UNITS
    }),
    ("it is reached twice", Where::Small, |forger| {
        let first = forger.leaves[0];
        forger.child(1, |child| child.page_ref = first);
        first.id()
    }),
    ("size of a subtree", Where::Small, |forger| {
        forger.child(0, |child| child.size.keys += 1);
        forger.leaves[0].id()
    }),
    ("size of a tree", Where::Small, |forger| {
        forger.forge(forger.meta.catalogue.id(), |page| {
            let last = SlottedPage(page).tail(SlottedPage(page).count() - 1);
            page[last.start + 8] ^= 1;
        });
        forger.small
    }),
    ("entry of the catalogue", Where::Catalogue, |forger| {
        let unit = forger.meta.catalogue.id();
        forger.shorten(unit)
    }),
    ("entry of the trash", Where::DeferredFree, |forger| {
        let unit = forger.meta.deferred_free.list.root.id();
        forger.shorten(unit)
    }),
    ("size of a tree", Where::DeferredFree, |forger| {
        forger.meta(|meta| meta.deferred_free.list.size.keys += 1);
        forger.meta.deferred_free.list.root.id()
    }),
    ("units in the trash", Where::DeferredFree, |forger| {
        forger.meta(|meta| meta.deferred_free.units += 1);
        forger.meta.deferred_free.list.root.id()
    }),
    ("a long value of no length", Where::Long, |forger| {
        forger.extent(|extent| extent.len = 0);
        forger.first_extent().start
    }),
    ("checksum of a long value", Where::Long, |forger| {
        forger.extent(|extent| extent.crc ^= 1);
        forger.first_extent().start
    }),
];

/// Of what is in use and what is free, and of the redo area.
const SPACE: &[Fault] = &[
    ("it is in use, and free by the bitmap", Where::FreeSpace, |forger| {
        let unit = forger.leaves[1].id();
        forger.delta(unit);
        unit
    }),
    ("in use by the bitmap, but nothing names it", Where::FreeSpace, |forger| {
        let used = forger.used();
        let heads = META_UNITS + HEAD_UNITS;
        let unit = (heads..forger.meta.end).find(|unit| !used.contains(unit - META_UNITS));
        let unit = unit.expect("something is free");
        forger.delta(unit);
        unit
    }),
    ("the bitmap says that a bitmap's place is in use", Where::FreeSpace, |forger| {
        forger.delta(META_UNITS + 1);
        META_UNITS + 1
    }),
    ("a page beyond the end is in use by the bitmap", Where::FreeSpace, |forger| {
        let end = forger.meta.end;
        forger.delta(end + 9);
        end
    }),
    ("the directory is too short", Where::FreeSpace, |forger| {
        forger.directory(|bytes| bytes.truncate(RECORD_BYTES - 1));
        forger.meta.directory.start
    }),
    ("the place of a bitmap", Where::FreeSpace, |forger| {
        forger.directory(|bytes| bytes[0] = 3);
        forger.meta.directory.start
    }),
    ("toggles of the directory", Where::FreeSpace, |forger| {
        forger.directory(|bytes| {
            bytes[12..16].copy_from_slice(&1_u32.to_le_bytes());
            page::put_u16(bytes, RECORD_BYTES, 0xffff);
        });
        forger.meta.directory.start
    }),
    ("count of used units", Where::FreeSpace, |forger| {
        forger.directory(|bytes| bytes[8] ^= 1);
        forger.meta.directory.start
    }),
    ("checksum of a long value", Where::FreeSpace, |forger| {
        forger.meta(|meta| meta.directory.crc ^= 1);
        forger.meta.directory.start
    }),
    ("another bitmap than the directory names", Where::FreeSpace, |forger| {
        let mut which = 0;
        forger.directory(|bytes| {
            which = u64::from(bytes[0]);
            bytes[4] ^= 1;
        });
        META_UNITS + which - 1
    }),
    ("redo records that make no sense", Where::Redo, |forger| {
        forger.frame(0, forger.meta.number, &[1; 40]);
        forger.redo_unit()
    }),
    ("redo records that make no sense", Where::Redo, |forger| {
        // A transaction that does nothing, and that others are missing before.
        let body = [&1000_u64.to_le_bytes()[..], &[0; 4]].concat();
        forger.frame(0, forger.meta.number, &body);
        forger.redo_unit()
    }),
    ("redo record with others behind it", Where::Redo, |forger| {
        forger.frame(512, forger.meta.number, b"");
        forger.redo_unit()
    }),
    ("redo records of a later checkpoint than the meta pages know", Where::Redo, |forger| {
        forger.frame(0, forger.meta.number + 1, b"");
        forger.redo_unit()
    }),
];

#[test]
fn every_fault_has_a_name() {
    let base = filled();
    assert_eq!(PageFile::open(&base, &path()).unwrap().check(&mut |_| ()).problems, []);
    assert!(PageFile::open(&base, &path()).unwrap().info().deferred_free_bytes > 0);
    let mut missed = Vec::new();
    for &(what, page_ref, make) in [PAGES, TREES, SPACE].into_iter().flatten() {
        let fs = base.crashed(0);
        let mut forger = Forger::new(&fs);
        let page = make(&mut forger);
        drop(forger);
        let problems = PageFile::open(&fs, &path()).unwrap().check(&mut |_| ()).problems;
        let is_named = |problem: &FileProblem| {
            (problem.page, problem.what, &problem.part) == (page, what, &page_ref.part())
        };
        let opened = try_open(&fs).and_then(|store| store.check());
        let is_refused = matches!(opened, Err(Error::Corrupt { .. }));
        if !is_refused || !problems.iter().any(is_named) {
            missed.push(format!("{what} of page {page}: {opened:?}, {problems:?}"));
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

type Change = fn(&mut Forger);

#[test]
fn meta_pages_that_name_what_cannot_be_are_refused() {
    let base = filled();
    let faults: [(&str, Change); 8] = [
        ("numbers that the meta page names", |forger| forger.meta(|meta| meta.txid = u64::MAX)),
        ("numbers that the meta page names", |forger| {
            forger.meta(|meta| meta.number = u64::MAX - 1 + meta.number % 2);
        }),
        ("where redo records begin by the meta page", |forger| {
            forger.meta(|meta| meta.redo.as_mut().unwrap().from += 256);
        }),
        ("where redo records begin by the meta page", |forger| {
            forger.meta(|meta| meta.redo.as_mut().unwrap().from = u64::MAX - 511);
        }),
        ("places that the meta page names", |forger| forger.meta(|meta| meta.end = 1)),
        ("places that the meta page names", |forger| {
            forger.meta(|meta| meta.directory.start = meta.end);
        }),
        ("neither meta page is valid", |forger| {
            forger.file.write_at(&[0; 2 * UNIT_BYTES], 0).unwrap();
        }),
        ("the file is too short", |forger| forger.file.set_len(UNIT_BYTES as u64).unwrap()),
    ];
    for (wanted, make) in faults {
        let fs = base.crashed(0);
        make(&mut Forger::new(&fs));
        let opened = PageFile::open(&fs, &path());
        assert!(matches!(opened, Err(Error::Corrupt { what, .. }) if what == wanted), "{opened:?}");
        let opened = try_open(&fs).map(drop);
        assert!(matches!(opened, Err(Error::Corrupt { .. })), "{wanted}: {opened:?}");
    }
}
