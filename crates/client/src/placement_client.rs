//! The client of placement: its leader, the region of a key, the address of a store.

use std::sync::{PoisonError, RwLock};

use bytes::Bytes;
use flotilla_proto::metapb;
use flotilla_proto::pdpb::{self, pd_client::PdClient};
use tokio::time::{Instant, timeout_at};
use tonic::Status;
use tonic::transport::Channel;

use crate::config::Config;
use crate::dial::{self, bare};
use crate::error::Error;
use crate::retry_budget::{AttemptFailure, RetryBudget, RetryDelay, describe, is_answer};
use crate::route_cache::CachedRoute;

/// Past every key that a store accepts: 8 KiB is the longest.
static LAST_KEY: [u8; 8193] = [0xff; 8193];

/// Where to ask.
#[derive(Debug)]
pub(crate) struct PlacementClient {
    config: Config,
    cluster_id: u64,
    members: RwLock<PdMembers>,
}

#[derive(Debug, Clone)]
struct PdMembers {
    /// Addresses that answer `GetMembers`; those of the configuration stay among them.
    endpoints: Vec<String>,
    /// Addresses of stores that requests went to, which are asked when no endpoint answers: all
    /// members that were known may have left.
    stores: Vec<String>,
    leader: Option<PdLeader>,
}

#[derive(Debug, Clone)]
struct PdLeader {
    /// As it is told, for messages to people.
    address: String,
    client: PdClient<Channel>,
}

impl PlacementClient {
    /// Asks the endpoints for the cluster until one answers or the deadline passes.
    pub(crate) async fn connect(
        endpoints: &[String],
        config: &Config,
    ) -> Result<PlacementClient, Error> {
        if endpoints.is_empty() {
            return Err(Error::Config("no endpoints".to_owned()));
        }
        for endpoint in endpoints {
            // Each of them at once: a misspelt address is an error now, and not on the day when the
            // others fail.
            dial::channel(endpoint, config)?;
        }
        let mut budget = RetryBudget::new(config);
        let mut last_absence = None;
        loop {
            let deadline = budget.attempt();
            let asked = ask_members(endpoints, endpoints, config, deadline);
            let absence = match asked.await {
                Ok((cluster_id, members)) => {
                    let config = config.clone();
                    return Ok(PlacementClient {
                        config,
                        cluster_id,
                        members: RwLock::new(members),
                    });
                }
                Err(absence) => absence,
            };
            let failure = AttemptFailure::passing(RetryDelay::Backoff, absence.reason());
            // An attempt that the deadline cut short knows less than the one before it.
            if last_absence.is_none() || Instant::now() < deadline {
                last_absence = Some(absence);
            }
            if budget.pause(failure).await.is_err() {
                return Err(last_absence.expect("one attempt was made").into_error());
            }
        }
    }

    pub(crate) fn cluster_id(&self) -> u64 {
        self.cluster_id
    }

    /// The region that holds `key`.
    pub(crate) async fn region_of(
        &self,
        key: &Bytes,
        budget: &mut RetryBudget,
    ) -> Result<CachedRoute, Error> {
        loop {
            let request = self.region_request(key);
            let answer = self.ask(budget, async move |mut pd| pd.get_region(request).await).await;
            match answer.and_then(|it| self.route_of(it)) {
                Ok(route) => return Ok(route),
                Err(failure) => budget.pause(failure).await?,
            }
        }
    }

    /// The region of this id. `None` if placement knows none.
    pub(crate) async fn region_by_id(
        &self,
        id: u64,
        budget: &mut RetryBudget,
    ) -> Result<Option<CachedRoute>, Error> {
        loop {
            let header = self.header();
            let request = pdpb::GetRegionByIdRequest { header, region_id: id, need_buckets: false };
            let answer =
                self.ask(budget, async move |mut pd| pd.get_region_by_id(request).await).await;
            let failure = match answer {
                Ok(response) if response.region.is_none() => return Ok(None),
                Ok(response) => match self.route_of(response) {
                    Ok(route) => return Ok(Some(route)),
                    Err(failure) => failure,
                },
                Err(failure) => failure,
            };
            budget.pause(failure).await?;
        }
    }

    /// The region that holds the greatest key below `end`; an empty `end` is above all keys.
    pub(crate) async fn region_below(
        &self,
        end: &Bytes,
        budget: &mut RetryBudget,
    ) -> Result<CachedRoute, Error> {
        if end.is_empty() {
            return self.region_of(&Bytes::from_static(&LAST_KEY), budget).await;
        }
        loop {
            let holder = self.region_of(end, budget).await?;
            // The region of `end` itself, if it begins below: else the one before it is asked for.
            if holder.ends_at_or_contains(end) {
                return Ok(holder);
            }
            let request = self.region_request(end);
            let answer =
                self.ask(budget, async move |mut pd| pd.get_prev_region(request).await).await;
            match answer.and_then(|it| self.route_of(it)) {
                Ok(route) if route.ends_at_or_contains(end) => return Ok(route),
                Ok(_) => {
                    let moved =
                        AttemptFailure::passing(RetryDelay::Backoff, "regions change just now");
                    budget.pause(moved).await?;
                }
                Err(failure) => budget.pause(failure).await?,
            }
        }
    }

    /// Where the store is; `None` if placement does not know it.
    pub(crate) async fn address_of(
        &self,
        store_id: u64,
        budget: &mut RetryBudget,
    ) -> Result<Option<String>, Error> {
        loop {
            let request = pdpb::GetStoreRequest { header: self.header(), store_id };
            match self.ask(budget, async move |mut pd| pd.get_store(request).await).await {
                Ok(response) => {
                    let store = response.store.filter(|store| !store.address.is_empty());
                    let address = store.map(|store| store.address);
                    let mut members = self.members.write().unwrap_or_else(PoisonError::into_inner);
                    address.iter().for_each(|address| members.note_store(address));
                    return Ok(address);
                }
                Err(failure) => budget.pause(failure).await?,
            }
        }
    }

    /// All regions from `start` on, at most `limit` of them.
    pub(crate) async fn regions_from(
        &self,
        start: Bytes,
        limit: i32,
        budget: &mut RetryBudget,
    ) -> Result<Vec<(metapb::Region, Option<metapb::Peer>)>, Error> {
        loop {
            let header = self.header();
            let request = pdpb::ScanRegionsRequest {
                header,
                start_key: self.config.api.encode(&start),
                limit,
                end_key: Bytes::new(),
            };
            match self.ask(budget, async move |mut pd| pd.scan_regions(request).await).await {
                Ok(response) => {
                    let regions = response.regions.into_iter();
                    let regions = regions.filter_map(|r| Some((r.region?, r.leader)));
                    let decoded =
                        regions.map(|(it, leader)| Ok((self.config.api.decode(it)?, leader)));
                    return decoded.collect();
                }
                Err(failure) => budget.pause(failure).await?,
            }
        }
    }

    /// All stores.
    pub(crate) async fn stores(
        &self,
        budget: &mut RetryBudget,
    ) -> Result<Vec<metapb::Store>, Error> {
        loop {
            let header = self.header();
            let request = pdpb::GetAllStoresRequest { header, exclude_tombstone_stores: true };
            match self.ask(budget, async move |mut pd| pd.get_all_stores(request).await).await {
                Ok(response) => return Ok(response.stores),
                Err(failure) => budget.pause(failure).await?,
            }
        }
    }

    fn header(&self) -> Option<pdpb::RequestHeader> {
        Some(pdpb::RequestHeader { cluster_id: self.cluster_id, ..Default::default() })
    }

    fn region_request(&self, key: &Bytes) -> pdpb::GetRegionRequest {
        pdpb::GetRegionRequest {
            header: self.header(),
            region_key: self.config.api.encode(key),
            need_buckets: false,
        }
    }

    fn route_of(&self, response: pdpb::GetRegionResponse) -> Result<CachedRoute, AttemptFailure> {
        let leader = response.leader.filter(|leader| leader.id != 0);
        let region = response.region.map(|region| self.config.api.decode(region)).transpose();
        let region = region.map_err(AttemptFailure::Fatal)?;
        region.and_then(|region| CachedRoute::new(region, leader)).ok_or_else(|| {
            AttemptFailure::passing(RetryDelay::Backoff, "placement knows no region for the key")
        })
    }

    /// One attempt at the leader. A failure of any kind makes the next attempt look for the leader
    /// again: it is cheap, and the old one may have become a follower that still answers.
    async fn ask<A: HasHeader>(
        &self,
        budget: &mut RetryBudget,
        call: impl AsyncFnOnce(PdClient<Channel>) -> Result<tonic::Response<A>, Status>,
    ) -> Result<A, AttemptFailure> {
        let deadline = budget.attempt();
        let PdLeader { address, client } = self.leader(deadline).await?;
        let status = match timeout_at(deadline, call(client)).await {
            Ok(Ok(response)) => match response.into_inner().refusal() {
                Ok(answer) => return Ok(answer),
                Err(refusal) => Status::unavailable(refusal),
            },
            Ok(Err(status)) => status,
            Err(_) => Status::deadline_exceeded("no answer in time"),
        };
        // After any failure: another one may lead by now, so the next attempt asks all members.
        self.members.write().unwrap_or_else(PoisonError::into_inner).leader = None;
        Err(match AttemptFailure::of_status(&status, &format!("placement at {address}")) {
            // Lookups have no effect that could be in doubt.
            AttemptFailure::Passing { reason, wait, .. } => AttemptFailure::passing(wait, reason),
            fatal => fatal,
        })
    }

    async fn leader(&self, deadline: Instant) -> Result<PdLeader, AttemptFailure> {
        // A copy, so that no lock is held while the network is asked.
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(leader) = members.leader {
            return Ok(leader);
        }
        let PdMembers { endpoints, stores, .. } = &members;
        let mut found = ask_members(endpoints, endpoints, &self.config, deadline).await;
        // Where one serves and knows of no leader, others know of none either.
        if found.as_ref().is_err_and(|absence| !absence.is_leaderless()) {
            let by_store = ask_members(stores, endpoints, &self.config, deadline).await;
            found = by_store.or(found);
        }
        let (cluster_id, mut members) = found
            .map_err(|absence| AttemptFailure::passing(RetryDelay::Backoff, absence.reason()))?;
        if cluster_id != self.cluster_id {
            // No retry: another cluster that took over these addresses would take the writes as
            // well.
            let address = members.leader.map_or_else(String::new, |leader| leader.address);
            let refusal = format!(
                "cluster {cluster_id} answers for cluster {}, and names {address} as the leader of \
                 placement",
                self.cluster_id
            );
            return Err(AttemptFailure::Fatal(Error::Rejected(refusal)));
        }
        let leader = members.leader.clone();
        members.stores.clone_from(stores);
        *self.members.write().unwrap_or_else(PoisonError::into_inner) = members;
        leader
            .ok_or_else(|| AttemptFailure::passing(RetryDelay::Backoff, "placement has no leader"))
    }
}

impl PdMembers {
    /// Takes the address of a store in, the newest in the place of the oldest.
    fn note_store(&mut self, address: &str) {
        if self.stores.iter().any(|known| known == address) {
            return;
        }
        if self.stores.len() == ENDPOINTS_MAX {
            self.stores.remove(0);
        }
        self.stores.push(address.to_owned());
    }
}

/// Asks each of `endpoints` in turn for the members, until one names a leader. Else, returns all
/// answers. The addresses that are `known` stay among those of the members.
async fn ask_members(
    endpoints: &[String],
    known: &[String],
    config: &Config,
    deadline: Instant,
) -> Result<(u64, PdMembers), LeaderAbsence> {
    let mut absence = LeaderAbsence::default();
    for endpoint in endpoints {
        // An endpoint that takes connections and never answers must not eat the others' time.
        let deadline = deadline.min(Instant::now() + config.connect_timeout * 2);
        let answer = match timeout_at(deadline, members_at(endpoint, known, config)).await {
            Ok(Ok(Some(found))) => return Ok(found),
            Ok(Ok(None)) => EndpointAnswer::NoLeader,
            Ok(Err(status)) if is_answer(&status) => EndpointAnswer::Refused(describe(&status)),
            Ok(Err(status)) => EndpointAnswer::Silent(describe(&status)),
            Err(_) => EndpointAnswer::Silent("no answer in time".to_owned()),
        };
        absence.answers.push((endpoint.clone(), answer));
    }
    Err(absence)
}

/// Why no endpoint named a leader.
#[derive(Debug, Default)]
struct LeaderAbsence {
    answers: Vec<(String, EndpointAnswer)>,
}

#[derive(Debug, Clone)]
enum EndpointAnswer {
    /// None came.
    Silent(String),
    /// The store does not serve, and says why.
    Refused(String),
    /// The store serves, and knows of no leader.
    NoLeader,
}

impl EndpointAnswer {
    fn words(&self) -> &str {
        match self {
            EndpointAnswer::Silent(reason) | EndpointAnswer::Refused(reason) => reason,
            EndpointAnswer::NoLeader => "it serves, but knows of no leader of placement",
        }
    }
}

impl LeaderAbsence {
    /// Whether a store serves, and knows of no leader.
    fn is_leaderless(&self) -> bool {
        self.answers.iter().any(|(_, answer)| matches!(answer, EndpointAnswer::NoLeader))
    }

    /// The answers of all endpoints, equal ones together.
    fn reason(&self) -> String {
        let mut groups: Vec<(String, &str)> = Vec::new();
        for (endpoint, answer) in &self.answers {
            match groups.iter_mut().find(|(_, words)| *words == answer.words()) {
                Some((endpoints, _)) => {
                    endpoints.push_str(", ");
                    endpoints.push_str(endpoint);
                }
                None => groups.push((endpoint.clone(), answer.words())),
            }
        }
        let groups = groups.iter().map(|(endpoints, words)| format!("{endpoints}: {words}"));
        groups.collect::<Vec<_>>().join("; ")
    }

    /// The error of the endpoint that came furthest.
    fn into_error(self) -> Error {
        if self.is_leaderless() {
            return Error::NoLeader { reason: self.reason() };
        }
        let refusal = self.answers.iter().find_map(|(endpoint, answer)| match answer {
            EndpointAnswer::Refused(reason) => Some((endpoint.clone(), reason.clone())),
            _ => None,
        });
        if let Some((endpoint, reason)) = refusal {
            return Error::NotServing { endpoint, reason };
        }
        match &self.answers[..] {
            [(endpoint, answer)] => Error::Unreachable {
                endpoints: endpoint.clone(),
                reason: answer.words().to_owned(),
            },
            answer => Error::Unreachable {
                endpoints: format!("any of {} addresses", answer.len()),
                reason: self.reason(),
            },
        }
    }
}

/// The cluster as one endpoint knows it; `None` if it knows of no leader.
async fn members_at(
    endpoint: &str,
    known: &[String],
    config: &Config,
) -> Result<Option<(u64, PdMembers)>, Status> {
    let dial = |address: &str| {
        dial::channel(address, config).map_err(|error| Status::internal(error.to_string()))
    };
    let mut pd = PdClient::new(dial(endpoint)?);
    let response = pd.get_members(pdpb::GetMembersRequest::default()).await?.into_inner();
    let header = response.header.unwrap_or_default();
    if header.cluster_id == 0 {
        return Err(Status::unavailable("the store has no cluster yet"));
    }
    let leader = response.leader.unwrap_or_default();
    let Some(url) = leader.client_urls.first() else { return Ok(None) };
    let client = PdClient::new(dial(url)?).max_decoding_message_size(config.message_bytes_max);
    let leader = PdLeader { address: bare(url).to_owned(), client };
    // The addresses that the user gave stay first, and stay: they may be names that outlive all
    // members.
    let mut endpoints = known.to_vec();
    for url in response.members.iter().flat_map(|member| &member.client_urls) {
        // As people write them, or each would be asked twice.
        let address = bare(url);
        let is_known = endpoints.iter().any(|known| known == url || known == address);
        if !is_known && endpoints.len() < ENDPOINTS_MAX {
            endpoints.push(address.to_owned());
        }
    }
    let members = PdMembers { endpoints, stores: vec![], leader: Some(leader) };
    Ok(Some((header.cluster_id, members)))
}

/// Stores come and go; a client that lives long must not collect the addresses of all of them.
const ENDPOINTS_MAX: usize = 64;

/// Responses of placement: all bear a header.
trait HasHeader: Sized {
    fn header(&mut self) -> Option<pdpb::ResponseHeader>;

    fn refusal(mut self) -> Result<Self, String> {
        match self.header().and_then(|header| header.error) {
            Some(error) if error.r#type() != pdpb::ErrorType::Ok => Err(error.message),
            _ => Ok(self),
        }
    }
}

macro_rules! has_header {
    ($($response:ident),*) => {
        $(impl HasHeader for pdpb::$response {
            fn header(&mut self) -> Option<pdpb::ResponseHeader> {
                self.header.take()
            }
        })*
    };
}

has_header!(GetRegionResponse, GetStoreResponse, GetAllStoresResponse, ScanRegionsResponse);

#[cfg(test)]
mod tests {
    use super::*;

    fn absence(answers: &[EndpointAnswer]) -> LeaderAbsence {
        let answers =
            answers.iter().enumerate().map(|(at, answer)| (format!("h:{at}"), answer.clone()));
        LeaderAbsence { answers: answers.collect() }
    }

    #[test]
    fn the_newest_addresses_of_stores_are_kept() {
        let mut members = PdMembers { endpoints: vec![], stores: vec![], leader: None };
        for at in 0..=ENDPOINTS_MAX {
            members.note_store(&format!("h:{at}"));
            members.note_store(&format!("h:{at}"));
        }
        assert_eq!(members.stores.len(), ENDPOINTS_MAX);
        assert_eq!((members.stores[0].as_str(), &members.stores[63]), ("h:1", &"h:64".to_owned()));
    }

    #[test]
    fn the_error_is_that_of_the_endpoint_that_came_furthest() {
        let silent = EndpointAnswer::Silent("connection refused".to_owned());
        let refused = EndpointAnswer::Refused("no cluster yet".to_owned());
        let words = |said: &[EndpointAnswer]| absence(said).into_error().to_string();
        assert_eq!(
            words(std::slice::from_ref(&silent)),
            "no store answers at h:0: connection refused"
        );
        assert_eq!(
            words(&[silent.clone(), silent.clone()]),
            "no store answers at any of 2 addresses: h:0, h:1: connection refused"
        );
        assert_eq!(
            words(&[silent.clone(), refused.clone()]),
            "h:1 answers, but does not serve: no cluster yet"
        );
        let leaderless = words(&[refused, silent, EndpointAnswer::NoLeader]);
        assert!(leaderless.starts_with("placement has no leader: h:0: no cluster"), "{leaderless}");
    }
}
