//! Log entries, and the hard state (term, vote, commit index) of a replica.

use bytes::Bytes;

use crate::ids::{Index, PeerId, Term};
use flotilla_base::fields::{FieldReader, Malformed, put_varint};

/// The first byte of an encoded hard state.
const FORMAT: u8 = 1;
/// The most bytes of an encoded hard state: its format and three varints.
const ENCODED_BYTES_MAX: usize = 1 + 3 * 10;

/// The kind of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EntryKind {
    /// A new leader's empty first entry, proposals (see [`crate::entry_data`]), or a command that
    /// changes the region (see [`crate::AdminCommand`]).
    #[default]
    Normal,
    /// A change of the replicas, in raft's own encoding.
    ConfChangeV2,
}

impl EntryKind {
    /// The kind's number on disk and on the wire; those of eraftpb.
    #[must_use]
    pub fn to_byte(self) -> u8 {
        match self {
            Self::Normal => 0,
            Self::ConfChangeV2 => 2,
        }
    }

    /// The kind with this number.
    ///
    /// # Errors
    ///
    /// If this version knows no such kind.
    pub fn from_byte(byte: u8) -> Result<Self, Malformed> {
        match byte {
            0 => Ok(Self::Normal),
            2 => Ok(Self::ConfChangeV2),
            _ => Err(Malformed { what: "kind of entry" }),
        }
    }
}

/// One entry of a region's log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogEntry {
    /// Its place.
    pub index: Index,
    /// The term of the leader that made it.
    pub term: Term,
    /// How to read `data`.
    pub kind: EntryKind,
    /// The payload. Empty for a new leader's first entry.
    pub data: Bytes,
}

/// The state that a replica must not forget, in addition to its entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardState {
    /// The highest term that it has seen.
    pub term: Term,
    /// The candidate that it voted for in that term.
    pub vote: Option<PeerId>,
    /// The commit index, as far as it is known here.
    pub commit: Index,
}

impl HardState {
    /// The newest state of two copies: the vote of the higher term, the higher commit index (a
    /// committed entry stays committed).
    #[must_use]
    pub fn merge(self, other: Self) -> Self {
        let newest = if other.term > self.term { other } else { self };
        // A replica votes once in a term, but one of the copies may be from before the vote.
        let vote = if self.term == other.term { self.vote.or(other.vote) } else { newest.vote };
        Self { term: newest.term, vote, commit: self.commit.max(other.commit) }
    }

    /// The bytes that [`HardState::decode`] reads.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(ENCODED_BYTES_MAX);
        out.push(FORMAT);
        put_varint(&mut out, self.term.0);
        put_varint(&mut out, self.vote.map_or(0, |peer| peer.0));
        put_varint(&mut out, self.commit.0);
        out.into()
    }

    /// Reads what [`HardState::encode`] wrote.
    ///
    /// # Errors
    ///
    /// If the bytes are damaged or of a format that this version does not know.
    pub fn decode(bytes: Bytes) -> Result<Self, Malformed> {
        let mut reader = FieldReader::new(bytes, "hard state");
        if reader.byte()? != FORMAT {
            return Err(reader.malformed());
        }
        let term = Term(reader.varint()?);
        let vote = Some(PeerId(reader.varint()?)).filter(|peer| peer.0 != 0);
        let commit = Index(reader.varint()?);
        reader.finish()?;
        Ok(Self { term, vote, commit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(term: u64, vote: u64, commit: u64) -> HardState {
        let vote = Some(PeerId(vote)).filter(|peer| peer.0 != 0);
        HardState { term: Term(term), vote, commit: Index(commit) }
    }

    #[test]
    fn hard_state_comes_back_as_it_was_written() {
        for hard_state in [state(0, 0, 0), state(9, 301, 12), state(u64::MAX, 1, u64::MAX)] {
            assert_eq!(HardState::decode(hard_state.encode()), Ok(hard_state));
        }
        assert!(HardState::decode(Bytes::new()).is_err());
        assert!(HardState::decode(Bytes::from_static(&[2, 0, 0, 0])).is_err());
    }

    #[test]
    fn merging_keeps_the_newest_vote_and_the_highest_commit() {
        assert_eq!(state(3, 1, 10).merge(state(4, 0, 7)), state(4, 0, 10));
        assert_eq!(state(4, 0, 7).merge(state(3, 1, 10)), state(4, 0, 10));
        assert_eq!(state(4, 0, 7).merge(state(4, 2, 6)), state(4, 2, 7));
        assert_eq!(state(4, 2, 7).merge(state(4, 0, 6)), state(4, 2, 7));
    }
}
