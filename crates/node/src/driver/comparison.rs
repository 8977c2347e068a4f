//! A comparison of the replicas of a region: the way of a request to its verdict.

use flotilla_region::{ConsistencyVerdict, Event, Index, RegionId, Reject};
use flotilla_store::{ApplyOutcome, DIGEST_VERSION};
use tokio::time::{Instant, timeout_at};

use crate::driver::router::{RequestError, Router};
use crate::driver::tickets::TicketAnswer;

impl Router {
    /// Has all replicas of a region that is led here compute a digest of their rows, as they are
    /// behind an entry. Returns that entry once it is applied here; [`Router::verdict`] has the
    /// result later. A comparison whose region has another leader before that may have none.
    ///
    /// # Errors
    ///
    /// [`Reject::NotLeader`] if the region is led elsewhere; [`Reject::Busy`] while another
    /// comparison of it is under way; others as those of [`Router::propose`].
    pub async fn compare_replicas(&self, region: RegionId) -> Result<Index, RequestError> {
        let event =
            |ticket| Event::CompareReplicas { region, ticket, digest_version: DIGEST_VERSION };
        match self.ask(region, 0, event, RequestError::Undecided).await? {
            TicketAnswer::Applied(ApplyOutcome::DigestDue { index }) => Ok(index),
            TicketAnswer::Rejected(reject) => Err(RequestError::Rejected(reject)),
            other => unreachable!("a comparison began as {other:?}"),
        }
    }

    /// The verdict about a region behind this entry or a later one. Waits for it until then.
    ///
    /// # Errors
    ///
    /// [`Reject::RegionNotFound`] if the region has no replica here.
    pub async fn verdict(
        &self,
        region: RegionId,
        index: Index,
        until: Instant,
    ) -> Result<Option<ConsistencyVerdict>, RequestError> {
        let comparisons = self.comparisons();
        let mut verdicts = comparisons.verdicts();
        loop {
            if let Some(verdict) = comparisons.verdict_at(region, index) {
                return Ok(Some(verdict));
            }
            if self.descriptor(region).is_none() {
                return Err(RequestError::Rejected(Reject::RegionNotFound(region)));
            }
            if timeout_at(until, verdicts.changed()).await.is_err() {
                return Ok(None);
            }
        }
    }
}
