//! Requests that a split has overtaken.
//!
//! They are refused, for their region has another version now. A request whose keys are all in one
//! region that can be served here is offered to it, once, so that its client notices nothing; to
//! others the refusal names all regions that hold the old range, so that their clients look nothing
//! up.

use std::time::Duration;

use bytes::Bytes;
use flotilla_region::{Descriptor, RegionId, Reject, RequestPrecondition};
use flotilla_store::{ApplyOutcome, ApplyReject, ReadError, RegionSnapshot};
use tokio::time::Instant;

use crate::driver::router::{RequestError, Router};
use crate::wall_clock;

/// How long the routes may take to hear of a split that is applied.
const ROUTES_WAIT: Duration = Duration::from_secs(1);

/// Whether another region may serve a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rerouting {
    /// If it holds all of the keys.
    ByKeys,
    /// Never: the meaning of the request depends on the borders of its region.
    Never,
}

/// Why a region cannot be read.
pub(crate) enum RegionReadError {
    /// The read was not granted.
    Request(RequestError),
    /// The snapshot cannot be read.
    Snapshot(ReadError),
}

/// A refusal, and the region that may serve the request instead.
struct Overtaken {
    /// The regions that hold the range now.
    current: Vec<Descriptor>,
    next: Option<Descriptor>,
}

impl Router {
    /// As [`Router::propose`], or by the region that holds the keys since a split.
    ///
    /// # Errors
    ///
    /// As [`Router::propose`]. A rejection that names regions names all that hold the range which
    /// the region had at the version of the precondition, as far as this store knows them.
    pub(crate) async fn propose_by_keys(
        &self,
        region: RegionId,
        precondition: RequestPrecondition,
        command: Bytes,
        rerouting: Rerouting,
    ) -> Result<ApplyOutcome, RequestError> {
        let first = self.propose(region, precondition.clone(), command.clone()).await;
        let current = match version_mismatch(first) {
            Ok(result) => return result,
            Err(current) => current,
        };
        // Apart, as few requests are overtaken: their futures are smaller without it.
        Box::pin(async move {
            let overtaken = self.overtaken(region, &precondition, rerouting, false, current).await;
            if let Some(next) = &overtaken.next {
                let precondition = claim_on(next, &precondition);
                match version_mismatch(self.propose(next.id, precondition, command).await) {
                    // Refused by the other one as well, and surely not carried out.
                    Err(_) | Ok(Err(RequestError::Rejected(_))) => {}
                    Ok(result) => {
                        self.note_rerouted();
                        return result;
                    }
                }
            }
            Err(RequestError::Rejected(Reject::EpochNotMatch { current: overtaken.current }))
        })
        .await
    }

    /// A snapshot of the region, or of the one that holds the keys since a split, that holds every
    /// write acknowledged before this call.
    ///
    /// # Errors
    ///
    /// [`RegionReadError`]; the regions in it are as those of [`Router::propose_by_keys`].
    pub(crate) async fn read_by_keys(
        &self,
        region: RegionId,
        precondition: RequestPrecondition,
        follower: bool,
        rerouting: Rerouting,
    ) -> Result<RegionSnapshot, RegionReadError> {
        let current = match self.read_region(region, precondition.clone(), follower).await {
            Err(RegionReadError::Request(RequestError::Rejected(Reject::EpochNotMatch {
                current,
            }))) => current,
            Err(RegionReadError::Snapshot(ReadError::EpochNotMatch(current))) => vec![*current],
            result => return result,
        };
        let overtaken = self.overtaken(region, &precondition, rerouting, follower, current).await;
        if let Some(next) = &overtaken.next {
            let precondition = claim_on(next, &precondition);
            let second = self.read_region(next.id, precondition, follower).await;
            if second.is_ok() {
                self.note_rerouted();
                return second;
            }
        }
        let current = overtaken.current;
        Err(RegionReadError::Request(RequestError::Rejected(Reject::EpochNotMatch { current })))
    }

    /// The rows of a region as they are here, by its watermark alone: for one whose entry was just
    /// applied here, and so has every write that was acknowledged before it was proposed.
    ///
    /// # Errors
    ///
    /// The region has another version by now, or the page store failed.
    pub(crate) fn read_applied(
        &self,
        region: RegionId,
        version: u64,
    ) -> Result<RegionSnapshot, ReadError> {
        let rows = self.applied_view().region(region, Some(version))?;
        Ok(rows.at(0))
    }

    /// Refuses a request that was made for another version of the region.
    ///
    /// # Errors
    ///
    /// As a rejection of [`Router::propose_by_keys`].
    pub(crate) fn check_version(
        &self,
        region: RegionId,
        claimed: Option<u64>,
    ) -> Result<(), RequestError> {
        let here = self.descriptor(region).map(|here| here.epoch.version);
        let Some(claimed) = claimed.filter(|claimed| Some(*claimed) != here) else { return Ok(()) };
        let current = self.routes().siblings(region, claimed);
        Err(RequestError::Rejected(Reject::EpochNotMatch { current }))
    }

    async fn read_region(
        &self,
        region: RegionId,
        precondition: RequestPrecondition,
        follower: bool,
    ) -> Result<RegionSnapshot, RegionReadError> {
        let version = precondition.version;
        let granted = self.read(region, precondition, follower).await;
        let snapshot = granted.map_err(RegionReadError::Request)?;
        // The region may have changed since the grant.
        let rows = snapshot.region(region, version).map_err(RegionReadError::Snapshot)?;
        // The watermark may be later: the snapshot knows it.
        Ok(rows.at(wall_clock::now_ms()))
    }

    /// The regions that hold the range of a refused request, and the one that may serve it. The
    /// refusal has named the region as in `current`.
    async fn overtaken(
        &self,
        region: RegionId,
        claim: &RequestPrecondition,
        rerouting: Rerouting,
        follower: bool,
        current: Vec<Descriptor>,
    ) -> Overtaken {
        let now = current.iter().find(|now| now.id == region).map(|now| now.epoch.version);
        let (now, claimed) = (now.unwrap_or_default(), claim.version.unwrap_or_default());
        // A client that knows more than this store has to wait for it.
        if claimed >= now {
            return Overtaken { current, next: None };
        }
        // The store answers before the shard hears of the split.
        self.routes().await_version(region, now, Instant::now() + ROUTES_WAIT).await;
        let next = match rerouting {
            Rerouting::ByKeys => self.holder(region, claim),
            Rerouting::Never => None,
        };
        let can_serve =
            |next: &Descriptor| follower || self.leader(next.id).is_none() || self.leads(next.id);
        Overtaken {
            next: next.filter(can_serve),
            current: merge(self.routes().siblings(region, claimed), current),
        }
    }

    /// The region that holds all keys of the request.
    fn holder(&self, region: RegionId, claim: &RequestPrecondition) -> Option<Descriptor> {
        let space = self.descriptor(region)?.space;
        let span = claim.span.as_ref()?;
        self.locate(space, &span.first).filter(|holder| holder.contains(&span.last))
    }
}

/// The claim of a request that goes to another region than its client has named.
fn claim_on(next: &Descriptor, claim: &RequestPrecondition) -> RequestPrecondition {
    let (version, span) = (Some(next.epoch.version), claim.span.clone());
    let needs_room = claim.needs_room;
    RequestPrecondition { version, span, needs_room, ..RequestPrecondition::default() }
}

/// The regions of a refusal for the version, or the result that is something else.
fn version_mismatch(
    result: Result<ApplyOutcome, RequestError>,
) -> Result<Result<ApplyOutcome, RequestError>, Vec<Descriptor>> {
    match result {
        Ok(ApplyOutcome::Rejected(ApplyReject::EpochNotMatch { current }))
        | Err(RequestError::Rejected(Reject::EpochNotMatch { current })) => Err(current),
        result => Ok(result),
    }
}

/// The regions that are `known`, and those of `told` that are newer or not among them, by their
/// keys.
fn merge(mut known: Vec<Descriptor>, told: Vec<Descriptor>) -> Vec<Descriptor> {
    for told in told {
        match known.iter_mut().find(|known| known.id == told.id) {
            Some(known) if known.epoch.version >= told.epoch.version => {}
            Some(known) => *known = told,
            None => known.push(told),
        }
    }
    known.sort_by(|one, other| one.start.cmp(&other.start));
    known
}
