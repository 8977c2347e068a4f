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
use crate::net::unfinished_messages::BoundedMessages;

/// A service whose messages count while only a part of them has come.
#[derive(Clone)]
pub(crate) struct BoundedCalls<S>(pub(crate) S);

impl<S: NamedService> NamedService for BoundedCalls<S> {
    const NAME: &'static str = S::NAME;
}

impl<S, B> Service<Request<B>> for BoundedCalls<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
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
        let room = Arc::clone(ConnectionPeer::of(request.extensions()).unfinished());
        self.0.call(request.map(|body| Body::new(BoundedMessages::new(body, room))))
    }
}
