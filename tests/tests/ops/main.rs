//! `ops/`: alert rules and a dashboard, made of tables, and held against a running cluster.
//!
//! `FLOTILLA_WRITE_OPS=1 cargo test -p tests --test ops` writes the files. Tests that need
//! Prometheus' own programs (Debian's package `prometheus`) say that they are skipped without them.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

mod alerts;
mod dashboard;
mod firing;
mod scrape;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use flotilla_cli::playground::{Playground, PlaygroundConfig};
use flotilla_client::{Client, Config};

use alerts::ALERTS;
use dashboard::ROWS;

/// The folder of the files.
fn ops() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops")
}

/// Whether a program is there; says so if it is not.
fn has_program(name: &str) -> bool {
    let mut asked = Command::new(name);
    let is_there =
        asked.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !is_there {
        println!("skipped: {name} is not installed (Debian: apt-get install prometheus)");
    }
    is_there
}

#[test]
fn the_files_are_made_of_the_tables() {
    let writes = std::env::var_os("FLOTILLA_WRITE_OPS").is_some();
    for (name, made) in [
        ("prometheus/alerts.yml", alerts::rules()),
        ("prometheus/alerts_test.yml", alerts::cases()),
        ("grafana/flotilla.json", dashboard::json()),
    ] {
        let path = ops().join(name);
        if writes {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &made).unwrap();
        }
        let written = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(written == made, "ops/{name} is old: FLOTILLA_WRITE_OPS=1 writes it anew");
    }
}

#[test]
fn what_to_do_about_an_alert_is_in_the_operations_guide() {
    let guide = ops().join("../docs/operations.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let rules = std::fs::read_to_string(ops().join("prometheus/alerts.yml")).unwrap();
    let anchor = |heading: &str| heading.trim().to_lowercase().replace(' ', "-");
    let sections: BTreeMap<_, _> = guide
        .split("\n#")
        .filter_map(|section| section.trim_start_matches('#').split_once('\n'))
        .map(|(heading, text)| (anchor(heading), text))
        .collect();
    for alert in ALERTS {
        let section = sections.get(alert.action);
        let section = section.unwrap_or_else(|| panic!("no heading {}", alert.action));
        let name = format!("`{}`", alert.name);
        assert!(section.contains(&name), "{name} is not named below {}", alert.action);
        let link = format!("runbook: \"docs/operations.md#{}\"", alert.action);
        assert!(rules.contains(&link), "{name} has no link {link}");
    }
}

#[test]
fn promtool_finds_no_fault_with_the_rules_and_each_has_a_case() {
    for alert in ALERTS {
        assert!(!alert.fires.is_empty() && !alert.rests.is_empty(), "{}", alert.name);
    }
    if !has_program("promtool") {
        return;
    }
    let folder = ops().join("prometheus");
    for (args, file) in
        [(&["check", "rules"], "alerts.yml"), (&["test", "rules"], "alerts_test.yml")]
    {
        let run = Command::new("promtool").args(args).arg(file).current_dir(&folder).output();
        let run = run.unwrap();
        assert!(run.status.success(), "promtool {args:?}: {run:?}");
    }
}

/// The names of metrics in a query.
fn names(query: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = query.split(move |c| !is_part(c));
    words.filter(|word| word.starts_with("flotilla_") || word.starts_with("process_"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_query_resolves_against_a_running_cluster_whose_metrics_promtool_likes() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Playground::start(&PlaygroundConfig::new(dir.path())).await.unwrap();
    cluster.ready(scrape::PATIENCE).await.unwrap();
    let endpoints = cluster.endpoints();
    let client = Client::connect(&endpoints, Config::default()).await.unwrap();
    client.put("k", "v").await.unwrap();
    client.get("k").await.unwrap();
    // Only the store that leads the region has its calls.
    let mut scraped = String::new();
    for addr in &endpoints {
        let scrape = scrape::metrics(addr).await;
        if scrape.len() > scraped.len() {
            scraped = scrape;
        }
    }
    let sample = |line: &str| line.split(['{', ' ']).next().unwrap_or_default().to_owned();
    let known: BTreeSet<_> =
        scraped.lines().filter(|line| !line.starts_with('#')).map(sample).collect();
    let panels = ROWS.iter().flat_map(|row| row.panels).flat_map(|panel| panel.queries);
    let queries: Vec<_> = panels.map(|(query, _)| *query).collect();
    for query in queries.iter().copied().chain(ALERTS.iter().map(|alert| alert.condition)) {
        for name in names(query) {
            assert!(known.contains(name), "{name} of {query} is not in the scrape");
        }
    }
    if has_program("promtool") {
        scrape::check_metrics(&scraped);
        scrape::check_queries(dir.path(), &queries);
    }
    cluster.shutdown().await.unwrap();
}
