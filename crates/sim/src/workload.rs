//! The client workload: requests, their targets, their answers, and the check of both.
//!
//! Every written value is unique, so each answer tells which write it saw. A call begins when the
//! store gets it and ends when the store answers: the store has promised the answer even if it does
//! not reach the client. The fate of a request that a crash swallows stays unknown.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use fastrand::Rng;
use flotilla_kv::raw::RawOp;
use flotilla_region::{Descriptor, Event, RegionId, Reject, Space, Ticket};
use flotilla_store::{ApplyOutcome, ApplyReject};

use crate::checker::{self, History, RegisterAction, RegisterAnswer, RegisterValue};
use crate::event_queue::SimTime;
use crate::expiry::{self, HeldReads};
use crate::layout;
use crate::reference_model::{CheckFailure, OpResult, ProposalResult, ReferenceModel, RowKey};
use crate::region_cache::RegionCache;
use crate::request::{
    ClientReply, ClientRequest, ForgedField, RequestBody, RequestOwner, RequestState,
};
use crate::request_generator;
use crate::wall_clock;

/// Numbers of a run's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientCounts {
    /// Requests that a store had.
    pub asked: u64,
    /// Of these, served.
    pub served: u64,
    /// Of these, refused.
    pub refused: u64,
}

/// Moments of the history in a microsecond: more than happen in one.
const MOMENTS_PER_US: u64 = 1 << 16;

/// One client: asks one thing at a time.
#[derive(Debug, Default)]
struct SimClient {
    waits_for: Option<Ticket>,
    /// The regions that it knows.
    cache: RegionCache,
    /// Where it thinks that leaders are.
    leaders: BTreeMap<RegionId, usize>,
    /// The values that it last saw, to swap with.
    seen: BTreeMap<RowKey, RegisterValue>,
}

#[derive(Debug)]
pub(crate) struct ClientWorkload {
    rng: Rng,
    /// The keys that clients use, those of each of the first data regions together.
    groups: Vec<Vec<Bytes>>,
    stores: usize,
    /// How many times as long as in light runs the padding of values is.
    weight: usize,
    clients: Vec<SimClient>,
    /// By ticket, the first at 0.
    requests: Vec<ClientRequest>,
    /// Those that are on their way or wait at a store.
    open: BTreeSet<Ticket>,
    held_reads: HeldReads,
    history: History<(Space, RowKey)>,
    /// Grows with each call and each answer.
    moment: u64,
    tally: ClientCounts,
}

impl ClientWorkload {
    pub(crate) fn new(
        regions: &[Descriptor],
        stores: usize,
        clients: usize,
        keys_per_region: usize,
        weight: usize,
        rng: Rng,
    ) -> Self {
        let keys_of = |region: &Descriptor| {
            (0..keys_per_region).map(|nth| layout::key(region, nth)).collect()
        };
        let data = regions.iter().filter(|region| region.id != layout::SYSTEM);
        let client = || SimClient { cache: RegionCache::new(regions), ..SimClient::default() };
        Self {
            rng,
            groups: data.map(keys_of).collect(),
            stores,
            weight,
            clients: (0..clients).map(|_| client()).collect(),
            requests: Vec::new(),
            open: BTreeSet::new(),
            held_reads: HeldReads::default(),
            history: History::default(),
            moment: 0,
            tally: ClientCounts::default(),
        }
    }

    pub(crate) fn request(&self, ticket: Ticket) -> &ClientRequest {
        &self.requests[index(ticket)]
    }

    /// The proposal of this ticket.
    pub(crate) fn command(&self, ticket: Ticket) -> Option<Bytes> {
        self.requests.get(index(ticket))?.command.clone()
    }

    /// Every key that clients use.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &Bytes> {
        self.groups.iter().flatten()
    }

    /// The keys of a region that clients use, in order.
    pub(crate) fn keys_in(&self, region: &Descriptor) -> Vec<Bytes> {
        let is_here = |key: &&Bytes| region.space == Space::Raw && region.contains(key);
        self.keys().filter(is_here).cloned().collect()
    }

    /// Requests that are neither answered nor lost.
    pub(crate) fn open(&self) -> &BTreeSet<Ticket> {
        &self.open
    }

    /// Answers that wait for a time in the log.
    pub(crate) fn held_reads(&mut self) -> &mut HeldReads {
        &mut self.held_reads
    }

    pub(crate) fn tally(&self) -> ClientCounts {
        self.tally
    }

    /// Whether the answers are linearizable.
    pub(crate) fn check(&self) -> Result<checker::CheckedCounts, CheckFailure> {
        self.history.check().map_err(|((space, (family, key)), violation)| {
            let key = key.escape_ascii();
            format!("{space:?}, family {family}, key \"{key}\": {violation}")
        })
    }

    /// A client asks for something.
    pub(crate) fn next_request(&mut self, client: usize, placement: &ReferenceModel) -> Ticket {
        let group = self.rng.usize(..self.groups.len());
        let next = Ticket(self.requests.len() as u64 + 1);
        let (keys, seen) = (&self.groups[group], &self.clients[client].seen);
        let body = request_generator::draw(&mut self.rng, keys, seen, next, self.weight);
        // Not drawn, so that old seeds draw the rest as ever.
        let key = request_generator::chosen_key(&body, keys, next).clone();
        let route = self.route(client, &key, placement);
        let body = request_generator::cut(body, &route);
        let store = self.choose_store(client, &route);
        let request = ClientRequest::new(RequestOwner::Client(client), &route, store, body);
        let mut request = request.in_family(request_generator::family(next));
        if request.command.is_none() && self.rng.u8(..4) == 0 {
            request.follower = true;
            request.store = self.any_replica(&route);
        }
        if self.rng.u8(..50) == 0 {
            let forged =
                [ForgedField::Version, ForgedField::Peer, ForgedField::Span][self.rng.usize(..3)];
            // A region with all keys has none outside.
            let has_borders = !(route.start.is_empty() && route.end.is_empty());
            request.forged = (has_borders || forged != ForgedField::Span).then_some(forged);
        }
        self.clients[client].waits_for = Some(next);
        self.send(request)
    }

    /// The region of a key, as the client knows it; it asks placement if it does not.
    fn route(&mut self, client: usize, key: &[u8], placement: &ReferenceModel) -> Descriptor {
        let cache = &mut self.clients[client].cache;
        if cache.region_of(key).is_none() {
            cache.learn(placement.region_of(key));
        }
        cache.region_of(key).unwrap_or_else(|| placement.region_of(key)).clone()
    }

    /// Probes whether the region has two leaders: reads from `leader` and, if asked to, writes to a
    /// replica that may have become one.
    pub(crate) fn probe(
        &mut self,
        region: &Descriptor,
        leader: usize,
        writes: bool,
    ) -> Vec<Ticket> {
        let Some(key) = self.keys_in(region).into_iter().next() else { return Vec::new() };
        let mut probes = Vec::new();
        if writes {
            let other = self.any_replica(region);
            let value = format!("probe {}", self.requests.len()).into();
            let put = RequestBody::Write(vec![RawOp::put(key.clone(), value)]);
            probes.push(ClientRequest::new(RequestOwner::Auditor, region, other, put));
        }
        let get = RequestBody::Get(key);
        probes.push(ClientRequest::new(RequestOwner::Auditor, region, leader, get));
        probes.into_iter().map(|probe| self.send(probe)).collect()
    }

    /// Sends a request that is made elsewhere.
    pub(crate) fn send(&mut self, request: ClientRequest) -> Ticket {
        self.requests.push(request);
        let ticket = Ticket(self.requests.len() as u64);
        self.open.insert(ticket);
        ticket
    }

    /// The next moment of the history, at this time of the run.
    fn next_moment(&mut self, now: SimTime) -> u64 {
        self.moment = (self.moment + 1).max(moment_of(now));
        self.moment
    }

    /// The request reaches its store, which is up.
    pub(crate) fn arrive(&mut self, ticket: Ticket, now: SimTime) -> Event {
        self.next_moment(now);
        self.tally.asked += 1;
        let request = &mut self.requests[index(ticket)];
        assert_eq!(request.state, RequestState::Sent, "ticket {ticket} arrives once");
        request.state = RequestState::Waiting;
        let asker = match request.owner {
            RequestOwner::Client(client) => client as u64,
            RequestOwner::TsoOracle(store) => 1_000 + store as u64,
            RequestOwner::Auditor | RequestOwner::Operator | RequestOwner::Splitter { .. } => 2_000,
            RequestOwner::Reader(_) | RequestOwner::Sweeper | RequestOwner::Checker => 3_000,
        };
        request.set_time(wall_clock::read(request.store, now));
        let request = &self.requests[index(ticket)];
        let (space, actions) =
            (request.route.space, request.actions(&self.keys_in(&request.route)));
        let family = request.family;
        let call =
            |(key, action)| self.history.call((space, (family, key)), asker, self.moment, action);
        let calls = actions.into_iter().map(call).collect();
        let expire = |(key, value, ttl_ms)| {
            // It may be written at once, and gone before its put is answered.
            let gone = moment_of(now + wall_clock::run_us(expiry::least_ms(ttl_ms)));
            let action = RegisterAction::Expire(value);
            let row = (space, (family, key));
            (self.history.call(row, asker, gone.max(self.moment), action), ttl_ms)
        };
        let expiries = request.expiring().into_iter().map(expire).collect();
        let request = &mut self.requests[index(ticket)];
        (request.calls, request.expiries) = (calls, expiries);
        request.event(ticket)
    }

    /// The request's store is down, and the client knows it. Returns the client if it is free now.
    pub(crate) fn refuse_connection(&mut self, ticket: Ticket) -> Option<usize> {
        let request = &mut self.requests[index(ticket)];
        request.state = RequestState::Refused;
        self.open.remove(&ticket);
        let (owner, region) = (request.owner, request.region());
        self.forget_leader(owner, region);
        self.release(owner, ticket)
    }

    /// A store answers. Returns the client that is free now.
    ///
    /// # Errors
    ///
    /// The answer cannot be: it is a second one, of another kind, not what the operation did, or
    /// the request should have been refused.
    pub(crate) fn answer(
        &mut self,
        ticket: Ticket,
        reply: &ClientReply,
        now: SimTime,
        reference_model: &ReferenceModel,
    ) -> Result<Option<usize>, CheckFailure> {
        self.next_moment(now);
        let request = &mut self.requests[index(ticket)];
        let owner = request.owner;
        if request.state != RequestState::Waiting {
            return Err(format!(
                "ticket {ticket} is answered while {:?}: {reply:?}",
                request.state
            ));
        }
        self.open.remove(&ticket);
        if let ClientReply::Refused(reject) = reply {
            // A refusal is a promise that nothing has happened, nor will.
            if reference_model.result(ticket).is_some() {
                return Err(format!("ticket {ticket} was refused with {reject} and applied"));
            }
            self.refuse(ticket, reject);
        } else if let ClientReply::Wrote(ApplyOutcome::Rejected(reject)) = reply {
            if reference_model.result(ticket) != Some(&ProposalResult::Rejected) {
                return Err(format!("ticket {ticket} was rejected with {reject} and carried out"));
            }
            let current = match reject {
                ApplyReject::EpochNotMatch { current } => current.clone(),
                _ => Vec::new(),
            };
            self.refuse(ticket, &Reject::EpochNotMatch { current });
        } else {
            request.state = RequestState::Served;
            self.tally.served += 1;
            if let Some(forged) = request.forged {
                return Err(format!("ticket {ticket} was served although it lied: {forged:?}"));
            }
            self.note(ticket, reply, reference_model)?;
            self.note_expiries(ticket, now);
        }
        Ok(self.release(owner, ticket))
    }

    /// The client waits no longer. The request may still be answered.
    pub(crate) fn give_up(&mut self, client: usize, ticket: Ticket) -> bool {
        let waits = self.clients[client].waits_for == Some(ticket);
        if waits {
            // The request stays open: the store owes an answer even if no client waits for it.
            self.clients[client].waits_for = None;
            let region = self.request(ticket).region();
            self.forget_leader(RequestOwner::Client(client), region);
        }
        waits
    }

    /// A store does not learn what becomes of a proposal or a transfer: its calls stay without an
    /// answer. Returns the client that is free now.
    ///
    /// # Errors
    ///
    /// The store owes no answer.
    pub(crate) fn leave_open(&mut self, ticket: Ticket) -> Result<Option<usize>, CheckFailure> {
        let request = &mut self.requests[index(ticket)];
        // Of a transfer as well, if the replica that began it ends.
        let is_owed = request.command.is_some() || matches!(request.body, RequestBody::Transfer(_));
        if request.state != RequestState::Waiting || !is_owed {
            return Err(format!("ticket {ticket} is left open: {request:?}"));
        }
        request.state = RequestState::Lost;
        let owner = request.owner;
        self.open.remove(&ticket);
        Ok(self.release(owner, ticket))
    }

    /// A store forgets all that it was asked. Returns the clients that are free now.
    /// Those of `refused` waited there for a leader: they have had no effect, nor will they.
    pub(crate) fn lose_store(&mut self, store: usize, refused: &[Ticket]) -> Vec<usize> {
        let here = |ticket: &Ticket| {
            let request = &self.requests[index(*ticket)];
            request.store == store && request.state == RequestState::Waiting
        };
        let lost: Vec<_> = self.open.iter().copied().filter(here).collect();
        let mut free = Vec::new();
        for ticket in lost {
            self.open.remove(&ticket);
            let request = &mut self.requests[index(ticket)];
            // Its calls stay in the history without an answer: they may have had their effect, or
            // have it later.
            request.state = RequestState::Lost;
            if refused.contains(&ticket) {
                request.state = RequestState::Refused;
                forget(&mut self.history, request);
            }
            let owner = request.owner;
            free.extend(self.release(owner, ticket));
        }
        free
    }

    /// Notes what an answer says and compares it with what the operation did.
    fn note(
        &mut self,
        ticket: Ticket,
        reply: &ClientReply,
        reference_model: &ReferenceModel,
    ) -> Result<(), CheckFailure> {
        let request = &self.requests[index(ticket)];
        let keys = &self.keys_in(&request.route);
        let answers = match (&request.body, reply) {
            (RequestBody::Get(_), ClientReply::Got(value)) => {
                vec![RegisterAnswer::Seen(value.clone())]
            }
            (RequestBody::Scan, ClientReply::Scanned(rows)) => {
                if let Some((key, _)) = rows.iter().find(|(key, _)| !keys.contains(key)) {
                    return Err(format!("ticket {ticket}: a scan found key {key:?}"));
                }
                let rows: BTreeMap<_, _> = rows.iter().map(|(key, value)| (key, value)).collect();
                keys.iter()
                    .map(|key| RegisterAnswer::Seen(rows.get(key).copied().cloned()))
                    .collect()
            }
            (RequestBody::Transfer(_), ClientReply::Transferred(_)) => Vec::new(),
            (RequestBody::Compare, ClientReply::Wrote(ApplyOutcome::DigestDue { .. })) => {
                Vec::new()
            }
            (RequestBody::Membership(_), ClientReply::Wrote(ApplyOutcome::Done)) => {
                let result = reference_model.result(ticket);
                if result != Some(&ProposalResult::Members) {
                    return Err(format!("ticket {ticket} was told of a change, did {result:?}"));
                }
                Vec::new()
            }
            (RequestBody::Split(_), ClientReply::Wrote(ApplyOutcome::Done)) => {
                let result = reference_model.result(ticket);
                if result != Some(&ProposalResult::Split) {
                    return Err(format!("ticket {ticket} was told of a split, did {result:?}"));
                }
                Vec::new()
            }
            (RequestBody::Write(_), ClientReply::Wrote(outcome)) => {
                let Some(result) = reference_model.result(ticket) else {
                    return Err(format!("ticket {ticket} was served and not applied: {outcome:?}"));
                };
                let ProposalResult::Done(results) = result else {
                    return Err(format!("ticket {ticket} did {result:?}, was told {outcome:?}"));
                };
                if !is_outcome_of(outcome, results) {
                    return Err(format!("ticket {ticket} did {results:?}, was told {outcome:?}"));
                }
                // A deleted range is one operation and a call on each of its keys.
                let whole = vec![RegisterAnswer::Done; request.calls.len()];
                results.iter().find_map(swapped).map_or(whole, |answer| vec![answer])
            }
            (body, _) => return Err(format!("ticket {ticket} asked {body:?}, was told {reply:?}")),
        };
        let actions = request.actions(keys);
        let (owner, family, calls) = (request.owner, request.family, request.calls.clone());
        for ((call, (key, action)), answer) in calls.into_iter().zip(actions).zip(answers) {
            if let RequestOwner::Client(client) = owner {
                let held = checker::held_after(&action, &answer);
                self.clients[client].seen.insert((family, key), held);
            }
            self.history.answer(call, self.moment, answer);
        }
        Ok(())
    }

    /// The values of an answered request are written: by when they are gone is known.
    fn note_expiries(&mut self, ticket: Ticket, now: SimTime) {
        for (call, ttl_ms) in std::mem::take(&mut self.requests[index(ticket)].expiries) {
            let gone = moment_of(now + wall_clock::run_us(expiry::most_ms(ttl_ms)));
            self.history.answer(call, gone, RegisterAnswer::Done);
        }
    }

    /// Takes a refused request out of the history and learns from the refusal.
    fn refuse(&mut self, ticket: Ticket, reject: &Reject) {
        self.tally.refused += 1;
        let request = &mut self.requests[index(ticket)];
        request.state = RequestState::Refused;
        let (owner, region) = (request.owner, request.region());
        forget(&mut self.history, request);
        self.forget_leader(owner, region);
        let RequestOwner::Client(client) = owner else { return };
        let SimClient { cache, leaders, .. } = &mut self.clients[client];
        match reject {
            Reject::NotLeader { leader: Some(leader) } => {
                leaders.insert(region, layout::place(leader.store));
            }
            Reject::EpochNotMatch { current } => current.iter().for_each(|it| cache.learn(it)),
            Reject::KeyNotInRegion { descriptor, .. } => cache.learn(descriptor),
            // The replica there is another one: placement knows which.
            Reject::RegionNotFound(_) | Reject::MismatchPeer { .. } => cache.forget(region),
            _ => {}
        }
    }

    /// The client, if this is what it waited for.
    fn release(&mut self, owner: RequestOwner, ticket: Ticket) -> Option<usize> {
        let RequestOwner::Client(client) = owner else { return None };
        let waits_for = &mut self.clients[client].waits_for;
        waits_for.take_if(|waited| *waited == ticket).map(|_| client)
    }

    fn forget_leader(&mut self, owner: RequestOwner, region: RegionId) {
        if let RequestOwner::Client(client) = owner {
            self.clients[client].leaders.remove(&region);
        }
    }

    /// Mostly where the leader is thought to be; seldom a store that need not have the region.
    fn choose_store(&mut self, client: usize, region: &Descriptor) -> usize {
        if self.rng.u8(..64) == 0 {
            return self.rng.usize(..self.stores);
        }
        if let Some(store) = self.clients[client].leaders.get(&region.id) {
            return *store;
        }
        let store = self.any_replica(region);
        // The first target is asked again, until it refuses.
        self.clients[client].leaders.insert(region.id, store);
        store
    }

    fn any_replica(&mut self, region: &Descriptor) -> usize {
        layout::place(region.peers[self.rng.usize(..region.peers.len())].store)
    }
}

/// Takes a request that had no effect out of the history.
fn forget(history: &mut History<(Space, RowKey)>, request: &mut ClientRequest) {
    let expiries = request.expiries.drain(..).map(|(call, _)| call);
    request.calls.drain(..).chain(expiries).for_each(|call| history.forget(call));
}

/// The first moment of the history at this time of the run.
fn moment_of(now: SimTime) -> u64 {
    now.saturating_mul(MOMENTS_PER_US)
}

/// Whether this outcome is a right answer for a proposal with these results.
fn is_outcome_of(outcome: &ApplyOutcome, results: &[OpResult]) -> bool {
    match (outcome, results) {
        (ApplyOutcome::Swapped { succeeded, previous }, [result]) => {
            *result == OpResult::Swapped { succeeded: *succeeded, previous: previous.clone() }
        }
        (ApplyOutcome::RemovedExpired { rows }, [result]) => {
            *result == OpResult::Removed { rows: *rows }
        }
        (ApplyOutcome::Done, results) => results.iter().all(|result| *result == OpResult::Done),
        _ => false,
    }
}

fn swapped(result: &OpResult) -> Option<RegisterAnswer> {
    match result.clone() {
        OpResult::Done | OpResult::Removed { .. } => None,
        OpResult::Swapped { succeeded, previous } => {
            Some(RegisterAnswer::Swapped { succeeded, previous })
        }
    }
}

fn index(ticket: Ticket) -> usize {
    usize::try_from(ticket.0 - 1).expect("tickets are few")
}
