//! The certificate that a tool shows to the stores.

use std::fmt;
use std::path::PathBuf;

use flotilla_tls::{CertificateFiles, CredentialStore, TlsDialer};

use crate::tool::Error;

/// Files of a certificate; all three, or none for connections without TLS.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct TlsArgs {
    /// Authority of the cluster's certificates; with --cert and --key connections have TLS
    #[arg(long, global = true, value_name = "FILE", env = "FLOTILLA_CA_FILE")]
    pub ca: Option<PathBuf>,
    /// Certificate of this client or operator
    #[arg(long, global = true, value_name = "FILE", env = "FLOTILLA_CERT_FILE")]
    pub cert: Option<PathBuf>,
    /// Key of that certificate
    #[arg(long, global = true, value_name = "FILE", env = "FLOTILLA_KEY_FILE")]
    pub key: Option<PathBuf>,
}

/// As they are given on a command line.
impl fmt::Display for TlsArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files = [("--ca", &self.ca), ("--cert", &self.cert), ("--key", &self.key)];
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
    /// Some of the three are missing, or cannot be used.
    pub fn dialer(&self) -> Result<Option<TlsDialer>, Error> {
        let (ca, cert, key) = match (&self.ca, &self.cert, &self.key) {
            (None, None, None) => return Ok(None),
            (Some(ca), Some(cert), Some(key)) => (ca.clone(), cert.clone(), key.clone()),
            _ => {
                let words = "TLS needs all three of --ca, --cert and --key";
                return Err(Error::Argument(words.to_owned()));
            }
        };
        let credentials = CredentialStore::open(CertificateFiles { ca, cert, key });
        let credentials = credentials.map_err(|error| Error::Argument(error.to_string()))?;
        Ok(Some(TlsDialer::new(credentials)))
    }
}
