//! Hash map keyed by unit number, with a multiplicative hash.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A hash map keyed by unit number.
pub(crate) type UnitMap<T> = HashMap<u64, T, BuildHasherDefault<UnitHasher>>;

/// Spreads page ids, which are dense and not chosen by an adversary.
#[derive(Default)]
pub(crate) struct UnitHasher(u64);

impl Hasher for UnitHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, id: u64) {
        // The product mixes into its high bits, and the map takes buckets from the low ones.
        self.0 = (self.0 ^ id).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }
}
