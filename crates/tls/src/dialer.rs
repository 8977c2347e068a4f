//! The side that connects: TLS with the own certificate, and the other side's checked.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Uri;
use hyper_util::rt::TokioIo;
use rustls::InvalidMessage;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};
use tower_service::Service;

use crate::certificate::CertificateFacts;
use crate::credential_store::CredentialStore;
use crate::roles::{PartyRole, RoleNames};
use crate::stream::MaybeTlsStream;

/// Connects with TLS. Cheap to clone.
#[derive(Clone, Debug)]
pub struct TlsDialer {
    credentials: CredentialStore,
    is_plain_allowed: bool,
    /// The names by which the other side must be a store; none: any that the authority has signed
    /// for its host.
    stores: Option<Arc<RoleNames>>,
}

impl TlsDialer {
    /// A dialer that shows the newest of `credentials`. The other side's certificate must be
    /// signed by their authority, for the host that is dialled.
    #[must_use]
    pub fn new(credentials: CredentialStore) -> Self {
        Self { credentials, is_plain_allowed: false, stores: None }
    }

    /// The same, where the other side must be a store by `roles`, too: a client with a certificate
    /// for its host does not pass for one.
    #[must_use]
    pub fn to_stores(self, roles: RoleNames) -> Self {
        Self { stores: Some(Arc::new(roles)), ..self }
    }

    /// The same, or without TLS where the other side does not speak it.
    #[must_use]
    pub fn or_plain(self) -> Self {
        Self { is_plain_allowed: true, ..self }
    }

    /// Connects to `endpoint`.
    ///
    /// # Errors
    ///
    /// The connection or its handshake failed; the deepest cause has the words.
    pub async fn connect(&self, endpoint: &Endpoint) -> Result<Channel, tonic::transport::Error> {
        endpoint.connect_with_connector(self.clone()).await
    }

    /// A channel that connects to `endpoint` when it is first used, and again after it broke.
    #[must_use]
    pub fn connect_lazy(&self, endpoint: &Endpoint) -> Channel {
        endpoint.connect_with_connector_lazy(self.clone())
    }

    /// Connects to `port` of `host`.
    ///
    /// # Errors
    ///
    /// Of the kernel, or those of the handshake in words.
    pub async fn dial(&self, host: &str, port: u16) -> io::Result<MaybeTlsStream> {
        let stream = open(host, port).await?;
        match self.handshake(host, stream).await {
            Ok(stream) => Ok(stream),
            // A server of HTTP may hang up without an answer to bytes that it cannot read.
            Err(error) if self.is_plain_allowed && (is_plain_peer(&error) || is_end(&error)) => {
                open(host, port).await.map(MaybeTlsStream::Plain)
            }
            Err(error) if is_plain_peer(&error) => {
                Err(io::Error::other(format!("{host}:{port} speaks no TLS")))
            }
            Err(error) => Err(io::Error::other(format!("TLS with {host}:{port}: {error}"))),
        }
    }

    async fn handshake(&self, host: &str, stream: TcpStream) -> io::Result<MaybeTlsStream> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let connector = TlsConnector::from(Arc::clone(&self.credentials.current().client));
        let stream = connector.connect(name, stream).await?;
        if let Some(roles) = &self.stores {
            let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
            let facts = certificate.and_then(|certificate| CertificateFacts::read(certificate));
            let identity = roles.identify(facts.unwrap_or_default().names);
            if !identity.has(PartyRole::Store) {
                let names = identity.names();
                return Err(io::Error::other(format!("its certificate is no store's: {names}")));
            }
        }
        Ok(MaybeTlsStream::Tls(Box::new(stream.into())))
    }
}

/// A socket that sends small frames at once.
async fn open(host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Whether the other side answered a handshake with something else than TLS.
fn is_plain_peer(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    let plain = rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType);
    cause.is_some_and(|cause| *cause == plain)
}

/// Whether the other side hung up within the handshake.
fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset)
}

impl Service<Uri> for TlsDialer {
    type Response = TokioIo<MaybeTlsStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, io::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let dialer = self.clone();
        Box::pin(async move {
            let no_address = || io::Error::other(format!("{uri} is no host:port"));
            let host = uri.host().ok_or_else(no_address)?;
            // Brackets around an address of IPv6 belong to the URI.
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let port = uri.port_u16().ok_or_else(no_address)?;
            dialer.dial(host, port).await.map(TokioIo::new)
        })
    }
}
