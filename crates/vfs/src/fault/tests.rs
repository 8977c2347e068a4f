//! Tests of the faulty disk: the data that it keeps and loses, and the calls that it refuses.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};

use super::*;
use crate::AnonymousMap;

fn path(name: &str) -> std::path::PathBuf {
    Path::new("/d").join(name)
}

fn disk() -> FaultFs {
    let fs = FaultFs::new(1);
    fs.create_dir_all(Path::new("/d")).unwrap();
    fs
}

fn create(fs: &FaultFs, name: &str) -> Arc<dyn File> {
    fs.open(&path(name), OpenMode::CreateNew).unwrap()
}

fn content(fs: &FaultFs, name: &str) -> Vec<u8> {
    let file = fs.open(&path(name), OpenMode::Read).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// A disk with one durable file `a` of eight sectors of ones.
fn disk_with_file() -> (FaultFs, Arc<dyn File>) {
    let fs = disk();
    let file = create(&fs, "a");
    file.write_at(&[1; 4096], 0).unwrap();
    file.sync().unwrap();
    fs.sync_dir(Path::new("/d")).unwrap();
    (fs, file)
}

#[test]
fn synced_bytes_and_names_survive() {
    for seed in 0..100 {
        let (fs, file) = disk_with_file();
        file.write_at(&[2; 700], 100).unwrap();
        file.sync().unwrap();
        fs.power_loss(seed);
        let mut want = vec![1; 4096];
        want[100..800].fill(2);
        assert_eq!(content(&fs, "a"), want);
    }
}

#[test]
fn unsynced_sectors_are_kept_or_lost_each_by_itself() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..300 {
        let (fs, file) = disk_with_file();
        file.write_at(&[2; 2048], 0).unwrap();
        fs.power_loss(seed);
        let bytes = content(&fs, "a");
        assert_eq!(bytes[2048..], [1; 2048], "sectors that were not written");
        let sectors: Vec<u8> = bytes[..2048]
            .chunks(512)
            .map(|sector| {
                assert!(sector.iter().all(|b| *b == sector[0]), "a sector is never torn");
                sector[0]
            })
            .collect();
        outcomes.insert(sectors);
    }
    assert_eq!(outcomes.len(), 16, "each of the four sectors both ways: {outcomes:?}");
}

#[test]
fn writes_are_lost_in_any_order_across_files_and_within_one_write() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..400 {
        let (fs, file) = disk_with_file();
        let other = create(&fs, "b");
        other.write_at(&[1; 512], 0).unwrap();
        other.sync().unwrap();
        fs.sync_dir(Path::new("/d")).unwrap();
        // One write of three parts that meet within sectors, then one to the other file.
        let parts = [[2; 700].as_slice(), &[2; 600], &[2; 236]].map(io::IoSlice::new);
        file.write_all_at(&parts, 0).unwrap();
        other.write_at(&[2; 512], 0).unwrap();
        fs.power_loss(seed);
        let (a, b) = (content(&fs, "a"), content(&fs, "b"));
        outcomes.insert([a[0], a[600], a[1100], b[0]]);
    }
    assert_eq!(outcomes.len(), 16, "each sector of both files both ways: {outcomes:?}");
}

#[test]
fn a_sector_may_hold_what_it_held_between_two_writes() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..200 {
        let (fs, file) = disk_with_file();
        file.write_at(&[2; 100], 0).unwrap();
        file.write_at(&[3; 1000], 100).unwrap();
        fs.power_loss(seed);
        let bytes = content(&fs, "a");
        outcomes.insert([bytes[0], bytes[100], bytes[600]]);
    }
    let first = [[1, 1], [2, 1], [2, 3]];
    let want = first.iter().flat_map(|[a, b]| [[*a, *b, 1], [*a, *b, 3]]);
    assert_eq!(outcomes, want.collect(), "the second write is never there without the first");
}

#[test]
fn an_append_is_lost_kept_or_cut() {
    let mut lens = BTreeSet::new();
    for seed in 0..300 {
        let (fs, file) = disk_with_file();
        file.write_at(&[2; 1024], 4096).unwrap();
        fs.power_loss(seed);
        let bytes = content(&fs, "a");
        assert_eq!(bytes[..4096], [1; 4096]);
        assert!(bytes[4096..].iter().all(|b| *b == 0 || *b == 2), "neither zeros nor the append");
        lens.insert(bytes.len());
    }
    assert!(lens.contains(&4096), "lost");
    assert!(lens.contains(&5120), "kept");
    assert!(lens.len() > 2, "cut somewhere between");
}

#[test]
fn an_unsynced_cut_is_undone_with_its_bytes() {
    let mut lens = BTreeSet::new();
    for seed in 0..100 {
        let (fs, file) = disk_with_file();
        file.set_len(1024).unwrap();
        fs.power_loss(seed);
        let bytes = content(&fs, "a");
        assert!(bytes.iter().all(|b| *b == 1), "the bytes that were cut off are there again");
        lens.insert(bytes.len());
    }
    assert_eq!(lens, BTreeSet::from([1024, 4096]));
}

#[test]
fn bytes_cut_off_and_grown_again_are_zero_or_what_they_were() {
    for seed in 0..200 {
        let (fs, file) = disk_with_file();
        file.set_len(512).unwrap();
        file.write_at(&[3; 512], 2048).unwrap();
        fs.power_loss(seed);
        let bytes = content(&fs, "a");
        assert_eq!(bytes[..512], [1; 512]);
        assert!(bytes[512..].iter().all(|b| [0, 1, 3].contains(b)));
    }
}

#[test]
fn names_are_lost_without_a_sync_of_the_directory() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..200 {
        let (fs, file) = disk_with_file();
        file.write_at(b"x", 0).unwrap();
        file.sync().unwrap();
        let fresh = create(&fs, "fresh");
        fresh.sync().unwrap();
        fs.rename(&path("a"), &path("b")).unwrap();
        fs.power_loss(seed);
        let names = fs.list(Path::new("/d")).unwrap();
        let moved = names.contains(&"b".to_owned());
        assert_ne!(moved, names.contains(&"a".to_owned()), "a rename is whole: {names:?}");
        assert_eq!(content(&fs, if moved { "b" } else { "a" })[0], b'x');
        outcomes.insert(names);
    }
    assert_eq!(outcomes.len(), 4, "each change both ways: {outcomes:?}");
}

#[test]
fn a_removed_file_may_come_back_whole() {
    let mut came_back = BTreeSet::new();
    for seed in 0..50 {
        let (fs, file) = disk_with_file();
        drop(file);
        fs.remove(&path("a")).unwrap();
        fs.power_loss(seed);
        let names = fs.list(Path::new("/d")).unwrap();
        if !names.is_empty() {
            assert_eq!(content(&fs, "a"), [1; 4096]);
        }
        came_back.insert(names.len());
    }
    assert_eq!(came_back, BTreeSet::from([0, 1]));
}

#[test]
fn handles_and_locks_die_with_the_power() {
    let (fs, file) = disk_with_file();
    let lock = fs.lock(&path("lock")).unwrap();
    fs.sync_dir(Path::new("/d")).unwrap();
    fs.power_loss(0);
    assert!(file.read_at(&mut [0; 1], 0).is_err());
    assert!(file.write_at(b"x", 0).is_err());
    assert!(file.sync().is_err());
    assert!(file.view(0..1).is_err());
    let again = fs.lock(&path("lock")).unwrap();
    drop(lock);
    assert!(fs.lock(&path("lock")).is_err(), "a dead guard gave up a living lock");
    drop(again);
    drop(file);
    assert_eq!(content(&fs, "a").len(), 4096);
}

#[test]
fn the_power_goes_in_the_middle_of_the_operation_told() {
    let mut last_write_seen = BTreeSet::new();
    for seed in 0..50 {
        let (fs, file) = disk_with_file();
        fs.cut_power_after(3);
        file.write_at(&[2; 512], 0).unwrap();
        file.sync().unwrap();
        assert!(file.write_at(&[3; 512], 512).is_err());
        assert!(file.sync().is_err());
        assert!(file.read_at(&mut [0; 1], 0).is_err());
        assert!(fs.open(&path("a"), OpenMode::Read).is_err());
        assert!(fs.list(Path::new("/d")).is_err());
        let operations = fs.operations();
        assert!(fs.remove(&path("a")).is_err());
        assert_eq!(fs.operations(), operations, "nothing happens while the power is gone");
        fs.power_loss(seed);
        let bytes = content(&fs, "a");
        assert_eq!(bytes[..512], [2; 512]);
        last_write_seen.insert(bytes[512]);
    }
    assert_eq!(last_write_seen, BTreeSet::from([1, 3]), "the last write may have come or not");
}

#[test]
fn a_failed_sync_may_drop_what_a_later_one_does_not_bring_back() {
    let syncs: [fn(&dyn File) -> io::Result<()>; 2] =
        [|file| file.sync(), |file| file.write_back(0..512)];
    for sync in syncs {
        assert_eq!(outcomes_of_a_failed(sync), BTreeSet::from([0, 2]));
    }
}

/// The bytes that may be there after this failed for what was written, and a later sync did not.
fn outcomes_of_a_failed(sync: fn(&dyn File) -> io::Result<()>) -> BTreeSet<u8> {
    let mut outcomes = BTreeSet::new();
    for seed in 0..50 {
        let fs = FaultFs::new(seed);
        fs.create_dir_all(Path::new("/d")).unwrap();
        let file = create(&fs, "a");
        fs.sync_dir(Path::new("/d")).unwrap();
        file.write_at(&[2; 512], 0).unwrap();
        fs.fail_syncs(true);
        assert!(sync(&*file).is_err());
        fs.fail_syncs(false);
        file.sync().unwrap();
        fs.power_loss(seed);
        let bytes = content(&fs, "a");
        assert_eq!(bytes.len(), 512);
        outcomes.insert(bytes[0]);
    }
    outcomes
}

#[test]
fn refused_writes_come_in_part_or_not_at_all() {
    let mut written = BTreeSet::new();
    for seed in 0..200 {
        let fs = FaultFs::new(seed);
        fs.create_dir_all(Path::new("/d")).unwrap();
        let file = create(&fs, "a");
        fs.fail_writes(true);
        assert!(file.write_at(&[2; 2048], 0).is_err());
        assert!(file.set_len(9).is_err());
        assert!(fs.remove(&path("a")).is_err());
        assert!(fs.open(&path("b"), OpenMode::CreateNew).is_err());
        fs.fail_writes(false);
        written.insert(content(&fs, "a").len());
    }
    assert_eq!(written, BTreeSet::from([0, 512, 1024, 1536, 2048]));
}

#[test]
fn refused_reads_change_nothing() {
    let (fs, file) = disk_with_file();
    let before = content(&fs, "a");
    let view = file.view(0..before.len() as u64).unwrap();
    fs.fail_reads(true);
    assert!(file.read_at(&mut [0; 8], 0).is_err());
    assert!(file.view(0..8).is_err());
    file.write_at(&before, 0).unwrap();
    assert_eq!(&view[..], &before[..]);
    fs.fail_reads(false);
    assert_eq!(content(&fs, "a"), before);
}

#[test]
fn a_full_disk_says_so_and_keeps_what_was_reserved() {
    let fs = disk();
    fs.set_capacity(Some(16 << 10));
    let file = create(&fs, "a");
    file.allocate(0..8 << 10).unwrap();
    let other = create(&fs, "b");
    let error = other.write_at(&[2; 12 << 10], 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    let error = other.allocate(0..12 << 10).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    file.write_at(&[1; 8 << 10], 0).unwrap();
    drop(other);
    fs.remove(&path("b")).unwrap();
    fs.sync_dir(Path::new("/d")).unwrap();
    file.write_at(&[1; 8 << 10], 8 << 10).unwrap();
    assert!(file.write_at(&[1], 16 << 10).is_err());
    file.write_at(&[3; 16 << 10], 0).unwrap();
    file.set_len(0).unwrap();
    create(&fs, "c").write_at(&[4; 16 << 10], 0).unwrap();
}

#[test]
fn rot_stays() {
    let (fs, file) = disk_with_file();
    fs.flip_bit(&path("a"), 17, 3);
    let mut byte = [0];
    file.read_at(&mut byte, 17).unwrap();
    assert_eq!(byte, [1 ^ 8]);
    fs.power_loss(0);
    assert_eq!(content(&fs, "a")[17], 1 ^ 8);
}

#[test]
fn stats_count_what_was_asked_for() {
    let (fs, file) = disk_with_file();
    let before = fs.stats();
    file.write_at(&[2; 10], 600).unwrap();
    file.sync().unwrap();
    file.sync().unwrap();
    file.read_at(&mut [0; 20], 0).unwrap();
    let after = fs.stats();
    assert_eq!(after.writes - before.writes, 1);
    assert_eq!(after.bytes_written - before.bytes_written, 10);
    assert_eq!(after.syncs - before.syncs, 2);
    assert_eq!(after.bytes_synced - before.bytes_synced, 512);
    assert_eq!(after.bytes_read - before.bytes_read, 20);
}

#[test]
fn files_without_name_and_handle_are_forgotten() {
    let fs = disk();
    for _ in 0..100 {
        create(&fs, "a").write_at(&[1; 4096], 0).unwrap();
        fs.remove(&path("a")).unwrap();
        fs.sync_dir(Path::new("/d")).unwrap();
    }
    assert_eq!(fs.disk.lock().inode_count(), 0);
}

#[test]
fn a_temporary_file_goes_with_the_power_and_memory_on_it_stays() {
    let fs = disk();
    let file = fs.open_temporary(&path("a")).unwrap();
    file.write_at(&[1; 8192], 0).unwrap();
    file.sync().unwrap();
    let memory = AnonymousMap::new(8192).unwrap();
    assert_eq!(file.remap(&memory, 0..8192, 0).unwrap(), fs.can_remap());
    assert!(file.remap(&memory, 0..8192, 4096).is_err(), "the file ends before");
    let apart = fs.crashed(1);
    assert_eq!(apart.disk.lock().inode_count(), 0);
    assert_eq!(apart.list(Path::new("/d")).unwrap(), [""; 0]);
    // Later writes are seen, as of any mapped file.
    file.write_at(&[2; 4096], 0).unwrap();
    let seen = || [memory.bytes(0..1)[0], memory.bytes(4096..4097)[0]];
    assert_eq!(seen(), if fs.can_remap() { [2, 1] } else { [0, 0] });
    fs.power_loss(2);
    assert!(file.write_at(&[3], 0).is_err() && file.remap(&memory, 0..4096, 0).is_err());
    assert_eq!(seen(), if fs.can_remap() { [2, 1] } else { [0, 0] });
    drop(file);
    assert_eq!(fs.disk.lock().inode_count(), 0);
}

#[test]
fn faults_of_temporary_files_are_none_of_other_files() {
    for fault in TemporaryFault::ALL {
        let (fs, named) = disk_with_file();
        let memory = AnonymousMap::new(4096).unwrap();
        let attempt = || {
            let file = fs.open_temporary(&path("t"))?;
            file.allocate(0..4096)?;
            file.write_at(&[1; 4096], 0)?;
            file.sync()?;
            file.remap(&memory, 0..4096, 0)
        };
        fs.fail_temporary(Some(fault));
        let error = attempt().unwrap_err();
        assert_eq!(error.kind() == ErrorKind::StorageFull, fault == TemporaryFault::NoSpace);
        assert_eq!(memory.bytes(0..4096), [0; 4096]);
        named.write_at(&[2; 4096], 0).unwrap();
        named.allocate(0..1 << 20).unwrap();
        named.sync().unwrap();
        fs.fail_temporary(None);
        assert_eq!(attempt().unwrap(), fs.can_remap());
    }
}

/// Random writes, cuts, reservations, syncs and power losses against the simplest model: for each
/// byte the durable value and those written since.
#[test]
fn any_order_of_calls_keeps_the_promise() {
    for seed in 0..60 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let fs = disk();
        let mut file = create(&fs, "a");
        fs.sync_dir(Path::new("/d")).unwrap();
        let mut visible: Vec<u8> = Vec::new();
        // A set of the values 0 to 63 for each byte.
        let mut possible = vec![1_u64; 20_000];
        for step in 0..200_u64 {
            match rng.u8(0..10) {
                0..=4 => {
                    let at = rng.usize(0..15_000);
                    let count = rng.usize(0..3_000);
                    let byte = rng.u8(1..64);
                    file.write_at(&vec![byte; count], at as u64).unwrap();
                    if count > 0 {
                        visible.resize(visible.len().max(at + count), 0);
                        visible[at..at + count].fill(byte);
                    }
                }
                5 => {
                    let len = rng.usize(0..15_000);
                    file.set_len(len as u64).unwrap();
                    visible.resize(len, 0);
                }
                6 => {
                    let end = rng.usize(1..15_000);
                    file.allocate(0..end as u64).unwrap();
                    visible.resize(visible.len().max(end), 0);
                }
                7 | 8 => {
                    file.sync().unwrap();
                    possible.fill(0);
                }
                _ => {
                    fs.power_loss(seed * 1000 + step);
                    file = fs.open(&path("a"), OpenMode::Write).unwrap();
                    visible = content(&fs, "a");
                    for (at, byte) in visible.iter().enumerate() {
                        assert!(possible[at] & (1 << byte) != 0, "seed {seed} byte {at} is {byte}");
                    }
                    possible.fill(0);
                }
            }
            for (at, seen) in possible.iter_mut().enumerate() {
                *seen |= 1 << visible.get(at).copied().unwrap_or(0);
            }
            assert_eq!(content(&fs, "a"), visible, "seed {seed} step {step}");
        }
    }
}

#[test]
fn the_same_seeds_give_the_same_disk() {
    let run = |seed| {
        let (fs, file) = disk_with_file();
        file.write_at(&[2; 3000], 500).unwrap();
        create(&fs, "b");
        fs.fail_writes(true);
        file.write_at(&[3; 3000], 0).unwrap_err();
        fs.power_loss(seed);
        (content(&fs, "a"), fs.list(Path::new("/d")).unwrap(), fs.operations())
    };
    for seed in 0..20 {
        assert_eq!(run(seed), run(seed));
    }
}

#[test]
fn a_disk_that_crashed_apart_is_as_this_one_would_be_and_this_one_goes_on() {
    for seed in 0..50 {
        let (fs, file) = disk_with_file();
        file.write_at(&[2; 2048], 0).unwrap();
        let apart = fs.crashed(seed);
        file.write_at(&[3; 4096], 0).unwrap();
        assert_eq!(content(&fs, "a"), [3; 4096]);
        let (again, file) = disk_with_file();
        file.write_at(&[2; 2048], 0).unwrap();
        again.power_loss(seed);
        assert_eq!(content(&apart, "a"), content(&again, "a"));
        let file = apart.open(&path("a"), OpenMode::Write).unwrap();
        file.write_at(&[4; 4096], 0).unwrap();
        assert_eq!((content(&fs, "a"), content(&apart, "a")), (vec![3; 4096], vec![4; 4096]));
    }
}

#[test]
fn what_is_below_a_directory_is_replaced_durably() {
    let (one, other) = (FaultFs::new(1), FaultFs::new(2));
    for (fs, text) in [(&one, b"one"), (&other, b"two")] {
        for dir in ["/d/a", "/d/b"] {
            fs.create_dir_all(Path::new(dir)).unwrap();
            let file = fs.open(&Path::new(dir).join("file"), OpenMode::CreateNew).unwrap();
            file.write_at(text, 0).unwrap();
        }
    }
    let read = |dir: &str| {
        let mut buf = [0; 3];
        let file = one.open(&Path::new(dir).join("file"), OpenMode::Read)?;
        file.read_at(&mut buf, 0).map(|_| buf)
    };
    one.replace_below(Path::new("/d/a"), &other);
    one.power_loss(3);
    assert_eq!(read("/d/a").unwrap(), *b"two");
    one.replace_below(Path::new("/d/a"), &FaultFs::new(0));
    one.power_loss(4);
    assert!(read("/d/a").is_err());
}
