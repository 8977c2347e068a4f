//! Bootstrap: a list of empty stores becomes a cluster, once.
//!
//! Two phases, as in Paxos with a fixed proposer. The first store of the list, the *founder*, asks
//! all listed stores to promise a round; each promises durably if it is no member, bears the listed
//! name, has the same list and settings, and promised no such round yet. When all have promised,
//! the founder draws a random cluster id and sends one plan to all, each of which keeps its rows
//! durably (`Forming`). When all do, the founder becomes a member, and so does each store that
//! learns of a member of its own plan. Until then any round may be repeated; after that an empty
//! directory is a lost one, and is refused.
//!
//! The reasons for rounds and promises: `docs/decisions/0019-one-bootstrap.md`.
//!
//! The machine holds no clock and does no IO: [`Bootstrap::answer`], [`Bootstrap::hear`] and
//! [`Bootstrap::advance`] say what to write, the driver makes that durable, calls
//! [`Bootstrap::written`], and only then sends what depends on it. Every write makes void what was
//! asked before it ([`QuestionToken`]): an answer may be older than a promise.

use flotilla_region::Descriptor;

use crate::founder::Founder;
use crate::messages::{BootstrapRefusal, BootstrapRequest, BootstrapResponse};
use crate::registry::StoreRegistry;
use crate::spec::{BootstrapPlan, ClusterSpec};
use crate::store_identity::{IdentityState, StoreIdentity};

/// A change of the identity that must be durable before anything that follows from it leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BootstrapWrite {
    /// The round is promised.
    Promise(u64),
    /// The rows of the plan replace those of an earlier one.
    Form {
        /// The plan.
        plan: Box<BootstrapPlan>,
        /// The store's place in its list.
        place: usize,
    },
    /// The store is a member of the cluster whose rows it keeps.
    Member,
}

impl BootstrapWrite {
    /// The identity after this write.
    #[must_use]
    pub fn apply(&self, identity: &StoreIdentity) -> StoreIdentity {
        let mut next = identity.clone();
        match self {
            Self::Promise(round) => next.promised = *round,
            Self::Form { plan, place } => {
                next.state = IdentityState::Forming;
                next.cluster_id = plan.cluster_id;
                next.store = ClusterSpec::store_id(*place);
                next.round = plan.round;
                next.promised = identity.promised.max(plan.round);
                next.name.clone_from(&plan.spec.stores[*place].name);
            }
            Self::Member => {
                next.state = IdentityState::Member;
                next.promised = 0;
            }
        }
        next
    }
}

/// The state in which a question was asked. Its answer counts only while nothing was written since.
/// Each write raises one of the three: the identity's state, the round it keeps, the one it
/// promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuestionToken(IdentityState, u64, u64);

/// The state of another listed store, for the operator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
enum PeerNote {
    #[default]
    Silent,
    Answers,
    Differs(String),
}

/// One store's part in the bootstrap.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bootstrap {
    identity: StoreIdentity,
    spec: ClusterSpec,
    regions: Vec<Descriptor>,
    place: usize,
    founder: Option<Founder>,
    /// A plan of this founder that is being written.
    drawn: Option<(u64, u64)>,
    notes: Vec<PeerNote>,
}

impl Bootstrap {
    /// The part of the store at `place` of the list, whose directory holds `identity`. `regions`
    /// are the first ones that it proposes if it is the founder.
    ///
    /// # Panics
    ///
    /// If `place` is not in the list.
    #[must_use]
    pub fn new(
        identity: StoreIdentity,
        spec: ClusterSpec,
        place: usize,
        regions: Vec<Descriptor>,
    ) -> Self {
        assert!(place < spec.stores.len(), "place {place} is not in the list");
        let notes = vec![PeerNote::Silent; spec.stores.len()];
        let (founder, drawn) = (None, None);
        let mut bootstrap = Self { identity, spec, regions, place, founder, drawn, notes };
        bootstrap.ask_anew(0);
        bootstrap
    }

    /// The identity as it is durable.
    #[must_use]
    pub fn identity(&self) -> &StoreIdentity {
        &self.identity
    }

    /// The configuration of this store.
    #[must_use]
    pub fn spec(&self) -> &ClusterSpec {
        &self.spec
    }

    /// Whether the store has become a member.
    #[must_use]
    pub fn is_member(&self) -> bool {
        self.identity.is_member()
    }

    /// Whether this founder waits for stores to keep its plan. If that lasts, it asks anew.
    #[must_use]
    pub fn is_forming_as_founder(&self) -> bool {
        matches!(self.founder, Some(Founder::Forming { .. }))
    }

    /// The token that answers are compared with.
    #[must_use]
    pub fn token(&self) -> QuestionToken {
        let StoreIdentity { state, round, promised, .. } = self.identity;
        QuestionToken(state, round, promised)
    }

    /// The questions to which this store lacks answers, with the places that they go to. A store
    /// that has promised is asked for its state, until all have: a member of an earlier plan may
    /// since have told it that the cluster exists.
    #[must_use]
    pub fn questions(&self) -> Vec<(usize, BootstrapRequest)> {
        let others = (0..self.spec.stores.len()).filter(|place| *place != self.place);
        match &self.founder {
            _ if self.is_member() => Vec::new(),
            Some(Founder::Asking { round, uuids }) => others
                .map(|place| (place, if uuids[place].is_none() { *round } else { 0 }))
                .map(|(place, round)| (place, self.prepare(place, round)))
                .collect(),
            Some(Founder::Forming { plan, formed }) => others
                .filter(|place| !formed.contains(place))
                .map(|place| (place, BootstrapRequest::Form(plan.clone())))
                .collect(),
            None => others.map(|place| (place, self.prepare(place, 0))).collect(),
        }
    }

    /// The announcement of a founder that has become a member, sent once; a store that misses it
    /// asks and gets the same answer.
    #[must_use]
    pub fn announcement(&self) -> BootstrapRequest {
        let StoreIdentity { cluster_id, round, .. } = self.identity;
        BootstrapRequest::Begin { cluster_id, round }
    }

    fn prepare(&self, place: usize, round: u64) -> BootstrapRequest {
        let name = |place: usize| self.spec.stores[place].name.clone();
        let (from, to) = (name(self.place), name(place));
        BootstrapRequest::Prepare { from, to, spec: self.spec.clone(), round }
    }

    /// The answer to a question, which leaves once what is to be written is durable.
    #[must_use]
    pub fn answer(
        &self,
        request: &BootstrapRequest,
    ) -> (Option<BootstrapWrite>, BootstrapResponse) {
        let own = &self.identity;
        match request {
            BootstrapRequest::Prepare { to, spec, round, .. } => {
                let name = &self.spec.stores[self.place].name;
                // The name first: at a wrong address all other differences follow from that one.
                if to != name {
                    return (None, BootstrapResponse::Misdirected { name: name.clone() });
                }
                if let Some(conflict) = self.spec.conflict(spec) {
                    return (None, BootstrapResponse::Differs(conflict));
                }
                let promised = own.promised.max(own.round);
                match *round {
                    0 => (None, BootstrapResponse::Fresh),
                    // Also the same round: two founders may ask with it, and only one may have the
                    // promise.
                    round if round <= promised => (None, BootstrapResponse::Higher { promised }),
                    round => {
                        // Written before the answer leaves: the founder draws a plan on the
                        // strength of it, and a store that forgot it could promise the round again,
                        // to another founder.
                        let response = BootstrapResponse::Promised { uuid: own.uuid, round };
                        (Some(BootstrapWrite::Promise(round)), response)
                    }
                }
            }
            BootstrapRequest::Form(plan) => self.answer_plan(plan),
            BootstrapRequest::Begin { cluster_id, round } => {
                // Not after a promise of a later round: its founder may have drawn another cluster
                // already, which counts on this store.
                let keeps = self.keeps(*cluster_id, *round) && own.promised <= *round;
                match keeps {
                    true => (Some(BootstrapWrite::Member), BootstrapResponse::Begun),
                    false => (None, BootstrapResponse::NotBegun),
                }
            }
        }
    }

    fn answer_plan(&self, plan: &BootstrapPlan) -> (Option<BootstrapWrite>, BootstrapResponse) {
        let BootstrapPlan { cluster_id, round, .. } = *plan;
        let formed = BootstrapResponse::Formed { cluster_id, round };
        if self.keeps(cluster_id, round) {
            return (None, formed);
        }
        let own = &self.identity;
        // By the directory, not by the name: one that was emptied since has none of the promises on
        // which the plan rests.
        let is_for_us = plan.uuids.get(self.place) == Some(&own.uuid)
            && self.spec.conflict(&plan.spec).is_none();
        // A founder writes its own plan itself. After a promise of a later round, that round's
        // founder counts on this store (docs/decisions/0019).
        if !is_for_us || self.place == 0 || round <= own.round || round < own.promised {
            return (None, BootstrapResponse::NotFormed);
        }
        let (plan, place) = (Box::new(plan.clone()), self.place);
        (Some(BootstrapWrite::Form { plan, place }), formed)
    }

    /// Whether the directory holds the rows of this plan.
    fn keeps(&self, cluster_id: u64, round: u64) -> bool {
        let own = &self.identity;
        own.state == IdentityState::Forming && (own.cluster_id, own.round) == (cluster_id, round)
    }

    /// The answer of the store at `place` to a question that was asked with `token`.
    ///
    /// # Errors
    ///
    /// [`BootstrapRefusal`]: the store ends, with these words.
    pub fn hear(
        &mut self,
        place: usize,
        token: QuestionToken,
        response: &BootstrapResponse,
    ) -> Result<Option<BootstrapWrite>, BootstrapRefusal> {
        self.note(place, response);
        // This store has written since it asked, and may have promised another round to another
        // founder: the answer belongs to a round that counts no more.
        if token != self.token() || self.is_member() {
            return Ok(None);
        }
        match response {
            BootstrapResponse::Promised { uuid, round } => {
                if let Some(founder) = &mut self.founder {
                    founder.promised(place, *uuid, *round);
                }
            }
            BootstrapResponse::Higher { promised } => self.ask_anew(*promised),
            BootstrapResponse::Formed { cluster_id, round } => {
                if let Some(founder) = &mut self.founder {
                    founder.formed(place, *cluster_id, *round);
                }
            }
            // The store was emptied, or has promised another round: only new promises tell which.
            BootstrapResponse::NotFormed => self.ask_anew(0),
            BootstrapResponse::Member { cluster_id, round, knows_asker } => {
                if self.keeps(*cluster_id, *round) {
                    return Ok(Some(BootstrapWrite::Member));
                }
                return Err(self.refuse(place, *cluster_id, *knows_asker));
            }
            BootstrapResponse::Fresh
            | BootstrapResponse::Differs(_)
            | BootstrapResponse::Misdirected { .. }
            | BootstrapResponse::Begun
            | BootstrapResponse::NotBegun => {}
        }
        Ok(None)
    }

    fn refuse(&self, place: usize, cluster_id: u64, knows_asker: bool) -> BootstrapRefusal {
        let name = self.spec.stores[self.place].name.clone();
        let by = self.spec.stores[place].to_string();
        match knows_asker {
            true => BootstrapRefusal::DataLost { name, cluster_id, by },
            false => BootstrapRefusal::Foreign { name, cluster_id, by },
        }
    }

    /// The next write of a founder, if all have answered. `cluster_id` is random.
    #[must_use]
    pub fn advance(&mut self, cluster_id: u64) -> Option<BootstrapWrite> {
        let founder = self.founder.as_ref().filter(|_| !self.is_member())?;
        if founder.is_formed(&self.identity) {
            return Some(BootstrapWrite::Member);
        }
        if !founder.is_promised() {
            return None;
        }
        let wanted = self.spec.cluster_id;
        // Random unless it is wanted: two clusters that begin from one list must not take each
        // other's messages.
        let cluster_id = if wanted == 0 { cluster_id } else { wanted };
        let Some(mut plan) = founder.draw(&self.identity, cluster_id, &self.spec) else {
            self.ask_anew(0);
            return None;
        };
        plan.regions.clone_from(&self.regions);
        self.drawn = Some((plan.cluster_id, plan.round));
        Some(BootstrapWrite::Form { plan: Box::new(plan), place: self.place })
    }

    /// The write is durable.
    pub fn written(&mut self, write: &BootstrapWrite) {
        self.identity = write.apply(&self.identity);
        match write {
            BootstrapWrite::Form { plan, .. }
                if self.drawn == Some((plan.cluster_id, plan.round)) =>
            {
                let formed = std::collections::BTreeSet::new();
                self.founder = Some(Founder::Forming { plan: plan.clone(), formed });
            }
            BootstrapWrite::Member => self.founder = None,
            BootstrapWrite::Promise(_) | BootstrapWrite::Form { .. } => self.ask_anew(0),
        }
        self.drawn = None;
    }

    /// The founder goes back to asking, above `above`: it was refused, or not answered for long.
    pub fn ask_anew(&mut self, above: u64) {
        let is_founder = self.place == 0 && !self.is_member();
        self.founder =
            is_founder.then(|| Founder::ask(&self.identity, above, self.spec.stores.len()));
    }

    /// The store at `place` did not answer.
    pub fn note_silence(&mut self, place: usize) {
        self.notes[place] = PeerNote::Silent;
    }

    fn note(&mut self, place: usize, response: &BootstrapResponse) {
        self.notes[place] = match response {
            BootstrapResponse::Differs(conflict) => PeerNote::Differs(format!(
                "has {} = {}, and this store has {}: give all listed stores the same",
                conflict.name, conflict.ours, conflict.theirs
            )),
            BootstrapResponse::Misdirected { name } => PeerNote::Differs(format!(
                "says that its name is {name}: compare --initial-cluster with its --name"
            )),
            _ => PeerNote::Answers,
        };
    }

    /// The reason for waiting, a line for the operator.
    #[must_use]
    pub fn waiting(&self) -> String {
        let listed = self.spec.stores.iter().zip(&self.notes).enumerate();
        let others = listed.filter(|(place, _)| *place != self.place);
        let lines: Vec<String> = others
            .filter_map(|(_, (store, note))| match note {
                PeerNote::Silent => Some(format!("{store} does not answer")),
                PeerNote::Differs(what) => Some(format!("{store} {what}")),
                PeerNote::Answers => None,
            })
            .collect();
        if !lines.is_empty() {
            return lines.join("; ");
        }
        match self.place {
            0 => "the other stores to agree".to_owned(),
            _ => format!("{} to found the cluster", self.spec.stores[0]),
        }
    }
}

/// The answer of a member to a question of the bootstrap.
#[must_use]
pub fn member_answer(
    own: &StoreIdentity,
    registry: &StoreRegistry,
    request: &BootstrapRequest,
) -> BootstrapResponse {
    let StoreIdentity { cluster_id, round, ref name, .. } = *own;
    match request {
        BootstrapRequest::Prepare { to, .. } if to != name => {
            BootstrapResponse::Misdirected { name: name.clone() }
        }
        BootstrapRequest::Prepare { from, .. } => {
            let knows_asker = registry.named(from).is_some();
            BootstrapResponse::Member { cluster_id, round, knows_asker }
        }
        // The founder asks anew then, and learns from the answer to that whether its own plan is
        // the cluster.
        BootstrapRequest::Form(_) => BootstrapResponse::NotFormed,
        BootstrapRequest::Begin { cluster_id: of, round: at } => {
            match (*of, *at) == (cluster_id, round) {
                true => BootstrapResponse::Begun,
                false => BootstrapResponse::NotBegun,
            }
        }
    }
}
