//! The comparison of a region's replicas: digests of their rows behind one entry, and the verdict
//! (`docs/decisions/0049-replicas-are-compared-by-digests.md`).
//!
//! The verdict is a pure function of the digests and of the region's members, so every replica that
//! applies them comes to the same one.

use std::fmt;

use bytes::Bytes;
use flotilla_base::fields::{FieldReader, Malformed, put_varint};

use crate::descriptor::{Descriptor, Peer};
use crate::ids::{Index, PeerId, StoreId};

/// The first byte of a verdict.
const FORMAT: u8 = 1;
/// The flags of a replica in a verdict.
const HAS_DIGEST: u8 = 1;
const DIFFERS: u8 = 2;

/// The digests of the rows that replicas had behind the same entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DigestComparison {
    /// The entry that has asked for them.
    pub index: Index,
    /// The replicas that have told one.
    pub digests: Vec<(PeerId, u64)>,
}

/// A replica in a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComparedReplica {
    /// The replica.
    pub peer: Peer,
    /// The digest of its rows; none if it took no part.
    pub digest: Option<u64>,
    /// Whether its rows are not those of the majority of the compared replicas. True of all that
    /// were compared if no majority has the same rows.
    pub differs: bool,
}

/// The result of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsistencyVerdict {
    /// The entry behind which the rows were compared.
    pub index: Index,
    /// All members of the region.
    pub replicas: Vec<ComparedReplica>,
}

impl DigestComparison {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.index.0);
        put_varint(out, self.digests.len() as u64);
        for (peer, digest) in &self.digests {
            put_varint(out, peer.0);
            put_varint(out, *digest);
        }
    }

    pub(crate) fn decode(reader: &mut FieldReader) -> Result<Self, Malformed> {
        let index = Index(reader.varint()?);
        // Without room reserved: a damaged count may be anything.
        let mut digests = vec![];
        for _ in 0..reader.varint()? {
            digests.push((PeerId(reader.varint()?), reader.varint()?));
        }
        Ok(Self { index, digests })
    }

    /// The verdict about the members of `region`. Replicas that are none any more do not count.
    #[must_use]
    pub fn verdict(&self, region: &Descriptor) -> ConsistencyVerdict {
        let digest = |peer| self.digests.iter().find(|(of, _)| *of == peer).map(|it| it.1);
        let compared: Vec<u64> =
            region.peers.iter().filter_map(|member| digest(member.id)).collect();
        let is_usual =
            |one: &u64| 2 * compared.iter().filter(|it| *it == one).count() > compared.len();
        let usual = compared.iter().copied().find(is_usual);
        let replicas = region.peers.iter().map(|member| {
            let (peer, digest) = (Peer { id: member.id, store: member.store }, digest(member.id));
            ComparedReplica { peer, digest, differs: digest.is_some() && digest != usual }
        });
        ConsistencyVerdict { index: self.index, replicas: replicas.collect() }
    }
}

impl ConsistencyVerdict {
    /// How many replicas were compared.
    #[must_use]
    pub fn compared(&self) -> usize {
        self.replicas.iter().filter(|replica| replica.digest.is_some()).count()
    }

    /// Whether all members were.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.compared() == self.replicas.len()
    }

    /// Whether the rows of some replica differ from those of others.
    #[must_use]
    pub fn has_difference(&self) -> bool {
        self.replicas.iter().any(|replica| replica.differs)
    }

    /// The bytes that [`ConsistencyVerdict::decode`] reads.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = vec![FORMAT];
        put_varint(&mut out, self.index.0);
        put_varint(&mut out, self.replicas.len() as u64);
        for ComparedReplica { peer, digest, differs } in &self.replicas {
            put_varint(&mut out, peer.id.0);
            put_varint(&mut out, peer.store.0);
            let differs = if *differs { DIFFERS } else { 0 };
            out.push(differs | if digest.is_some() { HAS_DIGEST } else { 0 });
            digest.iter().for_each(|digest| put_varint(&mut out, *digest));
        }
        out.into()
    }

    /// Reads what [`ConsistencyVerdict::encode`] wrote.
    ///
    /// # Errors
    ///
    /// If the bytes are damaged or of a format that this version does not know.
    pub fn decode(bytes: Bytes) -> Result<Self, Malformed> {
        let mut reader = FieldReader::new(bytes, "verdict of a comparison");
        if reader.byte()? != FORMAT {
            return Err(reader.malformed());
        }
        let (index, mut replicas) = (Index(reader.varint()?), vec![]);
        for _ in 0..reader.varint()? {
            let peer = Peer { id: PeerId(reader.varint()?), store: StoreId(reader.varint()?) };
            let flags = reader.byte()?;
            if flags > HAS_DIGEST | DIFFERS {
                return Err(reader.malformed());
            }
            let digest = if flags & HAS_DIGEST == 0 { None } else { Some(reader.varint()?) };
            replicas.push(ComparedReplica { peer, digest, differs: flags & DIFFERS != 0 });
        }
        reader.finish()?;
        Ok(Self { index, replicas })
    }
}

/// All members with their digests, for the log and for operators.
impl fmt::Display for ConsistencyVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, ComparedReplica { peer, digest, differs }) in self.replicas.iter().enumerate() {
            let separator = if place == 0 { "" } else { ", " };
            write!(f, "{separator}store {} has ", peer.store)?;
            match digest {
                Some(digest) => write!(f, "{digest:016x}")?,
                None => write!(f, "not answered")?,
            }
            if *differs {
                write!(f, " (differs)")?;
            }
        }
        write!(f, ", all as of entry {}", self.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::{Epoch, RemovedPeers, Space};
    use crate::ids::RegionId;

    fn region(members: u64) -> Descriptor {
        let peer = |n| Peer { id: PeerId(100 + n), store: StoreId(n) }.into();
        Descriptor {
            id: RegionId(1),
            space: Space::Raw,
            start: Bytes::new(),
            end: Bytes::new(),
            epoch: Epoch { conf_version: 1, version: 1 },
            peers: (1..=members).map(peer).collect(),
            removed: RemovedPeers::default(),
        }
    }

    /// The stores that differ, of those with the given digests, 0 for none.
    fn differing(digests: &[u64]) -> Vec<u64> {
        let told = (101..).map(PeerId).zip(digests.iter().copied()).filter(|it| it.1 > 0);
        let comparison = DigestComparison { index: Index(9), digests: told.collect() };
        let verdict = comparison.verdict(&region(digests.len() as u64));
        assert_eq!(ConsistencyVerdict::decode(verdict.encode()), Ok(verdict.clone()));
        assert_eq!(verdict.is_complete(), !digests.contains(&0));
        let differing = verdict.replicas.iter().filter(|replica| replica.differs);
        let stores: Vec<_> = differing.map(|replica| replica.peer.store.0).collect();
        assert_eq!(verdict.has_difference(), !stores.is_empty());
        stores
    }

    #[test]
    fn the_replica_that_differs_from_a_majority_is_named_and_without_one_all_are() {
        assert!(differing(&[]).is_empty());
        assert!(differing(&[5]).is_empty());
        assert!(differing(&[5, 5, 5]).is_empty());
        assert_eq!(differing(&[5, 7, 5]), [2]);
        assert_eq!(differing(&[5, 7, 9]), [1, 2, 3]);
        assert_eq!(differing(&[5, 7]), [1, 2]);
        assert_eq!(differing(&[5, 5, 7, 7]), [1, 2, 3, 4]);
        assert_eq!(differing(&[5, 7, 7, 7, 5]), [1, 5]);
    }

    #[test]
    fn a_replica_that_took_no_part_does_not_differ() {
        assert!(differing(&[0, 0, 0]).is_empty());
        assert!(differing(&[5, 0, 5]).is_empty());
        assert!(differing(&[0, 5, 0]).is_empty());
        assert_eq!(differing(&[0, 5, 7]), [2, 3]);
        assert_eq!(differing(&[5, 0, 5, 7, 0]), [4]);
    }

    #[test]
    fn a_replica_that_is_no_member_any_more_does_not_count() {
        let digests = vec![(PeerId(99), 7), (PeerId(101), 5), (PeerId(102), 5)];
        let verdict = DigestComparison { index: Index(9), digests }.verdict(&region(3));
        assert!(!verdict.has_difference() && !verdict.is_complete());
        assert_eq!(verdict.compared(), 2);
        let words = "store 1 has 0000000000000005, store 2 has 0000000000000005, store 3 has not \
                     answered, all as of entry 9";
        assert_eq!(verdict.to_string(), words);
    }

    #[test]
    fn damaged_verdicts_are_an_error() {
        let digests = vec![(PeerId(101), 5), (PeerId(102), 6)];
        let data = DigestComparison { index: Index(9), digests }.verdict(&region(3)).encode();
        for length in 0..data.len() {
            assert!(ConsistencyVerdict::decode(data.slice(..length)).is_err(), "cut at {length}");
        }
        assert!(ConsistencyVerdict::decode(Bytes::from_static(&[1, 1, 1, 1, 1, 4])).is_err());
        assert!(ConsistencyVerdict::decode(Bytes::from_static(&[2, 1, 0])).is_err());
    }
}
