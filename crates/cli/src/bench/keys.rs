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

/// The first bytes of keys like those of YCSB.
const USER_PREFIX: &[u8] = b"user";

/// Bytes in which two keys differ.
const NUMBER_BYTES: usize = 8;

impl LoadKeys {
    /// `count` keys of `bytes` bytes, which are at least eight.
    ///
    /// # Errors
    ///
    /// Keys of this length and spread are fewer.
    pub fn new(count: u64, bytes: u16, spread: KeySpread) -> Result<LoadKeys, String> {
        let keys = LoadKeys { count, bytes: usize::from(bytes), spread };
        let mask = keys.user_mask();
        match spread {
            KeySpread::User if count > mask => Err(format!(
                "--regions user has {mask} keys of {bytes} bytes, not {count}: --key-size {} has more",
                bytes + 2
            )),
            _ => Ok(keys),
        }
    }

    /// The greatest number that fits into the digits of a key.
    fn user_mask(&self) -> u64 {
        u64::MAX >> (64 - 4 * self.user_digits())
    }

    fn user_digits(&self) -> usize {
        (self.bytes - USER_PREFIX.len()).min(16)
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
            KeySpread::User => {
                let digits = self.user_digits();
                let number = scatter_within(number, self.user_mask());
                key.put_slice(USER_PREFIX);
                key.put_slice(format!("{number:0digits$x}").as_bytes());
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

/// The same among the numbers up to `mask`, all of whose bits are set: modulo a power of two an odd
/// factor can be undone as well.
fn scatter_within(number: u64, mask: u64) -> u64 {
    let half = mask.count_ones() / 2;
    let mixed = (number ^ (number >> half)).wrapping_mul(0x9e37_79b9_7f4a_7c15) & mask;
    let mixed = (mixed ^ (mixed >> half)).wrapping_mul(0xbf58_476d_1ce4_e5b9) & mask;
    mixed ^ (mixed >> half)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn keys_differ_and_have_their_length() {
        for (spread, bytes) in [
            (KeySpread::All, 8),
            (KeySpread::All, 40),
            (KeySpread::One, 8),
            (KeySpread::One, 20),
            (KeySpread::User, 8),
            (KeySpread::User, 16),
            (KeySpread::User, 40),
        ] {
            let keys = LoadKeys::new(5000, bytes, spread).unwrap();
            let all: BTreeSet<_> = keys.all().collect();
            assert_eq!(all.len(), 5000, "{spread:?} {bytes}");
            assert!(all.iter().all(|key| key.len() == usize::from(bytes)));
            let mut chance = fastrand::Rng::with_seed(1);
            assert!((0..100).all(|_| all.contains(&keys.random(&mut chance))));
        }
    }

    #[test]
    fn keys_lie_evenly_or_close_together() {
        let keys = LoadKeys::new(16_000, 16, KeySpread::All).unwrap();
        let mut sixteenths = [0; 16];
        keys.all().for_each(|key| sixteenths[usize::from(key[0] >> 4)] += 1);
        assert!(sixteenths.iter().all(|count| (800..1200).contains(count)), "{sixteenths:?}");

        let keys = LoadKeys::new(16_000, 16, KeySpread::One).unwrap();
        assert!(keys.all().all(|key| key.starts_with(ONE_PREFIX)));

        let keys = LoadKeys::new(16_000, 16, KeySpread::User).unwrap();
        let mut sixteenths = [0; 16];
        for key in keys.all() {
            assert!(key.starts_with(USER_PREFIX));
            sixteenths[char::from(key[4]).to_digit(16).unwrap() as usize] += 1;
        }
        assert!(sixteenths.iter().all(|count| (800..1200).contains(count)), "{sixteenths:?}");
        assert!(LoadKeys::new(65_536, 8, KeySpread::User).is_err());
    }
}
