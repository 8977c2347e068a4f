//! The side of a connection that is connected to: handshake, or none where that is allowed.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::certificate::CertificateFacts;
use crate::credential_store::CredentialStore;
use crate::plain_refusal;
use crate::roles::{PeerIdentity, RoleNames};
use crate::stream::MaybeTlsStream;

/// How long a peer has from its first byte to the end of its handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// The first byte of a TLS connection: a record of the handshake (RFC 8446, section 5.1). No
/// request of HTTP begins with it.
const TLS_BEGIN: u8 = 0x16;

/// Why a connection was not taken.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// The peer spoke without TLS; it was told that it must not.
    #[error("it speaks without TLS")]
    Plain,
    /// The handshake failed. The text says why.
    #[error("{0}")]
    Handshake(io::Error),
    /// The peer was too slow.
    #[error("it did not finish its handshake in time")]
    TimedOut,
    /// The peer went away before its first byte.
    #[error("it went away")]
    Gone,
}

/// Takes connections with TLS, and those without if that is allowed. Cheap to clone.
#[derive(Clone, Debug)]
pub struct TlsAcceptor {
    credentials: CredentialStore,
    roles: Arc<RoleNames>,
    is_plain_allowed: bool,
    counts: Arc<AcceptCounters>,
}

#[derive(Debug, Default)]
struct AcceptCounters {
    handshakes: AtomicU64,
    failures: AtomicU64,
    plain: AtomicU64,
    plain_refused: AtomicU64,
}

/// Connections that were taken, or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TlsCounts {
    /// Those with TLS.
    pub handshakes: u64,
    /// Those whose handshake failed.
    pub failures: u64,
    /// Those without TLS that were taken.
    pub plain: u64,
    /// Those without TLS that were refused.
    pub plain_refused: u64,
}

impl TlsAcceptor {
    /// An acceptor with the newest of `credentials` at each connection.
    #[must_use]
    pub fn new(credentials: CredentialStore, roles: RoleNames, is_plain_allowed: bool) -> Self {
        let (roles, counts) = (Arc::new(roles), Arc::default());
        Self { credentials, roles, is_plain_allowed, counts }
    }

    /// Takes a connection: who is at its other end, if that side has shown a certificate. Waits
    /// for the first byte as long as the caller does, and 5 s from there.
    ///
    /// # Errors
    ///
    /// [`AcceptError`]; the connection has ended, and the peer was told why as far as its protocol
    /// has words.
    pub async fn accept(
        &self,
        stream: TcpStream,
    ) -> Result<(MaybeTlsStream, Option<Arc<PeerIdentity>>), AcceptError> {
        let mut begin = [0];
        match stream.peek(&mut begin).await {
            Ok(1) => {}
            _ => return Err(AcceptError::Gone),
        }
        let taken = timeout(HANDSHAKE_TIMEOUT, self.take(stream, begin[0])).await;
        taken.unwrap_or(Err(AcceptError::TimedOut)).inspect_err(|error| match error {
            AcceptError::Plain => count(&self.counts.plain_refused),
            _ => count(&self.counts.failures),
        })
    }

    async fn take(
        &self,
        stream: TcpStream,
        begin: u8,
    ) -> Result<(MaybeTlsStream, Option<Arc<PeerIdentity>>), AcceptError> {
        if begin != TLS_BEGIN {
            if self.is_plain_allowed {
                count(&self.counts.plain);
                return Ok((stream.into(), None));
            }
            // One that cannot be told has gone by itself.
            let _ = plain_refusal::refuse(stream).await;
            return Err(AcceptError::Plain);
        }
        let acceptor =
            tokio_rustls::TlsAcceptor::from(Arc::clone(&self.credentials.current().server));
        let stream = acceptor.accept(stream).await.map_err(AcceptError::Handshake)?;
        let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let facts = certificate.and_then(|certificate| CertificateFacts::read(certificate));
        let unreadable = || io::Error::other("its certificate cannot be read");
        let facts = facts.ok_or_else(|| AcceptError::Handshake(unreadable()))?;
        count(&self.counts.handshakes);
        let identity = self.roles.identify(facts.names);
        let stream = MaybeTlsStream::Tls(Box::new(stream.into()));
        Ok((stream, Some(Arc::new(identity))))
    }

    /// The connections so far.
    #[must_use]
    pub fn counts(&self) -> TlsCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TlsCounts {
            handshakes: read(&self.counts.handshakes),
            failures: read(&self.counts.failures),
            plain: read(&self.counts.plain),
            plain_refused: read(&self.counts.plain_refused),
        }
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
