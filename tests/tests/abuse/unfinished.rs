//! Messages of which only a part comes.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{BufMut as _, Bytes, BytesMut};
use http_body::{Body as HttpBody, Frame};
use tokio::task::JoinSet;
use tonic::body::Body;
use tonic::codegen::{Service as _, http};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::target::Target;

const CALLS: usize = 200;
const MESSAGE_BYTES: u32 = 15 << 20;
const PART_BYTES: usize = 1 << 20;
/// What came of them is bounded by this.
const SETTINGS: &str = "limits.unfinished_bytes_max = \"64MiB\"\n";

/// A message that lacks its last part for ever.
struct Unfinished {
    parts_left: usize,
    next: Bytes,
}

impl Unfinished {
    fn new() -> Self {
        let mut first = BytesMut::new();
        first.put_u8(0);
        first.put_u32(MESSAGE_BYTES);
        Self { parts_left: MESSAGE_BYTES as usize / PART_BYTES, next: first.freeze() }
    }
}

impl HttpBody for Unfinished {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.parts_left == 0 {
            return Poll::Pending;
        }
        self.parts_left -= 1;
        let part = Bytes::from_static(&[7; PART_BYTES]);
        Poll::Ready(Some(Ok(Frame::data(std::mem::replace(&mut self.next, part)))))
    }
}

/// Puts that never end, on a connection of their own: those that the store refuses, and those that
/// it waits for.
async fn put_unfinished(target: &Target) -> (Vec<Status>, JoinSet<Status>) {
    let url = format!("http://{}", target.cluster.endpoints()[0]);
    let channel = Channel::from_shared(url).unwrap().connect().await.unwrap();
    let mut calls = JoinSet::new();
    for _ in 0..CALLS {
        let mut channel = channel.clone();
        calls.spawn(async move {
            let request = http::Request::post("http://store/tikvpb.Tikv/RawPut")
                .header("content-type", "application/grpc")
                .header("te", "trailers")
                .body(Body::new(Unfinished::new()))
                .unwrap();
            poll_fn(|context| channel.poll_ready(context)).await.unwrap();
            let answer = channel.call(request).await.unwrap();
            Status::from_header_map(answer.headers()).unwrap()
        });
    }
    let mut refused = vec![];
    for _ in 0..CALLS - 64 {
        refused.push(calls.join_next().await.unwrap().unwrap());
    }
    (refused, calls)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_never_end() {
    let mut target = Target::start_with(SETTINGS).await;
    let before = target.resident_bytes();
    let (refused, waiting) = put_unfinished(&target).await;
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
