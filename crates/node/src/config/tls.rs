//! `[tls]`: certificates, and the names in them that stand for roles.

use std::path::PathBuf;

use flotilla_tls::{CertificateFiles, RoleNames};
use serde::{Deserialize, Serialize};

use super::error::ConfigError;
use super::key::{settings, text, texts, word};
use super::path_text::lossy;

settings! {
    /// Certificates, and the names in them that stand for roles.
    #[derive(Eq)]
    pub struct TlsConfig: "tls" {
        /// `off`: no connection has TLS. `required`: every connection has it, and both sides show a
        /// certificate. `optional`: connections of both kinds are taken, and TLS is used with
        /// stores that speak it; for the time in which a cluster is changed over.
        #[key(
            word(&["off", "optional", "required"])
                .default_is("`required` if files are given, else `off`")
        )]
        pub mode: Option<TlsMode>,
        /// PEM file with the authorities that sign the certificates of all parties. It is read
        /// again when it changes, as the other two are.
        #[key(text())]
        #[serde(serialize_with = "lossy")]
        pub ca_file: PathBuf,
        /// PEM file with this store's certificate, then those between it and the authority. It is
        /// shown to those who connect, and to stores that this one connects to.
        #[key(text())]
        #[serde(serialize_with = "lossy")]
        pub cert_file: PathBuf,
        /// PEM file with the key of that certificate.
        #[key(text())]
        #[serde(serialize_with = "lossy")]
        pub key_file: PathBuf,
        /// Names in certificates of clients: common names, or alternative names that are a host or
        /// a URI; a star at the end stands for any rest. Equal on all stores.
        #[key(texts())]
        pub client_names: Vec<String>,
        /// Names in certificates of operators, likewise.
        #[key(texts())]
        pub operator_names: Vec<String>,
        /// The name in the certificate of a store, with `{name}` for its name in the cluster.
        /// Equal on all stores.
        #[key(text())]
        pub store_name: String,
    }
}

/// Which connections a store takes, and which it makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TlsMode {
    /// No TLS.
    Off,
    /// TLS and plain connections are taken; those to other stores have TLS where these speak it.
    /// For the time in which the stores of a cluster are changed over.
    Optional,
    /// TLS only.
    Required,
}

impl Default for TlsConfig {
    fn default() -> Self {
        let RoleNames { clients, operators, store } = RoleNames::default();
        Self {
            mode: None,
            ca_file: PathBuf::new(),
            cert_file: PathBuf::new(),
            key_file: PathBuf::new(),
            client_names: clients,
            operator_names: operators,
            store_name: store,
        }
    }
}

impl TlsConfig {
    /// The mode that is meant.
    #[must_use]
    pub fn mode(&self) -> TlsMode {
        let default = if self.is_any_file_given() { TlsMode::Required } else { TlsMode::Off };
        self.mode.unwrap_or(default)
    }

    /// The files; to be read only if the mode is not `off`.
    pub(crate) fn files(&self) -> CertificateFiles {
        CertificateFiles {
            ca: self.ca_file.clone(),
            cert: self.cert_file.clone(),
            key: self.key_file.clone(),
        }
    }

    /// The names that stand for roles.
    pub(crate) fn roles(&self) -> RoleNames {
        RoleNames {
            clients: self.client_names.clone(),
            operators: self.operator_names.clone(),
            store: self.store_name.clone(),
        }
    }

    fn named_files(&self) -> [(&'static str, &PathBuf); 3] {
        [("ca_file", &self.ca_file), ("cert_file", &self.cert_file), ("key_file", &self.key_file)]
    }

    fn is_any_file_given(&self) -> bool {
        self.named_files().iter().any(|(_, path)| !path.as_os_str().is_empty())
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let missing = self.named_files().into_iter().find(|(_, path)| path.as_os_str().is_empty());
        if let Some((name, _)) = missing.filter(|_| self.mode() != TlsMode::Off) {
            return Err(ConfigError::Value(format!(
                "tls.{name} is missing: TLS needs ca_file, cert_file and key_file"
            )));
        }
        self.roles().check().map_err(|words| ConfigError::Value(format!("tls: {words}")))
    }
}
