//! The wall clock: the time by which rows expire
//! (decision 44, `docs/decisions/0044-rows-that-expire.md`).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flotilla_identity::LevelRefusal;

/// No clock that is right is behind this: 2026 had begun when this was written. One that is has
/// lost its battery, and a row with its times would expire at once under any other leader.
const EARLIEST_MS: u64 = 1_767_225_600_000;

/// A clock that is farther from those of the other stores is wrong, or theirs are. It then decides
/// nothing that others have to keep to: it would end rows long before their time, for good.
const DEVIATION_MS_MAX: u64 = 10_000;

/// Says whether all stores of the cluster know of rows that expire.
type LevelCheck = dyn Fn() -> Result<(), LevelRefusal> + Send + Sync;

/// The machine's clock, for requests that need the time. Cheap to clone.
#[derive(Clone)]
pub(crate) struct WallClock {
    check_level: Arc<LevelCheck>,
    /// The level never falls again.
    is_level_reached: Arc<AtomicBool>,
    /// How far it is ahead of the clocks of the other stores, as placement has said last.
    deviation_ms: Arc<AtomicI64>,
}

impl fmt::Debug for WallClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WallClock").finish_non_exhaustive()
    }
}

/// Why no row can expire now.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WallClockRefusal {
    #[error(transparent)]
    Level(LevelRefusal),
    #[error("the clock of this store says {now_ms} ms since 1970, which is long ago: set it")]
    Behind { now_ms: u64 },
    #[error(
        "the clock of this store is {deviation_ms} ms ahead of those of the other stores, and \
         {DEVIATION_MS_MAX} are allowed: set it"
    )]
    Deviates { deviation_ms: i64 },
}

impl WallClock {
    /// The clock of a store in a cluster whose feature level `check_level` looks at.
    pub(crate) fn new(
        check_level: impl Fn() -> Result<(), LevelRefusal> + Send + Sync + 'static,
    ) -> Self {
        Self {
            check_level: Arc::new(check_level),
            is_level_reached: Arc::default(),
            deviation_ms: Arc::default(),
        }
    }

    /// Placement has compared the clocks of the stores.
    pub(crate) fn note_deviation(&self, deviation_ms: i64) {
        let before_ms = self.deviation_ms.swap(deviation_ms, Ordering::Relaxed);
        let is_wrong = |ms: i64| ms.unsigned_abs() > DEVIATION_MS_MAX;
        match (is_wrong(before_ms), is_wrong(deviation_ms)) {
            (false, true) => tracing::error!(
                ahead_ms = deviation_ms,
                "the clock of this store is not that of the others: rows do not expire by it"
            ),
            (true, false) => tracing::info!("the clock of this store is that of the others again"),
            _ => {}
        }
    }

    /// How far the clock is from those of the other stores, as far as is known.
    pub(crate) fn deviation_ms(&self) -> u64 {
        self.deviation_ms.load(Ordering::Relaxed).unsigned_abs()
    }

    /// The time for a command in which rows expire.
    ///
    /// # Errors
    ///
    /// A store would not know the command, or the clock cannot be right.
    pub(crate) fn command_ms(&self) -> Result<u64, WallClockRefusal> {
        if !self.is_level_reached.load(Ordering::Relaxed) {
            (self.check_level)().map_err(WallClockRefusal::Level)?;
            self.is_level_reached.store(true, Ordering::Relaxed);
        }
        let deviation_ms = self.deviation_ms.load(Ordering::Relaxed);
        if deviation_ms.unsigned_abs() > DEVIATION_MS_MAX {
            return Err(WallClockRefusal::Deviates { deviation_ms });
        }
        match now_ms() {
            now_ms if now_ms < EARLIEST_MS => Err(WallClockRefusal::Behind { now_ms }),
            now_ms => Ok(now_ms),
        }
    }
}

/// Milliseconds since 1970 by the machine's clock; 0 if that says that it is earlier. A read by a
/// clock that is wrong shows rows for too long, or asks the log for a time.
pub(crate) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn the_level_is_asked_for_until_it_is_reached() {
        let asked = Arc::new(AtomicU64::new(0));
        let clock = WallClock::new({
            let asked = Arc::clone(&asked);
            move || match asked.fetch_add(1, Ordering::Relaxed) {
                0 => Err(LevelRefusal { level: 3, needed: 4, behind: vec!["s2".to_owned()] }),
                _ => Ok(()),
            }
        });
        let refused = clock.command_ms().unwrap_err().to_string();
        assert_eq!(refused, "the feature level is 3, and 4 is needed: upgrade s2");
        assert!(clock.command_ms().unwrap() > EARLIEST_MS);
        assert!(clock.clone().command_ms().is_ok());
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_clock_that_is_not_that_of_the_others_ends_no_row() {
        let clock = WallClock::new(|| Ok(()));
        for (deviation_ms, is_right) in
            [(9_000, true), (-10_001, false), (10_001, false), (0, true)]
        {
            clock.note_deviation(deviation_ms);
            assert_eq!(clock.command_ms().is_ok(), is_right, "{deviation_ms}");
        }
        clock.note_deviation(3_600_000);
        let refused = clock.command_ms().unwrap_err().to_string();
        let ahead = "the clock of this store is 3600000 ms ahead of those of the other stores";
        assert_eq!(refused, format!("{ahead}, and 10000 are allowed: set it"));
    }
}
