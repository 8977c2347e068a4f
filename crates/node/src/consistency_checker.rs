//! Compares the replicas of regions: has those that this store leads compared in their turn, and
//! computes the digests that entries ask for, at a bounded rate
//! (`docs/decisions/0049-replicas-are-compared-by-digests.md`).

use std::time::Duration;

use flotilla_dispatch::ComparisonSchedule;
use flotilla_region::{Event, RegionId};
use flotilla_store::{DigestReport, DigestStep};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until};

use crate::config::VerifyConfig;
use crate::driver::router::Router;
use crate::driver::shard_message::Mailboxes;
use crate::membership::Membership;

/// Bytes that are read at a time, so that the thread is soon free for others.
const PART_BYTES: u64 = 256 << 10;
/// A digest that takes longer is given up: its view keeps pages from being used again.
const VIEW_TIME_MAX: Duration = Duration::from_secs(15 * 60);
/// Between two looks for a region whose turn has come.
const LOOK: Duration = Duration::from_secs(10);
/// How long a comparison that was begun here may take, before the next one begins.
const VERDICT_TIME_MAX: Duration = Duration::from_secs(20 * 60);

/// Computes the digests that entries ask for, as long as the node runs.
pub(crate) async fn compute_digests(router: Router, mailboxes: Mailboxes, config: VerifyConfig) {
    loop {
        router.comparisons().digest_due().await;
        let mut pace = DigestPace::begin(config.bytes_per_s);
        loop {
            let part = {
                let router = router.clone();
                spawn_blocking(move || router.store().compute_digest(PART_BYTES))
            };
            match part.await.expect("a look at rows does not panic") {
                Ok(DigestStep::Idle) => break,
                Ok(DigestStep::More { bytes }) => {
                    if pace.is_late() {
                        router.store().give_up_digest();
                    }
                    pace.rest(bytes).await;
                }
                Ok(DigestStep::Done { report, .. }) => {
                    tell(&mailboxes, report);
                    pace = DigestPace::begin(config.bytes_per_s);
                }
                Err((region, error)) => {
                    tracing::warn!(%region, "rows cannot be read for a comparison: {error}");
                    router.read_failed(region, &error);
                }
            }
        }
    }
}

fn tell(mailboxes: &Mailboxes, report: DigestReport) {
    let DigestReport { region, peer, index, digest } = report;
    tracing::debug!(%region, %index, is_computed = digest.is_some(), "a digest for a comparison");
    mailboxes.complete_all([Event::Digested { region, peer, index, digest }]);
}

/// The rate of one digest.
struct DigestPace {
    bytes_per_s: u64,
    began: Instant,
    /// When the next part may be read.
    next: Instant,
}

impl DigestPace {
    fn begin(bytes_per_s: u64) -> Self {
        let now = Instant::now();
        Self { bytes_per_s, began: now, next: now }
    }

    fn is_late(&self) -> bool {
        self.began.elapsed() > VIEW_TIME_MAX
    }

    /// Waits as long as these bytes take at the rate. Time that was lost is not made up for.
    async fn rest(&mut self, bytes: u64) {
        let nanos = bytes.saturating_mul(1_000_000_000) / self.bytes_per_s;
        self.next = self.next.max(Instant::now()) + Duration::from_nanos(nanos);
        sleep_until(self.next).await;
    }
}

/// Has the regions that the store leads compared, each once in an interval and one at a time, as
/// long as the node runs.
pub(crate) async fn compare_in_turn(
    router: Router,
    membership: Membership,
    config: VerifyConfig,
    seed: u64,
) {
    let Some(interval) = config.interval() else { return };
    let (start, mut verdicts) = (Instant::now(), router.comparisons().verdicts());
    let mut schedule = ComparisonSchedule::new(interval, seed);
    let mut look = start + LOOK;
    loop {
        tokio::select! {
            () = sleep_until(look) => {}
            // Also of other leaders: their comparisons count.
            changed = verdicts.changed() => {
                if changed.is_err() {
                    return;
                }
                note_verdicts(&router, &mut schedule, start.elapsed());
                continue;
            }
        }
        look = Instant::now() + LOOK;
        let here: Vec<_> = router.descriptors().into_iter().map(|region| region.id).collect();
        // One at a time: a second one would not be computed here.
        if router.store().digesting().is_some() || membership.check_comparisons().is_err() {
            continue;
        }
        let next = schedule.next(start.elapsed(), here, |region| router.leads(region));
        let Some(region) = next else { continue };
        if compare(&router, region).await {
            note_verdicts(&router, &mut schedule, start.elapsed());
        } else {
            schedule.compared(start.elapsed(), region, false);
        }
    }
}

/// The last verdicts as the schedule knows them.
fn note_verdicts(router: &Router, schedule: &mut ComparisonSchedule, now: Duration) {
    for (region, is_complete) in router.comparisons().take_new() {
        schedule.compared(now, region, is_complete);
    }
}

/// Has the replicas of a region compared. Whether there is a verdict.
async fn compare(router: &Router, region: RegionId) -> bool {
    let until = Instant::now() + VERDICT_TIME_MAX;
    let begun = router.compare_replicas(region).await;
    match begun {
        Ok(index) => matches!(router.verdict(region, index, until).await, Ok(Some(_))),
        Err(error) => {
            tracing::debug!(%region, "no comparison of replicas: {error:?}");
            false
        }
    }
}
