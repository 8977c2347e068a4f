//! Tells a read of the disk under a memory map from one of memory, by its duration.
//!
//! A look at a mapped byte costs a cache miss or a minor page fault if the page is in memory, and
//! a request to the disk if not. Only the kernel knows which, and to ask it costs as much as a
//! short read. Two looks at the clock are 20 times cheaper. The answer is a guess, since a thread
//! may lose the CPU meanwhile, so it decides only about hints.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// A longer look has read from a disk, or lost the CPU. A minor page fault that maps 16 pages takes
/// 1 to 2 us, and a fast SSD 10 us and more.
const SLOW: Duration = Duration::from_micros(5);

/// A clock that was read before a look at mapped bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadTimer {
    begin: Instant,
}

impl ReadTimer {
    #[inline]
    pub(crate) fn start() -> ReadTimer {
        ReadTimer { begin: Instant::now() }
    }

    /// Whether more time has passed than a look at memory takes.
    #[inline]
    pub(crate) fn is_slow(self) -> bool {
        self.begin.elapsed() > SLOW
    }

    /// Whether it is slow after this look.
    #[inline]
    pub(crate) fn is_slow_after(self, look: impl FnOnce() -> u8) -> bool {
        black_box(look());
        self.is_slow()
    }
}
