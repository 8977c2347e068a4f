//! Requests of clients and the replies of stores.

use bytes::Bytes;
use flotilla_kv::ColumnFamily;
use flotilla_kv::raw::{self, RawOp};
use flotilla_region::{
    AdminCommand, Descriptor, Event, KeySpan, MembershipCommand, Peer, PeerId, RegionId, Reject,
    RequestPrecondition, SplitCommand, Term, Ticket,
};
use flotilla_store::{ApplyOutcome, DIGEST_VERSION};

use crate::checker::{OperationId, RegisterAction};
use crate::layout;
use crate::trace::{digest, mix};

/// The owner of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestOwner {
    /// A client of the workload.
    Client(usize),
    /// The timestamp oracle on a store.
    TsoOracle(usize),
    /// An operator who splits regions, transfers leaders and changes members.
    Operator,
    /// The run itself, at its end.
    Auditor,
    /// A store, for a leader there that wishes for a split.
    Splitter { is_by_load: bool },
    /// A store, for a read with this ticket, whose answer has to wait for a time in the log.
    Reader(Ticket),
    /// A store, for rows there that have expired.
    Sweeper,
    /// A store, for a region there whose replicas should be compared.
    Checker,
}

/// The body of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RequestBody {
    Write(Vec<RawOp>),
    Get(Bytes),
    /// All rows of the region.
    Scan,
    Split(SplitCommand),
    /// Another replica should lead: this one, or the best.
    Transfer(Option<PeerId>),
    /// Other replicas, or other roles.
    Membership(MembershipCommand),
    /// A comparison of all replicas.
    Compare,
}

/// The reply of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClientReply {
    Wrote(ApplyOutcome),
    Got(Option<Bytes>),
    Scanned(Vec<(Bytes, Bytes)>),
    /// Another replica leads.
    Transferred(Peer),
    Refused(Reject),
}

impl ClientReply {
    /// A number that tells this reply from any other.
    pub(crate) fn print(&self) -> u64 {
        let value = |value: &Option<Bytes>| value.as_ref().map_or(1, |value| digest(value));
        match self {
            Self::Wrote(ApplyOutcome::Swapped { succeeded, previous }) => {
                mix(value(previous) ^ u64::from(*succeeded))
            }
            Self::Got(found) => value(found),
            Self::Scanned(rows) => {
                rows.iter().fold(2, |sum, (key, value)| mix(sum ^ digest(key)) ^ digest(value))
            }
            Self::Wrote(_) | Self::Transferred(_) | Self::Refused(_) => {
                digest(format!("{self:?}").as_bytes())
            }
        }
    }
}

/// How far a request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestState {
    /// On its way to the store.
    Sent,
    /// The store has it.
    Waiting,
    Served,
    /// It had no effect and will have none.
    Refused,
    /// The store lost it in a crash; its fate is open.
    Lost,
}

/// A lie in a request, for which it must be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForgedField {
    Version,
    Peer,
    Span,
    /// A split that cannot be made.
    Split,
    /// A change of the replicas that cannot be made.
    Membership,
}

/// More than the versions that the regions of a run get.
const WILD_VERSION: u64 = 1_000_000;
/// No replica has this id.
const WILD_PEER: PeerId = PeerId(1 << 40);

/// One request, from asking to the answer.
#[derive(Clone, Debug)]
pub(crate) struct ClientRequest {
    pub(crate) owner: RequestOwner,
    /// The region that it goes to, in the form that its owner knows.
    pub(crate) route: Descriptor,
    /// The store that it goes to.
    pub(crate) store: usize,
    pub(crate) body: RequestBody,
    /// The column family of all keys in the body.
    pub(crate) family: ColumnFamily,
    /// The term that the region must not have left.
    pub(crate) term: Option<Term>,
    /// Whether a replica that does not lead may serve it.
    pub(crate) follower: bool,
    pub(crate) forged: Option<ForgedField>,
    pub(crate) state: RequestState,
    pub(crate) calls: Vec<OperationId>,
    /// The ends of the values that it writes, and how long after it they come.
    pub(crate) expiries: Vec<(OperationId, u64)>,
    /// The proposal, if it is a write.
    pub(crate) command: Option<Bytes>,
}

impl ClientRequest {
    pub(crate) fn new(
        owner: RequestOwner,
        route: &Descriptor,
        store: usize,
        body: RequestBody,
    ) -> Self {
        let command = match &body {
            // Its store puts in the time.
            RequestBody::Write(ops) if ops.iter().any(RawOp::needs_time) => Some(Bytes::new()),
            RequestBody::Write(ops) => Some(raw::encode(ops)),
            RequestBody::Split(split) => Some(AdminCommand::Split(split.clone()).encode()),
            RequestBody::Membership(change) => {
                Some(AdminCommand::Membership(change.clone()).encode())
            }
            RequestBody::Compare => {
                Some(AdminCommand::ComputeDigest { version: DIGEST_VERSION }.encode())
            }
            RequestBody::Get(_) | RequestBody::Scan | RequestBody::Transfer(_) => None,
        };
        Self {
            owner,
            route: route.clone(),
            store,
            body,
            family: ColumnFamily::Default,
            term: None,
            follower: false,
            forged: None,
            state: RequestState::Sent,
            calls: Vec::new(),
            expiries: Vec::new(),
            command,
        }
    }

    /// The same for keys of a column family.
    pub(crate) fn in_family(self, family: ColumnFamily) -> Self {
        let command = match (&self.body, &self.command) {
            (RequestBody::Write(ops), Some(command)) if !command.is_empty() => {
                Some(raw::encode_in(family, 0, ops))
            }
            (_, command) => command.clone(),
        };
        Self { family, command, ..self }
    }

    /// A write of a store's own at `time_ms`.
    pub(crate) fn of_store(
        owner: RequestOwner,
        (region, store): (&Descriptor, usize),
        family: ColumnFamily,
        time_ms: u64,
        op: RawOp,
    ) -> Self {
        let command = Some(raw::encode_in(family, time_ms, std::slice::from_ref(&op)));
        let body = RequestBody::Write(vec![op]);
        Self { command, family, ..Self::new(owner, region, store, body) }
    }

    /// Puts the time of its store into the command of a client, as the node does.
    pub(crate) fn set_time(&mut self, time_ms: u64) {
        let RequestBody::Write(ops) = &self.body else { return };
        let is_client = matches!(self.owner, RequestOwner::Client(_) | RequestOwner::Auditor);
        let is_swap = matches!(ops[..], [RawOp::CompareAndSwap { .. }]);
        if is_client && (is_swap || ops.iter().any(RawOp::needs_time)) {
            self.command = Some(raw::encode_in(self.family, time_ms, ops));
        }
    }

    /// The values that it writes and that expire, with their times to live in milliseconds.
    pub(crate) fn expiring(&self) -> Vec<(Bytes, Bytes, u64)> {
        let RequestBody::Write(ops) = &self.body else { return Vec::new() };
        let expiring = ops.iter().filter_map(|op| match op {
            RawOp::Put { key, value, ttl_s }
            | RawOp::CompareAndSwap { key, value: Some(value), ttl_s, .. }
                if *ttl_s > 0 =>
            {
                Some((key.clone(), value.clone(), 1_000 * ttl_s))
            }
            _ => None,
        });
        expiring.collect()
    }

    /// The id of the region that it goes to.
    pub(crate) fn region(&self) -> RegionId {
        self.route.id
    }

    /// The event that brings the request to the store.
    pub(crate) fn event(&self, ticket: Ticket) -> Event {
        let (region, precondition) = (self.route.id, self.precondition());
        match (&self.body, &self.command) {
            (RequestBody::Split(split), _) => Event::Split { region, ticket, split: split.clone() },
            (RequestBody::Membership(command), _) => {
                Event::ChangeMembership { region, ticket, command: command.clone() }
            }
            (RequestBody::Compare, _) => {
                Event::CompareReplicas { region, ticket, digest_version: DIGEST_VERSION }
            }
            (RequestBody::Transfer(to), _) => {
                Event::TransferLeader { region, to: *to, ticket: Some(ticket) }
            }
            (_, Some(command)) => {
                Event::Propose { region, ticket, precondition, command: command.clone() }
            }
            (_, None) => Event::Read { region, ticket, precondition, follower: self.follower },
        }
    }

    /// Each register that the request touches and what it does there. `keys` are all that
    /// clients use in the region.
    pub(crate) fn actions(&self, keys: &[Bytes]) -> Vec<(Bytes, RegisterAction)> {
        let ops = match &self.body {
            RequestBody::Get(key) => return vec![(key.clone(), RegisterAction::Get)],
            RequestBody::Scan => {
                return keys.iter().map(|key| (key.clone(), RegisterAction::Get)).collect();
            }
            RequestBody::Split(_)
            | RequestBody::Transfer(_)
            | RequestBody::Membership(_)
            | RequestBody::Compare => return Vec::new(),
            RequestBody::Write(ops) => ops,
        };
        let mut actions = Vec::new();
        for op in ops {
            match op.clone() {
                RawOp::Put { key, value, .. } => actions.push((key, RegisterAction::Put(value))),
                RawOp::Delete { key } => actions.push((key, RegisterAction::Delete)),
                RawOp::CompareAndSwap { key, expected, value, .. } => {
                    actions.push((key, RegisterAction::Swap { expected, value }));
                }
                RawOp::DeleteRange { start, end } => {
                    let inside = |key: &&Bytes| {
                        **key >= start && end.as_ref().is_none_or(|end| **key < *end)
                    };
                    let gone = keys.iter().filter(inside);
                    actions.extend(gone.map(|key| (key.clone(), RegisterAction::Delete)));
                }
                // No client sees a change.
                RawOp::RaiseWatermark | RawOp::RemoveExpired { .. } => {}
            }
        }
        actions
    }

    fn precondition(&self) -> RequestPrecondition {
        let region = &self.route;
        let peer = region.peer_on(layout::id(self.store)).map(|peer| peer.id);
        let mut precondition = RequestPrecondition {
            peer,
            term: self.term,
            version: Some(region.epoch.version),
            conf_version: Some(region.epoch.conf_version),
            span: self.span(),
            needs_room: match &self.body {
                RequestBody::Write(ops) => ops.iter().any(RawOp::needs_room),
                _ => false,
            },
        };
        match self.forged {
            None | Some(ForgedField::Split | ForgedField::Membership) => {}
            // No region comes so far: the next one may be true by now.
            Some(ForgedField::Version) => {
                precondition.version = Some(region.epoch.version + WILD_VERSION)
            }
            // An id that no replica has. Without one the request would claim nothing: the client
            // may not know the replica there.
            Some(ForgedField::Peer) => precondition.peer = Some(WILD_PEER),
            Some(ForgedField::Span) => {
                // The system region has no borders, and no request to it is forged.
                let outside = if region.end.is_empty() { Bytes::new() } else { region.end.clone() };
                precondition.span = Some(KeySpan { first: outside.clone(), last: outside });
            }
        }
        precondition
    }

    fn span(&self) -> Option<KeySpan> {
        let mut keys: Vec<&Bytes> = Vec::new();
        match &self.body {
            // No claim about keys: a scan is clipped to the region.
            RequestBody::Scan
            | RequestBody::Split(_)
            | RequestBody::Transfer(_)
            | RequestBody::Membership(_)
            | RequestBody::Compare => return None,
            RequestBody::Get(key) => keys.push(key),
            RequestBody::Write(ops) => {
                for op in ops {
                    match op {
                        RawOp::Put { key, .. }
                        | RawOp::Delete { key }
                        | RawOp::CompareAndSwap { key, .. } => keys.push(key),
                        RawOp::DeleteRange { start, end } => {
                            keys.push(start);
                            // The region's own end is not in it, and a range may reach up to it.
                            keys.extend(end.iter().filter(|end| **end != self.route.end));
                        }
                        RawOp::RaiseWatermark | RawOp::RemoveExpired { .. } => {}
                    }
                }
            }
        }
        let (first, last) = (keys.iter().min()?, keys.iter().max()?);
        Some(KeySpan { first: (*first).clone(), last: (*last).clone() })
    }
}
