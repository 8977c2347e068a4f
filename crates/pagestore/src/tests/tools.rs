//! Offline tools on a sound page file, and on a damaged one.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::model::{Map, Maps};
use super::{disk, open, path, try_open};
use crate::tools::{CellContent, EntryValue, FilePart, PageFile, UnitOwner};
use crate::{CommitDurability, Error, Options, PageStore, TreeOptions};
use flotilla_vfs::fault::FaultFs;

/// Three trees, one of them of some depth, one with long values and pages of three units; trash, a
/// redo area with a transaction that no checkpoint has.
fn fill(store: &PageStore) {
    for round in 0..3_u32 {
        let mut txn = store.write().unwrap();
        if round == 0 {
            txn.create_tree("long", TreeOptions::default().page_units(3)).unwrap();
        }
        for i in 0..300_u32 {
            let value = vec![round as u8; i as usize % 90];
            txn.tree("small").unwrap().put(format!("key/{i:04}").as_bytes(), &value).unwrap();
        }
        for i in 0..5_u8 {
            txn.tree("long").unwrap().put(&[i], &vec![i; 5000]).unwrap();
        }
        txn.tree("cut").unwrap().put(format!("x{round}").as_bytes(), &[7; 900]).unwrap();
        txn.set_commit_metadata(b"mark");
        txn.commit(CommitDurability::Sync).unwrap();
    }
    store.checkpoint().unwrap();
}

/// With a short redo area: it is read again and again here.
fn filled(fs: &FaultFs) {
    let options = Options::default().growth_bytes(64 << 10).redo_bytes(64 << 10);
    let store = PageStore::open_with(Arc::new(fs.clone()), &path(), options).unwrap();
    fill(&store);
    let mut txn = store.write().unwrap();
    txn.tree("small").unwrap().put(b"later", b"not in the checkpoint").unwrap();
    txn.commit(CommitDurability::Sync).unwrap();
}

fn dumped(file: &PageFile) -> (Maps, usize) {
    let mut maps = Maps::new();
    let mut take = |entry: crate::tools::DumpEntry<'_>| {
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
    assert_eq!(info.trees.iter().map(|tree| tree.page_units).collect::<Vec<_>>(), [1, 3, 1]);
    let redo = info.redo.unwrap();
    assert_eq!((redo.frames, redo.records, redo.last_txid), (1, 1, 4));
    let newest = info.metas.iter().find(|meta| meta.is_newest).unwrap();
    assert_eq!(
        (newest.txid, &newest.commit_metadata[..], newest.whole_copies),
        (3, &b"mark"[..], 8)
    );
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
        assert_eq!(bytes(UnitOwner::Tree(i)), tree.bytes, "{}", tree.name);
    }
    assert_eq!((bytes(UnitOwner::Free), bytes(UnitOwner::Redo)), (free, redo.bytes));
    assert_eq!((bytes(UnitOwner::Lost), bytes(UnitOwner::Meta)), (0, 8192));
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
    let CellContent::Child { page, keys, .. } = root.cells[1].content else { panic!("{root:?}") };
    let next = root.cells.get(2).map(|cell| cell.key.clone());
    let leaf = file.page(page).unwrap();
    assert_eq!((leaf.kind, leaf.cells.len() as u64), ("leaf", keys));
    drop(file);
    fs.flip_bit(&path(), page * 4096 + 77, 3);
    let file = read(&fs).unwrap();
    let report = file.check(&mut |_| ());
    let [problem] = &report.problems[..] else { panic!("{:?}", report.problems) };
    let lost = problem.lost.as_ref().unwrap();
    assert_eq!((problem.page, &problem.part), (page, &FilePart::Tree("small".to_owned())));
    assert_eq!((&lost.start, &lost.end), (&Some(root.cells[1].key.clone()), &next));
    assert_eq!((lost.count, problem.what), (keys, "checksum"));
    let (rest, damage) = dumped(&file);
    assert_eq!((rest["small"].len() as u64, damage), (good["small"].len() as u64 - keys, 1));
    assert_eq!(rest["long"], good["long"]);
    assert_eq!(file.page(page).unwrap().damage, Some("checksum"));
    let map = file.map(&mut |_| ());
    assert!(map.runs.iter().any(|run| run.owner == UnitOwner::Lost && run.units.contains(&page)));
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
    let mut take = |entry: crate::tools::DumpEntry<'_>| {
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

fn new() -> std::path::PathBuf {
    std::path::PathBuf::from("/data/new")
}

fn arc(fs: &FaultFs) -> Arc<dyn flotilla_vfs::FileSystem> {
    Arc::new(fs.clone())
}

/// The contents of a store in the file, once it was verified.
fn contents(fs: &FaultFs, path: &std::path::Path) -> (Maps, Vec<u8>) {
    let store = PageStore::open_with(arc(fs), path, Options::default()).unwrap();
    store.check().unwrap();
    let snapshot = store.read();
    let mut maps = Maps::new();
    for name in snapshot.tree_names().unwrap() {
        let tree = snapshot.tree(&name).unwrap().unwrap();
        assert_eq!(tree.page_units(), if name == "long" { 3 } else { 1 }, "{name}");
        let all = tree.range(..);
        maps.insert(name, all.copied().map(Result::unwrap).collect());
    }
    (maps, snapshot.commit_metadata().to_vec())
}

#[test]
fn compact_copy_is_equal_and_dense() {
    let fs = disk(5);
    filled(&fs);
    let good = contents(&fs, &path());
    {
        // Most of a file that had more once is free.
        let store = open(&fs);
        let mut txn = store.write().unwrap();
        for i in 0..200_u32 {
            txn.tree("gone").unwrap().put(&i.to_be_bytes(), &[1; 3000]).unwrap();
        }
        txn.publish().unwrap();
        store.checkpoint().unwrap();
        let mut txn = store.write().unwrap();
        txn.delete_tree("gone").unwrap();
        txn.commit(CommitDurability::Sync).unwrap();
    }
    let file = read(&fs).unwrap();
    let made = file.compact(&arc(&fs), &new(), &mut |_| ()).unwrap();
    assert_eq!((made.trees, made.keys), (3, 309));
    assert!(made.bytes < made.bytes_before / 2, "{made:?}");
    let again = file.compact(&arc(&fs), &new(), &mut |_| ());
    let exists = std::io::ErrorKind::AlreadyExists;
    assert!(matches!(again, Err(Error::Io(error)) if error.kind() == exists));
    drop(file);
    assert!(contents(&fs, &new()) == good);
    let copy = PageFile::open(&fs, &new()).unwrap();
    assert_eq!(copy.check(&mut |_| ()).problems, []);
    let names = flotilla_vfs::FileSystem::list(&fs, std::path::Path::new("/data")).unwrap();
    assert!(!names.iter().any(|name| name.contains(".part")), "{names:?}");
    drop(copy);
    fs.power_loss(9);
    assert!(contents(&fs, &new()) == good, "it was durable");
}

#[test]
fn damaged_file_is_not_copied_as_if_it_were_whole() {
    let fs = disk(6);
    filled(&fs);
    let (root, leaf) = places(&fs);
    for page in [root, leaf] {
        fs.flip_bit(&path(), page * 4096 + 99, 1);
        let file = read(&fs).unwrap();
        let made = file.compact(&arc(&fs), &new(), &mut |_| ());
        assert!(matches!(made, Err(Error::Corrupt { page: p, .. }) if p == page), "{made:?}");
        drop(file);
        let names = flotilla_vfs::FileSystem::list(&fs, std::path::Path::new("/data")).unwrap();
        assert_eq!(names, ["new.lock", "pages", "pages.lock"]);
        fs.flip_bit(&path(), page * 4096 + 99, 1);
    }
}

/// The root of `small`, and its second leaf.
fn places(fs: &FaultFs) -> (u64, u64) {
    let file = read(fs).unwrap();
    let root = file.info().trees[2].root;
    let CellContent::Child { page, .. } = file.page(root).unwrap().cells[1].content else {
        panic!("the root is a branch")
    };
    (root, page)
}

fn repaired(fs: &FaultFs, older: bool) -> (crate::tools::RepairReport, Maps) {
    let report = crate::tools::repair(&arc(fs), &path(), &new(), older, &mut |_| ()).unwrap();
    let maps = contents(fs, &new()).0;
    flotilla_vfs::FileSystem::remove(fs, &new()).unwrap();
    let keys: usize = maps.values().map(Map::len).sum();
    assert_eq!((report.trees, report.keys), (maps.len() as u64, keys as u64));
    (report, maps)
}

#[test]
fn repair_keeps_what_is_whole_and_names_the_rest() {
    let fs = disk(7);
    filled(&fs);
    let good = contents(&fs, &path()).0;
    let (report, maps) = repaired(&fs, false);
    assert!(maps == good && report.problems.is_empty() && report.txid == 4, "{report:?}");

    let (root, leaf) = places(&fs);
    // A leaf: its keys are lost, and the report says which.
    fs.flip_bit(&path(), leaf * 4096 + 99, 1);
    let (report, maps) = repaired(&fs, false);
    let lost = report.problems[0].lost.clone().unwrap();
    let is_lost = |key: &[u8]| {
        lost.start.as_ref().is_none_or(|start| key >= &start[..])
            && lost.end.as_ref().is_none_or(|end| key < &end[..])
    };
    let mut rest = good.clone();
    // The records of the redo area are newer than the lost pages.
    rest.get_mut("small").unwrap().retain(|key, _| key == b"later" || !is_lost(key));
    assert!(maps == rest, "{report:?}");
    assert_eq!(good["small"].len() - rest["small"].len(), lost.count as usize);
    assert_eq!((report.rescued_keys, report.unplaced_leaves), (0, 0));
    fs.flip_bit(&path(), leaf * 4096 + 99, 1);

    // The root: its leaves are found.
    fs.flip_bit(&path(), root * 4096 + 99, 1);
    let (report, maps) = repaired(&fs, false);
    assert!(maps == good, "{report:?}");
    assert_eq!(report.rescued_keys, 300);
    fs.flip_bit(&path(), root * 4096 + 99, 1);
}

#[test]
fn repair_makes_free_space_anew_and_can_go_back() {
    let fs = disk(8);
    filled(&fs);
    let good = contents(&fs, &path()).0;
    let file = read(&fs).unwrap();
    let map = file.map(&mut |_| ());
    let directory = map.runs.iter().find(|run| run.owner == UnitOwner::Directory).unwrap();
    let at = directory.units.start * 4096 + 3;
    drop(file);
    fs.flip_bit(&path(), at, 1);
    assert!(matches!(try_open(&fs), Err(Error::Corrupt { .. })));
    let (report, maps) = repaired(&fs, false);
    assert!(maps == good);
    assert_eq!(report.problems.len(), 1, "{report:?}");
    assert_eq!(report.problems[0].part, FilePart::FreeSpace);
    fs.flip_bit(&path(), at, 1);

    // The catalogue of the newest state; the older one still has all, with its redo records or not.
    let file = read(&fs).unwrap();
    let map = file.map(&mut |_| ());
    let catalogue = map.runs.iter().find(|run| run.owner == UnitOwner::Catalogue).unwrap();
    let at = catalogue.units.start * 4096 + 99;
    drop(file);
    fs.flip_bit(&path(), at, 1);
    let (report, maps) = repaired(&fs, false);
    assert_eq!(report.problems[0].part, FilePart::Catalogue);
    // Only what the redo area names anew.
    assert_eq!(maps["small"].len(), 1);
    assert!(report.whole_older_txid.is_some(), "{report:?}");
    let (report, maps) = repaired(&fs, true);
    assert_eq!((maps["small"].len(), report.txid), (300, report.txid));
    assert_eq!(maps["long"], good["long"]);
}

fn restored(fs: &FaultFs, streams: &[&[u8]]) -> Result<(Maps, Vec<u8>), Error> {
    let mut readers: Vec<&[u8]> = streams.to_vec();
    let mut readers: Vec<&mut dyn std::io::Read> =
        readers.iter_mut().map(|reader| reader as &mut dyn std::io::Read).collect();
    crate::tools::restore(&arc(fs), &mut readers, &new(), &mut |_| ())?;
    let found = contents(fs, &new());
    flotilla_vfs::FileSystem::remove(fs, &new()).unwrap();
    Ok(found)
}

fn index(streams: &[&[u8]]) -> Result<crate::tools::BackupIndex, Error> {
    let mut readers: Vec<&[u8]> = streams.to_vec();
    let mut readers: Vec<&mut dyn std::io::Read> =
        readers.iter_mut().map(|reader| reader as &mut dyn std::io::Read).collect();
    crate::tools::BackupIndex::read(&mut readers)
}

fn entries(store: &PageStore) -> Maps {
    let snapshot = store.read();
    let tree = |name: &String| snapshot.tree(name).unwrap().unwrap();
    let all = |name: &String| {
        let tree = tree(name);
        tree.range(..).copied().map(Result::unwrap).collect()
    };
    snapshot.tree_names().unwrap().iter().map(|name| (name.clone(), all(name))).collect()
}

#[test]
fn backups_in_a_row_are_restored() {
    let fs = disk(9);
    let store = open(&fs);
    fill(&store);
    let mut rng = fastrand::Rng::with_seed(9);
    let mut streams: Vec<Vec<u8>> = Vec::new();
    let mut states = Vec::new();
    for round in 0..6_u32 {
        let mut txn = store.write().unwrap();
        for _ in 0..rng.u32(1..60) {
            let key = format!("key/{:04}", rng.u32(..400));
            txn.tree("small").unwrap().put(key.as_bytes(), &vec![8; rng.usize(..2500)]).unwrap();
        }
        txn.tree("small").unwrap().delete_range(b"key/01", Some(b"key/012")).unwrap();
        txn.set_commit_metadata(&round.to_le_bytes());
        txn.publish().unwrap();
        if round == 2 {
            // Pages that are older than the backup before, and new to it.
            let mut builder = store.tree_builder();
            for i in 0..90_u32 {
                builder.push(&i.to_be_bytes(), &[1; 300]).unwrap();
            }
            let built = builder.finish().unwrap();
            let mut txn = store.write().unwrap();
            txn.tree("built").unwrap().ingest(b"", None, built).unwrap();
            txn.publish().unwrap();
        }
        if round % 2 == 1 {
            store.checkpoint().unwrap();
        }
        let before: Vec<&[u8]> = streams.iter().map(|stream| &stream[..]).collect();
        let base = index(&before).unwrap();
        let mut out = Vec::new();
        let made = store.read().backup_to(&mut out, Some(&base)).unwrap();
        assert_eq!(made.bytes, out.len() as u64);
        assert!(round == 0 || made.kept > 0 && made.written > 0, "{made:?}");
        streams.push(out);
        states.push((entries(&store), round.to_le_bytes().to_vec()));
    }
    for count in 1..=streams.len() {
        let chain: Vec<&[u8]> = streams[..count].iter().map(|stream| &stream[..]).collect();
        assert!(restored(&fs, &chain).unwrap() == states[count - 1], "{count} streams");
    }
    // Out of order, with one missing, without the first, and none at all.
    let [first, second, third] = [&streams[0][..], &streams[1], &streams[2]];
    for wrong in [&[first, third][..], &[second], &[first, third, second], &[first, first], &[]] {
        assert!(matches!(restored(&fs, wrong), Err(Error::Backup { .. })));
    }
}

#[test]
fn damaged_backup_is_refused() {
    let fs = disk(10);
    let store = open(&fs);
    fill(&store);
    let mut stream = Vec::new();
    store.read().backup_to(&mut stream, None).unwrap();
    for cut in (0..stream.len()).step_by(997).chain([stream.len() - 1]) {
        assert!(matches!(index(&[&stream[..cut]]), Err(Error::Backup { .. })), "{cut}");
    }
    let longer = [&stream[..], b"x"].concat();
    assert!(matches!(index(&[&longer]), Err(Error::Backup { .. })));
    for at in (0..stream.len()).step_by(211) {
        stream[at] ^= 1 << (at % 8);
        let found = index(&[&stream]);
        let is_found = matches!(found, Err(Error::Backup { .. } | Error::Unsupported { .. }));
        assert!(is_found, "byte {at}");
        stream[at] ^= 1 << (at % 8);
    }
    assert!(restored(&fs, &[&stream]).unwrap().0 == entries(&store));
}

#[test]
fn names_that_are_no_text_can_be_told_from_one_another() {
    let fs = disk(11);
    let store = open(&fs);
    let mut txn = store.write().unwrap();
    txn.tree(r"a\xff").unwrap().put(b"k", b"v").unwrap();
    txn.put_raw_tree_name(b"a\xff");
    txn.put_raw_tree_name(b"b\\\xfe\xfd");
    txn.publish().unwrap();
    store.checkpoint().unwrap();
    drop(store);
    let names = [r"a\xff", r"a\xff'", r"b\\\xfe\xfd"];
    let file = read(&fs).unwrap();
    let info = file.info();
    assert!(info.trees.iter().map(|tree| &tree.name[..]).eq(names), "{:?}", info.trees);
    let problems = file.check(&mut |_| ()).problems;
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems.iter().all(|problem| problem.what == "name of a tree"), "{problems:?}");
    drop(file);
    let (report, maps) = repaired(&fs, false);
    assert!(maps.keys().eq(names), "{maps:?}");
    assert_eq!((report.trees, report.keys), (3, 1));
}
