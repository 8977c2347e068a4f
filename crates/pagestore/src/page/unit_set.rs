//! A bitmap set of unit numbers.

/// A set of unit numbers, one bit each. Grows as it is filled; numbers beyond its end read as
/// absent.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnitSet {
    words: Vec<u64>,
}

impl UnitSet {
    pub(crate) fn contains(&self, at: u64) -> bool {
        self.words.get((at / 64) as usize).is_some_and(|word| word >> (at % 64) & 1 == 1)
    }

    /// Puts `at` in; false if it was there.
    pub(crate) fn insert(&mut self, at: u64) -> bool {
        let word = (at / 64) as usize;
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        let bit = 1 << (at % 64);
        let new = self.words[word] & bit == 0;
        self.words[word] |= bit;
        new
    }

    /// Puts `count` numbers from `start` on in, a word at a time; false if any was there.
    pub(crate) fn insert_run(&mut self, start: u64, count: u64) -> bool {
        let word_count = (start + count).div_ceil(64) as usize;
        if word_count > self.words.len() {
            self.words.resize(word_count, 0);
        }
        let mut new = true;
        for (word, bits) in words_of_run(start, count) {
            let word = &mut self.words[word];
            new &= *word & bits == 0;
            *word |= bits;
        }
        new
    }

    /// Takes `count` numbers from `start` on out, a word at a time. Returns how many were there.
    pub(crate) fn remove_run(&mut self, start: u64, count: u64) -> u64 {
        let mut removed = 0;
        for (word, bits) in words_of_run(start, count) {
            let Some(word) = self.words.get_mut(word) else { break };
            removed += u64::from((*word & bits).count_ones());
            *word &= !bits;
        }
        removed
    }

    /// How many of the `count` numbers from `start` on are in it.
    pub(crate) fn count_run(&self, start: u64, count: u64) -> u64 {
        let held = words_of_run(start, count)
            .map_while(|(word, bits)| Some((self.words.get(word)?, bits)));
        held.map(|(word, bits)| u64::from((word & bits).count_ones())).sum()
    }

    /// Takes `at` out; false if it was not there.
    pub(crate) fn remove(&mut self, at: u64) -> bool {
        let bit = 1 << (at % 64);
        match self.words.get_mut((at / 64) as usize) {
            Some(word) if *word & bit != 0 => {
                *word &= !bit;
                true
            }
            _ => false,
        }
    }

    /// The numbers in it, rising.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u64> {
        self.words.iter().enumerate().flat_map(|(i, &word)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                let at = (rest != 0).then(|| i as u64 * 64 + u64::from(rest.trailing_zeros()))?;
                rest &= rest - 1;
                Some(at)
            })
        })
    }

    /// How many numbers from `at` on are in it.
    pub(crate) fn count_from(&self, at: u64) -> u64 {
        let first = (at / 64) as usize;
        let words = self.words.get(first..).unwrap_or_default();
        let below = words.first().map_or(0, |word| word & ((1 << (at % 64)) - 1)).count_ones();
        words.iter().map(|word| u64::from(word.count_ones())).sum::<u64>() - u64::from(below)
    }

    /// Puts `at` in if it is not there, else takes it out.
    pub(crate) fn flip(&mut self, at: u64) {
        if !self.remove(at) {
            self.insert(at);
        }
    }

    /// Makes `count` words from word `from` on the same as in `other`.
    pub(crate) fn copy_words(&mut self, other: &UnitSet, from: usize, count: usize) {
        let words = other.words(from, count);
        let end = from + if words.is_empty() { 0 } else { count };
        if self.words.len() < end {
            self.words.resize(end, 0);
        }
        for i in from..self.words.len().min(from + count) {
            self.words[i] = words.get(i - from).copied().unwrap_or(0);
        }
    }

    /// Up to `count` words from word `from` on; words beyond its end are left out.
    pub(crate) fn words(&self, from: usize, count: usize) -> &[u64] {
        let from = from.min(self.words.len());
        &self.words[from..self.words.len().min(from + count)]
    }

    /// `count` words from word `from` on, as bytes; words beyond its end as zero.
    pub(crate) fn bytes(&self, from: usize, count: usize) -> Vec<u8> {
        let held = self.words.iter().skip(from).take(count).flat_map(|word| word.to_le_bytes());
        let mut bytes: Vec<u8> = held.collect();
        bytes.resize(count * 8, 0);
        bytes
    }

    /// Adds words read by [`UnitSet::bytes`] behind those that are there.
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        self.words.extend(bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)));
    }
}

/// The words that hold `count` numbers from `start` on, and their bits in each.
fn words_of_run(start: u64, count: u64) -> impl Iterator<Item = (usize, u64)> {
    let end = start + count;
    let mut at = start;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let upto = end.min((at / 64 + 1) * 64);
        let bits = (u64::MAX >> (64 - (upto - at))) << (at % 64);
        let word = (at / 64) as usize;
        at = upto;
        Some((word, bits))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_as_their_numbers() {
        for (start, count) in [(0, 1), (3, 61), (3, 62), (64, 64), (60, 200), (127, 2), (5, 0)] {
            let (mut runs, mut single) = (UnitSet::default(), UnitSet::default());
            assert!(runs.insert_run(start, count));
            (start..start + count).for_each(|at| assert!(single.insert(at)));
            assert!(runs.iter().eq(single.iter()), "{count} from {start}");
            assert_eq!(runs.insert_run(start, count), count == 0);
            assert!(runs.insert_run(start + count, 1));
            for (from, to) in [(0, 300), (start, start + 1), (start + 2, start + 70), (start, 9999)]
            {
                let count = to - from;
                let there =
                    |bits: &UnitSet| (from..to).filter(|&at| bits.contains(at)).count() as u64;
                let mut rest = runs.clone();
                assert_eq!(runs.count_run(from, count), there(&runs), "{from}..{to}");
                assert_eq!(rest.remove_run(from, count), there(&runs), "{from}..{to}");
                let kept = runs.iter().filter(|at| !(from..to).contains(at));
                assert!(rest.iter().eq(kept), "{from}..{to}");
            }
        }
    }

    #[test]
    fn behaves_as_a_set() {
        let mut bits = UnitSet::default();
        for at in [0, 63, 64, 1000] {
            assert!(!bits.contains(at));
            assert!(bits.insert(at));
            assert!(!bits.insert(at));
            assert!(bits.contains(at));
        }
        assert_eq!(bits.iter().collect::<Vec<_>>(), [0, 63, 64, 1000]);
        assert!(bits.remove(63) && !bits.remove(63) && !bits.remove(5000));
        assert_eq!([0, 64, 65, 1000, 1001].map(|at| bits.count_from(at)), [3, 2, 1, 1, 0]);
        bits.flip(64);
        bits.flip(65);
        assert_eq!(bits.iter().collect::<Vec<_>>(), [0, 65, 1000]);
        let mut other = UnitSet::default();
        other.insert(2000);
        other.copy_words(&bits, 1, 30);
        assert_eq!(other.iter().collect::<Vec<_>>(), [65, 1000, 2000]);
        other.copy_words(&UnitSet::default(), 15, 1);
        assert_eq!(other.iter().collect::<Vec<_>>(), [65, 2000]);
        bits.flip(64);
        bits.flip(65);
        let mut copy = UnitSet::default();
        copy.extend(&bits.bytes(0, 1));
        copy.extend(&bits.bytes(1, 30));
        assert_eq!(copy.iter().collect::<Vec<_>>(), [0, 64, 1000]);
    }
}
