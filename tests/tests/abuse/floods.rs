//! Floods of frames that are cheap to send and may be dear to take: resets, settings, pings,
//! continuations, windows, and readers that never read. A client that behaves does not feel them.
//!
//! The frames are written by hand, so the tests hold for whatever transport the store has.

use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prost::Message as _;
use socket2::SockRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use bytes::Bytes;
use flotilla_proto::kvrpcpb::RawGetRequest;

use crate::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PING, PRIORITY, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, frame, headers, message, opening,
};
use crate::steady_load::{Latencies, SteadyLoad};
use crate::stolen_time::stolen_time;
use crate::target::Target;

/// Bytes that one flood sends at most.
const FLOOD_BYTES: usize = if cfg!(debug_assertions) { 2 << 20 } else { 16 << 20 };
/// Connections that flood at the same time.
const FLOODERS: usize = 4;
/// Requests of the client that behaves, before a flood and during it.
const REQUESTS: usize = if cfg!(debug_assertions) { 50 } else { 200 };
/// How long a store may take to hear a whole flood, or to hang up.
const PATIENCE: Duration = Duration::from_secs(60);
/// A latency that is allowed whatever it is without a flood: both share two cores, with the test's
/// own work too, and without optimisation frames are expensive.
const NO_TROUBLE: Duration =
    if cfg!(debug_assertions) { Duration::from_secs(10) } else { Duration::from_millis(10) };

/// A time over which the latencies of a client with work to do are counted. Its rate is a third
/// of the peak; the median p99 of some windows during a flood is compared to that of as many
/// without, in turns: a disk that others share stands still now and then.
const WINDOW: Duration = Duration::from_millis(if cfg!(debug_assertions) { 100 } else { 4_000 });
/// Five are 20 s of each: with three, the same flood had 0.5 to 7 times the latency of gets, for
/// one window in five had a stall of the machine, with a flood or without.
const ROUNDS: usize = if cfg!(debug_assertions) { 3 } else { 5 };
/// Time that a hypervisor may take of a window that counts, from all cores. One that takes more is
/// in the latencies of whatever is served then.
const STOLEN_MAX: Duration = Duration::from_millis(20);
/// Windows that are repeated for it.
const TRIES_MAX: u32 = 4;
const PEAK_SHARE: f64 = 1.0 / 3.0;
/// Of a client with work to do: while a flood begins it wants a third of a core of two that the
/// store, the flooders and the client itself share. Answers in wide windows through TLS are what
/// need as much.
const NO_TROUBLE_AT_WORK: Duration =
    if cfg!(debug_assertions) { NO_TROUBLE } else { Duration::from_millis(200) };
/// Memory that a store may take while it is flooded: each of the flooders may have a thousand
/// requests and 32 MiB of answers, and as many of the flooders before them may be on their way
/// out.
const FLOODED_BYTES_MAX: u64 = 512 << 20;
/// Memory that the allocator keeps between pieces that are in use, after clients by the dozen have
/// fetched nothing of 32 MiB each: it would give it back if it were asked to.
const KEPT_BYTES_MAX: u64 = 128 << 20;
/// The flooder's kernel takes as much of what the store does not read: by default it is megabytes,
/// whose copies take the cores that the flooders share with all others here.
const UNSENT_BYTES: usize = 64 << 10;
/// A flooder begins anew, though it was not cut off.
const FLOODS_ANEW: Duration = Duration::from_secs(2);

/// The bytes of a flood: the opening, and a piece that is repeated with the number of its round.
struct Flood {
    name: &'static str,
    opening: Vec<u8>,
    piece: Box<dyn Fn(u32) -> Vec<u8>>,
    /// Whether the flooder reads what comes back.
    reads: bool,
}

const GET: &str = "/tikvpb.Tikv/RawGet";

/// Streams that a client opens have odd numbers.
fn stream(round: u32) -> u32 {
    (round * 2 + 1) & 0x7fff_ffff
}

/// All floods, or the one that the environment names: for measuring.
fn floods(large: &Bytes) -> Vec<Flood> {
    let mut floods = all_floods(large);
    if let Ok(name) = std::env::var("FLOTILLA_FLOOD") {
        floods.retain(|flood| flood.name == name);
        assert!(!floods.is_empty(), "there is no flood {name}");
    }
    floods
}

/// The opening of a connection, and one frame more.
fn opening_with(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = opening();
    frame(&mut bytes, kind, flags, stream, payload);
    bytes
}

fn all_floods(large: &Bytes) -> Vec<Flood> {
    let of = |name, opening, reads, piece: Box<dyn Fn(u32) -> Vec<u8>>| Flood {
        name,
        opening,
        piece,
        reads,
    };
    let one = |kind, flags, id, payload: &'static [u8]| {
        move |_| {
            let mut bytes = Vec::new();
            frame(&mut bytes, kind, flags, id, payload);
            bytes
        }
    };
    let endless = opening_with(HEADERS, 0, 1, &headers(GET));
    let with_stream = opening_with(HEADERS, END_HEADERS, 1, &headers(GET));
    // SETTINGS_INITIAL_WINDOW_SIZE, 0: no answer may be sent.
    let no_window = opening_with(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let mut wide_windows = opening_with(SETTINGS, 0, 0, &[0, 4, 0x7f, 0xff, 0xff, 0xff]);
    frame(&mut wide_windows, WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0, 0]);
    let call = |large: &Bytes| {
        let large = large.clone();
        move |round| {
            let mut bytes = Vec::new();
            frame(&mut bytes, HEADERS, END_HEADERS, stream(round), &headers(GET));
            frame(&mut bytes, DATA, END_STREAM, stream(round), &large);
            bytes
        }
    };
    let reset = |round| {
        let mut bytes = Vec::new();
        frame(&mut bytes, HEADERS, END_HEADERS, stream(round), &headers(GET));
        frame(&mut bytes, RST_STREAM, 0, stream(round), &[0, 0, 0, 8]);
        bytes
    };
    // A window that grows beyond its largest size is a mistake that the server has to answer.
    let made_to_reset = |round| {
        let mut bytes = Vec::new();
        frame(&mut bytes, HEADERS, END_HEADERS, stream(round), &headers(GET));
        frame(&mut bytes, WINDOW_UPDATE, 0, stream(round), &[0x7f, 0xff, 0xff, 0xff]);
        bytes
    };
    vec![
        of("rapid resets", opening(), true, Box::new(reset)),
        of("resets by the server", opening(), true, Box::new(made_to_reset)),
        of("continuations", endless, true, Box::new(one(CONTINUATION, 0, 1, &[0; 1024]))),
        of("settings", opening(), true, Box::new(one(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100]))),
        of(
            "settings, unread",
            opening(),
            false,
            Box::new(one(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100])),
        ),
        of("pings", opening(), true, Box::new(one(PING, 0, 0, b"12345678"))),
        of("pings, unread", opening(), false, Box::new(one(PING, 0, 0, b"12345678"))),
        of("windows", opening(), true, Box::new(one(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]))),
        of("priorities", opening(), true, Box::new(one(PRIORITY, 0, 3, &[0, 0, 0, 0, 0]))),
        of("empty data", with_stream, true, Box::new(one(DATA, 0, 1, &[]))),
        of("windows of nothing", no_window, true, Box::new(call(large))),
        of("answers, unread", opening(), false, Box::new(call(large))),
        of("answers in wide windows, unread", wide_windows, false, Box::new(call(large))),
    ]
}

impl Flood {
    /// All that one connection sends, in pieces that are written at once. It is made before the
    /// flood: a flooder that made it meanwhile would take a core from the client that behaves.
    fn writes(&self) -> Vec<Bytes> {
        let mut writes = vec![];
        let (mut bytes, mut sent) = (self.opening.clone(), 0);
        for round in 0.. {
            bytes.extend((self.piece)(round));
            if bytes.len() < 1 << 14 {
                continue;
            }
            if sent >= FLOOD_BYTES {
                break;
            }
            sent += bytes.len();
            writes.push(Bytes::from(std::mem::take(&mut bytes)));
        }
        writes
    }
}

/// Sends a flood until it is over or the store hangs up. One that `stays` is not over by itself:
/// its connection is full, or has sent all.
async fn flood(addr: &str, writes: &[Bytes], reads: bool, stays: bool) {
    let Ok(mut stream) = TcpStream::connect(addr).await else { return };
    SockRef::from(&stream).set_send_buffer_size(UNSENT_BYTES).unwrap();
    let (mut reader, mut writer) = stream.split();
    let writing = async {
        for bytes in writes {
            if writer.write_all(bytes).await.is_err() {
                return;
            }
        }
        if stays {
            pending::<()>().await;
        }
    };
    let reading = async {
        if !reads {
            pending::<()>().await;
        }
        let mut sink = vec![0; 1 << 16];
        while matches!(reader.read(&mut sink).await, Ok(1..)) {}
    };
    tokio::select! {
        () = writing => (),
        () = reading => (),
    }
}

/// Begins a flood from several connections, each of which ends after `limit` at the latest, and
/// then floods `anew` or not.
fn begin(target: &Target, case: &Flood, limit: Duration, anew: bool) -> JoinSet<()> {
    let mut flooders = JoinSet::new();
    let writes: Arc<[Bytes]> = case.writes().into();
    for _ in 0..FLOODERS {
        let (addr, writes, reads) = (target.raw_addr.clone(), Arc::clone(&writes), case.reads);
        let flooding = async move {
            loop {
                let _ = timeout(limit, flood(&addr, &writes, reads, anew)).await;
                if !anew {
                    return;
                }
            }
        };
        flooders.spawn_on(flooding, target.background.handle());
    }
    flooders
}

/// The 99th percentile of the latencies of the client that behaves.
async fn latency(target: &mut Target) -> Duration {
    let mut taken = Vec::new();
    for _ in 0..REQUESTS {
        let began = Instant::now();
        assert_eq!(target.get(b"good").await.unwrap(), "client");
        taken.push(began.elapsed());
    }
    taken.sort_unstable();
    taken[REQUESTS - 1 - REQUESTS / 100]
}

/// A get of a large value, as it is sent.
async fn large_get(target: &mut Target) -> Bytes {
    let context = target.context(b"large").await;
    let value = Bytes::from(vec![7; 1 << 20]);
    assert_eq!(target.put(context.clone(), b"large", value).await, Default::default());
    let get = RawGetRequest { context: Some(context), key: "large".into(), ..Default::default() };
    Bytes::from(message(&get.encode_to_vec()))
}

async fn are_not_felt(mut target: Target) {
    target.serves().await;
    let large = large_get(&mut target).await;
    let before = target.resident_bytes();
    for case in floods(&large) {
        let calm = latency(&mut target).await;
        let mut flooders = begin(&target, &case, PATIENCE, false);
        let under = latency(&mut target).await;
        // Those that nobody reads, or that no window lets on, wait for ever.
        flooders.shutdown().await;
        println!("{}: p99 {calm:?} without, {under:?} under it", case.name);
        assert!(under <= NO_TROUBLE.max(calm * 2), "{}: {calm:?}, {under:?}", case.name);
        target.serves().await;
        target.shrinks_back(before).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_are_not_felt() {
    are_not_felt(Target::start().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_through_tls_are_not_felt() {
    are_not_felt(Target::start_secure().await).await;
}

/// The latencies of a window in which the cores were not given to others, if there is one in time.
async fn undisturbed(load: &SteadyLoad, rate: f64) -> Latencies {
    let mut tries = 0..TRIES_MAX;
    loop {
        let stolen_before = stolen_time();
        let latencies = load.latencies(rate, WINDOW).await;
        let stolen = stolen_time() - stolen_before;
        if stolen <= STOLEN_MAX || tries.next().is_none() {
            return latencies;
        }
        println!("once more: the hypervisor took {stolen:?}; {latencies:?}");
    }
}

/// Floods that go on for a whole window, one kind after the other.
async fn are_not_felt_at_work(mut target: Target) {
    let large = large_get(&mut target).await;
    let load = SteadyLoad::new(&mut target).await;
    let rate = load.peak(WINDOW).await * PEAK_SHARE;
    println!("{rate:.0} requests a second");
    let before = target.resident_bytes();
    let mut measured = vec![];
    for case in floods(&large) {
        let (mut calm, mut flooded, mut growth) = (vec![], vec![], 0);
        // In turns, so that a disk that stands still for some seconds is in both.
        for _ in 0..ROUNDS {
            calm.push(undisturbed(&load, rate).await);
            let mut flooders = begin(&target, &case, FLOODS_ANEW, true);
            flooded.push(undisturbed(&load, rate).await);
            growth = growth.max(target.resident_bytes().saturating_sub(before));
            flooders.shutdown().await;
        }
        println!("{}: {growth} bytes, without {calm:.1?}, under it {flooded:.1?}", case.name);
        assert!(growth <= FLOODED_BYTES_MAX, "{}: grown by {growth} bytes", case.name);
        measured.push((case.name, Latencies::median(&calm), Latencies::median(&flooded)));
        target.serves().await;
        target.shrinks_back(before + KEPT_BYTES_MAX).await;
    }
    for (name, calm, p99) in &measured {
        let ratios =
            [(p99.put, calm.put), (p99.get, calm.get)].map(|(it, calm)| it.div_duration_f64(calm));
        println!("{name}: p99 {calm:?} without, {p99:?} under it, {ratios:.2?} times");
    }
    for (name, calm, p99) in measured {
        for (calm, p99) in [(calm.put, p99.put), (calm.get, p99.get)] {
            assert!(p99 <= NO_TROUBLE_AT_WORK.max(calm * 2), "{name}: {calm:?}, {p99:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_are_not_felt_at_work() {
    are_not_felt_at_work(Target::start().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_through_tls_are_not_felt_at_work() {
    are_not_felt_at_work(Target::start_secure().await).await;
}
