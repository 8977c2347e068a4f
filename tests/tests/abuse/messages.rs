//! Bytes in the place of messages.

use bytes::{Buf, BufMut, Bytes};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::target::Target;

/// Sends bytes that are no message, and takes any.
struct Junk;

impl Codec for Junk {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Junk {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for Junk {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_are_none() {
    let mut target = Target::start().await;
    let before = target.resident_bytes();
    let url = format!("http://{}", target.cluster.endpoints()[0]);
    let channel = Channel::from_shared(url).unwrap().connect().await.unwrap();
    let mut random = fastrand::Rng::with_seed(7);
    // A field that claims 4 GiB, groups without end, and noise.
    let mut junk =
        vec![Bytes::from(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f][..]), vec![0x0b; 30_000].into()];
    junk.extend((0..40).map(|_| {
        let mut bytes = vec![0xff; random.usize(1..2000)];
        random.fill(&mut bytes[1..]);
        Bytes::from(bytes)
    }));
    for path in [
        "/tikvpb.Tikv/RawPut",
        "/tikvpb.Tikv/RawBatchPut",
        "/tikvpb.Tikv/BatchCommands",
        "/pdpb.PD/GetRegion",
        "/pdpb.PD/QueryRegion",
        "/pdpb.PD/Tso",
        "/flotilla.peers.Peers/Appends",
        "/flotilla.peers.Peers/Urgent",
        "/flotilla.peers.Placement/Report",
    ] {
        for bytes in &junk {
            let mut grpc = tonic::client::Grpc::new(channel.clone());
            grpc.ready().await.unwrap();
            let request = Request::new(tokio_stream::iter([bytes.clone()]));
            let answer = grpc.streaming(request, path.parse().unwrap(), Junk).await;
            let status = match answer {
                Err(status) => status,
                Ok(answer) => match answer.into_inner().message().await {
                    Err(status) => status,
                    // Noise may be a valid message without a known field.
                    Ok(_) => continue,
                },
            };
            assert!(
                matches!(status.code(), Code::Internal | Code::InvalidArgument),
                "{path}: {status}"
            );
        }
    }
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.unwrap();
    let path = "/tikvpb.Tikv/KvGet".parse().unwrap();
    let status = grpc.unary(Request::new(Bytes::new()), path, Junk).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
    assert_eq!(status.message(), "tikvpb.Tikv/KvGet is not supported by Flotilla");
    target.has_not_grown(before);
    target.serves().await;
}
