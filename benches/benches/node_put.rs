//! How long does a replicated put take through the whole node, alone and among others?
//!
//! Three stores in this process, sixteen regions, real files, every put synced on a majority. The
//! client is ours, on its batch stream. One caller shows the latency: a sync and two hops. Many
//! callers show what sharing syncs, frames and transactions makes of it.

use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use flotilla_cli::playground::{Playground, PlaygroundConfig};
use flotilla_client::{Client, Config};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

const VALUE: &[u8] = &[b'v'; 128];

fn node_put(criterion: &mut Criterion) {
    let runtime = Runtime::new().expect("threads can be started");
    let dir = tempfile::tempdir().expect("there is a place for temporary files");
    let (playground, client) = runtime.block_on(async {
        let mut settings = PlaygroundConfig::new(dir.path());
        settings.common.regions = 16;
        let playground = Playground::start(&settings).await.expect("it starts");
        playground.ready(Duration::from_secs(60)).await.expect("every region gets a leader");
        let client = Client::connect(&playground.endpoints(), Config::default()).await;
        (playground, client.expect("the stores answer"))
    });

    let mut group = criterion.benchmark_group("node_put");
    group.throughput(Throughput::Elements(1)).sample_size(10);
    for callers in [1, 64, 512] {
        group.bench_function(format!("{callers} callers"), |bencher| {
            bencher.iter_custom(|puts| runtime.block_on(put(&client, puts, callers)));
        });
    }
    group.finish();
    runtime.block_on(playground.shutdown()).expect("it ends in good order");
}

/// The time of `puts` puts by so many callers, each with one put on its way.
async fn put(client: &Client, puts: u64, callers: u64) -> Duration {
    let began = Instant::now();
    let mut running = JoinSet::new();
    for caller in 0..callers {
        let client = client.clone();
        // The share of this caller; the first ones do the rest.
        let share = puts / callers + u64::from(caller < puts % callers);
        running.spawn(async move {
            for number in 0..share {
                client.put(key(caller, number), VALUE).await.expect("the put is acknowledged");
            }
        });
    }
    running.join_all().await;
    began.elapsed()
}

/// Keys over the whole key space, so over all regions.
fn key(caller: u64, number: u64) -> Vec<u8> {
    let scattered = (number ^ caller << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    [scattered.to_be_bytes(), number.to_be_bytes()].concat()
}

criterion_group!(benches, node_put);
criterion_main!(benches);
