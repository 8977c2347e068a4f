//! Join: how a store with an empty directory becomes a member of a running cluster.
//!
//! The store asks the addresses that it was given, one after the other, which cluster they are of
//! and which store leads placement; there it registers and gets an id. It is a member once its
//! identity and its copies of registry and settings are durable, in one root; before that it says
//! nothing as a store. Any step may be repeated: the directory's number is what is registered.
//!
//! A store that replaces another one goes the same way. The leader may not let it yet, and without
//! a quorum there is no leader: both may pass by themselves, so it asks again for a while before it
//! gives up. A store that only joins waits for as long as it takes.
//!
//! The machine holds no clock and does no IO: [`Join::question`] is what to ask, [`Join::hear`]
//! takes the answer and says what to do.

use flotilla_region::{StoreId, Time};

use crate::registration::RegisterRequest;
use crate::registry::StoreRegistry;
use crate::settings::{ClusterSettings, GivenSettings};
use crate::store_identity::{IdentityState, StoreIdentity, StoreUuid};

/// A replacement is given up if the cluster has no quorum for so long: an election takes less.
const NO_QUORUM_MS: u64 = 10_000;
/// The same if placement does not let it: both waits that only need time end before.
const NOT_NOW_MS: u64 = 25_000;

/// The flags of a store that is to join.
#[derive(Clone, Debug)]
pub struct JoinTarget {
    /// Addresses of members, at least one.
    pub contacts: Vec<String>,
    /// The cluster that is meant; 0 if any.
    pub cluster_id: u64,
    /// The settings of the cluster that are given.
    pub given: GivenSettings,
    /// The words that are registered.
    pub request: RegisterRequest,
}

/// A question of a store that joins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JoinQuestion {
    /// Of which cluster is the store at this address, and which store leads placement?
    Locate,
    /// The store that leads placement is asked for an id in this cluster.
    Register {
        /// The cluster.
        cluster_id: u64,
    },
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JoinAnswer {
    /// A member answers.
    Member {
        /// Its cluster.
        cluster_id: u64,
        /// Its directory.
        uuid: StoreUuid,
        /// The settings of the cluster.
        settings: ClusterSettings,
        /// Where the leader of placement is, if it knows one.
        leader: Option<String>,
        /// How many stores it is connected to.
        reach: StoreReach,
    },
    /// A store answers that has no cluster yet.
    NoCluster {
        /// Its directory.
        uuid: StoreUuid,
        /// The cause of its waiting.
        waiting: String,
    },
    /// The answer is not that of a store that knows of joining, as these words say.
    NoStore(String),
    /// No answer, with the cause.
    Silent(String),
    /// The store is registered.
    Registered {
        /// Its id.
        store: StoreId,
        /// The registry that has it.
        registry: Box<StoreRegistry>,
        /// The settings of the cluster.
        settings: ClusterSettings,
    },
    /// The store is not taken, as these words say.
    Refused(String),
    /// The store is not taken now, as these words say.
    NotNow(String),
}

/// How much of its cluster a member reaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreReach {
    /// The stores that take part.
    pub stores: u32,
    /// Those that it is connected to, and itself.
    pub connected: u32,
}

impl StoreReach {
    fn has_majority(self) -> bool {
        2 * u64::from(self.connected) > u64::from(self.stores)
    }

    fn gone(self) -> u32 {
        self.stores.saturating_sub(self.connected)
    }
}

/// The step after an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JoinStep {
    /// Ask the next question at once.
    Ask,
    /// All addresses were asked in vain: ask the next question after a pause.
    Pause,
    /// Make this durable; the store is a member then.
    Write(Box<JoinWrite>),
}

/// The rows of a store that has joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinWrite {
    /// The cluster.
    pub cluster_id: u64,
    /// The store's id.
    pub store: StoreId,
    /// The store's name.
    pub name: String,
    /// The store's copy of the registry.
    pub registry: StoreRegistry,
    /// The store's copy of the settings.
    pub settings: ClusterSettings,
}

impl JoinWrite {
    /// The identity after this write.
    #[must_use]
    pub fn apply(&self, identity: &StoreIdentity) -> StoreIdentity {
        StoreIdentity {
            state: IdentityState::Member,
            cluster_id: self.cluster_id,
            store: self.store,
            name: self.name.clone(),
            // It is a member by no plan: no round of a bootstrap is its own.
            round: 0,
            promised: 0,
            ..identity.clone()
        }
    }
}

/// Why a store does not join: nothing that happens later makes it right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinRefusal {
    /// The directory holds a plan that may have become a cluster.
    #[error(
        "the data directory keeps the plan of cluster {cluster_id}, in which it is store {store}, \
         {name}: start it with --initial-cluster as before, or join with an empty directory"
    )]
    Forming {
        /// The plan's cluster.
        cluster_id: u64,
        /// The store in it.
        store: StoreId,
        /// Its name there.
        name: String,
    },
    /// An address is the store's own.
    #[error("--join names {0}, which is this store itself: name members of the running cluster")]
    Itself(String),
    /// The cluster is not the one that is meant.
    #[error(
        "{by} is a member of cluster {found}, and cluster {wanted} is meant: correct --join or \
         --cluster-id"
    )]
    OtherCluster {
        /// The address that answered.
        by: String,
        /// Its cluster.
        found: u64,
        /// The cluster that is meant, or that another address named.
        wanted: u64,
    },
    /// A value that is given differs from the cluster's.
    #[error(
        "{name} = {given} is given, but the cluster has {has}, as {by} says: take it out of the \
         flags and files of this store"
    )]
    Setting {
        /// The setting.
        name: String,
        /// The value that is given.
        given: String,
        /// The value of the cluster.
        has: String,
        /// The member that said so.
        by: String,
    },
    /// The addresses are of stores that have not begun a cluster.
    #[error(
        "{by} has no cluster yet, it waits for {waiting}: a store joins a running cluster; begin \
         that one first, or list this store in --initial-cluster on all of them"
    )]
    NoCluster {
        /// The address that answered.
        by: String,
        /// The cause of its waiting.
        waiting: String,
    },
    /// Another program than a store listens at the address.
    #[error("{by} answers, but not as a store that others can join: {why}: correct --join")]
    NoStore {
        /// The address that answered.
        by: String,
        /// Its words.
        why: String,
    },
    /// Too few stores run, so there is no leader of placement who could replace one.
    #[error(
        "no quorum: {} of {} stores are gone; replace needs one: start the stores that have their \
         data; {by} says so",
        .reach.gone(), .reach.stores
    )]
    NoQuorum {
        /// The address that answered.
        by: String,
        /// The stores that it reaches.
        reach: StoreReach,
    },
    /// The leader of placement does not take the store.
    #[error("cluster {cluster_id} does not take this store, as {by} says: {why}")]
    Refused {
        /// The cluster.
        cluster_id: u64,
        /// The address that answered.
        by: String,
        /// Its words.
        why: String,
    },
}

/// The last answer of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ContactNote {
    Unasked,
    Silent(String),
    NoCluster(String),
    NoStore(String),
    NoLeader(StoreReach),
    LeaderSilent(String, String, StoreReach),
    NotNow(String, String),
}

/// Why a store that replaces another one does not get on.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stall {
    NoQuorum,
    NotNow,
}

/// One store's way into a cluster.
#[derive(Clone, Debug)]
pub struct Join {
    target: JoinTarget,
    notes: Vec<ContactNote>,
    /// The contact that is asked next.
    place: usize,
    /// The cluster, once a member has named it.
    cluster_id: Option<u64>,
    /// Where to register, as the contact said.
    leader: Option<String>,
    /// How many stores that contact reaches.
    reach: StoreReach,
    /// Since when a replacement does not get on, and why.
    stalled: Option<(Stall, Time)>,
}

impl Join {
    /// The way of the store whose directory holds `identity`.
    ///
    /// # Errors
    ///
    /// [`JoinRefusal::Forming`].
    ///
    /// # Panics
    ///
    /// If the directory is a member's, or there are no contacts: both are looked at before.
    pub fn new(identity: &StoreIdentity, target: JoinTarget) -> Result<Self, JoinRefusal> {
        assert!(!target.contacts.is_empty(), "a store joins somewhere");
        assert!(!identity.is_member(), "a member never joins");
        if identity.state == IdentityState::Forming {
            let StoreIdentity { cluster_id, store, ref name, .. } = *identity;
            return Err(JoinRefusal::Forming { cluster_id, store, name: name.clone() });
        }
        let notes = vec![ContactNote::Unasked; target.contacts.len()];
        Ok(Self {
            target,
            notes,
            place: 0,
            cluster_id: None,
            leader: None,
            reach: StoreReach::default(),
            stalled: None,
        })
    }

    /// The address to ask next, and the question.
    #[must_use]
    pub fn question(&self) -> (&str, JoinQuestion) {
        match (&self.leader, self.cluster_id) {
            (Some(leader), Some(cluster_id)) => (leader, JoinQuestion::Register { cluster_id }),
            _ => (&self.target.contacts[self.place], JoinQuestion::Locate),
        }
    }

    /// The words that are registered.
    #[must_use]
    pub fn request(&self) -> &RegisterRequest {
        &self.target.request
    }

    /// The answer to the question.
    ///
    /// # Errors
    ///
    /// [`JoinRefusal`]: the store ends, with these words.
    pub fn hear(&mut self, now: Time, answer: JoinAnswer) -> Result<JoinStep, JoinRefusal> {
        let asked = self.question().0.to_owned();
        match self.leader.take() {
            Some(_) => self.hear_leader(now, asked, answer),
            None => self.hear_contact(now, asked, answer),
        }
    }

    fn hear_contact(
        &mut self,
        now: Time,
        by: String,
        answer: JoinAnswer,
    ) -> Result<JoinStep, JoinRefusal> {
        let note = match answer {
            JoinAnswer::Member { uuid, .. } | JoinAnswer::NoCluster { uuid, .. }
                if uuid == self.target.request.uuid =>
            {
                return Err(JoinRefusal::Itself(by));
            }
            JoinAnswer::Member { cluster_id, settings, leader, reach, .. } => {
                self.check_member(&by, cluster_id, &settings)?;
                self.cluster_id = Some(cluster_id);
                self.reach = reach;
                if leader.is_some() {
                    self.leader = leader;
                    return Ok(JoinStep::Ask);
                }
                ContactNote::NoLeader(reach)
            }
            JoinAnswer::NoCluster { waiting, .. } => ContactNote::NoCluster(waiting),
            JoinAnswer::NoStore(why) => ContactNote::NoStore(why),
            JoinAnswer::Silent(why) => ContactNote::Silent(why),
            JoinAnswer::Registered { .. } | JoinAnswer::Refused(_) | JoinAnswer::NotNow(_) => {
                ContactNote::NoStore("it answers another question".to_owned())
            }
        };
        self.next(now, note)
    }

    fn check_member(
        &self,
        by: &str,
        found: u64,
        settings: &ClusterSettings,
    ) -> Result<(), JoinRefusal> {
        let by = by.to_owned();
        let meant = (self.target.cluster_id != 0).then_some(self.target.cluster_id);
        if let Some(wanted) = meant.or(self.cluster_id).filter(|wanted| *wanted != found) {
            return Err(JoinRefusal::OtherCluster { by, found, wanted });
        }
        // Before it registers: a store that is refused at its start would stay in the registry.
        match settings.conflict_with_given(&self.target.given) {
            Some(conflict) => Err(JoinRefusal::Setting {
                name: conflict.name,
                given: conflict.theirs,
                has: conflict.ours,
                by,
            }),
            None => Ok(()),
        }
    }

    fn hear_leader(
        &mut self,
        now: Time,
        by: String,
        answer: JoinAnswer,
    ) -> Result<JoinStep, JoinRefusal> {
        let cluster_id = self.cluster_id.expect("a leader is known of a cluster");
        let RegisterRequest { uuid, name, .. } = &self.target.request;
        let why = match answer {
            JoinAnswer::Registered { store, registry, settings } => {
                let record = registry.store(store);
                let is_here =
                    record.is_some_and(|record| record.uuid == *uuid && record.name == *name);
                if is_here {
                    let (name, registry) = (name.clone(), *registry);
                    let write = JoinWrite { cluster_id, store, name, registry, settings };
                    return Ok(JoinStep::Write(Box::new(write)));
                }
                "its registry does not have this store".to_owned()
            }
            JoinAnswer::Refused(why) => return Err(JoinRefusal::Refused { cluster_id, by, why }),
            JoinAnswer::NotNow(why) => return self.next(now, ContactNote::NotNow(by, why)),
            JoinAnswer::Silent(why) | JoinAnswer::NoStore(why) => why,
            JoinAnswer::NoCluster { waiting, .. } => waiting,
            JoinAnswer::Member { .. } => "it answers another question".to_owned(),
        };
        // Another store may lead by now: the next contact says which.
        self.next(now, ContactNote::LeaderSilent(by, why, self.reach))
    }

    /// Goes on to the next contact.
    fn next(&mut self, now: Time, note: ContactNote) -> Result<JoinStep, JoinRefusal> {
        self.notes[self.place] = note;
        self.place += 1;
        if self.place < self.target.contacts.len() {
            return Ok(JoinStep::Ask);
        }
        self.place = 0;
        // A single member is enough; only when none has answered the others decide.
        if self.cluster_id.is_none() {
            self.refuse()?;
        }
        if self.target.request.is_replacement {
            self.give_up(now)?;
        }
        Ok(JoinStep::Pause)
    }

    /// The addresses were asked, and the store is not replaced. An operator has to know that it
    /// will not be, for as long as nothing else is done.
    fn give_up(&mut self, now: Time) -> Result<(), JoinRefusal> {
        let stall = self.notes.iter().filter_map(ContactNote::stall).next_back();
        let Some(stall) = stall else {
            self.stalled = None;
            return Ok(());
        };
        let since = self.stalled.take().filter(|(before, _)| *before == stall);
        let (_, since) = self.stalled.insert(since.unwrap_or((stall, now)));
        let since = *since;
        for (contact, note) in self.target.contacts.iter().zip(&self.notes) {
            match note {
                ContactNote::NotNow(by, why) if now >= since.after_ms(NOT_NOW_MS) => {
                    let cluster_id = self.cluster_id.expect("a leader is known of a cluster");
                    let (by, why) = (by.clone(), why.clone());
                    return Err(JoinRefusal::Refused { cluster_id, by, why });
                }
                ContactNote::NoLeader(reach) | ContactNote::LeaderSilent(_, _, reach)
                    if !reach.has_majority() && now >= since.after_ms(NO_QUORUM_MS) =>
                {
                    return Err(JoinRefusal::NoQuorum { by: contact.clone(), reach: *reach });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The addresses were asked, and no member has answered. One that is silent may be a member,
    /// but nothing that it says can make the others right.
    fn refuse(&self) -> Result<(), JoinRefusal> {
        for (by, note) in self.target.contacts.iter().zip(&self.notes) {
            let by = by.clone();
            match note {
                ContactNote::NoCluster(waiting) => {
                    return Err(JoinRefusal::NoCluster { by, waiting: waiting.clone() });
                }
                ContactNote::NoStore(why) => {
                    return Err(JoinRefusal::NoStore { by, why: why.clone() });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The reason for waiting, a line for the operator.
    #[must_use]
    pub fn waiting(&self) -> String {
        let lines = self.target.contacts.iter().zip(&self.notes).filter_map(|(contact, note)| {
            Some(match note {
                ContactNote::Unasked => return None,
                ContactNote::Silent(why) => format!("{contact} does not answer ({why})"),
                ContactNote::NoCluster(_) => format!("{contact} has no cluster yet"),
                ContactNote::NoStore(why) => format!("{contact} is no store to join ({why})"),
                ContactNote::NoLeader(reach) => {
                    let quorum = self.quorum_words(*reach);
                    format!("{contact} knows no leader of placement{quorum}")
                }
                ContactNote::LeaderSilent(leader, why, reach) => {
                    let quorum = self.quorum_words(*reach);
                    format!(
                        "{leader}, which leads placement as {contact} says, does not \
                         ({why}){quorum}"
                    )
                }
                ContactNote::NotNow(leader, why) => {
                    format!("{leader}, which leads placement: {why}")
                }
            })
        });
        let lines: Vec<String> = lines.collect();
        match lines.is_empty() {
            true => "an answer".to_owned(),
            false => lines.join("; "),
        }
    }

    fn quorum_words(&self, reach: StoreReach) -> String {
        if reach.has_majority() {
            return String::new();
        }
        let needs = if self.target.request.is_replacement { "; replace needs one" } else { "" };
        format!(" (no quorum: {} of {} stores are gone{needs})", reach.gone(), reach.stores)
    }
}

impl ContactNote {
    /// The reason for which a replacement does not get on, if the note is one.
    fn stall(&self) -> Option<Stall> {
        match self {
            Self::NotNow(..) => Some(Stall::NotNow),
            Self::NoLeader(reach) | Self::LeaderSilent(_, _, reach) if !reach.has_majority() => {
                Some(Stall::NoQuorum)
            }
            _ => None,
        }
    }
}
