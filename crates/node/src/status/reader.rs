//! Reads the state of a node for those who ask: counters, facts, replicas as their shards see them.

use std::path::PathBuf;
use std::time::Instant;

use flotilla_dispatch::Lane;
use flotilla_region::{Descriptor, Shard, Stats as RaftStats, Status};
use tokio::sync::oneshot;

use crate::driver::router::Router;
use crate::driver::shard_message::{Mailboxes, ShardMessage};
use crate::membership::Membership;
use crate::status::metrics::{NodeStatsReader, StoreFacts};
use crate::status::process_log::ProcessLog;
use crate::transport::PeerConnections;

/// Bytes that a look at the regions counts for in a shard's mailbox.
const LOOK_BYTES: usize = 4096;

/// Handles on everything that has a state to tell of. Cheap to clone.
#[derive(Clone)]
pub(crate) struct StatusReader {
    pub(crate) membership: Membership,
    pub(crate) mailboxes: Mailboxes,
    pub(crate) router: Router,
    pub(crate) stats: NodeStatsReader,
    pub(crate) connections: PeerConnections,
    pub(crate) data_dir: PathBuf,
    pub(crate) started: Instant,
}

/// The store stops, and its shards answer no more.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the store stops")]
pub(crate) struct StoreStops;

impl StatusReader {
    /// The store and what it has around it.
    pub(crate) fn facts(&self) -> StoreFacts {
        let descriptors = self.router.descriptors();
        let leaders = descriptors.iter().filter(|region| self.router.leads(region.id)).count();
        let uptime_ms = self.started.elapsed().as_millis();
        StoreFacts {
            uptime_milliseconds: u64::try_from(uptime_ms).unwrap_or(u64::MAX),
            replicas: descriptors.len() as u64,
            leaders: leaders as u64,
            replicas_without_leader: self.router.leaderless().1.len() as u64,
            stores_connected: self.connections.up_count() as u64 + 1,
            stores_known: self.membership.stores().len() as u64,
            log_lines_lost: ProcessLog::get().map_or(0, |log| (log.lines_lost)()),
        }
    }

    /// Asks each shard once about its own among `descriptors`; by the id of the region.
    ///
    /// # Errors
    ///
    /// The store stops.
    pub(crate) async fn look(
        &self,
        descriptors: Vec<Descriptor>,
    ) -> Result<Vec<(Descriptor, Status)>, StoreStops> {
        let mut by_shard: Vec<Vec<Descriptor>> = Vec::new();
        by_shard.resize_with(self.mailboxes.count(), Vec::new);
        for descriptor in descriptors {
            by_shard[self.mailboxes.place(descriptor.id)].push(descriptor);
        }
        let answers = self.inspect(by_shard, |shard, descriptors| {
            let looked = descriptors.into_iter();
            let looked = looked.filter_map(|region| Some((shard.status(region.id)?, region)));
            looked.map(|(status, region)| (region, status)).collect::<Vec<_>>()
        });
        let mut looked: Vec<_> = answers.await?.into_iter().flatten().collect();
        looked.sort_by_key(|(region, _)| region.id);
        Ok(looked)
    }

    /// The counters of each shard.
    ///
    /// # Errors
    ///
    /// The store stops.
    pub(crate) async fn raft_stats(&self) -> Result<Vec<RaftStats>, StoreStops> {
        self.inspect(vec![(); self.mailboxes.count()], |shard, ()| shard.stats()).await
    }

    /// Has each shard inspected between two of its steps, with its part of `parts`.
    async fn inspect<P, T>(
        &self,
        parts: Vec<P>,
        look: impl Fn(&Shard, P) -> T + Copy + Send + 'static,
    ) -> Result<Vec<T>, StoreStops>
    where
        P: Send + 'static,
        T: Send + 'static,
    {
        let mut answers = Vec::new();
        for (place, part) in parts.into_iter().enumerate() {
            let (sender, answer) = oneshot::channel();
            let look = move |shard: &Shard| {
                // An error means that the caller has given up.
                let _ = sender.send(look(shard, part));
            };
            let message = ShardMessage::Inspect(Box::new(look));
            let sent = self.mailboxes.at(place).send(Lane::Urgent, message, LOOK_BYTES).await;
            sent.map_err(|_| StoreStops)?;
            answers.push(answer);
        }
        let mut inspected = Vec::new();
        for answer in answers {
            inspected.push(answer.await.map_err(|_| StoreStops)?);
        }
        Ok(inspected)
    }
}
