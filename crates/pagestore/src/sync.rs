//! Atomics, locks and futexes, which a model checker replaces: built with `--cfg shuttle`,
//! shuttle's own, so that it tries interleavings of threads one after the other.
//!
//! Locks that are held only over plain code need not come from here.

#[cfg(not(shuttle))]
pub(crate) use parking_lot::{Mutex, MutexGuard, RwLock};
#[cfg(not(shuttle))]
pub(crate) use std::{sync::atomic, thread};

#[cfg(not(shuttle))]
pub(crate) use real::{Futex, unlock_fair};

#[cfg(shuttle)]
pub(crate) use modelled::{
    ModelFutex as Futex, ModelMutex as Mutex, ModelRwLock as RwLock, unlock_fair,
};
#[cfg(shuttle)]
pub(crate) use shuttle::{
    sync::{MutexGuard, atomic},
    thread,
};

#[cfg(not(shuttle))]
mod real {
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    use super::MutexGuard;

    /// Unlocks and hands the lock to a waiter: for a thread that locks again at once.
    pub(crate) fn unlock_fair<T>(guard: MutexGuard<'_, T>) {
        MutexGuard::unlock_fair(guard);
    }

    /// A futex: a number at which threads sleep until a thread that has changed it wakes them.
    #[derive(Debug, Default)]
    pub(crate) struct Futex(AtomicU32);

    impl Futex {
        pub(crate) fn load(&self) -> u32 {
            self.0.load(SeqCst)
        }

        /// Changes it, so that no thread goes to sleep that has loaded it before.
        pub(crate) fn change(&self) {
            self.0.fetch_add(1, SeqCst);
        }

        /// Sleeps until it is woken, unless the value is not `seen` any more. May return early.
        pub(crate) fn sleep(&self, seen: u32) {
            atomic_wait::wait(&self.0, seen);
        }

        pub(crate) fn wake_one(&self) {
            atomic_wait::wake_one(&self.0);
        }

        pub(crate) fn wake_all(&self) {
            atomic_wait::wake_all(&self.0);
        }
    }
}

/// The model checker's locks, with parking_lot's signatures: a panic does not poison them.
#[cfg(shuttle)]
mod modelled {
    use std::sync::PoisonError;

    use shuttle::sync as model;

    /// Unlocks: the model checker chooses the next thread anyway.
    pub(crate) fn unlock_fair<T>(guard: model::MutexGuard<'_, T>) {
        drop(guard);
    }

    pub(crate) struct ModelMutex<T>(model::Mutex<T>);

    pub(crate) struct ModelRwLock<T>(model::RwLock<T>);

    #[derive(Debug)]
    pub(crate) struct ModelFutex {
        value: model::Mutex<u32>,
        changed: model::Condvar,
    }

    impl Default for ModelFutex {
        fn default() -> ModelFutex {
            ModelFutex { value: model::Mutex::new(0), changed: model::Condvar::new() }
        }
    }

    impl ModelFutex {
        fn value(&self) -> model::MutexGuard<'_, u32> {
            self.value.lock().unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn load(&self) -> u32 {
            *self.value()
        }

        pub(crate) fn change(&self) {
            *self.value() += 1;
        }

        pub(crate) fn sleep(&self, seen: u32) {
            let value = self.value();
            if *value == seen {
                drop(self.changed.wait(value).unwrap_or_else(PoisonError::into_inner));
            }
        }

        pub(crate) fn wake_one(&self) {
            let _value = self.value();
            self.changed.notify_one();
        }

        pub(crate) fn wake_all(&self) {
            let _value = self.value();
            self.changed.notify_all();
        }
    }

    impl<T> ModelMutex<T> {
        pub(crate) fn new(value: T) -> ModelMutex<T> {
            ModelMutex(model::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> model::MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    impl<T> ModelRwLock<T> {
        pub(crate) fn new(value: T) -> ModelRwLock<T> {
            ModelRwLock(model::RwLock::new(value))
        }

        pub(crate) fn read(&self) -> model::RwLockReadGuard<'_, T> {
            self.0.read().unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn write(&self) -> model::RwLockWriteGuard<'_, T> {
            self.0.write().unwrap_or_else(PoisonError::into_inner)
        }
    }
}
