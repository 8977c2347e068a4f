//! One stream to another store: connect, send frames, and again after a pause when it ends.

use std::sync::Arc;
use std::time::Duration;

use flotilla_proto::peers::peers_client::PeersClient;
use flotilla_region::{Event, StoreId};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::counts::Counts;
use super::queue::{Frames, Kind, Queue};
use crate::cluster::Member;
use crate::letters::Mailboxes;

/// Bytes of one gRPC message between stores at most: one entry of the largest size, with room.
pub(crate) const FRAME_BYTES_MAX: usize = 16 << 20;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A store that says nothing for this long is asked whether it is there, and given up after
/// [`KEEPALIVE_TIMEOUT`]: a machine that lost its power closes no connection.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3);

/// Pauses between attempts. Short at first, because a store that restarts is back soon and its
/// replicas are waited for.
const PAUSE_LEAST: Duration = Duration::from_millis(50);
const PAUSE_MOST: Duration = Duration::from_millis(1000);

/// What the task of one stream needs.
pub(super) struct Sender {
    pub(super) kind: Kind,
    pub(super) cluster_id: u64,
    pub(super) own: StoreId,
    pub(super) to: Member,
    pub(super) queue: Arc<Queue>,
    pub(super) mailboxes: Mailboxes,
    pub(super) counts: Arc<Counts>,
}

impl Sender {
    /// Runs until it is aborted.
    pub(super) async fn run(self) {
        let endpoint = match self.endpoint() {
            Ok(endpoint) => endpoint,
            Err(error) => {
                tracing::error!(
                    store = %self.to.store, addr = self.to.addr,
                    "a store's address cannot be used: {error}"
                );
                return;
            }
        };
        let mut pause = PAUSE_LEAST;
        let mut told = false;
        loop {
            match endpoint.connect().await {
                Ok(channel) => {
                    tracing::debug!(store = %self.to.store, kind = ?self.kind, "connected");
                    (pause, told) = (PAUSE_LEAST, false);
                    self.queue.raise();
                    let ended = self.stream(channel).await;
                    self.report_lost();
                    self.note_end(&ended);
                    if ended.code() == Code::FailedPrecondition {
                        // The other side has told us that we do not belong together; that seldom
                        // heals by itself, so ask seldom.
                        pause = PAUSE_MOST;
                    }
                }
                Err(error) if !told => {
                    // Once for each absence: a store that is away is no news a second time.
                    tracing::info!(store = %self.to.store, addr = self.to.addr, "no connection: {error}");
                    told = true;
                }
                Err(_) => {}
            }
            tokio::time::sleep(jittered(pause)).await;
            pause = (pause * 2).min(PAUSE_MOST);
        }
    }

    fn endpoint(&self) -> Result<Endpoint, tonic::transport::Error> {
        Ok(Endpoint::from_shared(format!("http://{}", self.to.addr))?
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .keep_alive_while_idle(true))
    }

    /// Sends frames until the stream ends; why it did.
    async fn stream(&self, channel: Channel) -> Status {
        let mut client = PeersClient::new(channel).max_encoding_message_size(FRAME_BYTES_MAX);
        let frames = Frames {
            queue: Arc::clone(&self.queue),
            cluster_id: self.cluster_id,
            from: self.own,
            to: self.to.store,
            sent: Arc::clone(&self.counts),
        };
        let ended = match self.kind {
            Kind::Urgent => client.urgent(frames).await,
            Kind::Appends => client.appends(frames).await,
        };
        ended.err().unwrap_or_else(|| Status::unavailable("the store ended the stream"))
    }

    /// Tells the regions whose entries were dropped with the connection.
    fn report_lost(&self) {
        let lost = self.queue.lower();
        self.mailboxes.complete_all(
            lost.into_iter().map(|(region, peer)| Event::Unreachable { region, peer }),
        );
    }

    fn note_end(&self, status: &Status) {
        let (store, kind) = (self.to.store, self.kind);
        match status.code() {
            Code::FailedPrecondition | Code::InvalidArgument => {
                tracing::warn!(%store, ?kind, "refused: {}", status.message());
            }
            _ => tracing::debug!(%store, ?kind, "disconnected: {}", status.message()),
        }
    }
}

/// Between three quarters and five quarters of `pause`, so that stores that lost each other at the
/// same moment do not try at the same moments.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.75 + 0.5 * fastrand::f64())
}
