//! Transfers of leadership: for operators, for the placement driver, and of all leaders of a store
//! that stops.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use flotilla_identity::SYSTEM_REGION;
use flotilla_region::{Epoch, Event, Peer, PeerId, RegionId, Reject, StoreId, TransferError};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::driver::router::{RequestError, Router};
use crate::driver::tickets::TicketAnswer;

/// Transfers at once while a store stops: many enough to be quick, few enough that no shard and no
/// stream is flooded.
const AT_ONCE_MAX: usize = 256;
/// Between two looks at the regions that could not be handed over.
const RETRY: Duration = Duration::from_millis(20);
/// The cause of transfers of a store that is told to stop.
const STOPS: &str = "the store stops";

impl Router {
    /// Has another replica lead the region: the one on store `to`, or the one that lacks least of
    /// the log. Returns the leader once another one leads. Writes wait meanwhile, and reads ask a
    /// quorum. The log has a line for the transfer, with `cause`.
    ///
    /// # Errors
    ///
    /// [`Reject::NotLeader`] if the region is led elsewhere; [`Reject::InvalidTransfer`] says what
    /// was in the way, or that the other one did not take over in time; others as those of
    /// [`Router::propose`].
    ///
    /// # Cancel safety
    ///
    /// A transfer that was begun goes on.
    pub async fn transfer_leader(
        &self,
        region: RegionId,
        to: Option<StoreId>,
        cause: &str,
    ) -> Result<Peer, RequestError> {
        let began = Instant::now();
        let to = match to {
            None => None,
            Some(store) => Some(self.peer_on(region, store)?),
        };
        let event = |ticket| Event::TransferLeader { region, to, ticket: Some(ticket) };
        match self.ask(region, 0, event, RequestError::Undecided).await? {
            TicketAnswer::Transferred(leader) => {
                let epoch = self.descriptor(region).map(|found| found.epoch);
                let Epoch { version, conf_version } = epoch.unwrap_or_default();
                tracing::info!(
                    %region, version, conf_version, to = %leader.store,
                    ms = began.elapsed().as_millis(), cause, "a leader was transferred"
                );
                Ok(leader)
            }
            TicketAnswer::Rejected(reject) => Err(RequestError::Rejected(reject)),
            other => unreachable!("a transfer ended as {other:?}"),
        }
    }

    /// Begins a transfer, and does not wait for what comes of it: roles tell.
    pub(crate) fn begin_transfer(&self, region: RegionId, to: StoreId, cause: &'static str) {
        let router = self.clone();
        tokio::spawn(async move {
            if let Err(error) = router.transfer_leader(region, Some(to), cause).await {
                tracing::debug!(%region, %to, cause, "no leader was transferred: {error}");
            }
        });
    }

    fn peer_on(&self, region: RegionId, store: StoreId) -> Result<PeerId, RequestError> {
        let rejected = |reject| Err(RequestError::Rejected(reject));
        let Some(descriptor) = self.descriptor(region) else {
            return rejected(Reject::RegionNotFound(region));
        };
        match descriptor.peer_on(store) {
            Some(peer) => Ok(peer.id),
            // No replica has number 0; the words name the store.
            None => rejected(Reject::InvalidTransfer(TransferError::NotVoter(PeerId(0)))),
        }
    }

    /// Hands over all regions that this store leads, each of them once, within `time_limit`.
    /// Returns as soon as there is none left that could be handed over: at once if no other store
    /// answers. How many were handed over.
    pub(crate) async fn hand_over_leaders(&self, time_limit: Duration) -> usize {
        let until = Instant::now() + time_limit;
        // A region that comes back was handed over by a store that stops as well.
        let mut over = BTreeSet::new();
        let mut handed_over = 0;
        // Placement last: clients ask it where the others have gone.
        for is_system in [false, true] {
            loop {
                let wanted = |region: &RegionId| {
                    (*region == SYSTEM_REGION) == is_system && !over.contains(region)
                };
                let led: Vec<_> = self.led_with_others().into_iter().filter(wanted).collect();
                if led.is_empty() || Instant::now() >= until {
                    break;
                }
                let ended = self.hand_over(led, until).await;
                handed_over += ended.iter().filter(|(_, is_done)| *is_done).count();
                let stays = ended.is_empty();
                over.extend(ended.into_iter().map(|(region, _)| region));
                if stays {
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
        handed_over
    }

    /// The regions that are led here and have replicas elsewhere.
    fn led_with_others(&self) -> Vec<RegionId> {
        let all = self.descriptors().into_iter();
        let led = all.filter(|region| region.peers.len() > 1 && self.leads(region.id));
        led.map(|region| region.id).collect()
    }

    /// Tries to hand these over. Those that need not be tried again, and whether they are led
    /// elsewhere.
    async fn hand_over(&self, led: Vec<RegionId>, until: Instant) -> Vec<(RegionId, bool)> {
        let places = Arc::new(Semaphore::new(AT_ONCE_MAX));
        let mut transfers = JoinSet::new();
        for region in led {
            let (router, places) = (self.clone(), Arc::clone(&places));
            transfers.spawn(async move {
                let _place = places.acquire_owned().await.expect("it is never closed");
                let transfer = timeout_at(until, router.transfer_leader(region, None, STOPS)).await;
                match transfer {
                    Ok(Ok(_)) => Some((region, true)),
                    // It goes when the others end, or stays; there is no use in waiting.
                    Ok(Err(error)) if is_final(&error) => Some((region, false)),
                    Ok(Err(_)) => None,
                    Err(_) => Some((region, false)),
                }
            });
        }
        transfers.join_all().await.into_iter().flatten().collect()
    }
}

/// Whether it is of no use to try again in a moment.
fn is_final(error: &RequestError) -> bool {
    match error {
        RequestError::Rejected(Reject::InvalidTransfer(why)) => match why {
            TransferError::NoCandidate | TransferError::TimedOut(_) => true,
            TransferError::UnderWay(_)
            | TransferError::NewLeader
            | TransferError::Changing
            | TransferError::NotVoter(_)
            | TransferError::Silent(_)
            | TransferError::Lagging(_) => false,
        },
        RequestError::Rejected(Reject::Busy { .. }) => false,
        // It is led elsewhere, or nowhere; or the node has failed.
        RequestError::Rejected(_) | RequestError::Undecided | RequestError::Stopping => true,
    }
}
