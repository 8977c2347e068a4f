//! The identity of a data directory: the identity row of the pages and its half in the log.

use std::fmt;

use flotilla_base::fields::{Malformed, put_varint};
use flotilla_region::StoreId;

use crate::SCHEMA_VERSION;
use crate::codec::{fixed_u64, fixed_u128, put_text, row, text};

/// The first byte of the identity row.
const FORMAT: u8 = 2;
/// The first byte of the identity's half in the log.
const LOG_FORMAT: u8 = 1;

/// The number that a data directory got when it was empty. Random; the store *is* this number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreUuid(pub u128);

impl fmt::Display for StoreUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The cluster and the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberId {
    /// The cluster. Never 0.
    pub cluster_id: u64,
    /// The store.
    pub store: StoreId,
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "store {} of cluster {}", self.store, self.cluster_id)
    }
}

/// One start of a store. Two starts of one directory have different counts; a start of a copy of
/// the directory has another nonce.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreRun {
    /// How many starts the directory has seen, this one included.
    pub starts: u64,
    /// Random, drawn for this start.
    pub nonce: u64,
}

impl fmt::Display for StoreRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "start {} ({:016x})", self.starts, self.nonce)
    }
}

/// How far a store has come on its way into a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IdentityState {
    /// The directory was empty; the store belongs to no cluster.
    #[default]
    New,
    /// It holds the rows of a plan that may become a cluster.
    Forming,
    /// It is a store of its cluster for ever. Only members campaign, vote, append and serve.
    Member,
}

/// The identity row.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct StoreIdentity {
    /// How far the store has come.
    pub state: IdentityState,
    /// The cluster; 0 while `New`.
    pub cluster_id: u64,
    /// The store's id; 0 while `New`.
    pub store: StoreId,
    /// The directory's own number.
    pub uuid: StoreUuid,
    /// The bootstrap round whose plan the directory holds; 0 while `New`.
    pub round: u64,
    /// The greatest round that the store has promised; a lower one counts no more.
    pub promised: u64,
    /// The current start, or the last one.
    pub run: StoreRun,
    /// The schema of the rows.
    pub schema: u64,
    /// The store's name; empty while `New`.
    pub name: String,
}

impl StoreIdentity {
    /// The identity of a directory that was empty.
    #[must_use]
    pub fn new(uuid: StoreUuid, run: StoreRun) -> Self {
        Self { uuid, run, schema: SCHEMA_VERSION, ..Self::default() }
    }

    /// Whether the store is a member of its cluster.
    #[must_use]
    pub fn is_member(&self) -> bool {
        self.state == IdentityState::Member
    }

    /// The cluster and the store; both 0 while `New`.
    #[must_use]
    pub fn member_id(&self) -> MemberId {
        MemberId { cluster_id: self.cluster_id, store: self.store }
    }

    /// The bytes of the row, as `docs/durability.md` has them.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let state = match self.state {
            IdentityState::New => 0,
            IdentityState::Forming => 1,
            IdentityState::Member => 2,
        };
        let mut out = vec![FORMAT, state];
        out.extend_from_slice(&self.cluster_id.to_le_bytes());
        out.extend_from_slice(&self.store.0.to_le_bytes());
        out.extend_from_slice(&self.uuid.0.to_le_bytes());
        for number in [self.round, self.promised, self.run.starts, self.run.nonce] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        put_varint(&mut out, self.schema);
        put_text(&mut out, &self.name);
        out
    }

    /// Reads what [`StoreIdentity::encode`] wrote.
    ///
    /// # Errors
    ///
    /// If the bytes are damaged or of a format that this version does not know.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = row(bytes, FORMAT, "identity row")?;
        let state = match reader.byte()? {
            0 => IdentityState::New,
            1 => IdentityState::Forming,
            2 => IdentityState::Member,
            _ => return Err(reader.malformed()),
        };
        let cluster_id = fixed_u64(&mut reader)?;
        let store = StoreId(fixed_u64(&mut reader)?);
        let uuid = StoreUuid(fixed_u128(&mut reader)?);
        let round = fixed_u64(&mut reader)?;
        let promised = fixed_u64(&mut reader)?;
        let starts = fixed_u64(&mut reader)?;
        let nonce = fixed_u64(&mut reader)?;
        let schema = reader.varint()?;
        let name = text(&mut reader)?;
        reader.finish()?;
        let run = StoreRun { starts, nonce };
        Ok(Self { state, cluster_id, store, uuid, round, promised, run, schema, name })
    }

    /// Whether the row is one of format 1, from before stores had identities of their own.
    #[must_use]
    pub fn is_format_1(bytes: &[u8]) -> bool {
        bytes.len() == 17 && bytes[0] == 1
    }
}

/// The identity's half in the log, synced before the row says the same. A directory whose halves
/// do not agree has lost one of them, or got one of them back from another day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogIdentity {
    /// The directory's own number.
    pub uuid: StoreUuid,
    /// The start that wrote this.
    pub run: StoreRun,
}

impl LogIdentity {
    /// The bytes of the log's key.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![LOG_FORMAT];
        out.extend_from_slice(&self.uuid.0.to_le_bytes());
        out.extend_from_slice(&self.run.starts.to_le_bytes());
        out.extend_from_slice(&self.run.nonce.to_le_bytes());
        out
    }

    /// Reads what [`LogIdentity::encode`] wrote.
    ///
    /// # Errors
    ///
    /// If the bytes are damaged or of a format that this version does not know.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = row(bytes, LOG_FORMAT, "identity in the log")?;
        let uuid = StoreUuid(fixed_u128(&mut reader)?);
        let starts = fixed_u64(&mut reader)?;
        let nonce = fixed_u64(&mut reader)?;
        reader.finish()?;
        Ok(Self { uuid, run: StoreRun { starts, nonce } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member() -> StoreIdentity {
        StoreIdentity {
            state: IdentityState::Member,
            cluster_id: 0x0102,
            store: StoreId(3),
            uuid: StoreUuid(0x0405),
            round: 6,
            promised: 7,
            run: StoreRun { starts: 8, nonce: 9 },
            schema: 1,
            name: "s3".to_owned(),
        }
    }

    #[test]
    fn the_row_has_these_bytes() {
        let bytes = member().encode();
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!(bytes[..2], [2, 2]);
        assert_eq!([number(2), number(10)], [0x0102, 3]);
        assert_eq!([number(18), number(26)], [0x0405, 0]);
        assert_eq!([number(34), number(42), number(50), number(58)], [6, 7, 8, 9]);
        assert_eq!(bytes[66..], [1, 2, b's', b'3']);
        assert_eq!(StoreIdentity::decode(&bytes), Ok(member()));
        let log = LogIdentity { uuid: StoreUuid(5), run: StoreRun { starts: 1, nonce: 2 } };
        assert_eq!(log.encode().len(), 33);
        assert_eq!(LogIdentity::decode(&log.encode()), Ok(log));
    }

    #[test]
    fn damaged_rows_and_other_formats_are_an_error() {
        let bytes = member().encode();
        for len in 0..bytes.len() {
            assert!(StoreIdentity::decode(&bytes[..len]).is_err(), "cut at {len}");
        }
        let format_1 = [&[1][..], &[0; 16]].concat();
        assert!(StoreIdentity::decode(&format_1).is_err());
        assert!(StoreIdentity::is_format_1(&format_1));
        assert!(!StoreIdentity::is_format_1(&bytes));
        let log = LogIdentity { uuid: StoreUuid(5), run: StoreRun::default() }.encode();
        assert!(LogIdentity::decode(&log[..32]).is_err());
        assert!(LogIdentity::decode(&[&log[..], &[0]].concat()).is_err());
    }
}
