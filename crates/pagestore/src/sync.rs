//! Atomics, the locks that are held over some of them, and words that threads sleep at: those of
//! every day or, when it is built with `--cfg shuttle`, those of a model checker that tries orders of
//! threads one after the other.
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

    /// Unlocks, and lets who waits go first: for those who lock again at once.
    pub(crate) fn unlock_fair<T>(guard: MutexGuard<'_, T>) {
        MutexGuard::unlock_fair(guard);
    }

    /// A number that threads sleep at until somebody who has changed it wakes them.
    #[derive(Debug, Default)]
    pub(crate) struct Futex(AtomicU32);

    impl Futex {
        pub(crate) fn load(&self) -> u32 {
            self.0.load(SeqCst)
        }

        /// Changes it, so that nobody goes to sleep who has looked before.
        pub(crate) fn change(&self) {
            self.0.fetch_add(1, SeqCst);
        }

        /// Sleeps until somebody wakes it, unless it is not `seen` any more. May return early.
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

    /// Unlocks: who goes on is chosen anyway.
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
