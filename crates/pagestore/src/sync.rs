//! Atomics, and the locks that are held over some of them: those of every day or, when it is built
//! with `--cfg shuttle`, those of a model checker that tries orders of threads one after the other.
//!
//! Locks that are held only over plain code need not come from here.

#[cfg(not(shuttle))]
pub(crate) use parking_lot::{Mutex, MutexGuard, RwLock};
#[cfg(not(shuttle))]
pub(crate) use std::sync::atomic;

#[cfg(shuttle)]
pub(crate) use modelled::{Mutex, RwLock};
#[cfg(shuttle)]
pub(crate) use shuttle::sync::{MutexGuard, atomic};

/// The model checker's locks, with parking_lot's signatures: a panic does not poison them.
#[cfg(shuttle)]
mod modelled {
    use std::sync::PoisonError;

    use shuttle::sync as model;

    pub(crate) struct Mutex<T>(model::Mutex<T>);

    pub(crate) struct RwLock<T>(model::RwLock<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Mutex<T> {
            Mutex(model::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> model::MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    impl<T> RwLock<T> {
        pub(crate) fn new(value: T) -> RwLock<T> {
            RwLock(model::RwLock::new(value))
        }

        pub(crate) fn read(&self) -> model::RwLockReadGuard<'_, T> {
            self.0.read().unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn write(&self) -> model::RwLockWriteGuard<'_, T> {
            self.0.write().unwrap_or_else(PoisonError::into_inner)
        }
    }
}
