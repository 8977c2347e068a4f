//! Since when each other store is connected, or is not.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use flotilla_region::StoreId;
use parking_lot::Mutex;

/// The last change of each connection, as samples have seen it.
#[derive(Debug, Default)]
pub(super) struct LinkTimes {
    links: Mutex<BTreeMap<StoreId, (bool, Instant)>>,
}

impl LinkTimes {
    /// Takes the state of all connections; those that are not named are forgotten.
    pub(super) fn observe(&self, now: Instant, links: impl Iterator<Item = (StoreId, bool)>) {
        let mut known = self.links.lock();
        let before = std::mem::take(&mut *known);
        known.extend(links.map(|(store, is_up)| {
            let last = before.get(&store).filter(|(was_up, _)| *was_up == is_up);
            (store, last.copied().unwrap_or((is_up, now)))
        }));
    }

    /// Whether a store is connected, and for how long that has been so; `None` before it was
    /// sampled.
    pub(super) fn state(&self, now: Instant, store: StoreId) -> Option<(bool, Duration)> {
        let (is_up, since) = *self.links.lock().get(&store)?;
        Some((is_up, now.saturating_duration_since(since)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_counts_from_the_last_change() {
        let (links, start) = (LinkTimes::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let state = |seconds| {
            let state = links.state(at(seconds), StoreId(2));
            state.map(|(is_up, lasts)| (is_up, lasts.as_secs()))
        };
        assert_eq!(state(0), None);
        for (second, is_up) in [(1, false), (2, false), (3, true), (4, true)] {
            links.observe(at(second), [(StoreId(2), is_up)].into_iter());
        }
        assert_eq!(state(9), Some((true, 6)));
        links.observe(at(10), [(StoreId(2), false)].into_iter());
        assert_eq!(state(12), Some((false, 2)));
        links.observe(at(13), std::iter::empty());
        assert_eq!(state(14), None, "it is no store of the cluster any more");
    }
}
