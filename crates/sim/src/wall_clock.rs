//! The wall clocks of the stores, by which rows expire: apart by a bound, and set forth and back.
//!
//! They go faster than the run, so that rows expire within it.

use crate::event_queue::SimTime;

/// A clock that decides nothing: the watermark of a region is later.
pub(crate) const NONE: u64 = 0;

/// The wall clocks say this when the run begins.
const START_MS: u64 = 1_000_000_000;
/// How much faster than the run they go.
const RATE: u64 = 10;
/// Microseconds of the run between two settings of a clock.
const SET_US: u64 = 150_000;
/// The greatest difference of a clock to the right time.
pub(crate) const OFFSET_MS_MAX: u64 = 1_000;
/// Microseconds of the run in a millisecond of the clocks.
const US_PER_MS: u64 = 1_000 / RATE;

/// The wall clock of a store. It is set as it lies by another store's each time: before, right or
/// behind.
pub(crate) fn read(store: usize, now: SimTime) -> u64 {
    let right_ms = START_MS + now / US_PER_MS;
    let turn = now / SET_US + store as u64;
    match turn % 3 {
        0 => right_ms - OFFSET_MS_MAX,
        1 => right_ms,
        _ => right_ms + OFFSET_MS_MAX,
    }
}

/// The time of the run that the clocks need for so much.
pub(crate) const fn run_us(ms: u64) -> SimTime {
    ms.saturating_mul(US_PER_MS)
}
