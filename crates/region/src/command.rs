//! The payload of a log entry: a batch of proposals, each a list of operations.
//!
//! An entry's data is a format byte and then, for each proposal, the version of the range that it
//! was admitted under, its length and its operations. Proposals that wait at the same time share
//! an entry: raft's cost is per entry, not per byte. They were encoded before they came here and
//! are joined as they are. An empty entry is a new leader's first one.
//!
//! Reading shares the entry's memory; no key or value is copied.

use bytes::Bytes;

use crate::codec::{FieldReader, Malformed, put_bytes, put_varint, varint_bytes};

/// The first byte of an entry with proposals.
const FORMAT: u8 = 1;

const PUT: u8 = 1;
const DELETE: u8 = 2;
const DELETE_RANGE: u8 = 3;
const COMPARE_AND_SWAP: u8 = 4;

/// One change of the region's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
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
        /// The value that the key should have now; none means that it should not be there.
        expected: Option<Bytes>,
        /// The new value; none removes the key.
        value: Option<Bytes>,
    },
}

/// The bytes of one proposal, which [`decode`] reads.
#[must_use]
pub fn encode(ops: &[Op]) -> Bytes {
    let mut out = Vec::with_capacity(ops.iter().map(op_bytes).sum());
    for op in ops {
        match op {
            Op::Put { key, value } => {
                out.push(PUT);
                put_bytes(&mut out, key);
                put_bytes(&mut out, value);
            }
            Op::Delete { key } => {
                out.push(DELETE);
                put_bytes(&mut out, key);
            }
            Op::DeleteRange { start, end } => {
                out.push(DELETE_RANGE);
                put_bytes(&mut out, start);
                put_option(&mut out, end.as_ref());
            }
            Op::CompareAndSwap { key, expected, value } => {
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
pub fn decode(command: Bytes) -> Result<Vec<Op>, Malformed> {
    let mut reader = FieldReader::new(command, "command");
    let mut ops = vec![];
    while !reader.is_empty() {
        ops.push(match reader.byte()? {
            PUT => Op::Put { key: reader.bytes()?, value: reader.bytes()? },
            DELETE => Op::Delete { key: reader.bytes()? },
            DELETE_RANGE => {
                Op::DeleteRange { start: reader.bytes()?, end: take_option(&mut reader)? }
            }
            COMPARE_AND_SWAP => Op::CompareAndSwap {
                key: reader.bytes()?,
                expected: take_option(&mut reader)?,
                value: take_option(&mut reader)?,
            },
            _ => return Err(reader.malformed()),
        });
    }
    Ok(ops)
}

/// One proposal of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// The version of the range under which it was admitted. If the range has another one when it
    /// is applied, it must have no effect.
    pub version: u64,
    /// Its operations, for [`decode`].
    pub command: Bytes,
}

/// The proposals of an entry's data, in order. None for an empty entry.
///
/// Ends after the first error: the borders of later proposals are unknown.
#[must_use]
pub fn proposals(data: &Bytes) -> ProposalIter {
    ProposalIter { reader: FieldReader::new(data.clone(), "entry"), started: false, failed: false }
}

/// Iterator of [`proposals`].
pub struct ProposalIter {
    reader: FieldReader,
    started: bool,
    failed: bool,
}

impl Iterator for ProposalIter {
    type Item = Result<Proposal, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.reader.is_empty() {
            return None;
        }
        let proposal = self.take();
        self.failed = proposal.is_err();
        Some(proposal)
    }
}

impl ProposalIter {
    fn take(&mut self) -> Result<Proposal, Malformed> {
        if !self.started {
            if self.reader.byte()? != FORMAT {
                return Err(self.reader.malformed());
            }
            self.started = true;
        }
        let version = self.reader.varint()?;
        let command = self.reader.bytes()?;
        Ok(Proposal { version, command })
    }
}

/// Joins proposals to the data of one entry.
pub(crate) struct ProposalJoiner {
    data: Vec<u8>,
    count: usize,
}

impl ProposalJoiner {
    pub(crate) fn new() -> Self {
        Self { data: vec![FORMAT], count: 0 }
    }

    pub(crate) fn add(&mut self, version: u64, command: &[u8]) {
        put_varint(&mut self.data, version);
        put_bytes(&mut self.data, command);
        self.count += 1;
    }

    /// How many bytes the data would have with a command of this length added.
    pub(crate) fn bytes_with(&self, version: u64, command_bytes: usize) -> usize {
        let head = varint_bytes(version) + varint_bytes(command_bytes as u64);
        self.data.len() + head + command_bytes
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn into_data(self) -> Vec<u8> {
        self.data
    }
}

fn put_option(out: &mut Vec<u8>, bytes: Option<&Bytes>) {
    match bytes {
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

/// At least as many bytes as the operation takes.
fn op_bytes(op: &Op) -> usize {
    const HEAD_BYTES_MAX: usize = 24;
    let option = |bytes: &Option<Bytes>| bytes.as_ref().map_or(0, Bytes::len);
    HEAD_BYTES_MAX
        + match op {
            Op::Put { key, value } => key.len() + value.len(),
            Op::Delete { key } => key.len(),
            Op::DeleteRange { start, end } => start.len() + option(end),
            Op::CompareAndSwap { key, expected, value } => {
                key.len() + option(expected) + option(value)
            }
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    fn all_ops() -> Vec<Op> {
        vec![
            Op::Put { key: key("a"), value: key("") },
            Op::Put { key: key(""), value: Bytes::from(vec![7; 300]) },
            Op::Delete { key: key("b") },
            Op::DeleteRange { start: key("c"), end: None },
            Op::DeleteRange { start: key("c"), end: Some(key("")) },
            Op::CompareAndSwap { key: key("d"), expected: None, value: Some(key("v")) },
            Op::CompareAndSwap { key: key("d"), expected: Some(key("v")), value: None },
        ]
    }

    #[test]
    fn operations_come_back_as_they_were_written() {
        assert_eq!(decode(encode(&all_ops())), Ok(all_ops()));
        assert_eq!(decode(encode(&[])), Ok(vec![]));
    }

    #[test]
    fn an_entry_holds_its_proposals_in_order() {
        let commands = [encode(&all_ops()), encode(&[]), encode(&all_ops()[..1])];
        let mut joiner = ProposalJoiner::new();
        for (version, command) in (200..).zip(&commands) {
            let expected = joiner.bytes_with(version, command.len());
            joiner.add(version, command);
            assert_eq!(joiner.data.len(), expected);
        }
        let data = Bytes::from(joiner.into_data());
        let read: Vec<_> = proposals(&data).collect::<Result<_, _>>().unwrap();
        let written = (200..).zip(commands).map(|(version, command)| Proposal { version, command });
        assert_eq!(read, written.collect::<Vec<_>>());
    }

    #[test]
    fn an_empty_entry_has_no_proposals() {
        assert_eq!(proposals(&Bytes::new()).count(), 0);
    }

    #[test]
    fn damaged_bytes_are_an_error_once() {
        let good = encode(&all_ops());
        let whole: Vec<_> = (0..=7).map(|n| encode(&all_ops()[..n]).len()).collect();
        for length in 0..good.len() {
            let read = decode(good.slice(..length));
            assert_eq!(read.is_ok(), whole.contains(&length), "cut at {length}");
        }
        assert!(decode(Bytes::from_static(&[77])).is_err());
        let bad = Bytes::from_static(&[FORMAT, 1, 200, 1, 5]);
        assert_eq!(proposals(&bad).collect::<Vec<_>>(), [Err(Malformed { what: "entry" })]);
        let other_format = Bytes::from_static(&[2, 1, 0]);
        assert_eq!(proposals(&other_format).filter(Result::is_err).count(), 1);
    }
}
