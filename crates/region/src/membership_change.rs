//! Changes of a region's replicas: what an entry may do to the descriptor.
//!
//! A replica begins as a learner, gets the data, and is then promoted. One that votes is demoted
//! before it is removed: as a learner it still hears of the configuration that it is not in. Votes
//! change one at a time, or together in a joint configuration (raft thesis, 4.3), which a second
//! change leaves.

use flotilla_base::fields::{FieldReader, Malformed, put_varint};

use crate::descriptor::{Descriptor, Epoch, Peer, PeerRole, RegionPeer};
use crate::ids::{PeerId, StoreId};

/// The most replicas of a region that vote, in each half of a joint configuration.
pub const VOTERS_MAX: usize = 7;
/// The most learners of a region.
pub const LEARNERS_MAX: usize = 2;
/// The most replicas that were removed and whose ends are not confirmed.
pub const REMOVED_MAX: usize = 8;

const ADD: u8 = 1;
const VOTE: u8 = 2;
const LEAVE_JOINT: u8 = 3;
const REMOVE: u8 = 4;

/// A change of the replicas, made for one version of the region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MembershipCommand {
    /// The version that it was made for. If the region has another when it is applied, it has no
    /// effect.
    pub epoch: Epoch,
    /// The change.
    pub change: MembershipChange,
}

/// A change of the replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembershipChange {
    /// A learner comes. Its id is above the peer floor, and its store has no replica of the region.
    Add(Peer),
    /// Learners get votes, voters become learners. One alone is done at once; two and more make the
    /// configuration joint.
    Vote {
        /// The learners.
        promoted: Vec<PeerId>,
        /// The voters.
        demoted: Vec<PeerId>,
    },
    /// The joint configuration becomes its new half.
    LeaveJoint,
    /// A learner goes. It stays in the list of removed replicas until its end is confirmed.
    Remove(PeerId),
}

/// Why a change cannot be made of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MembershipError {
    /// The region has changed since.
    #[error("the region has another version")]
    Version,
    /// The region is between two configurations.
    #[error("the region is between two configurations")]
    Joint,
    /// The region is not between two configurations.
    #[error("the region is not between two configurations")]
    NotJoint,
    /// An id at the floor or below may have been a replica of the region before.
    #[error("replica {0} is not above the peer floor")]
    Floor(PeerId),
    /// A store has one replica of a region.
    #[error("store {0} has a replica of the region, or one whose end is not confirmed")]
    StoreTaken(StoreId),
    /// It is no learner of the region.
    #[error("replica {0} is no learner")]
    NotLearner(PeerId),
    /// It is no voter of the region.
    #[error("replica {0} is no voter")]
    NotVoter(PeerId),
    /// The change names no replica, or one twice.
    #[error("a change of votes names each replica once")]
    Names,
    /// No replica would vote.
    #[error("a region has at least one voter")]
    NoVoter,
    /// Too many of a kind.
    #[error(
        "a region has at most {VOTERS_MAX} voters, {LEARNERS_MAX} learners and {REMOVED_MAX} removed replicas whose ends are not confirmed"
    )]
    Limit,
}

impl MembershipCommand {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.epoch.conf_version);
        put_varint(out, self.epoch.version);
        match &self.change {
            MembershipChange::Add(peer) => {
                out.push(ADD);
                put_varint(out, peer.id.0);
                put_varint(out, peer.store.0);
            }
            MembershipChange::Vote { promoted, demoted } => {
                out.push(VOTE);
                for ids in [promoted, demoted] {
                    put_varint(out, ids.len() as u64);
                    ids.iter().for_each(|id| put_varint(out, id.0));
                }
            }
            MembershipChange::LeaveJoint => out.push(LEAVE_JOINT),
            MembershipChange::Remove(id) => {
                out.push(REMOVE);
                put_varint(out, id.0);
            }
        }
    }

    pub(crate) fn decode(reader: &mut FieldReader) -> Result<Self, Malformed> {
        let (conf_version, version) = (reader.varint()?, reader.varint()?);
        let change = match reader.byte()? {
            ADD => {
                let (id, store) = (PeerId(reader.varint()?), StoreId(reader.varint()?));
                MembershipChange::Add(Peer { id, store })
            }
            VOTE => {
                let promoted = decode_ids(reader)?;
                MembershipChange::Vote { promoted, demoted: decode_ids(reader)? }
            }
            LEAVE_JOINT => MembershipChange::LeaveJoint,
            REMOVE => MembershipChange::Remove(PeerId(reader.varint()?)),
            _ => return Err(reader.malformed()),
        };
        Ok(Self { epoch: Epoch { conf_version, version }, change })
    }

    /// The region behind the change. The answer is the same on every replica.
    ///
    /// # Errors
    ///
    /// Why the change cannot be made. The command has no effect then.
    pub fn apply(&self, region: &Descriptor) -> Result<Descriptor, MembershipError> {
        if self.epoch != region.epoch {
            return Err(MembershipError::Version);
        }
        if region.is_joint() != (self.change == MembershipChange::LeaveJoint) {
            let joint = region.is_joint();
            return Err(if joint { MembershipError::Joint } else { MembershipError::NotJoint });
        }
        let mut next = region.clone();
        let changed = match &self.change {
            MembershipChange::Add(peer) => add(&mut next, *peer)?,
            MembershipChange::Vote { promoted, demoted } => vote(&mut next, promoted, demoted)?,
            MembershipChange::LeaveJoint => leave_joint(&mut next),
            MembershipChange::Remove(id) => remove(&mut next, *id)?,
        };
        check_limits(&next)?;
        // As PD counts: by each replica whose role changes.
        next.epoch.conf_version += changed;
        Ok(next)
    }
}

fn decode_ids(reader: &mut FieldReader) -> Result<Vec<PeerId>, Malformed> {
    // Without room reserved: a damaged count may be anything.
    let mut ids = vec![];
    for _ in 0..reader.varint()? {
        ids.push(PeerId(reader.varint()?));
    }
    Ok(ids)
}

fn add(region: &mut Descriptor, peer: Peer) -> Result<u64, MembershipError> {
    // Else "at the floor or below, and no member" would not mean "gone for good" (R13).
    if peer.id <= region.floor() {
        return Err(MembershipError::Floor(peer.id));
    }
    let removed = &region.removed.unconfirmed;
    let is_taken = region.peer_on(peer.store).is_some()
        || removed.iter().any(|removed| removed.store == peer.store);
    if is_taken {
        return Err(MembershipError::StoreTaken(peer.store));
    }
    region.peers.push(RegionPeer { role: PeerRole::Learner, ..peer.into() });
    region.set_floor(peer.id);
    Ok(1)
}

fn vote(
    region: &mut Descriptor,
    promoted: &[PeerId],
    demoted: &[PeerId],
) -> Result<u64, MembershipError> {
    let mut named = [promoted, demoted].concat();
    named.sort_unstable();
    if named.is_empty() || named.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(MembershipError::Names);
    }
    let is_joint = named.len() > 1;
    let (up, down) = if is_joint {
        (PeerRole::Incoming, PeerRole::Outgoing)
    } else {
        (PeerRole::Voter, PeerRole::Learner)
    };
    for (ids, from, to, error) in [
        (promoted, PeerRole::Learner, up, MembershipError::NotLearner as fn(PeerId) -> _),
        (demoted, PeerRole::Voter, down, MembershipError::NotVoter),
    ] {
        for id in ids {
            let peer = region.peers.iter_mut().find(|peer| peer.id == *id && peer.role == from);
            peer.ok_or(error(*id))?.role = to;
        }
    }
    Ok(named.len() as u64)
}

fn leave_joint(region: &mut Descriptor) -> u64 {
    let mut changed = 0;
    for peer in &mut region.peers {
        let role = match peer.role {
            PeerRole::Incoming => PeerRole::Voter,
            PeerRole::Outgoing => PeerRole::Learner,
            role => role,
        };
        changed += u64::from(std::mem::replace(&mut peer.role, role) != role);
    }
    changed
}

fn remove(region: &mut Descriptor, id: PeerId) -> Result<u64, MembershipError> {
    let is_learner = |peer: &RegionPeer| peer.id == id && peer.role == PeerRole::Learner;
    let at = region.peers.iter().position(is_learner).ok_or(MembershipError::NotLearner(id))?;
    let floor = region.floor();
    let removed = region.peers.remove(at).address();
    region.set_floor(floor);
    region.removed.unconfirmed.push(removed);
    Ok(1)
}

fn check_limits(region: &Descriptor) -> Result<(), MembershipError> {
    let count =
        |roles: &[PeerRole]| region.peers.iter().filter(|peer| roles.contains(&peer.role)).count();
    let halves = [
        count(&[PeerRole::Voter, PeerRole::Incoming]),
        count(&[PeerRole::Voter, PeerRole::Outgoing]),
    ];
    if halves.contains(&0) {
        return Err(MembershipError::NoVoter);
    }
    // Those that go become learners, which may be one more for a while.
    let is_within = halves.iter().all(|voters| *voters <= VOTERS_MAX)
        && region.removed.unconfirmed.len() <= REMOVED_MAX;
    let learners = count(&[PeerRole::Learner]);
    if is_within && learners <= LEARNERS_MAX + VOTERS_MAX {
        Ok(())
    } else {
        Err(MembershipError::Limit)
    }
}
