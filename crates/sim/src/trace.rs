//! The running hash over everything that happens: two runs are the same if it is.

use std::fmt::Arguments;

/// A hash of what happened so far, and the story in words if asked for.
#[derive(Debug)]
pub(crate) struct Trace {
    hash: u64,
    printed: bool,
}

impl Trace {
    pub(crate) fn new(seed: u64, printed: bool) -> Self {
        Self { hash: mix(seed), printed }
    }

    /// Adds numbers that tell this happening from any other.
    pub(crate) fn add(&mut self, numbers: &[u64]) {
        for number in numbers {
            self.hash = mix(self.hash ^ number);
        }
    }

    /// Prints a line, if the story is wanted. The words are made only then.
    pub(crate) fn say(&self, at_us: u64, words: Arguments<'_>) {
        if self.printed {
            println!("{:>4}.{:06} {words}", at_us / 1_000_000, at_us % 1_000_000);
        }
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }
}

/// A hash of bytes, for [`Trace::add`] and for comparing contents.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    let mut hash = bytes.len() as u64;
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash = mix(hash ^ u64::from_le_bytes(word));
    }
    hash
}

/// Spreads every bit over all others (the finaliser of splitmix64).
pub(crate) fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_depends_on_order_and_seed() {
        let hash = |seed, numbers: &[u64]| {
            let mut trace = Trace::new(seed, false);
            trace.add(numbers);
            trace.hash()
        };
        assert_eq!(hash(1, &[2, 3]), hash(1, &[2, 3]));
        assert_ne!(hash(1, &[2, 3]), hash(1, &[3, 2]));
        assert_ne!(hash(1, &[2, 3]), hash(2, &[2, 3]));
        assert_ne!(digest(b"a"), digest(b"a\0"));
    }
}
