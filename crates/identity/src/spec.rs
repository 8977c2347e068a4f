//! The cluster specification of the listed stores, and the plan that a founder makes of it.

use std::fmt;

use bytes::Bytes;
use flotilla_base::redact::LogKey;
use flotilla_region::{Descriptor, StoreId};

use crate::first_regions::{STORES_MAX, first_regions};
use crate::settings::{ClusterSettings, SettingConflict};
use crate::store_identity::StoreUuid;

/// One of the stores that begin a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InitialStore {
    /// The name that the store's own configuration gives.
    pub name: String,
    /// Where others reach it, as `host:port`.
    pub address: String,
}

/// The defect of a list of initial stores.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidList {
    /// An item is not of the form `name=host:port`.
    #[error("`{0}` is not of the form name=host:port")]
    Malformed(String),
    /// Two items share a name or an address.
    #[error("`{0}` is listed twice; every store needs a name and an address of its own")]
    Repeated(String),
    /// There are no items, or too many.
    #[error("{0} stores are listed; between 1 and {STORES_MAX} can begin a cluster")]
    Count(usize),
}

/// The specification of a cluster. All listed stores must have the same, or none of them begins.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClusterSpec {
    /// The stores, in the order of the list. The first is the founder.
    pub stores: Vec<InitialStore>,
    /// The settings on which all must agree.
    pub settings: ClusterSettings,
    /// Regions that the clients' keys are split into. A record of the bootstrap, never compared
    /// again.
    pub regions: u64,
    /// Keys at which regions begin besides, in order and each once. As `regions`.
    pub split_keys: Vec<Bytes>,
    /// The cluster id that the operator wants; 0 if any.
    pub cluster_id: u64,
}

impl ClusterSpec {
    /// Reads `s1=127.0.0.1:20160,s2=127.0.0.1:20161`.
    ///
    /// # Errors
    ///
    /// [`InvalidList`] names the item that is wrong.
    pub fn parse_stores(list: &str) -> Result<Vec<InitialStore>, InvalidList> {
        let mut stores: Vec<InitialStore> = Vec::new();
        for item in list.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let malformed = || InvalidList::Malformed(item.to_owned());
            let (name, address) = item.split_once('=').ok_or_else(malformed)?;
            let (name, address) = (name.trim(), address.trim());
            // From the right: an IPv6 address has colons of its own.
            let (host, port) = address.rsplit_once(':').ok_or_else(malformed)?;
            let has_port = port.parse::<u16>().is_ok_and(|port| port > 0);
            if name.is_empty() || host.is_empty() || !has_port {
                return Err(malformed());
            }
            if stores.iter().any(|store| store.name == name || store.address == address) {
                return Err(InvalidList::Repeated(item.to_owned()));
            }
            stores.push(InitialStore { name: name.to_owned(), address: address.to_owned() });
        }
        if stores.is_empty() || stores.len() > STORES_MAX {
            return Err(InvalidList::Count(stores.len()));
        }
        Ok(stores)
    }

    /// The place of the store with this name in the list.
    #[must_use]
    pub fn place(&self, name: &str) -> Option<usize> {
        self.stores.iter().position(|store| store.name == name)
    }

    /// The id of the store at `place`.
    #[must_use]
    pub fn store_id(place: usize) -> StoreId {
        StoreId(place as u64 + 1)
    }

    /// The list as an operator writes it.
    #[must_use]
    pub fn list(&self) -> String {
        let items: Vec<_> = self.stores.iter().map(ToString::to_string).collect();
        items.join(",")
    }

    /// The first regions of this cluster, with all their replicas.
    ///
    /// # Panics
    ///
    /// As [`first_regions`].
    #[must_use]
    pub fn first_regions(&self) -> Vec<Descriptor> {
        let replicas = usize::try_from(self.settings.replicas).unwrap_or(usize::MAX);
        let even = (self.regions, self.settings.api.first_keys());
        let mut split_keys = self.split_keys.clone();
        split_keys.extend(self.settings.api.first_borders());
        first_regions(self.stores.len(), even, &split_keys, replicas)
    }

    /// The first value in which another store's specification differs.
    #[must_use]
    pub fn conflict(&self, theirs: &Self) -> Option<SettingConflict> {
        let differ = |name: &str, ours: String, theirs: String| {
            (ours != theirs).then(|| SettingConflict { name: name.to_owned(), ours, theirs })
        };
        // The order counts: the place in the list is the store's id, and the first store is the
        // founder.
        differ("initial_cluster", self.list(), theirs.list())
            .or_else(|| differ("regions", self.regions.to_string(), theirs.regions.to_string()))
            .or_else(|| self.split_keys_conflict(theirs))
            .or_else(|| {
                let (ours, theirs) = (self.cluster_id.to_string(), theirs.cluster_id.to_string());
                differ("cluster_id", ours, theirs)
            })
            // Leases rest on equal ticks: with others, a store would break its promises without
            // knowing it (docs/decisions/0005-leases.md).
            .or_else(|| self.settings.conflict(&theirs.settings))
    }

    fn split_keys_conflict(&self, theirs: &Self) -> Option<SettingConflict> {
        let (ours, theirs) = (&self.split_keys, &theirs.split_keys);
        let count = ours.len().max(theirs.len());
        // A key itself, not a digest of all: of two files with ten thousand lines the words say
        // where to look.
        let at = (0..count).find(|at| ours.get(*at) != theirs.get(*at))?;
        let shown = |keys: &[Bytes]| match keys.get(at) {
            Some(key) => {
                format!("{} keys, number {} of them {}", keys.len(), at + 1, LogKey(key))
            }
            None => format!("{} keys", keys.len()),
        };
        let name = "split_keys".to_owned();
        Some(SettingConflict { name, ours: shown(ours), theirs: shown(theirs) })
    }
}

impl fmt::Display for InitialStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.address)
    }
}

/// One cluster that a founder has drawn: it exists once a store has become a member of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BootstrapPlan {
    /// The cluster's id, random, so that two clusters from the same list are two.
    pub cluster_id: u64,
    /// The round that all listed stores have promised to the founder.
    pub round: u64,
    /// The directories that are meant, in the order of the list.
    pub uuids: Vec<StoreUuid>,
    /// The specification of all stores.
    pub spec: ClusterSpec,
    /// The first regions, with all their replicas.
    pub regions: Vec<Descriptor>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &str) -> Result<Vec<InitialStore>, InvalidList> {
        ClusterSpec::parse_stores(list)
    }

    fn spec(stores: Vec<InitialStore>) -> ClusterSpec {
        let settings = ClusterSettings::default();
        ClusterSpec { stores, settings, regions: 1, split_keys: vec![], cluster_id: 0 }
    }

    #[test]
    fn a_list_gives_names_and_addresses_in_order() {
        let stores = parse("s1=127.0.0.1:20160, s2=127.0.0.1:20161").unwrap();
        let spec = spec(stores);
        assert_eq!(spec.list(), "s1=127.0.0.1:20160,s2=127.0.0.1:20161");
        assert_eq!(spec.place("s2"), Some(1));
        assert_eq!(ClusterSpec::store_id(1), StoreId(2));
    }

    #[test]
    fn a_wrong_list_is_refused_by_the_item() {
        for list in ["s1", "s1=", "s1=host", "=host:1", "s1=host:0", "s1=host:x", "s1=:1"] {
            assert!(matches!(parse(list).unwrap_err(), InvalidList::Malformed(_)), "{list}");
        }
        for list in ["a=h:1,a=h:2", "a=h:1,b=h:1"] {
            assert!(matches!(parse(list).unwrap_err(), InvalidList::Repeated(_)));
        }
        assert_eq!(parse(""), Err(InvalidList::Count(0)));
        let many: Vec<String> = (1..=100).map(|n| format!("s{n}=h:{n}")).collect();
        assert_eq!(parse(&many.join(",")), Err(InvalidList::Count(100)));
    }

    #[test]
    fn each_value_that_differs_is_named() {
        let stores = parse("a=h:1,b=h:2").unwrap();
        let spec = spec(stores);
        let swapped = parse("b=h:2,a=h:1").unwrap();
        let name = |theirs: ClusterSpec| spec.conflict(&theirs).unwrap().name;
        assert_eq!(name(ClusterSpec { stores: swapped, ..spec.clone() }), "initial_cluster");
        assert_eq!(name(ClusterSpec { regions: 2, ..spec.clone() }), "regions");
        assert_eq!(name(ClusterSpec { cluster_id: 2, ..spec.clone() }), "cluster_id");
        let settings = ClusterSettings { replicas: 1, ..Default::default() };
        assert_eq!(name(ClusterSpec { settings, ..spec.clone() }), "replicas");
        assert_eq!(spec.conflict(&spec.clone()), None);
    }

    #[test]
    fn the_first_split_key_that_differs_is_named() {
        let of = |keys: &[&'static str]| ClusterSpec {
            split_keys: keys.iter().map(|key| Bytes::from_static(key.as_bytes())).collect(),
            ..spec(parse("a=h:1").unwrap())
        };
        let words = |ours: &[&'static str], theirs| of(ours).conflict(&of(theirs)).unwrap();
        let differ = words(&["a", "b\u{80}"], &["a", "c"]);
        assert_eq!(differ.ours, r#"2 keys, number 2 of them "b\xc2\x80""#);
        assert_eq!(differ.theirs, r#"2 keys, number 2 of them "c""#);
        let none = words(&["a"], &[]).to_string();
        assert_eq!(none, r#"split_keys is 1 keys, number 1 of them "a" here and 0 keys there"#);
        assert_eq!(of(&["a", "b"]).conflict(&of(&["a", "b"])), None);
    }
}
