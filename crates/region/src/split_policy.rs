//! The reasons to split a region: it has become too large, or takes too much load for one group.
//!
//! Size is told by the store, which reads it off its tree. Load is counted here, by the second,
//! with some requests taken as samples while it is high: a region is split by load only at a key
//! that has requests on both sides and few that span it, for two regions of which one has all the
//! load are worth nothing. The middle of 128 samples is off by 4 % of the load (standard
//! deviation), and the error of each split stays in all parts that come of it.
//!
//! A replica that is behind holds a split back: it may need a snapshot, and after a split one of
//! each part. It holds it back for a while only, and not once the region is far too large.

use bytes::Bytes;

use crate::config::SplitLimits;
use crate::descriptor::{Descriptor, RegionSize};
use crate::effects::SplitReason;
use crate::event::KeySpan;
use crate::ids::{Index, Time};

/// Requests that are kept as samples.
const SAMPLES_MAX: usize = 128;
/// Samples without which no border is chosen.
const SAMPLES_MIN: usize = 10;
/// The length of a window in which load is counted.
const WINDOW_MS: u64 = 1000;
/// How long a split that was asked for may take before it is asked for again.
const RETRY_MS: u64 = 10_000;
/// How long replicas that are behind hold splits back.
const BEHIND_MS: u64 = 10_000;
/// A region of so many times its bounds is split in any case.
const OVER: u64 = 2;
/// The most regions that one split by size leaves.
const PARTS_MAX: u64 = 16;

/// The load of a region and its size, as its leader knows them.
#[derive(Default)]
pub(crate) struct SplitPolicy {
    size: Option<RegionSize>,
    window: LoadWindow,
    rate: RequestRate,
    /// Windows in a row in which the load was too high.
    hot_windows: u32,
    samples: SpanSamples,
    /// When a split may be asked for again.
    not_before: Time,
    /// Since when a replica has been behind.
    behind_since: Option<Time>,
    /// The last split that was applied here; entry 0 if none was since the start.
    last_split: Index,
}

#[derive(Default)]
struct LoadWindow {
    began: Time,
    requests: u64,
    bytes: u64,
}

/// Requests in a second, a mean of the last windows, and what was told of it.
#[derive(Default)]
struct RequestRate {
    mean: Option<u64>,
    told: Option<u64>,
}

impl RequestRate {
    fn note(&mut self, requests_per_s: u64) {
        self.mean = Some(self.mean.map_or(requests_per_s, |mean| (3 * mean + requests_per_s) / 4));
    }

    /// The mean, if it is another one than was told, by an eighth of that.
    fn take_news(&mut self) -> Option<u64> {
        let mean = self.mean?;
        let is_new = self.told.is_none_or(|told| 8 * mean.abs_diff(told) > told);
        is_new.then(|| *self.told.insert(mean))
    }
}

impl SplitPolicy {
    /// A request was admitted.
    pub(crate) fn note_request(&mut self, span: Option<&KeySpan>, bytes: usize) {
        self.window.requests += 1;
        self.window.bytes += bytes as u64;
        // A region without much load takes no samples: there may be many of them.
        if let Some(span) = span.filter(|_| self.hot_windows > 0) {
            self.samples.add(span);
        }
    }

    /// The requests in a second that the region takes, if they are other ones than were told last.
    pub(crate) fn take_load(&mut self) -> Option<u64> {
        self.rate.take_news()
    }

    /// The store has looked how large the region is.
    pub(crate) fn note_size(&mut self, size: RegionSize) {
        self.size = Some(size);
    }

    /// The size that was told last.
    pub(crate) fn size(&self) -> Option<RegionSize> {
        self.size
    }

    /// Another leader, or another range: what was counted is not of this one.
    pub(crate) fn restart(&mut self) {
        *self = Self { last_split: self.last_split, ..Self::default() };
    }

    /// A split was applied.
    pub(crate) fn note_split(&mut self, index: Index) {
        self.last_split = index;
    }

    /// The last split that was applied here.
    pub(crate) fn last_split(&self) -> Index {
        self.last_split
    }

    /// Why the region should be split now, if it should. Called by the leader, each tick.
    /// `is_behind`: whether a replica that answers lacks data, or the last split.
    pub(crate) fn decide(
        &mut self,
        now: Time,
        descriptor: &Descriptor,
        is_behind: bool,
        config: &SplitLimits,
    ) -> Option<SplitReason> {
        let load = self.end_window(now, descriptor, config);
        let is_held = self.is_held(now, is_behind, config);
        if !config.automatic || now < self.not_before || is_held {
            return None;
        }
        let reason = self.decide_by_size(config).or(load)?;
        self.not_before = now.after_ms(RETRY_MS);
        Some(reason)
    }

    /// Whether replicas that are behind hold a split back. Not for ever: one that never gets its
    /// data would let the region grow without bound.
    fn is_held(&mut self, now: Time, is_behind: bool, config: &SplitLimits) -> bool {
        if !is_behind {
            self.behind_since = None;
            return false;
        }
        let since = *self.behind_since.get_or_insert(now);
        let is_over = self.size.is_some_and(|RegionSize { bytes, keys }| {
            bytes > OVER * config.bytes_max || keys > OVER * config.keys_max
        });
        !is_over && now < since.after_ms(BEHIND_MS)
    }

    fn decide_by_size(&self, config: &SplitLimits) -> Option<SplitReason> {
        let RegionSize { bytes, keys } = self.size?;
        if bytes <= config.bytes_max && keys <= config.keys_max {
            return None;
        }
        // Parts of half the bound: each has room to grow before it is split again.
        let parts = (2 * bytes / config.bytes_max).max(2 * keys / config.keys_max);
        Some(SplitReason::Size { parts: parts.clamp(2, PARTS_MAX) as usize })
    }

    /// Counts a window that has ended; the border, if the load has been too high for long enough.
    fn end_window(
        &mut self,
        now: Time,
        descriptor: &Descriptor,
        config: &SplitLimits,
    ) -> Option<SplitReason> {
        if now < self.window.began.after_ms(WINDOW_MS) {
            return None;
        }
        let LoadWindow { began, requests, bytes } = self.window;
        assert!(now > began, "a window of no time");
        self.window = LoadWindow { began: now, requests: 0, bytes: 0 };
        // A window may be longer, if the shard stood still.
        let ms = now.0 - began.0;
        let requests_per_s = requests * 1000 / ms;
        self.rate.note(requests_per_s);
        let is_hot = requests * 1000 > config.requests_per_s_max * ms
            || bytes * 1000 > config.bytes_per_s_max * ms;
        if !is_hot {
            self.hot_windows = 0;
            self.samples = SpanSamples::default();
            return None;
        }
        self.hot_windows += 1;
        if self.hot_windows < config.load_windows {
            return None;
        }
        let key = self.samples.border(descriptor)?;
        Some(SplitReason::Load { key, requests_per_s })
    }
}

/// Some of the requests since the load became high, each as likely as any other (reservoir
/// sampling, Vitter's algorithm R).
#[derive(Default)]
struct SpanSamples {
    taken: Vec<KeySpan>,
    seen: u64,
    random: u64,
}

impl SpanSamples {
    fn add(&mut self, span: &KeySpan) {
        self.seen += 1;
        if self.taken.len() < SAMPLES_MAX {
            return self.taken.push(copied(span));
        }
        // Knuth's generator: repeatable, and nothing rests on how good it is.
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let place = (self.random >> 33) % self.seen;
        if let Some(taken) = usize::try_from(place).ok().and_then(|at| self.taken.get_mut(at)) {
            *taken = copied(span);
        }
    }

    /// The key that parts the samples best: less than 30 % of them span it, and neither side has
    /// more than twice as many as the other.
    fn border(&self, descriptor: &Descriptor) -> Option<Bytes> {
        let count = self.taken.len();
        if count < SAMPLES_MIN {
            return None;
        }
        let sorted = |end: fn(&KeySpan) -> &Bytes| {
            let mut keys: Vec<&Bytes> = self.taken.iter().map(end).collect();
            keys.sort_unstable();
            keys
        };
        let (firsts, lasts) = (sorted(|span| &span.first), sorted(|span| &span.last));
        let parted = |key: &Bytes| {
            let left = lasts.partition_point(|last| *last < key);
            let right = count - firsts.partition_point(|first| *first < key);
            (left, right)
        };
        let is_good = |key: &Bytes| {
            let (left, right) = parted(key);
            let spanning = count - left - right;
            *key > descriptor.start
                && descriptor.contains(key)
                && 10 * spanning < 3 * count
                && left.max(right) <= 2 * left.min(right)
        };
        let imbalance = |key: &Bytes| {
            let (left, right) = parted(key);
            left.abs_diff(right)
        };
        let good = firsts.iter().filter(|key| is_good(key));
        good.min_by_key(|key| imbalance(key)).map(|key| Bytes::clone(key))
    }
}

/// The same in memory of its own: the request's is a part of all that came with it.
fn copied(span: &KeySpan) -> KeySpan {
    let copy = Bytes::copy_from_slice;
    KeySpan { first: copy(&span.first), last: copy(&span.last) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::RemovedPeers;
    use crate::descriptor::{Epoch, Space};
    use crate::ids::RegionId;

    fn region() -> Descriptor {
        Descriptor {
            removed: RemovedPeers::default(),
            id: RegionId(7),
            space: Space::Raw,
            start: Bytes::new(),
            end: Bytes::new(),
            epoch: Epoch::default(),
            peers: vec![],
        }
    }

    fn span(first: &str, last: &str) -> KeySpan {
        KeySpan { first: first.to_owned().into(), last: last.to_owned().into() }
    }

    fn config() -> SplitLimits {
        SplitLimits { requests_per_s_max: 100, load_windows: 3, ..SplitLimits::default() }
    }

    /// Runs seconds with `count` requests each, and returns what is wanted at the end of each.
    fn run(
        policy: &mut SplitPolicy,
        seconds: std::ops::Range<u64>,
        count: u64,
        span: impl Fn(u64) -> KeySpan,
    ) -> Vec<Option<SplitReason>> {
        let mut wanted = vec![];
        for second in seconds {
            for n in 0..count {
                policy.note_request(Some(&span(n)), 10);
            }
            wanted.push(policy.decide(Time(1000 * (second + 1)), &region(), false, &config()));
        }
        wanted
    }

    fn user(n: u64) -> KeySpan {
        let key = format!("user{:03}", n * 7919 % 1000);
        span(&key, &key)
    }

    #[test]
    fn load_that_lasts_splits_between_the_requests() {
        let mut policy = SplitPolicy::default();
        let wanted = run(&mut policy, 0..4, 150, user);
        assert_eq!(wanted[..2], [None, None], "too early");
        let Some(SplitReason::Load { key, requests_per_s }) = &wanted[2] else {
            panic!("{wanted:?}")
        };
        assert_eq!(*requests_per_s, 150);
        assert!(*key > "user400" && *key < "user600", "{key:?}");
        assert_eq!(wanted[3], None, "it is under way");
        let later = run(&mut policy, 4..14, 150, user);
        assert_eq!(later.iter().flatten().count(), 1, "asked again once: {later:?}");
        assert_eq!(run(&mut SplitPolicy::default(), 0..9, 90, user), vec![None; 9], "little load");
    }

    #[test]
    fn borders_come_near_the_middle_of_the_load() {
        let mut parts = vec![];
        for seed in 0..50 {
            let mut policy = SplitPolicy::default();
            let rng = std::cell::RefCell::new(fastrand::Rng::with_seed(seed));
            let key = |_| {
                let key = format!("user{:05}", rng.borrow_mut().u32(..100_000));
                span(&key, &key)
            };
            let wanted = run(&mut policy, 0..3, 500, key);
            let Some(SplitReason::Load { key, .. }) = &wanted[2] else { panic!("{wanted:?}") };
            let key: u64 = std::str::from_utf8(&key[4..]).unwrap().parse().unwrap();
            parts.push(key.abs_diff(50_000) as f64 / 100_000.0);
        }
        let mean = parts.iter().sum::<f64>() / parts.len() as f64;
        assert!(mean < 0.045, "off by {mean} in the mean");
    }

    #[test]
    fn only_a_region_under_load_takes_samples() {
        let mut policy = SplitPolicy::default();
        run(&mut policy, 0..9, 90, user);
        assert!(policy.samples.taken.is_empty());
        run(&mut policy, 9..11, 5000, user);
        assert_eq!(policy.samples.taken.len(), SAMPLES_MAX);
    }

    #[test]
    fn the_load_is_told_when_it_is_another_one() {
        let mut policy = SplitPolicy::default();
        assert_eq!(policy.take_load(), None, "before the first second is over");
        let mut told = |seconds: std::ops::Range<u64>, count| {
            let each = seconds.map(|second| {
                run(&mut policy, second..second + 1, count, user);
                policy.take_load()
            });
            each.flatten().collect::<Vec<_>>()
        };
        assert_eq!(told(0..5, 80), [80]);
        assert_eq!(told(5..9, 84), [], "about the same");
        let rising = told(9..20, 160);
        assert!(rising.len() >= 3 && rising.last() > Some(&140), "{rising:?}");
        let falling = told(20..60, 0);
        assert!(falling.is_sorted_by(|a, b| a > b) && falling.last() == Some(&0), "{falling:?}");
        policy.restart();
        assert_eq!(policy.take_load(), None);
        run(&mut policy, 60..61, 0, user);
        assert_eq!(policy.take_load(), Some(0), "of another leader, or another range");
    }

    #[test]
    fn a_second_of_rest_begins_anew() {
        let mut policy = SplitPolicy::default();
        run(&mut policy, 0..2, 150, user);
        run(&mut policy, 2..3, 1, user);
        assert_eq!(run(&mut policy, 3..5, 150, user), [None, None]);
    }

    #[test]
    fn one_hot_key_and_requests_that_span_all_have_no_border() {
        let one = run(&mut SplitPolicy::default(), 0..9, 150, |_| span("k", "k"));
        assert_eq!(one, vec![None; 9]);
        let wide = run(&mut SplitPolicy::default(), 0..9, 150, |n| {
            if n % 2 == 0 { span("a", "z") } else { user(n) }
        });
        assert_eq!(wide, vec![None; 9]);
    }

    #[test]
    fn a_large_region_becomes_parts_of_half_the_bound() {
        let config = SplitLimits { bytes_max: 1000, keys_max: 100, ..SplitLimits::default() };
        let parts = |bytes, keys| {
            let mut policy = SplitPolicy::default();
            policy.note_size(RegionSize { bytes, keys });
            match policy.decide(Time(1), &region(), false, &config) {
                None => 0,
                Some(SplitReason::Size { parts }) => parts,
                Some(other) => panic!("{other:?}"),
            }
        };
        assert_eq!(parts(1000, 100), 0);
        assert_eq!(parts(1001, 1), 2);
        assert_eq!(parts(4000, 1), 8);
        assert_eq!(parts(1, 151), 3);
        assert_eq!(parts(1 << 40, 1), 16);
        let mut policy = SplitPolicy::default();
        policy.note_size(RegionSize { bytes: 5000, keys: 1 });
        let off = SplitLimits { automatic: false, ..config };
        assert_eq!(policy.decide(Time(1), &region(), false, &off), None);
    }

    #[test]
    fn a_replica_that_is_behind_holds_a_split_back_for_a_while() {
        let policy = |bytes| {
            let config = SplitLimits { bytes_max: 1000, ..SplitLimits::default() };
            let mut policy = SplitPolicy::default();
            policy.note_size(RegionSize { bytes, keys: 1 });
            move |ms, is_behind| policy.decide(Time(ms), &region(), is_behind, &config).is_some()
        };
        let mut decide = policy(1500);
        assert!(!decide(1, true) && !decide(9_000, true));
        assert!(decide(9_001, false), "it has caught up");
        let mut decide = policy(1500);
        assert!(!decide(1, true) && !decide(BEHIND_MS, true));
        assert!(decide(BEHIND_MS + 1, true), "for ten seconds");
        let mut decide = policy(1500);
        assert!(!decide(1, true) && decide(8_000, false));
        assert!(!decide(18_000, true) && !decide(27_999, true), "each time anew");
        assert!(decide(28_000, true));
        assert!(policy(2001)(1, true), "far above the bound");
        assert!(!policy(2000)(1, true));
    }
}
