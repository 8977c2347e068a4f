//! The task of one stream to another store: connect, greet, send frames, and retry after a backoff.

use std::sync::Arc;
use std::time::Duration;

use flotilla_dispatch::StreamKind;
use flotilla_proto::peers::peers_client::PeersClient;
use flotilla_region::{Event, StoreId};
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::counters::TransportCounters;
use super::fault::LinkFault;
use super::send_queue::{FrameSender, FrameStream, SendQueue, SenderState};
use crate::driver::disk_view::DiskView;
use crate::driver::shard_message::Mailboxes;
use crate::membership::{HandshakeError, Membership};
use crate::net::dial::PEER_MESSAGE_BYTES_MAX;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A store that says nothing for this long is asked whether it is there, and given up after
/// [`KEEPALIVE_TIMEOUT`]: a machine that lost its power closes no connection.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3);

/// How long a handshake may take: some exchanges, and a synced write on each side.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Backoff between attempts. Short at first, because a store that restarts is back soon and its
/// replicas are waited for.
const PAUSE_LEAST: Duration = Duration::from_millis(50);
const PAUSE_MOST: Duration = Duration::from_millis(1000);

/// The task of one stream, before it runs.
pub(super) struct PeerStream {
    pub(super) kind: StreamKind,
    pub(super) membership: Membership,
    pub(super) to: StoreId,
    pub(super) queue: Arc<SendQueue>,
    pub(super) fault: Arc<LinkFault>,
    pub(super) mailboxes: Mailboxes,
    pub(super) disks: Arc<DiskView>,
    pub(super) counts: Arc<TransportCounters>,
}

impl PeerStream {
    /// Runs until it is aborted.
    pub(super) async fn run(self) {
        let mut pause = PAUSE_LEAST;
        for attempt in 0_usize.. {
            let addresses = self.membership.addresses(self.to);
            let address = &addresses[attempt % addresses.len().max(1)];
            match self.connect(address).await {
                Ok(channel) => {
                    tracing::debug!(store = %self.to, kind = ?self.kind, "connected");
                    match self.serve(channel, address).await {
                        ConnectionEnd::Streamed => pause = PAUSE_LEAST,
                        // The other store does not take this one; that seldom heals by itself, so
                        // retry seldom.
                        ConnectionEnd::Refused => pause = PAUSE_MOST,
                        ConnectionEnd::Lost => {}
                    }
                }
                Err(error) => {
                    // The health monitor logs it once it has lasted, once for both streams.
                    let cause = deepest_cause(&error);
                    tracing::debug!(store = %self.to, address, "no connection: {cause}");
                    self.fault.note(cause);
                }
            }
            // Jitter: stores that lost each other together must not retry together.
            tokio::time::sleep(jittered(pause)).await;
            pause = (pause * 2).min(PAUSE_MOST);
        }
    }

    async fn connect(&self, address: &str) -> Result<Channel, tonic::transport::Error> {
        let dialer = self.membership.dialer();
        let endpoint = dialer
            .endpoint(address, CONNECT_TIMEOUT)?
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .keep_alive_while_idle(true);
        dialer.connect(&endpoint).await
    }

    /// Greets the other store, then sends frames until the stream ends.
    async fn serve(&self, channel: Channel, address: &str) -> ConnectionEnd {
        let mut client =
            PeersClient::new(channel).max_encoding_message_size(PEER_MESSAGE_BYTES_MAX);
        let greeting = self.membership.greet(&mut client, self.to);
        match tokio::time::timeout(HANDSHAKE_TIMEOUT, greeting).await {
            Ok(Ok(())) => {}
            Ok(Err(HandshakeError::Refused(why))) => {
                self.membership.warn_once(self.to, &format!("no link to {address}: {why}"));
                self.fault.note(why);
                return ConnectionEnd::Refused;
            }
            Ok(Err(HandshakeError::Failed(status))) => {
                self.note_end(&status);
                return ConnectionEnd::Lost;
            }
            Err(_) => {
                self.note_end(&Status::deadline_exceeded("the handshake was not answered"));
                return ConnectionEnd::Lost;
            }
        }
        self.queue.connected();
        let ended = self.stream(client).await;
        self.report_lost();
        self.note_end(&ended);
        match ended.code() {
            Code::FailedPrecondition => ConnectionEnd::Refused,
            _ => ConnectionEnd::Streamed,
        }
    }

    /// Sends frames until the stream ends; why it did.
    async fn stream(&self, mut client: PeersClient<Channel>) -> Status {
        let (uuid, run) = self.membership.run();
        let (membership, disks) = (self.membership.clone(), Arc::clone(&self.disks));
        let frames = FrameStream {
            queue: Arc::clone(&self.queue),
            from: FrameSender { id: self.membership.id(), uuid, run },
            now: move || SenderState { log_end: membership.log_end(), disk_usage: disks.usage() },
            to: self.to,
            sent: Arc::clone(&self.counts),
        };
        let ended = match self.kind {
            StreamKind::Urgent => client.urgent(frames).await,
            StreamKind::Appends => client.appends(frames).await,
        };
        ended.err().unwrap_or_else(|| Status::unavailable("the store ended the stream"))
    }

    /// Reports to the regions whose entries were dropped with the connection.
    fn report_lost(&self) {
        let lost = self.queue.disconnected();
        self.mailboxes.complete_all(
            lost.into_iter().map(|(region, peer)| Event::Unreachable { region, peer }),
        );
    }

    fn note_end(&self, status: &Status) {
        let is_answer = std::error::Error::source(status).is_none();
        self.fault.note(match is_answer {
            true => status.message().to_owned(),
            false => deepest_cause(status),
        });
        let (store, kind) = (self.to, self.kind);
        match status.code() {
            Code::FailedPrecondition | Code::InvalidArgument => {
                tracing::warn!(%store, ?kind, "refused: {}", status.message());
            }
            _ => tracing::debug!(%store, ?kind, "disconnected: {}", status.message()),
        }
    }
}

/// The deepest of an error's causes, which names the kernel's reason; or the error itself.
fn deepest_cause(error: &dyn std::error::Error) -> String {
    let mut deepest = error;
    while let Some(cause) = deepest.source() {
        deepest = cause;
    }
    deepest.to_string()
}

/// How a connection ended.
enum ConnectionEnd {
    /// Frames were sent.
    Streamed,
    /// The two stores do not take each other.
    Refused,
    /// It broke before.
    Lost,
}

/// Between three quarters and five quarters of `pause`, so that stores that lost each other at the
/// same moment do not try at the same moments.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.75 + 0.5 * fastrand::f64())
}
