//! RawKV's commands: the operations of one proposal, and their bytes.
//!
//! Each operation is a byte for its kind and then its fields, byte strings behind their length.
//! Reading shares the memory of the entry; no key or value is copied.

use bytes::Bytes;
use flotilla_base::fields::{FieldReader, Malformed, put_bytes};

// The numbers are in logs on disk: none ever gets another meaning.
const PUT: u8 = 1;
const DELETE: u8 = 2;
const DELETE_RANGE: u8 = 3;
const COMPARE_AND_SWAP: u8 = 4;

/// One change of the region's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RawOp {
    /// Sets a key.
    Put {
        /// The key.
        key: Bytes,
        /// Its value from now on.
        value: Bytes,
    },
    /// Removes a key, if it is there.
    Delete {
        /// The key.
        key: Bytes,
    },
    /// Removes all keys of a range.
    DeleteRange {
        /// The first key.
        start: Bytes,
        /// The first key beyond; none means to the end of the region.
        end: Option<Bytes>,
    },
    /// Changes a key if it has the expected value.
    CompareAndSwap {
        /// The key.
        key: Bytes,
        /// The value that it should have; none means that the key should be absent.
        expected: Option<Bytes>,
        /// The new value; none removes the key.
        value: Option<Bytes>,
    },
}

/// The bytes of one proposal, which [`decode`] reads.
#[must_use]
pub fn encode(ops: &[RawOp]) -> Bytes {
    let mut out = Vec::with_capacity(ops.iter().map(op_bytes).sum());
    for op in ops {
        match op {
            RawOp::Put { key, value } => {
                out.push(PUT);
                put_bytes(&mut out, key);
                put_bytes(&mut out, value);
            }
            RawOp::Delete { key } => {
                out.push(DELETE);
                put_bytes(&mut out, key);
            }
            RawOp::DeleteRange { start, end } => {
                out.push(DELETE_RANGE);
                put_bytes(&mut out, start);
                put_option(&mut out, end.as_ref());
            }
            RawOp::CompareAndSwap { key, expected, value } => {
                out.push(COMPARE_AND_SWAP);
                put_bytes(&mut out, key);
                put_option(&mut out, expected.as_ref());
                put_option(&mut out, value.as_ref());
            }
        }
    }
    out.into()
}

/// The operations of one proposal.
///
/// # Errors
///
/// If the bytes are not what [`encode`] writes.
pub fn decode(command: Bytes) -> Result<Vec<RawOp>, Malformed> {
    let mut reader = FieldReader::new(command, "command");
    let mut ops = vec![];
    while !reader.is_empty() {
        ops.push(match reader.byte()? {
            PUT => RawOp::Put { key: reader.bytes()?, value: reader.bytes()? },
            DELETE => RawOp::Delete { key: reader.bytes()? },
            DELETE_RANGE => {
                RawOp::DeleteRange { start: reader.bytes()?, end: take_option(&mut reader)? }
            }
            COMPARE_AND_SWAP => RawOp::CompareAndSwap {
                key: reader.bytes()?,
                expected: take_option(&mut reader)?,
                value: take_option(&mut reader)?,
            },
            // Never skipped: this replica's rows would differ from those of one that knows the
            // operation.
            _ => return Err(reader.malformed()),
        });
    }
    Ok(ops)
}

/// At least as many bytes as the operation takes.
fn op_bytes(op: &RawOp) -> usize {
    const HEAD_BYTES_MAX: usize = 24;
    let option = |bytes: &Option<Bytes>| bytes.as_ref().map_or(0, Bytes::len);
    HEAD_BYTES_MAX
        + match op {
            RawOp::Put { key, value } => key.len() + value.len(),
            RawOp::Delete { key } => key.len(),
            RawOp::DeleteRange { start, end } => start.len() + option(end),
            RawOp::CompareAndSwap { key, expected, value } => {
                key.len() + option(expected) + option(value)
            }
        }
}

fn put_option(out: &mut Vec<u8>, bytes: Option<&Bytes>) {
    match bytes {
        // A byte for it, since an empty value is a value: a swap tells it from none.
        None => out.push(0),
        Some(bytes) => {
            out.push(1);
            put_bytes(out, bytes);
        }
    }
}

fn take_option(reader: &mut FieldReader) -> Result<Option<Bytes>, Malformed> {
    match reader.byte()? {
        0 => Ok(None),
        1 => reader.bytes().map(Some),
        _ => Err(reader.malformed()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    fn all_ops() -> Vec<RawOp> {
        vec![
            RawOp::Put { key: key("a"), value: key("") },
            RawOp::Put { key: key(""), value: Bytes::from(vec![7; 300]) },
            RawOp::Delete { key: key("b") },
            RawOp::DeleteRange { start: key("c"), end: None },
            RawOp::DeleteRange { start: key("c"), end: Some(key("")) },
            RawOp::CompareAndSwap { key: key("d"), expected: None, value: Some(key("v")) },
            RawOp::CompareAndSwap { key: key("d"), expected: Some(key("v")), value: None },
        ]
    }

    #[test]
    fn operations_come_back_as_they_were_written() {
        assert_eq!(decode(encode(&all_ops())), Ok(all_ops()));
        assert_eq!(decode(encode(&[])), Ok(vec![]));
    }

    #[test]
    fn damaged_bytes_are_an_error() {
        let good = encode(&all_ops());
        let whole: Vec<_> = (0..=7).map(|n| encode(&all_ops()[..n]).len()).collect();
        for length in 0..good.len() {
            let read = decode(good.slice(..length));
            assert_eq!(read.is_ok(), whole.contains(&length), "cut at {length}");
        }
        assert!(decode(Bytes::from_static(&[77])).is_err());
    }
}
