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

use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use crate::sync::atomic::{AtomicBool, AtomicU64, fence};
use crate::sync::{Futex, thread};
use std::ops::Range;

/// How often a thread looks whether its turn has come, and lets others run in between, before it
/// sleeps. Only if nobody syncs: a turn without one is over sooner than a thread is woken.
const LOOKS: u32 = if cfg!(shuttle) { 1 } else { 50 };

/// How often a thread whose turn syncs looks whether those are back that were told a moment ago, and
/// lets others run in between: some 50 us if there are none, a part of what a sync takes.
const GATHER_LOOKS: u32 = if cfg!(shuttle) { 1 } else { 200 };

/// At most so many turns are not gathered for, after one that was so in vain.
const IN_VAIN_MAX: u64 = 64;

/// The kinds of a place's word; above these bits it holds the number of the turn.
const KIND_BITS: u32 = 2;
/// An earlier turn is not done.
const HELD: u32 = 0;
/// Whoever comes first carries it out.
const FREE: u32 = 1;
/// Somebody does.
const LED: u32 = 2;
const DONE: u32 = 3;

/// The turns of one queue, numbered from 1.
#[derive(Debug)]
pub(crate) struct Turns {
    /// All turns up to here are done.
    done: AtomicU64,
    places: [Place; 2],
    /// The last turn that was begun has a sync.
    is_slow: AtomicBool,
    company: Company,
}

/// Where threads sleep.
#[derive(Debug)]
struct Place {
    word: Futex,
    /// Threads that sleep here, or are about to.
    sleepers: AtomicU64,
}

/// Whether it pays to wait for threads that may write again at once.
///
/// Without this, of threads that do nothing but write one half would wait for the sync of the other.
/// Only who carries out a turn changes it.
#[derive(Debug, Default)]
struct Company {
    /// Threads that waited when the last turn ended, and the one that carried it out.
    expected: AtomicU64,
    /// Turns that are not gathered for.
    skipped: AtomicU64,
    /// How many they are when it is in vain again.
    in_vain: AtomicU64,
}

/// Why a thread that waited for a turn goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It has to carry it out, and call [`Turns::finish`].
    Mine,
    Done,
}

impl Turns {
    pub(crate) fn new() -> Turns {
        let places = [Place::new(word(0, DONE)), Place::new(word(1, FREE))];
        let (done, is_slow) = (AtomicU64::new(0), AtomicBool::new(false));
        Turns { done, places, is_slow, company: Company::default() }
    }

    pub(crate) fn is_done(&self, turn: u64) -> bool {
        self.done.load(Acquire) >= turn
    }

    /// Waits until the turn is done, or it is the caller who must carry it out.
    pub(crate) fn wait(&self, turn: u64) -> Turn {
        let place = self.place(turn);
        let mut looks = 0;
        loop {
            let seen = place.word.load();
            if self.is_done(turn) {
                return Turn::Done;
            }
            if seen == word(turn, FREE) {
                if place.word.replace(seen, word(turn, LED)) {
                    return Turn::Mine;
                }
            } else if looks < LOOKS && !self.is_slow.load(Relaxed) {
                looks += 1;
                thread::yield_now();
            } else {
                place.sleepers.fetch_add(1, SeqCst);
                place.word.sleep(seen);
                place.sleepers.fetch_sub(1, SeqCst);
            }
        }
    }

    /// Waits a little, before a turn that is likely to have a sync, for the threads that were told
    /// of their outcomes a moment ago. Called by who carries it out.
    pub(crate) fn gather(&self, turn: u64) {
        let (company, sleepers) = (&self.company, &self.place(turn).sleepers);
        let (expected, before) = (company.expected.load(Relaxed), sleepers.load(Relaxed));
        if !self.is_slow.load(Relaxed) || before + 1 >= expected || company.is_skipped() {
            return;
        }
        let mut gathered = before;
        for _ in 0..GATHER_LOOKS {
            thread::yield_now();
            gathered = sleepers.load(Relaxed);
            if gathered + 1 >= expected {
                break;
            }
        }
        company.remember(gathered > before);
    }

    /// Opens the next turn, because all that belongs to this one was taken to be carried out.
    pub(crate) fn open(&self, next: u64) {
        self.place(next).word.store(word(next, HELD));
    }

    /// Says whether who carries out a turn now will wait for the disk.
    pub(crate) fn set_slow(&self, is_slow: bool) {
        self.is_slow.store(is_slow, Relaxed);
    }

    /// Ends the turns that one thread carried out. Whoever comes may carry out the next.
    pub(crate) fn finish(&self, led: Range<u64>) {
        let (last, next) = (led.end - 1, led.end);
        let (done, free) = (self.place(last), self.place(next));
        let sleepers = done.sleepers.load(Relaxed) + free.sleepers.load(Relaxed);
        self.company.expected.store(sleepers + 1, Relaxed);
        self.done.store(last, Release);
        done.word.store(word(last, DONE));
        free.word.store(word(next, FREE));
        fence(SeqCst);
        // First who is to go on with the disk, then those who are told.
        let is_shared = last > led.start;
        free.wake(is_shared);
        done.wake(true);
    }

    fn place(&self, turn: u64) -> &Place {
        &self.places[(turn % 2) as usize]
    }
}

impl Place {
    fn new(word: u32) -> Place {
        Place { word: Futex::new(word), sleepers: AtomicU64::new(0) }
    }

    fn wake(&self, all: bool) {
        if self.sleepers.load(Relaxed) == 0 {
            return;
        }
        if all { self.word.wake_all() } else { self.word.wake_one() }
    }
}

impl Company {
    fn is_skipped(&self) -> bool {
        let skipped = self.skipped.load(Relaxed);
        self.skipped.store(skipped.saturating_sub(1), Relaxed);
        skipped > 0
    }

    fn remember(&self, has_come: bool) {
        let in_vain = (self.in_vain.load(Relaxed) * 2).clamp(1, IN_VAIN_MAX);
        let in_vain = if has_come { 0 } else { in_vain };
        self.in_vain.store(in_vain, Relaxed);
        self.skipped.store(in_vain, Relaxed);
    }
}

/// The word of a turn. Its number is cut, so a word comes again after 2^30 turns; who had begun to
/// fall asleep so long ago would sleep until the place's next turn ends.
fn word(turn: u64, kind: u32) -> u32 {
    ((turn as u32) << KIND_BITS) | kind
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use std::thread::scope;

    fn sleepers(turns: &Turns, turn: u64) -> u64 {
        turns.place(turn).sleepers.load(Relaxed)
    }

    #[test]
    fn who_comes_first_leads_and_the_others_are_told() {
        let turns = Turns::new();
        assert_eq!(turns.wait(1), Turn::Mine);
        turns.open(2);
        turns.set_slow(true);
        scope(|scope| {
            let others = [1, 1, 2].map(|turn| {
                scope.spawn({
                    let turns = &turns;
                    move || turns.wait(turn)
                })
            });
            while sleepers(&turns, 1) < 2 || sleepers(&turns, 2) < 1 {
                thread::yield_now();
            }
            turns.finish(1..2);
            let woken = others.map(|other| other.join().expect("no panic"));
            assert_eq!(woken, [Turn::Done, Turn::Done, Turn::Mine]);
        });
        assert!(turns.is_done(1) && !turns.is_done(2));
    }

    #[test]
    fn all_turns_of_one_lead_end_together() {
        let turns = Turns::new();
        assert_eq!(turns.wait(1), Turn::Mine);
        turns.open(2);
        turns.set_slow(true);
        scope(|scope| {
            let others = [1, 1, 1, 2].map(|turn| {
                scope.spawn({
                    let turns = &turns;
                    move || turns.wait(turn)
                })
            });
            while sleepers(&turns, 1) < 3 || sleepers(&turns, 2) < 1 {
                thread::yield_now();
            }
            turns.open(3);
            turns.finish(1..3);
            assert!(others.into_iter().all(|other| other.join().expect("no panic") == Turn::Done));
        });
        assert_eq!(turns.wait(3), Turn::Mine);
    }

    #[test]
    fn after_gathering_in_vain_it_is_tried_seldom_until_somebody_comes() {
        let company = Company::default();
        let mut tried = Vec::new();
        for turn in 0..400 {
            if !company.is_skipped() {
                tried.push(turn);
                company.remember(false);
            }
        }
        assert_eq!(tried, [0, 2, 5, 10, 19, 36, 69, 134, 199, 264, 329, 394]);
        company.remember(true);
        assert!(!company.is_skipped() && !company.is_skipped());
    }
}
