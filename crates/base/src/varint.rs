//! LEB128 integers and length-prefixed byte strings over plain slices.

/// The error of a value that ends too early.
pub const CUT_SHORT: &str = "a value is cut short";

/// Appends a length and the bytes.
pub fn put_slice(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends seven bits a byte, the lowest first.
pub fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Takes one byte off the front.
///
/// # Errors
///
/// There is none.
pub fn take_u8(input: &mut &[u8]) -> Result<u8, &'static str> {
    let (byte, rest) = input.split_first().ok_or(CUT_SHORT)?;
    *input = rest;
    Ok(*byte)
}

/// Takes what [`put_slice`] wrote off the front, without a copy.
///
/// # Errors
///
/// The input ends too early, or the length is no varint.
pub fn take_slice<'a>(input: &mut &'a [u8]) -> Result<&'a [u8], &'static str> {
    let len = usize::try_from(take_varint(input)?).map_err(|_| CUT_SHORT)?;
    let (slice, rest) = input.split_at_checked(len).ok_or(CUT_SHORT)?;
    *input = rest;
    Ok(slice)
}

/// The bytes that [`put_varint`] writes for `number`.
#[must_use]
pub fn varint_bytes(number: u64) -> usize {
    // 0 takes a byte as well.
    (64 - (number | 1).leading_zeros() as usize).div_ceil(7)
}

/// Takes what [`put_varint`] wrote off the front.
///
/// # Errors
///
/// The input ends too early, or the number does not fit 64 bits.
pub fn take_varint(input: &mut &[u8]) -> Result<u64, &'static str> {
    // A path of its own, because most numbers are lengths and counts of one byte.
    if let [byte @ ..0x80, rest @ ..] = *input {
        *input = rest;
        return Ok(u64::from(*byte));
    }
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = take_u8(input)?;
        // The tenth byte has one bit left; others would be lost without an error.
        if shift == 63 && byte > 1 {
            break;
        }
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(number);
        }
    }
    Err("a number does not fit 64 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_strings_come_back_and_nothing_beyond_64_bits() {
        for number in [0, 1, 0x7f, 0x80, 0x3fff, 0x4000, u64::MAX / 2, u64::MAX] {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, number);
            assert_eq!(bytes.len(), varint_bytes(number), "{number}");
            let mut input = &bytes[..];
            assert_eq!((take_varint(&mut input), input.len()), (Ok(number), 0));
            assert_eq!(take_varint(&mut &bytes[..bytes.len() - 1]), Err(CUT_SHORT));
        }
        let nine = [0xff; 9];
        assert_eq!(take_varint(&mut &[&nine[..], &[1]].concat()[..]), Ok(u64::MAX));
        assert!(take_varint(&mut &[&nine[..], &[2]].concat()[..]).is_err());
        assert!(take_varint(&mut &[0xff; 11][..]).is_err());
        let mut bytes = Vec::new();
        put_slice(&mut bytes, b"key");
        assert_eq!(take_slice(&mut &bytes[..]), Ok(&b"key"[..]));
        assert_eq!(take_slice(&mut &bytes[..3]), Err(CUT_SHORT));
    }
}
