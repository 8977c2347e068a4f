//! The payload of most log entries: a batch of proposals, each a list of operations. Others hold a
//! command that changes the region (`admin_command.rs`).
//!
//! An entry's data is a format byte and then, for each proposal, the version of the range that it
//! was admitted under, its length and its operations. Proposals that wait at the same time share
//! an entry: raft's cost is per entry, not per byte. They were encoded before they came here and
//! are joined as they are. An empty entry is a new leader's first one.
//!
//! Reading shares the entry's memory; no key or value is copied.

use bytes::Bytes;

use flotilla_base::fields::{FieldReader, Malformed, put_bytes, put_varint, varint_bytes};

/// The first byte of an entry with proposals.
const FORMAT: u8 = 1;

/// One proposal of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// The version of the range under which it was admitted. If the range has another one when it
    /// is applied, it must have no effect.
    pub version: u64,
    /// The command, in the encoding of its protocol; the region does not read it.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_holds_its_proposals_in_order() {
        let commands =
            ["", "put", "put and delete"].map(|text| Bytes::from_static(text.as_bytes()));
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
        let bad = Bytes::from_static(&[FORMAT, 1, 200, 1, 5]);
        assert_eq!(proposals(&bad).collect::<Vec<_>>(), [Err(Malformed { what: "entry" })]);
        let other_format = Bytes::from_static(&[2, 1, 0]);
        assert_eq!(proposals(&other_format).filter(Result::is_err).count(), 1);
    }
}
