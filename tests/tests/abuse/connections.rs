//! Connections that say nothing, or nothing that makes sense.

use std::time::{Duration, Instant};

use flotilla_proto::pdpb::GetRegionRequest;
use flotilla_proto::pdpb::pd_client::PdClient;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::transport::Channel;

use crate::frames::{DATA, END_HEADERS, END_STREAM, HEADERS, frame, headers, opening};
use crate::target::Target;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_do_not_speak_the_protocol() {
    for is_secure in [false, true] {
        do_not_speak_the_protocol(Target::start_as(is_secure).await).await;
    }
}

async fn do_not_speak_the_protocol(mut target: Target) {
    let before = target.resident_bytes();
    let addr = target.raw_addr.clone();
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

/// The frames of one call.
fn h2_call(path: &str, message: &[u8]) -> Vec<u8> {
    let mut call = opening();
    frame(&mut call, HEADERS, END_HEADERS, 1, &headers(path));
    frame(&mut call, DATA, END_STREAM, 1, message);
    call
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_idle_connections() {
    for is_secure in [false, true] {
        are_idle(Target::start_as(is_secure).await).await;
    }
}

async fn are_idle(mut target: Target) {
    let before = target.resident_bytes();
    let addr = target.raw_addr.clone();
    let mut idle = Vec::new();
    // With TLS these do not even begin a handshake, or leave it at its first byte.
    for n in 0..100 {
        let mut stream = TcpStream::connect(&target.cluster.endpoints()[0]).await.unwrap();
        if n % 2 == 0 {
            stream.write_all(&[0x16]).await.unwrap();
        }
        idle.push(stream);
    }
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
