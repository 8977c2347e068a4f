//! Many threads at once.

use crate::kit::{batch, entries, reopen, write};
use flotilla_raftlog::{Config, Durability, LogEngine};
use flotilla_vfs::fault::FaultFs;
use flotilla_vfs::os::OsFs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

#[test]
fn threads_that_wait_share_syncs() {
    const THREADS: u64 = 16;
    const WRITES: u64 = 60;
    let dir = tempfile::tempdir().expect("a directory");
    let (log, _) =
        LogEngine::open(Arc::new(OsFs::new()), dir.path(), Config::default()).expect("it opens");
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
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut read_count = 0_u64;
            while !is_over.load(Ordering::Acquire) {
                let Some(group) = log.group(1) else { continue };
                let range = group.first_index()..group.last_index() + 1;
                let Ok(read) = group.entries(range, u64::MAX) else { continue };
                read_count += read.len() as u64;
                // One state of the log: terms never go back, whatever is replaced meanwhile.
                assert!(read.is_sorted_by_key(|e| (e.term, e.index)), "{read:?}");
            }
            read_count
        });
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
            }
        }
        is_over.store(true, Ordering::Release);
        assert!(reader.join().expect("it saw nothing wrong") > 0);
    });
}
