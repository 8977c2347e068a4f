//! The writer's place: one holds it, the others wait in the order in which they came.
//!
//! Everybody draws a number and waits until it is shown. Who is next mostly waits for the time of a
//! small transaction only, so a thread looks a few times, and lets others run in between, before it
//! sleeps. Threads that sleep do so at words that numbers share, each at that of its own, so that
//! who leaves wakes the next and hardly ever another.
//!
//! No wake-up is lost: who leaves shows the next number and then looks whether it was drawn; who
//! comes draws it and then looks whether it is shown. If it was drawn, the word is changed before
//! its sleepers are woken, and who goes to sleep has read the word before the shown number.

use crate::sync::atomic::{AtomicU64, Ordering::SeqCst};
use crate::sync::{Word, thread};

/// Words that threads sleep at. With more threads than that some are woken too early.
const WORDS: usize = 64;

/// How often a thread looks before it sleeps, if it is the next. The others sleep at once.
const LOOKS: u32 = 20;

/// The writer's place.
#[derive(Debug)]
pub(crate) struct Place {
    /// The number that the next to come draws.
    drawn: AtomicU64,
    /// Who has this number has the place.
    shown: AtomicU64,
    words: [Word; WORDS],
}

/// Has the place until it is dropped.
#[derive(Debug)]
pub(crate) struct Placed<'a> {
    place: &'a Place,
    number: u64,
}

impl Place {
    pub(crate) fn new() -> Place {
        let words = std::array::from_fn(|_| Word::default());
        Place { drawn: AtomicU64::new(0), shown: AtomicU64::new(0), words }
    }

    /// Waits until all who came before have gone.
    pub(crate) fn enter(&self) -> Placed<'_> {
        let number = self.drawn.fetch_add(1, SeqCst);
        let word = self.word(number);
        let mut looks = 0;
        loop {
            let seen = word.load();
            let shown = self.shown.load(SeqCst);
            if shown == number {
                return Placed { place: self, number };
            }
            if looks < LOOKS && shown + 1 == number {
                looks += 1;
                thread::yield_now();
            } else {
                word.sleep(seen);
            }
        }
    }

    /// Has the place if nobody else has it or waits for it.
    pub(crate) fn try_enter(&self) -> Option<Placed<'_>> {
        let number = self.shown.load(SeqCst);
        let drawn = self.drawn.compare_exchange(number, number + 1, SeqCst, SeqCst);
        drawn.is_ok().then(|| Placed { place: self, number })
    }

    /// Whether somebody has the place, as far as it can be known without waiting.
    pub(crate) fn is_taken(&self) -> bool {
        self.shown.load(SeqCst) != self.drawn.load(SeqCst)
    }

    /// How many have the place or wait for it.
    #[cfg(test)]
    pub(crate) fn crowd(&self) -> u64 {
        self.drawn.load(SeqCst) - self.shown.load(SeqCst)
    }

    fn word(&self, number: u64) -> &Word {
        &self.words[number as usize % WORDS]
    }
}

impl Drop for Placed<'_> {
    fn drop(&mut self) {
        let next = self.number + 1;
        self.place.shown.store(next, SeqCst);
        if self.place.drawn.load(SeqCst) > next {
            let word = self.place.word(next);
            word.change();
            word.wake_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::thread::{scope, yield_now};

    use super::*;

    #[test]
    fn who_comes_first_is_first() {
        let place = Place::new();
        let order = Mutex::new(Vec::new());
        let held = place.enter();
        scope(|scope| {
            // More than there are words, so that some share one.
            for i in 0..WORDS + 10 {
                scope.spawn({
                    let (place, order) = (&place, &order);
                    move || {
                        let _held = place.enter();
                        order.lock().unwrap().push(i);
                    }
                });
                while place.crowd() < i as u64 + 2 {
                    yield_now();
                }
            }
            drop(held);
        });
        assert_eq!(*order.lock().unwrap(), (0..WORDS + 10).collect::<Vec<_>>());
        assert_eq!(place.crowd(), 0);
    }

    #[test]
    fn who_does_not_wait_has_the_place_only_if_nobody_wants_it() {
        let place = Place::new();
        let held = place.try_enter().expect("nobody is there");
        assert!(place.try_enter().is_none());
        drop(held);
        let held = place.enter();
        assert!(place.try_enter().is_none());
        drop(held);
        assert!(place.try_enter().is_some());
    }

    #[test]
    fn one_at_a_time() {
        let place = Place::new();
        let (inside, count) = (AtomicU64::new(0), AtomicU64::new(0));
        scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let _held = place.enter();
                        assert_eq!(inside.fetch_add(1, SeqCst), 0);
                        count.fetch_add(1, SeqCst);
                        assert_eq!(inside.fetch_sub(1, SeqCst), 1);
                    }
                });
            }
        });
        assert_eq!(count.load(SeqCst), 8000);
    }
}
