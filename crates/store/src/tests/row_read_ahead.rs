//! Rows are read before the entries that change them, where pages come through a memory map.

use flotilla_vfs::os::OsFs;

use super::*;

/// A store of real files, since only those are mapped.
fn open(dir: &Path) -> Store {
    let seed = StartSeed { uuid: StoreUuid(7), nonce: 1 };
    let directory = StoreDirectory::open(Arc::new(OsFs::new()), dir, config(), seed).unwrap();
    begin(directory, &regions()).unwrap().0
}

fn put(number: u32) -> RawOp {
    RawOp::put(format!("a{number:04}").into(), Bytes::from_static(&[7; 1000]))
}

/// Pages that an apply of puts under this version of the region has read.
fn pages_read(store: &Store, index: u64, version: u8, numbers: &[u32]) -> u64 {
    let puts: Vec<RawOp> = numbers.iter().copied().map(put).collect();
    let entry = entry(index, 1, data(&[(version, &puts)]));
    append(store, 2, std::slice::from_ref(&entry), index);
    let before = store.stats().pages.reads.read_count;
    let entries = vec![Committed { entry, tickets: vec![] }];
    store.apply(&[ApplyTask { region: RegionId(2), entries }]).unwrap();
    store.stats().pages.reads.read_count - before
}

#[test]
fn the_pages_of_some_rows_are_read_before_the_first_entry() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    pages_read(&store, 1, 1, &(0..2000).collect::<Vec<_>>());
    store.checkpoint().unwrap();
    drop(store);

    // Of another version, so that no row is put: whatever was read was read ahead.
    let store = open(dir.path());
    let alone = pages_read(&store, 2, 2, &[0]);
    let some = pages_read(&store, 3, 2, &[500, 1500]);
    assert!(some >= 2, "{some} pages beside {alone}");
    let again = pages_read(&store, 4, 2, &[500, 1500]);
    assert_eq!(again, 0, "they are in memory");
}
