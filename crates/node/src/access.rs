//! Access control: the role that a party needs for a request, by the path of the request.
//!
//! Only connections with TLS have a party. Without TLS, whoever reaches the port may do anything.

use axum::extract::Request;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Method};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use flotilla_tls::{PartyRole, PeerIdentity};
use tonic::Status;
use tonic::service::Routes;

use crate::net::answer;
use crate::net::connection::ConnectionPeer;
use crate::net::security::NodeSecurity;

/// Services that not every party may call, and their role. All others read and write rows, ask
/// placement, or say how the store is.
const SERVICES: [(&str, PartyRole); 4] = [
    ("flotilla.peers.Peers", PartyRole::Store),
    ("flotilla.peers.Placement", PartyRole::Store),
    ("flotilla.peers.Join", PartyRole::Store),
    ("flotilla.peers.Operator", PartyRole::Operator),
];

/// The role that a request needs.
fn role_of(method: &Method, path: &str) -> PartyRole {
    let service = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    match SERVICES.iter().find(|(name, _)| *name == service) {
        Some((_, role)) => *role,
        // gRPC's own method, and those that change nothing.
        None if [Method::POST, Method::GET, Method::HEAD].contains(method) => PartyRole::Client,
        None => PartyRole::Operator,
    }
}

/// `routes`, each for those who may; as they are without TLS.
pub(crate) fn guard(routes: Routes, security: &NodeSecurity) -> Routes {
    match security.acceptor() {
        Some(_) => routes.into_axum_router().layer(from_fn(check)).into(),
        None => routes,
    }
}

/// Hands a request on if its party may make it.
async fn check(request: Request, next: Next) -> Response {
    let Some(peer) = request.extensions().get::<ConnectionPeer>() else {
        // Each connection of the server has one.
        return refuse(&request, Status::internal("the party of the connection is not known"));
    };
    let role = role_of(request.method(), request.uri().path());
    match peer.identity() {
        Some(identity) if !identity.has(role) => {
            refuse(&request, Status::permission_denied(refusal(identity, role)))
        }
        _ => next.run(request).await,
    }
}

fn refusal(identity: &PeerIdentity, role: PartyRole) -> String {
    let (party, setting) = match role {
        PartyRole::Client => ("a client", "tls.client_names"),
        PartyRole::Operator => ("an operator", "tls.operator_names"),
        PartyRole::Store => ("a store", "tls.store_name"),
    };
    let names = identity.names();
    format!("this is for {party}, and the certificate ({names}) is of none by {setting}")
}

fn refuse(request: &Request, status: Status) -> Response {
    let kind = request.headers().get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    if kind.starts_with(b"application/grpc") {
        status.into_http::<axum::body::Body>()
    } else {
        answer::forbidden(status.message()).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A service of our own that is new has its role decided here.
    #[test]
    fn each_service_of_our_own_is_known() {
        let proto = include_str!("../../../proto/flotilla/peers.proto");
        let services = proto.lines().filter_map(|line| line.strip_prefix("service "));
        let mut services: Vec<_> = services
            .map(|name| format!("flotilla.peers.{}", name.trim_end_matches(" {")))
            .collect();
        services.retain(|name| name != "flotilla.peers.Status");
        let mut known = SERVICES.map(|(name, _)| name.to_owned());
        known.sort();
        services.sort();
        assert_eq!(services, known);
    }

    #[test]
    fn requests_that_change_the_cluster_are_for_operators_and_stores() {
        let role = |path| role_of(&Method::POST, path);
        assert_eq!(role("/flotilla.peers.Peers/Appends"), PartyRole::Store);
        assert_eq!(role("/flotilla.peers.Placement/Report"), PartyRole::Store);
        assert_eq!(role("/flotilla.peers.Join/Register"), PartyRole::Store);
        assert_eq!(role("/flotilla.peers.Operator/ChangeStore"), PartyRole::Operator);
        assert_eq!(role("/flotilla.peers.Status/Stores"), PartyRole::Client);
        assert_eq!(role("/tikvpb.Tikv/RawPut"), PartyRole::Client);
        assert_eq!(role("//flotilla.peers.Operator/ChangeStore"), PartyRole::Operator);
        assert_eq!(role_of(&Method::GET, "/metrics"), PartyRole::Client);
        assert_eq!(role_of(&Method::PUT, "/log-level"), PartyRole::Operator);
    }
}
