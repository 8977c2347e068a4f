//! Synchronization: locks, condition variables, atomics, a futex and threads. With `--cfg shuttle`
//! they are those of a model checker, which tries one schedule of the threads after the other.
//!
//! Code in which threads may interact takes them from here. Locks that are held only over plain
//! code, with no other synchronization inside, need not.

#[cfg(not(shuttle))]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
#[cfg(not(shuttle))]
pub(crate) use std::{sync::atomic, thread};

#[cfg(not(shuttle))]
pub(crate) use real::Futex;

#[cfg(shuttle)]
pub(crate) use modelled::{
    ModelCondvar as Condvar, ModelFutex as Futex, ModelMutex as Mutex,
    ModelMutexGuard as MutexGuard,
};
#[cfg(shuttle)]
pub(crate) use shuttle::{sync::atomic, thread};

#[cfg(not(shuttle))]
mod real {
    use std::sync::atomic::{
        AtomicU32,
        Ordering::{Acquire, Release, SeqCst},
    };

    /// A futex: a word at which threads sleep until a thread that has changed it wakes them.
    #[derive(Debug)]
    pub(crate) struct Futex(AtomicU32);

    impl Futex {
        pub(crate) fn new(value: u32) -> Futex {
            Futex(AtomicU32::new(value))
        }

        pub(crate) fn load(&self) -> u32 {
            self.0.load(Acquire)
        }

        pub(crate) fn store(&self, value: u32) {
            self.0.store(value, Release);
        }

        /// Compare and exchange: whether it was `from`, and is `to` now.
        pub(crate) fn replace(&self, from: u32, to: u32) -> bool {
            self.0.compare_exchange(from, to, SeqCst, SeqCst).is_ok()
        }

        /// Sleeps until woken, unless it is not `seen` any more. May return early.
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
    use shuttle::sync as model;
    use std::ops::{Deref, DerefMut};
    use std::sync::{PoisonError, TryLockError};
    use std::time::Duration;

    #[derive(Debug, Default)]
    pub(crate) struct ModelMutex<T>(model::Mutex<T>);

    /// Empty only while it is with the condition variable.
    pub(crate) struct ModelMutexGuard<'a, T>(Option<model::MutexGuard<'a, T>>);

    #[derive(Debug, Default)]
    pub(crate) struct ModelCondvar(model::Condvar);

    #[derive(Debug)]
    pub(crate) struct ModelFutex {
        value: model::Mutex<u32>,
        changed: model::Condvar,
    }

    impl<T> ModelMutex<T> {
        pub(crate) fn new(value: T) -> ModelMutex<T> {
            ModelMutex(model::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> ModelMutexGuard<'_, T> {
            ModelMutexGuard(Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)))
        }

        pub(crate) fn try_lock(&self) -> Option<ModelMutexGuard<'_, T>> {
            match self.0.try_lock() {
                Ok(guard) => Some(ModelMutexGuard(Some(guard))),
                Err(TryLockError::Poisoned(poisoned)) => {
                    Some(ModelMutexGuard(Some(poisoned.into_inner())))
                }
                Err(TryLockError::WouldBlock) => None,
            }
        }

        pub(crate) fn get_mut(&mut self) -> &mut T {
            self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
        }
    }

    impl<T> ModelMutexGuard<'_, T> {
        /// The model is not fair: it also tries schedules in which no waiter is next.
        pub(crate) fn unlock_fair(guard: Self) {
            drop(guard);
        }
    }

    impl<T> Deref for ModelMutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.0.as_ref().expect("nobody waits with it")
        }
    }

    impl<T> DerefMut for ModelMutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().expect("nobody waits with it")
        }
    }

    impl ModelCondvar {
        pub(crate) fn wait<T>(&self, guard: &mut ModelMutexGuard<'_, T>) {
            let held = guard.0.take().expect("nobody waits with it");
            guard.0 = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
        }

        /// There is no time in the model: it waits until it is notified.
        pub(crate) fn wait_for<T>(&self, guard: &mut ModelMutexGuard<'_, T>, _timeout: Duration) {
            self.wait(guard);
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }

    impl ModelFutex {
        pub(crate) fn new(value: u32) -> ModelFutex {
            ModelFutex { value: model::Mutex::new(value), changed: model::Condvar::new() }
        }

        fn value(&self) -> model::MutexGuard<'_, u32> {
            self.value.lock().unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn load(&self) -> u32 {
            *self.value()
        }

        pub(crate) fn store(&self, value: u32) {
            *self.value() = value;
        }

        pub(crate) fn replace(&self, from: u32, to: u32) -> bool {
            let mut value = self.value();
            let is_replaced = *value == from;
            *value = if is_replaced { to } else { *value };
            is_replaced
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
}
