//! The experiment `concurrent-read` from end to end, small, against a cluster in this process.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

use std::process::{Output, Stdio};
use std::time::Duration;

use flotilla_cli::playground::{Playground, PlaygroundConfig};
use serde_json::Value;
use tokio::process::Command;

const PATIENCE: Duration = Duration::from_secs(60);

struct Cluster {
    playground: Playground,
    _dir: tempfile::TempDir,
}

impl Cluster {
    async fn start() -> Cluster {
        let dir = tempfile::tempdir().unwrap();
        let mut settings = PlaygroundConfig::new(dir.path());
        settings.common.regions = 4;
        let playground = Playground::start(&settings).await.unwrap();
        playground.ready(PATIENCE).await.unwrap();
        Cluster { playground, _dir: dir }
    }

    async fn run(&self, args: &[&str]) -> Output {
        let endpoints = self.playground.endpoints().join(",");
        let mut command = Command::new(env!("CARGO_BIN_EXE_concurrent-read"));
        command.args(args).args(["--endpoints", &endpoints]).stdin(Stdio::null());
        command.output().await.unwrap()
    }

    /// The output, and that the command succeeds.
    async fn says(&self, args: &[&str]) -> String {
        let output = self.run(args).await;
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    async fn tells(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.says(args).await).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn short_requests_are_measured_without_and_with_large_scans() {
    let cluster = Cluster::start().await;
    let load = "--json --keys 300 --value-bytes-min 1 --value-bytes-max 2000 \
                --runs 2 --seconds 1 --scan-rows 3 --scans-per-second 40 --puts-per-second 20 \
                --large-scan-rows 200 --large-scan-interval-ms 250";
    let load: Vec<_> = load.split_whitespace().collect();
    let report = cluster.tells(&load).await;
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2);
    for half in runs.iter().flat_map(|run| [&run["without"], &run["with"]]) {
        assert_eq!((&half["scan"]["succeeded"], &half["scan"]["failed"]), (&40.into(), &0.into()));
        assert_eq!((&half["put"]["succeeded"], &half["put"]["failed"]), (&20.into(), &0.into()));
        assert!(half["scan"]["rows"].as_u64().unwrap() >= 40 * 2, "{half}");
    }
    assert_eq!(runs[0]["without"]["large_scan"], serde_json::Value::Null);
    // Rows behind the last key are read from the first on: none is missing.
    assert_eq!(runs[0]["with"]["large_scan"]["rows"], 4 * 200);
    for kind in ["scan", "put"] {
        let medians = &report["medians"][kind];
        let ratio = medians["with"]["p99_us"].as_f64().unwrap()
            / medians["without"]["p99_us"].as_f64().unwrap();
        let told = medians["ratio"]["p99"].as_f64().unwrap();
        assert!(told > 0.0 && (told / ratio - 1.0).abs() < 1e-9, "{medians}");
    }
    let table = cluster.says(&[&load[1..], &["--no-fill"]].concat()).await;
    assert!(table.contains("large scan") && table.contains("median"), "{table}");

    let few = cluster.run(&["--keys", "10"]).await;
    assert_eq!(few.status.code(), Some(2));
    assert!(String::from_utf8(few.stderr).unwrap().contains("--large-scan-rows"));
}
