//! Changes of a region's replicas: what an entry may do to the descriptor.
//!
//! A replica begins as a learner, gets the data, and is then promoted. One that votes is demoted
//! before it is removed: as a learner it still hears of the configuration that it is not in. Votes
//! change one at a time, or together in a joint configuration (raft thesis, 4.3), which a second
//! change leaves.

use flotilla_base::fields::{FieldReader, Malformed, put_varint};

use crate::descriptor::{Descriptor, Epoch, Peer, PeerRole, RegionPeer};
use crate::ids::{PeerId, StoreId};

// The limits are a part of what an entry means: replicas that knew others would disagree about it.
// A version with another limit needs a feature level of its own.

/// The most replicas of a region that vote, in each half of a joint configuration.
pub const VOTERS_MAX: usize = 7;
/// The most learners of a region that are added. Those that were voters come on top.
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
    let learners = region.peers.iter().filter(|peer| peer.role == PeerRole::Learner).count();
    // Those that lose their votes may be more, for a while.
    if learners >= LEARNERS_MAX {
        return Err(MembershipError::Limit);
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
    let is_within = halves.iter().all(|voters| *voters <= VOTERS_MAX)
        && region.removed.unconfirmed.len() <= REMOVED_MAX;
    if is_within { Ok(()) } else { Err(MembershipError::Limit) }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::convert;
    use crate::descriptor::{RemovedPeers, Space};
    use crate::ids::RegionId;
    use MembershipChange::{Add, LeaveJoint, Remove, Vote};

    /// Voters 1, 2, 3 and learner 4 of the stores with the same numbers.
    fn region() -> Descriptor {
        let listed = |id, role| RegionPeer { id: PeerId(id), store: StoreId(id), role };
        Descriptor {
            id: RegionId(7),
            space: Space::Raw,
            start: Bytes::new(),
            end: Bytes::new(),
            epoch: Epoch { conf_version: 5, version: 2 },
            peers: vec![
                listed(1, PeerRole::Voter),
                listed(2, PeerRole::Voter),
                listed(3, PeerRole::Voter),
                listed(4, PeerRole::Learner),
            ],
            removed: RemovedPeers::default(),
        }
    }

    fn apply(region: &Descriptor, change: MembershipChange) -> Result<Descriptor, MembershipError> {
        MembershipCommand { epoch: region.epoch, change }.apply(region)
    }

    fn vote(promoted: &[u64], demoted: &[u64]) -> MembershipChange {
        let ids = |ids: &[u64]| ids.iter().map(|id| PeerId(*id)).collect();
        Vote { promoted: ids(promoted), demoted: ids(demoted) }
    }

    fn add(id: u64, store: u64) -> MembershipChange {
        Add(Peer { id: PeerId(id), store: StoreId(store) })
    }

    fn role(region: &Descriptor, id: u64) -> PeerRole {
        region.listed(PeerId(id)).unwrap().role
    }

    #[test]
    fn a_voter_moves_by_a_joint_configuration() {
        let before = region();
        let joint = apply(&before, vote(&[4], &[3])).unwrap();
        assert!(joint.is_joint());
        let roles = [3, 4].map(|id| role(&joint, id));
        assert_eq!(roles, [PeerRole::Outgoing, PeerRole::Incoming]);
        assert_eq!(joint.epoch, Epoch { conf_version: 7, version: 2 });
        let state = convert::conf_state(&joint);
        assert_eq!((&state.voters[..], &state.learners[..]), (&[1, 2, 4][..], &[][..]));
        assert_eq!(
            (&state.voters_outgoing[..], &state.learners_next[..]),
            (&[1, 2, 3][..], &[3][..])
        );
        let left = apply(&joint, LeaveJoint).unwrap();
        assert!(!left.is_joint());
        assert_eq!([3, 4].map(|id| role(&left, id)), [PeerRole::Learner, PeerRole::Voter]);
        assert_eq!(left.epoch.conf_version, 9);
        let gone = apply(&left, Remove(PeerId(3))).unwrap();
        assert_eq!(gone.epoch.conf_version, 10);
        let removed = Peer { id: PeerId(3), store: StoreId(3) };
        assert_eq!((gone.peer(PeerId(3)), &gone.removed.unconfirmed[..]), (None, &[removed][..]));
        assert_eq!(gone.floor(), PeerId(4));
    }

    #[test]
    fn one_vote_changes_at_once() {
        let promoted = apply(&region(), vote(&[4], &[])).unwrap();
        assert_eq!((role(&promoted, 4), promoted.is_joint()), (PeerRole::Voter, false));
        assert_eq!(promoted.epoch.conf_version, 6);
        let demoted = apply(&region(), vote(&[], &[2])).unwrap();
        assert_eq!((role(&demoted, 2), demoted.is_joint()), (PeerRole::Learner, false));
    }

    #[test]
    fn an_id_at_the_floor_or_below_is_never_added() {
        let added = apply(&region(), add(9, 5)).unwrap();
        assert_eq!((role(&added, 9), added.floor()), (PeerRole::Learner, PeerId(9)));
        assert_eq!(apply(&region(), add(4, 5)), Err(MembershipError::Floor(PeerId(4))));
        let gone = apply(&added, Remove(PeerId(9))).unwrap();
        assert_eq!(gone.floor(), PeerId(9), "it stays when the greatest goes");
        for id in [2, 5, 9] {
            assert_eq!(apply(&gone, add(id, 6)), Err(MembershipError::Floor(PeerId(id))));
        }
        assert!(apply(&gone, add(10, 6)).is_ok());
    }

    #[test]
    fn each_mistake_has_its_name() {
        let refused = |change| apply(&region(), change).unwrap_err();
        let old = MembershipCommand { epoch: Epoch::default(), change: Remove(PeerId(4)) };
        assert_eq!(old.apply(&region()), Err(MembershipError::Version));
        assert_eq!(refused(LeaveJoint), MembershipError::NotJoint);
        let joint = apply(&region(), vote(&[4], &[3])).unwrap();
        for change in [vote(&[], &[1]), add(9, 9), Remove(PeerId(3))] {
            assert_eq!(apply(&joint, change), Err(MembershipError::Joint));
        }
        assert_eq!(refused(add(9, 3)), MembershipError::StoreTaken(StoreId(3)));
        let gone = apply(&region(), Remove(PeerId(4))).unwrap();
        assert_eq!(apply(&gone, add(9, 4)), Err(MembershipError::StoreTaken(StoreId(4))));
        assert_eq!(refused(vote(&[3], &[])), MembershipError::NotLearner(PeerId(3)));
        assert_eq!(refused(vote(&[9], &[])), MembershipError::NotLearner(PeerId(9)));
        assert_eq!(refused(Remove(PeerId(3))), MembershipError::NotLearner(PeerId(3)));
        assert_eq!(refused(vote(&[], &[4])), MembershipError::NotVoter(PeerId(4)));
        for change in [vote(&[], &[]), vote(&[4, 4], &[]), vote(&[4], &[4])] {
            assert_eq!(refused(change), MembershipError::Names);
        }
        assert_eq!(refused(vote(&[], &[1, 2, 3])), MembershipError::NoVoter);
        assert!(apply(&region(), vote(&[4], &[1, 2, 3])).is_ok());
    }

    #[test]
    fn there_are_only_so_many_of_each_kind() {
        let mut full = region();
        let roles = (10..14).map(|id| (id, PeerRole::Voter));
        for (id, role) in roles {
            full.peers.push(RegionPeer { id: PeerId(id), store: StoreId(id), role });
        }
        assert_eq!(apply(&full, vote(&[4], &[])), Err(MembershipError::Limit), "an eighth voter");
        assert!(apply(&full, vote(&[4], &[13])).is_ok(), "seven in each half");
        let one = apply(&region(), add(20, 20)).unwrap();
        assert_eq!(apply(&one, add(21, 21)), Err(MembershipError::Limit), "a third learner");
        assert!(apply(&one, vote(&[], &[3])).is_ok(), "one that goes is a learner for a while");
        let mut many = region();
        let removed = |id| Peer { id: PeerId(id), store: StoreId(id) };
        many.removed.unconfirmed = (30..38).map(removed).collect();
        assert_eq!(apply(&many, Remove(PeerId(4))), Err(MembershipError::Limit), "a ninth end");
    }

    #[test]
    fn comes_back_as_it_was_written_and_damaged_bytes_are_an_error() {
        let epoch = Epoch { conf_version: 300, version: 7 };
        for change in [add(300, 3), vote(&[300, 4], &[1]), LeaveJoint, Remove(PeerId(300))] {
            let command = MembershipCommand { epoch, change };
            let mut out = vec![];
            command.encode(&mut out);
            let decode = |bytes: &[u8]| {
                let bytes = Bytes::copy_from_slice(bytes);
                let mut reader = FieldReader::new(bytes, "admin command");
                MembershipCommand::decode(&mut reader).and_then(|it| reader.finish().map(|()| it))
            };
            assert_eq!(decode(&out), Ok(command.clone()));
            for length in 0..out.len() {
                assert!(decode(&out[..length]).is_err(), "{command:?} cut at {length}");
            }
            assert!(decode(&[&out[..], &[0]].concat()).is_err());
            out[3] = 9;
            assert!(decode(&out).is_err(), "an unknown change");
        }
    }
}
