//! TLS of one node: the certificates that it shows, the connections that it takes, with their
//! counts, the way to other stores.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flotilla_tls::{CredentialStore, TlsAcceptor, TlsDialer, TlsError};
use tokio::time::{MissedTickBehavior, interval};

use crate::config::{TlsConfig, TlsMode};
use crate::net::connection_counts::ConnectionCounts;
use crate::net::dial::Dialer;

/// The interval at which files are looked at for a change.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// A certificate that ends so soon is warned about at the start and when it comes into use.
const EXPIRY_WARNING: Duration = Duration::from_secs(14 * 24 * 3600);

/// TLS of one node, or none, and the counts of its connections. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct NodeSecurity {
    tls: Option<(CredentialStore, TlsAcceptor)>,
    dialer: Dialer,
    counts: Arc<ConnectionCounts>,
}

flotilla_base::metrics! { "tls",
    /// Certificates and connections of a store with TLS; all 0 without.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct TlsStats {
        /// End of the certificate's time, in seconds since 1970.
        pub certificate_expiry_timestamp_seconds: u64 => Gauge(None),
        /// Connections that were taken with TLS.
        pub connections_taken: u64 => Counter(None),
        /// Connections whose handshake failed.
        pub handshakes_failed: u64 => Counter(None),
        /// Connections without TLS that were taken, since the mode is optional.
        pub plain_connections_taken: u64 => Counter(None),
        /// Connections without TLS that were refused.
        pub plain_connections_refused: u64 => Counter(None),
        /// Times that changed files have come into use.
        pub certificate_reloads: u64 => Counter(None),
        /// Times that changed files could not be used, and the certificate stayed.
        pub certificate_reloads_failed: u64 => Counter(None),
    }
}

impl NodeSecurity {
    /// Reads the certificates of `config`, which must be those of the store `name`, if its mode has
    /// some. Blocks.
    ///
    /// # Errors
    ///
    /// The file that cannot be used.
    pub(crate) fn open(config: &TlsConfig, name: &str) -> Result<Self, TlsError> {
        let mode = config.mode();
        if mode == TlsMode::Off {
            return Ok(Self::default());
        }
        let is_required = mode == TlsMode::Required;
        let credentials = CredentialStore::open_of_store(config.files(), config.roles(), name)?;
        let acceptor = TlsAcceptor::new(credentials.clone(), config.roles(), !is_required);
        let mut dialer = TlsDialer::new(credentials.clone()).to_stores(config.roles());
        if !is_required {
            dialer = dialer.or_plain();
            tracing::warn!(
                "tls.mode is optional: connections without TLS are taken, and may do anything; \
                 set it to required once all stores and clients have certificates"
            );
        }
        warn_of_expiry(&credentials);
        let dialer = Dialer::with_tls(dialer, is_required);
        Ok(Self { tls: Some((credentials, acceptor)), dialer, counts: Arc::default() })
    }

    /// The way to other stores.
    pub(crate) fn dialer(&self) -> &Dialer {
        &self.dialer
    }

    /// Takes connections, if there is TLS.
    pub(crate) fn acceptor(&self) -> Option<&TlsAcceptor> {
        self.tls.as_ref().map(|(_, acceptor)| acceptor)
    }

    /// The counts of connections, with TLS or without.
    pub(crate) fn counts(&self) -> &Arc<ConnectionCounts> {
        &self.counts
    }

    /// The counts of TLS now.
    pub(crate) fn stats(&self) -> TlsStats {
        let Some((credentials, acceptor)) = &self.tls else { return TlsStats::default() };
        let expires = credentials.current().expires().duration_since(UNIX_EPOCH);
        let (counts, (reloads, failures)) = (acceptor.counts(), credentials.reload_counts());
        TlsStats {
            certificate_expiry_timestamp_seconds: expires.unwrap_or_default().as_secs(),
            connections_taken: counts.handshakes,
            handshakes_failed: counts.failures,
            plain_connections_taken: counts.plain,
            plain_connections_refused: counts.plain_refused,
            certificate_reloads: reloads,
            certificate_reloads_failed: failures,
        }
    }

    /// Reads the files again if they have changed, and logs what came of it: files that cannot be
    /// used leave everything as it was. A running node does so by itself within 10 s of a change.
    pub async fn reload(&self) {
        let Some((credentials, _)) = self.tls.clone() else { return };
        let read = tokio::task::spawn_blocking(move || {
            let is_changed = credentials.reload_if_changed()?;
            if is_changed {
                tracing::info!("the certificate was read again");
                warn_of_expiry(&credentials);
            }
            Ok::<_, TlsError>(())
        });
        if let Ok(Err(error)) = read.await {
            tracing::warn!("the certificate stays as it was: {error}");
        }
    }

    /// Follows the files until it is dropped.
    pub(crate) async fn follow_files(self) {
        if self.tls.is_none() {
            return;
        }
        let mut looks = interval(LOOK_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            self.reload().await;
        }
    }
}

fn warn_of_expiry(credentials: &CredentialStore) {
    let left = credentials.current().expires().duration_since(SystemTime::now());
    let left = left.unwrap_or_default();
    if left < EXPIRY_WARNING {
        tracing::warn!("the certificate ends in {} hours: renew it", left.as_secs() / 3600);
    }
}
