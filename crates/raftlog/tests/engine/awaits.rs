//! Commits that tasks await: no thread but those of the log carries them out.

use crate::kit::*;
use flotilla_raftlog::{Durability, Error, LogEngine};
use flotilla_vfs::fault::FaultFs;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

fn put(log: &LogEngine, group: u64, value: &[u8]) -> flotilla_raftlog::Commit {
    log.write(batch(|b| b.put(group, b"k", value)), Durability::Synced)
}

#[test]
fn the_only_task_awaits_with_and_without_a_commit_thread() {
    for commit_thread in [true, false] {
        let config = squeezed().commit_thread(commit_thread);
        let log = open_with(&FaultFs::new(1), config).expect("it opens").0;
        for lsn in 1..=20 {
            let receipt = block_on(put(&log, 1, b"v")).expect("written");
            assert_eq!((receipt.lsn, log.durable_lsn()), (lsn, lsn));
        }
        log.close().expect("closed");
        assert!(matches!(block_on(put(&log, 1, b"v")), Err(Error::Closed)));
    }
}

#[test]
fn many_tasks_and_threads_that_wait_share_a_log() {
    let log = reopen(&FaultFs::new(1));
    thread::scope(|scope| {
        for group in 0..8 {
            let log = &log;
            scope.spawn(move || {
                for _ in 0..50 {
                    let commit = put(log, group, b"v");
                    let done = if group % 2 == 0 { block_on(commit) } else { commit.wait() };
                    done.expect("written");
                }
            });
        }
    });
    assert_eq!((log.stats().batches, log.stats().queued_bytes), (400, 0));
}

#[test]
fn a_dropped_future_leaves_its_write_queued() {
    let disk = FaultFs::new(1);
    let log = reopen(&disk);
    drop(put(&log, 1, b"never polled"));
    let mut polled = Box::pin(put(&log, 2, b"polled once"));
    let _ = polled.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    drop(polled);
    block_on(put(&log, 3, b"last")).expect("written");
    assert_eq!(log.group_ids(), [1, 2, 3]);
    // The directory is free at once, whatever the thread was doing.
    let _ = Box::pin(put(&log, 4, b"v")).as_mut().poll(&mut Context::from_waker(Waker::noop()));
    drop(log);
    assert!(reopen(&disk).group_ids().starts_with(&[1, 2, 3]));
}

#[test]
fn a_failed_sync_wakes_all_tasks_with_the_error() {
    let disk = FaultFs::new(1);
    let log = reopen(&disk);
    block_on(put(&log, 1, b"v")).expect("written");
    disk.fail_syncs(true);
    thread::scope(|scope| {
        for group in 0..4 {
            let log = &log;
            scope.spawn(move || {
                assert!(matches!(block_on(put(log, group, b"w")), Err(Error::Poisoned(_))));
            });
        }
    });
}

#[test]
fn closing_completes_what_is_awaited() {
    let log = reopen(&FaultFs::new(1));
    thread::scope(|scope| {
        for group in 0..4 {
            let log = &log;
            scope.spawn(move || while block_on(put(log, group, b"v")).is_ok() {});
        }
        while log.stats().batches < 20 {
            thread::yield_now();
        }
        log.close().expect("closed");
    });
    assert_eq!(log.stats().queued_bytes, 0);
}
