//! The commit driver: carries out the group commits that tasks await.
//!
//! A task that awaits a commit may be the only one there is, and must not wait for the disk in a
//! poll. So the first poll that finds a commit round undone hands it to the *commit thread*, which
//! leads it or follows another leader. The first such poll starts the thread. Threads that wait
//! lead their rounds without it.
//!
//! The maintenance thread would be the wrong one: a step of that takes as long as filling a segment
//! with zeros. `docs/decisions/0024-an-awaited-commit-is-carried-out.md`
//!
//! Without a commit thread, because [`crate::Config::commit_thread`] forbids it or the kernel
//! refuses it, the poll carries the round out itself.

use crate::commit::background_thread::{BackgroundThread, NextStep};
use crate::commit::group_commit::GroupCommit;
use flotilla_base::event_count::EventCount;
use flotilla_base::sync::Mutex;
use flotilla_base::sync::atomic::{AtomicU64, Ordering};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::time::Duration;

/// Held by all handles of a log and by its commits. The thread ends with the last of them.
#[derive(Debug)]
pub(crate) struct CommitDriver {
    /// Stopped before the log goes: the directory is free when the last handle is dropped.
    thread: Mutex<Option<BackgroundThread>>,
    requests: Arc<CommitRequests>,
    pub(crate) group_commit: Arc<GroupCommit>,
}

#[derive(Debug, Default)]
struct CommitRequests {
    /// All rounds up to here were handed over.
    round: AtomicU64,
    /// Notified when it changes.
    event_count: Arc<EventCount>,
}

impl CommitDriver {
    pub(crate) fn new(group_commit: Arc<GroupCommit>) -> CommitDriver {
        CommitDriver { thread: Mutex::default(), requests: Arc::default(), group_commit }
    }

    /// Has the round carried out, by the commit thread or, if there can be none, by this one. True
    /// if it was this one: then the round is done.
    pub(crate) fn hand_over(&self, round: u64) -> bool {
        let requests = &self.requests;
        // Each poll comes here, and the first one of a round does the rest for all.
        if requests.round.load(Ordering::Acquire) >= round
            || requests.round.fetch_max(round, Ordering::AcqRel) >= round
        {
            return false;
        }
        if self.has_thread() {
            requests.event_count.notify();
            return false;
        }
        self.group_commit.carry_out(round);
        true
    }

    /// Whether there is a commit thread, started now if there was none.
    fn has_thread(&self) -> bool {
        if !self.group_commit.pool.directory().config.commit_thread {
            return false;
        }
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let (requests, group_commit) = (self.requests.clone(), self.group_commit.clone());
            let step = move || requests.step(&group_commit);
            let event_count = self.requests.event_count.clone();
            *thread = BackgroundThread::start("log-commit", event_count, Duration::MAX, step).ok();
        }
        thread.is_some()
    }
}

impl CommitRequests {
    fn step(&self, group_commit: &GroupCommit) -> NextStep {
        let round = self.round.load(Ordering::Acquire);
        if group_commit.is_done(round) {
            return NextStep::OnEvent;
        }
        // A callback that panics was reported by then; it must not end the thread, which other
        // tasks rely on.
        let _ = panic::catch_unwind(AssertUnwindSafe(|| group_commit.carry_out(round)));
        NextStep::Now
    }
}
