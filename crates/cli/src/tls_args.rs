//! The certificate that a tool shows to the stores.

use std::fmt;
use std::path::PathBuf;

use flotilla_tls::{CertificateFiles, CredentialStore, TlsDialer};

/// Files of a certificate; all three, or none for connections without TLS.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct TlsArgs {
    /// Authority of the cluster's certificates; with --tls-cert and --tls-key connections have TLS
    #[arg(
        long = "tls-ca",
        id = "tls_ca",
        global = true,
        value_name = "FILE",
        env = "FLOTILLA_CA_FILE"
    )]
    pub ca: Option<PathBuf>,
    /// Certificate of this client or operator
    #[arg(
        long = "tls-cert",
        id = "tls_cert",
        global = true,
        value_name = "FILE",
        env = "FLOTILLA_CERT_FILE"
    )]
    pub cert: Option<PathBuf>,
    /// Key of that certificate
    #[arg(
        long = "tls-key",
        id = "tls_key",
        global = true,
        value_name = "FILE",
        env = "FLOTILLA_KEY_FILE"
    )]
    pub key: Option<PathBuf>,
}

/// As they are given on a command line.
impl fmt::Display for TlsArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files = [("--tls-ca", &self.ca), ("--tls-cert", &self.cert), ("--tls-key", &self.key)];
        let given = files.into_iter().filter_map(|(flag, file)| Some((flag, file.as_ref()?)));
        let words: Vec<_> =
            given.map(|(flag, file)| format!("{flag} {}", file.display())).collect();
        f.write_str(&words.join(" "))
    }
}

impl TlsArgs {
    /// The way to stores with TLS; `None` if no file is given.
    ///
    /// # Errors
    ///
    /// Some of the three are missing, or cannot be used: which, in words.
    pub fn dialer(&self) -> Result<Option<TlsDialer>, String> {
        let (ca, cert, key) = match (&self.ca, &self.cert, &self.key) {
            (None, None, None) => return Ok(None),
            (Some(ca), Some(cert), Some(key)) => (ca.clone(), cert.clone(), key.clone()),
            _ => {
                return Err("TLS needs all three of --tls-ca, --tls-cert and --tls-key".to_owned());
            }
        };
        let credentials = CredentialStore::open(CertificateFiles { ca, cert, key });
        let credentials = credentials.map_err(|error| error.to_string())?;
        Ok(Some(TlsDialer::new(credentials)))
    }
}
