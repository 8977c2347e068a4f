//! Fields of small formats: checked reading of varints and byte strings that share one memory.

use bytes::{Buf, Bytes};

use crate::varint::take_varint;

pub use crate::varint::{put_slice as put_bytes, put_varint, varint_bytes};

/// Bytes that do not conform to their format.
///
/// The bytes were damaged or written by another program; nothing can be read from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed {what}")]
pub struct Malformed {
    /// Which part was being read.
    pub what: &'static str,
}

/// Takes one field after the other off the front. Byte strings share the memory of the source.
pub struct FieldReader {
    rest: Bytes,
    what: &'static str,
}

impl FieldReader {
    /// A reader of `bytes`, which are the `what` that errors name.
    #[must_use]
    pub fn new(bytes: Bytes, what: &'static str) -> Self {
        Self { rest: bytes, what }
    }

    /// Whether all bytes were read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The error that names what is read.
    #[must_use]
    pub fn malformed(&self) -> Malformed {
        Malformed { what: self.what }
    }

    /// Takes one byte.
    ///
    /// # Errors
    ///
    /// The bytes end too early, or are not one.
    pub fn byte(&mut self) -> Result<u8, Malformed> {
        let byte = *self.rest.first().ok_or(self.malformed())?;
        self.rest = self.rest.slice(1..);
        Ok(byte)
    }

    /// Takes what [`put_varint`] wrote.
    ///
    /// # Errors
    ///
    /// The bytes end too early, or are not one.
    pub fn varint(&mut self) -> Result<u64, Malformed> {
        let mut input = &self.rest[..];
        let value = take_varint(&mut input).map_err(|_| self.malformed())?;
        let taken = self.rest.len() - input.len();
        self.rest.advance(taken);
        Ok(value)
    }

    /// Takes what [`put_bytes`] wrote; it shares the memory of the source.
    ///
    /// # Errors
    ///
    /// The bytes end too early, or are not one.
    pub fn bytes(&mut self) -> Result<Bytes, Malformed> {
        let length = usize::try_from(self.varint()?).map_err(|_| self.malformed())?;
        // Checked here: `split_to` panics beyond the end, and a damaged length may be anything.
        if length > self.rest.len() {
            return Err(self.malformed());
        }
        Ok(self.rest.split_to(length))
    }

    /// Ends the reading: whatever is left over does not belong there.
    ///
    /// # Errors
    ///
    /// There are bytes left.
    pub fn finish(&self) -> Result<(), Malformed> {
        if self.is_empty() { Ok(()) } else { Err(self.malformed()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_overlong_ones_do_not() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut out = vec![];
            put_varint(&mut out, value);
            assert_eq!(out.len(), varint_bytes(value), "{value}");
            let mut reader = FieldReader::new(out.into(), "number");
            assert_eq!(reader.varint(), Ok(value));
            assert_eq!(reader.finish(), Ok(()));
        }
        for bad in [&[][..], &[0x80], &[0xff; 10], &[0xff; 11]] {
            let mut reader = FieldReader::new(Bytes::copy_from_slice(bad), "number");
            assert!(reader.varint().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_length_beyond_the_end_is_an_error() {
        let mut out = vec![];
        put_varint(&mut out, u64::MAX);
        out.push(1);
        assert!(FieldReader::new(out.into(), "string").bytes().is_err());
    }
}
