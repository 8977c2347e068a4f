//! A page file whose bytes were changed in any way: it opens or says what is wrong, and never gives
//! out a value that nobody wrote.
#![no_main]

use std::ops::Bound;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use flotilla_pagestore::{Options, PageStore};
use flotilla_vfs::fault::FaultFs;
use flotilla_vfs::{FileSystem, OpenMode};
use libfuzzer_sys::fuzz_target;

const FILE: &str = "/pages";

fn value(key: u32) -> Vec<u8> {
    vec![key as u8; (key * 61 % 2500) as usize]
}

/// The bytes of a small store with two durable roots.
static WHOLE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let fs = Arc::new(FaultFs::new(1));
    let options = Options::default().growth_bytes(0);
    let store = PageStore::open(fs.clone(), Path::new(FILE), options).unwrap();
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

fuzz_target!(|data: &[u8]| {
    let mut bytes = WHOLE.clone();
    for change in data.chunks_exact(4) {
        let at = u32::from_le_bytes([change[0], change[1], change[2], 0]) as usize % bytes.len();
        bytes[at] ^= change[3];
    }
    let fs = Arc::new(FaultFs::new(1));
    let file = fs.open(Path::new(FILE), OpenMode::CreateNew).unwrap();
    file.write_at(&bytes, 0).unwrap();
    let Ok(store) = PageStore::open(fs, Path::new(FILE), Options::default()) else { return };
    let Ok(Some(tree)) = store.read().tree("t") else { return };
    let mut rows = tree.range(Bound::Unbounded, Bound::Unbounded);
    while let Ok(Some((key, found))) = rows.next() {
        let key = u32::from_be_bytes(key.try_into().expect("keys of four bytes were written"));
        assert_eq!(found, value(key));
    }
    let _ = store.check();
});
