//! The mishaps that happen to a cluster.

use flotilla_region::{MessageKind, RegionId};

use crate::executor::InstallArrow;
use crate::network::Partition;
use crate::node::{DirectorySwap, DiskFill};

/// One mishap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The store loses power now.
    PowerLoss(usize),
    /// The store loses power in the middle of its n-th next operation on the disk.
    CutInside { store: usize, operations: u64 },
    /// All stores lose power at once.
    Blackout,
    /// The process is killed; what it has written stays.
    Kill(usize),
    /// A replica that need not lead wants to.
    Campaign { store: usize, region: RegionId },
    /// The process stands still for a while; its clock goes on. Now, or as soon as it has asked
    /// others for something: the answer then comes while it does not look.
    Pause { store: usize, us: u64, is_after_sending: bool },
    /// A leader stands still as soon as it has asked to be confirmed, hears the answers when it
    /// comes to itself, and nothing of what happened since.
    Freeze { region: RegionId, us: u64 },
    /// Tries to elect a second leader while the first may still trust its lease: some replicas are
    /// partitioned from the leader; later one that still follows it restarts, and forgets the
    /// promise.
    SecondLeader { region: RegionId, us: u64 },
    /// Links are cut for a while.
    Partition { cut: Partition, us: u64 },
    /// The disk takes much longer for a while.
    SlowDisk { store: usize, us: u64 },
    /// An operator empties the store's directory, or replaces it by an older copy, and puts the
    /// newest one back later. As long as there is no cluster it is emptied for good.
    DirectorySwap { store: usize, how: DirectorySwap, us: u64 },
    /// The disk refuses syncs, or writes as well, until the store has stopped because of it.
    DiskErrors { store: usize, writes_too: bool },
    /// The machine of a leader is suspended, and cut off when it comes back. Clocks that count only
    /// while it runs would have stood still.
    Suspend { region: RegionId, us: u64 },
    /// The leader stalls in its next step that grants a read under a lease, between reading its
    /// clock and handing out the effects of the step.
    Stall { region: RegionId, us: u64 },
    /// A forged message: one of the region's replicas, by place, receives it in the name of
    /// another.
    Forged { region: RegionId, from: usize, to: usize, kind: MessageKind, lie: MessageLie },
    /// The store is away so long that others let go of what it lacks.
    Away { store: usize, us: u64, is_down: bool },
    /// All streams of snapshots of the store are cut.
    CutStreams(usize),
    /// The store loses power when it next installs a snapshot, behind this arrow.
    CutAtArrow { store: usize, arrow: InstallArrow },
    /// A disk is full for a while, or all are.
    FullDisk { store: Option<usize>, fill: DiskFill, us: u64 },
    /// The store loses power, and a bit of a leaf with clients' rows flips on its disk.
    BitRot { store: usize, choice: u64 },
}

/// The lie in a forged message: no sound replica sends one like it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageLie {
    /// A term that cannot have come to be.
    WildTerm(u64),
    /// An index that there cannot be.
    WildIndex,
    /// Entries that do not follow what they say they follow.
    Gap,
    /// The sender has the id of a replica on another store.
    OtherStore,
}

/// The generator that a fault is drawn from: kinds that came later have others, so that those
/// before them are drawn as ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultSource {
    First,
    Bounds,
    Snapshots,
    Disks,
    Rot,
}

impl Fault {
    /// The generator that it is drawn from.
    pub(crate) fn source(&self) -> FaultSource {
        match self {
            Self::Suspend { .. } | Self::Stall { .. } | Self::Forged { .. } => FaultSource::Bounds,
            Self::Away { .. } | Self::CutStreams(_) | Self::CutAtArrow { .. } => {
                FaultSource::Snapshots
            }
            Self::FullDisk { .. } => FaultSource::Disks,
            Self::BitRot { .. } => FaultSource::Rot,
            _ => FaultSource::First,
        }
    }

    /// Whether it is about the leader of its region.
    pub(crate) fn needs_leader(&self) -> bool {
        matches!(
            self,
            Self::Freeze { .. }
                | Self::SecondLeader { .. }
                | Self::Suspend { .. }
                | Self::Stall { .. }
        )
    }

    /// The region that it is aimed at.
    pub(crate) fn region_mut(&mut self) -> Option<&mut RegionId> {
        match self {
            Self::Campaign { region, .. }
            | Self::Freeze { region, .. }
            | Self::SecondLeader { region, .. }
            | Self::Suspend { region, .. }
            | Self::Stall { region, .. }
            | Self::Forged { region, .. } => Some(region),
            _ => None,
        }
    }
}
