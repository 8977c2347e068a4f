//! Many threads at once.

use crate::kit::{
    batch, entries, entry, open_with, random_entry, read_all, reopen, squeezed, text_entry, write,
};
use flotilla_raftlog::{Config, Durability, Entry, LogEngine};
use flotilla_vfs::fault::FaultFs;
use flotilla_vfs::os::OsFs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

#[test]
fn threads_that_wait_share_syncs() {
    const THREADS: u64 = 16;
    const WRITES: u64 = 60;
    let dir = tempfile::tempdir().expect("a directory");
    let (log, _) = LogEngine::open_with(Arc::new(OsFs::new()), dir.path(), Config::default())
        .expect("it opens");
    let barrier = Barrier::new(THREADS as usize);
    std::thread::scope(|scope| {
        for group in 0..THREADS {
            let (log, barrier) = (&log, &barrier);
            scope.spawn(move || {
                barrier.wait();
                for index in 1..=WRITES {
                    let lsn = write(log, |b| b.append(group, &entries(index, 1, &[100])))
                        .expect("written");
                    assert!(log.durable_lsn() >= lsn, "acknowledged before it was durable");
                    assert_eq!(log.group(group).expect("there").last_index(), index);
                }
            });
        }
    });
    let stats = log.stats();
    assert_eq!((stats.batches, stats.queued_bytes), (THREADS * WRITES, 0));
    assert!(stats.syncs < stats.batches / 2, "{stats:?}");
}

#[test]
fn waiting_flushing_and_callbacks_mix() {
    let log = reopen(&FaultFs::new(1));
    let done = Arc::new(AtomicU64::new(0));
    let last_lsn = Arc::new(AtomicU64::new(0));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..6)
            .map(|group| {
                let (log, done, last_lsn) = (&log, &done, &last_lsn);
                scope.spawn(move || {
                    for index in 1..=200 {
                        let batch = batch(|b| b.append(group, &entries(index, 1, &[20])));
                        let commit = log.write(batch, Durability::Buffered);
                        if group < 3 {
                            commit.wait().expect("written");
                            continue;
                        }
                        let (done, last_lsn) = (done.clone(), last_lsn.clone());
                        commit.on_done(move |outcome| {
                            let lsn = outcome.expect("written").lsn;
                            done.fetch_add(1, Ordering::Relaxed);
                            last_lsn.fetch_max(lsn, Ordering::Relaxed);
                        });
                    }
                })
            })
            .collect();
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    if !log.flush() {
                        std::thread::yield_now();
                    }
                }
            });
        }
        scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                for id in log.group_ids() {
                    let group = log.group(id).expect("groups only come");
                    let range = group.first_index()..group.last_index() + 1;
                    let wanted = range.end - range.start;
                    let read = group.entries(range, u64::MAX).expect("nothing is compacted");
                    assert_eq!(read.len() as u64, wanted);
                }
                log.purge_expired_files().expect("nothing to do");
            }
        });
        for writer in writers {
            writer.join().expect("it ended well");
        }
        log.sync().wait().expect("synced");
        is_over.store(true, Ordering::Release);
    });
    assert_eq!(log.stats().batches, 1200);
    assert_eq!(done.load(Ordering::Relaxed), 600);
    assert!(last_lsn.load(Ordering::Relaxed) <= log.durable_lsn());
}

#[test]
fn failure_reaches_all_who_wait() {
    for seed in 0..10 {
        let disk = FaultFs::new(seed);
        let log = reopen(&disk);
        disk.cut_power_after(seed + 3);
        std::thread::scope(|scope| {
            for group in 0..4 {
                let log = &log;
                scope.spawn(move || {
                    let fails =
                        |i: u64| write(log, |b| b.append(group, &entries(i, 1, &[900]))).is_err();
                    assert!((1..100).any(fails), "the power is gone");
                    assert!(write(log, |b| b.remove_group(group)).is_err());
                });
            }
            scope.spawn(|| {
                while log.poisoned().is_none() {
                    log.flush();
                }
            });
        });
    }
}

#[test]
fn reads_go_on_while_the_log_is_compacted_purged_and_replaced() {
    let log = reopen(&FaultFs::new(1));
    let is_over = AtomicBool::new(false);
    let (tries, reads) = (AtomicU64::new(0), AtomicU64::new(0));
    let read = || {
        let group = log.group(1)?;
        let range = group.first_index()..group.last_index() + 1;
        let read = group.entries(range, u64::MAX).ok()?;
        // One state of the log: terms never go back, whatever is replaced meanwhile.
        assert!(read.is_sorted_by_key(|e| (e.term, e.index)), "{read:?}");
        (!read.is_empty()).then_some(())
    };
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                reads.fetch_add(u64::from(read().is_some()), Ordering::Release);
                tries.fetch_add(1, Ordering::Release);
            }
        });
        // However busy the machine is: the reader has read before the writer goes on. Of two tries
        // the second began in the pause.
        let pause = || {
            let (tried, had) = (tries.load(Ordering::Acquire), reads.load(Ordering::Acquire));
            while tries.load(Ordering::Acquire) < tried + 2 && !reader.is_finished() {
                std::thread::yield_now();
            }
            let has = reads.load(Ordering::Acquire);
            is_over.store(has == had, Ordering::Release);
            assert!(has > had, "a log that nobody writes to cannot be read");
        };
        let mut next = 1;
        for term in 1..=300_u64 {
            // Replaces the last two and adds ten, far more than are looked up under one lock.
            let first = if next > 3 { next - 2 } else { next };
            for index in first..first + 12 {
                let batch = batch(|b| b.append(1, &entries(index, term, &[90])));
                log.write(batch, Durability::Buffered).wait().expect("written");
            }
            next = first + 12;
            if term % 40 == 0 {
                write(&log, |b| b.compact_to(1, next - 5, term)).expect("written");
                assert!(log.purge_expired_files().expect("purged").segments > 0);
                pause();
            }
        }
        is_over.store(true, Ordering::Release);
        reader.join().expect("it saw nothing wrong");
    });
}

/// Appends, replaces, cuts off and compacts until it is over; returns what is left.
fn write_until(log: &LogEngine, group: u64, is_over: &AtomicBool) -> Vec<Entry> {
    let (mut first, mut kept) = (1, Vec::<Entry>::new());
    for round in 1.. {
        let next = first + kept.len() as u64;
        let from = if kept.len() > 4 { next - round % 4 } else { next };
        kept.truncate((from - first) as usize);
        let new = entries(from, round, &[100, 300, 20]);
        write(log, |b| b.append(group, &new)).expect("written");
        kept.extend(new);
        if round % 5 == 0 {
            kept.truncate(kept.len() - 2);
            let end = first + kept.len() as u64;
            write(log, |b| b.truncate_from(group, end)).expect("written");
        }
        if kept.len() > 20 {
            first += 9;
            let term = kept[8].term;
            kept.drain(..9);
            write(log, |b| b.compact_to(group, first, term)).expect("written");
        }
        if is_over.load(Ordering::Acquire) {
            break;
        }
    }
    kept
}

#[test]
fn moves_writes_compactions_and_reads_go_on_at_once() {
    let disk = FaultFs::new(1);
    let config = || squeezed().purge_above_bytes(0).move_live_ratio_max(1.0);
    let log = open_with(&disk, config()).expect("it opens").0;
    // Records of idle groups are rewritten over and over.
    let idle = [text_entry(1, 1, 900), entry(2, 1, 40), random_entry(3, 2, 300)];
    for group in 100..110 {
        write(&log, |b| (b.append(group, &idle), b.put(group, b"k", b"v")).1).expect("written");
    }
    let check_idle = |log: &LogEngine| {
        for group in 100..110 {
            assert_eq!(read_all(log, group), idle);
            assert_eq!(log.group(group).expect("there").get(b"k").expect("there"), "v");
        }
    };
    let is_over = AtomicBool::new(false);
    let kept = std::thread::scope(|scope| {
        let (log, is_over) = (&log, &is_over);
        let writers: Vec<_> =
            (1..=3).map(|group| scope.spawn(move || write_until(log, group, is_over))).collect();
        scope.spawn(move || {
            while !is_over.load(Ordering::Acquire) {
                check_idle(log);
                for group in (1..=3).filter_map(|group| log.group(group)) {
                    let range = group.first_index()..group.last_index() + 1;
                    if let Ok(read) = group.entries(range, u64::MAX) {
                        assert!(read.is_sorted_by_key(|e| (e.term, e.index)), "{read:?}");
                    }
                }
            }
        });
        while log.stats().purge.rewritten_records < 300 {
            log.purge_expired_files().expect("purged");
            log.maintain().expect("maintained");
        }
        is_over.store(true, Ordering::Release);
        writers.into_iter().map(|writer| writer.join().expect("it wrote")).collect::<Vec<_>>()
    });
    assert!(log.stats().purge.segments > 20, "{:?}", log.stats());
    let check = |log: &LogEngine| {
        check_idle(log);
        for (group, kept) in (1..).zip(&kept) {
            assert_eq!(&read_all(log, group), kept, "group {group}");
        }
    };
    check(&log);
    drop(log);
    disk.power_loss(1);
    check(&open_with(&disk, config()).expect("it opens").0);
}
