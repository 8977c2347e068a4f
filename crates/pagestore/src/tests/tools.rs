//! The tools for a page file: what they say of a sound one, and of one that is damaged.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::model::{Map, Maps};
use super::{disk, open, path, try_open};
use crate::tool::{Content, EntryValue, Owner, PageFile, Part};
use crate::{Durability, Error, Options, PageStore};
use flotilla_vfs::fault::FaultFs;

/// Three trees, one of them of some depth, one with long values; trash, a redo area with a
/// transaction that no checkpoint has.
fn fill(store: &PageStore) {
    for round in 0..3_u32 {
        let mut txn = store.write().unwrap();
        for i in 0..300_u32 {
            let value = vec![round as u8; i as usize % 90];
            txn.tree("small").unwrap().put(format!("key/{i:04}").as_bytes(), &value).unwrap();
        }
        for i in 0..5_u8 {
            txn.tree("long").unwrap().put(&[i], &vec![i; 5000]).unwrap();
        }
        txn.tree("cut").unwrap().put(format!("x{round}").as_bytes(), &[7; 900]).unwrap();
        txn.set_mark(b"mark");
        txn.commit(Durability::Sync).unwrap();
    }
    store.checkpoint().unwrap();
}

/// With a short redo area: it is read again and again here.
fn filled(fs: &FaultFs) {
    let options = Options::default().growth_bytes(64 << 10).redo_bytes(64 << 10);
    let store = PageStore::open(Arc::new(fs.clone()), &path(), options).unwrap();
    fill(&store);
    let mut txn = store.write().unwrap();
    txn.tree("small").unwrap().put(b"later", b"not in the checkpoint").unwrap();
    txn.commit(Durability::Sync).unwrap();
}

fn dumped(file: &PageFile) -> (Maps, usize) {
    let mut maps = Maps::new();
    let mut take = |entry: crate::tool::Dumped<'_>| {
        let map: &mut Map = maps.entry(entry.tree.to_owned()).or_default();
        if let EntryValue::Bytes(value) = entry.value {
            map.insert(entry.key.to_vec(), value.to_vec());
        }
        ControlFlow::Continue(())
    };
    let problems = file.dump(None, true, &mut take).unwrap();
    (maps, problems.len())
}

fn read(fs: &FaultFs) -> Result<PageFile, Error> {
    PageFile::open(fs, &path())
}

#[test]
fn sound_file_is_described() {
    let fs = disk(1);
    filled(&fs);
    let file = read(&fs).unwrap();
    assert!(matches!(try_open(&fs), Err(Error::Locked)), "nobody opens it meanwhile");
    let report = file.check(&mut |_| ());
    assert_eq!((&report.problems[..], report.problems_left_out), (&[][..], 0));
    assert_eq!((report.tree_count, report.key_count, report.extent_count), (3, 308, 5));
    assert_eq!((report.txid, report.redo_txid), (3, 4));

    let info = file.info();
    assert_eq!(info.problems, []);
    let names: Vec<_> = info.trees.iter().map(|tree| (&tree.name[..], tree.keys)).collect();
    assert_eq!(names, [("cut", 3), ("long", 5), ("small", 300)]);
    assert_eq!(info.trees[2].depth, Some(2));
    let redo = info.redo.unwrap();
    assert_eq!((redo.frames, redo.records, redo.last_txid), (1, 1, 4));
    let newest = info.metas.iter().find(|meta| meta.is_newest).unwrap();
    assert_eq!((newest.txid, &newest.mark[..], newest.whole_copies), (3, &b"mark"[..], 8));
    let free = info.free_bytes.unwrap();
    assert_eq!(info.used_bytes + free + info.reserved_bytes, info.span_bytes);
    assert_eq!((report.used_bytes, report.free_bytes), (info.used_bytes, free));

    let map = file.map(&mut |_| ());
    let bytes = |owner| {
        let mine = map.runs.iter().filter(|run| run.owner == owner);
        mine.map(|run| (run.units.end - run.units.start) * 4096).sum::<u64>()
    };
    assert_eq!(map.trees, ["cut", "long", "small"]);
    for (i, tree) in info.trees.iter().enumerate() {
        assert_eq!(bytes(Owner::Tree(i)), tree.bytes, "{}", tree.name);
    }
    assert_eq!((bytes(Owner::Free), bytes(Owner::Redo)), (free, redo.bytes));
    assert_eq!((bytes(Owner::Lost), bytes(Owner::Meta)), (0, 8192));
    assert!(map.runs.windows(2).all(|pair| pair[0].units.end == pair[1].units.start));
    assert_eq!(map.runs.last().unwrap().units.end * 4096, info.file_bytes);
    drop(file);
    assert!(fs_is_as_it_was(&fs));
}

/// The store has what the redo area adds, and finds nothing wrong.
fn fs_is_as_it_was(fs: &FaultFs) -> bool {
    let store = open(fs);
    store.check().unwrap();
    store.read().tree("small").unwrap().unwrap().len() == 301
}

#[test]
fn every_flip_is_named_or_invisible() {
    let fs = disk(2);
    filled(&fs);
    let file = read(&fs).unwrap();
    let (good, _) = dumped(&file);
    let span = file.info().span_bytes;
    let redo = file.info().redo.unwrap();
    let is_redo = |at: u64| (redo.unit..redo.unit + redo.bytes / 4096).contains(&(at / 4096));
    drop(file);
    let (mut found, mut unseen) = (0, 0);
    let places = (0..span).filter(|&at| !is_redo(at) || at < redo.unit * 4096 + 1024);
    // Coprime to the length of everything in the file, so every field of every kind is hit.
    for at in places.step_by(331) {
        let bit = (at % 8) as u8;
        fs.flip_bit(&path(), at, bit);
        let file = read(&fs).unwrap();
        let report = file.check(&mut |_| ());
        let (seen, damage) = dumped(&file);
        let (info, map) = (file.info(), file.map(&mut |_| ()));
        drop(file);
        if report.problems.is_empty() {
            assert!(seen == good && damage == 0, "byte {at}");
            assert!(info.problems.is_empty() && map.problems.is_empty(), "byte {at}");
            // Only the last frame of the redo area is like a torn one, by its nature.
            let checked = try_open(&fs).map(|store| store.check().map(|_| ()));
            assert!(matches!(checked, Ok(Ok(()))), "byte {at}: {checked:?}");
            unseen += 1;
        } else {
            let page = at / 4096;
            let near = report.problems.iter().any(|p| (p.page..p.page + 3).contains(&page));
            assert!(near, "byte {at} of page {page}: {:?}", report.problems);
            found += 1;
        }
        fs.flip_bit(&path(), at, bit);
    }
    assert!(found > 60 && unseen > 40, "{found} found, {unseen} not seen");
}

#[test]
fn damage_is_named_with_what_it_takes_along() {
    let fs = disk(3);
    filled(&fs);
    let file = read(&fs).unwrap();
    let (good, _) = dumped(&file);
    let small = file.info().trees[2].clone();
    let root = file.page(small.root).unwrap();
    assert_eq!((root.kind, root.level, root.damage), ("branch", 1, None));
    let Content::Child { page, keys, .. } = root.cells[1].content else { panic!("{root:?}") };
    let next = root.cells.get(2).map(|cell| cell.key.clone());
    let leaf = file.page(page).unwrap();
    assert_eq!((leaf.kind, leaf.cells.len() as u64), ("leaf", keys));
    drop(file);
    fs.flip_bit(&path(), page * 4096 + 77, 3);
    let file = read(&fs).unwrap();
    let report = file.check(&mut |_| ());
    let [problem] = &report.problems[..] else { panic!("{:?}", report.problems) };
    let lost = problem.lost.as_ref().unwrap();
    assert_eq!((problem.page, &problem.part), (page, &Part::Tree("small".to_owned())));
    assert_eq!((&lost.start, &lost.end), (&Some(root.cells[1].key.clone()), &next));
    assert_eq!((lost.count, problem.what), (keys, "checksum"));
    let (rest, damage) = dumped(&file);
    assert_eq!((rest["small"].len() as u64, damage), (good["small"].len() as u64 - keys, 1));
    assert_eq!(rest["long"], good["long"]);
    assert_eq!(file.page(page).unwrap().damage, Some("checksum"));
    let map = file.map(&mut |_| ());
    assert!(map.runs.iter().any(|run| run.owner == Owner::Lost && run.units.contains(&page)));
}

#[test]
fn what_is_no_page_is_said_to_be_none() {
    let fs = disk(4);
    filled(&fs);
    let file = read(&fs).unwrap();
    for page in [0, 1, 1 << 40] {
        assert!(matches!(file.page(page), Err(Error::Corrupt { .. })), "{page}");
    }
    let missing = file.dump(Some("none"), false, &mut |_| ControlFlow::Continue(()));
    assert!(matches!(missing, Err(Error::Io(e)) if e.kind() == std::io::ErrorKind::NotFound));
    let mut first = Vec::new();
    let mut take = |entry: crate::tool::Dumped<'_>| {
        first.push((entry.key.to_vec(), matches!(entry.value, EntryValue::Long { len: 5000, .. })));
        ControlFlow::Break(())
    };
    file.dump(Some("long"), false, &mut take).unwrap();
    assert_eq!(first, [(vec![0], true)]);
    drop(file);
    let store = open(&fs);
    assert!(matches!(read(&fs), Err(Error::Locked)));
    drop(store);
    let missing = PageFile::open(&fs, std::path::Path::new("/data/none"));
    assert!(matches!(missing, Err(Error::Io(e)) if e.kind() == std::io::ErrorKind::NotFound));
}
