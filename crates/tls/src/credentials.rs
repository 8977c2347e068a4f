//! Settings of the TLS library, made of a party's files: one set for connections that come in, one
//! for those that go out.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::UnixTime;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::certificate::CertificateFacts;
use crate::error::TlsError;
use crate::files::{CertificateContents, CertificateFiles};

/// The protocols above TLS: gRPC, and HTTP/1.1 for scrapes and browsers.
const SERVED_PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];
const DIALLED_PROTOCOLS: [&[u8]; 1] = [b"h2"];

/// A certificate that can be used, with its key and the authority that the other side is checked
/// by.
#[derive(Debug)]
pub struct Credentials {
    pub(crate) server: Arc<ServerConfig>,
    pub(crate) client: Arc<ClientConfig>,
    pub(crate) names: Vec<String>,
    expires: SystemTime,
}

impl Credentials {
    /// Reads `files`, and checks that the certificate is that of the key, signed by the authority,
    /// and valid now.
    ///
    /// # Errors
    ///
    /// The file that is wrong, and what is wrong with it.
    pub fn read(files: &CertificateFiles) -> Result<Self, TlsError> {
        let CertificateContents { authorities, chain, key } = files.read()?;
        let unusable = |words: String| TlsError::Unusable { path: files.cert.clone(), words };
        let facts = CertificateFacts::read(&chain[0])
            .ok_or_else(|| unusable("the certificate cannot be read".to_owned()))?;
        let mut roots = RootCertStore::empty();
        for authority in authorities {
            roots.add(authority).map_err(|error| TlsError::Content {
                path: files.ca.clone(),
                words: format!("a certificate in it is no authority: {error}"),
            })?;
        }
        let roots = Arc::new(roots);
        let provider: Arc<CryptoProvider> = Arc::new(ring::default_provider());
        let of_library = |error: rustls::Error| unusable(error.to_string());
        let clients =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
                .build()
                .map_err(|error| TlsError::Content {
                    path: files.ca.clone(),
                    words: error.to_string(),
                })?;
        // The others judge it in the same way: better here and now, in words.
        clients.verify_client_cert(&chain[0], &chain[1..], UnixTime::now()).map_err(|error| {
            unusable(format!(
                "it would be refused by whoever trusts {}: {error}",
                files.ca.display()
            ))
        })?;
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(of_library)?
            .with_client_cert_verifier(clients)
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(of_library)?;
        server.alpn_protocols = SERVED_PROTOCOLS.map(<[u8]>::to_vec).to_vec();
        // A session that is taken up again would be that of a certificate that nothing looks at
        // any more; connections are few and live long.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        let servers = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider))
            .build()
            .map_err(|error| unusable(error.to_string()))?;
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(of_library)?
            .with_webpki_verifier(servers)
            .with_client_auth_cert(chain, key)
            .map_err(of_library)?;
        client.alpn_protocols = DIALLED_PROTOCOLS.map(<[u8]>::to_vec).to_vec();
        client.resumption = Resumption::disabled();
        let expires = u64::try_from(facts.expires).unwrap_or_default();
        Ok(Self {
            server: Arc::new(server),
            client: Arc::new(client),
            names: facts.names,
            expires: UNIX_EPOCH + Duration::from_secs(expires),
        })
    }

    /// The end of the certificate's time.
    #[must_use]
    pub fn expires(&self) -> SystemTime {
        self.expires
    }
}
