//! The memcomparable encoding of byte strings, as MyRocks and TiKV have it: encoded strings compare
//! as the strings do, and none is the beginning of another.
//!
//! A string is cut into groups of eight bytes, the last of which has seven at most and is filled up
//! with zeros. Behind each group stands a marker: 255 less the number of zeros that were added. So
//! a marker of 255 says that more groups follow, and a string of a multiple of eight bytes ends
//! with a group of zeros alone.

use crate::fields::Malformed;

/// Bytes of a group without its marker.
const GROUP_BYTES: usize = 8;
/// The marker of a group that is full.
const FULL: u8 = 0xff;

/// The encoding of `bytes`: nine bytes for each eight of them, and nine more.
#[must_use]
pub fn encode(bytes: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::with_capacity((bytes.len() / GROUP_BYTES + 1) * (GROUP_BYTES + 1));
    let (full, last) = bytes.as_chunks::<GROUP_BYTES>();
    for group in full {
        encoded.extend_from_slice(group);
        encoded.push(FULL);
    }
    let zeros = GROUP_BYTES - last.len();
    encoded.extend_from_slice(last);
    encoded.extend_from_slice(&[0; GROUP_BYTES][..zeros]);
    // At most eight, so it fits.
    encoded.push(FULL - zeros as u8);
    encoded
}

/// The bytes that [`encode`] has made `encoded` of.
///
/// # Errors
///
/// There are none: it ends too early or too late, or has another marker or other bytes where zeros
/// should be.
pub fn decode(encoded: &[u8]) -> Result<Vec<u8>, Malformed> {
    let malformed = Malformed { what: "memcomparable key" };
    let (groups, rest) = encoded.as_chunks::<{ GROUP_BYTES + 1 }>();
    let (last, full) = groups.split_last().filter(|_| rest.is_empty()).ok_or(malformed)?;
    let mut bytes = Vec::with_capacity(groups.len() * GROUP_BYTES);
    for group in full {
        if group[GROUP_BYTES] != FULL {
            return Err(malformed);
        }
        bytes.extend_from_slice(&group[..GROUP_BYTES]);
    }
    let zeros = usize::from(FULL - last[GROUP_BYTES]);
    let kept = GROUP_BYTES.checked_sub(zeros).filter(|_| zeros > 0).ok_or(malformed)?;
    let (kept, added) = last[..GROUP_BYTES].split_at(kept);
    if added.iter().any(|&byte| byte != 0) {
        return Err(malformed);
    }
    bytes.extend_from_slice(kept);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_those_of_tikv() {
        for (bytes, encoded) in [
            (&b""[..], &b"\0\0\0\0\0\0\0\0\xf7"[..]),
            (b"\0", b"\0\0\0\0\0\0\0\0\xf8"),
            (b"r\0\0\x01ab", b"r\0\0\x01ab\0\0\xfd"),
            (b"1234567", b"1234567\0\xfe"),
            (b"12345678", b"12345678\xff\0\0\0\0\0\0\0\0\xf7"),
            (b"123456789", b"12345678\xff9\0\0\0\0\0\0\0\xf8"),
        ] {
            assert_eq!(encode(bytes), encoded);
            assert_eq!(decode(encoded).as_deref(), Ok(bytes));
        }
    }

    /// Strings of few different bytes, so that many of them begin alike.
    fn strings() -> Vec<Vec<u8>> {
        let mut state = 1_u64;
        let mut number = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        let byte = [0, 1, 0x7f, 0xfe, 0xff];
        let mut strings: Vec<Vec<u8>> = (0..2_000)
            .map(|_| (0..number(27)).map(|_| byte[number(5) as usize]).collect())
            .collect();
        strings.extend((0..=26).map(|len| vec![0; len]));
        strings.extend((0..=26).map(|len| vec![0xff; len]));
        strings
    }

    #[test]
    fn encoded_strings_come_back_and_are_in_the_same_order() {
        let mut strings = strings();
        strings.sort();
        strings.dedup();
        let encoded: Vec<_> = strings.iter().map(|bytes| encode(bytes)).collect();
        assert!(encoded.is_sorted_by(|a, b| a < b && !b.starts_with(a)));
        for (bytes, encoded) in strings.iter().zip(&encoded) {
            assert_eq!(decode(encoded).as_ref(), Ok(bytes));
        }
    }

    #[test]
    fn no_other_bytes_are_an_encoding() {
        for bytes in strings() {
            let encoded = encode(&bytes);
            for len in 0..encoded.len() {
                // The beginning may have ended with a full group, and then it promises more.
                assert!(decode(&encoded[..len]).is_err(), "{encoded:?} up to {len}");
            }
            assert!(decode(&[&encoded[..], &[0]].concat()).is_err());
            assert!(decode(&[&encoded[..], &encode(b"")].concat()).is_err(), "after the end");
        }
        // Each single byte that is another one: an encoding of something else, or none.
        for bytes in [&b""[..], b"abc", b"12345678", b"123456789"] {
            let encoded = encode(bytes);
            for place in 0..encoded.len() {
                for byte in 0..=u8::MAX {
                    let mut changed = encoded.clone();
                    changed[place] = byte;
                    if let Ok(decoded) = decode(&changed) {
                        assert_eq!(encode(&decoded), changed, "two encodings of {decoded:?}");
                    }
                }
            }
        }
        assert!(decode(b"1234567\x01\xfe").is_err(), "no zero where one should be");
        assert!(decode(b"12345678\xf6").is_err(), "more zeros than bytes");
        assert!(decode(b"12345678\xff").is_err(), "more is promised");
    }
}
