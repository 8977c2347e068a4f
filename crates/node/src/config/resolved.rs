//! Resolved settings: every default put in, checked against each other and against a directory.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

use flotilla_identity::{
    ClusterSettings, ClusterSpec, GivenSettings, InitialStore, REGIONS_MAX, check_labels,
    is_address,
};

use super::error::{ConfigError, within};
use super::node::{FirstStart, NodeConfig};
use super::raft::check_settings;

impl NodeConfig {
    /// Puts in the defaults that depend on other values, and checks everything.
    ///
    /// # Errors
    ///
    /// The first value that is wrong, with what would be right.
    pub fn resolve(mut self) -> Result<ResolvedConfig, ConfigError> {
        let is_named = !self.name.is_empty();
        if !is_named {
            "s1".clone_into(&mut self.name);
        }
        let is_listed = !self.initial_cluster.is_empty();
        let contacts = self.contacts()?;
        let labels: Vec<_> = self.labels.clone().into_iter().collect();
        check_labels(&labels).map_err(|fault| ConfigError::Value(format!("labels: {fault}")))?;
        if !is_listed {
            let given = [&self.advertise_addr, &self.addr].into_iter().find(|a| !a.is_empty());
            let address = given.map_or(DEFAULT_ADDR, String::as_str);
            self.initial_cluster = format!("{}={address}", self.name);
        }
        let stores = ClusterSpec::parse_stores(&self.initial_cluster)?;
        let Some(place) = stores.iter().position(|store| store.name == self.name) else {
            let known: Vec<_> = stores.iter().map(|store| store.name.as_str()).collect();
            return Err(ConfigError::Value(format!(
                "name = \"{}\" is not in initial_cluster, which has {}: correct one of the two",
                self.name,
                known.join(", ")
            )));
        };
        if self.data_dir.as_os_str().is_empty() {
            self.data_dir = Path::new("data").join(&self.name);
        }
        self.check()?;
        let settings = self.given().effective();
        check_settings(&settings)?;
        let (regions, cluster_id) = (self.regions, self.cluster_id);
        let spec = ClusterSpec { stores, settings, regions, split_keys: vec![], cluster_id };
        Ok(ResolvedConfig { config: self, spec, place, contacts, labels, is_named, is_listed })
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

    fn check(&self) -> Result<(), ConfigError> {
        within("regions", self.regions, 1, REGIONS_MAX)?;
        self.storage.check()?;
        self.raft.check(&self.storage)?;
        self.scrub.check()?;
        self.verify.check()?;
        self.split.check()?;
        self.snapshot.check()?;
        self.limits.check()?;
        self.threads.check()
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

    /// Compares the given settings with those of a member's directory.
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
        if let Some(conflict) = copy.conflict_with_given(&config.given()) {
            return Err(ConfigError::Value(format!(
                "{} = {} is given, but the cluster has {}, as the copy in {dir} says: it cannot be \
                 changed here; take it out of the flags and files of this store",
                conflict.name, conflict.theirs, conflict.ours
            )));
        }
        Ok(())
    }
}
