//! Ranges that are inverted, endless, too many, or that hold too much.

use bytes::Bytes;
use flotilla_proto::kvrpcpb::{
    KeyRange, KvPair, RawBatchPutRequest, RawBatchScanRequest, RawDeleteRangeRequest,
    RawScanRequest,
};

use crate::target::Target;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranges_that_are_inverted_endless_or_too_many() {
    let mut target = Target::start().await;
    let keys: Vec<Bytes> = (0..3000).map(|n| format!("range-{n:05}").into()).collect();
    let context = target.context(b"range").await;
    let pairs = keys.iter().map(|key| KvPair { key: key.clone(), value: "v".into() }).collect();
    let request = RawBatchPutRequest { context: Some(context), pairs, ..Default::default() };
    target.kv.raw_batch_put(request).await.unwrap();

    let scan = |start: &'static str, end: &'static str| RawScanRequest {
        start_key: start.into(),
        end_key: end.into(),
        limit: 10,
        ..Default::default()
    };
    assert_eq!(target.scan(b"range", scan("range-9", "range-0")).await.unwrap(), []);
    assert_eq!(target.scan(b"range", scan("range-1", "range-1")).await.unwrap(), []);
    let none = RawScanRequest { limit: 0, ..scan("range-", "") };
    assert_eq!(target.scan(b"range", none).await.unwrap(), []);

    // A limit beyond all reason is no reason to take memory: the rows are those of the region.
    for limit in [1_000_000_000, u32::MAX] {
        let all = RawScanRequest { limit, ..scan("range-", "") };
        let found = target.scan(b"range", all).await.unwrap();
        assert_eq!(
            found.iter().map(|pair| &pair.key).collect::<Vec<_>>(),
            keys.iter().collect::<Vec<_>>()
        );
    }
    // Rows that do not fit into an answer are an error of their own, never a shorter answer.
    for n in 0..12 {
        let key = format!("wide-{n:02}");
        let context = target.context(key.as_bytes()).await;
        let value = Bytes::from(vec![7; 3 << 20]);
        assert_eq!(target.put(context, key.as_bytes(), value).await, Default::default());
    }
    let before = target.resident_bytes();
    for _ in 0..5 {
        let wide = RawScanRequest { limit: 1_000_000_000, ..scan("wide-", "x") };
        let error = target.scan(b"wide", wide).await.unwrap_err();
        assert!(error.raft_entry_too_large.is_some(), "{error:?}");
        assert!(error.message.contains("ask for fewer rows"), "{error:?}");
    }
    let few = RawScanRequest { limit: 5, ..scan("wide-", "x") };
    assert_eq!(target.scan(b"wide", few).await.unwrap().len(), 5);
    let keys_only = RawScanRequest { limit: 100, key_only: true, ..scan("wide-", "x") };
    assert_eq!(target.scan(b"wide", keys_only).await.unwrap().len(), 12);
    target.has_not_grown(before);

    let context = Some(target.context(b"range").await);
    let range = KeyRange { start_key: "range-".into(), end_key: "".into() };
    let request = RawBatchScanRequest {
        context: context.clone(),
        ranges: vec![range; 50_000],
        each_limit: 1,
        ..Default::default()
    };
    let error = target.kv.raw_batch_scan(request).await.unwrap().into_inner().region_error.unwrap();
    assert_eq!(error.message, "50000 ranges, at most 1024");

    // An inverted deletion deletes nothing.
    let request = RawDeleteRangeRequest {
        context,
        start_key: "range-9".into(),
        end_key: "range-0".into(),
        ..Default::default()
    };
    let response = target.kv.raw_delete_range(request.clone()).await.unwrap().into_inner();
    assert_eq!((response.error.as_str(), response.region_error), ("", None));
    assert!(target.get(b"range-00000").await.is_some());
    // One without an end reaches to the end of the region, and no further.
    let context = target.context(b"\x90").await;
    assert_eq!(target.put(context, b"\x90", "next region".into()).await, Default::default());
    let request =
        RawDeleteRangeRequest { start_key: "range-".into(), end_key: "".into(), ..request };
    target.kv.raw_delete_range(request).await.unwrap();
    assert_eq!(target.get(b"range-00000").await, None);
    assert_eq!(target.get(b"\x90").await.unwrap(), "next region");
    target.serves().await;
}
