//! The keys of a load: as many as wanted, of one length, where they are wanted.

use bytes::{BufMut, Bytes, BytesMut};

use super::args::KeySpread;

/// Makes the same key from the same number, always.
#[derive(Clone, Copy, Debug)]
pub struct LoadKeys {
    count: u64,
    bytes: usize,
    spread: KeySpread,
}

/// Where the keys of one region lie: not at the border of any even split of the key space.
const ONE_PREFIX: &[u8] = b"bench/";

/// Bytes in which two keys differ.
const NUMBER_BYTES: usize = 8;

impl LoadKeys {
    /// `count` keys of `bytes` bytes, which are at least eight.
    #[must_use]
    pub fn new(count: u64, bytes: u16, spread: KeySpread) -> LoadKeys {
        LoadKeys { count, bytes: usize::from(bytes), spread }
    }

    /// Each key once.
    pub fn all(&self) -> impl Iterator<Item = Bytes> + use<> {
        let keys = *self;
        (0..keys.count).map(move |number| keys.of(number))
    }

    /// One of them, chosen by `chance`.
    pub fn random(&self, chance: &mut fastrand::Rng) -> Bytes {
        self.of(chance.u64(..self.count))
    }

    fn of(&self, number: u64) -> Bytes {
        let mut key = BytesMut::with_capacity(self.bytes);
        match self.spread {
            KeySpread::All => key.put_u64(scatter(number)),
            KeySpread::One => {
                let room = self.bytes - NUMBER_BYTES;
                key.put_slice(&ONE_PREFIX[..room.min(ONE_PREFIX.len())]);
                key.put_u64(number);
            }
        }
        key.resize(self.bytes, b'.');
        key.freeze()
    }
}

/// Sends each number to another one, neighbours far apart: an odd factor and shifted copies of
/// oneself can all be undone, so no two numbers meet.
fn scatter(number: u64) -> u64 {
    let mixed = (number ^ (number >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn keys_differ_and_have_their_length() {
        for (spread, bytes) in
            [(KeySpread::All, 8), (KeySpread::All, 40), (KeySpread::One, 8), (KeySpread::One, 20)]
        {
            let keys = LoadKeys::new(5000, bytes, spread);
            let all: BTreeSet<_> = keys.all().collect();
            assert_eq!(all.len(), 5000, "{spread:?} {bytes}");
            assert!(all.iter().all(|key| key.len() == usize::from(bytes)));
            let mut chance = fastrand::Rng::with_seed(1);
            assert!((0..100).all(|_| all.contains(&keys.random(&mut chance))));
        }
    }

    #[test]
    fn keys_lie_evenly_or_close_together() {
        let keys = LoadKeys::new(16_000, 16, KeySpread::All);
        let mut sixteenths = [0; 16];
        keys.all().for_each(|key| sixteenths[usize::from(key[0] >> 4)] += 1);
        assert!(sixteenths.iter().all(|count| (800..1200).contains(count)), "{sixteenths:?}");

        let keys = LoadKeys::new(16_000, 16, KeySpread::One);
        assert!(keys.all().all(|key| key.starts_with(ONE_PREFIX)));
    }
}
