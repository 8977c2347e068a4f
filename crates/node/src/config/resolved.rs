//! Resolved settings: every default put in, checked against each other and against a directory.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

use flotilla_identity::{
    ClusterSettings, ClusterSpec, GivenSettings, InitialStore, check_labels, is_address,
};

use super::error::{ConfigError, ConfigErrors};
use super::key::SettingKey;
use super::node::{FirstStart, NodeConfig};
use super::raft::check_settings;
use super::table::{SECTIONS, check_ranges, setting_value, setting_values};

impl NodeConfig {
    /// Puts in the defaults that depend on other values, and checks everything.
    ///
    /// # Errors
    ///
    /// All values that are wrong, with what would be right. How values fit together is looked at
    /// once each is within its range.
    pub fn resolve(mut self) -> Result<ResolvedConfig, ConfigError> {
        let mut errors = ConfigErrors::default();
        let is_named = !self.name.is_empty();
        if !is_named {
            "s1".clone_into(&mut self.name);
        }
        let is_listed = !self.initial_cluster.is_empty();
        let contacts = errors.take(self.contacts()).unwrap_or_default();
        let labels: Vec<_> = self.labels.clone().into_iter().collect();
        let wrong = |fault| ConfigError::Value(format!("labels: {fault}"));
        errors.take(check_labels(&labels).map_err(wrong));
        if !is_listed {
            let given = [&self.advertise_addr, &self.addr].into_iter().find(|a| !a.is_empty());
            let address = given.map_or(DEFAULT_ADDR, String::as_str);
            self.initial_cluster = format!("{}={address}", self.name);
        }
        let stores = errors.take(self.listed_stores());
        if self.data_dir.as_os_str().is_empty() {
            self.data_dir = Path::new("data").join(&self.name);
        }
        let settings = self.given().effective();
        match check_ranges(&self) {
            Ok(()) => self.check_combinations(&settings, &mut errors),
            Err(error) => errors.add(error),
        }
        errors.end()?;
        let (stores, place) = stores.expect("there would be an error without them");
        let (regions, cluster_id) = (self.regions, self.cluster_id);
        let spec = ClusterSpec { stores, settings, regions, split_keys: vec![], cluster_id };
        Ok(ResolvedConfig { config: self, spec, place, contacts, labels, is_named, is_listed })
    }

    /// The stores of the list, and the place of this one.
    fn listed_stores(&self) -> Result<(Vec<InitialStore>, usize), ConfigError> {
        let stores = ClusterSpec::parse_stores(&self.initial_cluster)?;
        if let Some(place) = stores.iter().position(|store| store.name == self.name) {
            return Ok((stores, place));
        }
        let known: Vec<_> = stores.iter().map(|store| store.name.as_str()).collect();
        Err(ConfigError::Value(format!(
            "name = \"{}\" is not in initial_cluster, which has {}: correct one of the two",
            self.name,
            known.join(", ")
        )))
    }

    /// The addresses of `join`.
    fn contacts(&self) -> Result<Vec<String>, ConfigError> {
        let items = self.join.split(',').map(str::trim).filter(|item| !item.is_empty());
        let contacts: Vec<String> = items.map(str::to_owned).collect();
        let wrong = |words: String| Err(ConfigError::Value(words));
        if let Some(item) = contacts.iter().find(|item| !is_address(item)) {
            return wrong(format!("join: `{item}` is not of the form host:port"));
        }
        if contacts.len() > CONTACTS_MAX {
            return wrong(format!("join: {} addresses, at most {CONTACTS_MAX}", contacts.len()));
        }
        if contacts.is_empty() && !self.join.is_empty() {
            return wrong("join: it names no address".to_owned());
        }
        if !contacts.is_empty() && !self.initial_cluster.is_empty() {
            return wrong(
                "join and initial_cluster are both given: a store begins a cluster with the others \
                 of the list, or joins one that runs; take one of the two out"
                    .to_owned(),
            );
        }
        if !contacts.is_empty() && self.split_keys().is_some() {
            return wrong(
                "join and split_keys are both given: borders are for the first regions of a \
                 cluster, and this store joins one that runs; take one of the two out, and split \
                 regions by `flotilla ctl region split`"
                    .to_owned(),
            );
        }
        if !contacts.is_empty() && self.first_start == FirstStart::New {
            return wrong(
                "--join and --new are both given: a store joins a running cluster, or begins a new \
                 one; take one of the two out"
                    .to_owned(),
            );
        }
        if contacts.is_empty() && self.first_start == FirstStart::Replace {
            return wrong(
                "--replace without --join: name members of the cluster, as --join host:port; they \
                 give this store the place of the one that lost its directory"
                    .to_owned(),
            );
        }
        Ok(contacts)
    }

    /// The settings of the cluster that are given.
    pub(crate) fn given(&self) -> GivenSettings {
        GivenSettings {
            replicas: self.replicas,
            tick_ms: self.raft.tick_ms,
            election_ticks: self.raft.election_ticks,
            heartbeat_ticks: self.raft.heartbeat_ticks,
            entry_bytes_max: self.raft.entry_bytes_max,
            read_leases: self.raft.read_leases,
            api: self.api,
        }
    }

    /// Puts in the settings of the cluster.
    pub(crate) fn put_cluster(&mut self, settings: &ClusterSettings) {
        self.replicas = Some(settings.replicas);
        self.api = Some(settings.api);
        self.raft.tick_ms = Some(settings.tick_ms);
        self.raft.election_ticks = Some(settings.election_ticks);
        self.raft.heartbeat_ticks = Some(settings.heartbeat_ticks);
        self.raft.entry_bytes_max = Some(settings.entry_bytes_max);
        self.raft.read_leases = Some(settings.read_leases);
    }

    fn check_combinations(&self, settings: &ClusterSettings, errors: &mut ConfigErrors) {
        errors.take(self.storage.check());
        errors.take(self.raft.check(&self.storage));
        errors.take(check_settings(settings));
        errors.take(self.tls.check());
        errors.take(self.limits.check());
    }
}

/// Addresses that `join` names at most.
const CONTACTS_MAX: usize = 32;

/// The address of a store without one in its settings.
pub(super) const DEFAULT_ADDR: &str = "127.0.0.1:20160";

/// Settings that fit together, and what follows from them.
#[derive(Clone, Debug)]
pub struct ResolvedConfig {
    /// The settings, with no default left open but the addresses.
    pub config: NodeConfig,
    /// The cluster that this store is to begin, if its directory is empty. Without its split keys,
    /// which are read from their file then.
    pub spec: ClusterSpec,
    /// This store's place in the list.
    pub place: usize,
    /// The addresses of `join`.
    pub contacts: Vec<String>,
    /// The labels that are given.
    pub labels: Vec<(String, String)>,
    /// Whether the name was given, and is not the default.
    is_named: bool,
    /// Whether the list was given, and is not made of this store alone.
    is_listed: bool,
}

impl ResolvedConfig {
    /// The settings with every default put in that follows from others, for whoever looks at them.
    /// Addresses that follow from the directory stay open, as do the labels.
    #[must_use]
    pub fn effective(&self) -> NodeConfig {
        let mut config = self.config.clone();
        config.put_cluster(&self.spec.settings);
        config.raft.log_kept_bytes_max = Some(config.raft.kept_bytes_max(&config.storage));
        config.storage.dirty_bytes_hard_max = Some(config.storage.dirty_bytes_hard_max());
        config.threads.shards = config.threads.shard_count();
        config.threads.runtime = config.threads.runtime_count();
        if !self.is_listed {
            config.initial_cluster.clear();
        }
        config
    }

    /// Logs the settings, defaults included, a line for each table.
    pub(crate) fn log(&self) {
        let values = setting_values(&self.effective());
        for section in SECTIONS {
            let words = |key: &SettingKey| {
                format!("{}={}", key.name(), key.value_words(setting_value(&values, key)))
            };
            let words: Vec<_> = section.keys.iter().map(words).collect();
            let table = if section.name.is_empty() { "store" } else { section.name };
            tracing::info!(table, "settings: {}", words.join(" "));
        }
    }

    /// This store in the list.
    #[must_use]
    pub fn own(&self) -> &InitialStore {
        &self.spec.stores[self.place]
    }

    /// The addresses of the list, by name; none if no list was given.
    #[must_use]
    pub fn listed_addresses(&self) -> BTreeMap<String, String> {
        let listed = self.spec.stores.iter().filter(|_| self.is_listed);
        listed.map(|store| (store.name.clone(), store.address.clone())).collect()
    }

    /// Where to listen, if that follows from the settings. `known` is the address that the
    /// directory's copy of the registry has for this store.
    #[must_use]
    pub fn listen_addr(&self, known: Option<&str>) -> String {
        match known {
            _ if !self.config.addr.is_empty() => self.config.addr.clone(),
            Some(known) if !self.is_listed => known.to_owned(),
            _ => self.own().address.clone(),
        }
    }

    /// Where others are to reach this store, which listens on `listen`.
    #[must_use]
    pub fn advertised(&self, listen: &str, known: Option<&str>) -> String {
        let config = &self.config;
        match known {
            _ if !config.advertise_addr.is_empty() => config.advertise_addr.clone(),
            _ if self.is_listed => self.own().address.clone(),
            Some(known) if config.addr.is_empty() => known.to_owned(),
            _ => listen.to_owned(),
        }
    }

    /// Checks what a store needs that joins, and is reached at `address` then.
    ///
    /// # Errors
    ///
    /// The flag to give or to change.
    pub(crate) fn check_join(&self, address: &str) -> Result<(), ConfigError> {
        let wrong = |words: String| Err(ConfigError::Value(words));
        if !self.is_named {
            return wrong(
                "--join without --name: give this store a name that no store of the cluster has"
                    .to_owned(),
            );
        }
        if self.config.addr.is_empty() && self.config.advertise_addr.is_empty() {
            return wrong(
                "--join without --addr: give the address at which the other stores and the clients \
                 reach this one"
                    .to_owned(),
            );
        }
        if address.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_unspecified()) {
            return wrong(format!(
                "no other store reaches this one at {address}: give its address by --advertise-addr"
            ));
        }
        let own = [address, &self.config.addr, &self.config.advertise_addr];
        match self.contacts.iter().find(|contact| own.contains(&contact.as_str())) {
            Some(contact) => wrong(format!(
                "--join names {contact}, which is this store itself: name members of the running \
                 cluster"
            )),
            None => Ok(()),
        }
    }

    /// Compares the given settings with those of a member's directory. One that was changed while
    /// the cluster ran may differ, and does not count.
    ///
    /// # Errors
    ///
    /// The first value that differs, with both.
    pub fn check_member(
        &self,
        name: &str,
        cluster_id: u64,
        copy: &ClusterSettings,
    ) -> Result<(), ConfigError> {
        let config = &self.config;
        let dir = config.data_dir.display();
        if self.is_named && config.name != name {
            return Err(ConfigError::Value(format!(
                "name = \"{}\", but the data directory {dir} is that of store {name}: correct --name \
                 or --data-dir",
                config.name
            )));
        }
        if config.cluster_id != 0 && config.cluster_id != cluster_id {
            return Err(ConfigError::Value(format!(
                "cluster_id = {}, but the data directory {dir} is of cluster {cluster_id}: correct \
                 --cluster-id or --data-dir",
                config.cluster_id
            )));
        }
        let given = config.given();
        // A file that was right before a change must not keep its store from starting.
        let changed = copy.version > ClusterSettings::default().version;
        let of_start = match changed {
            true => {
                GivenSettings { tick_ms: None, entry_bytes_max: None, read_leases: None, ..given }
            }
            false => given,
        };
        if let Some(conflict) = copy.conflict_with_given(&of_start) {
            return Err(ConfigError::Value(format!(
                "{} = {} is given, but the cluster has {}, as the copy in {dir} says: it cannot be \
                 changed here; take it out of the flags and files of this store",
                conflict.name, conflict.theirs, conflict.ours
            )));
        }
        Ok(())
    }

    /// Warns of a given value that does not count, since the cluster was changed while it ran.
    pub(crate) fn warn_of_changed(&self, copy: &ClusterSettings) {
        if let Some(conflict) = copy.conflict_with_given(&self.config.given()) {
            tracing::warn!(
                "{} = {} is given and does not count: the cluster was changed to {}; take it out of \
                 the flags and files of this store, or change the cluster by `flotilla ctl config \
                 set`",
                conflict.name,
                conflict.theirs,
                conflict.ours
            );
        }
    }
}
