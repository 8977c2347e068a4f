//! What those who keep the store going tell each other: writers, checkpoints, and the thread that
//! makes them.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::given::Refused;
use crate::pressure::Pressure;
use crate::schedule::Schedule;

/// What is needed to keep a store going.
#[derive(Debug)]
pub(crate) struct Upkeep {
    pub(crate) pressure: Pressure,
    pub(crate) schedule: Mutex<Schedule>,
    pub(crate) bell: Bell,
    /// Nothing is given back of the trash in the background any more.
    pub(crate) is_trash_unreadable: AtomicBool,
    /// What was refused last when it was to be given back. The trash is given back from its newest on, so
    /// nothing that was refused before comes up again.
    pub(crate) refused_garbage: Mutex<Option<Refused>>,
}

impl Upkeep {
    pub(crate) fn new() -> Upkeep {
        Upkeep {
            pressure: Pressure::new(),
            schedule: Mutex::default(),
            bell: Bell::default(),
            is_trash_unreadable: AtomicBool::new(false),
            refused_garbage: Mutex::default(),
        }
    }
}

/// Wakes the thread that makes checkpoints.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    count: Mutex<u64>,
    rung: Condvar,
    hurried: AtomicU32,
}

/// Somebody waits for a checkpoint that is under way, until this is dropped.
pub(crate) struct Hurry<'a>(&'a Bell);

impl Bell {
    /// Says that there may be something to do.
    pub(crate) fn ring(&self) {
        *self.count.lock() += 1;
        self.rung.notify_all();
    }

    /// Waits until it was rung again since it had been so often, or the time is over. Returns how
    /// often it was rung.
    pub(crate) fn wait(&self, seen: u64, timeout: Duration) -> u64 {
        let mut count = self.count.lock();
        if *count == seen {
            self.rung.wait_for(&mut count, timeout);
        }
        *count
    }

    /// Asks a checkpoint that is under way not to rest.
    pub(crate) fn hurry(&self) -> Hurry<'_> {
        self.hurried.fetch_add(1, Ordering::Relaxed);
        self.ring();
        Hurry(self)
    }

    pub(crate) fn is_hurried(&self) -> bool {
        self.hurried.load(Ordering::Relaxed) > 0
    }

    /// Rests for so long, or until somebody is in a hurry.
    pub(crate) fn rest(&self, time: Duration) {
        let end = Instant::now() + time;
        let mut count = self.count.lock();
        while !self.is_hurried() && !self.rung.wait_until(&mut count, end).timed_out() {}
    }
}

impl Drop for Hurry<'_> {
    fn drop(&mut self) {
        self.0.hurried.fetch_sub(1, Ordering::Relaxed);
    }
}
