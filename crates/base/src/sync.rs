//! Locks, condition variables, atomics, futexes and threads: the usual ones or, when built with
//! `--cfg shuttle`, those of a model checker that tries one schedule of threads after the other.
//!
//! State that threads share under a schedule that matters takes its locks from here. A lock that is
//! held only over plain code, with none of these inside, need not.

#[cfg(not(shuttle))]
pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
#[cfg(not(shuttle))]
pub use std::{sync::atomic, thread};

#[cfg(not(shuttle))]
pub use real::{Futex, unlock_fair};

#[cfg(shuttle)]
pub use modelled::{Condvar, Futex, Mutex, MutexGuard, RwLock, unlock_fair};
#[cfg(shuttle)]
pub use shuttle::{sync::atomic, thread};

#[cfg(not(shuttle))]
mod real {
    use std::sync::atomic::{
        AtomicU32,
        Ordering::{Acquire, Release, SeqCst},
    };

    #[cfg(target_os = "linux")]
    use rustix::thread::futex;

    use super::MutexGuard;

    /// Unlocks, and hands the lock to a waiting thread: for a holder that locks again at once.
    pub fn unlock_fair<T>(guard: MutexGuard<'_, T>) {
        MutexGuard::unlock_fair(guard);
    }

    /// A word that threads sleep at until another thread has changed it and wakes them: futex(2) on
    /// Linux, a condition variable elsewhere.
    #[derive(Debug, Default)]
    pub struct Futex {
        word: AtomicU32,
        #[cfg(not(target_os = "linux"))]
        sleepers: (super::Mutex<()>, super::Condvar),
    }

    impl Futex {
        /// A futex whose word is `value`.
        #[must_use]
        pub fn new(value: u32) -> Futex {
            Futex {
                word: AtomicU32::new(value),
                #[cfg(not(target_os = "linux"))]
                sleepers: Default::default(),
            }
        }

        /// The word. Writes of the storing thread before its store are visible.
        #[must_use]
        pub fn load(&self) -> u32 {
            self.word.load(Acquire)
        }

        /// Sets the word and wakes no thread.
        pub fn store(&self, value: u32) {
            // No stronger: a caller that looks at another atomic afterwards puts a fence in
            // between.
            self.word.store(value, Release);
        }

        /// Sets the word to `to` if it is `from`; true if it was.
        #[must_use]
        pub fn replace(&self, from: u32, to: u32) -> bool {
            // Callers decide by this word and by counters of their own, and have to see both change
            // in one order.
            self.word.compare_exchange(from, to, SeqCst, SeqCst).is_ok()
        }

        /// Adds one, so that a thread which has looked before does not go to sleep.
        pub fn advance(&self) {
            self.word.fetch_add(1, SeqCst);
        }
    }

    #[cfg(target_os = "linux")]
    impl Futex {
        /// Sleeps until a wake-up, unless the word is not `seen` any more. May return early.
        pub fn sleep(&self, seen: u32) {
            // An error means that the word has changed or a signal came: both are early returns.
            let _ = futex::wait(&self.word, futex::Flags::PRIVATE, seen, None);
        }

        /// Wakes one of the threads that sleep here.
        pub fn wake_one(&self) {
            self.wake(1);
        }

        /// Wakes all threads that sleep here.
        pub fn wake_all(&self) {
            self.wake(i32::MAX as u32);
        }

        fn wake(&self, thread_count: u32) {
            // It fails for a word that is no memory of this process only.
            let woken = futex::wake(&self.word, futex::Flags::PRIVATE, thread_count);
            debug_assert!(woken.is_ok(), "{woken:?}");
        }
    }

    #[cfg(not(target_os = "linux"))]
    impl Futex {
        /// Sleeps until a wake-up, unless the word is not `seen` any more. May return early.
        pub fn sleep(&self, seen: u32) {
            let mut guard = self.sleepers.0.lock();
            if self.load() == seen {
                self.sleepers.1.wait(&mut guard);
            }
        }

        /// Wakes one of the threads that sleep here.
        pub fn wake_one(&self) {
            // The lock orders the wake-up behind a sleeper's look at the word.
            let _guard = self.sleepers.0.lock();
            self.sleepers.1.notify_one();
        }

        /// Wakes all threads that sleep here.
        pub fn wake_all(&self) {
            let _guard = self.sleepers.0.lock();
            self.sleepers.1.notify_all();
        }
    }
}

/// The model checker's primitives, with parking_lot's signatures: a panic does not poison them.
#[cfg(shuttle)]
#[allow(missing_docs, reason = "the real ones are documented")]
mod modelled {
    use shuttle::sync as model;
    use std::ops::{Deref, DerefMut};
    use std::sync::{PoisonError, TryLockError};
    use std::time::Duration;

    #[derive(Debug, Default)]
    pub struct Mutex<T>(model::Mutex<T>);

    /// Empty only while the condition variable has it.
    pub struct MutexGuard<'a, T>(Option<model::MutexGuard<'a, T>>);

    #[derive(Debug, Default)]
    pub struct Condvar(model::Condvar);

    #[derive(Debug)]
    pub struct RwLock<T>(model::RwLock<T>);

    #[derive(Debug)]
    pub struct Futex {
        value: model::Mutex<u32>,
        changed: model::Condvar,
    }

    /// The model is not fair: it also tries schedules in which no waiting thread is next.
    pub fn unlock_fair<T>(guard: MutexGuard<'_, T>) {
        drop(guard);
    }

    impl<T> Mutex<T> {
        pub fn new(value: T) -> Mutex<T> {
            Mutex(model::Mutex::new(value))
        }

        pub fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)))
        }

        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            match self.0.try_lock() {
                Ok(guard) => Some(MutexGuard(Some(guard))),
                Err(TryLockError::Poisoned(poisoned)) => {
                    Some(MutexGuard(Some(poisoned.into_inner())))
                }
                Err(TryLockError::WouldBlock) => None,
            }
        }

        pub fn get_mut(&mut self) -> &mut T {
            self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
        }
    }

    impl<T> MutexGuard<'_, T> {
        pub fn unlock_fair(guard: Self) {
            drop(guard);
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.0.as_ref().expect("no thread waits with it")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().expect("no thread waits with it")
        }
    }

    impl<T> RwLock<T> {
        pub fn new(value: T) -> RwLock<T> {
            RwLock(model::RwLock::new(value))
        }

        pub fn read(&self) -> model::RwLockReadGuard<'_, T> {
            self.0.read().unwrap_or_else(PoisonError::into_inner)
        }

        pub fn write(&self) -> model::RwLockWriteGuard<'_, T> {
            self.0.write().unwrap_or_else(PoisonError::into_inner)
        }
    }

    impl Condvar {
        pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            let held = guard.0.take().expect("no thread waits with it");
            guard.0 = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
        }

        /// There is no time in the model: it waits for a notification.
        pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _timeout: Duration) {
            self.wait(guard);
        }

        pub fn notify_all(&self) {
            self.0.notify_all();
        }
    }

    impl Default for Futex {
        fn default() -> Futex {
            Futex::new(0)
        }
    }

    impl Futex {
        pub fn new(value: u32) -> Futex {
            Futex { value: model::Mutex::new(value), changed: model::Condvar::new() }
        }

        fn value(&self) -> model::MutexGuard<'_, u32> {
            self.value.lock().unwrap_or_else(PoisonError::into_inner)
        }

        pub fn load(&self) -> u32 {
            *self.value()
        }

        pub fn store(&self, value: u32) {
            *self.value() = value;
        }

        pub fn replace(&self, from: u32, to: u32) -> bool {
            let mut value = self.value();
            let is_replaced = *value == from;
            *value = if is_replaced { to } else { *value };
            is_replaced
        }

        pub fn advance(&self) {
            *self.value() += 1;
        }

        pub fn sleep(&self, seen: u32) {
            let value = self.value();
            if *value == seen {
                drop(self.changed.wait(value).unwrap_or_else(PoisonError::into_inner));
            }
        }

        pub fn wake_one(&self) {
            // Under the lock: between the look of a thread and its sleep no wake-up may be lost, as
            // with the kernel's futex.
            let _value = self.value();
            self.changed.notify_one();
        }

        pub fn wake_all(&self) {
            let _value = self.value();
            self.changed.notify_all();
        }
    }
}
