//! A hash for group ids: two multiplications instead of a keyed hash.
//!
//! The embedder chooses the ids, not its clients, so no client can choose colliding ones. Ids in
//! steps (a hundred a region, say) spread well.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map by group id.
pub(crate) type GroupMap<T> = HashMap<u64, T, BuildHasherDefault<GroupIdHasher>>;

/// Hashes one number.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GroupIdHasher(u64);

impl Hasher for GroupIdHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, id: u64) {
        self.0 ^= id;
        for _ in 0..2 {
            // High bits of a product depend on all of the id, low ones only on its low ones.
            let product = self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            self.0 = product ^ product >> 32;
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn ids_in_steps_spread_over_the_low_and_the_high_bits() {
        for step in [1, 2, 64, 100, 1 << 20, 1 << 32, 1 << 48] {
            let hashes: Vec<u64> = (0..4096_u64)
                .map(|at| {
                    let mut hasher = GroupIdHasher::default();
                    hasher.write_u64(at.wrapping_mul(step));
                    hasher.finish()
                })
                .collect();
            for shift in [0, 52] {
                let seen: HashSet<u64> = hashes.iter().map(|hash| hash >> shift & 0xfff).collect();
                assert!(seen.len() > 2_000, "step {step}, shift {shift}: {}", seen.len());
            }
        }
    }
}
