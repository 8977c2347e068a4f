//! The gRPC service: each call to its handler, and chunked answers.
//!
//! The library decodes requests. Answers are made here, in chunks: one with many rows is sent from
//! where a scan has put them, and never copied into one message. A connection takes a chunk when it
//! has room for it, so other streams of the connection are served between two.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use flotilla_proto::kvrpcpb::{RawBatchGetResponse, RawBatchScanResponse, RawScanResponse};
use flotilla_proto::tikvpb::BatchCommandsRequest;
use flotilla_proto::tikvpb::tikv_server::SERVICE_NAME;
use http_body::Frame;
use prost::Message;
use tokio::sync::oneshot;
use tokio_stream::{Once, Stream, once};
use tonic::body::Body;
use tonic::codegen::http::{self, HeaderMap};
use tonic::codegen::{Body as HttpBody, BoxFuture, Service, StdError};
use tonic::server::{Grpc, NamedService, StreamingService, UnaryService};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use super::batch_commands::{self, BatchAnswers, OutgoingMessage};
use super::chunked_body::ChunkedBody;
use super::errors::{RequestFailure, RpcResponse, answer};
use super::row_encoder::RowEncoder;
use super::service::RawKv;

/// The service that every store offers to clients, as a server takes it.
#[derive(Clone)]
pub struct RawKvServer {
    service: RawKv,
    message_bytes_max: usize,
}

impl RawKv {
    /// The service as a server takes it, with the limit on messages set.
    #[must_use]
    pub fn into_server(self) -> RawKvServer {
        let message_bytes_max = self.limits().message_bytes_max;
        RawKvServer { service: self, message_bytes_max }
    }
}

impl RawKvServer {
    /// Decodes requests of one kind. Its own answer is empty: ours takes its place.
    fn grpc<T: Message + Default + 'static>(&self) -> Grpc<ProstCodec<(), T>> {
        Grpc::new(ProstCodec::default()).max_decoding_message_size(self.message_bytes_max)
    }
}

impl NamedService for RawKvServer {
    const NAME: &'static str = SERVICE_NAME;
}

impl<B> Service<http::Request<B>> for RawKvServer
where
    B: HttpBody + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        macro_rules! unary {
            ($handler:ident, $encode:expr) => {{
                let (service, mut grpc) = (self.service.clone(), self.grpc());
                let handle = move |request| async move { $encode(service.$handler(request).await) };
                Box::pin(async move {
                    let (told, heard) = oneshot::channel();
                    let response = grpc.unary(UnaryMethod::new(handle, told), request).await;
                    Ok(with_body(response, heard))
                })
            }};
        }
        let Some(method) = request.uri().path().strip_prefix("/tikvpb.Tikv/") else {
            return unknown();
        };
        match method {
            "BatchCommands" => {
                let (service, mut grpc) = (self.service.clone(), self.grpc());
                Box::pin(async move {
                    let (told, heard) = oneshot::channel();
                    let method = BatchMethod { service, told: Some(told) };
                    let response = grpc.streaming(method, request).await;
                    Ok(with_body(response, heard))
                })
            }
            "RawScan" => unary!(scan, rows::<RawScanResponse>),
            "RawBatchScan" => unary!(batch_scan, rows::<RawBatchScanResponse>),
            "RawBatchGet" => unary!(batch_get, rows::<RawBatchGetResponse>),
            "RawGet" => unary!(get, message),
            "RawPut" => unary!(put, message),
            "RawBatchPut" => unary!(batch_put, message),
            "RawDelete" => unary!(delete, message),
            "RawBatchDelete" => unary!(batch_delete, message),
            "RawDeleteRange" => unary!(delete_range, message),
            "RawGetKeyTTL" => unary!(get_key_ttl, message),
            "RawCompareAndSwap" => unary!(compare_and_swap, message),
            _ => unknown(),
        }
    }
}

/// The answer to a call of a method that does not exist.
fn unknown<E>() -> BoxFuture<http::Response<Body>, E> {
    let unknown = Status::new(tonic::Code::Unimplemented, "");
    Box::pin(async move { Ok(unknown.into_http()) })
}

/// An answer without rows.
fn message<T: RpcResponse + Message>(
    result: Result<T, RequestFailure>,
) -> Result<ChunkedBody, Status> {
    ChunkedBody::message(&answer(result)?)
}

/// Rows, or the error instead of them.
fn rows<T: RpcResponse + Message>(
    result: Result<RowEncoder, RequestFailure>,
) -> Result<ChunkedBody, Status> {
    match result {
        Ok(rows) => ChunkedBody::rows(rows),
        Err(failure) => message::<T>(Err(failure)),
    }
}

/// The library's response with our body in it; as it is, if the call has failed.
fn with_body<S>(
    response: http::Response<Body>,
    mut answers: oneshot::Receiver<S>,
) -> http::Response<Body>
where
    S: Stream<Item = Result<OutgoingMessage, Status>> + Send + Unpin + 'static,
{
    match answers.try_recv() {
        Ok(answers) => response.map(|_| Body::new(AnswerBody { answers, now: None, ended: false })),
        Err(_) => response,
    }
}

/// A method with one answer, which goes around the library's encoder.
struct UnaryMethod<F> {
    handle: Option<F>,
    told: Option<oneshot::Sender<Once<Result<OutgoingMessage, Status>>>>,
}

impl<F> UnaryMethod<F> {
    fn new(
        handle: F,
        told: oneshot::Sender<Once<Result<OutgoingMessage, Status>>>,
    ) -> UnaryMethod<F> {
        UnaryMethod { handle: Some(handle), told: Some(told) }
    }
}

impl<F, A, R> UnaryService<R> for UnaryMethod<F>
where
    F: FnOnce(R) -> A,
    A: Future<Output = Result<ChunkedBody, Status>> + Send + 'static,
{
    type Response = ();
    type Future = BoxFuture<Response<()>, Status>;

    fn call(&mut self, request: Request<R>) -> Self::Future {
        let handling = self.handle.take().map(|handle| handle(request.into_inner()));
        let told = self.told.take();
        Box::pin(async move {
            let (Some(handling), Some(told)) = (handling, told) else {
                return Err(Status::internal("a call was made twice"));
            };
            // An error means that the caller has gone.
            let _ = told.send(once(Ok(OutgoingMessage::alone(handling.await?))));
            Ok(Response::new(()))
        })
    }
}

/// The batch stream, whose answers go around the library's encoder.
struct BatchMethod {
    service: RawKv,
    told: Option<oneshot::Sender<BatchAnswers>>,
}

impl StreamingService<BatchCommandsRequest> for BatchMethod {
    type Response = ();
    type ResponseStream = tokio_stream::Empty<Result<(), Status>>;
    type Future = BoxFuture<Response<Self::ResponseStream>, Status>;

    fn call(&mut self, request: Request<Streaming<BatchCommandsRequest>>) -> Self::Future {
        let answers = batch_commands::serve(self.service.clone(), request.into_inner());
        // An error means that the caller has gone.
        let _ = self.told.take().map(|told| told.send(answers));
        Box::pin(async { Ok(Response::new(tokio_stream::empty())) })
    }
}

/// A body: answers chunk by chunk, then the status.
struct AnswerBody<S> {
    answers: S,
    now: Option<OutgoingMessage>,
    ended: bool,
}

impl<S> HttpBody for AnswerBody<S>
where
    S: Stream<Item = Result<OutgoingMessage, Status>> + Unpin,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        loop {
            if let Some(piece) = self.now.as_mut().and_then(|now| now.pieces.take()) {
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
        S: Stream<Item = Result<OutgoingMessage, Status>> + Unpin,
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

    fn long_answer() -> OutgoingMessage {
        let mut rows = RowEncoder::default();
        rows.push(b"key", &vec![1; 600 << 10]);
        OutgoingMessage::alone(ChunkedBody::rows(rows).unwrap())
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
    fn a_failure_ends_a_stream_with_its_status() {
        let answers = [Ok(long_answer()), Err(Status::invalid_argument("no"))];
        let mut body = AnswerBody { answers: tokio_stream::iter(answers), now: None, ended: false };
        (0..4).for_each(|_| drop(data(poll(&mut body))));
        assert_eq!(code(poll(&mut body)), "3");
        assert!(matches!(poll(&mut body), Poll::Ready(None)));
    }
}
