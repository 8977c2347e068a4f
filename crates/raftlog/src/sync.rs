//! Locks, condition variables, atomics and threads: those of every day or, when it is built with
//! `--cfg shuttle`, those of a model checker that tries orders of threads one after the other.
//!
//! What other threads may meet takes them from here. Locks that are held only over plain code, with
//! nothing of the kind inside, need not.

#[cfg(not(shuttle))]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
#[cfg(not(shuttle))]
pub(crate) use std::{sync::atomic, thread};

#[cfg(shuttle)]
pub(crate) use modelled::{Condvar, Mutex, MutexGuard};
#[cfg(shuttle)]
pub(crate) use shuttle::{sync::atomic, thread};

/// The model checker's locks, with parking_lot's signatures: a panic does not poison them.
#[cfg(shuttle)]
mod modelled {
    use shuttle::sync as model;
    use std::ops::{Deref, DerefMut};
    use std::sync::{PoisonError, TryLockError};
    use std::time::Duration;

    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(model::Mutex<T>);

    /// Empty only while it is with the condition variable.
    pub(crate) struct MutexGuard<'a, T>(Option<model::MutexGuard<'a, T>>);

    #[derive(Debug, Default)]
    pub(crate) struct Condvar(model::Condvar);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Mutex<T> {
            Mutex(model::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)))
        }

        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            match self.0.try_lock() {
                Ok(guard) => Some(MutexGuard(Some(guard))),
                Err(TryLockError::Poisoned(poisoned)) => {
                    Some(MutexGuard(Some(poisoned.into_inner())))
                }
                Err(TryLockError::WouldBlock) => None,
            }
        }

        pub(crate) fn get_mut(&mut self) -> &mut T {
            self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
        }
    }

    impl<T> MutexGuard<'_, T> {
        /// The model is not fair: it also tries that nobody who waits is next.
        pub(crate) fn unlock_fair(guard: Self) {
            drop(guard);
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.0.as_ref().expect("nobody waits with it")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().expect("nobody waits with it")
        }
    }

    impl Condvar {
        pub(crate) fn new() -> Condvar {
            Condvar(model::Condvar::new())
        }

        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            let held = guard.0.take().expect("nobody waits with it");
            guard.0 = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
        }

        /// There is no time in the model: it waits until it is told.
        pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _timeout: Duration) {
            self.wait(guard);
        }

        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}
