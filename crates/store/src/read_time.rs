//! The time at which a read looks at rows that expire.
//!
//! It is the later of two: the clock of the caller, and the region's watermark, which the log has
//! named and every replica has. A row that is left out by the clock alone is noted: the caller logs
//! the time before it answers, so that a later leader with a slower clock agrees (decision 44,
//! `docs/decisions/0044-rows-that-expire.md`).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::ReadError;

/// How far ahead of the clock the log is asked to name a time, so that reads among rows that expire
/// one after the other do not each wait for the log. Rows may be gone by as much before their time.
pub const WATERMARK_AHEAD_MS: u64 = 100;

/// The time of a read. Looks at the watermark when the first row is met that expires.
#[derive(Debug, Default)]
pub(crate) struct ReadTime {
    /// The clock of the caller; `None` sees all rows.
    clock_ms: Option<u64>,
    watermark_ms: OnceLock<u64>,
    /// The time that has to be logged; 0 for none. Read by those who have read the rows.
    unlogged_ms: AtomicU64,
}

impl Clone for ReadTime {
    fn clone(&self) -> Self {
        Self {
            clock_ms: self.clock_ms,
            watermark_ms: self.watermark_ms.clone(),
            unlogged_ms: AtomicU64::new(self.unlogged_ms.load(Ordering::Relaxed)),
        }
    }
}

impl ReadTime {
    pub(crate) fn at(clock_ms: u64) -> Self {
        Self { clock_ms: Some(clock_ms), ..Self::default() }
    }

    pub(crate) fn unlogged_ms(&self) -> Option<u64> {
        Some(self.unlogged_ms.load(Ordering::Relaxed)).filter(|time_ms| *time_ms > 0)
    }

    /// Whether a row that expires at `expires_ms` is left out.
    pub(crate) fn hides(
        &self,
        expires_ms: u64,
        watermark: impl FnOnce() -> Result<u64, ReadError>,
    ) -> Result<bool, ReadError> {
        if self.clock_ms.is_none() {
            return Ok(false);
        }
        let (now_ms, watermark_ms) = self.now(watermark)?;
        if expires_ms > now_ms {
            return Ok(false);
        }
        if expires_ms > watermark_ms {
            let time_ms = now_ms.saturating_add(WATERMARK_AHEAD_MS);
            self.unlogged_ms.store(time_ms, Ordering::Relaxed);
        }
        Ok(true)
    }

    /// The time of the read, and the region's watermark.
    pub(crate) fn now(
        &self,
        watermark: impl FnOnce() -> Result<u64, ReadError>,
    ) -> Result<(u64, u64), ReadError> {
        let watermark_ms = match self.watermark_ms.get() {
            Some(watermark_ms) => *watermark_ms,
            None => *self.watermark_ms.get_or_init({
                let watermark_ms = watermark()?;
                move || watermark_ms
            }),
        };
        Ok((self.clock_ms.unwrap_or_default().max(watermark_ms), watermark_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_later_of_clock_and_watermark_decides() {
        for (clock_ms, watermark_ms) in [(5, 9), (9, 5)] {
            let time = ReadTime::at(clock_ms);
            let hides = |expires_ms| time.hides(expires_ms, || Ok(watermark_ms)).unwrap();
            assert!(!hides(10) && hides(5) && time.unlogged_ms().is_none());
            assert!(hides(9));
            assert_eq!(time.unlogged_ms(), (clock_ms > watermark_ms).then_some(109));
        }
        let all = ReadTime::default();
        assert!(!all.hides(1, || unreachable!("it does not matter")).unwrap());
    }

    #[test]
    fn a_watermark_that_cannot_be_read_is_asked_for_again() {
        let time = ReadTime::at(5);
        assert!(time.hides(5, || Err(ReadError::RegionNotFound)).is_err());
        assert!(time.hides(5, || Ok(0)).unwrap());
        assert!(time.hides(5, || unreachable!("it is known")).unwrap());
    }
}
