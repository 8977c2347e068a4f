//! The gRPC service: each call to its handler, and chunked answers.
//!
//! The library decodes requests. Answers are made here, in chunks: one with many rows is sent from
//! where a scan has put them. The library's own encoder wants a message in one buffer, and the copy
//! of the rows into it costs large scans a tenth of their time (decision 23,
//! `docs/decisions/0023-answers-in-chunks.md`). A connection takes a chunk when it has room for it,
//! so other streams of the connection are served between two.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use flotilla_proto::kvrpcpb::{
    RawBatchGetRequest, RawBatchGetResponse, RawBatchScanRequest, RawBatchScanResponse,
    RawGetRequest, RawScanRequest, RawScanResponse,
};
use flotilla_proto::tikvpb::tikv_server::SERVICE_NAME;
use http_body::Frame;
use prost::Message;
use tokio_stream::{Stream, once};
use tonic::body::Body;
use tonic::codec::{Codec, CompressionEncoding};
use tonic::codegen::http::header::CONTENT_TYPE;
use tonic::codegen::http::{self, HeaderMap, HeaderValue};
use tonic::codegen::{Body as HttpBody, BoxFuture, Service, StdError};
use tonic::metadata::{GRPC_CONTENT_TYPE, MetadataValue};
use tonic::server::NamedService;
use tonic::{Status, Streaming};
use tonic_prost::ProstCodec;

use super::batch_commands;
use super::bounded_answer;
use super::chunked_body::ChunkedBody;
use super::errors::{RequestFailure, RpcResponse};
use super::row_encoder::RowEncoder;
use super::rpc_durations::timed;
use super::service::RawKv;
use crate::net::call_deadline::CallDeadline;
use crate::net::connection::ConnectionPeer;
use crate::net::refusal::refusal;
use crate::net::unfetched_room::AnswerRoom;
use crate::net::unfinished_messages::{BoundedMessages, MethodKind};

/// The service that every store offers to clients, as a server takes it.
#[derive(Clone)]
pub struct RawKvServer {
    service: RawKv,
}

impl RawKv {
    /// The service as a server takes it, with the limit on messages set.
    #[must_use]
    pub fn into_server(self) -> RawKvServer {
        RawKvServer { service: self }
    }
}

impl RawKvServer {
    /// The messages of a call.
    ///
    /// # Errors
    ///
    /// As [`encoding`].
    fn requests<T, B>(
        &self,
        request: http::Request<B>,
        kind: MethodKind,
    ) -> Result<Streaming<T>, Status>
    where
        T: Message + Default + 'static,
        B: HttpBody + Send + Unpin + 'static,
        B::Error: Into<StdError>,
    {
        let encoding = encoding(request.headers())?;
        let bytes_max = self.service.limits().message_bytes_max;
        let room = Arc::clone(ConnectionPeer::of(request.extensions()).unfinished());
        let body = BoundedMessages::new(request.into_body(), kind, room);
        let decoder = ProstCodec::<T, T>::default().decoder();
        // The limit holds for a message as it comes, and again for what it is inflated to.
        Ok(Streaming::new_request(decoder, body, encoding, Some(bytes_max)))
    }

    /// The only message of a call.
    async fn request<T, B>(&self, request: http::Request<B>) -> Result<T, Status>
    where
        T: Message + Default + 'static,
        B: HttpBody + Send + Unpin + 'static,
        B::Error: Into<StdError>,
    {
        let mut requests = self.requests(request, MethodKind::Unary)?;
        let message = requests.message().await?;
        let message = message.ok_or_else(|| Status::internal("Missing request message."))?;
        // The end of the request: a call that its client broke off is not carried out.
        requests.trailers().await?;
        Ok(message)
    }
}

impl NamedService for RawKvServer {
    const NAME: &'static str = SERVICE_NAME;
}

impl<B> Service<http::Request<B>> for RawKvServer
where
    B: HttpBody + Send + Unpin + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let server = self.clone();
        let deadline = CallDeadline::of(request.headers());
        macro_rules! unary {
            ($handler:ident, $encode:expr) => {
                Box::pin(async move {
                    let answer = pin!(async {
                        let request = server.request(request).await?;
                        // Its client may have taken all of its time to send it.
                        deadline.check()?;
                        $encode(&server.service, server.service.$handler(request).await)
                    });
                    let durations = server.service.rpc_durations();
                    let answer = pin!(deadline.bound(answer));
                    let message = timed(Some(&durations.$handler), answer).await;
                    Ok(respond(message.map(|message| once(Ok(message)))))
                })
            };
        }
        let peer = request.extensions().get::<ConnectionPeer>().cloned().unwrap_or_default();
        macro_rules! read {
            ($handler:ident, $request:ty, $encode:expr) => {
                Box::pin(async move {
                    let answer = pin!(async {
                        let request: $request = server.request(request).await?;
                        deadline.check()?;
                        let room = Arc::new(AnswerRoom::of(peer.unfetched()));
                        let service = &server.service.answering_in(&room);
                        let answer = || {
                            let request = request.clone();
                            async move { $encode(service, service.$handler(request).await) }
                        };
                        bounded_answer::within(&room, answer).await
                    });
                    let durations = server.service.rpc_durations();
                    let answer = pin!(deadline.bound(answer));
                    let message = timed(Some(&durations.$handler), answer).await;
                    Ok(respond(message.map(|message| once(Ok(message)))))
                })
            };
        }
        let path = request.uri().path();
        let Some(method) = path.strip_prefix("/tikvpb.Tikv/") else {
            return unknown(path);
        };
        match method {
            "BatchCommands" => Box::pin(async move {
                let requests = server.requests(request, MethodKind::Stream);
                Ok(respond(
                    requests.map(|it| batch_commands::serve(server.service, it, &peer, deadline)),
                ))
            }),
            "RawScan" => read!(scan, RawScanRequest, rows::<RawScanResponse>),
            "RawBatchScan" => read!(batch_scan, RawBatchScanRequest, rows::<RawBatchScanResponse>),
            "RawBatchGet" => read!(batch_get, RawBatchGetRequest, rows::<RawBatchGetResponse>),
            "RawGet" => read!(get, RawGetRequest, message),
            "RawPut" => unary!(put, message),
            "RawBatchPut" => unary!(batch_put, message),
            "RawDelete" => unary!(delete, message),
            "RawBatchDelete" => unary!(batch_delete, message),
            "RawDeleteRange" => unary!(delete_range, message),
            "RawGetKeyTTL" => unary!(get_key_ttl, message),
            "RawChecksum" => unary!(checksum, message),
            "RawCompareAndSwap" => unary!(compare_and_swap, message),
            "UnsafeDestroyRange" => unary!(unsafe_destroy_range, message),
            "RawCoprocessor" => unary!(raw_coprocessor, message),
            "KvScanLock" => unary!(scan_lock, message),
            "KvResolveLock" => unary!(resolve_lock, message),
            "SplitRegion" => unary!(split_region, message),
            _ => unknown(path),
        }
    }
}

/// How the messages of a request are compressed. The library looks only at calls whose answers it
/// encodes as well.
///
/// # Errors
///
/// In a way that is not known: the status that the library has for it.
fn encoding(headers: &HeaderMap) -> Result<Option<CompressionEncoding>, Status> {
    let encoding = headers.get("grpc-encoding").map_or(&b"identity"[..], HeaderValue::as_bytes);
    match encoding {
        b"identity" => return Ok(None),
        b"gzip" => return Ok(Some(CompressionEncoding::Gzip)),
        _ => {}
    }
    let what = encoding.escape_ascii();
    let mut status =
        Status::unimplemented(format!("Content is compressed with `{what}` which isn't supported"));
    let known = MetadataValue::from_static("gzip,identity");
    status.metadata_mut().insert("grpc-accept-encoding", known);
    Err(status)
}

/// The answer to a call of a method that does not exist.
fn unknown<E>(path: &str) -> BoxFuture<http::Response<Body>, E> {
    let unknown = refusal(path);
    Box::pin(async move { Ok(unknown.into_http()) })
}

/// An answer without rows.
fn message<T: RpcResponse + Message>(
    service: &RawKv,
    result: Result<T, RequestFailure>,
) -> Result<ChunkedBody, Status> {
    ChunkedBody::message(&service.answer(result)?)
}

/// Rows, or the error instead of them.
fn rows<T: RpcResponse + Message>(
    service: &RawKv,
    result: Result<RowEncoder, RequestFailure>,
) -> Result<ChunkedBody, Status> {
    match result {
        Ok(rows) => ChunkedBody::rows(rows),
        Err(failure) => message::<T>(service, Err(failure)),
    }
}

/// A response that has a body of `answers`, or only the status of the failed call.
fn respond<S>(answers: Result<S, Status>) -> http::Response<Body>
where
    S: Stream<Item = Result<ChunkedBody, Status>> + Send + Unpin + 'static,
{
    match answers {
        Ok(answers) => {
            let body = Body::new(AnswerBody { answers, now: None, ended: false });
            let mut response = http::Response::new(body);
            response.headers_mut().insert(CONTENT_TYPE, GRPC_CONTENT_TYPE);
            response
        }
        Err(status) => status.into_http(),
    }
}

/// A body: answers chunk by chunk, then the status.
struct AnswerBody<S> {
    answers: S,
    now: Option<ChunkedBody>,
    ended: bool,
}

impl<S> HttpBody for AnswerBody<S>
where
    S: Stream<Item = Result<ChunkedBody, Status>> + Unpin,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        loop {
            if let Some(piece) = self.now.as_mut().and_then(ChunkedBody::take) {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            self.now = None;
            if self.ended {
                return Poll::Ready(None);
            }
            let status = match ready!(Pin::new(&mut self.answers).poll_next(context)) {
                Some(Ok(answer)) => {
                    self.now = Some(answer);
                    continue;
                }
                Some(Err(status)) => status,
                None => Status::ok(""),
            };
            self.ended = true;
            let mut trailers = HeaderMap::new();
            status.add_header(&mut trailers)?;
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended && self.now.is_none()
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;
    use tokio_stream::wrappers::ReceiverStream;

    use super::*;

    type Polled = Poll<Option<Result<Frame<Bytes>, Status>>>;

    fn poll<S>(body: &mut AnswerBody<S>) -> Polled
    where
        S: Stream<Item = Result<ChunkedBody, Status>> + Unpin,
    {
        let mut context = Context::from_waker(std::task::Waker::noop());
        Pin::new(body).poll_frame(&mut context)
    }

    fn data(polled: Polled) -> Bytes {
        let Poll::Ready(Some(Ok(frame))) = polled else { panic!("{polled:?}") };
        frame.into_data().unwrap()
    }

    fn code(polled: Polled) -> String {
        let Poll::Ready(Some(Ok(frame))) = polled else { panic!("{polled:?}") };
        frame.into_trailers().unwrap()["grpc-status"].to_str().unwrap().to_owned()
    }

    fn long_answer() -> ChunkedBody {
        let mut rows = RowEncoder::default();
        rows.push(b"key", &vec![1; 600 << 10]);
        ChunkedBody::rows(rows).unwrap()
    }

    #[test]
    fn answers_go_out_piece_by_piece_and_then_the_end() {
        let (tell, answers) = mpsc::channel(2);
        let mut body =
            AnswerBody { answers: ReceiverStream::new(answers), now: None, ended: false };
        assert!(poll(&mut body).is_pending());
        tell.try_send(Ok(long_answer())).unwrap();
        let head = data(poll(&mut body));
        let length = u32::from_be_bytes(head[1..5].try_into().unwrap()) as usize;
        assert_eq!((head[0], head.len()), (0, 5));
        let pieces: Vec<_> = (0..3).map(|_| data(poll(&mut body)).len()).collect();
        assert_eq!(pieces.iter().sum::<usize>(), length);
        assert!(pieces.iter().all(|bytes| *bytes <= 256 << 10), "{pieces:?}");
        assert!(poll(&mut body).is_pending());
        drop(tell);
        assert!(!body.is_end_stream());
        assert_eq!(code(poll(&mut body)), "0");
        assert!(body.is_end_stream());
        assert!(matches!(poll(&mut body), Poll::Ready(None)));
    }

    #[test]
    fn a_request_may_be_compressed_in_one_way() {
        let mut headers = HeaderMap::new();
        assert_eq!(encoding(&headers).unwrap(), None);
        headers.insert("grpc-encoding", HeaderValue::from_static("identity"));
        assert_eq!(encoding(&headers).unwrap(), None);
        headers.insert("grpc-encoding", HeaderValue::from_static("gzip"));
        assert_eq!(encoding(&headers).unwrap(), Some(CompressionEncoding::Gzip));
        headers.insert("grpc-encoding", HeaderValue::from_static("zstd"));
        let refused = encoding(&headers).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Unimplemented);
        assert_eq!(refused.metadata().get("grpc-accept-encoding").unwrap(), "gzip,identity");
    }

    #[test]
    fn a_failure_ends_a_stream_with_its_status() {
        let answers = [Ok(long_answer()), Err(Status::invalid_argument("no"))];
        let mut body = AnswerBody { answers: tokio_stream::iter(answers), now: None, ended: false };
        (0..4).for_each(|_| drop(data(poll(&mut body))));
        assert_eq!(code(poll(&mut body)), "3");
        assert!(matches!(poll(&mut body), Poll::Ready(None)));
    }
}
