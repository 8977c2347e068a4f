//! Handshakes of members before the first raft message of a start.
//!
//! Each store remembers of each other one the last start that it took messages of, durably, and
//! how far that store's log was synced when it was last heard. A greeting says so. The greeted
//! store looks for it in its own history: a directory that does not remember the start, or whose
//! log ends lower, is an older copy of the disk, and ends. Because only the greeted store can
//! look, a *new* start is accepted only after it has confirmed what is known of the former ones;
//! else the copy's starts would overwrite the memory that convicts it.
//!
//! Greetings also carry the registry to a store whose copy is older. A store that joined while
//! another was down shows so that it is a member, without placement: its vote may be the one by
//! which placement gets a leader.

use std::collections::BTreeMap;

use flotilla_region::StoreId;

use crate::FEATURE_LEVEL;
use crate::handshake_refusal::HandshakeRefusal;
use crate::registry::StoreRegistry;
use crate::settings::ClusterSettings;
use crate::store_identity::{MemberId, StoreRun, StoreUuid};

/// The last start of a store that another one took messages of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KnownRun {
    /// The start.
    pub run: StoreRun,
    /// The greatest log position that was heard to be synced in it; 0 if none was.
    pub log_end: u64,
}

/// The starts of a directory, as it remembers them itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunHistory {
    /// By count of starts: the nonce, and where the log ended when that start opened it.
    pub runs: BTreeMap<u64, (u64, u64)>,
}

impl RunHistory {
    /// Why the directory cannot be the one that `known` was heard of; `log_end` is where its log
    /// is synced now.
    fn forgot(&self, known: &KnownRun, log_end: u64) -> Option<String> {
        let StoreRun { starts, nonce } = known.run;
        // Starts before the first that is remembered are forgotten by design. A directory without
        // any lost them.
        if self.runs.keys().next().is_some_and(|first| starts < *first) {
            return None;
        }
        let last = self.runs.keys().next_back().copied().unwrap_or_default();
        // The nonce as well: a copy of the directory counts its starts like this one.
        let remembered = self.runs.get(&starts).is_some_and(|(own, _)| *own == nonce);
        if !remembered {
            return Some(format!("{} was heard, and this directory has {last} starts", known.run));
        }
        // The next start has noted where the log of this one ended; the current start's log ends
        // where it is synced now.
        let ended = self.runs.get(&(starts + 1)).map_or(log_end, |(_, log_end)| *log_end);
        (ended < known.log_end).then(|| {
            format!(
                "its log was heard to be synced up to {} in {}, and here it ends at {ended}",
                known.log_end, known.run
            )
        })
    }
}

/// The greeting of one member to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreHello {
    /// The sender.
    pub from: MemberId,
    /// The store that is meant.
    pub to: StoreId,
    /// The sender's name.
    pub name: String,
    /// Where the sender is to be reached.
    pub address: String,
    /// The sender's directory.
    pub uuid: StoreUuid,
    /// The sender's start.
    pub run: StoreRun,
    /// The sender's feature level.
    pub level: u64,
    /// The settings of the cluster as the sender has them.
    pub settings: ClusterSettings,
    /// The directory that the sender's registry has for the receiver, if it has the receiver.
    pub expected_uuid: Option<StoreUuid>,
    /// The start of the receiver that the sender knows.
    pub known: Option<KnownRun>,
    /// The start of the sender that the receiver knows, if the sender has found it in its own
    /// history: the whole record, since the receiver may have learned of a longer log meanwhile.
    pub confirmed: Option<KnownRun>,
    /// The version of the sender's registry.
    pub registry_version: u64,
    /// That registry, if the receiver is known to have an older one.
    pub registry: Option<Box<StoreRegistry>>,
}

/// A start of another store that must be remembered before its messages are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerWrite {
    /// The other store.
    pub store: StoreId,
    /// Its start.
    pub run: StoreRun,
    /// Where it was to be reached then. The registry's copy may be older, and two stores that
    /// both know only each other's old address would never meet.
    pub address: String,
}

/// The decision about a greeting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HelloDecision {
    /// Messages of this start are taken, once the write is durable and [`Handshake::accept`] was
    /// called.
    Accept(Option<PeerWrite>),
    /// The sender must first find in its history what is known of it here, or show the registry
    /// that has it: answer with a greeting.
    Unconfirmed,
    /// The greeting has a later registry: keep it, call [`Handshake::learn_registry`], and decide
    /// about the same greeting again.
    Learn(Box<StoreRegistry>),
    /// The greeting has later settings: keep them durably, put them into force in all regions, call
    /// [`Handshake::learn_settings`], and decide about the same greeting again. Before its messages
    /// are taken: a leader must not count on the answers of a store that goes by another tick
    /// (`docs/decisions/0058-settings-change-online.md`).
    TakeUp(ClusterSettings),
    /// Its messages are not taken.
    Refuse(HandshakeRefusal),
    /// This store itself is the wrong one and must end, with these words.
    Stop(String),
}

/// The knowledge of one other store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PeerKnowledge {
    known: Option<KnownRun>,
    /// The start whose messages are taken.
    accepted: Option<(StoreUuid, StoreRun)>,
    /// The start of this store that it knows, found in the own history.
    confirmed: Option<KnownRun>,
    /// The address that it gave in its latest start.
    address: Option<(u64, String)>,
    /// The version of its registry when it last said so.
    registry_version: Option<u64>,
}

/// One member's side of all handshakes.
#[derive(Clone, Debug)]
pub struct Handshake {
    own: MemberId,
    name: String,
    address: String,
    uuid: StoreUuid,
    run: StoreRun,
    settings: ClusterSettings,
    history: RunHistory,
    registry: StoreRegistry,
    /// The operator confirmed this cluster of one store, even if members of another one dial it.
    is_meant_alone: bool,
    peers: BTreeMap<StoreId, PeerKnowledge>,
}

impl Handshake {
    /// The side of store `own`, with what its directory holds: its history and, of each other
    /// store, the last start that it took messages of.
    #[must_use]
    pub fn new(
        greeting: StoreHello,
        history: RunHistory,
        registry: StoreRegistry,
        known: Vec<PeerWrite>,
        is_meant_alone: bool,
    ) -> Self {
        let StoreHello { from: own, name, address, uuid, run, settings, .. } = greeting;
        let knowledge = |known: PeerWrite| {
            let PeerWrite { store, run, address } = known;
            let address = Some((run.starts, address));
            // How far the other's log was synced is kept in memory only: it changes with every
            // frame (docs/decisions/0019-one-bootstrap.md).
            let known = Some(KnownRun { run, log_end: 0 });
            (store, PeerKnowledge { known, address, ..PeerKnowledge::default() })
        };
        // The own address is kept in the same rows as those of the others.
        let others = known.into_iter().filter(|known| known.store != own.store);
        let peers = others.map(knowledge).collect();
        Self { own, name, address, uuid, run, settings, history, registry, is_meant_alone, peers }
    }

    /// A greeting to no store in particular, from which [`Handshake::new`] takes this store's
    /// identity.
    #[must_use]
    pub fn introduction(
        own: MemberId,
        name: &str,
        address: &str,
        (uuid, run): (StoreUuid, StoreRun),
        settings: ClusterSettings,
    ) -> StoreHello {
        StoreHello {
            from: own,
            to: StoreId(0),
            name: name.to_owned(),
            address: address.to_owned(),
            uuid,
            run,
            level: FEATURE_LEVEL,
            settings,
            expected_uuid: None,
            known: None,
            confirmed: None,
            registry_version: 0,
            registry: None,
        }
    }

    /// The greeting of this store to `to`.
    #[must_use]
    pub fn greet(&self, to: StoreId) -> StoreHello {
        let peer = self.peers.get(&to);
        let identity = (self.uuid, self.run);
        let version = self.registry.version;
        let is_behind =
            peer.and_then(|peer| peer.registry_version).is_some_and(|theirs| theirs < version);
        StoreHello {
            to,
            expected_uuid: self.registry.store(to).map(|store| store.uuid),
            known: peer.and_then(|peer| peer.known),
            confirmed: peer.and_then(|peer| peer.confirmed),
            registry_version: version,
            registry: is_behind.then(|| Box::new(self.registry.clone())),
            ..Self::introduction(self.own, &self.name, &self.address, identity, self.settings)
        }
    }

    /// Decides about a greeting. `log_end` is where the own log is synced.
    pub fn decide(&mut self, hello: &StoreHello, log_end: u64) -> HelloDecision {
        // This store before the sender: if it is the wrong one, it has to end whatever is wrong
        // with the other.
        if let Some(words) = self.registry.departure(self.own.store) {
            return HelloDecision::Stop(words);
        }
        let decided = self
            .check_meeting(hello)
            .and_then(|()| self.check_self(hello, log_end))
            .and_then(|()| self.check_registry(hello));
        if let Err(decision) = decided {
            return decision;
        }
        if let Err(refusal) = self.check_sender(hello) {
            return HelloDecision::Refuse(refusal);
        }
        if hello.settings.version > self.settings.version {
            return HelloDecision::TakeUp(hello.settings);
        }
        let from = hello.from.store;
        let known = self.peers.get(&from).and_then(|peer| peer.known);
        match known {
            // This start is in the log already, so a link that broke costs no sync.
            Some(known) if known.run == hello.run => HelloDecision::Accept(None),
            // Else a new start of an older copy would overwrite the memory that convicts it.
            Some(known) if hello.confirmed != Some(known) => HelloDecision::Unconfirmed,
            _ => {
                let (run, address) = (hello.run, hello.address.clone());
                HelloDecision::Accept(Some(PeerWrite { store: from, run, address }))
            }
        }
    }

    /// The two are of one cluster and mean each other.
    fn check_meeting(&mut self, hello: &StoreHello) -> Result<(), HelloDecision> {
        let (ours, theirs) = (self.own.cluster_id, hello.from.cluster_id);
        if ours != theirs {
            // A cluster of one begins without another store's word, so it may have begun in the
            // place of a member that lost its disk.
            if self.registry.is_lone() && !self.is_meant_alone {
                return Err(HelloDecision::Stop(format!(
                    "this address is that of store {} of cluster {theirs}, as {} at {} says; this \
                     data directory began cluster {ours}: bring the disk of that store back, or \
                     start with --new if a new cluster is meant",
                    hello.to, hello.name, hello.address
                )));
            }
            let name = self.name.clone();
            let refusal = HandshakeRefusal::OtherCluster { name, ours, theirs };
            return Err(HelloDecision::Refuse(refusal));
        }
        // Also of one that means another store: it may know this address as that of the store that
        // this one has replaced, and learn of it here alone.
        self.note_version(hello);
        if hello.to != self.own.store || hello.from.store == self.own.store {
            let (ours, meant) = (self.own.store, hello.to);
            let refusal = HandshakeRefusal::Misdirected { ours, meant };
            return Err(HelloDecision::Refuse(refusal));
        }
        Ok(())
    }

    /// This store is the one that the sender knows.
    fn check_self(&mut self, hello: &StoreHello, log_end: u64) -> Result<(), HelloDecision> {
        let whom = format!("{} at {}", hello.name, hello.address);
        if let Some(expected) = hello.expected_uuid.filter(|uuid| *uuid != self.uuid) {
            return Err(HelloDecision::Stop(format!(
                "{whom} knows {} as directory {expected}, and this is directory {}: this store \
                 lost its data; bring its disk back, or start it with an empty one, --replace and \
                 --join",
                self.own, self.uuid
            )));
        }
        let Some(known) = hello.known else { return Ok(()) };
        if let Some(why) = self.history.forgot(&known, log_end) {
            return Err(HelloDecision::Stop(format!(
                "an older copy of this store's disk: {whom} knows a later state of {} ({why}); a \
                 data directory is never restored: bring the newest disk back",
                self.own
            )));
        }
        // Found in the own history: the next greeting says so, and only then the other takes this
        // start.
        self.peers.entry(hello.from.store).or_default().confirmed = Some(known);
        Ok(())
    }

    /// The answer shows the registry to a store that is behind.
    fn note_version(&mut self, hello: &StoreHello) {
        let store = hello.from.store;
        // Of listed stores only: what is noted has a bound.
        if self.registry.store(store).is_some() {
            self.peers.entry(store).or_default().registry_version = Some(hello.registry_version);
        }
    }

    /// A later registry is taken over before the sender is looked up in it.
    fn check_registry(&self, hello: &StoreHello) -> Result<(), HelloDecision> {
        let store = hello.from.store;
        let is_listed = self.registry.store(store).is_some();
        let ours = self.registry.version;
        match &hello.registry {
            Some(shown) if shown.version > ours && !shown.continues(&self.registry) => {
                let theirs = shown.version;
                let refusal = HandshakeRefusal::OtherRegistry { store, ours, theirs };
                Err(HelloDecision::Refuse(refusal))
            }
            Some(shown) if shown.version > ours => Err(HelloDecision::Learn(shown.clone())),
            // It joined after this copy was made, and will show that in the next greeting.
            None if !is_listed && hello.registry_version > ours => Err(HelloDecision::Unconfirmed),
            Some(_) | None => Ok(()),
        }
    }

    /// The sender is the one that this store knows, with the same settings.
    fn check_sender(&self, hello: &StoreHello) -> Result<(), HandshakeRefusal> {
        let store = hello.from.store;
        match self.registry.store(store) {
            None => {
                let cluster_id = self.own.cluster_id;
                return Err(HandshakeRefusal::Unlisted { cluster_id, store });
            }
            Some(record) if !record.is_here() => {
                return Err(HandshakeRefusal::Gone { store });
            }
            Some(record) if record.uuid != hello.uuid => {
                let (expected, found) = (record.uuid, hello.uuid);
                return Err(HandshakeRefusal::WrongUuid { store, expected, found });
            }
            Some(_) => {}
        }
        if hello.level < self.registry.level {
            let (found, needed) = (hello.level, self.registry.level);
            return Err(HandshakeRefusal::OldVersion { store, found, needed });
        }
        // Of two versions one is merely newer, and on its way to the other store.
        if hello.settings.version == self.settings.version
            && let Some(conflict) = self.settings.conflict(&hello.settings)
        {
            return Err(HandshakeRefusal::Settings(conflict));
        }
        let known = self.peers.get(&store).and_then(|peer| peer.known).map(|known| known.run);
        let is_older = |known: &StoreRun| {
            hello.run.starts < known.starts
                || (hello.run.starts == known.starts && hello.run.nonce != known.nonce)
        };
        match known.filter(is_older) {
            Some(known) => Err(HandshakeRefusal::OlderCopy { store, known, found: hello.run }),
            None => Ok(()),
        }
    }

    /// From now on messages of the greeting's start are taken. The decision's write is durable.
    pub fn accept(&mut self, hello: &StoreHello) {
        let peer = self.peers.entry(hello.from.store).or_default();
        let log_end = peer.known.filter(|known| known.run == hello.run).map_or(0, |k| k.log_end);
        // A new start begins without a log position: none was sent in it yet.
        peer.known = Some(KnownRun { run: hello.run, log_end });
        peer.accepted = Some((hello.uuid, hello.run));
        peer.address = Some((hello.run.starts, hello.address.clone()));
    }

    /// Whether messages of this start of a store are taken.
    #[must_use]
    pub fn takes(&self, store: StoreId, uuid: StoreUuid, run: StoreRun) -> bool {
        // From the moment at which it is known to be gone: its replicas are counted no more.
        !self.registry.is_gone(store)
            && self.peers.get(&store).is_some_and(|peer| peer.accepted == Some((uuid, run)))
    }

    /// A store whose messages are taken said how far its log is synced.
    pub fn note_log_end(&mut self, store: StoreId, log_end: u64) {
        if let Some(known) = self.peers.get_mut(&store).and_then(|peer| peer.known.as_mut()) {
            // Frames may overtake each other.
            known.log_end = known.log_end.max(log_end);
        }
    }

    /// Settings of a later version, kept durably and in force. False if they are not later.
    pub fn learn_settings(&mut self, settings: ClusterSettings) -> bool {
        let is_news = settings.version > self.settings.version;
        if is_news {
            self.settings = settings;
        }
        is_news
    }

    /// The settings that are in force on this store.
    #[must_use]
    pub fn settings(&self) -> &ClusterSettings {
        &self.settings
    }

    /// The registry as this store has it.
    #[must_use]
    pub fn registry(&self) -> &StoreRegistry {
        &self.registry
    }

    /// Whether a registry is a later state of the own copy.
    #[must_use]
    pub fn is_news(&self, registry: &StoreRegistry) -> bool {
        registry.version > self.registry.version && registry.continues(&self.registry)
    }

    /// Takes a registry over that is kept durably. False if it is no later state of the own copy.
    pub fn learn_registry(&mut self, registry: StoreRegistry) -> bool {
        let is_news = self.is_news(&registry);
        if is_news {
            self.registry = registry;
        }
        is_news
    }

    /// Where a store is to be reached: of what it said itself and what the registry says, that of
    /// the later start.
    #[must_use]
    pub fn address(&self, store: StoreId) -> Option<&str> {
        let said = self.peers.get(&store).and_then(|peer| peer.address.as_ref());
        let record = self.registry.store(store);
        match (said, record) {
            (Some((starts, said)), Some(record)) if *starts >= record.run.starts => Some(said),
            (Some((_, said)), None) => Some(said),
            (_, Some(record)) => Some(&record.address),
            (None, None) => None,
        }
    }
}
