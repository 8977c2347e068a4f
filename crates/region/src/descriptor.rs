//! The region descriptor: its range of keys, its replicas, and the versions of both.

use bytes::Bytes;

use crate::ids::{PeerId, RegionId, StoreId};
use flotilla_base::fields::{FieldReader, Malformed, put_bytes, put_varint};
use flotilla_base::redact::LogKey;
use std::fmt;

/// The first byte of an encoded descriptor.
const FORMAT: u8 = 2;
/// The format before there were roles; it is read, and not written any more.
const FORMAT_WITHOUT_ROLES: u8 = 1;
/// The state of a region that is in no merge: the only one that this version knows.
const NORMAL: u8 = 0;
/// Room for what is encoded of most regions but their borders, so that it seldom grows.
const ENCODED_BYTES: usize = 96;

/// By so much both versions of a region grow when one replica goes on without the others: the lost
/// ones may have gone on without this one before, and clients may know their versions.
const SOLE_VOTER_STEP: u64 = 1_000;

/// The version of a region's replicas and range that a request or a message refers to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch {
    /// Grows with each change of the replicas.
    pub conf_version: u64,
    /// Grows with each change of the range.
    pub version: u64,
}

/// The part of a replica in its region's decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PeerRole {
    /// It votes.
    #[default]
    Voter,
    /// It gets the log, and has no vote.
    Learner,
    /// It votes in the new half of a joint configuration, and was a learner before.
    Incoming,
    /// It votes in the old half of a joint configuration, and is a learner afterwards.
    Outgoing,
}

/// A replica as its region lists it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionPeer {
    /// The replica.
    pub id: PeerId,
    /// The store that holds it.
    pub store: StoreId,
    /// Its part in the region's decisions.
    pub role: PeerRole,
}

/// The replicas that a region had before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RemovedPeers {
    /// The greatest id that one of them had, if it is above those of all that are listed; else 0.
    pub floor: PeerId,
    /// Those whose ends are not confirmed.
    pub unconfirmed: Vec<Peer>,
}

/// A replica and where it lives: the address of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer {
    /// The replica.
    pub id: PeerId,
    /// The store that holds it.
    pub store: StoreId,
}

/// The size of a region at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionSize {
    /// Bytes of the rows, as the store keeps them.
    pub bytes: u64,
    /// Rows.
    pub keys: u64,
}

/// A space of keys of its own. Regions of different spaces never meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Space {
    /// The placement driver's own rows.
    System,
    /// The clients' keys. Every byte string is a legal one.
    Raw,
}

/// A range of keys in a space.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct KeyRange {
    /// The space that the keys are of.
    pub space: Space,
    /// The first key.
    pub start: Bytes,
    /// The first key beyond it; empty means that there is no end.
    pub end: Bytes,
}

/// A region: which keys, which replicas, which version.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Descriptor {
    /// The region.
    pub id: RegionId,
    /// The space that `start` and `end` are keys of.
    pub space: Space,
    /// The first key.
    pub start: Bytes,
    /// The first key beyond the region; empty means that there is no end.
    pub end: Bytes,
    /// The version of this description.
    pub epoch: Epoch,
    /// All replicas.
    pub peers: Vec<RegionPeer>,
    /// The replicas that it had before.
    pub removed: RemovedPeers,
}

/// As derived, but for the keys: messages of assertions are logged.
impl fmt::Debug for KeyRange {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { space, start, end } = self;
        let mut shown = out.debug_struct("KeyRange");
        shown.field("space", space).field("start", &LogKey(start));
        shown.field("end", &LogKey(end)).finish()
    }
}

/// As derived, but for the keys: messages of assertions are logged.
impl fmt::Debug for Descriptor {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, space, start, end, epoch, peers, removed } = self;
        let mut shown = out.debug_struct("Descriptor");
        shown.field("id", id).field("space", space);
        shown.field("start", &LogKey(start)).field("end", &LogKey(end));
        shown.field("epoch", epoch).field("peers", peers).field("removed", removed).finish()
    }
}

impl PeerRole {
    /// All roles with their numbers on disk.
    const NUMBERS: [(Self, u8); 4] =
        [(Self::Voter, 0), (Self::Learner, 1), (Self::Incoming, 2), (Self::Outgoing, 3)];

    fn number(self) -> u8 {
        let found = Self::NUMBERS.iter().find(|(role, _)| *role == self);
        found.expect("the table holds every role").1
    }

    fn from_number(number: u8) -> Option<Self> {
        Self::NUMBERS.iter().find(|(_, of_role)| *of_role == number).map(|(role, _)| *role)
    }
}

impl RegionPeer {
    /// The address of the replica.
    #[must_use]
    pub fn address(self) -> Peer {
        Peer { id: self.id, store: self.store }
    }

    /// Whether it votes, be it in one half of a joint configuration only.
    #[must_use]
    pub fn votes(self) -> bool {
        self.role != PeerRole::Learner
    }
}

/// A voter.
impl From<Peer> for RegionPeer {
    fn from(Peer { id, store }: Peer) -> Self {
        Self { id, store, role: PeerRole::Voter }
    }
}

impl Descriptor {
    /// Whether `key` is in the range.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        key >= &self.start[..] && (self.end.is_empty() || key < &self.end[..])
    }

    /// The range of keys.
    #[must_use]
    pub fn range(&self) -> KeyRange {
        KeyRange { space: self.space, start: self.start.clone(), end: self.end.clone() }
    }

    /// The replica with this id.
    #[must_use]
    pub fn peer(&self, id: PeerId) -> Option<Peer> {
        self.listed(id).map(RegionPeer::address)
    }

    /// The replica with this id, and its role.
    #[must_use]
    pub fn listed(&self, id: PeerId) -> Option<RegionPeer> {
        self.peers.iter().copied().find(|peer| peer.id == id)
    }

    /// The replica on this store.
    #[must_use]
    pub fn peer_on(&self, store: StoreId) -> Option<Peer> {
        self.peers.iter().find(|peer| peer.store == store).map(|peer| peer.address())
    }

    /// Whether the region is between two configurations.
    #[must_use]
    pub fn is_joint(&self) -> bool {
        let is_between = |role| matches!(role, PeerRole::Incoming | PeerRole::Outgoing);
        self.peers.iter().any(|peer| is_between(peer.role))
    }

    /// The greatest id that a replica of the region has or ever had. A replica at the floor or
    /// below that the region does not list is gone for good (R13 in `docs/many-regions.md`).
    #[must_use]
    pub fn floor(&self) -> PeerId {
        let ids = self.peers.iter().map(|peer| peer.id);
        ids.max().unwrap_or_default().max(self.removed.floor)
    }

    /// Whether the voters on stores that are not `lost` are a majority, in each half of a joint
    /// configuration.
    #[must_use]
    pub fn keeps_majority(&self, is_lost: impl Fn(StoreId) -> bool) -> bool {
        [PeerRole::Incoming, PeerRole::Outgoing].into_iter().all(|half| {
            let votes = |role| role == PeerRole::Voter || role == half;
            let voters: Vec<_> = self.peers.iter().filter(|peer| votes(peer.role)).collect();
            let live = voters.iter().filter(|peer| !is_lost(peer.store)).count();
            live > voters.len() / 2
        })
    }

    /// The region with `peer` as its only replica. All others are removed, and have to end. No log
    /// has that: it is for an operator who knows that a majority is lost for good, and gives up
    /// what the others had alone (`docs/decisions/0056-one-voter-by-an-operators-word.md`).
    ///
    /// # Panics
    ///
    /// If the region does not list the replica.
    #[must_use]
    pub fn with_sole_voter(&self, peer: PeerId) -> Self {
        let sole = self.peer(peer).expect("a replica that is here is listed");
        let mut next = self.clone();
        let others = self.peers.iter().map(|other| other.address()).filter(|other| *other != sole);
        next.removed.unconfirmed.extend(others);
        next.peers = vec![sole.into()];
        next.set_floor(self.floor());
        next.epoch = Epoch {
            conf_version: self.epoch.conf_version + SOLE_VOTER_STEP,
            version: self.epoch.version + SOLE_VOTER_STEP,
        };
        next
    }

    /// Keeps the floor, whatever replicas are listed now.
    pub(crate) fn set_floor(&mut self, floor: PeerId) {
        self.removed.floor = PeerId(0);
        if floor > self.floor() {
            self.removed.floor = floor;
        }
    }

    /// Whether raft can take the replicas for the members of a group. It takes id 0 for "no leader"
    /// and "no vote", and would count a doubled member once.
    pub(crate) fn has_sound_members(&self) -> bool {
        let ids = || self.peers.iter().map(|peer| peer.id);
        let once = |id| ids().filter(|other| *other == id).count() == 1;
        self.peers.iter().any(|peer| peer.votes()) && ids().all(|id| id != PeerId(0) && once(id))
    }

    /// The bytes that [`Descriptor::decode`] reads.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(ENCODED_BYTES + self.start.len() + self.end.len());
        out.push(FORMAT);
        put_varint(&mut out, self.id.0);
        out.push(match self.space {
            Space::System => 0,
            Space::Raw => 1,
        });
        put_bytes(&mut out, &self.start);
        put_bytes(&mut out, &self.end);
        put_varint(&mut out, self.epoch.conf_version);
        put_varint(&mut out, self.epoch.version);
        put_varint(&mut out, self.floor().0);
        put_varint(&mut out, self.peers.len() as u64);
        for peer in &self.peers {
            put_varint(&mut out, peer.id.0);
            put_varint(&mut out, peer.store.0);
            out.extend([peer.role.number(), NORMAL]);
        }
        put_varint(&mut out, self.removed.unconfirmed.len() as u64);
        for peer in &self.removed.unconfirmed {
            put_varint(&mut out, peer.id.0);
            put_varint(&mut out, peer.store.0);
        }
        // No region was merged into this one.
        put_varint(&mut out, 0);
        out.into()
    }

    /// Reads what [`Descriptor::encode`] wrote.
    ///
    /// # Errors
    ///
    /// If the bytes are damaged or of a format that this version does not know.
    pub fn decode(bytes: Bytes) -> Result<Self, Malformed> {
        let mut reader = FieldReader::new(bytes, "region descriptor");
        let has_roles = match reader.byte()? {
            FORMAT => true,
            FORMAT_WITHOUT_ROLES => false,
            _ => return Err(reader.malformed()),
        };
        let id = RegionId(reader.varint()?);
        let space = match reader.byte()? {
            0 => Space::System,
            1 => Space::Raw,
            _ => return Err(reader.malformed()),
        };
        let start = reader.bytes()?;
        let end = reader.bytes()?;
        let conf_version = reader.varint()?;
        let version = reader.varint()?;
        let floor = if has_roles { Some(PeerId(reader.varint()?)) } else { None };
        let count = reader.varint()?;
        // Without room reserved: a damaged count may be anything.
        let mut peers = vec![];
        for _ in 0..count {
            let id = PeerId(reader.varint()?);
            let store = StoreId(reader.varint()?);
            let role = if has_roles { reader.byte()? } else { 0 };
            // A role that this version does not know changes who votes: it cannot be left out.
            let role = PeerRole::from_number(role).ok_or_else(|| reader.malformed())?;
            if has_roles && reader.byte()? != NORMAL {
                return Err(reader.malformed());
            }
            peers.push(RegionPeer { id, store, role });
        }
        let mut unconfirmed = vec![];
        if has_roles {
            for _ in 0..reader.varint()? {
                let (id, store) = (PeerId(reader.varint()?), StoreId(reader.varint()?));
                unconfirmed.push(Peer { id, store });
            }
            if reader.varint()? != 0 {
                return Err(reader.malformed());
            }
        }
        reader.finish()?;
        let epoch = Epoch { conf_version, version };
        let removed = RemovedPeers { floor: PeerId(0), unconfirmed };
        let mut descriptor = Self { id, space, start, end, epoch, peers, removed };
        if let Some(floor) = floor {
            descriptor.set_floor(floor);
            // A floor below a listed replica was never written.
            if descriptor.floor() != floor {
                return Err(Malformed { what: "region descriptor" });
            }
        }
        Ok(descriptor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Descriptor {
        Descriptor {
            id: RegionId(7),
            space: Space::Raw,
            start: Bytes::from_static(b"b"),
            end: Bytes::from_static(b"d"),
            epoch: Epoch { conf_version: 3, version: 300 },
            peers: (1..4).map(|n| Peer { id: PeerId(700 + n), store: StoreId(n) }.into()).collect(),
            removed: RemovedPeers::default(),
        }
    }

    #[test]
    fn comes_back_as_it_was_written() {
        let descriptor = example();
        assert_eq!(Descriptor::decode(descriptor.encode()), Ok(descriptor));
    }

    #[test]
    fn damaged_bytes_are_an_error() {
        let good = example().encode();
        for length in 0..good.len() {
            assert!(Descriptor::decode(good.slice(..length)).is_err(), "cut at {length}");
        }
        let longer = [&good[..], &[0]].concat();
        assert!(Descriptor::decode(longer.into()).is_err());
        let other_format = [&[9], &good[1..]].concat();
        assert!(Descriptor::decode(other_format.into()).is_err());
    }

    #[test]
    fn the_format_before_roles_is_read_and_unknown_roles_are_an_error() {
        let old = [1, 7, 1, 1, b'b', 1, b'd', 3, 5, 1, 9, 2];
        let peers = vec![Peer { id: PeerId(9), store: StoreId(2) }.into()];
        let epoch = Epoch { conf_version: 3, version: 5 };
        let expected = Descriptor { epoch, peers, ..example() };
        assert_eq!(Descriptor::decode(Bytes::copy_from_slice(&old)), Ok(expected.clone()));
        let new = [2, 7, 1, 1, b'b', 1, b'd', 3, 5, 9, 1, 9, 2, 0, 0, 0, 0];
        assert_eq!(expected.encode(), new[..]);
        // A floor below the replica, a role, a state, and numbers of removed and merged ones.
        for (at, byte) in [(9, 8), (13, 4), (14, 1), (15, 1), (16, 1)] {
            let mut unknown = new;
            unknown[at] = byte;
            assert!(Descriptor::decode(Bytes::copy_from_slice(&unknown)).is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_majority_counts_in_each_half() {
        let lost = |stores: &'static [u64]| move |store: StoreId| stores.contains(&store.0);
        let mut descriptor = example();
        assert!(descriptor.keeps_majority(lost(&[3])) && !descriptor.keeps_majority(lost(&[2, 3])));
        descriptor.peers[1].role = PeerRole::Learner;
        descriptor.peers[2].role = PeerRole::Learner;
        assert!(descriptor.keeps_majority(lost(&[2, 3])), "learners do not vote");
        assert!(!descriptor.keeps_majority(lost(&[1])));
        // From store 1 to store 2.
        descriptor.peers[0].role = PeerRole::Outgoing;
        descriptor.peers[1].role = PeerRole::Incoming;
        assert!(descriptor.keeps_majority(lost(&[3])));
        assert!(!descriptor.keeps_majority(lost(&[1])) && !descriptor.keeps_majority(lost(&[2])));
    }

    #[test]
    fn the_only_voter_goes_on_above_all_that_the_others_had() {
        let mut before = example();
        before.peers[0].role = PeerRole::Learner;
        before.removed.unconfirmed = vec![Peer { id: PeerId(699), store: StoreId(9) }];
        before.set_floor(PeerId(710));
        let after = before.with_sole_voter(PeerId(701));
        assert_eq!(after.peers, [Peer { id: PeerId(701), store: StoreId(1) }.into()]);
        assert_eq!(after.floor(), PeerId(710), "no id of a lost replica comes again");
        let removed: Vec<_> = after.removed.unconfirmed.iter().map(|peer| peer.id.0).collect();
        assert_eq!(removed, [699, 702, 703]);
        let Epoch { conf_version, version } = after.epoch;
        assert_eq!((conf_version, version), (1_003, 1_300));
        assert!(after.has_sound_members() && after.keeps_majority(|store| store == StoreId(2)));
        assert_eq!(Descriptor::decode(after.encode()), Ok(after));
    }

    #[test]
    fn the_end_is_outside_and_an_empty_end_is_none() {
        let mut descriptor = example();
        assert!(descriptor.contains(b"b") && descriptor.contains(b"czz"));
        assert!(!descriptor.contains(b"a") && !descriptor.contains(b"d"));
        descriptor.end = Bytes::new();
        assert!(descriptor.contains(b"\xff\xff"));
    }
}
