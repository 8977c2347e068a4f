//! Transfers of leadership by hand: when, to which replica, and with what mishap beside. Drawn from
//! a generator of their own, so that old seeds draw the rest as ever.

use fastrand::Rng;
use flotilla_region::{Descriptor, Peer, RegionId};

/// Parts the generator of transfers from the others of a seed.
const SALT: u64 = 0x7a15_fe00;

/// A mishap while a transfer is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransferCompanion {
    None,
    /// The leader is cut off, mostly once it has called for the election, and hears of nothing.
    LeaderAlone {
        us: u64,
    },
    /// The next leader is cut off, before or while it asks for votes.
    NextAlone {
        us: u64,
    },
    /// The votes of the next leader come late, mostly when the transfer has failed.
    LateVotes {
        us: u64,
    },
    /// The leader stands still as soon as it has sent something.
    LeaderPauses {
        us: u64,
    },
    /// The next leader loses power soon.
    NextDies {
        us: u64,
    },
    /// A split of the region is asked for at the same moment.
    Split,
    /// Another transfer is asked for at the same moment.
    SecondTransfer,
}

/// Draws transfers.
#[derive(Clone, Debug)]
pub(crate) struct TransferPlanner {
    rng: Rng,
    /// Between two transfers; 0 for never.
    mean_us: u64,
}

impl TransferPlanner {
    /// Draws how often leaders are transferred. In one run of four, never.
    pub(crate) fn draw(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed ^ SALT);
        let mean_us = [0, 100_000, 400_000, 1_500_000][rng.usize(..4)];
        Self { rng, mean_us }
    }

    /// Draws no transfer by itself.
    pub(crate) fn idle() -> Self {
        Self { rng: Rng::with_seed(SALT), mean_us: 0 }
    }

    /// How long until the next transfer, if there is one.
    pub(crate) fn delay_us(&mut self) -> Option<u64> {
        (self.mean_us > 0).then(|| self.rng.u64(1..=2 * self.mean_us))
    }

    /// One of these regions.
    pub(crate) fn choose(&mut self, of: &[RegionId]) -> RegionId {
        of[self.rng.usize(..of.len())]
    }

    /// The replica that should lead; none for the best.
    pub(crate) fn target(&mut self, region: &Descriptor) -> Option<Peer> {
        let drawn = region.peers[self.rng.usize(..region.peers.len())];
        (self.rng.u8(..4) > 0).then_some(drawn.address())
    }

    /// The place of the store that is asked: mostly that of the leader, at times any of `stores`,
    /// which need not have a replica.
    pub(crate) fn asked(&mut self, leader: usize, stores: usize) -> usize {
        if self.rng.u8(..8) == 0 { self.rng.usize(..stores) } else { leader }
    }

    /// The mishap beside it.
    pub(crate) fn companion(&mut self) -> TransferCompanion {
        let rng = &mut self.rng;
        match rng.u8(..12) {
            0 | 1 => TransferCompanion::LeaderAlone { us: rng.u64(200..8_000) },
            2 => TransferCompanion::NextAlone { us: rng.u64(1..8_000) },
            3 | 4 => TransferCompanion::LateVotes { us: rng.u64(100_000..1_200_000) },
            5 => TransferCompanion::LeaderPauses { us: rng.u64(10_000..1_500_000) },
            6 => TransferCompanion::NextDies { us: rng.u64(200..20_000) },
            7 => TransferCompanion::Split,
            8 => TransferCompanion::SecondTransfer,
            _ => TransferCompanion::None,
        }
    }

    /// How long a link that is slow or cut stays so.
    pub(crate) fn mend_us(&mut self) -> u64 {
        self.rng.u64(100_000..2_000_000)
    }
}
