//! Refusals of calls that are not served: the status, and words that say which call it was.
//!
//! The library ends such a call without words, and its caller does not learn what is missing.

use std::convert::Infallible;
use std::task::{Context, Poll};

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue, Request, Response, Uri};
use axum::response::IntoResponse;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service};
use tonic::server::NamedService;

use super::answer;

/// Characters of a path that an answer repeats: it must not be as long as the request.
const PATH_CHARS_MAX: usize = 128;

/// The words of the refusal of the call at `path`.
///
/// Placement's clients search errors for "is not served", by which they mean a lost leader.
pub(crate) fn refusal_words(path: &str) -> String {
    let name: String = path.trim_start_matches('/').chars().take(PATH_CHARS_MAX).collect();
    format!("{name} is not supported by Flotilla")
}

/// The status of the refusal of the call at `path`.
pub(crate) fn refusal(path: &str) -> Status {
    Status::unimplemented(refusal_words(path))
}

/// Answers a request at a path that nothing is served at.
pub(crate) async fn refuse(uri: Uri, headers: HeaderMap) -> axum::response::Response {
    let kind = headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    if kind.starts_with(b"application/grpc") {
        refusal(uri.path()).into_http::<axum::body::Body>()
    } else {
        answer::not_found().into_response()
    }
}

/// A service whose refusals have words.
#[derive(Clone)]
pub(crate) struct WordedRefusals<S>(pub(crate) S);

impl<S: NamedService> NamedService for WordedRefusals<S> {
    const NAME: &'static str = S::NAME;
}

impl<S, B> Service<Request<B>> for WordedRefusals<S>
where
    S: Service<Request<B>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let uri = request.uri().clone();
        let answering = self.0.call(request);
        Box::pin(async move {
            let response = answering.await?;
            Ok(if is_without_words(response.headers()) {
                refusal(uri.path()).into_http()
            } else {
                response
            })
        })
    }
}

/// Whether an answer is the library's to a method that the service does not have.
fn is_without_words(headers: &HeaderMap) -> bool {
    let status = headers.get("grpc-status");
    let is_unimplemented = status.is_some_and(|status| status == "12");
    let words = headers.get("grpc-message");
    is_unimplemented && words.is_none_or(HeaderValue::is_empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_call_and_is_short() {
        let refused = refusal("/pdpb.PD/AskSplit");
        assert_eq!(refused.code(), tonic::Code::Unimplemented);
        assert_eq!(refused.message(), "pdpb.PD/AskSplit is not supported by Flotilla");
        assert!(refusal(&"x".repeat(100_000)).message().len() < 200);
    }

    #[test]
    fn only_answers_without_words_get_some() {
        let headers = |status: Status| status.into_http::<Body>().headers().clone();
        assert!(is_without_words(&headers(Status::unimplemented(""))));
        assert!(!is_without_words(&headers(Status::unimplemented("why"))));
        assert!(!is_without_words(&headers(Status::internal(""))));
        assert!(!is_without_words(&HeaderMap::new()));
    }
}
