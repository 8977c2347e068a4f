//! The writer lock: a ticket lock, first come, first served, with spinning and futexes.
//!
//! Each thread draws a ticket and waits until it is served. The next one mostly waits for the time
//! of a small transaction only, so it spins a few times, and yields in between, before it sleeps.
//! Sleeping threads are spread over futexes by their tickets, so that an unlock wakes the next
//! thread and hardly ever another.
//!
//! No wake-up is lost: an unlock stores the next ticket to be served and then looks whether it was
//! drawn; a lock draws it and then looks whether it is served. If it was drawn, the futex is
//! changed before its sleepers are woken, and a thread that goes to sleep has loaded the futex
//! before the served ticket.

use flotilla_base::sync::atomic::AtomicU64;
use flotilla_base::sync::atomic::Ordering::SeqCst;
use flotilla_base::sync::{Futex, thread};

/// Futexes that threads sleep at. With more threads than that some are woken too early.
const FUTEX_COUNT: usize = 64;

/// How often a thread spins before it sleeps, if it is the next. The others sleep at once.
const LOOKS: u32 = 20;

/// The writer lock.
#[derive(Debug)]
pub(crate) struct WriterLock {
    /// The ticket that the next thread draws.
    next_ticket: AtomicU64,
    /// The ticket that holds the lock.
    now_serving: AtomicU64,
    futexes: [Futex; FUTEX_COUNT],
}

/// Holds the lock until it is dropped.
#[derive(Debug)]
pub(crate) struct WriterGuard<'a> {
    writer_lock: &'a WriterLock,
    ticket: u64,
}

impl WriterLock {
    pub(crate) fn new() -> WriterLock {
        let futexes = std::array::from_fn(|_| Futex::default());
        WriterLock { next_ticket: AtomicU64::new(0), now_serving: AtomicU64::new(0), futexes }
    }

    /// Waits until all threads that came before have unlocked.
    pub(crate) fn lock(&self) -> WriterGuard<'_> {
        let ticket = self.next_ticket.fetch_add(1, SeqCst);
        let futex = self.futex(ticket);
        let mut looks = 0;
        loop {
            let seen = futex.load();
            let now_serving = self.now_serving.load(SeqCst);
            if now_serving == ticket {
                return WriterGuard { writer_lock: self, ticket };
            }
            debug_assert!(now_serving < ticket, "ticket {ticket} was passed over");
            if looks < LOOKS && now_serving + 1 == ticket {
                looks += 1;
                thread::yield_now();
            } else {
                futex.sleep(seen);
            }
        }
    }

    /// Takes the lock if no thread holds it or waits for it.
    pub(crate) fn try_lock(&self) -> Option<WriterGuard<'_>> {
        let ticket = self.now_serving.load(SeqCst);
        let next_ticket = self.next_ticket.compare_exchange(ticket, ticket + 1, SeqCst, SeqCst);
        next_ticket.is_ok().then(|| WriterGuard { writer_lock: self, ticket })
    }

    /// Whether the lock is held, as far as it can be known without waiting.
    pub(crate) fn is_locked(&self) -> bool {
        self.now_serving.load(SeqCst) != self.next_ticket.load(SeqCst)
    }

    /// The ticket of the holder, if a thread holds the lock.
    pub(crate) fn holder(&self) -> Option<u64> {
        let ticket = self.now_serving.load(SeqCst);
        (self.next_ticket.load(SeqCst) != ticket).then_some(ticket)
    }

    /// Whether the holder with this ticket has unlocked.
    pub(crate) fn has_released(&self, ticket: u64) -> bool {
        self.now_serving.load(SeqCst) > ticket
    }

    /// How many threads hold the lock or wait for it.
    #[cfg(test)]
    pub(crate) fn queue_len(&self) -> u64 {
        self.next_ticket.load(SeqCst) - self.now_serving.load(SeqCst)
    }

    fn futex(&self, ticket: u64) -> &Futex {
        &self.futexes[ticket as usize % FUTEX_COUNT]
    }
}

impl Drop for WriterGuard<'_> {
    fn drop(&mut self) {
        let served = self.writer_lock.now_serving.load(SeqCst);
        assert_eq!(served, self.ticket, "two threads held the writer lock");
        let next = self.ticket + 1;
        self.writer_lock.now_serving.store(next, SeqCst);
        if self.writer_lock.next_ticket.load(SeqCst) > next {
            let futex = self.writer_lock.futex(next);
            futex.advance();
            futex.wake_all();
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
        let writer_lock = WriterLock::new();
        let order = Mutex::new(Vec::new());
        let held = writer_lock.lock();
        scope(|scope| {
            // More than there are words, so that some share one.
            for i in 0..FUTEX_COUNT + 10 {
                scope.spawn({
                    let (writer_lock, order) = (&writer_lock, &order);
                    move || {
                        let _held = writer_lock.lock();
                        order.lock().unwrap().push(i);
                    }
                });
                while writer_lock.queue_len() < i as u64 + 2 {
                    yield_now();
                }
            }
            drop(held);
        });
        assert_eq!(*order.lock().unwrap(), (0..FUTEX_COUNT + 10).collect::<Vec<_>>());
        assert_eq!(writer_lock.queue_len(), 0);
    }

    #[test]
    fn who_does_not_wait_has_the_place_only_if_nobody_wants_it() {
        let writer_lock = WriterLock::new();
        let held = writer_lock.try_lock().expect("nobody is there");
        assert!(writer_lock.try_lock().is_none());
        drop(held);
        let held = writer_lock.lock();
        assert!(writer_lock.try_lock().is_none());
        drop(held);
        assert!(writer_lock.try_lock().is_some());
    }

    #[test]
    fn one_at_a_time() {
        let writer_lock = WriterLock::new();
        let (inside, count) = (AtomicU64::new(0), AtomicU64::new(0));
        scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let _held = writer_lock.lock();
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
