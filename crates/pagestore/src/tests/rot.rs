//! A flipped bit is an error or invisible, wherever it is; never wrong data, never a panic.

use flotilla_vfs::{FileSystem, OpenMode};

use super::model::{Map, Maps};
use super::{disk, open, path, try_open};
use crate::{Error, PageStore, Scrub, Snapshot, TreeOptions};

fn entries(snapshot: &Snapshot) -> Result<Maps, Error> {
    let mut maps = Maps::new();
    for name in snapshot.tree_names()? {
        let tree = snapshot.tree(&name)?.expect("it was listed");
        let mut map = Map::new();
        let mut range = tree.range(..);
        while let Some((key, value)) = range.next()? {
            map.insert(key.to_vec(), value.to_vec());
        }
        maps.insert(name, map);
    }
    Ok(maps)
}

fn is_corrupt(error: &Error) -> bool {
    matches!(error, Error::Corrupt { .. })
}

/// Trees whose pages have one unit, and one whose pages have three.
fn fill(store: &PageStore) {
    if store.read().tree("wide").unwrap().is_none() {
        let mut txn = store.write().unwrap();
        txn.create_tree("wide", TreeOptions::default().page_units(3)).unwrap();
        txn.publish().unwrap();
    }
    for round in 0..3_u32 {
        let mut txn = store.write().unwrap();
        for i in 0..60_u32 {
            let value = vec![round as u8; i as usize * 3];
            txn.tree("small").unwrap().put(format!("key/{i:04}").as_bytes(), &value).unwrap();
        }
        txn.tree("wide").unwrap().put(&[round as u8], &[round as u8; 3000]).unwrap();
        txn.tree("long").unwrap().put(b"one", &vec![round as u8; 5000]).unwrap();
        txn.tree("gone").unwrap().put(b"x", b"y").unwrap();
        txn.tree("gone").unwrap().delete_range(b"", None).unwrap();
        txn.publish().unwrap();
        store.checkpoint().unwrap();
    }
}

#[test]
fn every_flip_is_found_or_invisible() {
    let fs = disk(1);
    let store = open(&fs);
    fill(&store);
    let good = entries(&store.read()).unwrap();
    let used = store.stats().span_bytes;
    drop(store);
    let (mut found, mut unseen) = (0, 0);
    // Coprime to the length of everything in the file, so every field of every kind is hit.
    for at in (0..used).step_by(11) {
        let bit = (at % 8) as u8;
        fs.flip_bit(&path(), at, bit);
        let seen = try_open(&fs).and_then(|store| {
            let checked = store.check();
            let seen = entries(&store.read());
            if let Err(error) = &checked {
                assert!(is_corrupt(error), "{error}");
            }
            assert!(checked.is_err() || seen.is_ok(), "check has missed byte {at}");
            seen
        });
        match seen {
            Ok(maps) => {
                assert_eq!(maps, good, "byte {at}");
                unseen += 1;
            }
            Err(error) => {
                assert!(is_corrupt(&error), "byte {at}: {error}");
                found += 1;
            }
        }
        fs.flip_bit(&path(), at, bit);
    }
    assert!(found > 400 && unseen > 400, "{found} found, {unseen} not seen");
}

#[test]
fn lost_and_misdirected_writes_are_found() {
    let fs = disk(2);
    let store = open(&fs);
    fill(&store);
    drop(store);
    let file = fs.open(&path(), OpenMode::Write).unwrap();
    let unit_count = file.len().unwrap() / 4096;
    let mut found = 0;
    for unit in 2..unit_count {
        let (mut mine, mut other) = ([0; 4096], [0; 4096]);
        file.read_exact_at(&mut mine, unit * 4096).unwrap();
        file.read_exact_at(&mut other, (unit + 1) % unit_count * 4096).unwrap();
        file.write_at(&other, unit * 4096).unwrap();
        let seen = try_open(&fs).and_then(|store| store.check().map(|_| ()));
        if let Err(error) = seen {
            assert!(is_corrupt(&error), "{error}");
            found += 1;
        }
        file.write_at(&mine, unit * 4096).unwrap();
    }
    assert!(found >= 6, "{found} found");
    open(&fs).check().unwrap();
}

#[test]
fn page_of_an_earlier_time_is_found() {
    let fs = disk(4);
    let store = open(&fs);
    fill(&store);
    let file = fs.open(&path(), OpenMode::Write).unwrap();
    let mut old = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut old, 0).unwrap();
    fill(&store);
    let good = entries(&store.read()).unwrap();
    drop(store);
    let mut found = 0;
    for unit in 2..old.len() / 4096 {
        let (at, mut new) = (unit as u64 * 4096, [0; 4096]);
        file.read_exact_at(&mut new, at).unwrap();
        file.write_at(&old[unit * 4096..][..4096], at).unwrap();
        match try_open(&fs).and_then(|store| entries(&store.read())) {
            Ok(maps) => assert_eq!(maps, good, "unit {unit}"),
            Err(error) => {
                assert!(is_corrupt(&error), "{error}");
                found += 1;
            }
        }
        file.write_at(&new, at).unwrap();
    }
    assert!(found >= 5, "{found} found");
}

#[test]
fn cut_off_file_is_refused() {
    let fs = disk(3);
    let store = open(&fs);
    fill(&store);
    drop(store);
    let file = fs.open(&path(), OpenMode::Write).unwrap();
    let len = file.len().unwrap();
    for at in [0, 100, 4096, 8191, 8192, 3 * 4096, 5 * 4096 + 7] {
        let mut rest = vec![0; (len - at) as usize];
        file.read_exact_at(&mut rest, at).unwrap();
        file.set_len(at).unwrap();
        let seen = try_open(&fs).and_then(|store| store.check().map(|_| ()));
        assert!(is_corrupt(&seen.unwrap_err()), "cut at {at}");
        file.write_at(&rest, at).unwrap();
    }
    open(&fs).check().unwrap();
}

#[test]
fn name_that_is_no_text_is_named_and_ends_a_scrub() {
    let store = open(&disk(1));
    let mut txn = store.write().unwrap();
    txn.tree("a").unwrap().put(b"k", b"v").unwrap();
    txn.put_raw_tree_name(b"\xff");
    txn.publish().unwrap();
    store.checkpoint().unwrap();
    assert!(matches!(
        store.read().tree_names(),
        Err(Error::Corrupt { what: "name of a tree", .. })
    ));
    let mut scrub = Scrub::new();
    let error = loop {
        if let Err(error) = store.scrub(&mut scrub, 1 << 20) {
            break error;
        }
        assert!(!scrub.is_done());
    };
    assert!(matches!(error, Error::Corrupt { what: "name of a tree", .. }), "{error}");
}
