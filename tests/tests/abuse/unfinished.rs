//! Calls of which only a part comes.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use flotilla_proto::kvrpcpb::RawPutRequest;
use http_body::{Body as HttpBody, Frame};
use prost::Message as _;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tonic::body::Body;
use tonic::codegen::{Service as _, http};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::target::Target;

const CALLS: usize = 200;
const VALUE_BYTES: usize = 15 << 20;
const PART_BYTES: usize = 1 << 20;
/// Half the time that it waits for the end of a call.
const ANSWERED_WITHIN: Duration = Duration::from_secs(15);
/// What came of them is bounded by this.
const SETTINGS: &str = "limits.unfinished_bytes_max = \"64MiB\"\n";

/// A request that never ends, and what is left to send of it.
struct Unfinished {
    left: Bytes,
    /// Told when nothing is left, and dropped if the store does not take it.
    sent: Option<oneshot::Sender<()>>,
}

/// The time between calls.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Begin {
    AllAtOnce,
    OneAfterTheOther,
}

/// A put as it goes over the wire.
fn put() -> Bytes {
    let value = vec![7; VALUE_BYTES].into();
    let message = RawPutRequest { key: "key".into(), value, ..Default::default() }.encode_to_vec();
    let mut put = BytesMut::new();
    put.put_u8(0);
    put.put_u32(message.len().try_into().unwrap());
    put.put_slice(&message);
    put.freeze()
}

impl HttpBody for Unfinished {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left.is_empty() {
            self.sent.take().map(|sent| sent.send(()));
            return Poll::Pending;
        }
        let part_bytes = self.left.len().min(PART_BYTES);
        Poll::Ready(Some(Ok(Frame::data(self.left.split_to(part_bytes)))))
    }
}

/// Puts of which this comes, on a connection of their own: those that the store refuses, and the
/// one that it waits for.
async fn put_unfinished(
    target: &Target,
    part: &Bytes,
    begin: Begin,
) -> (Vec<Status>, JoinSet<Status>) {
    let url = format!("http://{}", target.cluster.endpoints()[0]);
    let channel = Channel::from_shared(url).unwrap().connect().await.unwrap();
    let mut calls = JoinSet::new();
    for _ in 0..CALLS {
        let (mut channel, left) = (channel.clone(), part.clone());
        let (sender, sent) = oneshot::channel();
        calls.spawn(async move {
            let request = http::Request::post("http://store/tikvpb.Tikv/RawPut")
                .header("content-type", "application/grpc")
                .header("te", "trailers")
                .body(Body::new(Unfinished { left, sent: Some(sender) }))
                .unwrap();
            poll_fn(|context| channel.poll_ready(context)).await.unwrap();
            let answer = channel.call(request).await.unwrap();
            Status::from_header_map(answer.headers()).unwrap()
        });
        if begin == Begin::OneAfterTheOther {
            let _is_refused = sent.await.is_err();
        }
    }
    let mut refused = vec![];
    for _ in 1..CALLS {
        let next = tokio::time::timeout(ANSWERED_WITHIN, calls.join_next()).await;
        refused.push(next.expect("it waits for more calls than it has room for").unwrap().unwrap());
    }
    (refused, calls)
}

/// A store refuses all but one of the puts of which this comes, does not grow, and serves others.
async fn unfinished_are_bounded(part: &Bytes, begin: Begin) {
    let mut target = Target::start_with(SETTINGS).await;
    let before = target.resident_bytes();
    let (refused, waiting) = put_unfinished(&target, part, begin).await;
    for status in refused {
        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        assert!(status.message().contains("limits.unfinished_bytes_max"), "{status}");
    }
    target.has_not_grown(before);
    target.serves().await;
    let context = target.context(b"large").await;
    let large = Bytes::from(vec![7; 1 << 20]);
    assert_eq!(target.put(context, b"large", large).await, Default::default());
    drop(waiting);
    target.shrinks_back(before).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_never_end() {
    let put = put();
    unfinished_are_bounded(&put.slice(..put.len() - 1), Begin::AllAtOnce).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_never_end() {
    unfinished_are_bounded(&put(), Begin::OneAfterTheOther).await;
}
