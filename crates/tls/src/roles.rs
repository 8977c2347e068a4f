//! Roles: what the names in a certificate allow.

/// The part of a cluster that a party takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartyRole {
    /// Reads and writes rows, asks placement.
    Client,
    /// A client that may change the cluster as well.
    Operator,
    /// A store of the cluster; it asks the others as a client does, too.
    Store,
}

/// The names in certificates that stand for roles. A name is a common name, or an alternative name
/// of the kind DNS or URI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleNames {
    /// Names of clients. A star at the end stands for any rest.
    pub clients: Vec<String>,
    /// Names of operators, likewise.
    pub operators: Vec<String>,
    /// The name of a store, with `{name}` in the place of its name in the cluster.
    pub store: String,
}

/// The place of a store's name in [`RoleNames::store`].
const STORE_NAME: &str = "{name}";

impl Default for RoleNames {
    fn default() -> Self {
        Self {
            clients: vec!["*".to_owned()],
            operators: vec!["flotilla://operator/*".to_owned()],
            store: format!("flotilla://store/{STORE_NAME}"),
        }
    }
}

impl RoleNames {
    /// Whether these names can be told apart at all.
    ///
    /// # Errors
    ///
    /// The one that cannot, and the reason.
    pub fn check(&self) -> Result<(), String> {
        if self.store.matches(STORE_NAME).count() != 1 {
            return Err(format!(
                "store_name = \"{}\" must have {STORE_NAME} in it once, where the name of the \
                 store stands",
                self.store
            ));
        }
        let patterns = self.clients.iter().chain(&self.operators);
        let is_wrong =
            |pattern: &&String| pattern.is_empty() || pattern.trim_end_matches('*').contains('*');
        match patterns.clone().find(is_wrong) {
            Some(wrong) => Err(format!(
                "\"{wrong}\" in client_names or operator_names: a name, with a star at its end at \
                 most"
            )),
            None => Ok(()),
        }
    }

    /// The party whose certificate has `names`.
    pub(crate) fn identify(&self, names: Vec<String>) -> PeerIdentity {
        let has_any = |patterns: &[String]| {
            names.iter().any(|name| patterns.iter().any(|pattern| matches(pattern, name)))
        };
        let (before, after) = self.store.split_once(STORE_NAME).unwrap_or((&self.store, ""));
        let of_store = |name: &String| {
            let name = name.strip_prefix(before)?.strip_suffix(after)?;
            (!name.is_empty()).then(|| name.to_owned())
        };
        PeerIdentity {
            is_client: has_any(&self.clients),
            is_operator: has_any(&self.operators),
            stores: names.iter().filter_map(of_store).collect(),
            names,
        }
    }
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == pattern,
    }
}

/// The party at the other end of a connection, by its certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerIdentity {
    names: Vec<String>,
    is_client: bool,
    is_operator: bool,
    stores: Vec<String>,
}

impl PeerIdentity {
    /// Whether the party may do what `role` may.
    #[must_use]
    pub fn has(&self, role: PartyRole) -> bool {
        match role {
            PartyRole::Client => self.is_client || self.is_operator || !self.stores.is_empty(),
            PartyRole::Operator => self.is_operator,
            PartyRole::Store => !self.stores.is_empty(),
        }
    }

    /// Whether the party is the store with this name.
    #[must_use]
    pub fn is_store(&self, name: &str) -> bool {
        self.stores.iter().any(|store| store == name)
    }

    /// The names in the certificate, for people.
    #[must_use]
    pub fn names(&self) -> String {
        match self.names.is_empty() {
            true => "a certificate without a name".to_owned(),
            false => self.names.join(", "),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identify(roles: &RoleNames, names: &[&str]) -> PeerIdentity {
        roles.identify(names.iter().map(|name| (*name).to_owned()).collect())
    }

    #[test]
    fn a_name_stands_for_one_role() {
        let roles = RoleNames::default();
        let store = identify(&roles, &["s1", "flotilla://store/s1"]);
        assert!(store.is_store("s1") && !store.is_store("s") && !store.is_store("s11"));
        assert!(
            store.has(PartyRole::Store)
                && store.has(PartyRole::Client)
                && !store.has(PartyRole::Operator)
        );
        let operator = identify(&roles, &["flotilla://operator/ann"]);
        assert!(operator.has(PartyRole::Operator) && operator.has(PartyRole::Client));
        assert!(!operator.has(PartyRole::Store));
        let client = identify(&roles, &["app"]);
        assert!(client.has(PartyRole::Client) && !client.has(PartyRole::Operator));
        assert!(!client.has(PartyRole::Store) && !client.is_store("app") && !client.is_store(""));
        assert!(!identify(&roles, &["flotilla://store/"]).has(PartyRole::Store));
        assert!(!identify(&roles, &[]).has(PartyRole::Client));
    }

    #[test]
    fn names_of_an_own_authority_are_settings() {
        let roles = RoleNames {
            clients: vec!["app-*".to_owned(), "reports".to_owned()],
            operators: vec!["admin".to_owned()],
            store: "{name}.stores.example.com".to_owned(),
        };
        assert_eq!(roles.check(), Ok(()));
        assert!(identify(&roles, &["app-7"]).has(PartyRole::Client));
        assert!(!identify(&roles, &["apt"]).has(PartyRole::Client));
        assert!(!identify(&roles, &["reports2"]).has(PartyRole::Client));
        assert!(identify(&roles, &["admin"]).has(PartyRole::Client));
        assert!(identify(&roles, &["s2.stores.example.com"]).is_store("s2"));
        assert!(!identify(&roles, &["flotilla://store/s2"]).has(PartyRole::Client));
    }

    #[test]
    fn names_that_cannot_be_told_apart_are_refused() {
        let store = |store: &str| RoleNames { store: store.to_owned(), ..Default::default() };
        assert!(store("store").check().unwrap_err().contains("{name}"));
        assert!(store("{name}{name}").check().is_err());
        let clients =
            |name: &str| RoleNames { clients: vec![name.to_owned()], ..Default::default() };
        for wrong in ["", "a*b", "*a"] {
            assert!(clients(wrong).check().is_err(), "{wrong}");
        }
    }
}
