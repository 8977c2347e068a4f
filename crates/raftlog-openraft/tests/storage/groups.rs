//! Many groups in one log: one sync for all, each its own entries; reads while writes are queued.

use crate::kit::{SyncGate, config, entries, entry, group, open, open_with, read_all};
use flotilla_raftlog::{Config, Durability, LogBatch};
use flotilla_raftlog_openraft::Flusher;
use flotilla_vfs::fault::FaultFs;
use openraft::storage::{RaftLogStorage, RaftLogStorageExt};
use openraft::testing::log_id;
use openraft::{RaftLogReader, Vote};
use std::task::{Context, Waker};

#[tokio::test]
async fn groups_share_a_sync_and_nothing_else() {
    const GROUPS: u64 = 64;
    let disk = FaultFs::new(1);
    let (gate, flusher) = SyncGate::before(&disk, config());
    let shut = gate.shut(&flusher).await;
    let syncs = flusher.log().stats().syncs;
    let mut logs: Vec<_> = (0..GROUPS).map(|id| group(&flusher, id)).collect();
    let mut appends = Vec::new();
    for (id, log) in logs.iter_mut().enumerate() {
        let mut log = log.clone();
        let mut append =
            Box::pin(async move { log.blocking_append(entries(id as u64, 0, 3)).await });
        let polled = append.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending(), "nothing is synced yet");
        appends.push(append);
    }
    for (id, log) in logs.iter_mut().enumerate() {
        // Readable, and not yet on disk.
        assert_eq!(read_all(log).await, entries(id as u64, 0, 3));
        assert_eq!(log.try_get_log_entries(1..=1).await, Ok(entries(id as u64, 1, 1)));
        assert!(flusher.log().group(id as u64).is_none());
    }
    drop(shut);
    for append in appends {
        append.await.expect("it is synced");
    }
    let syncs = flusher.log().stats().syncs - syncs;
    assert!(syncs <= 2, "{syncs} syncs for {GROUPS} appends that came together");
    drop((logs, flusher));
    disk.power_loss(1);
    let flusher = open(&disk);
    for id in 0..GROUPS {
        assert_eq!(read_all(&mut group(&flusher, id)).await, entries(id, 0, 3));
    }
}

#[tokio::test]
async fn segments_are_sealed_while_nobody_waits_for_it() {
    let flusher = open_with(&FaultFs::new(1), config().segment_bytes(4 << 10));
    let mut log = group(&flusher, 7);
    let mut next = 0;
    while flusher.log().stats().segments < 3 {
        log.blocking_append(entries(1, next, 8)).await.expect("it is synced");
        next += 8;
    }
    // The writes themselves would leave two full ones.
    while flusher.log().stats().unsealed_segments > 0 {
        std::thread::yield_now();
    }
    assert_eq!(read_all(&mut log).await, entries(1, 0, next));
    flusher.log().close().expect("it is closed");
    let error = Flusher::start(flusher.log().clone()).expect_err("there is nothing to do");
    assert!(error.to_string().contains("closed"), "{error}");
}

#[tokio::test]
async fn changes_are_seen_in_their_order_while_they_are_queued() {
    let (gate, flusher) = SyncGate::before(&FaultFs::new(1), config());
    let mut log = group(&flusher, 7);
    log.blocking_append(entries(1, 0, 10)).await.expect("it is synced");
    let shut = gate.shut(&flusher).await;
    // Each is queued when it has been polled once.
    let changes: Vec<_> = (0..5)
        .map(|step| {
            let mut log = log.clone();
            let mut change = Box::pin(async move {
                match step {
                    0 => log.blocking_append(entries(1, 10, 2)).await,
                    1 => log.truncate(log_id(1, 1, 5)).await,
                    2 => log.blocking_append(entries(2, 5, 3)).await,
                    3 => log.purge(log_id(1, 1, 2)).await,
                    _ => log.truncate(log_id(2, 1, 6)).await,
                }
            });
            assert!(change.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            change
        })
        .collect();
    let expected: Vec<_> = entries(1, 3, 2).into_iter().chain([entry(2, 5, "5 in 2")]).collect();
    assert_eq!(read_all(&mut log).await, expected);
    drop(shut);
    for change in changes {
        change.await.expect("it is synced");
        assert_eq!(read_all(&mut log).await, expected);
    }
    let state = log.get_log_state().await.expect("it is known");
    assert_eq!(
        (state.last_purged_log_id, state.last_log_id),
        (Some(log_id(1, 1, 2)), Some(log_id(2, 1, 5)))
    );
}

#[tokio::test]
async fn a_read_with_a_limit_is_cut_but_never_empty() {
    let (gate, flusher) = SyncGate::before(&FaultFs::new(1), Config::default());
    let mut log = group(&flusher, 7);
    let big = |index| entry(1, index, &"x".repeat(3 << 20));
    log.blocking_append((0..3).map(big)).await.expect("it is synced");
    let shut = gate.shut(&flusher).await;
    let mut later = log.clone();
    let mut append = Box::pin(async move {
        let entries = [entry(1, 3, "small"), entry(1, 4, "small"), big(5), big(6)];
        later.blocking_append(entries).await
    });
    assert!(append.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    // From disk, over both, from memory.
    let cases: [(u64, u64, &[u64]); 6] = [
        (0, 7, &[0]),
        (2, 7, &[2, 3, 4]),
        (3, 7, &[3, 4, 5]),
        (5, 7, &[5]),
        (2, 3, &[2]),
        (3, 4, &[3]),
    ];
    for (start, end, expected) in cases {
        let read = log.limited_get_log_entries(start, end).await.expect("they are there");
        let read: Vec<_> = read.iter().map(|entry| entry.log_id.index).collect();
        assert_eq!(read, expected, "{start}..{end}");
    }
    drop(shut);
    append.await.expect("it is synced");
    assert_eq!(log.try_get_log_entries(0..9).await.map(|all| all.len()), Ok(7));
}

#[tokio::test]
async fn an_append_waits_for_room_in_the_queue() {
    let disk = FaultFs::new(1);
    let (gate, flusher) = SyncGate::before(&disk, config().queue_bytes_max(1000));
    let shut = gate.shut(&flusher).await;
    let mut appends: Vec<_> = (0..8)
        .map(|id| {
            let mut log = group(&flusher, id);
            tokio::spawn(async move {
                for index in 0..4 {
                    log.blocking_append([entry(1, index, &"x".repeat(400))]).await?;
                }
                Ok::<_, openraft::StorageError<u64>>(read_all(&mut log).await.len())
            })
        })
        .collect();
    assert!(!appends[7].is_finished());
    drop(shut);
    for append in &mut appends {
        assert_eq!(append.await.expect("no panic").expect("nobody is refused"), 4);
    }
}

#[tokio::test]
async fn wrong_appends_and_a_failed_disk_are_errors() {
    let disk = FaultFs::new(1);
    let flusher = open(&disk);
    let mut log = group(&flusher, 7);
    log.blocking_append(entries(1, 0, 2)).await.expect("it is synced");
    log.blocking_append(entries(1, 3, 1)).await.expect_err("a hole");
    log.blocking_append(entries(1, 1, 1)).await.expect_err("it was not truncated before");
    log.blocking_append([]).await.expect("nothing is always right");
    assert_eq!(read_all(&mut log).await, entries(1, 0, 2));
    disk.fail_syncs(true);
    log.blocking_append(entries(1, 2, 1)).await.expect_err("it is not synced");
    log.save_vote(&Vote::new(3, 1)).await.expect_err("nor is this");
    assert_eq!(log.read_vote().await, Ok(None));
    disk.fail_syncs(false);
    log.save_vote(&Vote::new(4, 1)).await.expect_err("the log must be opened again");
}

#[tokio::test]
async fn a_log_is_truncated_from_below_its_first_entry() {
    let disk = FaultFs::new(1);
    let flusher = open(&disk);
    let mut log = group(&flusher, 7);
    log.blocking_append(entries(1, 0, 5)).await.expect("it is synced");
    log.purge(log_id(1, 1, 2)).await.expect("it is synced");
    log.truncate(log_id(1, 1, 0)).await.expect("it is synced");
    for mut log in [log, group(&flusher, 7)] {
        let state = log.get_log_state().await.expect("it is known");
        assert_eq!(state.last_log_id, Some(log_id(1, 1, 2)));
        assert_eq!(read_all(&mut log).await, []);
    }
}

#[tokio::test]
async fn a_group_outlives_its_flusher() {
    let flusher = open(&FaultFs::new(1));
    let mut log = group(&flusher, 7);
    drop(flusher);
    log.blocking_append(entries(1, 0, 2)).await.expect("it is synced by who appends");
    assert_eq!(read_all(&mut log).await, entries(1, 0, 2));
}

#[tokio::test]
async fn bytes_of_somebody_else_are_an_error() {
    for key in [&b"openraft/vote"[..], b"openraft/committed", b"openraft/purged"] {
        let flusher = open(&FaultFs::new(1));
        let mut batch = LogBatch::new();
        batch.put(7, key, b"no JSON");
        flusher.log().write(batch, Durability::Synced).wait().expect("it is synced");
        crate::kit::Log::open(&flusher, 7).expect_err("it is not ours");
    }
}
