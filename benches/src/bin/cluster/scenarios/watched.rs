//! The cost of being watched: the rates of puts and of gets while each store is scraped and a
//! status page is open, beside those without.
//!
//! The page is the one of the first store: its requests are sent as a browser sends them, which
//! would take a part of the same cores. Windows with and without come in pairs, the one first in
//! one pair and the other in the next, under one load that goes on, and the median of the pairs'
//! ratios counts: a machine that others share changes its rate by a quarter within a minute. The
//! first second of a window counts with neither.

use std::convert::Infallible;
use std::time::Duration;

use flotilla_cli::tool::Error;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, interval, sleep};

use crate::load_record::median;
use crate::report::{FigureLimit, ScenarioReport};
use crate::store_processes::{ClusterPlan, StoreProcesses, metric, run_flotilla};
use crate::test_bench::TestBench;

const REGIONS: u64 = 16;
const RATIO_LEAST: f64 = 0.97;

/// The requests that an open page repeats.
const PAGE_PATHS: [&str; 5] = [
    "/status/stores",
    "/status/history?from=0",
    "/status/log",
    "/status/pages",
    "/status/regions?after=0&limit=200",
];
/// Seconds between two scrapes, of which every second one has the page's requests behind it.
const SCRAPE_SECONDS: u64 = 1;
/// The time before a window counts.
const SETTLE: Duration = Duration::from_secs(1);

/// One kind of requests: the subcommand of `flotilla bench`, and the metric that counts them.
const LOADS: [(&str, &str); 2] = [("put", "writes_acknowledged"), ("get", "reads_granted")];

pub(crate) async fn measure(bench: &TestBench) -> Result<ScenarioReport, Error> {
    let plan = ClusterPlan { regions: REGIONS, tables: String::new() };
    let cluster = StoreProcesses::start(bench, "watched", 3, &plan).await?;
    let mut report = ScenarioReport::new("watched");
    for (load, counter) in LOADS {
        compare(bench, &cluster, &mut report, load, counter).await?;
    }
    Ok(report)
}

/// Tells the rates of a load with and without.
async fn compare(
    bench: &TestBench,
    cluster: &StoreProcesses,
    report: &mut ScenarioReport,
    load: &str,
    counter: &str,
) -> Result<(), Error> {
    let args = &bench.args;
    // It is killed behind the last pair, before its time is over.
    let seconds = (args.window() + 2 * SETTLE).as_secs() * u64::from(2 * args.windows() + 2) + 60;
    let command = format!("bench {load} --clients {} --seconds {seconds}", args.clients);
    let (binary, endpoints) = (&bench.binary, cluster.endpoints());
    let pairs = async {
        bench.warm_up().await;
        let mut pairs = vec![];
        for number in 0..args.windows() {
            let mut rates = [0.0; 2];
            for is_watched in [number % 2 == 1, number % 2 == 0] {
                let rate = window(cluster, counter, args.window());
                rates[usize::from(is_watched)] = match is_watched {
                    true => tokio::select! {
                        rate = rate => rate?,
                        failed = watch(&endpoints) => match failed? {},
                    },
                    false => rate.await?,
                };
            }
            pairs.push(rates);
        }
        Ok::<_, Error>(pairs)
    };
    let pairs = tokio::select! {
        pairs = pairs => pairs?,
        ended = run_flotilla(binary, &endpoints, &command) => {
            return Err(Error::Refused(format!("the load ended before its time: {}", ended?)));
        }
    };
    let median_of = |of: &dyn Fn(&[f64; 2]) -> f64| {
        median(&pairs.iter().map(of).collect::<Vec<_>>()).unwrap_or(f64::NAN)
    };
    let without = median_of(&|rates| rates[0]);
    report.tell(&format!("{load}s_per_second"), &format!("{load}s a second, not watched"), without);
    let (key, words) = (format!("{load}s_ratio"), format!("{load}s, watched to not, of pairs"));
    let ratio = median_of(&|rates| rates[1] / rates[0]);
    report.time(&key, &words, ratio, FigureLimit::AtLeast(RATIO_LEAST));
    report.detail(&format!("{load}s"), json!(pairs));
    Ok(())
}

/// The requests a second that the stores have served in a window.
async fn window(cluster: &StoreProcesses, counter: &str, length: Duration) -> Result<f64, Error> {
    sleep(SETTLE).await;
    let (before, began) = (served(cluster, counter).await?, Instant::now());
    sleep(length).await;
    let (after, ended) = (served(cluster, counter).await?, Instant::now());
    Ok((after - before) as f64 / (ended - began).as_secs_f64())
}

async fn served(cluster: &StoreProcesses, counter: &str) -> Result<u64, Error> {
    let mut served = 0;
    for place in 0..cluster.stores.len() {
        served += metric(&cluster.stats(place).await?, "requests", counter);
    }
    Ok(served)
}

/// Scrapes all stores, and asks as a page does, until a request fails.
async fn watch(endpoints: &[String]) -> Result<Infallible, Error> {
    let mut ticks = interval(Duration::from_secs(SCRAPE_SECONDS));
    let mut is_page_due = true;
    loop {
        ticks.tick().await;
        for endpoint in endpoints {
            get(endpoint, "/metrics").await?;
        }
        if is_page_due {
            for path in PAGE_PATHS {
                get(&endpoints[0], path).await?;
            }
        }
        is_page_due = !is_page_due;
    }
}

async fn get(endpoint: &str, path: &str) -> Result<(), Error> {
    let mut stream = TcpStream::connect(endpoint).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {endpoint}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = vec![];
    stream.read_to_end(&mut answer).await?;
    match answer.starts_with(b"HTTP/1.1 200 ") {
        true => Ok(()),
        false => Err(Error::Refused(format!("{endpoint}{path}: no answer with status 200"))),
    }
}
