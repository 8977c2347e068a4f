//! Splits by hand: when, where, and whether they can be made; and when leaders wish for some. Drawn
//! from generators of their own, so that old seeds draw the rest as ever.

use bytes::Bytes;
use fastrand::Rng;
use flotilla_region::{
    Descriptor, Epoch, PeerId, RegionId, SPLIT_CHILDREN_MAX, SplitChild, SplitCommand, SplitLimits,
};

/// Parts the generator of splits from the others of a seed.
const SALT: u64 = 0x5b11_7000;
/// The same for the limits of regions.
const LIMITS_SALT: u64 = 0x5b11_7001;
/// More than there is in any run.
const NEVER: u64 = 1 << 40;
/// Ids from here on are given to new regions and replicas; those of the first ones are lower.
const FIRST_ID: u64 = 1_000;
/// The children of a split that is made in most cases.
const CHILDREN_MAX: usize = 4;

/// A mishap while a split is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SplitCompanion {
    None,
    /// A second split of the same region, which comes too late.
    SecondSplit,
    /// One of the region's stores loses power soon, by place among its replicas.
    PowerLoss {
        replica: usize,
        us: u64,
    },
    /// One of the region's stores loses power between two lists of effects, or in a write.
    CutInside {
        replica: usize,
        operations: u64,
    },
    /// One of the region's stores loses power between two lists of the effects with the birth.
    CutAtBirth {
        replica: usize,
        lists: usize,
    },
    /// All stores lose power.
    Blackout {
        us: u64,
    },
    /// Another replica wants to lead.
    Campaign {
        replica: usize,
    },
    /// One of the region's stores is cut off for a while.
    Away {
        replica: usize,
        us: u64,
    },
    /// The disk of one of the region's stores takes much longer for a while.
    SlowDisk {
        replica: usize,
        us: u64,
    },
}

/// A split to be asked for.
#[derive(Clone, Debug)]
pub(crate) struct PlannedSplit {
    pub(crate) command: SplitCommand,
    /// Whether it can be made of the region as it was described.
    pub(crate) is_legal: bool,
}

/// Draws splits.
#[derive(Clone, Debug)]
pub(crate) struct SplitPlanner {
    rng: Rng,
    /// Between two splits; 0 for never.
    mean_us: u64,
    /// The regions of a run that there may be.
    regions_max: usize,
    limits: SplitLimits,
    /// After how many bytes a store looks how large a region is.
    size_check_bytes: u64,
    /// The next id. One that was proposed is spent, whatever became of it.
    next_id: u64,
}

impl SplitPlanner {
    /// Draws how often regions are split. In one run of four, never.
    pub(crate) fn draw(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed ^ SALT);
        let mean_us = [0, 150_000, 500_000, 2_000_000][rng.usize(..4)];
        let regions_max = [8, 16, 24][rng.usize(..3)];
        let mut limits = Rng::with_seed(seed ^ LIMITS_SALT);
        let mut draw = |of: &[u64]| of[limits.usize(..of.len())];
        Self {
            rng,
            mean_us,
            regions_max,
            limits: SplitLimits {
                automatic: draw(&[0, 1, 1]) == 1,
                bytes_max: draw(&[2_000, 16_000, NEVER]),
                keys_max: draw(&[2, 8, NEVER]),
                requests_per_s_max: draw(&[3, 3, 10]),
                bytes_per_s_max: draw(&[2_000, NEVER]),
                load_windows: draw(&[1, 1, 3]) as u32,
            },
            size_check_bytes: draw(&[0, 500, 5_000]),
            next_id: FIRST_ID,
        }
    }

    /// Draws no split by itself.
    pub(crate) fn idle(seed: u64) -> Self {
        let limits = SplitLimits { automatic: false, ..SplitLimits::default() };
        Self { mean_us: 0, limits, ..Self::draw(seed) }
    }

    /// When leaders wish for splits: so early in two runs of three that they do.
    pub(crate) fn limits(&self) -> &SplitLimits {
        &self.limits
    }

    /// After how many bytes a store looks how large a region is.
    pub(crate) fn size_check_bytes(&self) -> u64 {
        self.size_check_bytes
    }

    /// How long until the next split, if there is one.
    pub(crate) fn delay_us(&mut self) -> Option<u64> {
        (self.mean_us > 0).then(|| self.rng.u64(1..=2 * self.mean_us))
    }

    /// One of these regions; the generator is used only if there are several.
    pub(crate) fn choose(&mut self, of: &[RegionId]) -> RegionId {
        if let [only] = of { *only } else { of[self.rng.usize(..of.len())] }
    }

    /// Whether there may be more regions.
    pub(crate) fn wants_more(&self, regions: usize) -> bool {
        regions < self.regions_max
    }

    /// Whether the split goes to the leader, as it mostly does.
    pub(crate) fn asks_leader(&mut self) -> bool {
        self.rng.u8(..8) > 0
    }

    /// One replica of the region, by place among its replicas.
    pub(crate) fn replica(&mut self, region: &Descriptor) -> usize {
        self.rng.usize(..region.peers.len())
    }

    pub(crate) fn companion(&mut self, region: &Descriptor) -> SplitCompanion {
        let replica = self.replica(region);
        let us_max = [5_000, 60_000, 400_000][self.rng.usize(..3)];
        let us = self.rng.u64(1..us_max);
        match self.rng.u8(..24) {
            0..12 => SplitCompanion::None,
            12..14 => SplitCompanion::SecondSplit,
            14..16 => SplitCompanion::PowerLoss { replica, us },
            16 => SplitCompanion::CutInside { replica, operations: self.rng.u64(1..40) },
            17..19 => SplitCompanion::CutAtBirth { replica, lists: self.rng.usize(..8) },
            19 => SplitCompanion::Blackout { us },
            20..22 => SplitCompanion::Campaign { replica },
            22 => SplitCompanion::Away { replica, us: 10 * us },
            _ => SplitCompanion::SlowDisk { replica, us: 4 * us },
        }
    }

    /// Draws a split of a region with these keys.
    pub(crate) fn plan(&mut self, region: &Descriptor, keys: &[Bytes]) -> PlannedSplit {
        let ends = self.borders(region, keys);
        let mut command = self.command(region, ends);
        let is_legal = !command.children.is_empty() && self.rng.u8(..6) > 0;
        if !is_legal {
            self.spoil(&mut command, region);
        }
        PlannedSplit { command, is_legal }
    }

    /// A legal split with these borders and new ids.
    pub(crate) fn command(&mut self, region: &Descriptor, ends: Vec<Bytes>) -> SplitCommand {
        let peers = ends.len() * region.peers.len();
        let ids: Vec<_> = (0..ends.len() + peers).map(|_| self.new_id()).collect();
        let (regions, peers) = ids.split_at(ends.len());
        let (regions, peers) =
            (regions.iter().copied().map(RegionId), peers.iter().copied().map(PeerId));
        SplitCommand::with_borders(region, &ends, regions, peers)
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Borders inside of the region: keys of clients, and places right behind them.
    fn borders(&mut self, region: &Descriptor, keys: &[Bytes]) -> Vec<Bytes> {
        let count = self.rng.usize(1..=CHILDREN_MAX);
        let mut candidates: Vec<Bytes> = Vec::new();
        for key in keys {
            candidates.extend([key.clone(), [&key[..], &[0]].concat().into()]);
        }
        candidates.push([&region.start[..], &[0]].concat().into());
        candidates.push([&region.start[..], &[0, 0x80]].concat().into());
        candidates.push([&region.start[..], &[0xff, self.rng.u8(..)]].concat().into());
        candidates.retain(|border| *border > region.start && region.contains(border));
        self.rng.shuffle(&mut candidates);
        candidates.truncate(count);
        candidates.sort_unstable();
        candidates.dedup();
        candidates
    }

    /// Makes a split one that cannot be made.
    fn spoil(&mut self, command: &mut SplitCommand, region: &Descriptor) {
        let Epoch { conf_version, version } = region.epoch;
        let Some(first) = command.children.first().cloned() else { return };
        let children = &mut command.children;
        match self.rng.u8(..10) {
            0 => command.epoch.version = version - 1,
            1 => command.epoch.version = version + 1_000_000,
            2 => command.epoch.conf_version = conf_version + 1,
            3 => children.clear(),
            4 => children.resize(SPLIT_CHILDREN_MAX + 1, first),
            5 => children[0].end = region.start.clone(),
            6 => children.push(SplitChild { end: region.end.clone(), ..first }),
            7 => children[0].id = region.id,
            8 => children[0].peers[0] = region.peers[0].id,
            _ => {
                let doubled = children[0].peers[0];
                children.last_mut().expect("there is one").peers.push(doubled);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use flotilla_region::{Peer, Space, StoreId};

    use super::*;
    use flotilla_region::RemovedPeers;

    #[test]
    fn splits_are_what_the_planner_says_and_ids_are_new() {
        let peers = (1..4).map(|n| Peer { id: PeerId(n), store: StoreId(n) }.into()).collect();
        let epoch = Epoch { conf_version: 1, version: 3 };
        let (start, end) = (Bytes::from_static(b"b"), Bytes::from_static(b"d"));
        let region = Descriptor {
            removed: RemovedPeers::default(),
            id: RegionId(2),
            space: Space::Raw,
            start,
            end,
            epoch,
            peers,
        };
        let keys = [Bytes::from_static(b"bkey"), Bytes::from_static(b"c")];
        let mut planner = SplitPlanner::draw(1);
        let mut counts = [0; 2];
        let mut last = 0;
        for _ in 0..1_000 {
            let PlannedSplit { command, is_legal } = planner.plan(&region, &keys);
            assert_eq!(command.check(&region).is_ok(), is_legal, "{command:?}");
            counts[usize::from(is_legal)] += 1;
            if is_legal {
                assert!(command.children[0].id.0 > last, "an id is used again");
                last = command.children.iter().flat_map(|child| &child.peers).max().unwrap().0;
            }
        }
        assert!(counts.iter().all(|count| *count > 100), "{counts:?}");
    }
}
