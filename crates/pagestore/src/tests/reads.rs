//! Borrowed bytes stay where they are as long as they are borrowed, and bytes of the file are
//! verified first.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use flotilla_vfs::os::OsFs;

use super::{disk, in_both_modes, open, path};
use crate::{Error, Options, PageStore, Scrub};

fn put(store: &PageStore, keys: std::ops::Range<u32>, fill: u8) {
    let mut txn = store.write().unwrap();
    let mut tree = txn.tree("t").unwrap();
    for key in keys {
        tree.put(&key.to_be_bytes(), &[fill; 100]).unwrap();
    }
    tree.put(b"long", &[fill; 10_000]).unwrap();
    txn.publish().unwrap();
}

#[test]
fn what_is_borrowed_stays_whatever_comes() {
    in_both_modes(|open| {
        let store = open();
        put(&store, 0..300, 1);
        let tree = store.read().tree("t").unwrap().unwrap();
        let mut entries = tree.range(..);
        let first = entries.next().unwrap().unwrap();
        let short = tree.get(&7_u32.to_be_bytes()).unwrap().unwrap();
        let long = tree.get(b"long").unwrap().unwrap();
        // The file has them now, and their frames are wanted for what comes next.
        store.checkpoint().unwrap();
        for round in 2..20 {
            put(&store, 0..300, round);
            if round % 3 == 0 {
                store.checkpoint().unwrap();
            }
        }
        assert_eq!(first, (&0_u32.to_be_bytes()[..], &[1; 100][..]));
        assert_eq!(short, vec![1; 100]);
        assert_eq!(long, vec![1; 10_000]);
        assert!(store.stats().reads.retired_bytes >= 10_000 + 4096, "{:?}", store.stats());
        drop(tree);
        put(&store, 0..1, 99);
        assert_eq!(store.stats().reads.retired_bytes, 0);
    });
}

#[test]
fn what_a_checkpoint_has_written_goes_with_the_next_transaction() {
    in_both_modes(|open| {
        let store = open();
        put(&store, 0..300, 1);
        let dirty_bytes = store.stats().dirty_bytes;
        store.checkpoint().unwrap();
        let stats = store.stats();
        assert!(
            stats.reads.retired_bytes > 9 * 4096 && stats.reads.retired_bytes <= dirty_bytes,
            "{stats:?}"
        );
        let before = store.read();
        put(&store, 300..301, 1);
        assert_eq!(
            store.stats().reads.retired_bytes,
            stats.reads.retired_bytes,
            "it may be read still"
        );
        drop(before);
        assert_eq!(store.stats().reads.retired_bytes, 0);
        let tree = store.read().tree("t").unwrap().unwrap();
        assert_eq!(tree.range(..).copied().count(), 302);
    });
}

#[test]
fn page_of_a_mapped_file_is_proven_when_it_is_first_looked_at() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pages");
    let open = || PageStore::open_with(Arc::new(OsFs::new()), &path, Options::default()).unwrap();
    let store = open();
    put(&store, 0..100, 1);
    store.checkpoint().unwrap();
    let used = store.stats().span_bytes;
    drop(store);
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let read_all = |store: &PageStore| {
        let tree = store.read().tree("t")?.unwrap();
        let mut entries = tree.range(..);
        let mut count = 0;
        while entries.next()?.is_some() {
            count += 1;
        }
        Ok::<_, Error>(count)
    };
    let mut found = 0;
    // Behind the meta pages and the bitmap, for every page and the long value.
    for at in (4 * 4096 + 77..used).step_by(4096) {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1], at).unwrap();
        if let Ok(store) = PageStore::open_with(Arc::new(OsFs::new()), &path, Options::default()) {
            for _ in 0..2 {
                match read_all(&store) {
                    Ok(count) => assert_eq!(count, 101),
                    Err(error) => {
                        assert!(matches!(error, Error::Corrupt { .. }), "{error}");
                        found += 1;
                    }
                }
            }
        }
        file.write_all_at(&byte, at).unwrap();
    }
    assert!(found >= 8 && found % 2 == 0, "{found} found: it is an error each time");
    let store = open();
    assert_eq!(read_all(&store).unwrap(), 101);
    let reads = store.stats().reads.read_count;
    assert_eq!(read_all(&store).unwrap(), 101);
    assert_eq!(store.stats().reads.read_count, reads, "proven once");
    assert_eq!(store.stats().reads.cached_bytes, 0);
}

/// A pass over everything in steps of a few pages, with how many steps it took.
fn scrub_all(store: &PageStore) -> Result<(u64, u32), Error> {
    let mut scrub = Scrub::new();
    let mut steps = 0;
    while !scrub.is_done() {
        store.scrub(&mut scrub, 3 * 4096)?;
        steps += 1;
    }
    Ok((scrub.bytes(), steps))
}

#[test]
fn pass_over_the_file_finds_every_page_that_rots() {
    let fs = disk(1);
    let store = open(&fs);
    put(&store, 0..500, 1);
    let mut txn = store.write().unwrap();
    txn.tree("u").unwrap().put(b"k", &[3; 7000]).unwrap();
    txn.publish().unwrap();
    assert_eq!(scrub_all(&store).unwrap().0, 2 * 4096, "nothing but meta pages is in the file yet");
    store.checkpoint().unwrap();
    let report = store.check().unwrap();
    let (bytes, steps) = scrub_all(&store).unwrap();
    let least = report.page_count * 4096 + 17_000;
    assert!(bytes >= least && bytes < 2 * least, "{bytes} bytes, {least} expected");
    assert!(steps > 5, "{steps} steps");
    // All was read before, and is in memory: only a pass over the file can find it.
    let tree = store.read().tree("t").unwrap().unwrap();
    assert_eq!(tree.range(..).copied().count(), 501);
    let mut found = 0;
    for unit in 4..store.stats().span_bytes / 4096 {
        fs.flip_bit(&path(), unit * 4096 + 99, 3);
        match scrub_all(&store) {
            Ok(_) => {}
            Err(Error::Corrupt { .. }) => found += 1,
            Err(error) => panic!("{error}"),
        }
        fs.flip_bit(&path(), unit * 4096 + 99, 3);
    }
    assert!(found >= report.page_count + 3, "{found} of {} pages", report.page_count);
    scrub_all(&store).unwrap();
}

#[test]
fn trees_that_a_snapshot_remembers_are_its_own() {
    let store = open(&disk(1));
    // More trees than are remembered, in one order and in the other, and one that is not there yet.
    let names = ["a", "b", "c", "d", "e", "f"];
    let mut held = Vec::new();
    for round in 0..4_u8 {
        let mut txn = store.write().unwrap();
        for name in &names[..3 + usize::from(round)] {
            txn.tree(name).unwrap().put(b"key", &[round]).unwrap();
        }
        if round == 3 {
            txn.delete_tree("a").unwrap();
        }
        txn.publish().unwrap();
        held.push((round, store.read()));
        for (round, snapshot) in &held {
            for name in names.iter().chain(names.iter().rev()) {
                let is_there = names[..3 + usize::from(*round)].contains(name);
                let is_gone = *round == 3 && *name == "a";
                let tree = snapshot.tree(name).unwrap();
                let value = tree.as_ref().map(|tree| tree.get(b"key").unwrap().unwrap()[0]);
                assert_eq!(value, (is_there && !is_gone).then_some(*round), "{name}");
            }
        }
    }
}
