//! Splits that the leaders of regions ask for, until they are carried out.

use std::collections::BTreeMap;

use flotilla_region::{RegionId, SplitWish};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The wishes of all shards, the last one of each region: a wish that is not fulfilled is repeated.
#[derive(Default)]
pub(crate) struct SplitWishes {
    waiting: Mutex<BTreeMap<RegionId, SplitWish>>,
    changed: Notify,
}

impl SplitWishes {
    /// Adds a wish. Never waits.
    pub(crate) fn push(&self, wish: SplitWish) {
        self.waiting.lock().insert(wish.region, wish);
        self.changed.notify_one();
    }

    /// How many wait.
    pub(crate) fn count(&self) -> usize {
        self.waiting.lock().len()
    }

    /// The next one.
    pub(super) async fn next(&self) -> SplitWish {
        loop {
            let first = self.waiting.lock().pop_first();
            match first {
                Some((_, wish)) => return wish,
                None => self.changed.notified().await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use flotilla_region::{Epoch, SplitReason};

    use super::*;

    #[tokio::test]
    async fn the_last_wish_of_a_region_counts() {
        let wishes = SplitWishes::default();
        let wish = |region, version, parts| SplitWish {
            region: RegionId(region),
            epoch: Epoch { version, ..Epoch::default() },
            reason: SplitReason::Size { parts },
        };
        wishes.push(wish(7, 1, 2));
        wishes.push(wish(8, 1, 2));
        wishes.push(wish(7, 2, 4));
        assert_eq!(wishes.next().await, wish(7, 2, 4));
        assert_eq!(wishes.next().await, wish(8, 1, 2));
    }
}
