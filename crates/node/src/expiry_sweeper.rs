//! Removes the expired rows of the regions that this store leads.

use std::time::Duration;

use bytes::Bytes;
use flotilla_dispatch::{ExpirySweep, SWEEP_EXPIRED_MAX, SWEEP_ROWS_MAX, SweepPlace, SweepStep};
use flotilla_kv::raw::{self, RawOp};
use flotilla_region::{RequestPrecondition, Space};
use flotilla_store::{ApplyOutcome, ExpiredPart, ReadError};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until};

use crate::driver::router::{RequestError, Router};

/// Why a part of a region was not swept. The next pass does it.
#[derive(Debug, thiserror::Error)]
enum SweepError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("they are not removed: {0}")]
    Remove(RequestError),
    #[error("the region has changed")]
    Changed,
}

/// Runs as long as the node, with a pass each `interval`.
pub(crate) async fn run(router: Router, interval: Duration) {
    let start = Instant::now();
    let mut sweep = ExpirySweep::new(Duration::ZERO, interval);
    loop {
        match sweep.next(start.elapsed()) {
            SweepStep::Wait(until) => sleep_until(start + until).await,
            SweepStep::Begin => {
                let led = router
                    .descriptors()
                    .into_iter()
                    .filter(|region| region.space == Space::Raw && router.leads(region.id));
                sweep.begin(start.elapsed(), led.map(|region| region.id));
            }
            SweepStep::Look(place) => {
                let region = place.region;
                let (rows, next) = match sweep_part(&router, place).await {
                    Ok((rows, next)) => (rows, next),
                    Err(error) => {
                        tracing::debug!(%region, "no sweep for expired rows: {error}");
                        if let SweepError::Read(error) = &error {
                            router.read_failed(region, error);
                        }
                        (0, None)
                    }
                };
                sweep.looked(start.elapsed(), rows, next);
            }
        }
    }
}

/// Looks at a part of a region and removes the rows that have expired. Returns how many, and where
/// the next part begins.
async fn sweep_part(
    router: &Router,
    place: SweepPlace,
) -> Result<(u64, Option<Bytes>), SweepError> {
    let SweepPlace { region, family, from } = place;
    // Without a time there is no row that could have expired, or no telling which.
    let Ok(now_ms) = router.wall_clock().command_ms() else { return Ok((0, None)) };
    let view = router.store().read().region(region, None)?.in_family(family)?.at(now_ms);
    let version = view.descriptor().epoch.version;
    let look = spawn_blocking(move || view.expired(&from, SWEEP_ROWS_MAX, SWEEP_EXPIRED_MAX));
    let looked = look.await.expect("a look at rows does not panic");
    let ExpiredPart { range, next } = looked?;
    let Some(range) = range else { return Ok((0, next)) };
    let remove = RawOp::RemoveExpired { start: range.start, end: Some(range.end) };
    let precondition =
        RequestPrecondition { version: Some(version), ..RequestPrecondition::default() };
    let command = raw::encode_in(family, now_ms, &[remove]);
    match router.propose(region, precondition, command).await.map_err(SweepError::Remove)? {
        ApplyOutcome::RemovedExpired { rows } => {
            router.note_expired(rows);
            Ok((rows, next))
        }
        _ => Err(SweepError::Changed),
    }
}
