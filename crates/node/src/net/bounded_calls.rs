//! Services whose calls keep to the bound of unfinished messages.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::http::{Request, Response};
use bytes::Bytes;
use http_body::Body as HttpBody;
use tonic::body::Body;
use tonic::codegen::{Service, StdError};
use tonic::server::NamedService;

use crate::net::connection::ConnectionPeer;
use crate::net::unfinished_messages::{BoundedMessages, MethodKind};

/// The services that stores call. Their messages have a room beside that of clients, which cannot
/// take it from them.
const OF_STORES: [&str; 3] =
    ["flotilla.peers.Peers", "flotilla.peers.Placement", "flotilla.peers.Join"];

/// The methods that take any number of messages.
const STREAMS: [&str; 8] = [
    "/flotilla.peers.Peers/Appends",
    "/flotilla.peers.Peers/Snapshot",
    "/flotilla.peers.Peers/Urgent",
    "/flotilla.peers.Placement/Report",
    "/pdpb.PD/QueryRegion",
    "/pdpb.PD/Tso",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

/// A service whose messages count while only a part of a request has come.
#[derive(Clone)]
pub(crate) struct BoundedCalls<S>(pub(crate) S);

impl<S: NamedService> NamedService for BoundedCalls<S> {
    const NAME: &'static str = S::NAME;
}

impl<S, B> Service<Request<B>> for BoundedCalls<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + NamedService,
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<StdError>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let peer = ConnectionPeer::of(request.extensions());
        let room = match OF_STORES.contains(&S::NAME) {
            true => peer.unfinished_of_stores(),
            false => peer.unfinished(),
        };
        let room = Arc::clone(room);
        let kind = match STREAMS.contains(&request.uri().path()) {
            true => MethodKind::Stream,
            false => MethodKind::Unary,
        };
        self.0.call(request.map(|body| Body::new(BoundedMessages::new(body, kind, room))))
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use prost_types::FileDescriptorSet;

    use super::*;

    /// The service of clients' raw calls, which knows its methods itself.
    const NOT_WRAPPED: &str = "tikvpb.Tikv";

    #[test]
    fn all_methods_that_take_streams_are_known() {
        let mut streams = vec![];
        for descriptors in [
            flotilla_proto::FILE_DESCRIPTOR_SET,
            tonic_health::pb::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
        ] {
            for file in FileDescriptorSet::decode(descriptors).unwrap().file {
                for service in &file.service {
                    let name = format!("{}.{}", file.package(), service.name());
                    let methods = service.method.iter().filter(|it| it.client_streaming());
                    if name != NOT_WRAPPED {
                        streams.extend(methods.map(|method| format!("/{name}/{}", method.name())));
                    }
                }
            }
        }
        streams.sort();
        let mut known = STREAMS;
        known.sort();
        assert_eq!(streams, known);
    }
}
