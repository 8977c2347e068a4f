//! A bit set of operations, and a fast hasher for the memo of the search.

use std::hash::Hasher;

/// The operations that are placed.
pub(super) struct BitSet(Vec<u64>);

impl BitSet {
    pub(super) fn new(count: usize) -> Self {
        Self(vec![0; count.div_ceil(64)])
    }

    pub(super) fn get(&self, place: usize) -> bool {
        self.0[place / 64] >> (place % 64) & 1 == 1
    }

    pub(super) fn set(&mut self, place: usize) {
        self.0[place / 64] |= 1 << (place % 64);
    }

    pub(super) fn clear(&mut self, place: usize) {
        self.0[place / 64] &= !(1 << (place % 64));
    }

    /// A short name of the set: the count of full words at the start, then the words up to the last
    /// that is not empty.
    pub(super) fn trimmed(&self) -> Box<[u64]> {
        // Placed operations are mostly a prefix: without this cut the memo would keep words for
        // thousands of them at each step.
        let full = self.0.iter().take_while(|word| **word == u64::MAX).count();
        let end = self.0.iter().rposition(|word| *word != 0).map_or(full, |last| last + 1);
        let mut name = Vec::with_capacity(1 + end.saturating_sub(full));
        name.push(full as u64);
        name.extend_from_slice(&self.0[full..end.max(full)]);
        name.into_boxed_slice()
    }
}

/// A quick hash; the set is never walked, so its order cannot leak.
#[derive(Default)]
pub(super) struct WordHasher(u64);

impl Hasher for WordHasher {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 29)
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..byte.len()].copy_from_slice(byte);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }
}
