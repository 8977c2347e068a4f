//! One attempt at one region: find it, send, and learn from the failure.

use std::sync::Arc;

use bytes::Bytes;
use flotilla_proto::{errorpb, kvrpcpb};
use tokio::time::timeout_at;

use crate::budget::{Budget, Failure, Wait, is_connect_error};
use crate::calls::{Answer, Call, Effect};
use crate::config::Config;
use crate::error::Error;
use crate::links::{Link, Links};
use crate::placement::Placement;
use crate::routes::{Route, Routes};
use crate::verdict::{Verdict, judge};

/// All that is known of the cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) config: Config,
    pub(crate) placement: Placement,
    routes: Routes,
    links: Links,
}

impl Cluster {
    pub(crate) async fn connect(endpoints: &[String], config: Config) -> Result<Cluster, Error> {
        config.check()?;
        let placement = Placement::connect(endpoints, &config).await?;
        Ok(Cluster { config, placement, routes: Routes::default(), links: Links::default() })
    }

    /// The region that holds `key`.
    pub(crate) async fn route(
        &self,
        key: &Bytes,
        budget: &mut Budget,
    ) -> Result<Arc<Route>, Error> {
        match self.routes.of_key(key) {
            Some(route) => Ok(route),
            None => Ok(self.routes.learn(self.placement.region_of(key, budget).await?)),
        }
    }

    /// The region that holds the greatest key below `end`; an empty `end` is above all keys.
    pub(crate) async fn route_below(
        &self,
        end: &Bytes,
        budget: &mut Budget,
    ) -> Result<Arc<Route>, Error> {
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
        mut budget: Budget,
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
        route: &Arc<Route>,
        mut call: C,
        budget: &mut Budget,
    ) -> Result<C::Response, Failure> {
        let link = self.link(route, budget).await?;
        let deadline = budget.attempt();
        call.set_context(kvrpcpb::Context {
            region_id: route.region.id,
            region_epoch: route.region.region_epoch,
            peer: Some(route.leader),
            cluster_id: self.placement.cluster_id(),
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
                    return Err(Failure::Fatal(Error::Rejected(refusal)));
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
        self.routes.rotate(route);
        Err(match Failure::of_status(&status, &link.name()) {
            Failure::Passing { reason, wait, .. } if C::EFFECT == Effect::Read => {
                Failure::passing(wait, reason)
            }
            failure => failure,
        })
    }

    async fn link(&self, route: &Arc<Route>, budget: &mut Budget) -> Result<Arc<Link>, Failure> {
        let store = route.leader.store_id;
        if let Some(link) = self.links.get(store) {
            return Ok(link);
        }
        let address = self.placement.address_of(store, budget).await.map_err(Failure::Fatal)?;
        let Some(address) = address else {
            self.routes.forget(route);
            return Err(Failure::passing(Wait::Backoff, format!("store {store} is not known")));
        };
        self.links.add(store, &address, &self.config).map_err(Failure::Fatal)
    }

    /// Takes from a region error what is new in it, and says how to go on.
    fn learn(&self, error: &errorpb::Error, route: &Arc<Route>, link: &Arc<Link>) -> Failure {
        let reason = format!("region {} on {}: {}", route.region.id, link.name(), error.message);
        let wait = match judge(error) {
            Verdict::Leader(leader) => {
                self.routes.set_leader(route, leader);
                Wait::No
            }
            Verdict::Rotate => {
                self.routes.rotate(route);
                Wait::Backoff
            }
            Verdict::Regions(regions) => return self.adopt(regions, route, reason),
            Verdict::Reload => {
                self.routes.forget(route);
                Wait::Backoff
            }
            Verdict::ReloadStore => {
                self.routes.forget(route);
                self.links.forget(link);
                Wait::Backoff
            }
            Verdict::Wait(least) => Wait::AtLeast(least),
            Verdict::Undetermined => {
                return Failure::Passing { reason, wait: Wait::Backoff, undetermined: true };
            }
            Verdict::Refuse(why) => return Failure::Fatal(Error::Rejected(why)),
        };
        Failure::passing(wait, reason)
    }

    /// The store named the regions that are there now. If they are newer than the route, they
    /// replace it, with the store in hand as their leader, for it led their parent; if they are
    /// older, the store lags behind and will catch up.
    fn adopt(
        &self,
        regions: Vec<flotilla_proto::metapb::Region>,
        route: &Arc<Route>,
        reason: String,
    ) -> Failure {
        let version = |region: &flotilla_proto::metapb::Region| {
            region.region_epoch.unwrap_or_default().version
        };
        if regions.iter().all(|region| version(region) <= version(&route.region)) {
            return Failure::passing(Wait::Backoff, reason);
        }
        self.routes.forget(route);
        for region in regions {
            let store = route.leader.store_id;
            let leader = region.peers.iter().find(|peer| peer.store_id == store).copied();
            if let Some(route) = Route::new(region, leader) {
                self.routes.learn(route);
            }
        }
        Failure::passing(Wait::No, reason)
    }
}
