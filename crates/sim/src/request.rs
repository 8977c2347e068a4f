//! What clients ask of stores, and what stores tell them.

use bytes::Bytes;
use flotilla_region::command::{self, Op};
use flotilla_region::{Descriptor, Event, Guard, KeySpan, RegionId, Reject, Ticket};
use flotilla_store::Outcome;

use crate::checker::{Action, OperationId};
use crate::layout;
use crate::trace::{digest, mix};

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A client of the workload.
    Client(usize),
    /// The timestamp oracle on a store.
    Oracle(usize),
    /// The run itself, at its end.
    Auditor,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    Write(Vec<Op>),
    Get(Bytes),
    Scan,
}

/// What is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Wrote(Outcome),
    Got(Option<Bytes>),
    Scanned(Vec<(Bytes, Bytes)>),
    Refused(Reject),
}

impl Reply {
    /// A number that tells this reply from any other.
    pub(crate) fn print(&self) -> u64 {
        let value = |value: &Option<Bytes>| value.as_ref().map_or(1, |value| digest(value));
        match self {
            Self::Wrote(Outcome::Swapped { succeeded, previous }) => {
                mix(value(previous) ^ u64::from(*succeeded))
            }
            Self::Got(found) => value(found),
            Self::Scanned(rows) => {
                rows.iter().fold(2, |sum, (key, value)| mix(sum ^ digest(key)) ^ digest(value))
            }
            Self::Wrote(_) | Self::Refused(_) => digest(format!("{self:?}").as_bytes()),
        }
    }
}

/// How far a request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// On its way to the store.
    Sent,
    /// The store has it.
    Waiting,
    Served,
    /// It had no effect and will have none.
    Refused,
    /// The store lost it in a crash; nobody knows what became of it.
    Lost,
}

/// A lie in a request, for which it must be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    Version,
    Peer,
    Span,
}

/// One request, from asking to the answer.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) owner: Owner,
    pub(crate) region: RegionId,
    /// The store that it goes to.
    pub(crate) store: usize,
    pub(crate) ask: Ask,
    /// Whether a replica that does not lead may serve it.
    pub(crate) follower: bool,
    pub(crate) lie: Option<Lie>,
    pub(crate) fate: Fate,
    pub(crate) calls: Vec<OperationId>,
    /// What was proposed, if it is a write.
    pub(crate) command: Option<Bytes>,
}

impl Request {
    pub(crate) fn new(owner: Owner, region: RegionId, store: usize, ask: Ask) -> Self {
        let command = match &ask {
            Ask::Write(ops) => Some(command::encode(ops)),
            Ask::Get(_) | Ask::Scan => None,
        };
        Self {
            owner,
            region,
            store,
            ask,
            follower: false,
            lie: None,
            fate: Fate::Sent,
            calls: Vec::new(),
            command,
        }
    }

    /// The event that brings the request to the store.
    pub(crate) fn event(&self, ticket: Ticket, region: &Descriptor) -> Event {
        let guard = self.guard(region);
        match &self.command {
            Some(command) => {
                Event::Propose { region: self.region, ticket, guard, command: command.clone() }
            }
            None => Event::Read { region: self.region, ticket, guard, follower: self.follower },
        }
    }

    /// Each register that the request touches and what it does there. `keys` are all of the region.
    pub(crate) fn actions(&self, keys: &[Bytes]) -> Vec<(Bytes, Action)> {
        let ops = match &self.ask {
            Ask::Get(key) => return vec![(key.clone(), Action::Get)],
            Ask::Scan => return keys.iter().map(|key| (key.clone(), Action::Get)).collect(),
            Ask::Write(ops) => ops,
        };
        let mut actions = Vec::new();
        for op in ops {
            match op.clone() {
                Op::Put { key, value } => actions.push((key, Action::Put(value))),
                Op::Delete { key } => actions.push((key, Action::Delete)),
                Op::CompareAndSwap { key, expected, value } => {
                    actions.push((key, Action::Swap { expected, value }));
                }
                Op::DeleteRange { start, end } => {
                    let inside = |key: &&Bytes| {
                        **key >= start && end.as_ref().is_none_or(|end| **key < *end)
                    };
                    let gone = keys.iter().filter(inside);
                    actions.extend(gone.map(|key| (key.clone(), Action::Delete)));
                }
            }
        }
        actions
    }

    fn guard(&self, region: &Descriptor) -> Guard {
        let peer = region.peer_on(layout::id(self.store)).map(|peer| peer.id);
        let mut guard = Guard {
            peer,
            term: None,
            version: Some(region.epoch.version),
            conf_version: Some(region.epoch.conf_version),
            span: self.span(),
        };
        match self.lie {
            None => {}
            Some(Lie::Version) => guard.version = Some(region.epoch.version + 1),
            Some(Lie::Peer) => guard.peer = peer.map(|id| flotilla_region::PeerId(id.0 + 50)),
            Some(Lie::Span) => {
                // The system region has no borders, and nobody lies to it.
                let outside = if region.end.is_empty() { Bytes::new() } else { region.end.clone() };
                guard.span = Some(KeySpan { first: outside.clone(), last: outside });
            }
        }
        guard
    }

    fn span(&self) -> Option<KeySpan> {
        let mut keys: Vec<&Bytes> = Vec::new();
        match &self.ask {
            Ask::Scan => return None,
            Ask::Get(key) => keys.push(key),
            Ask::Write(ops) => {
                for op in ops {
                    match op {
                        Op::Put { key, .. }
                        | Op::Delete { key }
                        | Op::CompareAndSwap { key, .. } => keys.push(key),
                        Op::DeleteRange { start, end } => {
                            keys.push(start);
                            keys.extend(end);
                        }
                    }
                }
            }
        }
        let (first, last) = (keys.iter().min()?, keys.iter().max()?);
        Some(KeySpan { first: (*first).clone(), last: (*last).clone() })
    }
}
