//! Sends one request of the bootstrap protocol to another listed store.

use std::time::Duration;

use flotilla_identity::{BootstrapRequest, BootstrapResponse};
use flotilla_proto::peers::peers_client::PeersClient;
use tonic::Status;
use tonic::transport::Channel;

use super::convert::{WireQuestion, bootstrap_response_from_wire, bootstrap_to_wire};
use crate::net::dial::{Dialer, PEER_MESSAGE_BYTES_MAX};

/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection that comes about with the first question.
///
/// # Errors
///
/// The address is none.
pub(super) fn connection(
    address: &str,
    dialer: &Dialer,
) -> Result<Channel, tonic::transport::Error> {
    let endpoint = dialer.endpoint(address, CONNECT_TIMEOUT)?;
    Ok(dialer.connect_lazy(&endpoint.timeout(ANSWER_TIMEOUT)))
}

/// Asks, and waits for the answer.
pub(super) async fn ask(
    channel: Channel,
    request: &BootstrapRequest,
) -> Result<BootstrapResponse, Status> {
    let mut client = PeersClient::new(channel).max_encoding_message_size(PEER_MESSAGE_BYTES_MAX);
    let answer = async {
        match bootstrap_to_wire(request) {
            WireQuestion::Prepare(wire) => client.prepare(wire).await,
            WireQuestion::Form(wire) => client.form(wire).await,
            WireQuestion::Begin(wire) => client.begin(wire).await,
        }
    };
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, answer).await;
    let answer = answer.map_err(|_| Status::deadline_exceeded("no answer"))??;
    bootstrap_response_from_wire(answer.into_inner())
}
