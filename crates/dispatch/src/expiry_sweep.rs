//! The order and the pace in which a store removes the expired rows of the regions that it leads
//! (`docs/decisions/0044-rows-that-expire.md`).
//!
//! A pass takes the regions one after the other, and of each the column families, from the first
//! key to the last, part by part.
//! A new pass begins an interval after the last one did. Regions in which no row expires take no
//! time.
//!
//! Invariant: over any time, no more rows are removed than the rate allows, and one part.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use flotilla_kv::ColumnFamily;
use flotilla_region::RegionId;

/// The time for one row that is removed: 20,000 a second.
const ROW_INTERVAL: Duration = Duration::from_micros(50);

/// Rows that one part looks at.
pub const SWEEP_ROWS_MAX: u64 = 20_000;
/// Expired rows that one part finds, so that the command that removes them is applied in a few
/// milliseconds.
pub const SWEEP_EXPIRED_MAX: u64 = 1_000;

/// The next step of a sweep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SweepStep {
    /// Nothing before this time.
    Wait(Duration),
    /// The regions that the store leads are to be named by [`ExpirySweep::begin`].
    Begin,
    /// Some rows are to be looked at, and those that have expired removed;
    /// [`ExpirySweep::looked`] says how that went.
    Look(SweepPlace),
}

/// The rows of a column family of a region, from a key on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweepPlace {
    /// The region.
    pub region: RegionId,
    /// The column family.
    pub family: ColumnFamily,
    /// The first key to look at.
    pub from: Bytes,
}

/// The sweep of a store. Times are counted from any moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpirySweep {
    /// From the beginning of a pass to that of the next.
    interval: Duration,
    /// Parts of the pass that are not done, and where to look on in the first.
    waiting: VecDeque<(RegionId, ColumnFamily)>,
    from: Bytes,
    /// When the next part, or the next pass, may begin.
    next_part: Duration,
    next_pass: Duration,
}

impl ExpirySweep {
    /// A sweep that begins a pass each `interval`: a row is on disk for little longer than that
    /// after its time, as long as the rate suffices. The first pass begins an interval after `now`,
    /// for a store that starts has other work.
    #[must_use]
    pub fn new(now: Duration, interval: Duration) -> Self {
        let next_pass = now.saturating_add(interval);
        let (waiting, from) = (VecDeque::new(), Bytes::new());
        Self { interval, waiting, from, next_part: now, next_pass }
    }

    /// The next step at `now`.
    #[must_use]
    pub fn next(&self, now: Duration) -> SweepStep {
        let (ready, step) = match self.waiting.front() {
            Some(&(region, family)) => {
                let from = self.from.clone();
                (self.next_part, SweepStep::Look(SweepPlace { region, family, from }))
            }
            None => (self.next_part.max(self.next_pass), SweepStep::Begin),
        };
        if now < ready { SweepStep::Wait(ready) } else { step }
    }

    /// Begins a pass over these regions.
    pub fn begin(&mut self, now: Duration, regions: impl IntoIterator<Item = RegionId>) {
        self.next_pass = now.saturating_add(self.interval);
        let families = |region| ColumnFamily::ALL.map(|family| (region, family));
        self.waiting = regions.into_iter().flat_map(families).collect();
        self.from = Bytes::new();
    }

    /// A part was looked at: `rows` of it were removed, and the column family goes on at `next`.
    /// `None` if it has no more rows, or cannot be swept from here now: then the next pass does it.
    pub fn looked(&mut self, now: Duration, rows: u64, next: Option<Bytes>) {
        let rows = u32::try_from(rows).unwrap_or(u32::MAX);
        self.next_part = now.saturating_add(ROW_INTERVAL.saturating_mul(rows));
        if next.is_none() {
            self.waiting.pop_front();
        }
        self.from = next.unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: RegionId = RegionId(1);
    const TWO: RegionId = RegionId(2);

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn look(region: RegionId, family: ColumnFamily, from: &'static [u8]) -> SweepStep {
        SweepStep::Look(SweepPlace { region, family, from: Bytes::from_static(from) })
    }

    fn sweep(now: Duration) -> ExpirySweep {
        ExpirySweep::new(now, at(60_000))
    }

    #[test]
    fn regions_are_swept_part_by_part_and_again_after_the_interval() {
        let mut sweep = sweep(at(500));
        assert_eq!(sweep.next(at(500)), SweepStep::Wait(at(60_500)));
        assert_eq!(sweep.next(at(60_500)), SweepStep::Begin);
        sweep.begin(at(60_500), [ONE, TWO]);
        assert_eq!(sweep.next(at(60_500)), look(ONE, ColumnFamily::Default, b""));
        sweep.looked(at(60_501), 0, Some(Bytes::from_static(b"k")));
        assert_eq!(sweep.next(at(60_501)), look(ONE, ColumnFamily::Default, b"k"));
        for family in [ColumnFamily::Lock, ColumnFamily::Write] {
            sweep.looked(at(60_501), 0, None);
            assert_eq!(sweep.next(at(60_501)), look(ONE, family, b""));
        }
        for family in ColumnFamily::ALL {
            sweep.looked(at(60_501), 0, None);
            assert_eq!(sweep.next(at(60_501)), look(TWO, family, b""));
        }
        sweep.looked(at(60_502), 0, None);
        assert_eq!(sweep.next(at(60_502)), SweepStep::Wait(at(120_500)));
    }

    #[test]
    fn rows_are_removed_at_a_rate() {
        let mut paced = sweep(at(0));
        paced.begin(at(0), [ONE]);
        paced.looked(at(10), SWEEP_EXPIRED_MAX, Some(Bytes::from_static(b"k")));
        assert_eq!(paced.next(at(10)), SweepStep::Wait(at(60)));
        // A million rows that expire together are gone within a minute.
        let (mut now, mut rows) = (at(0), 0);
        let mut sweep = sweep(now);
        sweep.begin(now, [ONE]);
        while rows < 1_000_000 {
            match sweep.next(now) {
                SweepStep::Wait(until) => now = until,
                SweepStep::Look(place) => {
                    assert_eq!(place.region, ONE);
                    rows += SWEEP_EXPIRED_MAX;
                    sweep.looked(now, SWEEP_EXPIRED_MAX, Some(Bytes::from_static(b"k")));
                }
                SweepStep::Begin => panic!("the region is not done"),
            }
        }
        assert!(now > at(49_000) && now < at(60_000), "{now:?}");
        sweep.looked(now, u64::MAX, None);
        assert!(
            matches!(sweep.next(now), SweepStep::Wait(_)),
            "a number without sense is no panic"
        );
    }
}
