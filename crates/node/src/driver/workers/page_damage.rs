//! The way from a page that is not what was written to new rows: the replicas that have lost some
//! by it are marked, and their shards see to it that other stores send them. The node stops only if
//! the whole store needs the page, or no other store has the rows
//! (`docs/decisions/0060-a-damaged-replica-is-rebuilt-in-place.md`).

use std::collections::BTreeSet;
use std::sync::Arc;

use flotilla_region::{Event, RegionId};
use flotilla_store::{DamagedReplica, PagesError, ReadError, Store};
use parking_lot::Mutex;

use crate::driver::shard_message::Mailboxes;
use crate::drop_notify::DropNotify;
use crate::failure::NodeFailure;

/// Takes damaged pages out, one at a time. Cheap to clone.
#[derive(Clone)]
pub(crate) struct PageDamage {
    pub(crate) store: Arc<DropNotify<Store>>,
    pub(crate) mailboxes: Mailboxes,
    /// Asks for a checkpoint.
    pub(crate) demand: Arc<dyn Fn() + Send + Sync>,
    pub(crate) failure: NodeFailure,
    /// The pages that are being taken out: many reads may meet one.
    pub(crate) under_way: Arc<Mutex<BTreeSet<u64>>>,
}

impl PageDamage {
    /// Sees to the damaged page that a read of a region has met, if it is one.
    pub(crate) fn read_failed(&self, region: RegionId, error: &ReadError) {
        if let ReadError::Pages(PagesError::Corrupt { page, .. }) = error {
            self.found_by_read(*page, region);
        }
    }

    /// Sees to a page that a read of a region has met. Returns at once: a thread of its own reads
    /// the branches of the trees.
    fn found_by_read(&self, page: u64, of: RegionId) {
        if !self.under_way.lock().insert(page) {
            return;
        }
        let it = self.clone();
        let take_out = move || {
            let found = it.take_out(page, Some(of));
            it.under_way.lock().remove(&page);
            // A transaction has replaced it since the view of the read was taken.
            if found == Some(false) {
                tracing::warn!("page {page} was damaged, and is not in use any more");
            }
        };
        if let Err(error) = self.failure.guard("page-damage", take_out) {
            self.under_way.lock().remove(&page);
            self.failure.report(&format!("page {page} is damaged, and no thread starts: {error}"));
        }
    }

    /// Sees to a page that maintenance has met. False if the store cannot go on; the node stops.
    pub(crate) fn found_by_maintenance(&self, page: u64, error: &PagesError) -> bool {
        let found = self.take_out(page, None);
        if found == Some(false) {
            self.failure.report(&format!("a page is damaged: {error}"));
        }
        found == Some(true)
    }

    /// Tells the shard of a replica that it is marked.
    pub(crate) fn tell(&self, replica: Option<DamagedReplica>) {
        self.mailboxes.complete_all(replica.map(event));
    }

    /// Whether a tree of rows had the page. None if the store cannot go on: then the node stops.
    fn take_out(&self, page: u64, of: Option<RegionId>) -> Option<bool> {
        let found = match self.store.quarantine(page, of) {
            Ok(found) => found,
            Err(error) => {
                self.failure.report(&format!("page {page} is damaged: {error}"));
                return None;
            }
        };
        if found.was_found {
            // The marks are to outlive a restart.
            (self.demand)();
            log(&found.replicas);
            self.mailboxes.complete_all(found.replicas.into_iter().map(event));
        }
        Some(found.was_found)
    }
}

/// Says once what was found.
pub(crate) fn log(found: &[DamagedReplica]) {
    if found.is_empty() {
        return tracing::warn!(
            "a page of rows that were removed is damaged: nothing is missed, and the space of what \
             lies below it is lost until `flotilla pages compact`"
        );
    }
    let regions: Vec<_> = found.iter().map(|replica| replica.region.0).collect();
    tracing::error!(
        ?regions,
        "a page is damaged: the replicas of these regions are built anew from other stores"
    );
}

/// The word to the shard of a replica.
pub(crate) fn event(replica: DamagedReplica) -> Event {
    Event::Damaged { region: replica.region, peer: replica.peer }
}
