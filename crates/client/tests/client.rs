//! The client against a cluster in this process: routing, retries, the batch stream.

#[allow(clippy::unwrap_used, missing_docs)]
mod fake;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fake::{Fault, World};
use flotilla_client::{Client, Config, Error, RemainingTtl, Scan, StoreOperator, Transport};
use tokio::task::JoinSet;

/// An address without a listener: below the ephemeral ports, and of a service that is no more.
const NOBODY: &str = "127.0.0.1:1";

fn config(transport: Transport) -> Config {
    Config {
        transport,
        deadline: Duration::from_secs(10),
        attempt_timeout: Duration::from_secs(2),
        backoff: Duration::from_millis(1)..=Duration::from_millis(20),
        scan_rows_max: 3,
        ..Config::default()
    }
}

async fn connect(world: &World, config: Config) -> Client {
    Client::connect(&world.endpoints(), config).await.expect("three stores answer")
}

const BOTH: [Transport; 2] = [Transport::Unary, Transport::Stream];

#[tokio::test]
async fn puts_gets_and_deletes_in_every_region() {
    for transport in BOTH {
        let world = World::new(&["d", "m", "t"]);
        let client = connect(&world, config(transport)).await;
        for key in ["", "a", "d", "lz", "m", "tt"] {
            assert_eq!(client.get(key).await.unwrap(), None, "{key:?}");
            client.put(key, format!("value of {key}")).await.unwrap();
            assert_eq!(client.get(key).await.unwrap(), Some(format!("value of {key}").into()));
        }
        client.put("a", "").await.unwrap();
        assert_eq!(client.get("a").await.unwrap(), Some(Bytes::new()), "an empty value is one");
        client.delete("a").await.unwrap();
        client.delete("never there").await.unwrap();
        assert_eq!(client.get("a").await.unwrap(), None);
        assert_eq!(world.state().rows.len(), 5);
    }
}

#[tokio::test]
async fn scans_agree_with_a_map() {
    let world = World::new(&["b", "d", "f"]);
    let client = connect(&world, config(Transport::Stream)).await;
    let keys = ["", "a", "az", "b", "c", "ca", "cb", "d", "dd", "e", "f", "g", "h", "\u{ff}"];
    let pairs = keys.map(|key| (Bytes::from(key), Bytes::from(format!("of {key}"))));
    client.batch_put(pairs).await.unwrap();
    let model = world.state().rows.clone();

    let bounds = ["", "a", "aa", "b", "bb", "cb", "d", "f", "g", "zz"];
    for (start, end) in bounds.iter().flat_map(|start| bounds.map(|end| (*start, end))) {
        for limit in [0, 1, 2, 3, 4, 100] {
            let inside = |key: &Bytes| key >= start && (end.is_empty() || key < end);
            let rows: Vec<_> = model.clone().into_iter().filter(|(key, _)| inside(key)).collect();
            let scan = Scan { start: start.into(), end: end.into(), limit, ..Scan::default() };

            let expected: Vec<_> = rows.iter().take(limit).cloned().collect();
            let found = client.scan(scan.clone()).await.unwrap();
            assert_eq!(found, expected, "[{start}, {end}) limit {limit}");

            let expected: Vec<_> = rows.iter().rev().take(limit).cloned().collect();
            let found = client.scan(Scan { reverse: true, ..scan }).await.unwrap();
            assert_eq!(found, expected, "[{start}, {end}) limit {limit} reverse");
        }
    }

    let keys_only = Scan { limit: 2, key_only: true, ..Scan::default() };
    let found = client.scan(keys_only).await.unwrap();
    assert_eq!(found, [("".into(), Bytes::new()), ("a".into(), Bytes::new())]);
}

#[tokio::test]
async fn batches_are_split_by_region_and_size() {
    for transport in BOTH {
        let world = World::new(&["250", "500", "750"]);
        let small = Config { batch_bytes_max: 1000, fan_out_max: 3, ..config(transport) };
        let client = connect(&world, small).await;
        let key = |at: usize| Bytes::from(format!("{at:03}"));
        let pairs = (0..1000).rev().map(|at| (key(at), Bytes::from(vec![b'v'; 17])));
        client.batch_put(pairs).await.unwrap();
        assert_eq!(world.state().rows.len(), 1000);
        assert_eq!(world.state().writes, 20, "50 pairs of 20 bytes fit into a request");

        let keys = [key(999), key(0), "absent".into(), key(500), key(0)];
        let found = client.batch_get(keys).await.unwrap();
        let found: Vec<_> = found.iter().map(Option::is_some).collect();
        assert_eq!(found, [true, true, false, true, true]);

        client.batch_delete((100..900).map(key)).await.unwrap();
        assert_eq!(world.state().rows.len(), 200);

        // Of two pairs with one key, the later one wins.
        let twice = [("k".into(), "1".into()), ("k".into(), "2".into())];
        client.batch_put(twice).await.unwrap();
        assert_eq!(client.get("k").await.unwrap(), Some("2".into()));
    }
}

#[tokio::test]
async fn deletes_a_range_over_all_regions() {
    let world = World::new(&["d", "m"]);
    let client = connect(&world, config(Transport::Stream)).await;
    let fill = ["a", "b", "d", "k", "m", "z"].map(|key| (Bytes::from(key), Bytes::new()));
    client.batch_put(fill).await.unwrap();
    client.delete_range("b", "m").await.unwrap();
    let left: Vec<_> = world.state().rows.keys().cloned().collect();
    assert_eq!(left, ["a", "m", "z"]);
    client.delete_range("z", "a").await.unwrap();
    assert_eq!(world.state().rows.len(), 3, "an inverted range holds nothing");
    client.delete_range("", "").await.unwrap();
    assert_eq!(world.state().rows.len(), 0);
}

#[tokio::test]
async fn compare_and_swap_tells_what_was_there() {
    let world = World::new(&[]);
    let client = connect(&world, config(Transport::Stream)).await;
    let swap = async |expected: Option<&'static str>, value: Option<&'static str>| {
        let swap = client.compare_and_swap("k", expected.map(Into::into), value.map(Into::into));
        let swap = swap.await.unwrap();
        (swap.succeeded, swap.previous)
    };
    assert_eq!(swap(Some("x"), Some("1")).await, (false, None));
    assert_eq!(swap(None, Some("1")).await, (true, None));
    assert_eq!(swap(None, Some("2")).await, (false, Some("1".into())));
    assert_eq!(swap(Some("1"), Some("")).await, (true, Some("1".into())));
    assert_eq!(swap(Some(""), None).await, (true, Some("".into())));
    assert_eq!(client.get("k").await.unwrap(), None);
}

#[tokio::test]
async fn follows_leaders_and_splits() {
    for transport in BOTH {
        let world = World::new(&["m"]);
        let client = connect(&world, config(transport)).await;
        client.put("a", "1").await.unwrap();
        world.lead("", 3);
        client.put("b", "2").await.unwrap();
        let requests = world.state().requests;
        client.put("c", "3").await.unwrap();
        assert_eq!(world.state().requests, requests + 1, "the new leader is remembered");

        world.split("c");
        world.split("t");
        let keys = ["a", "b", "c", "m", "u"].map(Bytes::from);
        client.batch_put(keys.clone().map(|key| (key, "4".into()))).await.unwrap();
        let found = client.batch_get(keys).await.unwrap();
        assert_eq!(found, vec![Some(Bytes::from("4")); 5]);
        let all = client.scan(Scan { limit: 100, ..Scan::default() }).await.unwrap();
        assert_eq!(all.len(), 5);
        assert_eq!(client.regions().await.unwrap().len(), 4);
        assert_eq!(client.region_of("d").await.unwrap().region.start_key, "c");
    }
}

#[tokio::test]
async fn one_refusal_after_a_split_teaches_all_of_its_parts() {
    for transport in BOTH {
        let world = World::new(&[]);
        let client = connect(&world, config(transport)).await;
        client.put("a", "1").await.unwrap();
        let keys = ["c", "g", "m", "t"].map(Bytes::from);
        let parts = world.state().split_region(2, &keys);
        assert_eq!(parts.len(), 5);
        let requests = world.state().requests;
        for key in ["t1", "a", "d", "h", "p", "z"] {
            client.put(key, "2").await.unwrap();
        }
        assert_eq!(world.state().requests, requests + 7, "placement and a refusal each are asked");
    }
}

#[tokio::test]
async fn splits_a_region_where_it_is_led() {
    let world = World::new(&["m"]);
    let client = connect(&world, config(Transport::Stream)).await;
    world.inject([Fault::Busy(1), Fault::NoLeader]);
    let parts = client.split_region(2, ["c", "g"].map(Bytes::from)).await.unwrap();
    let borders: Vec<_> = parts.iter().map(|part| (&part.start_key[..], part.id == 2)).collect();
    assert_eq!(borders, [(&b""[..], false), (b"c", false), (b"g", true)]);
    assert_eq!(client.regions().await.unwrap().len(), 4);
    let unknown = client.split_region(77, []).await.unwrap_err();
    assert!(matches!(unknown, Error::NoRegion(77)), "{unknown}");
}

#[tokio::test]
async fn a_region_is_split_at_many_keys_by_several_requests() {
    let world = World::new(&["m"]);
    let client = connect(&world, config(Transport::Stream)).await;
    let key = |number: u32| Bytes::from(format!("k{number:03}"));
    let requests = world.state().requests;
    let parts = client.split_region(2, (0..300).rev().map(key)).await.unwrap();
    assert_eq!(world.state().requests, requests + 3);
    let borders = std::iter::once(Bytes::new()).chain((0..300).map(key));
    assert!(parts.iter().map(|part| part.start_key.clone()).eq(borders), "each part comes once");
    assert_eq!(parts.iter().position(|part| part.id == 2), Some(300));
}

#[tokio::test]
async fn passing_failures_do_not_reach_the_caller() {
    for transport in BOTH {
        let world = World::new(&[]);
        let client = connect(&world, config(transport)).await;
        client.put("k", "0").await.unwrap();
        for fault in [Fault::Busy(1), Fault::NoLeader, Fault::Stale, Fault::Fail] {
            world.inject([fault.clone(), fault.clone()]);
            client.put("k", format!("{fault:?}")).await.unwrap();
            world.inject([fault.clone(), fault.clone(), fault.clone(), fault.clone()]);
            let value = client.get("k").await.unwrap();
            assert_eq!(value, Some(format!("{fault:?}").into()));
            assert!(world.state().faults.is_empty(), "{fault:?} was not met");
        }
    }
}

#[tokio::test]
async fn a_killed_store_is_not_noticed() {
    for transport in BOTH {
        let world = World::new(&["d", "m"]);
        let client = connect(&world, config(transport)).await;
        let mut writers = JoinSet::new();
        let (killed, mut told) = tokio::sync::watch::channel(false);
        for writer in 0..8 {
            let (client, mut told) = (client.clone(), told.clone());
            writers.spawn(async move {
                // Each writer is in the middle of its work when the store goes, and has a part of
                // it left to do.
                for step in 0..40 {
                    if step == 20 {
                        told.wait_for(|killed| *killed).await.unwrap();
                    }
                    let key = format!("{}{writer}/{step}", ["a", "g", "t"][step % 3]);
                    client.put(key, "v").await.unwrap();
                }
            });
        }
        world.kill(1);
        killed.send(true).unwrap();
        while let Some(done) = writers.join_next().await {
            done.unwrap();
        }
        told.borrow_and_update();
        assert_eq!(world.state().rows.len(), 8 * 40);
        let all = Scan { limit: 1000, reverse: true, ..Scan::default() };
        assert_eq!(client.scan(all).await.unwrap().len(), 8 * 40);
    }
}

#[tokio::test]
async fn a_refusal_is_final() {
    for transport in BOTH {
        let world = World::new(&[]);
        let client = connect(&world, config(transport)).await;
        world.inject([Fault::Refuse("ttl is not enabled")]);
        let error = client.put("k", "v").await.unwrap_err();
        let words = format!("store 1 at {}: ttl is not enabled", world.endpoints()[0]);
        assert!(matches!(&error, Error::Rejected(why) if *why == words), "{error}");
        assert!(!error.is_undetermined());
        assert_eq!(world.state().requests, 1);
    }
}

#[tokio::test]
async fn times_to_live_are_sent_and_told() {
    let world = World::new(&["m"]);
    let client = connect(&world, config(Transport::Stream)).await;
    assert_eq!(client.ttl("k").await.unwrap(), None);
    client.put("k", "v").await.unwrap();
    assert_eq!(client.ttl("k").await.unwrap(), Some(RemainingTtl::Unlimited));
    client.put_with_ttl("k", "v", 60).await.unwrap();
    assert_eq!(client.ttl("k").await.unwrap(), Some(RemainingTtl::Seconds(60)));
    let swapped = client.compare_and_swap_with_ttl("z", None, Some("v".into()), 5).await.unwrap();
    assert!(swapped.succeeded);
    assert_eq!(client.ttl("z").await.unwrap(), Some(RemainingTtl::Seconds(5)));
}

/// The time of the caller ends before the deadline of the call.
#[tokio::test]
async fn no_call_goes_on_after_the_end_of_the_callers_time() {
    let world = World::new(&[]);
    let now = Instant::now();
    let until = Some(now + Duration::from_millis(200));
    let client = connect(&world, Config { until, ..config(Transport::Stream) }).await;
    world.inject(vec![Fault::NoLeader; 1_000]);
    let error = client.get("k").await.unwrap_err();
    let Error::Deadline { waited_ms, reason, .. } = &error else { panic!("{error}") };
    assert!(*waited_ms < 5_000, "{error}");
    assert!(reason.contains(" at 127.0.0.1:"), "{error}");
    let error = client.scan(Scan { limit: 1, ..Scan::default() }).await.unwrap_err();
    assert!(matches!(error, Error::Deadline { waited_ms: 0..5_000, .. }), "{error}");
}

#[tokio::test]
async fn a_lost_answer_leaves_a_write_in_doubt_and_a_read_not() {
    for transport in BOTH {
        let world = World::new(&[]);
        let client = connect(&world, config(transport)).await;
        client.put("warm", "up").await.unwrap();
        world.inject([Fault::CutOff]);
        client.put("k", "v").await.unwrap();
        assert_eq!(world.state().writes, 3, "it is sent again");

        let careful = Config { resend_undetermined: false, ..config(transport) };
        let client = connect(&world, careful).await;
        world.inject([Fault::CutOff]);
        let error = client.put("k", "w").await.unwrap_err();
        assert!(matches!(error, Error::Undetermined(_)), "{error}");
        assert_eq!(world.state().writes, 4, "it is not sent again");
        world.inject([Fault::CutOff]);
        assert_eq!(client.get("k").await.unwrap(), Some("w".into()), "reads are");
    }
}

#[tokio::test]
async fn the_deadline_tells_what_is_in_doubt() {
    for transport in BOTH {
        let world = World::new(&[]);
        let short = Config { deadline: Duration::from_millis(700), ..config(transport) };
        let client = connect(&world, short).await;
        client.put("warm", "up").await.unwrap();
        world.inject(vec![Fault::CutOff; 2000]);
        let (put, get) = tokio::join!(client.put("k", "v"), client.get("k"));
        let error = put.unwrap_err();
        assert!(matches!(error, Error::Deadline { .. }), "{error}");
        assert!(error.is_undetermined());
        let error = get.unwrap_err();
        assert!(matches!(error, Error::Deadline { .. }), "{error}");
        assert!(!error.is_undetermined());
    }
}

#[tokio::test]
async fn an_answer_that_does_not_come_is_waited_for_only_so_long() {
    for transport in BOTH {
        let world = World::new(&[]);
        let impatient = Config { attempt_timeout: Duration::from_millis(100), ..config(transport) };
        let client = connect(&world, impatient).await;
        client.put("warm", "up").await.unwrap();
        world.inject([Fault::LoseAnswer]);
        client.put("k", "v").await.unwrap();
        world.inject([Fault::LoseAnswer]);
        assert_eq!(client.get("k").await.unwrap(), Some("v".into()));
        assert!(world.state().faults.is_empty());
    }
}

#[tokio::test]
async fn a_swap_is_never_sent_twice() {
    let world = World::new(&[]);
    let client = connect(&world, config(Transport::Stream)).await;
    world.inject([Fault::Busy(1), Fault::CutOff]);
    let error = client.compare_and_swap("k", None, Some("1".into())).await.unwrap_err();
    assert!(matches!(error, Error::Undetermined(_)), "{error}");
    assert_eq!(world.state().requests, 2);
    assert_eq!(world.state().writes, 1);
}

/// Until `waiting` requests wait in the store.
async fn wait_for(world: &World, waiting: usize) {
    let mut count = world.waiting.subscribe();
    count.wait_for(|count| *count == waiting).await.expect("the world is there");
}

#[tokio::test]
async fn requests_that_wait_travel_together_within_bounds() {
    let world = World::new(&[]);
    let bounded = Config { in_flight_max: 8, stream_batch_max: 4, ..config(Transport::Stream) };
    let client = connect(&world, bounded).await;
    client.put("warm", "up").await.unwrap();
    let before = world.state().messages;

    // A message that the store holds back makes it read no further: what follows waits here.
    world.held.send_replace(true);
    let mut callers = JoinSet::new();
    let call = |at: usize| {
        let client = client.clone();
        async move { client.put(format!("{at}"), format!("of {at}")).await }
    };
    callers.spawn(call(0));
    wait_for(&world, 1).await;
    (1..50).for_each(|at| drop(callers.spawn(call(at))));
    world.held.send_replace(false);
    while let Some(done) = callers.join_next().await {
        done.unwrap().unwrap();
    }
    assert_eq!(world.state().rows.len(), 51);
    let messages = world.state().messages - before;
    assert!((13..50).contains(&messages), "50 requests took {messages} messages");

    // The store answers a message's requests in the opposite order.
    let mut callers = JoinSet::new();
    for at in 0..50 {
        let client = client.clone();
        callers.spawn(async move { (at, client.get(format!("{at}")).await) });
    }
    while let Some(done) = callers.join_next().await {
        let (at, value) = done.unwrap();
        assert_eq!(value.unwrap(), Some(format!("of {at}").into()));
    }
}

#[tokio::test]
async fn a_caller_that_gives_up_frees_its_place() {
    let world = World::new(&[]);
    let bounded = Config { in_flight_max: 2, ..config(Transport::Stream) };
    let client = connect(&world, bounded).await;
    client.put("warm", "up").await.unwrap();
    for _ in 0..10 {
        world.inject([Fault::LoseAnswer, Fault::LoseAnswer]);
        let requests = world.state().requests;
        let mut callers = JoinSet::new();
        for at in 0..2 {
            let client = client.clone();
            callers.spawn(async move { client.put(format!("{at}"), "v").await });
        }
        // Both commands have reached the store; their answers will not come.
        while world.state().requests < requests + 2 {
            tokio::task::yield_now().await;
        }
        callers.shutdown().await;
    }
    client.put("k", "v").await.unwrap();
    assert_eq!(world.state().requests, 1 + 20 + 1, "something was sent twice");
}

#[tokio::test]
async fn says_which_endpoint_does_not_answer() {
    let short = Config { deadline: Duration::from_secs(1), ..config(Transport::Stream) };
    let error = Client::connect(&[NOBODY], short.clone()).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(NOBODY) && text.contains("refused"), "{text}");

    let none: [&str; 0] = [];
    let error = Client::connect(&none, short.clone()).await.unwrap_err();
    assert!(matches!(error, Error::Config(_)), "{error}");
    let error = Client::connect(&["nowhere"], short.clone()).await.unwrap_err();
    assert!(matches!(error, Error::Config(_)), "{error}");
    let world = World::new(&[]);
    let no_room = Config { in_flight_max: 0, ..short };
    let error = Client::connect(&world.endpoints(), no_room).await.unwrap_err();
    assert!(error.to_string().contains("in_flight_max"), "{error}");
}

#[tokio::test]
async fn one_live_endpoint_among_dead_ones_is_enough() {
    let world = World::new(&[]);
    let endpoints = [NOBODY.to_owned(), world.endpoints()[1].clone()];
    let client = Client::connect(&endpoints, config(Transport::Stream)).await.unwrap();
    assert_eq!(client.cluster_id(), fake::CLUSTER_ID);
    client.put("k", "v").await.unwrap();
    assert_eq!(client.stores().await.unwrap().len(), 3);
    // The placement leader that it found goes; another endpoint was learnt from it.
    world.kill(2);
    world.split("x");
    client.put("xx", "v").await.unwrap();
    drop(Arc::clone(&world));
}

/// As a store of the version before a request was there.
#[tokio::test]
async fn a_store_that_does_not_know_a_request_has_to_be_upgraded() {
    let world = World::new(&[]);
    let endpoint = world.endpoints().remove(0);
    let operator = StoreOperator::new(&endpoint, &config(Transport::Unary)).unwrap();
    let error = operator.repair_status(0).await.unwrap_err();
    assert!(matches!(&error, Error::Unimplemented { .. }), "{error}");
    assert!(error.to_string().contains(&endpoint) && error.to_string().contains("upgrade"));
}
