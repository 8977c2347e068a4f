//! Fault injection by swarm testing: each seed draws its own fault rates, then its own faults.
//!
//! Probabilities that are the same in every run leave corners unvisited: where everything fails all
//! the time nothing gets far. So each kind of fault is absent, rare or frequent, seed by seed.

use fastrand::Rng;
use flotilla_region::{DiskUsage, MessageKind, RegionId};

use crate::executor::InstallArrow;
use crate::fault::{Fault, MessageLie};
use crate::membership_planner::MembershipPlanner;
use crate::network::{NetworkConditions, Partition};
use crate::node::{DirectorySwap, DiskFill, OperatorFlags};
use crate::settings_planner::SettingsPlanner;
use crate::transfer_planner::TransferPlanner;

/// How often something happens: the mean of microseconds between, 0 for never.
pub(crate) type MeanInterval = u64;

/// The probabilities of one seed.
#[derive(Clone, Debug)]
pub(crate) struct Swarm {
    pub(crate) stores: usize,
    /// Regions of the clients' keys.
    pub(crate) data_regions: usize,
    pub(crate) clients: usize,
    /// Few, but for wide runs, in which the trees have so many leaves that a range deletion drops
    /// some of them. Only in runs that are not heavy.
    pub(crate) keys_per_region: usize,
    /// The factor by which the padding of values is longer than in other runs. In heavy runs the
    /// files of the pages become so long that they are defragmented and truncated.
    pub(crate) weight: usize,
    /// Nothing is moved nor cut off from the end of the pages' files, so that what is free stays so
    /// long that holes are made of it. Only in heavy runs.
    pub(crate) keeps_end: bool,
    /// Mean time between a client's operations.
    pub(crate) think_us: u64,
    pub(crate) conditions: NetworkConditions,
    /// A sync of the log takes up to this long.
    pub(crate) sync_us_max: u64,
    /// Applying a batch takes up to this long.
    pub(crate) apply_us_max: u64,
    pub(crate) checkpoint_us: MeanInterval,
    /// The drift of each store's clock, in millionths.
    pub(crate) drift_ppm: Vec<i64>,
    /// A store with wrong flags at first, and for how long.
    pub(crate) wrong_flags: Option<(usize, OperatorFlags, u64)>,
    /// Time from a crash to the start, at most.
    pub(crate) restart_us_max: u64,
    kinds: Vec<(FaultKind, MeanInterval)>,
    later: LaterFaults,
}

/// Kinds of faults that came later, each group drawn from a generator of its own.
#[derive(Clone, Debug)]
struct LaterFaults {
    bounds: ExtraFaults,
    snapshots: ExtraFaults,
    disks: ExtraFaults,
    rot: ExtraFaults,
    transfers: TransferPlanner,
    membership: MembershipPlanner,
    settings: SettingsPlanner,
}

impl LaterFaults {
    /// The faults that still happen, of each group.
    fn kinds(&mut self) -> [&mut Vec<(FaultKind, MeanInterval)>; 4] {
        let Self { bounds, snapshots, disks, rot, .. } = self;
        [&mut bounds.kinds, &mut snapshots.kinds, &mut disks.kinds, &mut rot.kinds]
    }
}

/// Kinds of faults that are drawn apart, so that old seeds draw the rest as ever.
#[derive(Clone, Debug)]
struct ExtraFaults {
    rng: Rng,
    kinds: Vec<(FaultKind, MeanInterval)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FaultKind {
    PowerLoss,
    CutInside,
    Blackout,
    Kill,
    Campaign,
    Pause,
    Freeze,
    SecondLeader,
    Partition,
    SlowDisk,
    DiskErrors,
    DirectorySwap,
    Suspend,
    Stall,
    Forged,
    Away,
    CutStreams,
    CutAtArrow,
    FullDisk,
    BitRot,
}

const SECOND_US: u64 = 1_000_000;
/// How many times as long as in other runs the padding of values is in heavy ones.
const HEAVY: usize = 32;
/// How many times as many keys as in other runs there are in wide ones.
const WIDE: usize = 16;
/// The greatest drift of a clock, 1 %.
const DRIFT_PPM_MAX: i64 = 10_000;
/// Wild terms are at least this: no run comes near, however long.
const WILD_TERM_MIN: u64 = 1 << 40;
/// Terms and indexes from here on are refused as such; a term just below cannot be followed.
pub(crate) const NUMBER_MAX: u64 = 1 << 60;
/// Kinds of messages that have a term.
const WILD_KINDS: [MessageKind; 9] = [
    MessageKind::Append,
    MessageKind::AppendResponse,
    MessageKind::RequestVote,
    MessageKind::RequestVoteResponse,
    MessageKind::Heartbeat,
    MessageKind::HeartbeatResponse,
    MessageKind::ReadIndexResponse,
    MessageKind::RequestPreVote,
    MessageKind::RequestPreVoteResponse,
];

impl Swarm {
    /// Draws the probabilities. `stores` overrides what chance would take.
    pub(crate) fn draw(rng: &mut Rng, stores: Option<usize>) -> Self {
        let stores = stores.unwrap_or_else(|| *choose(rng, &[3, 3, 3, 5]));
        let kinds = draw_kinds(
            rng,
            &[
                (FaultKind::PowerLoss, 2 * SECOND_US),
                (FaultKind::CutInside, 2 * SECOND_US),
                (FaultKind::Blackout, 8 * SECOND_US),
                (FaultKind::Kill, 4 * SECOND_US),
                (FaultKind::Campaign, SECOND_US),
                (FaultKind::Pause, 2 * SECOND_US),
                (FaultKind::Freeze, 3 * SECOND_US),
                (FaultKind::SecondLeader, 2 * SECOND_US),
                (FaultKind::Partition, 2 * SECOND_US),
                (FaultKind::SlowDisk, 3 * SECOND_US),
                (FaultKind::DiskErrors, 6 * SECOND_US),
            ],
        );
        let (data_regions, clients) = (rng.usize(1..=4), rng.usize(3..=12));
        let keys_per_region = rng.usize(1..=5);
        // Drawn apart, so that old seeds draw the rest as ever.
        let mut extra = Rng::with_seed(rng.clone().u64(..));
        let bounds = draw_extra(Rng::with_seed(!extra.clone().u64(..)));
        let snapshots = draw_snapshot_faults(Rng::with_seed(bounds.rng.clone().u64(..)));
        let disks = draw_disk_faults(Rng::with_seed(!bounds.rng.clone().u64(..)));
        let rot = draw_rot(Rng::with_seed(disks.rng.clone().u64(..)));
        let transfers = TransferPlanner::draw(bounds.rng.clone().u64(..));
        let membership = MembershipPlanner::draw(bounds.rng.clone().u64(..));
        let settings = SettingsPlanner::draw(bounds.rng.clone().u64(..), stores);
        let weight = *choose(&mut extra, &[1, 1, 1, HEAVY]);
        let keeps_end = weight == HEAVY && extra.bool();
        let width = if weight == 1 { *choose(&mut extra, &[1, 1, 1, 1, 1, WIDE]) } else { 1 };
        let drawn = Self {
            stores,
            data_regions,
            clients,
            keys_per_region: keys_per_region * width,
            weight,
            keeps_end,
            think_us: *choose(rng, &[5_000, 30_000, 100_000, 200_000]),
            conditions: draw_conditions(rng),
            sync_us_max: *choose(rng, &[300, 2_000, 20_000]),
            apply_us_max: *choose(rng, &[100, 2_000, 30_000]),
            checkpoint_us: *choose(rng, &[50_000, 300_000, 1_500_000]),
            drift_ppm: (0..stores).map(|_| rng.i64(-DRIFT_PPM_MAX..=DRIFT_PPM_MAX)).collect(),
            wrong_flags: draw_wrong_flags(&mut extra, stores),
            restart_us_max: *choose(rng, &[100_000, 1_000_000, 4_000_000]),
            kinds,
            later: LaterFaults { bounds, snapshots, disks, rot, transfers, membership, settings },
        };
        drawn.thinned()
    }

    /// In three seeds of four there are fewer faults, of all kinds or of some. Where all happen
    /// often, a region hardly ever has a leader for as long as it takes to break what rests on it.
    fn thinned(mut self) -> Self {
        let later = &mut self.later;
        let mut rng = Rng::with_seed(later.rot.rng.clone().u64(..));
        let (tempo, kept_of) = *choose(&mut rng, &[(1, 1), (4, 1), (12, 1), (1, 6)]);
        for kinds in later.kinds().into_iter().chain([&mut self.kinds]) {
            kinds.retain(|_| rng.u8(..kept_of) == 0);
            kinds.iter_mut().for_each(|(_, often_us)| *often_us *= tempo);
        }
        let is_thinned = tempo.max(kept_of.into()) > 1;
        if is_thinned && rng.bool() {
            later.transfers = TransferPlanner::idle();
        }
        if is_thinned && rng.bool() {
            later.membership = MembershipPlanner::idle();
        }
        self
    }

    /// Whether nothing goes wrong until all stores are members: a bootstrap needs them all, so that
    /// one that is away would often keep the cluster from being there before the faults end.
    pub(crate) fn has_calm_start(&self) -> bool {
        self.later.bounds.rng.clone().u8(..4) > 0
    }

    /// Nothing goes wrong by itself, no client asks, and no checkpoint is made: for scripts.
    #[cfg(test)]
    pub(crate) fn calm(stores: usize) -> Self {
        let mut rng = Rng::with_seed(0);
        let swarm = Self::draw(&mut rng, Some(stores));
        Self {
            data_regions: 1,
            clients: 0,
            keys_per_region: 4,
            weight: 1,
            keeps_end: false,
            conditions: NetworkConditions::FAIR,
            sync_us_max: 300,
            apply_us_max: 100,
            checkpoint_us: 1_000 * SECOND_US,
            drift_ppm: vec![0; stores],
            wrong_flags: None,
            kinds: Vec::new(),
            later: LaterFaults {
                bounds: ExtraFaults { rng: rng.fork(), kinds: Vec::new() },
                snapshots: ExtraFaults { rng: rng.fork(), kinds: Vec::new() },
                disks: ExtraFaults { rng: rng.fork(), kinds: Vec::new() },
                rot: ExtraFaults { rng, kinds: Vec::new() },
                transfers: TransferPlanner::idle(),
                membership: MembershipPlanner::idle(),
                settings: SettingsPlanner::idle(stores),
            },
            ..swarm
        }
    }

    /// Draws the next mishap and how long until then; `None` if nothing ever goes wrong.
    pub(crate) fn next(&self, rng: &mut Rng) -> Option<(u64, Fault)> {
        let (delay_us, kind) = next_kind(&self.kinds, rng)?;
        Some((delay_us, self.fault(kind, rng)))
    }

    /// The same for the kinds that are drawn apart.
    pub(crate) fn next_extra(&mut self) -> Option<(u64, Fault)> {
        let mut rng = self.later.bounds.rng.fork();
        let (delay_us, kind) = next_kind(&self.later.bounds.kinds, &mut rng)?;
        Some((delay_us, self.fault(kind, &mut rng)))
    }

    /// The same for those that are about snapshots.
    pub(crate) fn next_snapshot_fault(&mut self) -> Option<(u64, Fault)> {
        let mut rng = self.later.snapshots.rng.fork();
        let (delay_us, kind) = next_kind(&self.later.snapshots.kinds, &mut rng)?;
        Some((delay_us, self.fault(kind, &mut rng)))
    }

    /// The same for full disks.
    pub(crate) fn next_disk_fault(&mut self) -> Option<(u64, Fault)> {
        let mut rng = self.later.disks.rng.fork();
        let (delay_us, kind) = next_kind(&self.later.disks.kinds, &mut rng)?;
        Some((delay_us, self.fault(kind, &mut rng)))
    }

    /// The same for bit rot.
    pub(crate) fn next_bit_rot(&mut self) -> Option<(u64, Fault)> {
        let mut rng = self.later.rot.rng.fork();
        let (delay_us, kind) = next_kind(&self.later.rot.kinds, &mut rng)?;
        Some((delay_us, self.fault(kind, &mut rng)))
    }

    /// The transfers of leadership.
    pub(crate) fn transfers(&mut self) -> &mut TransferPlanner {
        &mut self.later.transfers
    }

    /// No leader is transferred by hand.
    pub(crate) fn without_transfers(&mut self) {
        self.later.transfers = TransferPlanner::idle();
    }

    /// No bit flips by chance.
    pub(crate) fn without_bit_rot(&mut self) {
        self.later.rot.kinds.clear();
    }

    /// The changes of members.
    pub(crate) fn membership(&mut self) -> &mut MembershipPlanner {
        &mut self.later.membership
    }

    /// The changes of the cluster's settings.
    pub(crate) fn settings(&mut self) -> &mut SettingsPlanner {
        &mut self.later.settings
    }

    /// No member changes.
    pub(crate) fn without_membership(&mut self) {
        self.later.membership = MembershipPlanner::none();
    }

    fn fault(&self, kind: FaultKind, rng: &mut Rng) -> Fault {
        let store = rng.usize(..self.stores);
        match kind {
            FaultKind::PowerLoss => Fault::PowerLoss(store),
            FaultKind::CutInside => Fault::CutInside { store, operations: rng.u64(1..40) },
            FaultKind::Blackout => Fault::Blackout,
            FaultKind::Kill => Fault::Kill(store),
            FaultKind::Campaign => Fault::Campaign { store, region: self.region(rng) },
            FaultKind::Freeze => {
                // Short: the leader still takes the answers. Long: it may have been replaced.
                let us = if rng.bool() {
                    SECOND_US / 10..SECOND_US / 4
                } else {
                    SECOND_US..3 * SECOND_US
                };
                Fault::Freeze { region: self.region(rng), us: rng.u64(us) }
            }
            FaultKind::SecondLeader => Fault::SecondLeader {
                region: self.region(rng),
                us: rng.u64(SECOND_US / 2..2 * SECOND_US),
            },
            FaultKind::Pause => Fault::Pause {
                store,
                us: length_us(rng, 3 * SECOND_US),
                is_after_sending: rng.bool(),
            },
            FaultKind::Partition => {
                let cut = self.cut(store, rng);
                Fault::Partition { cut, us: length_us(rng, 4 * SECOND_US) }
            }
            FaultKind::SlowDisk => Fault::SlowDisk { store, us: length_us(rng, 2 * SECOND_US) },
            FaultKind::DiskErrors => Fault::DiskErrors { store, writes_too: rng.bool() },
            FaultKind::DirectorySwap => {
                let how = DirectorySwap::draw(rng);
                Fault::DirectorySwap { store, how, us: length_us(rng, 4 * SECOND_US) }
            }
            FaultKind::Suspend => {
                let us = rng.u64(SECOND_US / 2..3 * SECOND_US);
                Fault::Suspend { region: self.region(rng), us }
            }
            FaultKind::Stall => {
                // Short: just too late, or just in time. Long: another may lead.
                let us = if rng.bool() { 1_000..SECOND_US / 10 } else { SECOND_US..3 * SECOND_US };
                Fault::Stall { region: self.region(rng), us: rng.u64(us) }
            }
            FaultKind::Away => {
                let us = rng.u64(SECOND_US..8 * SECOND_US);
                Fault::Away { store, us, is_down: rng.bool() }
            }
            FaultKind::CutStreams => Fault::CutStreams(store),
            FaultKind::CutAtArrow => {
                Fault::CutAtArrow { store, arrow: *choose(rng, &InstallArrow::ALL) }
            }
            FaultKind::FullDisk => {
                let store = (rng.u8(..4) > 0).then_some(store);
                let usage = *choose(rng, &DiskUsage::ALL[1..]);
                let fill = DiskFill { is_hard: rng.u8(..4) == 0, ..DiskFill::soft(usage) };
                Fault::FullDisk { store, fill, us: rng.u64(SECOND_US / 5..3 * SECOND_US) }
            }
            FaultKind::BitRot => Fault::BitRot { store, choice: rng.u64(..) },
            FaultKind::Forged => Fault::Forged {
                region: self.region(rng),
                from: rng.usize(..self.stores),
                to: rng.usize(..self.stores),
                kind: *choose(rng, &WILD_KINDS),
                lie: draw_lie(rng),
            },
        }
    }

    fn region(&self, rng: &mut Rng) -> RegionId {
        RegionId(rng.u64(1..=1 + self.data_regions as u64))
    }

    fn cut(&self, store: usize, rng: &mut Rng) -> Partition {
        match rng.u8(..5) {
            0 => Partition::Mute(store),
            1 => Partition::Deaf(store),
            2 => Partition::Link {
                from: store,
                to: (store + rng.usize(1..self.stores)) % self.stores,
            },
            3 => Partition::Split((0..self.stores).map(|at| at == store).collect()),
            _ => Partition::Split((0..self.stores).map(|_| rng.bool()).collect()),
        }
    }
}

/// Each of the kinds is absent, rare or frequent.
fn draw_kinds(rng: &mut Rng, of: &[(FaultKind, MeanInterval)]) -> Vec<(FaultKind, MeanInterval)> {
    let drawn = of.iter().filter_map(|&(kind, often_us)| match rng.u8(..4) {
        0 => None,
        1 => Some((kind, 6 * often_us)),
        _ => Some((kind, often_us)),
    });
    drawn.collect()
}

fn draw_extra(mut rng: Rng) -> ExtraFaults {
    let of = [
        (FaultKind::Suspend, 4 * SECOND_US),
        (FaultKind::Stall, 3 * SECOND_US),
        (FaultKind::Forged, 2 * SECOND_US),
        (FaultKind::DirectorySwap, 3 * SECOND_US),
    ];
    let kinds = draw_kinds(&mut rng, &of);
    ExtraFaults { rng, kinds }
}

fn draw_snapshot_faults(mut rng: Rng) -> ExtraFaults {
    let of = [
        (FaultKind::Away, 4 * SECOND_US),
        (FaultKind::CutStreams, SECOND_US),
        (FaultKind::CutAtArrow, SECOND_US),
    ];
    let kinds = draw_kinds(&mut rng, &of);
    ExtraFaults { rng, kinds }
}

fn draw_disk_faults(mut rng: Rng) -> ExtraFaults {
    let kinds = draw_kinds(&mut rng, &[(FaultKind::FullDisk, 3 * SECOND_US)]);
    ExtraFaults { rng, kinds }
}

fn draw_rot(mut rng: Rng) -> ExtraFaults {
    let kinds = draw_kinds(&mut rng, &[(FaultKind::BitRot, 2 * SECOND_US)]);
    ExtraFaults { rng, kinds }
}

/// Draws which of the kinds is next, and how long until then.
fn next_kind(kinds: &[(FaultKind, MeanInterval)], rng: &mut Rng) -> Option<(u64, FaultKind)> {
    // The mean time between faults of any kind is the inverse of the sum of rates.
    let rate: f64 = kinds.iter().map(|(_, every)| 1.0 / *every as f64).sum();
    let mut ticket = rng.f64() * rate;
    let (kind, _) = kinds.iter().find(|(_, every)| {
        ticket -= 1.0 / *every as f64;
        ticket <= 0.0
    })?;
    Some((rng.u64(0..=(2.0 / rate) as u64), *kind))
}

/// Mostly a wild term, which is the one that a raft would believe.
fn draw_lie(rng: &mut Rng) -> MessageLie {
    match rng.u8(..8) {
        // Half of them the greatest legal number, from which no election can go on.
        0..2 => MessageLie::WildTerm(NUMBER_MAX - 1),
        2..4 => MessageLie::WildTerm(rng.u64(WILD_TERM_MIN..NUMBER_MAX)),
        4 => MessageLie::WildIndex,
        5 => MessageLie::Gap,
        _ => MessageLie::OtherStore,
    }
}

/// In one run of four an operator makes a mistake.
fn draw_wrong_flags(rng: &mut Rng, stores: usize) -> Option<(usize, OperatorFlags, u64)> {
    let flags = *choose(
        rng,
        &[None, None, None, Some([OperatorFlags::OtherSetting, OperatorFlags::OtherOrder])],
    );
    let flags = flags?[rng.usize(..2)];
    Some((rng.usize(..stores), flags, rng.u64(SECOND_US / 20..2 * SECOND_US)))
}

fn draw_conditions(rng: &mut Rng) -> NetworkConditions {
    let delay_us_min = rng.u64(20..500);
    NetworkConditions {
        lost_ppm: *choose(rng, &[0, 1_000, 20_000, 100_000]),
        duplicated_ppm: *choose(rng, &[0, 1_000, 50_000]),
        late_ppm: *choose(rng, &[0, 1_000, 20_000]),
        late_us_max: 5 * SECOND_US,
        delay_us_min,
        delay_us_max: delay_us_min + choose(rng, &[100, 2_000, 20_000]),
        // TCP keeps the order within a connection, and a reconnect does not.
        is_ordered: rng.bool(),
    }
}

/// Mostly short, sometimes up to `us_max`.
fn length_us(rng: &mut Rng, us_max: u64) -> u64 {
    let us_max = if rng.bool() { us_max } else { us_max / 10 };
    rng.u64(1_000..us_max)
}

fn choose<'a, T>(rng: &mut Rng, of: &'a [T]) -> &'a T {
    &of[rng.usize(..of.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_fault_is_drawn_and_some_seeds_are_without_it() {
        let mut seen = [0; 20];
        for seed in 0..200 {
            let mut rng = Rng::with_seed(seed);
            let mut swarm = Swarm::draw(&mut rng, None);
            let mut here = [0; 20];
            let mut faults: Vec<_> = (0..200).map_while(|_| swarm.next(&mut rng)).collect();
            faults.extend((0..200).map_while(|_| swarm.next_extra()));
            faults.extend((0..200).map_while(|_| swarm.next_snapshot_fault()));
            faults.extend((0..200).map_while(|_| swarm.next_disk_fault()));
            faults.extend((0..200).map_while(|_| swarm.next_bit_rot()));
            for (_, fault) in faults {
                here[match fault {
                    Fault::PowerLoss(_) => 0,
                    Fault::CutInside { .. } => 1,
                    Fault::Blackout => 2,
                    Fault::Kill(_) => 3,
                    Fault::Pause { .. } => 4,
                    Fault::Partition { .. } => 5,
                    Fault::SlowDisk { .. } => 6,
                    Fault::DiskErrors { .. } => 7,
                    Fault::Campaign { .. } => 8,
                    Fault::SecondLeader { .. } => 9,
                    Fault::Freeze { .. } => 10,
                    Fault::Suspend { .. } => 11,
                    Fault::Stall { .. } => 12,
                    Fault::Forged { .. } => 13,
                    Fault::DirectorySwap { .. } => 14,
                    Fault::Away { .. } => 15,
                    Fault::CutStreams(_) => 16,
                    Fault::CutAtArrow { .. } => 17,
                    Fault::FullDisk { .. } => 18,
                    Fault::BitRot { .. } => 19,
                }] = 1;
            }
            seen.iter_mut().zip(here).for_each(|(sum, here)| *sum += here);
        }
        assert!(seen.iter().all(|seeds| (100..190).contains(seeds)), "{seen:?}");
    }
}
