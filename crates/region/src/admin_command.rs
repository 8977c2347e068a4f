//! Commands that change the region itself (`docs/decisions/0034-a-split-is-an-entry.md`). Each is
//! an entry of its own, never joined with proposals.
//!
//! A change of the replicas is an entry of raft's own kind, whose context is the command; all
//! others are entries of the normal kind, with the command as their data
//! (`docs/decisions/0036-members-change-one-entry-each.md`).
//!
//! A command is a format byte other than that of proposals, a byte that names the command,
//! and its fields. A command that this version does not know stops the store: to leave it out would
//! make this replica another region than the others are.

use bytes::Bytes;
use flotilla_base::fields::{FieldReader, Malformed, put_bytes, put_varint};

use crate::descriptor::{Descriptor, Epoch, RegionPeer, RemovedPeers};
use crate::digest_comparison::DigestComparison;
use crate::entry::{EntryKind, LogEntry};
use crate::ids::{PeerId, RegionId};
use crate::membership_change::MembershipCommand;

/// The first byte of an entry with such a command.
pub(crate) const FORMAT: u8 = 2;
/// The second byte: which command.
const SPLIT: u8 = 1;
const MEMBERSHIP: u8 = 2;
const FORGET: u8 = 3;
const COMPUTE_DIGEST: u8 = 4;
const VERIFY_DIGESTS: u8 = 5;
/// The keys of the context, and of what raft keeps beside it, in its own encoding of a change
/// (`ConfChangeV2` of eraftpb).
const RAFT_TRANSITION: u64 = 1 << 3;
const RAFT_CHANGE: u64 = 2 << 3 | 2;
const RAFT_CONTEXT: u64 = 3 << 3 | 2;

/// The most regions that one split makes.
pub const SPLIT_CHILDREN_MAX: usize = 16;

/// A command that changes the region itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminCommand {
    /// The region becomes several.
    Split(SplitCommand),
    /// The region has other replicas, or the same ones in other roles.
    Membership(MembershipCommand),
    /// The end of a removed replica is confirmed: it leaves the list of those.
    Forget(PeerId),
    /// Each replica computes a digest of the rows that it has behind this entry, if it knows the
    /// version (`docs/decisions/0049-replicas-are-compared-by-digests.md`).
    ComputeDigest {
        /// The version of the digest.
        version: u64,
    },
    /// These are the digests of an earlier entry: each replica comes to the same verdict.
    VerifyDigests(DigestComparison),
}

/// A split into neighbours: new regions take the first parts of the range, the last part stays with
/// the region. So a region that is written at its end keeps its hot part, and its leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitCommand {
    /// The version of the region that the borders and replicas were chosen for. If it has another
    /// when the command is applied, the command has no effect.
    pub epoch: Epoch,
    /// The new regions, in the order of their keys. One to [`SPLIT_CHILDREN_MAX`].
    pub children: Vec<SplitChild>,
}

/// A new region of a split. It begins where the one before it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitChild {
    /// The new region. Never used before.
    pub id: RegionId,
    /// The first key beyond it. Never empty.
    pub end: Bytes,
    /// Its replicas, in the order of those of the region that is split, on the same stores. Never
    /// used before.
    pub peers: Vec<PeerId>,
}

/// Why a split cannot be made of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    /// The region has changed since the borders were chosen.
    #[error("the region has another version")]
    Version,
    /// The region is between two configurations: its children would be as well, each without a
    /// leader that knows of it.
    #[error("the region is between two configurations")]
    Joint,
    /// No child, or more than one split may make.
    #[error("a split makes 1 to {SPLIT_CHILDREN_MAX} regions")]
    Count,
    /// A border is not inside of the region, or not above the one before.
    #[error("the borders of a split rise, and lie inside of the region")]
    Borders,
    /// An id is 0, is there twice, or a child has another number of replicas than the region.
    #[error("a split needs new ids, one for each region and each of its replicas")]
    Ids,
}

impl AdminCommand {
    /// The command in an entry. `None` for an entry without data, or with proposals.
    ///
    /// # Errors
    ///
    /// If the bytes are damaged, or a command that this version does not know.
    pub fn decode(entry: &LogEntry) -> Result<Option<Self>, Malformed> {
        if !Self::is_in(entry) {
            return Ok(None);
        }
        let is_change = entry.kind == EntryKind::ConfChangeV2;
        let data = if is_change { change_context(&entry.data)? } else { entry.data.clone() };
        let mut reader = FieldReader::new(data, "admin command");
        if reader.byte()? != FORMAT {
            return Err(reader.malformed());
        }
        let command = match (reader.byte()?, is_change) {
            (SPLIT, false) => Self::Split(SplitCommand::decode(&mut reader)?),
            (MEMBERSHIP, true) => Self::Membership(MembershipCommand::decode(&mut reader)?),
            (FORGET, false) => Self::Forget(PeerId(reader.varint()?)),
            (COMPUTE_DIGEST, false) => Self::ComputeDigest { version: reader.varint()? },
            (VERIFY_DIGESTS, false) => Self::VerifyDigests(DigestComparison::decode(&mut reader)?),
            _ => return Err(reader.malformed()),
        };
        reader.finish()?;
        Ok(Some(command))
    }

    /// Whether an entry holds such a command, one that this version knows or not.
    #[must_use]
    pub fn is_in(entry: &LogEntry) -> bool {
        entry.kind != EntryKind::Normal || entry.data.first() == Some(&FORMAT)
    }

    /// The data of the command's entry; of a change of the replicas, its context.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = vec![FORMAT];
        match self {
            Self::Split(split) => split.encode(&mut out),
            Self::Membership(change) => {
                out.push(MEMBERSHIP);
                change.encode(&mut out);
            }
            Self::Forget(peer) => {
                out.push(FORGET);
                put_varint(&mut out, peer.0);
            }
            Self::ComputeDigest { version } => {
                out.push(COMPUTE_DIGEST);
                put_varint(&mut out, *version);
            }
            Self::VerifyDigests(comparison) => {
                out.push(VERIFY_DIGESTS);
                comparison.encode(&mut out);
            }
        }
        out.into()
    }
}

/// The context of raft's encoding of a change.
fn change_context(data: &Bytes) -> Result<Bytes, Malformed> {
    let mut reader = FieldReader::new(data.clone(), "configuration change");
    let mut context = None;
    while !reader.is_empty() {
        match reader.varint()? {
            RAFT_TRANSITION => drop(reader.varint()?),
            RAFT_CHANGE => drop(reader.bytes()?),
            RAFT_CONTEXT => context = Some(reader.bytes()?),
            _ => return Err(reader.malformed()),
        }
    }
    context.ok_or_else(|| reader.malformed())
}

impl SplitCommand {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(SPLIT);
        put_varint(out, self.epoch.conf_version);
        put_varint(out, self.epoch.version);
        put_varint(out, self.children.len() as u64);
        for child in &self.children {
            put_varint(out, child.id.0);
            put_bytes(out, &child.end);
            put_varint(out, child.peers.len() as u64);
            child.peers.iter().for_each(|peer| put_varint(out, peer.0));
        }
    }

    fn decode(reader: &mut FieldReader) -> Result<Self, Malformed> {
        let (conf_version, version) = (reader.varint()?, reader.varint()?);
        // Without room reserved: a damaged count may be anything.
        let mut children = vec![];
        for _ in 0..reader.varint()? {
            let (id, end) = (RegionId(reader.varint()?), reader.bytes()?);
            let mut peers = vec![];
            for _ in 0..reader.varint()? {
                peers.push(PeerId(reader.varint()?));
            }
            children.push(SplitChild { id, end, peers });
        }
        Ok(Self { epoch: Epoch { conf_version, version }, children })
    }

    /// Whether the split can be made of `parent`. The answer is the same on every replica.
    ///
    /// # Errors
    ///
    /// Why not. The command has no effect then.
    pub fn check(&self, parent: &Descriptor) -> Result<(), SplitError> {
        if self.epoch != parent.epoch {
            return Err(SplitError::Version);
        }
        if parent.is_joint() {
            return Err(SplitError::Joint);
        }
        if self.children.is_empty() || self.children.len() > SPLIT_CHILDREN_MAX {
            return Err(SplitError::Count);
        }
        let mut start = &parent.start;
        for child in &self.children {
            // `contains` leaves out the parent's own end, so the last part has keys as well.
            if child.end <= *start || !parent.contains(&child.end) {
                return Err(SplitError::Borders);
            }
            start = &child.end;
        }
        self.check_ids(parent)
    }

    fn check_ids(&self, parent: &Descriptor) -> Result<(), SplitError> {
        let mut regions: Vec<_> = self.children.iter().map(|child| child.id).collect();
        regions.push(parent.id);
        let peers = self.children.iter().flat_map(|child| &child.peers).copied();
        let mut peers: Vec<_> = peers.chain(parent.peers.iter().map(|peer| peer.id)).collect();
        let counts = self.children.iter().all(|child| child.peers.len() == parent.peers.len());
        regions.sort_unstable();
        peers.sort_unstable();
        let distinct = regions.windows(2).all(|pair| pair[0] != pair[1])
            && peers.windows(2).all(|pair| pair[0] != pair[1]);
        let named = regions.first() != Some(&RegionId(0)) && peers.first() != Some(&PeerId(0));
        if counts && distinct && named { Ok(()) } else { Err(SplitError::Ids) }
    }

    /// The parts of `parent`: the new regions, and the region itself with the last one. All have
    /// the same version, above that of the parent by the number of new regions, so that each
    /// outranks every older region that it overlaps.
    ///
    /// # Errors
    ///
    /// As [`SplitCommand::check`].
    pub fn divide(&self, parent: &Descriptor) -> Result<SplitRegions, SplitError> {
        self.check(parent)?;
        let version = parent.epoch.version + self.children.len() as u64;
        let epoch = Epoch { version, ..parent.epoch };
        let mut start = parent.start.clone();
        let children = self.children.iter().map(|child| {
            // In the same roles: a learner's child is one, and is promoted on its own.
            let peers = child.peers.iter().zip(&parent.peers);
            let peers = peers.map(|(id, of)| RegionPeer { id: *id, ..*of });
            let start = std::mem::replace(&mut start, child.end.clone());
            let (space, end) = (parent.space, child.end.clone());
            let (peers, removed) = (peers.collect(), RemovedPeers::default());
            Descriptor { id: child.id, space, start, end, epoch, peers, removed }
        });
        let children = children.collect();
        Ok(SplitRegions { children, parent: Descriptor { start, epoch, ..parent.clone() } })
    }
}

/// The regions that a split has made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitRegions {
    /// The new ones, in the order of their keys.
    pub children: Vec<Descriptor>,
    /// The one that was split, with the last part of its range.
    pub parent: Descriptor,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::Space;
    use crate::descriptor::{Peer, PeerRole};
    use crate::ids::{Index, StoreId};

    fn parent() -> Descriptor {
        Descriptor {
            removed: RemovedPeers::default(),
            id: RegionId(7),
            space: Space::Raw,
            start: Bytes::from_static(b"b"),
            end: Bytes::from_static(b"m"),
            epoch: Epoch { conf_version: 3, version: 4 },
            peers: (1..4).map(|n| Peer { id: PeerId(700 + n), store: StoreId(n) }.into()).collect(),
        }
    }

    fn child(id: u64, end: &'static str) -> SplitChild {
        let peers = (1..4).map(|n| PeerId(id * 100 + n)).collect();
        SplitChild { id: RegionId(id), end: Bytes::from_static(end.as_bytes()), peers }
    }

    fn split(children: Vec<SplitChild>) -> SplitCommand {
        SplitCommand { epoch: parent().epoch, children }
    }

    #[test]
    fn comes_back_as_it_was_written_and_damaged_bytes_are_an_error() {
        let command = AdminCommand::Split(split(vec![child(8, "d"), child(9, "f")]));
        let data = command.encode();
        let decode = |data| AdminCommand::decode(&LogEntry { data, ..LogEntry::default() });
        assert_eq!(decode(data.clone()), Ok(Some(command)));
        for length in 1..data.len() {
            assert!(decode(data.slice(..length)).is_err(), "cut at {length}");
        }
        assert_eq!(decode(Bytes::new()), Ok(None));
        assert_eq!(decode(Bytes::from_static(&[1, 2])), Ok(None), "proposals");
        assert!(decode(Bytes::from_static(&[FORMAT, 9])).is_err(), "unknown");
    }

    #[test]
    fn the_commands_of_a_comparison_come_back_as_they_were_written() {
        let digests = vec![(PeerId(701), u64::MAX), (PeerId(702), 0)];
        let comparison = DigestComparison { index: Index(300), digests };
        let decode = |data| AdminCommand::decode(&LogEntry { data, ..LogEntry::default() });
        for command in [
            AdminCommand::ComputeDigest { version: 7 },
            AdminCommand::VerifyDigests(comparison),
            AdminCommand::VerifyDigests(DigestComparison::default()),
        ] {
            let data = command.encode();
            assert_eq!(decode(data.clone()), Ok(Some(command)));
            for length in 1..data.len() {
                assert!(decode(data.slice(..length)).is_err(), "{data:?} cut at {length}");
            }
        }
    }

    #[test]
    fn the_parts_cover_the_range_and_outrank_what_was() {
        let made = split(vec![child(8, "d"), child(9, "f")]).divide(&parent()).unwrap();
        let all = [&made.children[0], &made.children[1], &made.parent];
        assert_eq!(all.map(|region| region.id.0), [8, 9, 7]);
        assert_eq!(all.map(|region| &region.start[..]), [b"b", b"d", b"f"]);
        assert_eq!(all.map(|region| &region.end[..]), [b"d", b"f", b"m"]);
        assert!(all.iter().all(|region| region.epoch == Epoch { conf_version: 3, version: 6 }));
        let role = PeerRole::Voter;
        let peer = RegionPeer { role, id: PeerId(902), store: StoreId(2) };
        assert_eq!(made.children[1].peers[1], peer);
        assert_eq!(made.parent.peers, parent().peers);
    }

    #[test]
    fn each_mistake_has_its_name() {
        let refused = |split: SplitCommand| split.divide(&parent()).unwrap_err();
        let old = SplitCommand { epoch: Epoch::default(), children: vec![child(8, "d")] };
        assert_eq!(refused(old), SplitError::Version);
        assert_eq!(refused(split(vec![])), SplitError::Count);
        let many = (0..=SPLIT_CHILDREN_MAX as u64).map(|n| child(8 + n, "d")).collect();
        assert_eq!(refused(split(many)), SplitError::Count);
        for borders in [["b", "c"], ["a", "c"], ["d", "d"], ["e", "d"], ["d", "m"], ["d", "z"]] {
            let [one, two] = borders;
            let children = vec![child(8, one), child(9, two)];
            assert_eq!(refused(split(children)), SplitError::Borders, "{borders:?}");
        }
        let with = |change: fn(&mut SplitChild)| {
            let mut wrong = child(9, "f");
            change(&mut wrong);
            refused(split(vec![child(8, "d"), wrong]))
        };
        assert_eq!(with(|child| child.id = RegionId(8)), SplitError::Ids);
        assert_eq!(with(|child| child.id = RegionId(7)), SplitError::Ids);
        assert_eq!(with(|child| child.id = RegionId(0)), SplitError::Ids);
        assert_eq!(with(|child| child.peers[0] = PeerId(801)), SplitError::Ids);
        assert_eq!(with(|child| child.peers[0] = PeerId(702)), SplitError::Ids);
        assert_eq!(with(|child| child.peers[0] = PeerId(0)), SplitError::Ids);
        assert_eq!(with(|child| child.peers.truncate(2)), SplitError::Ids);
    }
}
