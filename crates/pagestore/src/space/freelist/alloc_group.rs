//! The free units of one allocation group: a bitmap, and segregated lists of runs.
//!
//! The bitmap is the truth: both ends of a run are found in it by looking at a word or two (words
//! that are free altogether have a bit in a summary, so that long runs are passed over in eight
//! looks), and a double free is found. It says as well how many runs of each class there are. The
//! lists say where they are. They are made when something is first taken from the group, and are
//! never searched: a run that changes is put on the list of its new class and stays on that of the
//! old one, until it is met there and found stale (lazy deletion). When more than half of the
//! listed runs may be stale, the lists are made anew.
//!
//! A free unit so costs one bit, a run in a group that was taken from two to four bytes more.
//!
//! Invariants:
//! - `counts[c]` is the number of runs of class c below the limit; `mask` has the bits of those
//!   that are not 0.
//! - If there are lists, each run below the limit is named by the list of its class.

use super::classes::{CLASS_COUNT, class_of};
use crate::page::layout::GROUP_UNITS;

/// Units of a group: as many as one bitmap page has bits.
pub(super) const UNITS: u32 = GROUP_UNITS as u32;

/// Words of a group's bitmap.
pub(super) const WORDS: usize = UNITS as usize / 64;

const _: () = assert!(UNITS.is_multiple_of(64));

/// Stale runs that may be listed beyond twice the number of runs before the lists are made anew.
const STALE_MAX: usize = 256;

/// Runs of this length have a word that is free altogether.
pub(super) const LONG_UNITS_MIN: u32 = 127;

/// How many runs of a class to try if some of them may be too short.
const TRIES_MAX: usize = 32;

/// Where the runs of each class are, with some that are no more.
#[derive(Default)]
struct RunLists {
    classes: Vec<Vec<u16>>,
    count: usize,
}

/// The free units of one group; offsets count from its start.
pub(super) struct AllocGroup {
    /// One bit for each unit; 1 is free.
    free: Box<[u64]>,
    /// One bit for each word of `free` that is all ones.
    whole: [u64; WORDS.div_ceil(64)],
    counts: [u16; CLASS_COUNT],
    mask: u128,
    run_count: usize,
    lists: Option<RunLists>,
    /// Units from here on are kept in the bitmap only.
    limit: u32,
}

impl AllocGroup {
    /// Nothing is free.
    pub(super) fn new() -> AllocGroup {
        AllocGroup {
            free: vec![0; WORDS].into_boxed_slice(),
            whole: [0; WORDS.div_ceil(64)],
            counts: [0; CLASS_COUNT],
            mask: 0,
            run_count: 0,
            lists: None,
            limit: UNITS,
        }
    }

    /// Free is what `used` does not have, from `head` up to, not including, `end`. Words beyond
    /// those given are zero.
    pub(super) fn restore(used: &[u64], head: u32, end: u32) -> AllocGroup {
        let mut group = AllocGroup::new();
        for word in 0..WORDS {
            let inside = range_mask(word as u32 * 64, head, end);
            let free = !used.get(word).copied().unwrap_or(0) & inside;
            group.free[word] = free;
            group.whole[word / 64] |= u64::from(free == u64::MAX) << (word % 64);
        }
        group.count_anew();
        group
    }

    /// One bit for each class that has a run.
    pub(super) fn mask(&self) -> u128 {
        self.mask
    }

    /// How many units are free.
    pub(super) fn free_units(&self) -> u64 {
        self.free.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// One bit for each unit; 1 is free.
    pub(super) fn words(&self) -> &[u64] {
        &self.free
    }

    /// Whether a unit is free.
    pub(super) fn is_free(&self, at: u32) -> bool {
        self.free[at as usize / 64] >> (at % 64) & 1 == 1
    }

    /// Where the free run that ends before `at` begins: `at` if there is none.
    pub(super) fn run_start(&self, at: u32) -> u32 {
        let mut at = at;
        if !at.is_multiple_of(64) {
            let word = at as usize / 64;
            let taken = !(self.free[word] << (64 - at % 64));
            let run = taken.leading_zeros().min(at % 64);
            at -= run;
            if run == 0 || !at.is_multiple_of(64) {
                return at;
            }
        }
        let mut word = at as usize / 64;
        while word > 0 && self.is_whole(word - 1) {
            // The words below that are whole, as far as one word of the summary tells.
            let below = !(self.whole[(word - 1) / 64] << (63 - (word - 1) % 64));
            word -= (below.leading_zeros() as usize).min((word - 1) % 64 + 1);
        }
        match word {
            0 => 0,
            _ => word as u32 * 64 - (!self.free[word - 1]).leading_zeros(),
        }
    }

    /// Where the free run that begins at `at` ends, at the limit at the latest: `at` if there is
    /// none.
    pub(super) fn run_end(&self, at: u32) -> u32 {
        if at >= self.limit {
            return at;
        }
        let word = at as usize / 64;
        let run = (!(self.free[word] >> (at % 64))).trailing_zeros().min(64 - at % 64);
        if run < 64 - at % 64 {
            return (at + run).min(self.limit);
        }
        let mut word = word + 1;
        while word < WORDS && self.is_whole(word) {
            let above = !(self.whole[word / 64] >> (word % 64));
            word += (above.trailing_zeros() as usize).min(64 - word % 64);
        }
        let rest = self.free.get(word).map_or(0, |free| (!free).trailing_zeros());
        (word as u32 * 64 + rest).min(self.limit)
    }

    /// All runs, rising: offset and length. The limit cuts none.
    pub(super) fn runs(&self) -> impl Iterator<Item = (u32, u32)> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let start = self.next_free(at)?;
            at = self.next_taken(start);
            Some((start, at - start))
        })
    }

    /// All runs of at least `units_min` units, which may not be less than [`LONG_UNITS_MIN`];
    /// rising. Only looks where words are free altogether. The limit cuts none.
    pub(super) fn long_runs(&self, units_min: u32) -> impl Iterator<Item = (u32, u32)> {
        assert!(units_min >= LONG_UNITS_MIN, "a run of {units_min} units may have no whole word");
        let mut from = 0;
        let runs = std::iter::from_fn(move || {
            let word = self.next_whole(from)? as u32;
            let (at, end) = (self.run_start(word * 64), self.next_taken(word * 64));
            from = end as usize / 64;
            Some((at, end - at))
        });
        runs.filter(move |(_, units)| *units >= units_min)
    }

    /// Makes units free that are not.
    pub(super) fn release(&mut self, at: u32, units: u32) {
        let end = at + units;
        for word in at / 64..=(end - 1) / 64 {
            let bits = range_mask(word * 64, at, end);
            let free = &mut self.free[word as usize];
            assert_eq!(*free & bits, 0, "unit {at} of a group, or one behind it, is freed twice");
        }
        // Units beyond the limit are in no list: `set_limit` counts them when it moves.
        if at >= self.limit {
            self.set(at, end);
            return;
        }
        let start = self.run_start(at);
        let run_end = if end < self.limit { self.run_end(end) } else { self.limit };
        self.uncount(at - start);
        self.uncount(run_end - end.min(self.limit));
        self.set(at, end);
        self.enter(start, run_end - start);
    }

    /// Takes free units, mostly the first of a run.
    pub(super) fn take(&mut self, at: u32, units: u32) {
        let end = at + units;
        if at >= self.limit {
            self.clear(at, end);
            return;
        }
        let (start, run_end) = (self.run_start(at), self.run_end(at));
        self.clear(at, end);
        self.uncount(run_end - start);
        self.enter(start, at - start);
        if end < run_end {
            self.enter(end, run_end - end);
        }
    }

    /// Takes `units` from a run of a class that has one; all its runs are long enough.
    pub(super) fn take_of(&mut self, class: usize, units: u32) -> u32 {
        self.list();
        loop {
            let lists = self.lists.as_mut().expect("made just now");
            let at = lists.classes[class].pop().expect("a run is on the list of its class");
            lists.count -= 1;
            if self.is_run(u32::from(at), class).is_some() {
                self.take(u32::from(at), units);
                return u32::from(at);
            }
        }
    }

    /// Takes `units` from a run of a class in which some are long enough, if one of those that are
    /// looked at is.
    pub(super) fn try_of(&mut self, class: usize, units: u32, tries: &mut usize) -> Option<u32> {
        self.list();
        let mut i = self.listed(class).len();
        while i > 0 && *tries < TRIES_MAX {
            i -= 1;
            let at = u32::from(self.listed(class)[i]);
            let run = self.is_run(at, class);
            let fits = run.is_some_and(|run| run >= units);
            *tries += usize::from(run.is_some());
            if run.is_none() || fits {
                let lists = self.lists.as_mut().expect("made just now");
                lists.classes[class].swap_remove(i);
                lists.count -= 1;
            }
            if fits {
                self.take(at, units);
                return Some(at);
            }
        }
        None
    }

    /// From now on only units below `limit` are counted and given out.
    pub(super) fn set_limit(&mut self, limit: u32) {
        assert!(limit <= UNITS, "a limit of {limit} in a group");
        self.limit = limit;
        self.lists = None;
        self.count_anew();
    }

    fn listed(&self, class: usize) -> &[u16] {
        let list = self.lists.as_ref().and_then(|lists| lists.classes.get(class));
        list.map(Vec::as_slice).unwrap_or_default()
    }

    /// The length of the run of this class that begins at `at`, if there is one.
    fn is_run(&self, at: u32, class: usize) -> Option<u32> {
        let begins = at < self.limit && self.is_free(at) && (at == 0 || !self.is_free(at - 1));
        let units = begins.then(|| self.run_end(at) - at)?;
        (class_of(units) == class).then_some(units)
    }

    /// Enters a run that has come into being; nothing if it has no unit.
    fn enter(&mut self, at: u32, units: u32) {
        if units == 0 {
            return;
        }
        let class = class_of(units);
        debug_assert!(at + units <= self.limit, "a run crosses the limit {}", self.limit);
        self.counts[class] += 1;
        self.mask |= 1 << class;
        self.run_count += 1;
        if let Some(lists) = &mut self.lists {
            if lists.count >= 2 * self.run_count + STALE_MAX {
                self.lists = None;
                self.list();
            } else {
                lists.put(at, class);
            }
        }
    }

    /// Strikes out a run that is no more; nothing if it had no unit.
    fn uncount(&mut self, units: u32) {
        if units == 0 {
            return;
        }
        let class = class_of(units);
        assert!(self.counts[class] > 0, "no run of {units} units was counted");
        self.counts[class] -= 1;
        self.run_count -= 1;
        if self.counts[class] == 0 {
            self.mask &= !(1 << class);
        }
    }

    /// Counts what the bitmap says. Runs of one unit are counted a word at a time: where free units
    /// are scattered there may be a million of them to be counted before the store is open.
    fn count_anew(&mut self) {
        let mut counts = [0; CLASS_COUNT];
        let mut count = |units: u32, times: u32| counts[class_of(units)] += times as u16;
        let (mut lone_count, mut end) = (0, 0);
        for word in 0..self.limit.div_ceil(64) {
            let lone = self.lone(word);
            lone_count += lone.count_ones();
            let mut rest = self.free_below(word) & !lone & range_mask(word * 64, end, UNITS);
            while rest != 0 {
                let at = word * 64 + rest.trailing_zeros();
                end = self.next_taken(at).min(self.limit);
                count(end - at, 1);
                rest &= range_mask(word * 64, end, UNITS);
            }
        }
        count(1, lone_count);
        self.run_count = counts.iter().map(|&count| usize::from(count)).sum();
        let classes = counts.iter().enumerate().filter(|(_, count)| **count > 0);
        self.mask = classes.fold(0, |mask, (class, _)| mask | 1 << class);
        self.counts = counts;
    }

    /// The units of a word that are free, below the limit.
    fn free_below(&self, word: u32) -> u64 {
        let free = self.free.get(word as usize).copied().unwrap_or(0);
        free & range_mask(word * 64, 0, self.limit)
    }

    /// Those that are runs of one unit.
    fn lone(&self, word: u32) -> u64 {
        let free = self.free_below(word);
        let before = if word == 0 { 0 } else { self.free[word as usize - 1] >> 63 };
        let behind = self.free_below(word + 1) << 63;
        free & !(free << 1 | before) & !(free >> 1 | behind)
    }

    /// Makes the lists if there are none. The lowest run of a class comes last, so goes first.
    fn list(&mut self) {
        if self.lists.is_some() {
            return;
        }
        let mut lists = RunLists::default();
        for (at, units) in self.runs_below() {
            lists.put(at, class_of(units));
        }
        for list in &mut lists.classes {
            list.reverse();
        }
        self.lists = Some(lists);
    }

    /// The runs below the limit, cut off there.
    fn runs_below(&self) -> impl Iterator<Item = (u32, u32)> {
        let below = self.runs().take_while(|(at, _)| *at < self.limit);
        below.map(|(at, units)| (at, units.min(self.limit - at)))
    }

    fn next_free(&self, at: u32) -> Option<u32> {
        let mut word = at as usize / 64;
        let mut bits = self.free.get(word)? & (u64::MAX << (at % 64));
        while bits == 0 {
            word += 1;
            bits = *self.free.get(word)?;
        }
        Some(word as u32 * 64 + bits.trailing_zeros())
    }

    fn next_taken(&self, at: u32) -> u32 {
        let mut word = at as usize / 64;
        let mut bits = !self.free[word] & (u64::MAX << (at % 64));
        while bits == 0 {
            word += 1;
            match self.free.get(word) {
                None => return UNITS,
                Some(free) => bits = !free,
            }
        }
        word as u32 * 64 + bits.trailing_zeros()
    }

    /// The first word from `from` on that is free altogether.
    fn next_whole(&self, from: usize) -> Option<usize> {
        let mut at = from / 64;
        let mut bits = self.whole.get(at)? & (u64::MAX << (from % 64));
        while bits == 0 {
            at += 1;
            bits = *self.whole.get(at)?;
        }
        Some(at * 64 + bits.trailing_zeros() as usize)
    }

    fn is_whole(&self, word: usize) -> bool {
        self.whole[word / 64] >> (word % 64) & 1 == 1
    }

    fn set(&mut self, at: u32, end: u32) {
        for word in at as usize / 64..=(end as usize - 1) / 64 {
            let free = &mut self.free[word];
            *free |= range_mask(word as u32 * 64, at, end);
            if *free == u64::MAX {
                self.whole[word / 64] |= 1 << (word % 64);
            }
        }
    }

    fn clear(&mut self, at: u32, end: u32) {
        for word in at as usize / 64..=(end as usize - 1) / 64 {
            let bits = range_mask(word as u32 * 64, at, end);
            let free = &mut self.free[word];
            assert_eq!(*free & bits, bits, "unit {at} of a group is taken while not free");
            if *free == u64::MAX {
                self.whole[word / 64] &= !(1 << (word % 64));
            }
            *free &= !bits;
        }
    }
}

impl RunLists {
    fn put(&mut self, at: u32, class: usize) {
        if self.classes.len() <= class {
            self.classes.resize_with(class + 1, Vec::new);
        }
        self.classes[class].push(u16::try_from(at).expect("a group is short"));
        self.count += 1;
    }
}

/// The bits of the word whose first is unit `first` that stand for units from `from` up to, not
/// including, `to`.
fn range_mask(first: u32, from: u32, to: u32) -> u64 {
    let (low, high) = (from.saturating_sub(first).min(64), to.saturating_sub(first).min(64));
    let below = |n: u32| if n == 64 { u64::MAX } else { (1 << n) - 1 };
    below(high) & !below(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The free runs of the bitmap, found unit by unit.
    fn slow_runs(group: &AllocGroup) -> Vec<(u32, u32)> {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for at in (0..UNITS).filter(|&at| group.is_free(at)) {
            match runs.last_mut() {
                Some((start, units)) if *start + *units == at => *units += 1,
                _ => runs.push((at, 1)),
            }
        }
        runs
    }

    fn verify(group: &AllocGroup) {
        let runs = slow_runs(group);
        assert_eq!(group.runs().collect::<Vec<_>>(), runs);
        for units_min in [LONG_UNITS_MIN, 128, 300] {
            let long = runs.iter().copied().filter(|run| run.1 >= units_min).collect::<Vec<_>>();
            assert_eq!(group.long_runs(units_min).collect::<Vec<_>>(), long);
        }
        let mut counts = [0; CLASS_COUNT];
        for &(at, units) in runs.iter().filter(|run| run.0 < group.limit) {
            let units = units.min(group.limit - at);
            counts[class_of(units)] += 1;
            for inside in [at, at + units / 2, at + units] {
                assert_eq!(group.run_start(inside), at, "{at}+{units} from {inside}");
                assert_eq!(group.run_end(inside.min(at + units - 1)), at + units);
            }
            if group.lists.is_some() {
                let at = u16::try_from(at).unwrap();
                assert!(group.listed(class_of(units)).contains(&at), "{at} is on no list");
            }
        }
        assert_eq!(group.counts, counts);
        let listed = group.lists.as_ref().map_or(0, |lists| lists.count);
        assert!(listed <= 2 * UNITS as usize);
        for word in 0..WORDS {
            assert_eq!(group.is_whole(word), group.free[word] == u64::MAX);
        }
    }

    #[test]
    fn runs_are_found_from_both_ends() {
        for seed in 0..20 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut group = AllocGroup::new();
            let longest = [4, 70, 700, 20_000][seed as usize % 4];
            if seed >= 10 {
                group.set_limit(rng.u32(..UNITS));
            }
            for step in 0..400 {
                let at = rng.u32(..UNITS);
                let units = rng.u32(1..=longest).min(UNITS - at);
                let free = (at..at + units).filter(|&unit| group.is_free(unit)).count();
                if free == 0 {
                    group.release(at, units);
                } else if free == units as usize {
                    group.take(at, units);
                }
                if step == 200 {
                    group.list();
                }
                if step % 50 == 0 {
                    verify(&group);
                }
            }
            verify(&group);
            for limit in [rng.u32(..UNITS), UNITS - 1, 1, 0, UNITS] {
                group.set_limit(limit);
                verify(&group);
            }
        }
    }

    #[test]
    fn lists_do_not_grow_without_end() {
        let mut group = AllocGroup::new();
        group.release(0, 40);
        for _ in 0..10_000 {
            let at = group.take_of(class_of(40), 3);
            group.release(at, 3);
        }
        assert!(group.lists.as_ref().unwrap().count < 2 * STALE_MAX);
        verify(&group);
    }

    #[test]
    fn restored_is_what_was() {
        let used: Vec<u64> = (0..300).map(|word: u64| word.wrapping_mul(0x9e37_79b9)).collect();
        let group = AllocGroup::restore(&used, 2, 30_001);
        verify(&group);
        for at in 0..UNITS {
            let word = used.get(at as usize / 64).copied().unwrap_or(0);
            let free = (2..30_001).contains(&at) && word >> (at % 64) & 1 == 0;
            assert_eq!(group.is_free(at), free, "{at}");
        }
    }
}
