//! Ids for new regions and replicas, unique in the cluster, leased from the placement driver in
//! blocks.
//!
//! A block is in memory only: the rest of it is lost at a restart, which costs nothing. An id that
//! was taken is never given back, for a proposal with it may still be carried out.

use std::ops::Range;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};

/// The ids that are left of the last block, or why there can be none.
pub(crate) struct IdPool {
    free: watch::Sender<Result<Range<u64>, &'static str>>,
    wanted: Notify,
}

impl Default for IdPool {
    fn default() -> Self {
        Self { free: watch::Sender::new(Ok(0..0)), wanted: Notify::new() }
    }
}

impl IdPool {
    /// Takes `count` ids that follow each other.
    ///
    /// # Errors
    ///
    /// Why there are none, or that none came until `deadline`.
    pub(crate) async fn take(
        &self,
        count: u64,
        deadline: Instant,
    ) -> Result<Range<u64>, &'static str> {
        let mut blocks = self.free.subscribe();
        loop {
            blocks.mark_unchanged();
            let mut taken = None;
            self.free.send_if_modified(|free| {
                if let Ok(free) = free
                    && free.end - free.start >= count
                {
                    taken = Some(free.start..free.start + count);
                    free.start += count;
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
            if let Err(why) = *blocks.borrow() {
                return Err(why);
            }
        }
    }

    /// Waits until a caller has found too few ids.
    pub(crate) async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Takes over a new block; the rest of the old one is lost.
    pub(crate) fn fill(&self, block: Range<u64>) {
        drop(self.free.send_replace(Ok(block)));
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
        assert!(pool.take(1, soon()).await.is_err());
        pool.fill(100..110);
        assert_eq!(pool.take(6, soon()).await, Ok(100..106));
        assert_eq!(pool.take(4, soon()).await, Ok(106..110));
        let lends = async {
            pool.wanted().await;
            pool.fill(200..210);
        };
        assert_eq!(tokio::join!(pool.take(3, soon()), lends).0, Ok(200..203));
        assert!(pool.take(8, soon()).await.is_err(), "the block has 7 left");
        let refuses = async {
            pool.wanted().await;
            pool.refuse("not yet");
        };
        assert_eq!(tokio::join!(pool.take(8, soon()), refuses).0, Err("not yet"));
    }
}
