//! A hash for ids of the product's own making: one multiplication instead of a keyed hash.
//!
//! Groups, pages and the like are numbered by the embedder or the engine, not by clients, so no
//! adversary chooses ids that collide. Both halves of the 128-bit product go into the hash: the map
//! looks at its low bits and at its highest, and ids in steps of any power of two spread over both.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map by id.
pub type IdMap<T> = HashMap<u64, T, BuildHasherDefault<IdHasher>>;

/// Hashes one number.
#[derive(Clone, Copy, Debug, Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        // Asked for by the trait; ids come by `write_u64`.
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, id: u64) {
        let product = u128::from(self.0 ^ id) * 0xbf58_476d_1ce4_e5b9;
        self.0 = product as u64 ^ (product >> 64) as u64;
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
                    let mut hasher = IdHasher::default();
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
