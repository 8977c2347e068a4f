//! Compact, repair, backup and restore while the power goes at each operation on the disk, the disk
//! refuses, or is full: the source stays as it is byte for byte; what is made is not there under
//! its name, or whole; and the next attempt is not in the way of what the one before has left.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flotilla_vfs::fault::FaultFs;
use flotilla_vfs::hooked::{HookedFs, Operation};
use flotilla_vfs::{File, FileSystem, OpenMode};

use super::model::Maps;
use super::{disk, path};
use crate::error::Result;
use crate::tools::{self, BackupIndex, PageFile};
use crate::{CommitDurability, Error, Options, PageStore};

/// How each crash may turn out.
const SEEDS: u64 = 3;

/// A tool that makes `made()` of a sound file, or of a damaged one, or of streams.
type Tool = fn(&Arc<dyn FileSystem>) -> Result<()>;

fn made() -> PathBuf {
    PathBuf::from("/data/made")
}

fn stream(i: usize) -> PathBuf {
    PathBuf::from(format!("/data/stream{i}"))
}

fn arc(fs: &FaultFs) -> Arc<dyn FileSystem> {
    Arc::new(fs.clone())
}

fn compact(fs: &Arc<dyn FileSystem>) -> Result<()> {
    PageFile::open(&**fs, &path())?.compact(fs, &made(), &mut |_| ()).map(drop)
}

fn repair(fs: &Arc<dyn FileSystem>) -> Result<()> {
    tools::repair(fs, &path(), &made(), false, &mut |_| ()).map(drop)
}

fn restore(fs: &Arc<dyn FileSystem>) -> Result<()> {
    let mut readers = Vec::new();
    for i in 0..2 {
        readers.push(Reader { file: fs.open(&stream(i), OpenMode::Read)?, at: 0 });
    }
    let mut streams: Vec<&mut dyn Read> =
        readers.iter_mut().map(|reader| reader as &mut dyn Read).collect();
    tools::restore(fs, &mut streams, &made(), &mut |_| ()).map(drop)
}

struct Reader {
    file: Arc<dyn File>,
    at: u64,
}

impl Read for Reader {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let count = self.file.read_at(buf, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

struct Writer {
    file: Arc<dyn File>,
    at: u64,
}

impl Write for Writer {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        self.file.write_at(buf, self.at)?;
        self.at += buf.len() as u64;
        Ok(buf.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.sync()
    }
}

/// Writes stream `i` of a backup of the file, which a store has open meanwhile.
fn back_up(fs: &FaultFs, store: &PageStore, i: usize) -> Result<()> {
    let index = streams(fs, i)?;
    let file = fs.open(&stream(i), OpenMode::CreateNew)?;
    store.read().backup_to(&mut Writer { file, at: 0 }, Some(&index))?;
    fs.sync_dir(Path::new("/data"))?;
    Ok(())
}

/// The index of the first streams.
fn streams(fs: &FaultFs, count: usize) -> Result<BackupIndex> {
    let mut readers = Vec::new();
    for i in 0..count {
        readers.push(Reader { file: fs.open(&stream(i), OpenMode::Read)?, at: 0 });
    }
    let mut streams: Vec<&mut dyn Read> =
        readers.iter_mut().map(|reader| reader as &mut dyn Read).collect();
    BackupIndex::read(&mut streams)
}

fn open(fs: &FaultFs) -> PageStore {
    let options = Options::default().growth_bytes(64 << 10).redo_bytes(64 << 10);
    PageStore::open_with(arc(fs), &path(), options).unwrap()
}

/// A disk, all of it durable, with a file that has pages, long values, trash, and something in the
/// redo area, and with two streams of its backup. Of a second one a page is damaged.
fn prepared() -> (FaultFs, FaultFs) {
    let fs = disk(1);
    let store = open(&fs);
    for round in 0..3_u8 {
        let mut txn = store.write().unwrap();
        for i in 0..150_u8 {
            txn.tree("small").unwrap().put(&[i], &vec![round; usize::from(i) % 90]).unwrap();
            txn.tree("cut").unwrap().put(&[i, round], &[7; 300]).unwrap();
        }
        txn.tree("long").unwrap().put(&[round], &[round; 9000]).unwrap();
        txn.tree("cut").unwrap().delete_range(&[20], Some(&[120])).unwrap();
        txn.set_commit_metadata(&[round]);
        txn.commit(CommitDurability::Sync).unwrap();
        if round == 1 {
            store.checkpoint().unwrap();
            back_up(&fs, &store, 0).unwrap();
        }
    }
    back_up(&fs, &store, 1).unwrap();
    drop(store);
    let damaged = fs.crashed(0);
    let root = PageFile::open(&damaged, &path()).unwrap().info().trees[2].root;
    damaged.flip_bit(&path(), root * 4096 + 99, 1);
    (fs, damaged)
}

fn bytes(fs: &FaultFs, path: &Path) -> Vec<u8> {
    let file = fs.open(path, OpenMode::Read).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// The sources as they lie there, and nothing else but locks.
fn sources(fs: &FaultFs) -> Vec<Vec<u8>> {
    [path(), stream(0), stream(1)].map(|path| bytes(fs, &path)).to_vec()
}

fn leftovers(fs: &FaultFs) -> Vec<String> {
    let known = ["made", "pages", "stream0", "stream1", "made.lock", "pages.lock"];
    let mut names = fs.list(Path::new("/data")).unwrap();
    names.retain(|name| !known.contains(&&name[..]));
    names
}

/// The contents of the made file, verified; nothing if there is none.
fn found(fs: &FaultFs) -> Option<(Maps, Vec<u8>)> {
    let file = match PageFile::open(fs, &made()) {
        Err(Error::Io(error)) if error.kind() == std::io::ErrorKind::NotFound => return None,
        other => other.unwrap(),
    };
    assert_eq!(file.check(&mut |_| ()).problems, []);
    drop(file);
    let store = PageStore::open_with(arc(fs), &made(), Options::default()).unwrap();
    store.check().unwrap();
    let snapshot = store.read();
    let mut maps = Maps::new();
    for name in snapshot.tree_names().unwrap() {
        let tree = snapshot.tree(&name).unwrap().unwrap();
        let all = tree.range(..);
        maps.insert(name, all.copied().map(Result::unwrap).collect());
    }
    Some((maps, snapshot.commit_metadata().to_vec()))
}

fn tools() -> [(&'static str, Tool, FaultFs); 3] {
    let (sound, damaged) = prepared();
    [("compact", compact, sound.clone()), ("repair", repair, damaged), ("restore", restore, sound)]
}

/// Tries again on what is left, and proves that nothing of the first attempt is in the way or
/// stays.
fn try_again(name: &str, tool: Tool, fs: &FaultFs, good: &Option<(Maps, Vec<u8>)>) {
    match (found(fs), tool(&arc(fs))) {
        (None, outcome) => outcome.unwrap_or_else(|error| panic!("{name}: {error}")),
        (Some(_), Err(Error::Io(error))) => {
            assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists, "{name}");
        }
        (Some(_), other) => panic!("{name} has replaced a file: {other:?}"),
    }
    assert!(found(fs) == *good, "{name}");
}

/// The result of the tool without a fault.
fn undisturbed(name: &str, tool: Tool, base: &FaultFs) -> Option<(Maps, Vec<u8>)> {
    let fs = base.crashed(0);
    tool(&arc(&fs)).unwrap();
    assert_eq!(leftovers(&fs), [""; 0], "{name}");
    fs.power_loss(1);
    let good = found(&fs);
    assert!(good.is_some(), "{name} was durable when it returned");
    good
}

#[test]
fn power_cut_at_any_operation_harms_no_source_and_leaves_nothing_half() {
    for (name, tool, base) in tools() {
        let before = sources(&base);
        let good = undisturbed(name, tool, &base);
        for seed in 0..SEEDS {
            for operation in 1.. {
                let fs = base.crashed(seed);
                fs.cut_power_after(operation);
                let outcome = tool(&arc(&fs));
                fs.power_loss(operation << 8 | seed);
                assert!(sources(&fs) == before, "{name} has changed its source");
                let made = found(&fs);
                assert!(made.is_none() || made == good, "{name}: {operation} of seed {seed}");
                assert!(outcome.is_err() || made.is_some(), "{name} was not durable");
                let is_over = outcome.is_ok();
                try_again(name, tool, &fs, &good);
                assert_eq!(leftovers(&fs), [""; 0], "{name}: {operation} of seed {seed}");
                assert!(sources(&fs) == before, "{name} has changed its source");
                if is_over {
                    assert!(operation > 10, "hardly anything was tried");
                    break;
                }
            }
        }
    }
}

#[test]
fn refused_write_or_sync_is_an_error_and_harms_nothing() {
    for (name, tool, base) in tools() {
        let before = sources(&base);
        let good = undisturbed(name, tool, &base);
        for at in 1.. {
            let fs = base.crashed(0);
            let hooked = refusing(&fs, at);
            let outcome = tool(&hooked.0);
            fs.fail_syncs(false);
            fs.fail_writes(false);
            let is_over = hooked.1.load(Ordering::Relaxed) < at;
            assert_eq!(outcome.is_ok(), is_over, "{name}: {at}");
            assert!(sources(&fs) == before, "{name} has changed its source");
            let made = found(&fs);
            assert!(made.is_none() || made == good, "{name}: {at}");
            try_again(name, tool, &fs, &good);
            assert_eq!(leftovers(&fs), [""; 0], "{name}: {at}");
            if is_over {
                assert!(at > 5, "hardly anything was tried");
                break;
            }
        }
    }
}

/// A file system that refuses the `at`-th write or sync, and changes of names until the next one;
/// and how many there were. A reservation that is refused is tried again with less.
fn refusing(fs: &FaultFs, at: u64) -> (Arc<dyn FileSystem>, Arc<AtomicU64>) {
    let count = Arc::new(AtomicU64::new(0));
    let (disk, seen) = (fs.clone(), Arc::clone(&count));
    let hook = move |operation| {
        if !matches!(operation, Operation::Write | Operation::Sync) {
            return;
        }
        let is_refused = seen.fetch_add(1, Ordering::Relaxed) + 1 == at;
        disk.fail_syncs(is_refused && operation == Operation::Sync);
        disk.fail_writes(is_refused && operation != Operation::Sync);
    };
    (Arc::new(HookedFs::new(arc(fs), hook)), count)
}

#[test]
fn full_disk_is_said_to_be_full_and_nothing_stays() {
    for (name, tool, base) in tools() {
        let before = sources(&base);
        let good = undisturbed(name, tool, &base);
        let space: usize = before.iter().map(|bytes| bytes.len().next_multiple_of(4096)).sum();
        for room in (0_u64..).step_by(5) {
            let fs = base.crashed(0);
            fs.set_capacity(Some(space as u64 + room * 4096));
            let outcome = tool(&arc(&fs));
            fs.set_capacity(None);
            assert!(sources(&fs) == before, "{name} has changed its source");
            match outcome {
                Ok(()) => {
                    assert!(found(&fs) == good && room > 5, "{name}");
                    break;
                }
                Err(Error::NoSpace) => {}
                Err(Error::Io(error)) if error.kind() == std::io::ErrorKind::StorageFull => {}
                Err(error) => panic!("{name}, room for {room} pages: {error}"),
            }
            assert!(found(&fs).is_none(), "{name}: room for {room} pages");
            assert_eq!(leftovers(&fs), [""; 0], "{name}: room for {room} pages");
        }
    }
}
