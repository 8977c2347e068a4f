//! The wall clock: the time by which rows expire
//! (decision 44, `docs/decisions/0044-rows-that-expire.md`).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flotilla_identity::LevelRefusal;

/// No clock that is right is behind this: 2026 had begun when this was written. One that is has
/// lost its battery, and a row with its times would expire at once under any other leader.
const EARLIEST_MS: u64 = 1_767_225_600_000;

/// Says whether all stores of the cluster know of rows that expire.
type LevelCheck = dyn Fn() -> Result<(), LevelRefusal> + Send + Sync;

/// The machine's clock, for requests that need the time. Cheap to clone.
#[derive(Clone)]
pub(crate) struct WallClock {
    check_level: Arc<LevelCheck>,
    /// The level never falls again.
    is_level_reached: Arc<AtomicBool>,
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
}

impl WallClock {
    /// The clock of a store in a cluster whose feature level `check_level` looks at.
    pub(crate) fn new(
        check_level: impl Fn() -> Result<(), LevelRefusal> + Send + Sync + 'static,
    ) -> Self {
        Self { check_level: Arc::new(check_level), is_level_reached: Arc::default() }
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
}
