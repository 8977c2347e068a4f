//! Ids for new regions and replicas, unique in the cluster, leased from the placement driver in
//! blocks.
//!
//! A block is in memory only: the rest of it is lost at a restart, which costs nothing. An id that
//! was taken is never given back, for a proposal with it may still be carried out.
//!
//! Ids of regions come from a part of the block of their own: those that follow each other go to
//! one shard after the other.

use std::ops::Range;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};

/// Of so many ids of a block one is for a region, the others are for its replicas.
const IDS_OF_REGION: u64 = 4;

/// The ids that are left of the last block, or why there can be none.
pub(crate) struct IdPool {
    free: watch::Sender<Result<NewIds, &'static str>>,
    wanted: Notify,
}

/// Ids that were never used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NewIds {
    pub(crate) regions: Range<u64>,
    pub(crate) peers: Range<u64>,
}

impl NewIds {
    /// The first ids of each kind, if there are so many.
    fn take(&mut self, regions: u64, peers: u64) -> Option<Self> {
        let (region_end, peer_end) = (self.regions.start + regions, self.peers.start + peers);
        if region_end > self.regions.end || peer_end > self.peers.end {
            return None;
        }
        let regions = std::mem::replace(&mut self.regions.start, region_end)..region_end;
        let peers = std::mem::replace(&mut self.peers.start, peer_end)..peer_end;
        Some(Self { regions, peers })
    }
}

impl Default for IdPool {
    fn default() -> Self {
        Self { free: watch::Sender::new(Ok(NewIds::default())), wanted: Notify::new() }
    }
}

impl IdPool {
    /// Takes ids for `regions` new regions and `peers` replicas of them.
    ///
    /// # Errors
    ///
    /// Why there are none, or that none came until `deadline`.
    pub(crate) async fn take(
        &self,
        regions: u64,
        peers: u64,
        deadline: Instant,
    ) -> Result<NewIds, &'static str> {
        let mut blocks = self.free.subscribe();
        loop {
            blocks.mark_unchanged();
            let mut taken = None;
            self.free.send_if_modified(|free| {
                if let Ok(free) = free {
                    taken = free.take(regions, peers);
                }
                // Fewer ids are no news.
                false
            });
            if let Some(taken) = taken {
                return Ok(taken);
            }
            self.wanted.notify_one();
            if !matches!(timeout_at(deadline, blocks.changed()).await, Ok(Ok(()))) {
                return Err("placement gave no ids for new regions");
            }
            blocks.borrow().as_ref().map_err(|why| *why)?;
        }
    }

    /// Waits until a caller has found too few ids.
    pub(crate) async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Takes over a new block; the rest of the old one is lost.
    pub(crate) fn fill(&self, block: Range<u64>) {
        let middle = block.start + (block.end - block.start) / IDS_OF_REGION;
        let ids = NewIds { regions: block.start..middle, peers: middle..block.end };
        drop(self.free.send_replace(Ok(ids)));
    }

    /// There is no block now. Those that wait are told, and so is each that asks, after another
    /// look.
    pub(crate) fn refuse(&self, why: &'static str) {
        drop(self.free.send_replace(Err(why)));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn ids_come_from_blocks_in_order_and_an_empty_pool_waits_for_one() {
        let pool = IdPool::default();
        let soon = || Instant::now() + Duration::from_secs(1);
        let ids = |regions, peers| Ok(NewIds { regions, peers });
        assert!(pool.take(1, 1, soon()).await.is_err());
        pool.fill(100..112);
        assert_eq!(pool.take(1, 3, soon()).await, ids(100..101, 103..106));
        assert_eq!(pool.take(2, 6, soon()).await, ids(101..103, 106..112));
        let lends = async {
            pool.wanted().await;
            pool.fill(200..212);
        };
        assert_eq!(tokio::join!(pool.take(1, 3, soon()), lends).0, ids(200..201, 203..206));
        assert!(pool.take(1, 7, soon()).await.is_err(), "the block has 6 left");
        assert!(pool.take(3, 1, soon()).await.is_err(), "and 2 of regions");
        let refuses = async {
            pool.wanted().await;
            pool.refuse("not yet");
        };
        assert_eq!(tokio::join!(pool.take(1, 7, soon()), refuses).0, Err("not yet"));
    }
}
