//! The membership of a running store: its identity, the starts whose messages it takes, and the
//! addresses of the others.

use std::collections::BTreeMap;
use std::sync::Arc;

use flotilla_identity::{
    BootstrapRequest, BootstrapResponse, COLUMN_FAMILY_LEVEL, COMPARISON_LEVEL, ClusterSettings,
    EXPIRY_LEVEL, Handshake, HelloDecision, LevelRefusal, MemberId, RunReport, StoreHello,
    StoreIdentity, StoreRegistry, StoreRun, StoreUuid, TRANSFER_LEVEL, member_answer,
};
use flotilla_proto::peers;
use flotilla_proto::peers::peers_client::PeersClient;
use flotilla_region::StoreId;
use flotilla_store::Store;
use parking_lot::Mutex;
use tokio::sync::watch;
use tonic::Status;
use tonic::transport::Channel;

use super::convert::{hello_from_wire, hello_to_wire};
use super::settings_copy::SettingsCopy;
use crate::drop_notify::DropNotify;
use crate::failure::NodeFailure;
use crate::net::dial::Dialer;

/// Greetings that one handshake may take: each side confirms once.
const EXCHANGES_MAX: u32 = 4;

/// Another store, as this one knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KnownStore {
    /// Its name.
    pub(crate) name: String,
    /// Its id.
    pub(crate) store: StoreId,
    /// Where it is to be reached, `host:port`.
    pub(crate) address: String,
}

/// The places of this store and of the others, as the flags of this start have them.
#[derive(Clone, Debug, Default)]
pub(crate) struct GivenPlace {
    /// Addresses by name.
    pub(crate) listed: BTreeMap<String, String>,
    /// The labels of this store; none leave those that it has.
    pub(crate) labels: Vec<(String, String)>,
    /// The way to other stores.
    pub(crate) dialer: Dialer,
}

/// Why a handshake did not come about.
#[derive(Clone, Debug)]
pub(crate) enum HandshakeError {
    /// One of the two refuses the other, with the reason.
    Refused(String),
    /// The connection failed.
    Failed(Status),
}

/// A member's place in the cluster. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Membership {
    shared: Arc<MembershipShared>,
}

struct MembershipShared {
    identity: StoreIdentity,
    address: String,
    settings: SettingsCopy,
    store: Arc<DropNotify<Store>>,
    failure: NodeFailure,
    /// The way to other stores.
    dialer: Dialer,
    handshake: Mutex<Handshake>,
    /// Held from a decision until it is durable, so that decisions do not overtake each other.
    deciding: tokio::sync::Mutex<()>,
    /// Addresses of the list of this start, tried in addition to those that are known.
    listed: BTreeMap<String, String>,
    /// The labels of this start.
    labels: Vec<(String, String)>,
    /// The last warning about each store, so that it is logged once.
    warned: Mutex<BTreeMap<StoreId, String>>,
    /// The version of the registry, for those who follow it.
    registry_version: watch::Sender<u64>,
    /// Held while a later registry is kept, so that none overtakes another on its way to the disk.
    learning: tokio::sync::Mutex<()>,
}

impl Membership {
    /// The part of the store whose directory is open as `store`. `given` is of this start.
    pub(crate) fn new(
        store: Arc<DropNotify<Store>>,
        handshake: Handshake,
        address: String,
        given: GivenPlace,
        failure: NodeFailure,
    ) -> Self {
        let GivenPlace { listed, labels, dialer } = given;
        let registry_version = watch::Sender::new(handshake.registry().version);
        let shared = MembershipShared {
            identity: store.identity().clone(),
            address,
            settings: SettingsCopy::new(*handshake.settings()),
            store,
            failure,
            dialer,
            handshake: Mutex::new(handshake),
            deciding: tokio::sync::Mutex::default(),
            listed,
            labels,
            warned: Mutex::default(),
            registry_version,
            learning: tokio::sync::Mutex::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The id of this store and of its cluster.
    pub(crate) fn id(&self) -> MemberId {
        self.shared.identity.member_id()
    }

    /// The store's name.
    pub(crate) fn name(&self) -> &str {
        &self.shared.identity.name
    }

    /// The directory's number and this start.
    pub(crate) fn run(&self) -> (StoreUuid, StoreRun) {
        (self.shared.identity.uuid, self.shared.identity.run)
    }

    /// The settings of the cluster as this store keeps them.
    pub(crate) fn settings(&self) -> ClusterSettings {
        self.shared.settings.kept()
    }

    /// Wakes when they have changed.
    pub(crate) fn settings_changes(&self) -> watch::Receiver<ClusterSettings> {
        self.shared.settings.follow()
    }

    /// All shards have this version of them.
    pub(crate) fn note_settings_in_force(&self, version: u64) {
        self.shared.settings.note_in_force(version);
    }

    /// The version that all shards have. It is kept durably.
    pub(crate) fn settings_in_force(&self) -> u64 {
        self.shared.settings.in_force()
    }

    /// Takes settings of the cluster up, if they are later: durably, and then in all shards. False
    /// if that failed, and the node stops.
    pub(crate) async fn learn_settings(&self, settings: ClusterSettings) -> bool {
        let version = settings.version;
        {
            let _one = self.shared.learning.lock().await;
            if version > self.settings().version {
                // First the copy: what this store says that it has must outlive its next start.
                if !self.keep(move |store| store.keep_settings(&settings)).await {
                    return false;
                }
                self.shared.settings.note_kept(settings);
            }
        }
        let is_in_force = self.shared.settings.wait_in_force(version).await;
        if is_in_force {
            self.shared.handshake.lock().learn_settings(settings);
        }
        is_in_force
    }

    /// The way to other stores.
    pub(crate) fn dialer(&self) -> &Dialer {
        &self.shared.dialer
    }

    /// How far the log is synced.
    pub(crate) fn log_end(&self) -> u64 {
        self.shared.store.log_end()
    }

    /// All stores that take part, this one included, with their newest addresses.
    pub(crate) fn stores(&self) -> Vec<KnownStore> {
        let mut stores = self.registered_stores();
        let handshake = self.shared.handshake.lock();
        // The address of one that is gone may be that of its successor.
        stores.retain(|known| !handshake.registry().is_gone(known.store));
        stores
    }

    /// The same, with those that are lost or have left.
    pub(crate) fn registered_stores(&self) -> Vec<KnownStore> {
        let handshake = self.shared.handshake.lock();
        let stores = handshake.registry().stores.iter();
        stores.map(|record| self.known(&handshake, record.id, &record.name)).collect()
    }

    /// Whether a store is lost or has left.
    pub(crate) fn is_gone(&self, store: StoreId) -> bool {
        self.shared.handshake.lock().registry().is_gone(store)
    }

    /// The name of a store; empty if there is none with this id.
    pub(crate) fn name_of(&self, store: StoreId) -> String {
        let handshake = self.shared.handshake.lock();
        handshake.registry().store(store).map(|record| record.name.clone()).unwrap_or_default()
    }

    /// The store with this id.
    pub(crate) fn store(&self, store: StoreId) -> Option<KnownStore> {
        let handshake = self.shared.handshake.lock();
        let name = handshake.registry().store(store)?.name.clone();
        Some(self.known(&handshake, store, &name))
    }

    fn known(&self, handshake: &Handshake, store: StoreId, name: &str) -> KnownStore {
        let address = match store == self.shared.identity.store {
            true => &self.shared.address,
            false => handshake.address(store).unwrap_or_default(),
        };
        KnownStore { name: name.to_owned(), store, address: address.to_owned() }
    }

    /// The addresses to try for a store: the known one, then the one of this start's list.
    pub(crate) fn addresses(&self, store: StoreId) -> Vec<String> {
        let Some(known) = self.store(store) else { return Vec::new() };
        let listed = self.shared.listed.get(&known.name).cloned();
        let mut addresses = vec![known.address];
        addresses.extend(listed.filter(|listed| *listed != addresses[0]));
        addresses
    }

    /// The report of this start to placement.
    pub(crate) fn run_report(&self) -> RunReport {
        let identity = &self.shared.identity;
        RunReport {
            store: identity.store,
            uuid: identity.uuid,
            address: self.shared.address.clone(),
            run: identity.run,
            level: flotilla_identity::FEATURE_LEVEL,
            schema: identity.schema,
            labels: self.shared.labels.clone(),
        }
    }

    /// The registry as this store has it.
    pub(crate) fn registry(&self) -> StoreRegistry {
        self.shared.handshake.lock().registry().clone()
    }

    /// The version of that.
    pub(crate) fn registry_version(&self) -> u64 {
        self.shared.handshake.lock().registry().version
    }

    /// Whether leadership may be transferred.
    ///
    /// # Errors
    ///
    /// The stores of a version that takes no part in it.
    pub(crate) fn check_transfers(&self) -> Result<(), LevelRefusal> {
        self.shared.handshake.lock().registry().check_level(TRANSFER_LEVEL)
    }

    /// Whether rows may expire.
    ///
    /// # Errors
    ///
    /// The stores of a version that does not know of it.
    pub(crate) fn check_expiry(&self) -> Result<(), LevelRefusal> {
        self.shared.handshake.lock().registry().check_level(EXPIRY_LEVEL)
    }

    /// Whether there may be keys of all column families.
    ///
    /// # Errors
    ///
    /// The stores of a version that knows the default one only.
    pub(crate) fn check_families(&self) -> Result<(), LevelRefusal> {
        self.shared.handshake.lock().registry().check_level(COLUMN_FAMILY_LEVEL)
    }

    /// Whether replicas may be compared.
    ///
    /// # Errors
    ///
    /// The stores of a version that computes no digests.
    pub(crate) fn check_comparisons(&self) -> Result<(), LevelRefusal> {
        self.shared.handshake.lock().registry().check_level(COMPARISON_LEVEL)
    }

    /// The last start of another store that this one knows of: by its handshake, or by the
    /// registry.
    pub(crate) fn known_run(&self, store: StoreId) -> StoreRun {
        let handshake = self.shared.handshake.lock();
        let heard = handshake.greet(store).known.map(|known| known.run);
        let registered = handshake.registry().store(store).map(|record| record.run);
        heard.max(registered).unwrap_or_default()
    }

    /// Wakes when the registry has changed here.
    pub(crate) fn registry_changes(&self) -> watch::Receiver<u64> {
        self.shared.registry_version.subscribe()
    }

    /// Keeps a copy of a registry, and takes it over, if it is a later one. False if the copy could
    /// not be kept, or says that this store is gone: then the node stops.
    pub(crate) async fn learn_registry(&self, registry: StoreRegistry) -> bool {
        let _one = self.shared.learning.lock().await;
        let version = registry.version;
        if !self.shared.handshake.lock().is_news(&registry) {
            return true;
        }
        let copy = registry.clone();
        // First the copy: a store is known once its row is in the pages.
        if !self.keep(move |store| store.keep_registry(&copy)).await {
            return false;
        }
        let StoreIdentity { store: own, run, .. } = self.shared.identity;
        let departure = registry.departure(own);
        // Before the handshakes know it, which would refuse this store whatever the kind of its
        // end.
        match &departure {
            Some(words) if registry.has_left(own, run) => self.shared.failure.leave(words),
            Some(words) => self.shared.failure.refuse(words),
            None => {}
        }
        self.shared.handshake.lock().learn_registry(registry);
        self.shared.registry_version.send_replace(version);
        departure.is_none()
    }

    /// Whether frames of this start of a store are taken.
    ///
    /// # Errors
    ///
    /// `FAILED_PRECONDITION` if no handshake of it was.
    pub(crate) fn check_sender(
        &self,
        from: StoreId,
        uuid: StoreUuid,
        run: StoreRun,
    ) -> Result<(), Status> {
        if self.shared.handshake.lock().takes(from, uuid, run) {
            return Ok(());
        }
        Err(Status::failed_precondition(format!(
            "no handshake of {run} of store {from} was taken by store {}",
            self.shared.identity.store
        )))
    }

    /// A store whose frames are taken said how far its log is synced.
    pub(crate) fn note_log_end(&self, from: StoreId, log_end: u64) {
        self.shared.handshake.lock().note_log_end(from, log_end);
    }

    /// The answer of a member to a request of the bootstrap protocol.
    pub(crate) fn answer_bootstrap(&self, request: &BootstrapRequest) -> BootstrapResponse {
        let handshake = self.shared.handshake.lock();
        member_answer(&self.shared.identity, handshake.registry(), request)
    }

    /// Answers a greeting.
    ///
    /// # Errors
    ///
    /// `INVALID_ARGUMENT` if it cannot be read; `UNAVAILABLE` if this store itself must end.
    pub(crate) async fn answer(
        &self,
        wire: peers::StoreHello,
    ) -> Result<peers::HelloResponse, Status> {
        let hello = hello_from_wire(wire)?;
        let judged = self.judge(&hello).await;
        let own = self.shared.handshake.lock().greet(hello.from.store);
        let hello = Some(hello_to_wire(&own));
        let (accepted, refusal) = match judged {
            HelloOutcome::Accepted => (true, String::new()),
            HelloOutcome::Unconfirmed => (false, String::new()),
            HelloOutcome::Refused(why) => (false, why),
            HelloOutcome::Stopping => return Err(Status::unavailable("the store stops")),
        };
        Ok(peers::HelloResponse { hello, accepted, refusal })
    }

    /// Greets the store `to` until both take each other.
    ///
    /// # Errors
    ///
    /// [`HandshakeError`].
    pub(crate) async fn greet(
        &self,
        client: &mut PeersClient<Channel>,
        to: StoreId,
    ) -> Result<(), HandshakeError> {
        let refused = |why: String| Err(HandshakeError::Refused(why));
        for _ in 0..EXCHANGES_MAX {
            let own = self.shared.handshake.lock().greet(to);
            let response = client.hello(hello_to_wire(&own)).await;
            let response = response.map_err(HandshakeError::Failed)?.into_inner();
            let Some(theirs) = response.hello else {
                return refused("the answer has no greeting".to_owned());
            };
            let theirs = hello_from_wire(theirs).map_err(HandshakeError::Failed)?;
            let judged = self.judge(&theirs).await;
            // First: of a store that has to end itself, the other's refusal says less.
            let is_stopping = matches!(judged, HelloOutcome::Stopping);
            if !response.refusal.is_empty() && !is_stopping {
                return refused(response.refusal);
            }
            match judged {
                HelloOutcome::Accepted if response.accepted => return Ok(()),
                HelloOutcome::Accepted | HelloOutcome::Unconfirmed => {}
                HelloOutcome::Refused(why) => return refused(why),
                HelloOutcome::Stopping => {
                    return Err(HandshakeError::Failed(Status::unavailable("this store stops")));
                }
            }
        }
        refused("the two stores do not confirm each other's starts".to_owned())
    }

    /// Decides about a greeting, and makes durable what follows from it.
    async fn judge(&self, hello: &StoreHello) -> HelloOutcome {
        // A decision rests on what earlier ones made durable.
        let _one = self.shared.deciding.lock().await;
        let log_end = self.log_end();
        let mut decision = self.shared.handshake.lock().decide(hello, log_end);
        if let HelloDecision::Learn(registry) = decision {
            if !self.learn_registry(*registry).await {
                return HelloOutcome::Stopping;
            }
            decision = self.shared.handshake.lock().decide(hello, log_end);
        }
        if let HelloDecision::TakeUp(settings) = decision {
            if !self.learn_settings(settings).await {
                return HelloOutcome::Stopping;
            }
            decision = self.shared.handshake.lock().decide(hello, log_end);
        }
        match decision {
            HelloDecision::Accept(write) => {
                if let Some(write) = write
                    && !self.keep(move |store| store.remember_peer(&write)).await
                {
                    return HelloOutcome::Stopping;
                }
                self.accept(hello);
                HelloOutcome::Accepted
            }
            // A registry or settings that were taken over are no news the second time.
            HelloDecision::Learn(_) | HelloDecision::TakeUp(_) | HelloDecision::Unconfirmed => {
                HelloOutcome::Unconfirmed
            }
            HelloDecision::Refuse(refusal) => {
                let why = refusal.to_string();
                self.warn_once(
                    hello.from.store,
                    &format!("{} at {}: {why}", hello.name, hello.address),
                );
                HelloOutcome::Refused(why)
            }
            HelloDecision::Stop(words) => {
                self.shared.failure.refuse(&words);
                HelloOutcome::Stopping
            }
        }
    }

    fn accept(&self, hello: &StoreHello) {
        self.shared.handshake.lock().accept(hello);
        self.shared.warned.lock().remove(&hello.from.store);
    }

    /// Makes a write durable, on a thread that may block. False if that failed, and the node with
    /// it.
    async fn keep(
        &self,
        write: impl FnOnce(&Store) -> Result<(), flotilla_store::Error> + Send + 'static,
    ) -> bool {
        let store = Arc::clone(&self.shared.store);
        let written = tokio::task::spawn_blocking(move || write(&store)).await;
        let error = match written {
            Ok(Ok(())) => return true,
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        self.shared.failure.report(&format!("cannot keep what is known of the cluster: {error}"));
        false
    }

    /// Logs a warning about a store, once until the warning is another one.
    pub(crate) fn warn_once(&self, store: StoreId, words: &str) {
        let before = self.shared.warned.lock().insert(store, words.to_owned());
        if before.as_deref() != Some(words) {
            tracing::warn!(%store, "{words}");
        }
    }
}

/// The outcome of a greeting.
enum HelloOutcome {
    Accepted,
    Unconfirmed,
    Refused(String),
    Stopping,
}
