//! Registration: the decision of placement's leader about a store that joins a running cluster.
//!
//! The directory is the store, so the same directory gets the same id however often it asks: its
//! answer may have been lost, or it died before it kept its identity. A directory that has run as a
//! member and asks again has forgotten that, and is refused.
//!
//! A store may ask to replace the one that has its name, whose directory is gone: one change of the
//! registry gives the name a new id and makes the old one lost for ever. Whether the cluster can do
//! without the old store is for its placement to say, before that is written
//! (`docs/decisions/0037-a-store-joins-by-register.md`).

use flotilla_region::StoreId;

use crate::register_refusal::{REGISTERED_STORES_MAX, RegisterRefusal};
use crate::registry::{StoreRecord, StoreRegistry, StoreState};
use crate::store_identity::StoreUuid;

/// Bytes of a store's name.
const NAME_BYTES_MAX: usize = 64;
/// Bytes of an address: a host name of the DNS, and a port.
const ADDRESS_BYTES_MAX: usize = 260;
/// Labels of a store.
const LABELS_MAX: usize = 16;
/// Bytes of a label's key, and of its value.
const LABEL_BYTES_MAX: usize = 64;

/// The words of a store that asks for an id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegisterRequest {
    /// Its directory.
    pub uuid: StoreUuid,
    /// The name that it is to have.
    pub name: String,
    /// Where others reach it, `host:port`.
    pub address: String,
    /// Where it stands, for placement.
    pub labels: Vec<(String, String)>,
    /// The feature level of its version.
    pub level: u64,
    /// The schema of its rows.
    pub schema: u64,
    /// The store that has the name is lost for ever, and this one takes its place.
    pub is_replacement: bool,
}

/// The decision about a store that asks for an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Registration {
    /// The registry has the store as it describes itself: the answer is this id.
    Known(StoreId),
    /// The store is new, and takes the place of another one perhaps. It is asked about again with
    /// an id that was never given.
    WantsId {
        /// The store that is lost then.
        replaces: Option<StoreId>,
    },
    /// The registry with the store, to be written. The decision is made again after that.
    Write(Box<StoreRegistry>),
    /// The same, with this store lost, if the cluster can do without it.
    Replace(StoreId, Box<StoreRegistry>),
}

impl StoreRegistry {
    /// The decision about a store that asks for an id; `id` is one that was never given, if there
    /// is one already. The registry must be the one that is written, not a copy.
    ///
    /// # Errors
    ///
    /// [`RegisterRefusal`]: the store that asks ends with these words.
    pub fn register(
        &self,
        request: &RegisterRequest,
        id: Option<StoreId>,
    ) -> Result<Registration, RegisterRefusal> {
        check_request(request).map_err(RegisterRefusal::Invalid)?;
        let (found, needed) = (request.level, self.level);
        if found < needed {
            return Err(RegisterRefusal::OldVersion { found, needed });
        }
        let known = self.stores.iter().position(|store| store.uuid == request.uuid);
        if let Some(known) = known.map(|at| &self.stores[at]) {
            check_known(known)?;
        }
        let replaced = self.replaced_by(request)?;
        self.check_unique(request, replaced)?;
        let Some(at) = known else {
            if self.stores.len() >= REGISTERED_STORES_MAX {
                return Err(RegisterRefusal::Full);
            }
            let Some(id) = id else { return Ok(Registration::WantsId { replaces: replaced }) };
            return Ok(self.with_new(id, request, replaced));
        };
        assert!(replaced.is_none(), "a directory that is registered replaces none");
        // It died before it kept its identity, and may have been started with other flags since.
        let record = described(self.stores[at].clone(), request);
        if record == self.stores[at] {
            return Ok(Registration::Known(record.id));
        }
        let mut changed = self.clone();
        changed.version += 1;
        changed.stores[at] = record;
        Ok(Registration::Write(Box::new(changed)))
    }

    /// The registry with a store of a new id, without the one that it replaces.
    fn with_new(
        &self,
        id: StoreId,
        request: &RegisterRequest,
        replaced: Option<StoreId>,
    ) -> Registration {
        assert!(self.store(id).is_none(), "id {id} was given before");
        let mut changed = self.clone();
        changed.version += 1;
        let mut new = StoreRecord { id, ..StoreRecord::default() };
        if let Some(old) = changed.stores.iter_mut().find(|store| Some(store.id) == replaced) {
            // In one write: else two stores would have the name, or none.
            old.state = StoreState::Lost;
            new.labels.clone_from(&old.labels);
        }
        changed.stores.push(described(new, request));
        changed.stores.sort_by_key(|store| store.id);
        match replaced {
            Some(replaced) => Registration::Replace(replaced, Box::new(changed)),
            None => Registration::Write(Box::new(changed)),
        }
    }

    /// The store that takes part and is to be replaced, if one is.
    fn replaced_by(&self, request: &RegisterRequest) -> Result<Option<StoreId>, RegisterRefusal> {
        let RegisterRequest { uuid, name, is_replacement: true, .. } = request else {
            return Ok(None);
        };
        // The answer was lost: the directory has the name already.
        let is_registered = self.stores.iter().any(|store| store.uuid == *uuid);
        if !is_registered && self.stores.iter().all(|store| store.name != *name) {
            return Err(RegisterRefusal::NothingToReplace { name: name.clone() });
        }
        // One that was declared lost before has left its name to others.
        Ok(self.named(name).filter(|_| !is_registered).map(|store| store.id))
    }

    /// No other store that takes part has the name or the address.
    fn check_unique(
        &self,
        request: &RegisterRequest,
        replaced: Option<StoreId>,
    ) -> Result<(), RegisterRefusal> {
        let RegisterRequest { uuid, name, address, .. } = request;
        let is_other = |other: &&StoreRecord| {
            other.is_here() && other.uuid != *uuid && Some(other.id) != replaced
        };
        for other in self.stores.iter().filter(is_other) {
            if other.name == *name {
                let (name, store) = (name.clone(), other.id);
                let (expected, found) = (other.uuid, *uuid);
                return Err(RegisterRefusal::NameTaken { name, store, expected, found });
            }
            if other.address == *address {
                let (address, store, name) = (address.clone(), other.id, other.name.clone());
                return Err(RegisterRefusal::AddressTaken { address, store, name });
            }
        }
        Ok(())
    }
}

/// A directory that is in the registry may ask only before its first start as a member.
fn check_known(known: &StoreRecord) -> Result<(), RegisterRefusal> {
    let store = known.id;
    if !known.is_here() {
        return Err(RegisterRefusal::Gone { store });
    }
    // A member never asks. Its votes and entries went with the memory that it is one.
    if known.run.starts > 0 {
        return Err(RegisterRefusal::Forgotten { store, known: known.run });
    }
    Ok(())
}

/// The record with what the store says of itself.
fn described(record: StoreRecord, request: &RegisterRequest) -> StoreRecord {
    let RegisterRequest { uuid, name, address, mut labels, level, schema, .. } = request.clone();
    // None given leave those that it has, as at any start.
    if labels.is_empty() {
        labels.clone_from(&record.labels);
    }
    StoreRecord { uuid, name, address, labels, level, schema, ..record }
}

/// The fault of a request, if it has one.
fn check_request(request: &RegisterRequest) -> Result<(), String> {
    let RegisterRequest { uuid, name, address, labels, .. } = request;
    if *uuid == StoreUuid::default() {
        return Err("the store says no directory".to_owned());
    }
    if !is_word(name, NAME_BYTES_MAX) {
        return Err(format!(
            "name = {name:?} cannot be a store's name: 1 to {NAME_BYTES_MAX} bytes, without \
             spaces, `=` and `,`"
        ));
    }
    if address.len() > ADDRESS_BYTES_MAX || !is_address(address) {
        return Err(format!("{address:?} is not of the form host:port"));
    }
    check_labels(labels)
}

/// Whether `address` has a host and a port.
#[must_use]
pub fn is_address(address: &str) -> bool {
    // From the right: an IPv6 address has colons of its own.
    let parts = address.rsplit_once(':');
    parts.is_some_and(|(host, port)| {
        is_word(host, ADDRESS_BYTES_MAX) && port.parse::<u16>().is_ok_and(|port| port > 0)
    })
}

/// Checks the labels of a store.
///
/// # Errors
///
/// The first fault, in words.
pub fn check_labels(labels: &[(String, String)]) -> Result<(), String> {
    if labels.len() > LABELS_MAX {
        return Err(format!("{} labels are given; a store has {LABELS_MAX} at most", labels.len()));
    }
    for (at, (key, value)) in labels.iter().enumerate() {
        if ![key, value].into_iter().all(|word| is_word(word, LABEL_BYTES_MAX)) {
            return Err(format!(
                "label {key:?} = {value:?}: key and value have 1 to {LABEL_BYTES_MAX} bytes, \
                 without spaces, `=` and `,`"
            ));
        }
        if labels[..at].iter().any(|(other, _)| other == key) {
            return Err(format!("label {key:?} is given twice"));
        }
    }
    Ok(())
}

/// Whether a text can stand in a list and in a table.
fn is_word(text: &str, bytes_max: usize) -> bool {
    let is_part = |c: char| !c.is_whitespace() && !c.is_control() && c != '=' && c != ',';
    (1..=bytes_max).contains(&text.len()) && text.chars().all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store_identity::StoreRun;

    fn request(uuid: u128, name: &str, address: &str) -> RegisterRequest {
        let labels = vec![("zone".to_owned(), "a".to_owned())];
        let (name, address) = (name.to_owned(), address.to_owned());
        RegisterRequest {
            uuid: StoreUuid(uuid),
            name,
            address,
            labels,
            level: 2,
            schema: 3,
            is_replacement: false,
        }
    }

    fn registry() -> StoreRegistry {
        let store = |id: u64| StoreRecord {
            id: StoreId(id),
            name: format!("s{id}"),
            address: format!("h:{id}"),
            uuid: StoreUuid(id.into()),
            level: 2,
            run: StoreRun { starts: 4, nonce: 4 },
            ..StoreRecord::default()
        };
        StoreRegistry { version: 5, level: 2, stores: vec![store(1), store(2)] }
    }

    fn written(registry: &StoreRegistry, request: &RegisterRequest, id: u64) -> StoreRegistry {
        match registry.register(request, Some(StoreId(id))) {
            Ok(Registration::Write(changed)) => *changed,
            other => panic!("{request:?} is not written: {other:?}"),
        }
    }

    #[test]
    fn a_new_store_gets_an_id_and_the_same_directory_gets_the_same_again() {
        let asked = request(9, "s4", "h:4");
        let wanted = Ok(Registration::WantsId { replaces: None });
        assert_eq!(registry().register(&asked, None), wanted);
        let grown = written(&registry(), &asked, 1_000_000);
        assert!(grown.continues(&registry()) && grown.version == 6);
        let record = grown.store(StoreId(1_000_000)).unwrap();
        assert_eq!((record.uuid, record.name.as_str()), (StoreUuid(9), "s4"));
        assert_eq!(record.labels, asked.labels);
        // The answer was lost: no id is spent, and no row written.
        let again = grown.register(&asked, Some(StoreId(1_000_001)));
        assert_eq!(again, Ok(Registration::Known(StoreId(1_000_000))));
        // It died before its ident, and was started with another address.
        let moved = written(&grown, &request(9, "s4", "h:5"), 1_000_001);
        assert_eq!(moved.stores.len(), 3);
        assert_eq!(moved.store(StoreId(1_000_000)).unwrap().address, "h:5");
    }

    #[test]
    fn names_and_addresses_belong_to_one_store_that_takes_part() {
        let refused = |registry: &StoreRegistry, name: &str, address: &str| {
            registry.register(&request(9, name, address), None).unwrap_err()
        };
        let taken = refused(&registry(), "s2", "h:4");
        assert!(matches!(taken, RegisterRefusal::NameTaken { store: StoreId(2), .. }));
        assert!(taken.to_string().contains("this store lost its data; bring its disk back"));
        let taken = refused(&registry(), "s4", "h:2");
        assert!(matches!(taken, RegisterRefusal::AddressTaken { store: StoreId(2), .. }));
        assert!(taken.to_string().contains("h:2 is the address of store 2, s2"));
        let mut lost = registry();
        lost.stores[1].state = StoreState::Lost;
        written(&lost, &request(9, "s2", "h:2"), 7);
    }

    #[test]
    fn a_directory_that_forgot_its_membership_is_refused() {
        let refusal = registry().register(&request(2, "s2", "h:2"), None).unwrap_err();
        assert!(matches!(refusal, RegisterRefusal::Forgotten { store: StoreId(2), .. }));
        assert!(refusal.to_string().contains("an older copy of this store's disk"));
        let mut gone = registry();
        gone.stores[1].state = StoreState::Removed;
        let refusal = gone.register(&request(2, "s2", "h:2"), None).unwrap_err();
        assert_eq!(refusal, RegisterRefusal::Gone { store: StoreId(2) });
    }

    fn replacement(uuid: u128, name: &str, address: &str) -> RegisterRequest {
        RegisterRequest { is_replacement: true, ..request(uuid, name, address) }
    }

    #[test]
    fn one_change_makes_a_store_lost_and_gives_its_name_a_new_id() {
        let mut registry = registry();
        registry.stores[1].labels = vec![("zone".to_owned(), "b".to_owned())];
        let mut asked = replacement(9, "s2", "h:2");
        let wanted = Ok(Registration::WantsId { replaces: Some(StoreId(2)) });
        assert_eq!(registry.register(&asked, None), wanted);
        let replaced = |asked: &RegisterRequest| match registry
            .register(asked, Some(StoreId(1_000_000)))
            .unwrap()
        {
            Registration::Replace(lost, changed) => (lost, *changed),
            other => panic!("{other:?}"),
        };
        let (lost, changed) = replaced(&asked);
        assert_eq!((lost, changed.version), (StoreId(2), 6));
        assert!(changed.continues(&registry));
        assert_eq!(changed.store(StoreId(2)).unwrap().state, StoreState::Lost);
        let new = changed.named("s2").unwrap();
        assert_eq!((new.id, new.uuid), (StoreId(1_000_000), StoreUuid(9)));
        assert_eq!(new.labels, asked.labels);
        // Without labels of its own it stands where the old one stood.
        asked.labels.clear();
        assert_eq!(replaced(&asked).1.named("s2").unwrap().labels, registry.stores[1].labels);

        // The answer was lost: it asks again, and replaces nothing but has its id.
        let again = changed.register(&asked, Some(StoreId(1_000_001)));
        assert_eq!(again, Ok(Registration::Known(StoreId(1_000_000))));
        // The old directory is back.
        let old = changed.register(&replacement(2, "s2", "h:2"), None).unwrap_err();
        assert_eq!(old, RegisterRefusal::Gone { store: StoreId(2) });
        // The new directory was lost, too.
        let third = replacement(10, "s2", "h:2");
        let decision = changed.register(&third, Some(StoreId(1_000_001))).unwrap();
        assert!(matches!(decision, Registration::Replace(StoreId(1_000_000), _)), "{decision:?}");
    }

    #[test]
    fn only_a_store_that_was_there_is_replaced() {
        let nothing = registry().register(&replacement(9, "s9", "h:9"), None).unwrap_err();
        assert_eq!(nothing, RegisterRefusal::NothingToReplace { name: "s9".to_owned() });
        let taken = registry().register(&replacement(9, "s2", "h:1"), None).unwrap_err();
        assert!(matches!(taken, RegisterRefusal::AddressTaken { store: StoreId(1), .. }));
        // Declared lost before: its name is free, and it is simply joined.
        let mut lost = registry();
        lost.stores[1].state = StoreState::Lost;
        written(&lost, &replacement(9, "s2", "h:2"), 7);
        // A member that forgot that it is one.
        let forgotten = registry().register(&replacement(2, "s2", "h:2"), None).unwrap_err();
        assert!(matches!(forgotten, RegisterRefusal::Forgotten { store: StoreId(2), .. }));
    }

    #[test]
    fn an_old_version_and_a_full_registry_are_refused() {
        let old = RegisterRequest { level: 1, ..request(9, "s4", "h:4") };
        let refusal = registry().register(&old, None).unwrap_err();
        assert_eq!(refusal, RegisterRefusal::OldVersion { found: 1, needed: 2 });
        let mut full = registry();
        let spare = full.stores[0].clone();
        for id in 3..=REGISTERED_STORES_MAX as u64 {
            let (name, address) = (format!("s{id}"), format!("h:{id}"));
            let (id, uuid) = (StoreId(id), StoreUuid(id.into()));
            full.stores.push(StoreRecord { id, name, address, uuid, ..spare.clone() });
        }
        let asked = request(u128::MAX, "new", "new:1");
        assert_eq!(full.register(&asked, None), Err(RegisterRefusal::Full));
    }

    #[test]
    fn names_addresses_and_labels_have_a_form() {
        let long = "x".repeat(65);
        for (name, address) in [
            ("", "h:4"),
            ("a b", "h:4"),
            ("a=b", "h:4"),
            (&long, "h:4"),
            ("s4", ""),
            ("s4", "h"),
            ("s4", "h:0"),
            ("s4", ":4"),
            ("s4", "a,b:4"),
        ] {
            let refusal = registry().register(&request(9, name, address), None).unwrap_err();
            assert!(matches!(refusal, RegisterRefusal::Invalid(_)), "{name} {address}");
        }
        let nil = registry().register(&request(0, "s4", "h:4"), None).unwrap_err();
        assert!(matches!(nil, RegisterRefusal::Invalid(_)));
        let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(check_labels(&[label("zone", "a"), label("rack", "b")]), Ok(()));
        for labels in [
            vec![label("zone", "")],
            vec![label("", "a")],
            vec![label("zone", "a b")],
            vec![label("zone", "a"), label("zone", "b")],
            (0..17).map(|nth| label(&format!("k{nth}"), "a")).collect(),
        ] {
            assert!(check_labels(&labels).is_err(), "{labels:?}");
        }
    }
}
