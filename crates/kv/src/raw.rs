//! RawKV's commands: the operations of one proposal, and their bytes.
//!
//! A command begins with the time of the leader that has proposed it, if an operation needs one,
//! and with its column family, if that is not the default one. Each operation is a byte for its
//! kind and then its fields: byte strings behind their length, numbers as varints.
//! Reading shares the memory of the entry; no key or value is copied.
//!
//! Times are milliseconds since 1970 by the clock of a leader. Applying reads no clock: each
//! replica decides by the time in the command and by the region's watermark, the latest time that
//! its log has named.

use bytes::Bytes;
use flotilla_base::fields::{FieldReader, Malformed, put_bytes, put_varint};

use crate::column_family::ColumnFamily;

// The numbers are in logs on disk: none ever gets another meaning.
const PUT: u8 = 1;
const DELETE: u8 = 2;
const DELETE_RANGE: u8 = 3;
const COMPARE_AND_SWAP: u8 = 4;
// From here on of feature level 4.
const TIME: u8 = 5;
const PUT_WITH_TTL: u8 = 6;
const COMPARE_AND_SWAP_WITH_TTL: u8 = 7;
const RAISE_WATERMARK: u8 = 8;
const REMOVE_EXPIRED: u8 = 9;
// From here on of feature level 5.
const COLUMN_FAMILY: u8 = 10;

/// One change of the region's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RawOp {
    /// Sets a key.
    Put {
        /// The key.
        key: Bytes,
        /// Its value from now on.
        value: Bytes,
        /// Seconds from the time of the command on, after which the value expires; 0 for never.
        ttl_s: u64,
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
    /// Changes a key if it has the expected value. A value that has expired by the time of the
    /// command is none.
    CompareAndSwap {
        /// The key.
        key: Bytes,
        /// The value that it should have; none means that the key should be absent.
        expected: Option<Bytes>,
        /// The new value; none removes the key.
        value: Option<Bytes>,
        /// As that of a put.
        ttl_s: u64,
    },
    /// Raises the region's watermark to the time of the command, unless it is higher already.
    RaiseWatermark,
    /// Raises the watermark likewise, and removes the rows of a range that have expired by it.
    RemoveExpired {
        /// The first key.
        start: Bytes,
        /// The first key beyond; none means to the end of the region.
        end: Option<Bytes>,
    },
}

impl RawOp {
    /// Sets a key for ever.
    #[must_use]
    pub fn put(key: Bytes, value: Bytes) -> Self {
        Self::Put { key, value, ttl_s: 0 }
    }

    /// Whether the operation means nothing without the time of its command.
    #[must_use]
    pub fn needs_time(&self) -> bool {
        match self {
            Self::Put { ttl_s, .. } | Self::CompareAndSwap { ttl_s, .. } => *ttl_s > 0,
            Self::RaiseWatermark | Self::RemoveExpired { .. } => true,
            Self::Delete { .. } | Self::DeleteRange { .. } => false,
        }
    }

    /// Whether the operation adds data, so that a full disk has no room for it.
    #[must_use]
    pub fn needs_room(&self) -> bool {
        match self {
            Self::Put { .. } => true,
            Self::CompareAndSwap { value, .. } => value.is_some(),
            Self::Delete { .. }
            | Self::DeleteRange { .. }
            | Self::RaiseWatermark
            | Self::RemoveExpired { .. } => false,
        }
    }
}

/// The operations of one proposal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawCommand {
    /// The time of the leader that has proposed it; 0 if no operation asks for one.
    pub time_ms: u64,
    /// The column family of all keys in it.
    pub family: ColumnFamily,
    /// The operations, carried out in this order, all or none.
    pub ops: Vec<RawOp>,
}

/// The bytes of a proposal at `time_ms` for keys of a column family, which [`decode`] reads; 0
/// stands for no time.
///
/// # Panics
///
/// If an operation needs a time and there is none.
#[must_use]
pub fn encode_in(family: ColumnFamily, time_ms: u64, ops: &[RawOp]) -> Bytes {
    assert!(time_ms > 0 || !ops.iter().any(RawOp::needs_time), "no time for {ops:?}");
    let mut out = Vec::with_capacity(HEAD_BYTES_MAX + ops.iter().map(op_bytes).sum::<usize>());
    if time_ms > 0 {
        out.push(TIME);
        put_varint(&mut out, time_ms);
    }
    if family != ColumnFamily::Default {
        out.extend_from_slice(&[COLUMN_FAMILY, family.number()]);
    }
    ops.iter().for_each(|op| encode_op(&mut out, op));
    out.into()
}

/// As [`encode_in`], for keys of the default column family.
///
/// # Panics
///
/// As [`encode_in`].
#[must_use]
pub fn encode_at(time_ms: u64, ops: &[RawOp]) -> Bytes {
    encode_in(ColumnFamily::Default, time_ms, ops)
}

/// The bytes of a proposal without a time, which [`decode`] reads.
///
/// # Panics
///
/// As [`encode_in`].
#[must_use]
pub fn encode(ops: &[RawOp]) -> Bytes {
    encode_at(0, ops)
}

fn encode_op(out: &mut Vec<u8>, op: &RawOp) {
    match op {
        RawOp::Put { key, value, ttl_s } => {
            out.push(if *ttl_s > 0 { PUT_WITH_TTL } else { PUT });
            put_bytes(out, key);
            put_bytes(out, value);
            put_ttl(out, *ttl_s);
        }
        RawOp::Delete { key } => {
            out.push(DELETE);
            put_bytes(out, key);
        }
        RawOp::DeleteRange { start, end } => {
            out.push(DELETE_RANGE);
            put_bytes(out, start);
            put_option(out, end.as_ref());
        }
        RawOp::CompareAndSwap { key, expected, value, ttl_s } => {
            out.push(if *ttl_s > 0 { COMPARE_AND_SWAP_WITH_TTL } else { COMPARE_AND_SWAP });
            put_bytes(out, key);
            put_option(out, expected.as_ref());
            put_option(out, value.as_ref());
            put_ttl(out, *ttl_s);
        }
        RawOp::RaiseWatermark => out.push(RAISE_WATERMARK),
        RawOp::RemoveExpired { start, end } => {
            out.push(REMOVE_EXPIRED);
            put_bytes(out, start);
            put_option(out, end.as_ref());
        }
    }
}

/// The operations of one proposal.
///
/// # Errors
///
/// If the bytes are not what [`encode_in`] writes.
pub fn decode(command: Bytes) -> Result<RawCommand, Malformed> {
    let mut reader = FieldReader::new(command, "command");
    let mut command = RawCommand::default();
    while !reader.is_empty() {
        let kind = reader.byte()?;
        if kind == TIME {
            let time_ms = reader.varint()?;
            // Once, and before the operations.
            if time_ms == 0 || command != RawCommand::default() {
                return Err(reader.malformed());
            }
            command.time_ms = time_ms;
            continue;
        }
        if kind == COLUMN_FAMILY {
            // Likewise, and the default one is never named: each command has one form.
            let family = ColumnFamily::of_number(reader.byte()?);
            let family = family.filter(|family| *family != ColumnFamily::Default);
            if !command.ops.is_empty() || command.family != ColumnFamily::Default {
                return Err(reader.malformed());
            }
            command.family = family.ok_or_else(|| reader.malformed())?;
            continue;
        }
        let op = decode_op(&mut reader, kind)?;
        if op.needs_time() && command.time_ms == 0 {
            return Err(reader.malformed());
        }
        command.ops.push(op);
    }
    Ok(command)
}

fn decode_op(reader: &mut FieldReader, kind: u8) -> Result<RawOp, Malformed> {
    Ok(match kind {
        PUT | PUT_WITH_TTL => RawOp::Put {
            key: reader.bytes()?,
            value: reader.bytes()?,
            ttl_s: take_ttl(reader, kind == PUT_WITH_TTL)?,
        },
        DELETE => RawOp::Delete { key: reader.bytes()? },
        DELETE_RANGE => RawOp::DeleteRange { start: reader.bytes()?, end: take_option(reader)? },
        COMPARE_AND_SWAP | COMPARE_AND_SWAP_WITH_TTL => RawOp::CompareAndSwap {
            key: reader.bytes()?,
            expected: take_option(reader)?,
            value: take_option(reader)?,
            ttl_s: take_ttl(reader, kind == COMPARE_AND_SWAP_WITH_TTL)?,
        },
        RAISE_WATERMARK => RawOp::RaiseWatermark,
        REMOVE_EXPIRED => {
            RawOp::RemoveExpired { start: reader.bytes()?, end: take_option(reader)? }
        }
        // Never skipped: this replica's rows would differ from those of one that knows the
        // operation.
        _ => return Err(reader.malformed()),
    })
}

/// At most as many bytes as all of an operation but its keys and values, and as a time.
const HEAD_BYTES_MAX: usize = 36;

/// At least as many bytes as the operation takes.
fn op_bytes(op: &RawOp) -> usize {
    let option = |bytes: &Option<Bytes>| bytes.as_ref().map_or(0, Bytes::len);
    HEAD_BYTES_MAX
        + match op {
            RawOp::Put { key, value, .. } => key.len() + value.len(),
            RawOp::Delete { key } => key.len(),
            RawOp::DeleteRange { start, end } | RawOp::RemoveExpired { start, end } => {
                start.len() + option(end)
            }
            RawOp::CompareAndSwap { key, expected, value, .. } => {
                key.len() + option(expected) + option(value)
            }
            RawOp::RaiseWatermark => 0,
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

/// A time to live, which plain kinds of operations do not have.
fn put_ttl(out: &mut Vec<u8>, ttl_s: u64) {
    if ttl_s > 0 {
        put_varint(out, ttl_s);
    }
}

fn take_ttl(reader: &mut FieldReader, has_ttl: bool) -> Result<u64, Malformed> {
    match has_ttl {
        false => Ok(0),
        true => match reader.varint()? {
            0 => Err(reader.malformed()),
            ttl_s => Ok(ttl_s),
        },
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
        let swap = |expected, value, ttl_s| RawOp::CompareAndSwap {
            key: key("d"),
            expected,
            value,
            ttl_s,
        };
        vec![
            RawOp::put(key("a"), key("")),
            RawOp::put(key(""), Bytes::from(vec![7; 300])),
            RawOp::Delete { key: key("b") },
            RawOp::DeleteRange { start: key("c"), end: None },
            RawOp::DeleteRange { start: key("c"), end: Some(key("")) },
            swap(None, Some(key("v")), 0),
            swap(Some(key("v")), None, 0),
            swap(None, Some(key("v")), 300),
            RawOp::Put { key: key("a"), value: key("v"), ttl_s: u64::MAX },
            RawOp::RaiseWatermark,
            RawOp::RemoveExpired { start: key("c"), end: None },
            RawOp::RemoveExpired { start: key("c"), end: Some(key("d")) },
        ]
    }

    /// The operations that need no time.
    const PLAIN: usize = 7;

    #[test]
    fn operations_come_back_as_they_were_written() {
        for family in ColumnFamily::ALL {
            let (time_ms, ops) = (1_700_000_000_000, all_ops());
            let command = encode_in(family, time_ms, &ops);
            assert_eq!(decode(command), Ok(RawCommand { time_ms, family, ops }));
        }
        let ops = all_ops()[..PLAIN].to_vec();
        assert_eq!(decode(encode(&ops)), Ok(RawCommand { ops, ..RawCommand::default() }));
        assert_eq!(decode(encode(&[])), Ok(RawCommand::default()));
    }

    #[test]
    fn every_byte_is_where_it_was() {
        let put = |ttl_s| RawOp::Put { key: key("k"), value: key("v"), ttl_s };
        assert_eq!(encode(&[put(0)])[..], [1, 1, b'k', 1, b'v']);
        assert_eq!(encode_at(300, &[put(5)])[..], [5, 0xac, 2, 6, 1, b'k', 1, b'v', 5]);
        assert_eq!(encode_at(7, &[RawOp::RaiseWatermark])[..], [5, 7, 8]);
        let range = RawOp::RemoveExpired { start: key("k"), end: None };
        assert_eq!(encode_at(7, &[range])[..], [5, 7, 9, 1, b'k', 0]);
        let write = encode_in(ColumnFamily::Write, 300, &[put(5)]);
        assert_eq!(write[..], [5, 0xac, 2, 10, 2, 6, 1, b'k', 1, b'v', 5]);
        assert_eq!(encode_in(ColumnFamily::Lock, 0, &[put(0)])[..], [10, 1, 1, 1, b'k', 1, b'v']);
    }

    #[test]
    fn no_command_is_longer_than_the_room_made_for_it() {
        let bytes = HEAD_BYTES_MAX + all_ops().iter().map(op_bytes).sum::<usize>();
        assert!(encode_in(ColumnFamily::Write, u64::MAX, &all_ops()).len() <= bytes);
    }

    #[test]
    fn damaged_bytes_are_an_error() {
        let whole = |count| encode_at(9, &all_ops()[..count]).len();
        let good = encode_at(9, &all_ops());
        let whole: Vec<_> = (0..=all_ops().len()).map(whole).chain([0]).collect();
        for length in 0..good.len() {
            let read = decode(good.slice(..length));
            assert_eq!(read.is_ok(), whole.contains(&length), "cut at {length}");
        }
        let wrong = [
            &[77][..],
            &[8],
            &[6, 0, 0, 1],
            &[5, 7, 6, 0, 0, 0],
            &[5, 7, 5, 7],
            &[2, 0, 5, 7],
            &[5, 0],
            &[10],
            &[10, 0],
            &[10, 3],
            &[10, 1, 10, 1],
            &[10, 1, 5, 7],
            &[2, 0, 10, 1],
        ];
        for wrong in wrong {
            assert!(decode(Bytes::from_static(wrong)).is_err(), "{wrong:?}");
        }
    }
}
