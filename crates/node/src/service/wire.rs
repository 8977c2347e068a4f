//! Answers that may be large, on their way into bytes.
//!
//! To encode ten megabytes takes some milliseconds, in one piece. On a thread that serves connections
//! every request behind it would wait for that, and the messages between stores, too; a node on few
//! cores has one such thread or two. So a large answer is encoded on a thread that has given its
//! place to another one first, and the system shares the cores among the two.
//!
//! The methods whose answers may be large are taken out here, before the generated service.

use std::convert::Infallible;
use std::future::Future;
use std::marker::PhantomData;
use std::task::{Context, Poll};

use flotilla_proto::tikvpb::tikv_server::{Tikv, TikvServer};
use flotilla_proto::tikvpb::{BatchCommandsRequest, BatchCommandsResponse};
use prost::Message;
use tokio::runtime::{Handle, RuntimeFlavor};
use tonic::body::Body;
use tonic::codec::{Codec, EncodeBuf, Encoder};
use tonic::codegen::{Body as HttpBody, BoxFuture, Service, StdError, http};
use tonic::server::{Grpc, NamedService, StreamingService, UnaryService};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

use super::batch::Answers;
use super::rawkv::RawKv;

/// Bytes from which on an answer is large: a tenth of a millisecond's work.
const LARGE_BYTES: usize = 256 << 10;

/// The service that every store offers to clients, as a server takes it.
#[derive(Clone)]
pub struct RawKvServer {
    service: RawKv,
    message_bytes_max: usize,
    /// Serves all methods that are not taken out.
    rest: TikvServer<RawKv>,
}

impl RawKvServer {
    pub(super) fn new(service: RawKv, message_bytes_max: usize) -> Self {
        let rest = TikvServer::new(service.clone()).max_decoding_message_size(message_bytes_max);
        Self { service, message_bytes_max, rest }
    }

    fn grpc<T, U>(&self) -> Grpc<LargeCodec<T, U>>
    where
        T: Message + 'static,
        U: Message + Default + 'static,
    {
        Grpc::new(LargeCodec(PhantomData)).max_decoding_message_size(self.message_bytes_max)
    }
}

impl NamedService for RawKvServer {
    const NAME: &'static str = <TikvServer<RawKv> as NamedService>::NAME;
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
            ($method:ident) => {{
                let (service, mut grpc) = (self.service.clone(), self.grpc());
                let method = move |request| {
                    let service = service.clone();
                    async move { service.$method(request).await }
                };
                Box::pin(async move { Ok(grpc.unary(Unary(method), request).await) })
            }};
        }
        match request.uri().path() {
            "/tikvpb.Tikv/BatchCommands" => {
                let (method, mut grpc) = (Batches(self.service.clone()), self.grpc());
                Box::pin(async move { Ok(grpc.streaming(method, request).await) })
            }
            "/tikvpb.Tikv/RawScan" => unary!(raw_scan),
            "/tikvpb.Tikv/RawBatchScan" => unary!(raw_batch_scan),
            "/tikvpb.Tikv/RawBatchGet" => unary!(raw_batch_get),
            _ => self.rest.call(request),
        }
    }
}

/// A method with one answer.
struct Unary<F>(F);

impl<F, A, R, S> UnaryService<R> for Unary<F>
where
    F: FnMut(Request<R>) -> A,
    A: Future<Output = Result<Response<S>, Status>>,
{
    type Response = S;
    type Future = A;

    fn call(&mut self, request: Request<R>) -> A {
        (self.0)(request)
    }
}

/// The batch stream.
struct Batches(RawKv);

impl StreamingService<BatchCommandsRequest> for Batches {
    type Response = BatchCommandsResponse;
    type ResponseStream = Answers;
    type Future = BoxFuture<Response<Answers>, Status>;

    fn call(&mut self, request: Request<Streaming<BatchCommandsRequest>>) -> Self::Future {
        let service = self.0.clone();
        Box::pin(async move { service.batch_commands(request).await })
    }
}

/// Protocol buffers, of which large ones are encoded aside.
struct LargeCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Codec for LargeCodec<T, U>
where
    T: Message + 'static,
    U: Message + Default + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = LargeEncoder<T>;
    type Decoder = ProstDecoder<U>;

    fn encoder(&mut self) -> LargeEncoder<T> {
        LargeEncoder(ProstEncoder::default())
    }

    fn decoder(&mut self) -> ProstDecoder<U> {
        ProstCodec::<T, U>::default().decoder()
    }
}

struct LargeEncoder<T>(ProstEncoder<T>);

impl<T: Message + 'static> Encoder for LargeEncoder<T> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, message: T, buf: &mut EncodeBuf<'_>) -> Result<(), Status> {
        let bytes = message.encoded_len();
        aside(bytes, || {
            // Once, or it would be doubled again and again, and copied.
            buf.reserve(bytes);
            self.0.encode(message, buf)
        })
    }
}

/// Does what takes as long as so many bytes take. If they are many, other tasks need not wait.
fn aside<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    // With a single thread there is nobody to take over.
    let may = Handle::try_current()
        .is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread);
    if bytes >= LARGE_BYTES && may { tokio::task::block_in_place(work) } else { work() }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use tokio::runtime::Builder;

    use super::*;

    #[test]
    fn others_go_on_while_a_large_answer_is_encoded() {
        let runtime = Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let (told, heard) = mpsc::channel();
        let encoding = runtime.spawn(async move {
            // Behind this task on the only thread.
            tokio::spawn(async move { told.send(()).unwrap() });
            aside(LARGE_BYTES, || heard.recv_timeout(Duration::from_secs(30)))
        });
        assert_eq!(runtime.block_on(encoding).unwrap(), Ok(()));
    }

    #[test]
    fn what_is_small_or_has_one_thread_is_done_in_place() {
        let one = Builder::new_current_thread().build().unwrap();
        assert_eq!(one.block_on(async { aside(LARGE_BYTES, || 1) }), 1);
        assert_eq!(aside(LARGE_BYTES, || 2), 2);
        let many = Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let small = async { aside(LARGE_BYTES - 1, || 3) };
        assert_eq!(many.block_on(many.spawn(small)).unwrap(), 3);
    }
}
