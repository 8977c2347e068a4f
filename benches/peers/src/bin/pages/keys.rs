//! Keys, values and chance, the same for every engine; `bbolt/keys.go` has them once more.

use peers::Result;

/// Bytes of a key.
pub const KEY_BYTES: usize = 24;
/// The beginning of a value: the key's number and the version.
const HEAD_BYTES: usize = 16;
const POOL_BYTES: usize = 128 << 10;

/// The key with this number. Numbers are scattered evenly over all keys.
pub fn key(number: u64) -> [u8; KEY_BYTES] {
    let scattered = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut key = [0; KEY_BYTES];
    key[..8].copy_from_slice(&scattered.to_be_bytes());
    key[8..16].copy_from_slice(&scattered.rotate_left(32).to_be_bytes());
    key[16..].copy_from_slice(&number.to_be_bytes());
    key
}

/// The key with this number, in the order of numbers.
pub fn key_in_order(number: u64) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    key[..8].copy_from_slice(&number.to_be_bytes());
    key[16..].copy_from_slice(&number.to_be_bytes());
    key
}

/// The number that a key was made of.
pub fn number_of(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.get(16..KEY_BYTES)?.try_into().ok()?))
}

/// Makes values that nothing can compress, and knows them again.
pub struct Values {
    pool: Vec<u8>,
    value: Vec<u8>,
}

impl Values {
    /// Makes what the values are cut from.
    pub fn new() -> Values {
        let mut chance = Chance::new(1);
        let pool = (0..POOL_BYTES / 8).flat_map(|_| chance.next().to_le_bytes()).collect();
        Values { pool, value: Vec::new() }
    }

    /// The value of a key in a version, of more than 16 bytes and at most 64 KiB.
    pub fn value(&mut self, number: u64, version: u64, bytes: usize) -> &[u8] {
        let body_bytes = bytes - HEAD_BYTES;
        let mixed = mix(number ^ version.rotate_left(32));
        let from = (mixed % (POOL_BYTES - body_bytes) as u64) as usize;
        self.value.clear();
        self.value.extend_from_slice(&number.to_le_bytes());
        self.value.extend_from_slice(&version.to_le_bytes());
        self.value.extend_from_slice(&self.pool[from..from + body_bytes]);
        &self.value
    }

    /// Refuses a value that was never put under the key with this number.
    ///
    /// # Errors
    ///
    /// Says whose value is wrong.
    pub fn prove(&mut self, number: u64, value: &[u8]) -> Result<()> {
        let version = value.get(8..HEAD_BYTES).and_then(|v| v.try_into().ok());
        let version = version.map(u64::from_le_bytes);
        match version {
            Some(version) if self.value(number, version, value.len()) == value => Ok(()),
            _ => Err(format!("the value of key {number} is not what was put").into()),
        }
    }
}

/// A stream of numbers that look random; the same from the same seed.
pub struct Chance(u64);

impl Chance {
    /// Begins a stream.
    pub fn new(seed: u64) -> Chance {
        Chance(mix(seed))
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// The next number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// Scatters a number (splitmix64).
fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_and_can_be_read() {
        for number in [0, 1, 2, 1 << 40] {
            assert_eq!(number_of(&key(number)), Some(number));
            assert_eq!(number_of(&key_in_order(number)), Some(number));
        }
        assert!(key_in_order(1) < key_in_order(2) && key(1) > key(2));
        assert_eq!(number_of(b"short"), None);
    }

    #[test]
    fn a_value_is_known_again_and_no_other() {
        let mut values = Values::new();
        for bytes in [24, 150, 16 << 10] {
            let value = values.value(7, 3, bytes).to_vec();
            assert_eq!(value.len(), bytes);
            values.prove(7, &value).expect("its own");
            assert!(values.prove(8, &value).is_err());
            let mut wrong = value.clone();
            *wrong.last_mut().expect("not empty") ^= 1;
            assert!(values.prove(7, &wrong).is_err());
        }
        assert!(values.prove(7, b"short").is_err());
    }

    #[test]
    fn chance_is_the_same_from_the_same_seed() {
        let first = |seed| Chance::new(seed).next();
        assert_eq!(first(1), first(1));
        assert_ne!(first(1), first(2));
        // The numbers in bbolt/keys_test.go.
        assert_eq!(first(1), 13_830_413_928_045_401_970);
        assert_eq!(Values::new().value(7, 3, 24)[16..], [36, 45, 138, 87, 116, 242, 126, 221]);
    }
}
