//! Batch streams that are malformed, and ones whose answers are never fetched.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use flotilla_proto::kvrpcpb::{Context, PrewriteRequest, RawGetRequest};
use flotilla_proto::tikvpb::BatchCommandsRequest;
use flotilla_proto::tikvpb::batch_commands_request::{Request as BatchRequest, request::Cmd};
use flotilla_proto::tikvpb::batch_commands_response::response::Cmd as Answer;
use flotilla_proto::tikvpb::tikv_client::TikvClient;
use tonic::Code;
use tonic::transport::Channel;

use crate::target::Target;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_that_make_no_sense() {
    let mut target = Target::start().await;
    let get = |context: Context, key: &'static str| BatchRequest {
        cmd: Some(Cmd::RawGet(RawGetRequest {
            context: Some(context),
            key: key.into(),
            ..Default::default()
        })),
    };
    let good = target.context(b"key").await;
    let wrong = Context { region_id: 999, ..good.clone() };

    // Bad requests among good ones: each gets its answer, once, and the stream goes on.
    let txn = Cmd::Prewrite(PrewriteRequest {});
    let requests = vec![
        get(good.clone(), "key"),
        get(wrong, "key"),
        BatchRequest { cmd: None },
        BatchRequest { cmd: Some(txn) },
    ];
    let frame = |ids: Vec<u64>| BatchCommandsRequest {
        requests: requests.clone(),
        request_ids: ids,
        ..Default::default()
    };
    let frames = tokio_stream::iter([frame(vec![1, 2, 3, 4]), frame(vec![5, 6, 7, 8])]);
    let mut stream = target.kv.batch_commands(frames).await.unwrap().into_inner();
    let mut answers = BTreeMap::new();
    while let Some(frame) = stream.message().await.unwrap() {
        assert_eq!(frame.responses.len(), frame.request_ids.len());
        for (id, response) in frame.request_ids.into_iter().zip(frame.responses) {
            assert!(answers.insert(id, response.cmd).is_none(), "{id} was answered twice");
        }
    }
    assert_eq!(answers.keys().copied().collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7, 8]);
    let read = |id| match &answers[&id] {
        Some(Answer::RawGet(response)) => response,
        other => panic!("{id}: {other:?}"),
    };
    for id in [1, 5] {
        assert!(read(id).not_found && read(id).region_error.is_none());
        assert!(read(id + 1).region_error.as_ref().unwrap().region_not_found.is_some());
        assert_eq!(answers[&(id + 2)], None, "of no kind, for the request has none");
        let Some(Answer::Prewrite(refused)) = &answers[&(id + 3)] else { panic!("{answers:?}") };
        let words = "tikvpb.Tikv/KvPrewrite is not supported by Flotilla";
        assert_eq!(refused.errors[0].abort, words);
    }

    // More or fewer ids than requests: they cannot be paired.
    for ids in [vec![1, 2], vec![1, 2, 3, 4, 5], vec![]] {
        let stream = target.kv.batch_commands(tokio_stream::iter([frame(ids)])).await.unwrap();
        let status = stream.into_inner().message().await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
    }
    // A client of another cluster.
    let foreign = BatchCommandsRequest {
        requests: vec![get(Context { cluster_id: 4711, ..good }, "key")],
        request_ids: vec![1],
        ..Default::default()
    };
    let stream = target.kv.batch_commands(tokio_stream::iter([foreign])).await.unwrap();
    assert_eq!(stream.into_inner().message().await.unwrap_err().code(), Code::InvalidArgument);
    target.serves().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_nobody_fetches() {
    let mut target = Target::start().await;
    let context = target.context(b"key").await;
    let keys: Vec<Bytes> = (0..64).map(|n| format!("key-{n:02}").into()).collect();
    for key in &keys {
        let value = Bytes::from(vec![7; 1 << 20]);
        assert_eq!(target.put(context.clone(), key, value).await, Default::default());
    }
    let before = target.resident_bytes();
    let get = |key: &Bytes| RawGetRequest {
        context: Some(context.clone()),
        key: key.clone(),
        ..Default::default()
    };
    let request = |key| BatchRequest { cmd: Some(Cmd::RawGet(get(key))) };
    let frame = BatchCommandsRequest {
        requests: keys.iter().map(request).collect(),
        request_ids: (0..64).collect(),
        ..Default::default()
    };
    // A gigabyte of answers is asked for on each of many streams, and none is read. A connection of
    // its own, whose window they fill up.
    let url = format!("http://{}", target.cluster.endpoints()[0]);
    let channel = Channel::from_shared(url).unwrap().connect().await.unwrap();
    let mut streams = Vec::new();
    for _ in 0..32 {
        let frames = tokio_stream::iter(vec![frame.clone(); 16]);
        streams.push(TikvClient::new(channel.clone()).batch_commands(frames).await.unwrap());
    }
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(2) {
        target.serves().await;
    }
    // All of them hold what a connection may: its budget, and what its window has let through.
    let growth = target.resident_bytes().saturating_sub(before);
    println!("grown by {} KiB", growth / 1024);
    assert!(growth <= 160 << 20, "grown by {growth} bytes");
    drop(streams);
}
