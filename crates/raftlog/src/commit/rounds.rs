//! Commit rounds: which thread leads a group commit, and where its followers sleep.
//!
//! The writes that are queued between two group commits belong to one *round*. A thread that waits
//! for a round becomes its leader if all earlier rounds are done and no other thread leads. All
//! followers of one round sleep at one futex, so that one system call wakes them when it is done.
//!
//! A round and the next but one share a slot: while the slot is one's, the other is done, or led by
//! the same leader, which then ends both together.
//!
//! No wake-up is lost: the leader that ends a round changes the word of the slot and then looks for
//! sleepers; a follower that goes to sleep counts itself first and then, in the system call,
//! compares the word again. Values that decide only whether waiting pays are read and written
//! without any order.

use flotilla_base::commit_window::GroupCommitWindow;
use flotilla_base::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use flotilla_base::sync::atomic::{AtomicBool, AtomicU64, fence};
use flotilla_base::sync::{Futex, thread};
use std::ops::Range;

/// How often a follower checks its round, and yields in between, before it sleeps. Only while no
/// round syncs: a round without a sync is over sooner than a sleeping thread is woken.
const SPIN_YIELDS_MAX: u32 = if cfg!(shuttle) { 1 } else { 50 };

/// The kinds of a slot's word; above these bits it holds the number of the round.
const KIND_BITS: u32 = 2;
/// An earlier round is not done.
const BLOCKED: u32 = 0;
/// The first thread that comes leads it.
const OPEN: u32 = 1;
/// A thread leads it.
const TAKEN: u32 = 2;
const DONE: u32 = 3;

/// The commit rounds of one write queue, numbered from 1.
#[derive(Debug)]
pub(crate) struct CommitRounds {
    /// All rounds up to here are done.
    done: AtomicU64,
    slots: [RoundSlot; 2],
    /// The last round that was begun has a sync.
    is_syncing: AtomicBool,
    window: GroupCommitWindow,
}

/// The futex at which the followers of a round sleep.
#[derive(Debug)]
struct RoundSlot {
    word: Futex,
    /// Threads that sleep here, or are about to.
    sleepers: AtomicU64,
}

/// The role of a thread that waited for a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommitRole {
    /// It has to carry the round out, and call [`CommitRounds::finish`].
    Leader,
    Follower,
}

impl CommitRounds {
    pub(crate) fn new() -> CommitRounds {
        let slots = [RoundSlot::new(word(0, DONE)), RoundSlot::new(word(1, OPEN))];
        let (done, is_syncing) = (AtomicU64::new(0), AtomicBool::new(false));
        CommitRounds { done, slots, is_syncing, window: GroupCommitWindow::default() }
    }

    pub(crate) fn is_done(&self, round: u64) -> bool {
        self.done.load(Acquire) >= round
    }

    /// Waits until the round is done, or the caller is its leader.
    pub(crate) fn wait(&self, round: u64) -> CommitRole {
        let slot_of = self.slot_of(round);
        let mut yields = 0;
        loop {
            let seen = slot_of.word.load();
            if self.is_done(round) {
                return CommitRole::Follower;
            }
            if seen == word(round, OPEN) {
                if slot_of.word.replace(seen, word(round, TAKEN)) {
                    return CommitRole::Leader;
                }
            } else if yields < SPIN_YIELDS_MAX && !self.is_syncing.load(Relaxed) {
                yields += 1;
                thread::yield_now();
            } else {
                slot_of.sleepers.fetch_add(1, SeqCst);
                slot_of.word.sleep(seen);
                slot_of.sleepers.fetch_sub(1, SeqCst);
            }
        }
    }

    /// Holds the group commit window open: waits a little, before a round that is likely to have a
    /// sync, for the writers of the last round to queue their next writes. Called by the leader.
    pub(crate) fn hold_window(&self, round: u64) {
        let sleepers = &self.slot_of(round).sleepers;
        // The leader counts itself: it is one of the threads of the last round.
        let present = || sleepers.load(Relaxed) + 1;
        if self.is_syncing.load(Relaxed) && self.window.is_open(present()) {
            self.window.wait(present);
        }
    }

    /// Opens the next round, because the leader has taken all writes of this one.
    pub(crate) fn open(&self, next: u64) {
        assert!(!self.is_done(next), "round {next} is over and opens again");
        self.slot_of(next).word.store(word(next, BLOCKED));
    }

    /// Notes whether the round that is carried out now waits for the disk.
    pub(crate) fn set_syncing(&self, is_syncing: bool) {
        self.is_syncing.store(is_syncing, Relaxed);
    }

    /// Ends the rounds that one leader carried out. Any thread may lead the next.
    pub(crate) fn finish(&self, led: Range<u64>) {
        assert!(!led.is_empty(), "no round of {led:?} was led");
        assert_eq!(self.done.load(Relaxed) + 1, led.start, "rounds end in order");
        let (last, next) = (led.end - 1, led.end);
        let (done, free) = (self.slot_of(last), self.slot_of(next));
        let sleepers = done.sleepers.load(Relaxed) + free.sleepers.load(Relaxed);
        self.window.expect(sleepers + 1);
        self.done.store(last, Release);
        done.word.store(word(last, DONE));
        free.word.store(word(next, OPEN));
        fence(SeqCst);
        // The next leader is woken first, so that the disk does not wait for the followers to be
        // woken.
        let is_shared = last > led.start;
        free.wake(is_shared);
        done.wake(true);
    }

    fn slot_of(&self, round: u64) -> &RoundSlot {
        &self.slots[(round % 2) as usize]
    }
}

impl RoundSlot {
    fn new(word: u32) -> RoundSlot {
        RoundSlot { word: Futex::new(word), sleepers: AtomicU64::new(0) }
    }

    fn wake(&self, all: bool) {
        if self.sleepers.load(Relaxed) == 0 {
            return;
        }
        if all { self.word.wake_all() } else { self.word.wake_one() }
    }
}

/// The word of a round. The number is cut, so a word comes again after 2^30 rounds; a thread that
/// began to fall asleep so long ago would sleep until the slot's next round ends.
fn word(round: u64, kind: u32) -> u32 {
    ((round as u32) << KIND_BITS) | kind
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;
    use std::thread::scope;

    fn sleepers(rounds: &CommitRounds, round: u64) -> u64 {
        rounds.slot_of(round).sleepers.load(Relaxed)
    }

    #[test]
    fn who_comes_first_leads_and_the_others_are_told() {
        let rounds = CommitRounds::new();
        assert_eq!(rounds.wait(1), CommitRole::Leader);
        rounds.open(2);
        rounds.set_syncing(true);
        scope(|scope| {
            let others = [1, 1, 2].map(|round| {
                scope.spawn({
                    let rounds = &rounds;
                    move || rounds.wait(round)
                })
            });
            while sleepers(&rounds, 1) < 2 || sleepers(&rounds, 2) < 1 {
                thread::yield_now();
            }
            rounds.finish(1..2);
            let woken = others.map(|other| other.join().expect("no panic"));
            assert_eq!(woken, [CommitRole::Follower, CommitRole::Follower, CommitRole::Leader]);
        });
        assert!(rounds.is_done(1) && !rounds.is_done(2));
    }

    #[test]
    fn all_turns_of_one_lead_end_together() {
        let rounds = CommitRounds::new();
        assert_eq!(rounds.wait(1), CommitRole::Leader);
        rounds.open(2);
        rounds.set_syncing(true);
        scope(|scope| {
            let others = [1, 1, 1, 2].map(|round| {
                scope.spawn({
                    let rounds = &rounds;
                    move || rounds.wait(round)
                })
            });
            while sleepers(&rounds, 1) < 3 || sleepers(&rounds, 2) < 1 {
                thread::yield_now();
            }
            rounds.open(3);
            rounds.finish(1..3);
            assert!(
                others
                    .into_iter()
                    .all(|other| other.join().expect("no panic") == CommitRole::Follower)
            );
        });
        assert_eq!(rounds.wait(3), CommitRole::Leader);
    }
}
