//! Every RPC of TiKV's protocol ends: with an answer, or refused in words, as `docs/rpcs.md` says.
//! Health checks and reflection tell the same.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use flotilla_cli::playground::{Playground, PlaygroundConfig};
use prost::Message;
use prost_types::FileDescriptorProto;
use tempfile::TempDir;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

const PATIENCE: Duration = Duration::from_secs(60);
/// The bound on each call. It is tried again twice, for a machine that has much else to do: a call
/// that hangs, hangs each time.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);
const TRIES: usize = 3;

const TABLE: &str = include_str!("../../docs/rpcs.md");
const SERVICES: [&str; 4] =
    ["tikvpb.Tikv", "pdpb.PD", "keyspacepb.Keyspace", "meta_storagepb.MetaStorage"];

/// The state of a call, as its row has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Served,
    Refused,
    RefusedInItsError,
}

/// The calls of the table.
fn table() -> Vec<(&'static str, State)> {
    let rows = TABLE.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.split('|').map(str::trim);
        let call = cells.next()?.strip_suffix('`')?;
        let (service, _) = call.split_once('/')?;
        let state = match cells.next()? {
            "served" => State::Served,
            "refused" => State::Refused,
            "refused in its `error`" => State::RefusedInItsError,
            other => panic!("{call} is {other}"),
        };
        assert!(SERVICES.contains(&service), "{call}");
        Some((call, state))
    });
    let rows: Vec<_> = rows.collect();
    assert!(rows.len() > 100, "only {} rows", rows.len());
    rows
}

/// Messages as bytes.
struct Raw;

impl Codec for Raw {
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

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

async fn start() -> (TempDir, Playground, Channel) {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Playground::start(&PlaygroundConfig::new(dir.path())).await.unwrap();
    cluster.ready(PATIENCE).await.unwrap();
    let url = format!("http://{}", cluster.endpoints()[0]);
    let channel = Channel::from_shared(url).unwrap().connect().await.unwrap();
    (dir, cluster, channel)
}

/// Calls with one empty message, and reads up to the end.
async fn call(channel: &Channel, call: &str) -> Result<Vec<Bytes>, Status> {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await.unwrap();
    let request = Request::new(tokio_stream::iter([Bytes::new()]));
    let path = format!("/{call}").parse().unwrap();
    let mut answers = grpc.streaming(request, path, Raw).await?.into_inner();
    let mut messages = Vec::new();
    while let Some(message) = answers.message().await? {
        messages.push(message);
    }
    Ok(messages)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_of_the_table_ends_as_it_says() {
    let (_dir, cluster, channel) = start().await;
    let unknown = [("tikvpb.Tikv/Nothing", State::Refused), ("nobody.Knows/Me", State::Refused)];
    for (name, state) in table().into_iter().chain(unknown) {
        let mut tries = 0;
        let ended = loop {
            tries += 1;
            match tokio::time::timeout(CALL_TIMEOUT, call(&channel, name)).await {
                Ok(ended) => break ended,
                Err(_) => assert!(tries < TRIES, "{name} does not end"),
            }
        };
        let words = format!("{name} is not supported by Flotilla");
        match (state, ended) {
            (State::Served, Ok(_)) => {}
            (State::Served, Err(status)) => {
                assert_ne!(status.code(), Code::Unimplemented, "{name}: {status}");
            }
            (State::Refused, Ok(_)) => panic!("{name} is answered"),
            (State::Refused, Err(status)) => {
                assert_eq!((status.code(), status.message()), (Code::Unimplemented, &words[..]));
            }
            (State::RefusedInItsError, ended) => {
                let messages = ended.unwrap();
                let text = String::from_utf8_lossy(&messages[0]);
                assert!(text.ends_with(&words), "{name}: {text}");
            }
        }
    }
    cluster.shutdown().await.unwrap();
}

/// The services and the methods of one of them, as a version of reflection tells them.
macro_rules! reflected {
    ($version:ident, $channel:expr, $service:expr) => {{
        use pb::server_reflection_request::MessageRequest as Ask;
        use pb::server_reflection_response::MessageResponse as Told;
        use tonic_reflection::pb::$version as pb;
        let mut client = pb::server_reflection_client::ServerReflectionClient::new($channel);
        let asks = [
            Ask::ListServices(String::new()),
            Ask::FileContainingSymbol($service.to_owned()),
            Ask::FileContainingSymbol("nobody.Knows".to_owned()),
        ];
        let asks = asks.map(|ask| pb::ServerReflectionRequest {
            host: String::new(),
            message_request: Some(ask),
        });
        let answers = client.server_reflection_info(tokio_stream::iter(asks)).await.unwrap();
        let mut answers = answers.into_inner();
        let mut services = BTreeSet::new();
        let mut methods = BTreeSet::new();
        // The last question has no answer: it ends the stream.
        while let Ok(Some(answer)) = answers.message().await {
            match answer.message_response.unwrap() {
                Told::ListServicesResponse(list) => {
                    services.extend(list.service.into_iter().map(|service| service.name));
                }
                Told::FileDescriptorResponse(files) => {
                    for file in files.file_descriptor_proto {
                        methods.extend(described(&file, $service));
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        (services, methods)
    }};
}

/// The methods of a service in an encoded file, `service/method`.
fn described(file: &[u8], service: &str) -> Vec<String> {
    let file = FileDescriptorProto::decode(file).unwrap();
    let package = file.package().to_owned();
    let services =
        file.service.into_iter().filter(|it| format!("{package}.{}", it.name()) == service);
    let methods = services.flat_map(|it| it.method);
    methods.map(|method| format!("{service}/{}", method.name())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reflection_lists_what_the_table_says_is_served() {
    let (_dir, cluster, channel) = start().await;
    for service in SERVICES {
        let (services, methods) = reflected!(v1, channel.clone(), service);
        let (older_services, older_methods) = reflected!(v1alpha, channel.clone(), service);
        // Each version lists itself, and not the other.
        let differences: Vec<_> = services.symmetric_difference(&older_services).collect();
        assert!(differences.iter().all(|it| it.contains("reflection")), "{differences:?}");
        assert_eq!(older_methods, methods);
        for listed in SERVICES.iter().chain(&["grpc.health.v1.Health", "flotilla.peers.Status"]) {
            assert!(services.contains(*listed), "{listed} is not among {services:?}");
        }
        let rows = table().into_iter().filter(|(call, state)| {
            call.split_once('/').unwrap().0 == service && *state != State::Refused
        });
        assert_eq!(methods, rows.map(|(call, _)| call.to_owned()).collect(), "{service}");
    }
    cluster.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_is_told_by_service() {
    let (_dir, cluster, channel) = start().await;
    let mut client = HealthClient::new(channel);
    for service in ["", "tikvpb.Tikv", "pdpb.PD", "flotilla.Regions"] {
        let serves = async {
            loop {
                let service = service.to_owned();
                // Those that depend on leaders are looked at each second.
                match client.check(HealthCheckRequest { service }).await {
                    Ok(told) if told.get_ref().status() == ServingStatus::Serving => return,
                    _ => tokio::task::yield_now().await,
                }
            }
        };
        tokio::time::timeout(PATIENCE, serves).await.unwrap_or_else(|_| panic!("{service}"));
    }
    let request = HealthCheckRequest { service: "nobody.Knows".to_owned() };
    assert_eq!(client.check(request).await.unwrap_err().code(), Code::NotFound);
    cluster.shutdown().await.unwrap();
}
