//! A set of group numbers with a summary bitmap, whose lowest is found at once.

/// A set of group numbers: one bit each, and above them one bit for each word that is not zero. The
/// file has at most 2^17 groups, so the lowest is found in 33 looks, mostly in two.
#[derive(Clone, Debug, Default)]
pub(super) struct GroupSet {
    words: Vec<u64>,
    summary: Vec<u64>,
}

impl GroupSet {
    pub(super) fn insert(&mut self, group: usize) {
        let word = group / 64;
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
            self.summary.resize(word / 64 + 1, 0);
        }
        self.words[word] |= 1 << (group % 64);
        self.summary[word / 64] |= 1 << (word % 64);
    }

    /// Takes out a group that is in the set.
    pub(super) fn remove(&mut self, group: usize) {
        let word = group / 64;
        debug_assert!(self.words[word] >> (group % 64) & 1 == 1, "group {group} is not in the set");
        self.words[word] &= !(1 << (group % 64));
        if self.words[word] == 0 {
            self.summary[word / 64] &= !(1 << (word % 64));
        }
    }

    pub(super) fn lowest(&self) -> Option<usize> {
        let top = self.summary.iter().position(|&word| word != 0)?;
        let word = top * 64 + self.summary[top].trailing_zeros() as usize;
        Some(word * 64 + self.words[word].trailing_zeros() as usize)
    }

    /// All groups in it, rising.
    pub(super) fn iter(&self) -> impl Iterator<Item = usize> {
        self.words.iter().enumerate().flat_map(|(i, &word)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                let at = (rest != 0).then(|| i * 64 + rest.trailing_zeros() as usize)?;
                rest &= rest - 1;
                Some(at)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lowest_is_the_lowest() {
        let mut set = GroupSet::default();
        assert_eq!(set.lowest(), None);
        for group in [130_000, 64, 4096, 63, 8191] {
            set.insert(group);
        }
        assert_eq!(set.iter().collect::<Vec<_>>(), [63, 64, 4096, 8191, 130_000]);
        for group in [63, 64, 4096, 8191, 130_000] {
            assert_eq!(set.lowest(), Some(group));
            set.remove(group);
        }
        assert_eq!((set.lowest(), set.iter().next()), (None, None));
    }
}
