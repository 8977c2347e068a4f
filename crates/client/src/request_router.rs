//! The request router: one attempt at one region, and the lessons of its failure.

use std::sync::Arc;

use bytes::Bytes;
use flotilla_proto::{errorpb, kvrpcpb};
use tokio::time::timeout_at;

use crate::config::Config;
use crate::error::Error;
use crate::placement_client::PlacementClient;
use crate::raw_calls::{Call, CallEffect, RawResponse};
use crate::retry_action::{RetryAction, classify};
use crate::retry_budget::{AttemptFailure, RetryBudget, RetryDelay, is_connect_error};
use crate::route_cache::{CachedRoute, RouteCache};
use crate::store_links::{StoreLink, StoreLinks};

/// All that is known of the cluster.
#[derive(Debug)]
pub(crate) struct RequestRouter {
    pub(crate) config: Config,
    pub(crate) placement: PlacementClient,
    routes: RouteCache,
    links: StoreLinks,
}

impl RequestRouter {
    pub(crate) async fn connect(
        endpoints: &[String],
        config: Config,
    ) -> Result<RequestRouter, Error> {
        config.check()?;
        let placement = PlacementClient::connect(endpoints, &config).await?;
        Ok(RequestRouter {
            config,
            placement,
            routes: RouteCache::default(),
            links: StoreLinks::default(),
        })
    }

    /// The region that holds `key`.
    pub(crate) async fn route(
        &self,
        key: &Bytes,
        budget: &mut RetryBudget,
    ) -> Result<Arc<CachedRoute>, Error> {
        match self.routes.of_key(key) {
            Some(route) => Ok(route),
            None => Ok(self.routes.learn(self.placement.region_of(key, budget).await?)),
        }
    }

    /// The region that holds the greatest key below `end`; an empty `end` is above all keys.
    pub(crate) async fn route_below(
        &self,
        end: &Bytes,
        budget: &mut RetryBudget,
    ) -> Result<Arc<CachedRoute>, Error> {
        match self.routes.below(end) {
            Some(route) => Ok(route),
            None => Ok(self.routes.learn(self.placement.region_below(end, budget).await?)),
        }
    }

    /// Sends a request about one key to whichever region holds it, as often as the budget allows.
    pub(crate) async fn call<C: Call>(
        &self,
        key: &Bytes,
        call: C,
        mut budget: RetryBudget,
    ) -> Result<C::Response, Error> {
        loop {
            let route = self.route(key, &mut budget).await?;
            match self.attempt(&route, call.clone(), &mut budget).await {
                Ok(response) => return Ok(response),
                Err(failure) => budget.pause(failure).await?,
            }
        }
    }

    /// Sends the request to the route's leader once.
    pub(crate) async fn attempt<C: Call>(
        &self,
        route: &Arc<CachedRoute>,
        mut call: C,
        budget: &mut RetryBudget,
    ) -> Result<C::Response, AttemptFailure> {
        let link = self.link(route, budget).await?;
        let deadline = budget.attempt();
        call.set_context(kvrpcpb::Context {
            region_id: route.region.id,
            region_epoch: route.region.region_epoch,
            peer: Some(route.leader),
            cluster_id: self.placement.cluster_id(),
            api_version: self.config.api.version().into(),
            // So that the store gives up what this attempt no longer waits for.
            max_execution_duration_ms: self.config.attempt_timeout.as_millis() as u64,
            ..Default::default()
        });
        let status = match timeout_at(deadline, link.send(call, &self.config)).await {
            Ok(Ok(mut response)) => {
                if let Some(error) = response.region_error() {
                    return Err(self.learn(&error, route, &link));
                }
                let refusal = response.refusal();
                if !refusal.is_empty() {
                    let refusal = format!("{}: {refusal}", link.name());
                    return Err(AttemptFailure::Fatal(Error::Rejected(refusal)));
                }
                return Ok(response);
            }
            Ok(Err(status)) => status,
            Err(_) => tonic::Status::deadline_exceeded("no answer in time"),
        };
        if is_connect_error(&status) {
            // It may be alive at another address by now.
            self.links.forget(&link);
        }
        // The replica may be dead or cut off: another one knows who leads now.
        self.routes.rotate(route);
        Err(match AttemptFailure::of_status(&status, &link.name()) {
            // A read has no effect that could be in doubt.
            AttemptFailure::Passing { reason, wait, .. } if C::EFFECT == CallEffect::Read => {
                AttemptFailure::passing(wait, reason)
            }
            failure => failure,
        })
    }

    async fn link(
        &self,
        route: &Arc<CachedRoute>,
        budget: &mut RetryBudget,
    ) -> Result<Arc<StoreLink>, AttemptFailure> {
        let store = route.leader.store_id;
        if let Some(link) = self.links.get(store) {
            return Ok(link);
        }
        let address =
            self.placement.address_of(store, budget).await.map_err(AttemptFailure::Fatal)?;
        // Placement has no such store: the route that names it is old.
        let Some(address) = address else {
            self.routes.forget(route);
            return Err(AttemptFailure::passing(
                RetryDelay::Backoff,
                format!("store {store} is not known"),
            ));
        };
        self.links.add(store, &address, &self.config).map_err(AttemptFailure::Fatal)
    }

    /// Takes from a region error what is new in it, and says how to go on.
    fn learn(
        &self,
        error: &errorpb::Error,
        route: &Arc<CachedRoute>,
        link: &Arc<StoreLink>,
    ) -> AttemptFailure {
        let reason = format!("region {} on {}: {}", route.region.id, link.name(), error.message);
        let wait = match classify(error) {
            RetryAction::Leader(leader) => {
                // No wait: the hint is news, and would only grow old.
                self.routes.set_leader(route, leader);
                RetryDelay::No
            }
            RetryAction::Rotate => {
                self.routes.rotate(route);
                RetryDelay::Backoff
            }
            RetryAction::Regions(regions) => {
                let decoded = regions.into_iter().map(|region| self.config.api.decode(region));
                return match decoded.collect() {
                    Ok(regions) => self.adopt(regions, route, reason),
                    Err(error) => AttemptFailure::Fatal(error),
                };
            }
            RetryAction::Reload => {
                self.routes.forget(route);
                RetryDelay::Backoff
            }
            RetryAction::ReloadStore => {
                self.routes.forget(route);
                self.links.forget(link);
                RetryDelay::Backoff
            }
            RetryAction::After(least) => RetryDelay::AtLeast(least),
            RetryAction::Undetermined => {
                return AttemptFailure::Passing {
                    reason,
                    wait: RetryDelay::Backoff,
                    undetermined: true,
                };
            }
            RetryAction::Refuse(why) => {
                let why = format!("region {} on {}: {why}", route.region.id, link.name());
                return AttemptFailure::Fatal(Error::Rejected(why));
            }
        };
        AttemptFailure::passing(wait, reason)
    }

    /// The store named the regions that are there now. If they are newer than the route, they
    /// replace it, with the store in hand as their leader, for it led their parent; if they are
    /// older, the store lags behind and will catch up.
    fn adopt(
        &self,
        regions: Vec<flotilla_proto::metapb::Region>,
        route: &Arc<CachedRoute>,
        reason: String,
    ) -> AttemptFailure {
        let version = |region: &flotilla_proto::metapb::Region| {
            region.region_epoch.unwrap_or_default().version
        };
        if regions.iter().all(|region| version(region) <= version(&route.region)) {
            return AttemptFailure::passing(RetryDelay::Backoff, reason);
        }
        self.routes.forget(route);
        for region in regions {
            let store = route.leader.store_id;
            let leader = region.peers.iter().find(|peer| peer.store_id == store).copied();
            if let Some(route) = CachedRoute::new(region, leader) {
                self.routes.learn(route);
            }
        }
        AttemptFailure::passing(RetryDelay::No, reason)
    }
}
