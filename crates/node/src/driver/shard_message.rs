//! Messages to shards, the mailboxes of all shards, and the placement of regions on shards.

use std::sync::Arc;

use flotilla_region::{Event, RegionId, RegionSettings, Shard, StoreDisks};
use tokio::sync::oneshot;

use crate::driver::mailbox::Mailbox;

/// A message to one shard.
pub(crate) enum ShardMessage {
    /// Something that happened.
    Event(Event),
    /// A closure that inspects the regions between two steps.
    Inspect(Box<dyn FnOnce(&Shard) + Send>),
    /// Other settings from the next step on, and who hears that they are in force.
    Reconfigure(RegionSettings, oneshot::Sender<()>),
    /// The usages of the stores' disks from now on.
    Disks(StoreDisks),
}

/// The mailboxes of all shards of a node.
#[derive(Clone)]
pub(crate) struct Mailboxes {
    shards: Arc<[Mailbox<ShardMessage>]>,
}

impl Mailboxes {
    /// `count` mailboxes, each with room for `lane_bytes_max` in each lane.
    pub(crate) fn new(count: usize, lane_bytes_max: u32) -> Self {
        assert!(count > 0, "a node without shards does nothing");
        let mailbox = || Mailbox::new(lane_bytes_max, lane_bytes_max, lane_bytes_max);
        Self { shards: std::iter::repeat_with(mailbox).take(count).collect() }
    }

    /// Their number.
    pub(crate) fn count(&self) -> usize {
        self.shards.len()
    }

    /// The place of the shard that drives a region.
    pub(crate) fn place(&self, region: RegionId) -> usize {
        // Ids of regions are dense, so the remainder spreads them evenly over the shards.
        region.0 as usize % self.shards.len()
    }

    /// The mailbox of the shard that drives a region.
    pub(crate) fn of(&self, region: RegionId) -> &Mailbox<ShardMessage> {
        self.at(self.place(region))
    }

    /// The mailbox at a place.
    pub(crate) fn at(&self, place: usize) -> &Mailbox<ShardMessage> {
        &self.shards[place]
    }

    /// Posts completions to the shards of their regions, in order; each shard wakes once.
    pub(crate) fn complete_all(&self, events: impl IntoIterator<Item = Event>) {
        // The usual case on few cores: nothing is to be sorted.
        if let [only] = &*self.shards {
            return only.complete_all(events.into_iter().map(ShardMessage::Event));
        }
        let mut by_shard: Vec<Vec<ShardMessage>> = Vec::new();
        by_shard.resize_with(self.count(), Vec::new);
        for event in events {
            by_shard[self.place(event.region())].push(ShardMessage::Event(event));
        }
        for (mailbox, messages) in self.shards.iter().zip(by_shard) {
            if !messages.is_empty() {
                mailbox.complete_all(messages);
            }
        }
    }

    /// Posts to all shards how full the disks are.
    pub(crate) fn post_disks(&self, disks: &StoreDisks) {
        for mailbox in &*self.shards {
            mailbox.complete_all([ShardMessage::Disks(disks.clone())]);
        }
    }

    /// Closes them all.
    pub(crate) fn close(&self) {
        for mailbox in &*self.shards {
            mailbox.close();
        }
    }
}
