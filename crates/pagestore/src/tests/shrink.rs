//! The file gets shorter, and loses nothing when the power goes meanwhile.

use std::time::Duration;

use flotilla_vfs::fault::FaultFs;

use super::{disk, open, try_open};
use crate::{Error, PageStore, Stats};

/// Keys and the lengths of their values: what is durable, and what may be if the last checkpoint
/// has failed.
type Keys = [Vec<(u32, usize)>; 2];

fn put(store: &PageStore, key: u32, len: usize) {
    let mut txn = store.write().unwrap();
    txn.tree("t").unwrap().put(&key.to_be_bytes(), &vec![key as u8; len]).unwrap();
    txn.publish().unwrap();
}

fn delete(store: &PageStore, key: u32) {
    let mut txn = store.write().unwrap();
    assert!(txn.tree("t").unwrap().delete(&key.to_be_bytes()).unwrap());
    txn.publish().unwrap();
}

/// A checkpoint, and all that it finds to be spare goes back to the file system.
fn checkpoint(store: &PageStore) -> Result<(), Error> {
    store.checkpoint()?;
    while store.trim_punch()? {}
    Ok(())
}

fn assert_there(store: &PageStore, keys: &[(u32, usize)]) {
    let snapshot = store.read();
    let tree = snapshot.tree("t").unwrap().unwrap();
    assert_eq!(tree.len() as usize, keys.len());
    for &(key, len) in keys {
        let value = tree.get(&key.to_be_bytes()).unwrap().unwrap();
        assert!(value.len() == len && value.iter().all(|&byte| byte == key as u8));
    }
}

/// Writes the leaf, the catalogue and the directory anew, until they lie low.
fn come_down(store: &PageStore) {
    for _ in 0..4 {
        put(store, 0, 100);
        store.checkpoint().unwrap();
    }
    store.checkpoint().unwrap();
}

/// Leaves one short value in a file that was long, of which nothing was cut off yet.
fn leave_tail(store: &PageStore) -> Stats {
    put(store, 0, 100);
    put(store, 1, 5 << 20);
    store.checkpoint().unwrap();
    delete(store, 1);
    come_down(store);
    let stats = store.stats();
    assert!(stats.file_bytes > 5 << 20 && stats.trim_punch.trimmed_bytes == 0, "{stats:?}");
    assert!(stats.trim_punch.waiting_bytes > 4 << 20, "{stats:?}");
    stats
}

/// As [`come_down`], and what is spare goes back to the file system.
fn settle(store: &PageStore) {
    come_down(store);
    checkpoint(store).unwrap();
}

#[test]
fn free_tail_is_cut_off() {
    let fs = disk(1);
    let store = open(&fs);
    put(&store, 0, 100);
    put(&store, 1, 100_000);
    checkpoint(&store).unwrap();
    let small = store.stats();
    for key in 2..6 {
        put(&store, key, 3 << 20);
    }
    checkpoint(&store).unwrap();
    let reader = store.read();
    for key in 2..6 {
        delete(&store, key);
    }
    checkpoint(&store).unwrap();
    checkpoint(&store).unwrap();
    let stats = store.stats();
    assert!(stats.file_bytes > 12 << 20, "the reader still sees it: {stats:?}");
    assert_eq!(stats.trim_punch.trimmed_bytes, 0);
    assert_eq!(reader.tree("t").unwrap().unwrap().len(), 6);
    drop(reader);
    settle(&store);
    let stats = store.stats();
    assert!(stats.file_bytes <= small.file_bytes + (128 << 10), "{stats:?} {small:?}");
    assert!(stats.trim_punch.trimmed_bytes > 11 << 20);
    let before = fs.operations();
    checkpoint(&store).unwrap();
    assert_eq!(fs.operations(), before, "there is nothing more to do");
    store.check().unwrap();
    drop(store);
    let store = open(&fs);
    assert_eq!(store.stats().file_bytes, stats.file_bytes);
    assert_there(&store, &[(0, 100), (1, 100_000)]);
    put(&store, 7, 1 << 20);
    checkpoint(&store).unwrap();
    assert_there(&store, &[(0, 100), (1, 100_000), (7, 1 << 20)]);
    store.check().unwrap();
}

#[test]
fn whole_regions_are_cut_off() {
    let store = open(&disk(1));
    put(&store, 0, 100);
    // More than a group of 126.75 MiB, so that bitmaps of the second one come and go.
    for key in 1..11 {
        put(&store, key, 15 << 20);
        checkpoint(&store).unwrap();
    }
    store.check().unwrap();
    for key in (1..11).rev() {
        delete(&store, key);
        checkpoint(&store).unwrap();
        store.check().unwrap();
    }
    settle(&store);
    let stats = store.stats();
    assert!(stats.file_bytes < 1 << 20, "{stats:?}");
    put(&store, 1, 15 << 20);
    checkpoint(&store).unwrap();
    assert_there(&store, &[(0, 100), (1, 15 << 20)]);
    store.check().unwrap();
}

/// Grows and shrinks until something fails or the script is done.
fn breathe(store: &PageStore, keys: &mut Keys) -> Result<(), Error> {
    for round in 0..3 {
        for (from, len) in [(round * 10, 600_000), (round * 10 + 5, 300_000)] {
            put(store, from, len);
            put(store, from + 1, 5000);
            keys[1].extend([(from, len), (from + 1, 5000)]);
            checkpoint(store)?;
            keys[0] = keys[1].clone();
        }
        let long: Vec<u32> = keys[1].iter().filter(|key| key.1 > 5000).map(|key| key.0).collect();
        for key in long {
            delete(store, key);
            keys[1].retain(|other| other.0 != key);
        }
        checkpoint(store)?;
        keys[0] = keys[1].clone();
        // Nothing has changed but that the tail is free.
        checkpoint(store)?;
    }
    Ok(())
}

fn assert_one_of(fs: &FaultFs, keys: &Keys) {
    let store = open(fs);
    store.check().unwrap();
    let count = store.read().tree("t").unwrap().map_or(0, |tree| tree.len()) as usize;
    match keys.iter().find(|keys| keys.len() == count) {
        Some(keys) if count > 0 => assert_there(&store, keys),
        found => assert!(found.is_some(), "{count} keys"),
    }
    // The rest of the file can be used.
    put(&store, 1000, 700_000);
    checkpoint(&store).unwrap();
    store.check().unwrap();
}

/// Does `script` again and again, and lets the power go at each operation of the disk in turn.
fn power_goes_during(script: impl Fn(&PageStore, &mut Keys) -> Result<(), Error>) {
    for cut in 1.. {
        let fs = disk(cut);
        fs.cut_power_after(cut);
        let mut keys = Keys::default();
        let done = try_open(&fs).is_ok_and(|store| script(&store, &mut keys).is_ok());
        fs.power_loss(cut);
        assert_one_of(&fs, &keys);
        if done {
            break;
        }
    }
}

#[test]
fn power_goes_while_the_file_shrinks() {
    power_goes_during(|store, keys| {
        breathe(store, keys)?;
        assert!(store.stats().trim_punch.trimmed_bytes > 600_000, "{:?}", store.stats());
        Ok(())
    });
}

#[test]
fn pieces_are_small_and_a_checkpoint_gives_none() {
    let fs = disk(1);
    let store = open(&fs);
    let waiting = leave_tail(&store).trim_punch.waiting_bytes;
    let mut pieces = Vec::new();
    loop {
        let (before, operations) = (store.stats().file_bytes, fs.operations());
        if !store.trim_punch().unwrap() {
            break;
        }
        assert_eq!(fs.operations(), operations + 1);
        pieces.push(before - store.stats().file_bytes);
    }
    assert!(pieces.len() >= 5 && pieces.iter().all(|&bytes| bytes <= 1 << 20), "{pieces:?}");
    assert_eq!(pieces.iter().sum::<u64>(), waiting);
    assert_eq!(store.stats().trim_punch.waiting_bytes, 0);
    // The file grows again while it is being cut off.
    put(&store, 2, 4 << 20);
    store.checkpoint().unwrap();
    delete(&store, 2);
    come_down(&store);
    assert!(store.trim_punch().unwrap());
    put(&store, 3, 6 << 20);
    store.checkpoint().unwrap();
    assert!(!store.trim_punch().unwrap(), "all of it is needed");
    assert_there(&store, &[(0, 100), (3, 6 << 20)]);
    store.check().unwrap();
}

#[test]
fn what_a_builder_has_is_not_cut_off() {
    let fs = disk(1);
    let store = open(&fs);
    let durable_end = leave_tail(&store).span_bytes;
    // It writes beyond the end that the durable root names, where the file is still to be cut off.
    let mut builder = store.tree_builder();
    for key in 0..20_000_u32 {
        builder.push(&key.to_be_bytes(), &[key as u8; 100]).unwrap();
        if key == 12_000 {
            assert!(store.check().unwrap().reservation_bytes > 1 << 20);
            while store.trim_punch().unwrap() {}
        }
    }
    let built = builder.finish().unwrap();
    while store.trim_punch().unwrap() {}
    let stats = store.stats();
    assert!(stats.span_bytes > durable_end + (2 << 20), "{stats:?}");
    assert!(stats.file_bytes >= stats.span_bytes, "{stats:?}");
    assert!(stats.trim_punch.trimmed_bytes > 1 << 20, "{stats:?}");
    let mut txn = store.write().unwrap();
    txn.tree("built").unwrap().ingest(b"", None, built).unwrap();
    txn.publish().unwrap();
    // Pages that are published and in no durable root stay as well.
    while store.trim_punch().unwrap() {}
    store.checkpoint().unwrap();
    drop(store);
    fs.power_loss(1);
    let store = open(&fs);
    store.check().unwrap();
    assert_there(&store, &[(0, 100)]);
    let tree = store.read().tree("built").unwrap().unwrap();
    for key in 0..20_000_u32 {
        assert_eq!(tree.get(&key.to_be_bytes()).unwrap().unwrap(), [key as u8; 100]);
    }
}

#[test]
fn what_a_snapshot_sees_is_not_cut_off() {
    let fs = disk(1);
    let store = open(&fs);
    put(&store, 0, 100);
    for key in 1..4 {
        put(&store, key, 2 << 20);
    }
    store.checkpoint().unwrap();
    let reader = store.read();
    for key in 1..4 {
        delete(&store, key);
    }
    come_down(&store);
    while store.trim_punch().unwrap() {}
    let tree = reader.tree("t").unwrap().unwrap();
    for key in 1..4_u32 {
        // No snapshot has read it before, so it comes from the file.
        let value = tree.get(&key.to_be_bytes()).unwrap().unwrap();
        assert!(value.len() == 2 << 20 && value.iter().all(|&byte| byte == key as u8));
    }
    assert!(store.stats().file_bytes > 6_300_000, "{:?}", store.stats());
    store.check().unwrap();
    drop((tree, reader));
    settle(&store);
    assert!(store.stats().trim_punch.trimmed_bytes > 5_500_000, "{:?}", store.stats());
}

/// Cuts some of the file off, grows it, and cuts it off, piece by piece between other things.
fn interleave(store: &PageStore, keys: &mut Keys) -> Result<(), Error> {
    put(store, 0, 100);
    keys[1].push((0, 100));
    let durable = |store: &PageStore, keys: &mut Keys| {
        store.checkpoint()?;
        keys[0] = keys[1].clone();
        store.check().map(|_| ())
    };
    for round in 1..4_u32 {
        for key in [round, round + 10] {
            put(store, key, 2_600_000);
            keys[1].push((key, 2_600_000));
        }
        durable(store, keys)?;
        for key in [round, round + 10] {
            delete(store, key);
            keys[1].pop();
        }
        for _ in 0..4 {
            put(store, 0, 100);
            durable(store, keys)?;
        }
        // In between, it is longer than the last checkpoint says.
        for _ in 0..round {
            store.trim_punch()?;
        }
    }
    let waiting = store.stats().trim_punch.waiting_bytes;
    assert!(waiting > 1 << 20, "{waiting}");
    put(store, 20, 1_000_000);
    keys[1].push((20, 1_000_000));
    durable(store, keys)?;
    while store.trim_punch()? {}
    store.check().map(|_| ())
}

#[test]
fn power_goes_between_two_pieces() {
    power_goes_during(interleave);
}

/// Gives long values up in the middle of the file, over so many checkpoints that they become holes,
/// and uses the holes again.
fn punch(store: &PageStore, keys: &mut Keys) -> Result<(), Error> {
    for key in 0..6 {
        put(store, key, 1_300_000);
        put(store, key + 100, 2000);
        keys[1].extend([(key, 1_300_000), (key + 100, 2000)]);
    }
    checkpoint(store)?;
    keys[0] = keys[1].clone();
    for key in [1, 3] {
        delete(store, key);
        keys[1].retain(|other| other.0 != key);
    }
    for round in 0..18 {
        put(store, 200 + round, 100);
        keys[1].push((200 + round, 100));
        checkpoint(store)?;
        keys[0] = keys[1].clone();
    }
    assert!(store.stats().trim_punch.punched_bytes > 2_000_000, "{:?}", store.stats());
    put(store, 1, 1_200_000);
    keys[1].push((1, 1_200_000));
    checkpoint(store)?;
    keys[0] = keys[1].clone();
    Ok(())
}

#[test]
fn long_free_runs_become_holes_and_are_used_again() {
    let fs = disk(1);
    let store = open(&fs);
    let mut keys = Keys::default();
    punch(&store, &mut keys).unwrap();
    store.check().unwrap();
    let stats = store.stats();
    assert!(
        stats.trim_punch.hole_bytes > 1_000_000 && stats.trim_punch.hole_bytes < 1_500_000,
        "{stats:?}"
    );
    assert!(stats.trim_punch.hole_bytes <= stats.free_bytes);
    drop(store);
    let store = open(&fs);
    assert!(
        store.stats().trim_punch.hole_bytes >= stats.trim_punch.hole_bytes,
        "its region is known to have holes"
    );
    assert_there(&store, &keys[0]);
    store.check().unwrap();
}

#[test]
fn full_disk_is_found_before_a_hole_is_written() {
    for reopen in [false, true] {
        let fs = disk(1);
        let mut store = open(&fs);
        let mut keys = Keys::default();
        punch(&store, &mut keys).unwrap();
        let capacity = store.stats().file_bytes - store.stats().trim_punch.punched_bytes / 2;
        if reopen {
            drop(store);
            store = open(&fs);
        }
        let durable = store.durable();
        // Another owner has all units that were given back.
        fs.set_capacity(Some(capacity));
        put(&store, 3, 1_200_000);
        assert!(matches!(store.checkpoint(), Err(Error::NoSpace)), "reopened: {reopen}");
        assert_eq!(store.durable(), durable);
        store.check().unwrap();
        fs.set_capacity(None);
        checkpoint(&store).unwrap();
        keys[0].push((3, 1_200_000));
        assert_there(&store, &keys[0]);
        store.check().unwrap();
    }
}

#[test]
fn what_is_spare_makes_room_on_a_full_disk() {
    let fs = disk(1);
    let store = open(&fs);
    for key in 0..6 {
        put(&store, key, 1_300_000);
        put(&store, key + 100, 2000);
    }
    store.checkpoint().unwrap();
    for key in [1, 3] {
        delete(&store, key);
    }
    for round in 0..18 {
        put(&store, 200 + round, 100);
        store.checkpoint().unwrap();
    }
    let stats = store.stats();
    assert!(stats.trim_punch.waiting_bytes > 2_000_000, "{stats:?}");
    fs.set_capacity(Some(stats.file_bytes));
    // Longer than any run that is free.
    put(&store, 7, 1_500_000);
    assert!(matches!(store.checkpoint(), Err(Error::NoSpace)));
    let mut times = (1..).map(|i| i * Duration::from_secs(10_000));
    let last = store.read().txid();
    let mut steps = 0;
    while store.durable().txid < last {
        store.maintain(times.next().unwrap()).unwrap();
        steps += 1;
    }
    assert!((2..8).contains(&steps), "{steps}");
    // There is nothing more to give back.
    put(&store, 8, 3_000_000);
    let refused = times.take(10).map(|time| store.maintain(time)).find_map(Result::err);
    assert!(matches!(refused, Some(Error::NoSpace)), "{refused:?}");
    fs.set_capacity(None);
    store.checkpoint().unwrap();
    store.check().unwrap();
}

#[test]
fn power_goes_while_holes_are_made() {
    power_goes_during(punch);
}
