//! A high watermark: a number in a row that only grows. Numbers below it may be in use, those above
//! are free.
//!
//! Invariants:
//! - At most one raise is under way.
//! - A range that `complete` gives out was never given out before, by this mark or any other of the
//!   same row: the row itself has moved over it, once.
//! - A raise whose result is not known is never taken for done. The next one is refused if it was,
//!   and starts above it.

use crate::rows::{self, RowError, RowSwap, SwapResult};
use std::ops::Range;

/// The high watermark of a row of the system region, with the raise that is under way.
#[derive(Clone, Debug)]
pub struct HighWatermark {
    key: &'static [u8],
    /// The row as last seen; `None` if it does not exist.
    seen: Option<u64>,
    /// Where the mark begins if there is no row.
    floor: u64,
    raising: Option<u64>,
}

impl HighWatermark {
    /// The mark of a new leader, which has read the row in a linearizable way.
    ///
    /// # Errors
    ///
    /// The row is not a number.
    pub fn recover(key: &'static [u8], row: Option<&[u8]>, floor: u64) -> Result<Self, RowError> {
        let seen = row.map(|row| rows::decode(key, row)).transpose()?;
        Ok(Self { key, seen, floor, raising: None })
    }

    /// The first number above everything that is known to be reserved, by any leader.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.seen.map_or(self.floor, |seen| seen.max(self.floor))
    }

    /// Gives out no number below `floor` from now on. Other leaders know of that once a raise has
    /// succeeded.
    pub fn raise_floor(&mut self, floor: u64) {
        self.floor = self.floor.max(floor);
    }

    /// Whether a raise is under way.
    #[must_use]
    pub fn is_raising(&self) -> bool {
        self.raising.is_some()
    }

    /// Asks for everything from [`HighWatermark::end`] up to `to`. Nothing is asked while a raise
    /// is under way, or if `to` is not above the watermark.
    pub fn raise(&mut self, to: u64) -> Option<RowSwap> {
        // A second raise would expect a value that the first one is about to replace, and be
        // refused.
        if self.raising.is_some() || to <= self.end() {
            return None;
        }
        self.raising = Some(to);
        let expected = self.seen.map(rows::encode);
        Some(RowSwap { key: self.key, expected, value: rows::encode(to) })
    }

    /// Learns what became of the raise. Gives the numbers that are now this leader's alone.
    ///
    /// # Errors
    ///
    /// The row is not a number, or went back: it was tampered with.
    pub fn complete(&mut self, result: SwapResult) -> Result<Option<Range<u64>>, RowError> {
        let Some(to) = self.raising.take() else {
            return Ok(None);
        };
        match result {
            SwapResult::Done => {
                let from = self.end();
                assert!(Some(to) > self.seen, "mark went back from {:?} to {to}", self.seen);
                self.seen = Some(to);
                // None, if the floor was raised over the whole range meanwhile.
                Ok((to > from).then_some(from..to))
            }
            SwapResult::Refused { current } => {
                let now = current.map(|row| rows::decode(self.key, &row)).transpose()?;
                // Numbers above the row may be in use, so this leader must not go on from it.
                if now < self.seen {
                    let from = self.end();
                    return Err(RowError::WentBack { key: self.key, from, to: now });
                }
                self.seen = now;
                Ok(None)
            }
            // The next raise finds out: its compare-and-swap is refused if this one happened.
            SwapResult::Unknown => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &[u8] = b"row";

    #[test]
    fn a_raise_counts_only_once_it_is_done() {
        let mut watermark = HighWatermark::recover(KEY, None, 10).unwrap();
        let swap = watermark.raise(20).unwrap();
        assert_eq!((swap.expected, swap.value), (None, rows::encode(20)));
        assert_eq!(watermark.raise(30), None, "one at a time");
        assert_eq!(watermark.complete(SwapResult::Done), Ok(Some(10..20)));
        assert_eq!(watermark.raise(20), None);
        assert_eq!(watermark.raise(21).unwrap().expected, Some(rows::encode(20)));
    }

    #[test]
    fn an_unknown_raise_is_found_out_by_the_next() {
        let mut watermark = HighWatermark::recover(KEY, Some(&rows::encode(5)), 0).unwrap();
        watermark.raise(10).unwrap();
        assert_eq!(watermark.complete(SwapResult::Unknown), Ok(None));
        let again = watermark.raise(10).unwrap();
        assert_eq!(again.expected, Some(rows::encode(5)));
        // The first one had happened after all.
        let current = Some(rows::encode(10));
        assert_eq!(watermark.complete(SwapResult::Refused { current }), Ok(None));
        assert_eq!(watermark.raise(15).unwrap().expected, Some(rows::encode(10)));
        assert_eq!(watermark.complete(SwapResult::Done), Ok(Some(10..15)));
    }

    #[test]
    fn nothing_below_a_raised_floor_is_given() {
        let mut watermark = HighWatermark::recover(KEY, Some(&rows::encode(5)), 0).unwrap();
        watermark.raise(10).unwrap();
        watermark.raise_floor(100);
        assert_eq!(watermark.complete(SwapResult::Done), Ok(None), "it lies below");
        let swap = watermark.raise(110).unwrap();
        assert_eq!((swap.expected, swap.value), (Some(rows::encode(10)), rows::encode(110)));
        watermark.raise_floor(105);
        assert_eq!(watermark.complete(SwapResult::Done), Ok(Some(105..110)));
        watermark.raise_floor(7);
        assert_eq!(watermark.end(), 110, "a floor never falls");
    }

    #[test]
    fn a_row_that_went_back_stops_the_leader() {
        let mut watermark = HighWatermark::recover(KEY, Some(&rows::encode(50)), 0).unwrap();
        watermark.raise(60).unwrap();
        let current = Some(rows::encode(49));
        assert!(matches!(
            watermark.complete(SwapResult::Refused { current }),
            Err(RowError::WentBack { from: 50, to: Some(49), .. })
        ));
        watermark.raise(60).unwrap();
        assert!(watermark.complete(SwapResult::Refused { current: None }).is_err());
    }
}
