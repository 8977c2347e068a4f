//! A token bucket: how many bytes of snapshots flow in one direction, over all streams, by whether
//! the store serves clients.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

use crate::config::SnapshotConfig;

/// The time whose bytes may flow at once after a rest. Longer than a timer is late, so that the
/// rate is kept on average.
const BURST: Duration = Duration::from_millis(20);

/// The load is looked at so often while bytes flow.
const LOAD_WINDOW: Duration = Duration::from_millis(100);

/// With fewer requests and entries in a second a store is idle: the entries of placement are less.
/// `docs/decisions/0041-snapshots-give-way-to-clients.md`
const LOADED_PER_S: f64 = 100.0;

/// How many requests and entries were served since the node started.
pub(crate) type ServedCount = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The rates of both directions, which may change while bytes flow.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotRates(Arc<Mutex<SnapshotConfig>>);

impl From<SnapshotConfig> for SnapshotRates {
    fn from(config: SnapshotConfig) -> Self {
        Self(Arc::new(Mutex::new(config)))
    }
}

impl SnapshotRates {
    /// Other rates from now on. Bytes that wait already flow at the former ones.
    pub(crate) fn set(&self, config: SnapshotConfig) {
        *self.0.lock() = config;
    }
}

/// A bound on the bytes of a second, and a lower one while clients are served. Takers wait in the
/// order in which they ask.
pub(crate) struct ByteRate {
    rates: SnapshotRates,
    served: ServedCount,
    flow: Mutex<Flow>,
}

struct Flow {
    /// All bytes that were taken until now will have flowed then.
    flowed: Instant,
    load: LoadWindow,
}

/// Whether the store is under load, from how many requests it has served.
struct LoadWindow {
    since: Instant,
    served: u64,
    is_loaded: bool,
}

impl LoadWindow {
    /// Whether it is by now, when so many were served. The first window is taken for loaded.
    fn look(&mut self, now: Instant, served: u64) -> bool {
        let passed = now.saturating_duration_since(self.since);
        if passed >= LOAD_WINDOW {
            let more = served.saturating_sub(self.served) as f64;
            self.is_loaded = more > passed.as_secs_f64() * LOADED_PER_S;
            (self.since, self.served) = (now, served);
        }
        self.is_loaded
    }
}

impl ByteRate {
    /// A bucket of its own, with these rates, beside what is `served`.
    pub(crate) fn new(rates: impl Into<SnapshotRates>, served: ServedCount) -> Self {
        let now = Instant::now();
        let load = LoadWindow { since: now, served: served(), is_loaded: true };
        Self { rates: rates.into(), served, flow: Mutex::new(Flow { flowed: now, load }) }
    }

    /// Waits until `bytes` may flow.
    ///
    /// # Cancel safety
    ///
    /// A taker that goes away has taken its bytes all the same.
    pub(crate) async fn take(&self, bytes: usize) {
        let now = Instant::now();
        let flowed = {
            let mut flow = self.flow.lock();
            let is_loaded = flow.load.look(now, (self.served)());
            let Some(bytes_per_s) = rate(*self.rates.0.lock(), is_loaded) else { return };
            let cost = Duration::from_secs_f64(bytes as f64 / bytes_per_s as f64);
            flow.flowed = flow.flowed.max(now) + cost;
            flow.flowed
        };
        // An instant before the machine's first is not needed: then nothing is waited for.
        if let Some(start) = flowed.checked_sub(BURST) {
            sleep_until(start).await;
        }
    }
}

/// Bytes in a second; none if there is no bound.
fn rate(config: SnapshotConfig, is_loaded: bool) -> Option<u64> {
    let bound = |bytes_per_s: u64| (bytes_per_s > 0).then_some(bytes_per_s);
    let under_load = bound(config.bytes_per_s_under_load).filter(|_| is_loaded);
    bound(config.bytes_per_s).into_iter().chain(under_load).min()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    const RATES: SnapshotConfig =
        SnapshotConfig { bytes_per_s: 8 << 20, bytes_per_s_under_load: 1 << 20 };

    /// A bucket beside requests that are counted by hand.
    fn with_load(config: SnapshotConfig) -> (ByteRate, Arc<AtomicU64>) {
        let count = Arc::new(AtomicU64::new(0));
        let served = Arc::clone(&count);
        (ByteRate::new(config, Arc::new(move || served.load(Ordering::Relaxed))), count)
    }

    fn idle(bytes_per_s: u64) -> ByteRate {
        ByteRate::new(SnapshotConfig { bytes_per_s, bytes_per_s_under_load: 0 }, Arc::new(|| 0))
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_flow_at_the_rate_and_some_at_once_after_a_rest() {
        let rate = idle(1 << 20);
        let start = Instant::now();
        rate.take(1 << 14).await;
        assert!(start.elapsed() < Duration::from_millis(2), "{:?}", start.elapsed());
        for _ in 0..4 {
            rate.take(1 << 20).await;
        }
        let took = start.elapsed();
        let expected = Duration::from_millis(3990)..Duration::from_millis(4010);
        assert!(expected.contains(&took), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn two_takers_share_a_rate() {
        let rate = idle(1 << 20);
        let start = Instant::now();
        let take = || async {
            for _ in 0..8 {
                rate.take(1 << 18).await;
            }
        };
        tokio::join!(take(), take());
        let took = start.elapsed();
        assert!(took > Duration::from_millis(3900), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn another_rate_counts_from_the_next_bytes_on() {
        let rates = SnapshotRates::from(RATES);
        let rate = ByteRate::new(rates.clone(), Arc::new(|| 0));
        let time_of_a_mib = || async {
            let start = Instant::now();
            rate.take(1 << 20).await;
            start.elapsed().as_millis()
        };
        assert!((970..1010).contains(&time_of_a_mib().await), "the first moments are loaded");
        rates.set(SnapshotConfig { bytes_per_s: 2 << 20, bytes_per_s_under_load: 0 });
        assert!((490..510).contains(&time_of_a_mib().await));
    }

    #[tokio::test(start_paused = true)]
    async fn no_rate_waits_for_nothing() {
        let (rate, start) = (idle(0), Instant::now());
        rate.take(usize::MAX).await;
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    /// How long 4 MiB take, while so many requests come in a second.
    async fn time_of_4_mib(rate: &ByteRate, count: &AtomicU64, requests_per_s: u64) -> Duration {
        let start = Instant::now();
        for _ in 0..64 {
            let before = Instant::now();
            rate.take(1 << 16).await;
            let ms = before.elapsed().as_millis() as u64;
            count.fetch_add(ms * requests_per_s / 1000, Ordering::Relaxed);
        }
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_flow_slower_while_clients_are_served() {
        let (rate, count) = with_load(RATES);
        // The first moments are taken for loaded.
        let idle = time_of_4_mib(&rate, &count, 10).await;
        assert!((500..700).contains(&idle.as_millis()), "{idle:?}");
        let loaded = time_of_4_mib(&rate, &count, 1000).await;
        assert!((3800..4100).contains(&loaded.as_millis()), "{loaded:?}");
        let idle = time_of_4_mib(&rate, &count, 10).await;
        assert!((500..800).contains(&idle.as_millis()), "{idle:?}");
    }

    #[test]
    fn the_lower_bound_counts_and_none_is_none() {
        let config = |bytes_per_s, bytes_per_s_under_load| SnapshotConfig {
            bytes_per_s,
            bytes_per_s_under_load,
        };
        assert_eq!(rate(config(9, 5), true), Some(5));
        assert_eq!(rate(config(9, 5), false), Some(9));
        assert_eq!(rate(config(9, 50), true), Some(9));
        assert_eq!(rate(config(0, 5), true), Some(5));
        assert_eq!(rate(config(9, 0), true), Some(9));
        assert_eq!(rate(config(0, 5), false), None);
        assert_eq!(rate(config(0, 0), true), None);
    }
}
