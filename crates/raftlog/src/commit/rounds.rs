//! Who carries out the queue, and where the others sleep meanwhile.
//!
//! What is queued between two group commits belongs to one *turn*. Whoever waits for a turn carries
//! it out, if all earlier ones are done and nobody else is at it. All who sleep for one turn sleep at
//! one place, so that one system call wakes them when it is done.
//!
//! A turn and the next but one share a place: where it is one's, the other is done.
//!
//! No wake-up is lost: who ends a turn changes the place's word and then looks for sleepers; who goes
//! to sleep says so and then, in the system call, looks at the word again. What tells only whether
//! something pays is read and written without any order.

use crate::commit::window::GroupCommitWindow;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use crate::sync::atomic::{AtomicBool, AtomicU64, fence};
use crate::sync::{Futex, thread};
use std::ops::Range;

/// How often a thread looks whether its turn has come, and lets others run in between, before it
/// sleeps. Only if nobody syncs: a turn without one is over sooner than a thread is woken.
const SPIN_YIELDS_MAX: u32 = if cfg!(shuttle) { 1 } else { 50 };

/// How often a thread whose turn syncs looks whether those are back that were told a moment ago, and
/// lets others run in between: some 50 us if there are none, a part of what a sync takes.
const WINDOW_YIELDS_MAX: u32 = if cfg!(shuttle) { 1 } else { 200 };

/// The kinds of a place's word; above these bits it holds the number of the turn.
const KIND_BITS: u32 = 2;
/// An earlier turn is not done.
const BLOCKED: u32 = 0;
/// Whoever comes first carries it out.
const OPEN: u32 = 1;
/// Somebody does.
const TAKEN: u32 = 2;
const DONE: u32 = 3;

/// The turns of one queue, numbered from 1.
#[derive(Debug)]
pub(crate) struct CommitRounds {
    /// All turns up to here are done.
    done: AtomicU64,
    slots: [RoundSlot; 2],
    /// The last turn that was begun has a sync.
    is_syncing: AtomicBool,
    window: GroupCommitWindow,
}

/// Where threads sleep.
#[derive(Debug)]
struct RoundSlot {
    word: Futex,
    /// Threads that sleep here, or are about to.
    sleepers: AtomicU64,
}

/// Why a thread that waited for a turn goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommitRole {
    /// It has to carry it out, and call [`CommitRounds::finish`].
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

    /// Waits until the turn is done, or it is the caller who must carry it out.
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

    /// Waits a little, before a turn that is likely to have a sync, for the threads that were told
    /// of their outcomes a moment ago. Called by who carries it out.
    pub(crate) fn hold_window(&self, round: u64) {
        let (window, sleepers) = (&self.window, &self.slot_of(round).sleepers);
        let (expected_writers, before) =
            (window.expected_writers.load(Relaxed), sleepers.load(Relaxed));
        if !self.is_syncing.load(Relaxed) || before + 1 >= expected_writers || window.is_skipped() {
            return;
        }
        let mut gathered = before;
        for _ in 0..WINDOW_YIELDS_MAX {
            thread::yield_now();
            gathered = sleepers.load(Relaxed);
            if gathered + 1 >= expected_writers {
                break;
            }
        }
        window.remember(gathered > before);
    }

    /// Opens the next turn, because all that belongs to this one was taken to be carried out.
    pub(crate) fn open(&self, next: u64) {
        self.slot_of(next).word.store(word(next, BLOCKED));
    }

    /// Says whether who carries out a turn now will wait for the disk.
    pub(crate) fn set_syncing(&self, is_syncing: bool) {
        self.is_syncing.store(is_syncing, Relaxed);
    }

    /// Ends the turns that one thread carried out. Whoever comes may carry out the next.
    pub(crate) fn finish(&self, led: Range<u64>) {
        let (last, next) = (led.end - 1, led.end);
        let (done, free) = (self.slot_of(last), self.slot_of(next));
        let sleepers = done.sleepers.load(Relaxed) + free.sleepers.load(Relaxed);
        self.window.expected_writers.store(sleepers + 1, Relaxed);
        self.done.store(last, Release);
        done.word.store(word(last, DONE));
        free.word.store(word(next, OPEN));
        fence(SeqCst);
        // First who is to go on with the disk, then those who are told.
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

/// The word of a turn. Its number is cut, so a word comes again after 2^30 turns; who had begun to
/// fall asleep so long ago would sleep until the place's next turn ends.
fn word(round: u64, kind: u32) -> u32 {
    ((round as u32) << KIND_BITS) | kind
}

#[cfg(all(test, not(shuttle)))]
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
