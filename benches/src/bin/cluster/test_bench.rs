//! The measuring side of all scenarios: the program and the directory of the stores, their load,
//! and the rules by which windows are compared.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use flotilla_cli::bench::{KeySpread, LoadKeys};
use flotilla_cli::tool::Error;
use serde_json::json;
use tempfile::TempDir;

use super::args::CommonArgs;
use super::load_record::{LoadRecord, LoadSpan, median};
use super::open_load::{LoadPlan, OpenLoad};
use super::report::{FigureLimit, ScenarioReport};
use super::store_processes::{ClusterPlan, StoreProcesses};

/// Keys of the load, and bytes of one and of its value: those of `flotilla bench put`.
const LOAD_KEYS: u64 = 100_000;
const KEY_BYTES: u16 = 16;
const VALUE_BYTES: usize = 128;

/// The share of the peak rate that a load has.
const PEAK_SHARE: f64 = 1.0 / 3.0;

/// The measuring side of a scenario.
pub(crate) struct TestBench {
    pub(crate) args: CommonArgs,
    pub(crate) binary: PathBuf,
    dir: TempDir,
}

/// Parts of a load in which the cluster changed, in one way, and one in which it did not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChangeSpans<'a> {
    pub(crate) changes: &'a [LoadSpan],
    pub(crate) calm: LoadSpan,
}

impl TestBench {
    pub(crate) fn new(args: CommonArgs) -> Result<TestBench, Error> {
        let binary = match &args.binary {
            Some(binary) => binary.clone(),
            None => std::env::current_exe()?.with_file_name("flotilla"),
        };
        let dir = match &args.dir {
            Some(dir) => TempDir::with_prefix_in("cluster-", dir),
            None => TempDir::with_prefix("cluster-"),
        };
        Ok(TestBench { args, binary, dir: dir? })
    }

    /// A directory for one cluster.
    pub(crate) fn cluster_dir(&self, name: &str) -> Result<PathBuf, Error> {
        let dir = self.dir.path().join(name);
        std::fs::create_dir(&dir)?;
        Ok(dir)
    }

    /// The directory of all clusters.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Leaves the directory where it is when this is dropped.
    pub(crate) fn keep_dir(&mut self) {
        self.dir.disable_cleanup(true);
    }

    /// Says what is done.
    pub(crate) fn say(&self, words: &str) {
        eprintln!("{words}");
    }

    /// Puts of keys all over the key space.
    pub(crate) fn plan(&self, rate: Option<f64>) -> Result<LoadPlan, Error> {
        let keys = LoadKeys::new(LOAD_KEYS, KEY_BYTES, KeySpread::All).map_err(Error::Argument)?;
        Ok(LoadPlan {
            keys: std::sync::Arc::new(move |chance| keys.random(chance)),
            value: random_bytes(self.args.seed, VALUE_BYTES),
            callers: self.args.clients,
            rate,
            seed: self.args.seed,
        })
    }

    /// The rate of a load on clusters like this one, which does nothing else now: a third of the
    /// peak, if none was given.
    pub(crate) async fn rate(&self, cluster: &StoreProcesses) -> Result<f64, Error> {
        if let Some(rate) = self.args.rate {
            return Ok(f64::from(rate));
        }
        let client = cluster.client().await?;
        let window = self.args.window();
        let load = OpenLoad::start(&client, self.plan(None)?);
        tokio::time::sleep(window / 2).await;
        let from = load.now();
        tokio::time::sleep(window).await;
        let to = load.now();
        let record = load.end().await;
        let peak = record.rate(LoadSpan { from, to });
        self.say(&format!("peak of {} stores: {peak:.0} puts a second", cluster.stores.len()));
        if peak < 1.0 {
            let first = record.failures.first().map_or("no answer", |(_, words)| words);
            return Err(Error::Refused(format!("the peak cannot be measured: {first}")));
        }
        Ok(peak * PEAK_SHARE)
    }

    /// The same for clusters of so many stores: one is started for it, and ended.
    pub(crate) async fn rate_of(&self, plan: &ClusterPlan, stores: usize) -> Result<f64, Error> {
        if let Some(rate) = self.args.rate {
            return Ok(f64::from(rate));
        }
        let name = format!("peak-{stores}");
        let cluster = StoreProcesses::start(self, &name, stores, plan).await?;
        let rate = self.rate(&cluster).await;
        drop(cluster);
        std::fs::remove_dir_all(self.dir.path().join(name))?;
        rate
    }

    /// Lets a load run before anything of it counts.
    pub(crate) async fn warm_up(&self) {
        tokio::time::sleep(self.args.window()).await;
    }

    /// Calm windows of a load.
    pub(crate) async fn calm(&self, load: &OpenLoad) -> LoadSpan {
        let from = load.now();
        tokio::time::sleep(self.args.window() * self.args.windows()).await;
        LoadSpan { from, to: load.now().min(from + self.args.window() * self.args.windows()) }
    }

    /// The span of a change that began at `from` and is over, once its last window is full.
    pub(crate) async fn change_ends(&self, load: &OpenLoad, from: Duration) -> LoadSpan {
        let to = load.now();
        let window = self.args.window();
        let windows = (to - from).as_nanos().div_ceil(window.as_nanos());
        let full = from + window * u32::try_from(windows).unwrap_or(u32::MAX);
        tokio::time::sleep(full.saturating_sub(to)).await;
        LoadSpan { from, to }
    }

    /// Tells the p99 of the windows of all changes and of calm ones, medians, and their ratio,
    /// which may be `ratio_max` at most, if it is given.
    pub(crate) fn compare(
        &self,
        report: &mut ScenarioReport,
        (key, words): (&str, &str),
        record: &LoadRecord,
        spans: ChangeSpans<'_>,
        ratio_max: Option<f64>,
    ) {
        let window = self.args.window();
        let p99s_of = |spans: &[LoadSpan]| -> Vec<f64> {
            spans.iter().flat_map(|span| record.p99s(*span, window)).collect()
        };
        let [change, calm] = [spans.changes, &[spans.calm]].map(p99s_of);
        let [changed, usual] = [&change, &calm].map(|p99s| median(p99s).unwrap_or(f64::NAN));
        report.tell(&format!("{key}_p99_ms"), &format!("{words}: p99, ms"), changed);
        report.tell(&format!("{key}_calm_p99_ms"), &format!("{words}: p99, calm, ms"), usual);
        let (ratio, name) = (changed / usual, format!("{key}_p99_ratio"));
        let words = format!("{words}: p99, change to calm");
        match ratio_max {
            Some(max) => report.time(&name, &words, ratio, FigureLimit::AtMost(max)),
            None => report.tell(&name, &words, ratio),
        }
        let seconds = spans.changes.iter().map(|span| (span.to - span.from).as_secs_f64());
        report.detail(
            key,
            json!({
                "seconds": seconds.collect::<Vec<_>>(),
                "window_seconds": window.as_secs(),
                "change_p99s_ms": change,
                "calm_p99s_ms": calm,
            }),
        );
    }

    /// Tells how many requests failed, which must be none.
    pub(crate) fn no_failures(&self, report: &mut ScenarioReport, records: &[&LoadRecord]) {
        let failures: Vec<_> = records.iter().flat_map(|record| &record.failures).collect();
        let most = FigureLimit::AtMost(0.0);
        report.count("failed", "requests that failed", failures.len() as f64, most);
        let told = failures.iter().take(10);
        let told = told.map(|(at, words)| format!("after {:.1} s: {words}", at.as_secs_f64()));
        report.detail("failures", told.collect::<Vec<_>>());
    }
}

/// Bytes that no compression makes less.
pub(crate) fn random_bytes(seed: u64, count: usize) -> Bytes {
    let mut chance = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(|| chance.u8(..)).take(count).collect()
}
