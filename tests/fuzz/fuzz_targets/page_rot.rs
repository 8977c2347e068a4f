//! A page file whose bytes were changed in any way: it opens or says what is wrong, and never gives
//! out a value that no call wrote. In half of the cases the checksums are made right again, as of a
//! file that was forged: then it may say anything, but what it takes for whole is whole, and
//! nothing panics.
#![no_main]

use std::path::Path;
use std::sync::{Arc, LazyLock};

use flotilla_pagestore::tools::PageFile;
use flotilla_pagestore::{Options, PageStore, Scrub, Tree};
use flotilla_vfs::fault::FaultFs;
use flotilla_vfs::{FileSystem, OpenMode};
use libfuzzer_sys::fuzz_target;

const FILE: &str = "/pages";
const COPY: &str = "/copy";
const UNIT_BYTES: usize = 4096;
const SECTOR_BYTES: usize = 512;
const META_UNITS: usize = 2;
/// Where the record of a meta page has its checksum, and its directory's place.
const META_CRC: usize = 12;
const META_DIRECTORY: usize = 48;

fn value(key: u32) -> Vec<u8> {
    vec![key as u8; (key * 61 % 2500) as usize]
}

/// The bytes of a small store with two durable roots.
static WHOLE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let fs = Arc::new(FaultFs::new(1));
    let options = Options::default().growth_bytes(0);
    let store = PageStore::open_with(fs.clone(), Path::new(FILE), options).unwrap();
    for round in 0..2u32 {
        let mut txn = store.write().unwrap();
        let mut tree = txn.tree("t").unwrap();
        for key in round * 40..round * 40 + 40 {
            tree.put(&key.to_be_bytes(), &value(key)).unwrap();
        }
        txn.publish().unwrap();
        store.checkpoint().unwrap();
    }
    let file = fs.open(Path::new(FILE), OpenMode::Read).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
});

fn u64_at(bytes: &[u8], at: usize) -> usize {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize
}

fn u32_at(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
}

fn put_crc(bytes: &mut [u8], at: usize, crc: u32) {
    bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Makes the checksums of pages, directories and meta pages right. Those of long values, which
/// their leaves have, stay.
fn renew_checksums(bytes: &mut [u8]) {
    for unit in META_UNITS..bytes.len() / UNIT_BYTES {
        let range = unit * UNIT_BYTES..(unit + 1) * UNIT_BYTES;
        let was_page = u64_at(&WHOLE[range.clone()], 8) == unit;
        if was_page {
            let page = &mut bytes[range];
            let crc = crc32c::crc32c(&page[4..]);
            put_crc(page, 0, crc);
        }
    }
    for sector in (0..META_UNITS * UNIT_BYTES).step_by(SECTOR_BYTES) {
        let at = sector + META_DIRECTORY;
        let start = u64_at(bytes, at).saturating_mul(UNIT_BYTES);
        let end = start.saturating_add(u32_at(bytes, at + 8));
        let crc = bytes.get(start..end).map(crc32c::crc32c);
        if let Some(crc) = crc {
            put_crc(bytes, at + 12, crc);
        }
        let record = &mut bytes[sector..sector + SECTOR_BYTES];
        let crc = crc32c::crc32c(&record[..META_CRC]);
        let crc = crc32c::crc32c_append(crc, &record[META_CRC + 4..]);
        put_crc(record, META_CRC, crc);
    }
}

/// Only values that were written come out.
fn assert_true(tree: &Tree) {
    let mut rows = tree.range(..);
    while let Ok(Some((key, found))) = rows.next() {
        let key = u32::from_be_bytes(key.try_into().expect("keys of four bytes were written"));
        assert_eq!(found, value(key));
    }
}

/// A file that a check finds whole is in order, with any contents.
fn assert_ordered(store: &PageStore) {
    let snapshot = store.read();
    let is_whole = store.check().is_ok();
    for name in snapshot.tree_names().unwrap_or_default() {
        let Ok(Some(tree)) = snapshot.tree(&name) else {
            assert!(!is_whole, "a tree that was found whole cannot be opened");
            continue;
        };
        let mut rows = tree.range(..);
        let mut last: Option<Vec<u8>> = None;
        let mut count = 0;
        while let Ok(Some((key, _))) = rows.next() {
            let rises = last.as_ref().is_none_or(|last| last[..] < *key);
            assert!(rises || !is_whole, "keys of a tree that was found whole");
            last = Some(key.to_vec());
            count += 1;
        }
        assert!(count == tree.len() || !is_whole, "length of a tree that was found whole");
    }
}

/// Writing to a forged file is done, or refused.
fn change(store: &PageStore) {
    for key in (0..80u32).step_by(7) {
        let _ = store.write().and_then(|mut txn| {
            let mut tree = txn.tree("t")?;
            tree.put(&key.to_be_bytes(), &value(key))?;
            tree.delete(&(key + 1).to_be_bytes())?;
            tree.delete_range(&(key + 2).to_be_bytes(), Some(&(key + 4).to_be_bytes()))?;
            txn.publish()
        });
        let _ = store.checkpoint();
    }
    let _ = store.write().and_then(|mut txn| {
        txn.delete_tree("t")?;
        txn.publish()
    });
    let _ = store.reclaim(u64::MAX);
    let _ = store.defragment(1 << 20);
    let _ = store.checkpoint();
    let mut scrub = Scrub::new();
    while !scrub.is_done() && store.scrub(&mut scrub, 1 << 16).is_ok() {}
}

/// The tools read it, or say what is wrong.
fn read_with_tools(fs: &Arc<dyn FileSystem>) {
    let Ok(file) = PageFile::open(&**fs, Path::new(FILE)) else { return };
    let is_whole = file.check(&mut |_| ()).problems.is_empty();
    file.info();
    file.map(&mut |_| ());
    let made = file.compact(fs, Path::new(COPY), &mut |_| ());
    assert!(made.is_ok() || !is_whole, "what was found whole cannot be copied: {made:?}");
    if made.is_ok() {
        let copy = PageFile::open(&**fs, Path::new(COPY)).expect("it was just made");
        assert_eq!(copy.check(&mut |_| ()).problems, []);
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((mode, data)) = data.split_first() else { return };
    let is_forged = mode & 1 == 1;
    let mut bytes = WHOLE.clone();
    for change in data.chunks_exact(4) {
        let at = u32::from_le_bytes([change[0], change[1], change[2], 0]) as usize % bytes.len();
        bytes[at] ^= change[3];
    }
    if is_forged {
        renew_checksums(&mut bytes);
    }
    let fs: Arc<dyn FileSystem> = Arc::new(FaultFs::new(1));
    let file = fs.open(Path::new(FILE), OpenMode::CreateNew).unwrap();
    file.write_at(&bytes, 0).unwrap();
    if mode & 2 == 2 {
        read_with_tools(&fs);
    }
    let Ok(store) = PageStore::open_with(fs, Path::new(FILE), Options::default()) else { return };
    if is_forged {
        assert_ordered(&store);
        return change(&store);
    }
    let Ok(Some(tree)) = store.read().tree("t") else { return };
    assert_true(&tree);
    let _ = store.check();
});
