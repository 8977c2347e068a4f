//! Values, keys and commands that are large, or too large.

use bytes::Bytes;
use flotilla_proto::kvrpcpb::{
    KvPair, RawBatchPutRequest, RawCasRequest, RawGetKeyTtlRequest, RawPutRequest,
};
use tonic::Code;
use tonic::codec::CompressionEncoding;

use crate::target::Target;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_values_keys_and_commands() {
    let mut target = Target::start().await;
    let context = target.context(b"key").await;
    let before = target.resident_bytes();

    let large = Bytes::from(vec![7; 3 << 20]);
    assert_eq!(target.put(context.clone(), b"key", large.clone()).await, Default::default());
    assert_eq!(target.get(b"key").await, Some(large));

    // The empty key is one like others: the first of all.
    let first = target.context(b"").await;
    assert_eq!(target.put(first, b"", "v".into()).await, Default::default());
    assert_eq!(target.get(b"").await, Some("v".into()));
    let (error, _) = target.put(context.clone(), &[0x41; 8193], "v".into()).await;
    assert_eq!(error, "max key size exceeded, size: 8193, limit: 8192");
    assert_eq!(target.put(context.clone(), &[0x41; 8192], "v".into()).await, Default::default());

    // More than an entry of the log can hold, but not more than a message.
    let (error, region_error) = target.put(context.clone(), b"key", vec![7; 9 << 20].into()).await;
    assert_eq!(error, "");
    let told = region_error.raft_entry_too_large.unwrap();
    assert!(told.entry_size > 9 << 20);
    // More than a message: refused at its length, before it is read.
    for bytes in [17 << 20, 40 << 20] {
        let context = Some(context.clone());
        let value = vec![7; bytes].into();
        let request = RawPutRequest { context, key: "key".into(), value, ..Default::default() };
        let status = target.kv.raw_put(request).await.unwrap_err();
        assert_eq!(status.code(), Code::OutOfRange, "{status}");
        assert!(status.message().contains("the limit is: 16777216 bytes"), "{status}");
    }
    let request = RawPutRequest {
        context: Some(context.clone()),
        key: "key".into(),
        // Longer than there are milliseconds to count.
        ttl: u64::MAX,
        ..Default::default()
    };
    let error = target.kv.raw_put(request).await.unwrap().into_inner().error;
    assert_eq!(error, "");
    let request = RawGetKeyTtlRequest {
        context: Some(context.clone()),
        key: "key".into(),
        ..Default::default()
    };
    let told = target.kv.raw_get_key_ttl(request).await.unwrap().into_inner();
    assert!(!told.not_found && told.ttl > u64::MAX / 2000, "{told:?}");
    let request = RawCasRequest {
        context: Some(context.clone()),
        key: "key".into(),
        cf: "raft".into(),
        ..Default::default()
    };
    let error = target.kv.raw_compare_and_swap(request).await.unwrap().into_inner().error;
    assert_eq!(error, "invalid cf name: raft");

    // A hundred thousand pairs with the same key: one proposal, of which the last wins.
    let pair = |n: u32| KvPair { key: "same".into(), value: n.to_string().into() };
    let context = target.context(b"same").await;
    let request = RawBatchPutRequest {
        context: Some(context),
        pairs: (0..100_000).map(pair).collect(),
        ..Default::default()
    };
    let response = target.kv.raw_batch_put(request).await.unwrap().into_inner();
    assert_eq!((response.error.as_str(), response.region_error), ("", None));
    assert_eq!(target.get(b"same").await.unwrap(), "99999");

    target.has_not_grown(before);
    target.serves().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compressed_messages() {
    let mut target = Target::start().await;
    let context = target.context(b"gzip").await;
    let before = target.resident_bytes();
    // Compressed it is a message, and by its inflated length it is not.
    let mut gzip = target.kv.clone().send_compressed(CompressionEncoding::Gzip);
    for (bytes, expected) in [
        (3 << 20, Ok(())),
        (17 << 20, Err(Code::ResourceExhausted)),
        (60 << 20, Err(Code::ResourceExhausted)),
    ] {
        let context = Some(context.clone());
        let value = vec![7; bytes].into();
        let request = RawPutRequest { context, key: "gzip".into(), value, ..Default::default() };
        let told = gzip.raw_put(request).await.map(|answer| {
            assert_eq!(answer.into_inner(), Default::default());
        });
        if let Err(status) = &told {
            assert!(status.message().contains("of 16777216 bytes"), "{status}");
        }
        assert_eq!(told.map_err(|status| status.code()), expected);
    }
    assert_eq!(target.get(b"gzip").await, Some(vec![7; 3 << 20].into()));
    // Of another kind than is known: refused, with the kinds that are.
    let mut zipped = tonic::Request::new(RawPutRequest::default());
    zipped.metadata_mut().insert("grpc-encoding", "zstd".parse().unwrap());
    let status = target.kv.raw_put(zipped).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented, "{status}");
    assert_eq!(status.metadata().get("grpc-accept-encoding").unwrap(), "gzip,identity");
    target.has_not_grown(before);
    target.serves().await;
}
