//! The conformance suite: checks that every file system of the crate must pass.
//!
//! It checks what can be seen without a power loss; what a power loss may do is the business of
//! the faulty disk's own tests.

use std::io::{ErrorKind, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use flotilla_vfs::{AnonymousMap, File, FileSystem, MapAdvice, OpenMode};

/// A file system and an empty directory in it.
pub(crate) type TestDirectory = (Arc<dyn FileSystem>, PathBuf);

/// Runs every check, each on a file system of its own.
///
/// # Panics
///
/// If a check fails.
pub(crate) fn check_all(make: &dyn Fn() -> TestDirectory) {
    let checks: [fn(&dyn FileSystem, &Path); 22] = [
        open_modes_decide_whether_a_file_may_exist,
        a_file_opened_for_reading_is_not_written,
        bytes_written_are_read_by_every_handle,
        reads_end_at_the_end,
        parts_are_written_one_after_the_other,
        a_write_beyond_the_end_leaves_zeros,
        what_was_written_past_the_cache_is_seen_by_all,
        allocation_grows_and_keeps,
        what_is_behind_the_data_is_zero,
        a_cut_file_grows_again_with_zeros,
        what_was_punched_reads_as_zero,
        views_hold_what_was_written,
        views_outlive_growth_removal_and_handles,
        views_beyond_the_end_are_refused,
        a_map_ahead_shows_what_is_written_later,
        advice_changes_no_byte,
        a_temporary_file_has_no_name,
        memory_shows_the_temporary_file_that_it_is_put_on,
        names_are_listed_in_order,
        rename_replaces_and_remove_removes,
        directories_are_made_with_parents,
        locks_exclude_until_dropped,
    ];
    for check in checks {
        let (fs, dir) = make();
        check(fs.as_ref(), &dir);
    }
    let (fs, dir) = make();
    many_threads_share_a_file(&fs, &dir);
}

fn create(fs: &dyn FileSystem, path: &Path) -> Arc<dyn File> {
    fs.open(path, OpenMode::CreateNew).expect("a new file can be made")
}

fn write(file: &dyn File, data: &[u8], offset: u64) {
    file.write_at(data, offset).expect("a write succeeds");
}

fn read(file: &dyn File, offset: u64, count: usize) -> Vec<u8> {
    let mut buf = vec![0xEE; count];
    let got = file.read_at(&mut buf, offset).expect("a read succeeds");
    buf.truncate(got);
    buf
}

fn len(file: &dyn File) -> u64 {
    file.len().expect("the length is known")
}

fn kind<T>(result: std::io::Result<T>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

fn open_modes_decide_whether_a_file_may_exist(fs: &dyn FileSystem, dir: &Path) {
    let path = dir.join("a");
    assert_eq!(kind(fs.open(&path, OpenMode::Read)), Some(ErrorKind::NotFound));
    assert_eq!(kind(fs.open(&path, OpenMode::Write)), Some(ErrorKind::NotFound));
    let file = create(fs, &path);
    assert!(file.is_empty().expect("the length is known"));
    assert_eq!(kind(fs.open(&path, OpenMode::CreateNew)), Some(ErrorKind::AlreadyExists));
    assert_eq!(kind(fs.open(&path, OpenMode::Read)), None);
    assert_eq!(kind(fs.open(&path, OpenMode::Write)), None);
    let nowhere = dir.join("missing").join("a");
    assert_eq!(kind(fs.open(&nowhere, OpenMode::CreateNew)), Some(ErrorKind::NotFound));
}

fn a_file_opened_for_reading_is_not_written(fs: &dyn FileSystem, dir: &Path) {
    let path = dir.join("a");
    write(&*create(fs, &path), b"one", 0);
    let file = fs.open(&path, OpenMode::Read).expect("it was made");
    assert!(file.write_at(b"two", 0).is_err(), "written through a handle for reading");
    assert!(file.set_len(0).is_err(), "cut through a handle for reading");
    assert_eq!(read(&*file, 0, 8), b"one");
}

fn bytes_written_are_read_by_every_handle(fs: &dyn FileSystem, dir: &Path) {
    let path = dir.join("a");
    let writer = create(fs, &path);
    let reader = fs.open(&path, OpenMode::Read).expect("it was made");
    write(&*writer, b"hello", 3);
    assert_eq!(read(&*reader, 3, 5), b"hello");
    writer.sync().expect("a sync succeeds");
    write(&*writer, b"J", 3);
    assert_eq!(read(&*reader, 3, 5), b"Jello");
    assert_eq!(len(&*reader), 8);
}

fn reads_end_at_the_end(fs: &dyn FileSystem, dir: &Path) {
    let file = create(fs, &dir.join("a"));
    write(&*file, b"abc", 0);
    assert_eq!(read(&*file, 1, 100), b"bc");
    assert_eq!(read(&*file, 3, 100), b"");
    assert_eq!(read(&*file, 1 << 40, 100), b"");
    let mut buf = [0; 4];
    assert_eq!(kind(file.read_exact_at(&mut buf, 0)), Some(ErrorKind::UnexpectedEof));
    assert_eq!(kind(file.read_exact_at(&mut buf[..3], 0)), None);
    assert_eq!(&buf[..3], b"abc");
}

fn parts_are_written_one_after_the_other(fs: &dyn FileSystem, dir: &Path) {
    let file = create(fs, &dir.join("a"));
    // More parts than one system call takes, some of them empty.
    let parts: Vec<Vec<u8>> = (0..3000_usize).map(|i| vec![i as u8; i % 5]).collect();
    let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    file.write_all_at(&slices, 7).expect("a write succeeds");
    let whole = parts.concat();
    assert_eq!(len(&*file), 7 + whole.len() as u64);
    assert_eq!(read(&*file, 7, whole.len()), whole);
    file.write_all_at(&[], 0).expect("writing nothing succeeds");
    file.write_all_at(&[IoSlice::new(b""), IoSlice::new(b"")], 0).expect("so do empty parts");
    assert_eq!(read(&*file, 0, 7), [0; 7]);
}

fn a_write_beyond_the_end_leaves_zeros(fs: &dyn FileSystem, dir: &Path) {
    let file = create(fs, &dir.join("a"));
    write(&*file, b"x", 0);
    write(&*file, b"y", 10_000);
    assert_eq!(read(&*file, 1, 9_999), vec![0; 9_999]);
    assert_eq!(read(&*file, 10_000, 9), b"y");
}

fn what_was_written_past_the_cache_is_seen_by_all(fs: &dyn FileSystem, dir: &Path) {
    let path = dir.join("a");
    assert_eq!(kind(fs.open_direct(&path)), Some(ErrorKind::NotFound));
    let file = create(fs, &path);
    write(&*file, &[1; 16384], 0);
    let map = file.map_ahead(16384).expect("a file can be mapped, or it is said that it cannot");
    let direct = fs.open_direct(&path).expect("an open file can be opened once more");
    let memory = vec![2; 4096];
    let start = memory.as_ptr().align_offset(512).min(511);
    // Whole sectors over what is still in the cache, then what is none.
    let writes = [(start..start + 512, 512), (start..start + 1536, 4096), (start + 1..3700, 8192)];
    let mut expected = vec![1; 16384];
    for (range, offset) in writes {
        let parts = [IoSlice::new(&memory[range.clone()])];
        direct.write_synced(&parts, offset).expect("a write succeeds");
        expected[offset as usize..][..range.len()].fill(2);
        for reader in [&file, &direct] {
            assert_eq!(read(&**reader, 0, 16384), expected);
        }
        if let Some(map) = &map {
            assert_eq!(map.bytes(0..16384), expected);
        }
    }
}

fn allocation_grows_and_keeps(fs: &dyn FileSystem, dir: &Path) {
    let file = create(fs, &dir.join("a"));
    write(&*file, b"keep", 0);
    file.allocate(0..100_000).expect("there is space");
    assert_eq!(len(&*file), 100_000);
    assert_eq!(read(&*file, 0, 4), b"keep");
    assert_eq!(read(&*file, 4, 99_996), vec![0; 99_996]);
    file.allocate(10..20).expect("there is space");
    assert_eq!(len(&*file), 100_000, "a reservation never cuts");
    file.allocate(5..5).expect("nothing is asked for");
}

fn what_is_behind_the_data_is_zero(fs: &dyn FileSystem, dir: &Path) {
    let file = create(fs, &dir.join("a"));
    let data_end = || file.data_end().expect("the file system knows something");
    assert_eq!(data_end(), 0);
    file.allocate(0..1 << 20).expect("there is space");
    for (offset, is_synced) in [(3, false), (200_000, true), (90_000, false), (700_001, false)] {
        write(&*file, &[7; 5000], offset);
        if is_synced {
            file.sync().expect("a sync succeeds");
        }
        let end = data_end();
        assert!((offset + 5000..=len(&*file)).contains(&end), "{offset}: {end}");
        assert!(read(&*file, end, 1 << 20).iter().all(|byte| *byte == 0), "{offset}");
    }
    // A read brings pages into memory that were never written; those below the end count.
    assert!(data_end() >= 705_001);
    file.set_len(1 << 21).expect("a file can grow");
    assert!((705_001..=1 << 21).contains(&data_end()));
    file.set_len(100_000).expect("a file can be cut");
    assert!((95_000..=100_000).contains(&data_end()));
}

fn a_cut_file_grows_again_with_zeros(fs: &dyn FileSystem, dir: &Path) {
    let file = create(fs, &dir.join("a"));
    write(&*file, &[7; 9000], 0);
    file.set_len(4099).expect("a file can be cut");
    assert_eq!(len(&*file), 4099);
    assert_eq!(read(&*file, 4090, 100), [7; 9]);
    file.set_len(9000).expect("a file can grow");
    assert_eq!(read(&*file, 4090, 9), [7; 9]);
    assert_eq!(read(&*file, 4099, 9000), vec![0; 4901]);
}

fn what_was_punched_reads_as_zero(fs: &dyn FileSystem, dir: &Path) {
    let file = create(fs, &dir.join("a"));
    write(&*file, &[7; 20_000], 0);
    if !file.punch(4096..12_288).expect("the range lies inside") {
        return;
    }
    assert_eq!(len(&*file), 20_000);
    assert_eq!(read(&*file, 4000, 200), [[7; 96].as_slice(), &[0; 104]].concat());
    assert_eq!(read(&*file, 12_280, 16), [[0; 8], [7; 8]].concat());
    file.allocate(4096..8192).expect("there is space");
    write(&*file, &[9; 10], 5000);
    file.sync().expect("a sync succeeds");
    assert_eq!(read(&*file, 4999, 12), [&[0][..], &[9; 10], &[0]].concat());
    file.punch(0..0).expect("nothing is asked for");
}

fn views_hold_what_was_written(fs: &dyn FileSystem, dir: &Path) {
    let file = create(fs, &dir.join("a"));
    let data: Vec<u8> = (0..20_000_u32).map(|i| (i % 251) as u8).collect();
    write(&*file, &data, 0);
    for range in [0..1, 0..20_000, 4095..4097, 777..777, 19_999..20_000] {
        let view = file.view(range.clone()).expect("the range lies inside");
        assert_eq!(&view[..], &data[range.start as usize..range.end as usize]);
        let mapped = file.view_mapped(range).expect("the range lies inside");
        assert!(mapped.is_none_or(|mapped| mapped[..] == view[..]));
    }
    let view = file.view(100..300).expect("the range lies inside");
    assert_eq!(&view.slice(10..20)[..], &data[110..120]);
    assert_eq!(&view.slice(50..60).clone().slice(5..6)[..], &data[155..156]);
    // Bytes of other ranges may be written while a view is held.
    write(&*file, b"new", 400);
    let later = file.view(398..404).expect("the range lies inside");
    assert_eq!(&later[2..5], b"new");
    assert_eq!(&view[..], &data[100..300]);
}

fn views_outlive_growth_removal_and_handles(fs: &dyn FileSystem, dir: &Path) {
    let path = dir.join("a");
    let file = create(fs, &path);
    write(&*file, b"first", 0);
    let first = file.view(0..5).expect("the range lies inside");
    // Beyond what one map covers, and across its border.
    let far = (64 << 20) - 3;
    write(&*file, b"second", far);
    let second = file.view(far..far + 6).expect("the range lies inside");
    let third = file.view(far + 3..far + 6).expect("the range lies inside");
    // A view that would have to be copied is refused, if no copy was asked for.
    assert!(file.view_mapped(far..far + 6).expect("the range lies inside").is_none());
    fs.remove(&path).expect("it exists");
    write(&*file, b"!", 5);
    drop(file);
    assert_eq!((&first[..], &second[..], &third[..]), (&b"first"[..], &b"second"[..], &b"ond"[..]));
}

fn views_beyond_the_end_are_refused(fs: &dyn FileSystem, dir: &Path) {
    let file = create(fs, &dir.join("a"));
    assert_eq!(kind(file.view(0..1)), Some(ErrorKind::UnexpectedEof));
    write(&*file, &[1; 100], 0);
    assert_eq!(kind(file.view(0..100)), None);
    assert_eq!(kind(file.view(0..101)), Some(ErrorKind::UnexpectedEof));
    file.set_len(50).expect("a file can be cut");
    assert_eq!(kind(file.view(0..51)), Some(ErrorKind::UnexpectedEof));
    assert_eq!(kind(file.view(0..50)), None);
}

fn a_map_ahead_shows_what_is_written_later(fs: &dyn FileSystem, dir: &Path) {
    let file = create(fs, &dir.join("a"));
    write(&*file, b"early", 0);
    let Some(map) = file.map_ahead(1 << 30).expect("a file can be mapped, or not") else { return };
    assert_eq!(map.len_bytes(), 1 << 30);
    assert_eq!(map.bytes(0..5), b"early");
    let far = 300 << 20;
    file.allocate(0..far + 4096).expect("there is room");
    assert_eq!(map.bytes(far..far + 4), [0; 4]);
    write(&*file, b"later", far);
    assert_eq!(map.bytes(far..far + 5), b"later");
    assert_eq!(map.bytes(0..5), b"early");
}

fn advice_changes_no_byte(fs: &dyn FileSystem, dir: &Path) {
    let file = create(fs, &dir.join("a"));
    write(&*file, &[7; 3 * 4096], 0);
    // Ranges that are empty, not aligned, or beyond the end are hints like others.
    for range in [0..0, 5..4097, 4096..1 << 20, 1 << 40..1 << 41] {
        file.will_need(range);
    }
    assert_eq!(read(&*file, 0, 3 * 4096), [7; 3 * 4096]);
    let Some(map) = file.map_ahead(1 << 30).expect("a file can be mapped, or not") else { return };
    for advice in [MapAdvice::Random, MapAdvice::Normal] {
        map.advise(advice);
        assert_eq!(map.bytes(0..3 * 4096), [7; 3 * 4096]);
    }
    for offset in [0, 5, 3 * 4096 - 1] {
        assert!(map.is_resident(offset), "byte {offset} was just read");
    }
}

fn a_temporary_file_has_no_name(fs: &dyn FileSystem, dir: &Path) {
    let files = [(); 2].map(|()| fs.open_temporary(&dir.join("a")).expect("it can be made"));
    assert!(fs.list(dir).expect("it exists").is_empty());
    files[0].allocate(0..8192).expect("there is room");
    write(&*files[0], b"first", 4096);
    write(&*files[1], b"second", 0);
    files[0].sync().expect("it can be synced");
    assert_eq!((files[0].len().ok(), read(&*files[0], 4096, 5)), (Some(8192), b"first".to_vec()));
    assert_eq!((files[1].len().ok(), read(&*files[1], 0, 6)), (Some(6), b"second".to_vec()));
    assert_eq!(kind(fs.open_temporary(&dir.join("none/a"))), Some(ErrorKind::NotFound));
}

fn memory_shows_the_temporary_file_that_it_is_put_on(fs: &dyn FileSystem, dir: &Path) {
    const UNIT: usize = 64 << 10;
    let memory = AnonymousMap::new(4 * UNIT).expect("there is memory");
    let file = fs.open_temporary(&dir.join("a")).expect("it can be made");
    write(&*file, &[1; UNIT], 0);
    write(&*file, &[2; UNIT], UNIT as u64);
    file.sync().expect("it can be synced");
    let is_put = file.remap(&memory, UNIT..2 * UNIT, UNIT as u64).expect("it is put on it, or not");
    assert_eq!(is_put, fs.can_remap());
    let byte = if is_put { 2 } else { 0 };
    assert_eq!(memory.bytes(0..UNIT), [0; UNIT]);
    assert_eq!(memory.bytes(UNIT..2 * UNIT), [byte; UNIT]);
    assert_eq!(memory.bytes(2 * UNIT..4 * UNIT), [0; 2 * UNIT]);
    // The memory keeps the file.
    drop(file);
    assert_eq!(memory.bytes(UNIT..2 * UNIT), [byte; UNIT]);
}

fn names_are_listed_in_order(fs: &dyn FileSystem, dir: &Path) {
    fs.create_dir_all(&dir.join("sub")).expect("a directory can be made");
    for name in ["b", "a", "c.log", "sub/inner"] {
        create(fs, &dir.join(name));
    }
    assert_eq!(fs.list(dir).expect("it exists"), ["a", "b", "c.log"]);
    assert_eq!(fs.list(&dir.join("sub")).expect("it exists"), ["inner"]);
    assert_eq!(kind(fs.list(&dir.join("none"))), Some(ErrorKind::NotFound));
}

fn rename_replaces_and_remove_removes(fs: &dyn FileSystem, dir: &Path) {
    let (a, b) = (dir.join("a"), dir.join("b"));
    write(&*create(fs, &a), b"new", 0);
    let old = create(fs, &b);
    write(&*old, b"old", 0);
    fs.rename(&a, &b).expect("it exists");
    fs.sync_dir(dir).expect("it exists");
    let now = fs.open(&b, OpenMode::Read).expect("it was renamed to this");
    assert_eq!(read(&*now, 0, 9), b"new");
    assert_eq!(read(&*old, 0, 9), b"old", "an open handle outlives its name");
    assert_eq!(kind(fs.rename(&a, &b)), Some(ErrorKind::NotFound));
    fs.rename(&b, &b).expect("a name may be given again");
    fs.remove(&b).expect("it exists");
    assert_eq!(kind(fs.remove(&b)), Some(ErrorKind::NotFound));
    assert_eq!(read(&*now, 0, 9), b"new");
    assert!(fs.list(dir).expect("it exists").is_empty());
}

fn directories_are_made_with_parents(fs: &dyn FileSystem, dir: &Path) {
    let deep = dir.join("x").join("y").join("z");
    fs.create_dir_all(&deep).expect("directories can be made");
    fs.create_dir_all(&deep).expect("existing ones are no error");
    fs.create_dir_all(&dir.join("x").join("w")).expect("a sibling can be made");
    create(fs, &deep.join("file"));
    fs.sync_dir(&deep).expect("it exists");
    assert_eq!(kind(fs.sync_dir(&dir.join("none"))), Some(ErrorKind::NotFound));
    assert!(fs.create_dir_all(&deep.join("file").join("below")).is_err(), "a directory in a file");
}

fn locks_exclude_until_dropped(fs: &dyn FileSystem, dir: &Path) {
    let (path, other) = (dir.join("lock"), dir.join("other"));
    let guard = fs.lock(&path).expect("nobody holds it");
    assert_eq!(kind(fs.lock(&path)), Some(ErrorKind::WouldBlock));
    let _other = fs.lock(&other).expect("nobody holds the other");
    drop(guard);
    let _again = fs.lock(&path).expect("it was given up");
    assert_eq!(fs.list(dir).expect("it exists"), ["lock", "other"]);
}

fn many_threads_share_a_file(fs: &Arc<dyn FileSystem>, dir: &Path) {
    let file = create(fs.as_ref(), &dir.join("a"));
    thread::scope(|scope| {
        for who in 0..4_u64 {
            let file = &file;
            scope.spawn(move || {
                for round in 0..50 {
                    let at = (round * 4 + who) * 1000;
                    write(&**file, &[who as u8 + 1; 1000], at);
                    assert_eq!(read(&**file, at, 1000), [who as u8 + 1; 1000]);
                    let view = file.view(at..at + 1000).expect("just written");
                    assert_eq!(&view[..], [who as u8 + 1; 1000]);
                }
                file.sync().expect("a sync succeeds");
            });
        }
    });
    assert_eq!(len(&*file), 200_000);
}
