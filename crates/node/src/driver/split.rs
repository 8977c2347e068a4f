//! Splits of regions: the one way to them for operators, clients and the store itself.

use std::time::Duration;

use bytes::Bytes;
use flotilla_region::{
    Descriptor, Epoch, Event, PeerId, RegionId, RegionSize, Reject, SPLIT_CHILDREN_MAX, Space,
    SplitCommand,
};
use flotilla_store::{ApplyOutcome, ApplyReject, ReadError};
use tokio::time::Instant;

use crate::driver::router::{RequestError, Router};
use crate::driver::tickets::TicketAnswer;

/// How long the next split of a region waits for the leaders of its new parts.
const LEADERS_WAIT: Duration = Duration::from_secs(1);

impl Router {
    /// Splits a region at `keys`, in any order. Returns all of its parts by their keys, the region
    /// itself with the last of them, once the split is applied here. A key at which the region
    /// begins is a border already.
    ///
    /// More keys than one split takes are carried out by several, one after the other, at the pace
    /// of the store (`split_pace`): after an error some of them may
    /// have been carried out. The log has a line for each, with `cause`.
    ///
    /// # Errors
    ///
    /// [`Reject::NotLeader`] if the region is led elsewhere; [`Reject::InvalidSplit`] and
    /// [`Reject::KeyNotInRegion`] for keys that cannot be borders of it; [`Reject::Busy`] if the
    /// placement driver gave no ids in time; [`Reject::EpochNotMatch`] if the region has changed
    /// meanwhile; others as those of [`Router::propose`].
    pub async fn split(
        &self,
        region: RegionId,
        keys: &[Bytes],
        cause: &str,
    ) -> Result<Vec<Descriptor>, RequestError> {
        let parent = self.client_region(region)?;
        let borders = SplitCommand::borders(&parent, keys).map_err(RequestError::Rejected)?;
        let mut parts = vec![parent];
        for borders in borders.chunks(SPLIT_CHILDREN_MAX) {
            let _in_flight = self.splits().begin(region, borders.len() + 1);
            // A request that the last split has overtaken must not meet the next one when it comes
            // again, and few regions are without a leader at a time. One that has none by then has
            // other reasons than the splits.
            let newest = parts.len().saturating_sub(SPLIT_CHILDREN_MAX + 1);
            self.routes().await_leaders(&parts[newest..], Instant::now() + LEADERS_WAIT).await;
            self.splits().admit(borders.len()).await;
            let parent = parts.pop().expect("the region itself is always the last");
            let began = Instant::now();
            let bytes = self.region_size(region).map(|size| size.bytes);
            let made = self.split_once(&parent, borders).await?;
            let Epoch { version, conf_version } = made[made.len() - 1].epoch;
            tracing::info!(
                %region, version, conf_version, parts = made.len(), bytes,
                ms = began.elapsed().as_millis(), cause, "a region was split"
            );
            parts.extend(made);
        }
        Ok(parts)
    }

    /// Keys that cut a region into `parts` of about the same size, as it is now.
    ///
    /// # Errors
    ///
    /// The region is not here, or cannot be read.
    pub(crate) fn split_keys(
        &self,
        region: RegionId,
        parts: usize,
    ) -> Result<Vec<Bytes>, ReadError> {
        self.store().read().region(region, None)?.split_keys(parts, self.border_bytes_min())
    }

    /// How large a region is, if it is here and can be read. For operators.
    pub(crate) fn region_size(&self, region: RegionId) -> Option<RegionSize> {
        let size = self.store().read().region(region, None).and_then(|rows| rows.size());
        size.ok()
    }

    /// A region of clients with a replica here.
    fn client_region(&self, region: RegionId) -> Result<Descriptor, RequestError> {
        // The rows of the placement driver stay together.
        let found = self.descriptor(region).filter(|found| found.space == Space::Raw);
        found.ok_or(RequestError::Rejected(Reject::RegionNotFound(region)))
    }

    async fn split_once(
        &self,
        parent: &Descriptor,
        borders: &[Bytes],
    ) -> Result<Vec<Descriptor>, RequestError> {
        let region = parent.id;
        // Before ids are taken: another store's are as good, and these would be lost.
        if let Some((_, leader)) = self.leader(region).filter(|_| !self.leads(region)) {
            return Err(RequestError::Rejected(Reject::NotLeader { leader: Some(leader) }));
        }
        let deadline = self.deadline();
        let (regions, peers) = (borders.len(), borders.len() * parent.peers.len());
        let ids = self.ids().take(regions as u64, peers as u64, deadline).await;
        let ids = ids.map_err(|reason| RequestError::Rejected(Reject::Busy { reason }))?;
        let (regions, peers) = (ids.regions.map(RegionId), ids.peers.map(PeerId));
        let split = SplitCommand::with_borders(parent, borders, regions, peers);
        let event = |ticket| Event::Split { region, ticket, split: split.clone() };
        match self.ask(region, 0, event, RequestError::Undecided).await? {
            TicketAnswer::Applied(ApplyOutcome::Done) => {}
            TicketAnswer::Applied(ApplyOutcome::Rejected(reject)) => {
                return Err(RequestError::Rejected(refusal(reject)));
            }
            TicketAnswer::Rejected(reject) => return Err(RequestError::Rejected(reject)),
            other => unreachable!("a split ended as {other:?}"),
        }
        // The same on every replica, and this is the version that it was made for.
        let made = split.divide(parent).expect("the split was carried out");
        // The store answers before the shard hears of it.
        let version = made.parent.epoch.version;
        if !self.routes().await_version(region, version, deadline).await {
            return Err(RequestError::Undecided);
        }
        let mut parts = made.children;
        parts.push(made.parent);
        Ok(parts)
    }
}

/// The rejection of a split when it was applied, in the terms of one that was not proposed: neither
/// had an effect.
fn refusal(reject: ApplyReject) -> Reject {
    match reject {
        ApplyReject::EpochNotMatch { current } => Reject::EpochNotMatch { current },
        ApplyReject::InvalidSplit(error) => Reject::InvalidSplit(error),
        other => unreachable!("a split was rejected: {other}"),
    }
}
