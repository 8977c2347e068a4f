//! Connections that say nothing, or nothing that makes sense.

use std::time::{Duration, Instant};

use bytes::BufMut;
use flotilla_proto::pdpb::GetRegionRequest;
use flotilla_proto::pdpb::pd_client::PdClient;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::transport::Channel;

use crate::target::Target;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_do_not_speak_the_protocol() {
    let mut target = Target::start().await;
    let before = target.resident_bytes();
    let addr = target.cluster.endpoints()[0].clone();
    let mut random = fastrand::Rng::with_seed(8);
    let mut noise = vec![0; 1 << 16];
    random.fill(&mut noise);
    // Noise after a valid preface, too: it is then a frame of an illegal length.
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let claims_4_gib = h2_call("/tikvpb.Tikv/RawPut", &[0, 0xff, 0xff, 0xff, 0xff, 1, 2, 3]);
    for said in [
        &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
        &noise,
        &[&preface[..], &noise].concat(),
        &claims_4_gib,
    ] {
        let mut stream = TcpStream::connect(&addr).await.unwrap();
        // It may have closed the connection before it has heard all.
        let _ = stream.write_all(said).await;
        let _ = stream.shutdown().await;
        let closed = async { while matches!(stream.read(&mut [0; 4096]).await, Ok(1..)) {} };
        let closed = tokio::time::timeout(Duration::from_secs(20), closed).await;
        closed.expect("the connection is closed");
        target.serves().await;
    }
    target.has_not_grown(before);
}

/// The frames of one call, by hand: what a client's library would not send.
fn h2_call(path: &str, message: &[u8]) -> Vec<u8> {
    let mut headers = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "x"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ] {
        // Literal, not indexed, not compressed; all lengths are below 127.
        headers.push(0);
        for text in [name, value] {
            headers.push(u8::try_from(text.len()).unwrap());
            headers.extend_from_slice(text.as_bytes());
        }
    }
    let mut call = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let mut frame = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        call.put_uint(payload.len() as u64, 3);
        call.put_slice(&[kind, flags]);
        call.put_u32(stream);
        call.put_slice(payload);
    };
    frame(4, 0, 0, &[]);
    frame(1, 4, 1, &headers);
    frame(0, 1, 1, message);
    call
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_idle_connections() {
    let mut target = Target::start().await;
    let before = target.resident_bytes();
    let addr = target.cluster.endpoints()[0].clone();
    let mut idle = Vec::new();
    for n in 0..1000 {
        let mut stream = TcpStream::connect(&addr).await.unwrap();
        // Half of them say nothing at all; the others open a connection and leave it at that.
        if n % 2 == 0 {
            stream
                .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
                .await
                .unwrap();
        }
        idle.push(stream);
    }
    let began = Instant::now();
    for _ in 0..50 {
        target.serves().await;
    }
    println!("a good client: {:?} for a put and a get", began.elapsed() / 50);
    target.has_not_grown(before);
    // And a new client connects at the same time.
    let channel = Channel::from_shared(format!("http://{addr}")).unwrap().connect().await.unwrap();
    let request = GetRegionRequest::default();
    assert!(
        PdClient::new(channel).get_region(request).await.unwrap().into_inner().region.is_some()
    );
    drop(idle);
    target.serves().await;
}
