//! The alert that a store is down fires on real stores, scraped by Prometheus itself.

use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

use flotilla_cli::playground::{Playground, PlaygroundConfig};
use flotilla_cli::{ReservedPort, command_line};
use serde_json::Value;
use tokio::time::timeout;

use crate::scrape::{PATIENCE, ask, is_ready};
use crate::{alerts, has_program};

/// A Prometheus that scrapes `stores` each second.
struct Prometheus {
    child: Child,
    addr: String,
}

impl Prometheus {
    fn start(dir: &Path, port: &ReservedPort, stores: &[String], access: &str) -> Self {
        // The conditions as they are; only the time that they must hold is short.
        let rules = alerts::rules();
        let held = |line: &str| line.trim_start().starts_with("for: ");
        let rules: Vec<_> =
            rules.lines().map(|line| if held(line) { "        for: 1s" } else { line }).collect();
        std::fs::write(dir.join("alerts.yml"), rules.join("\n")).unwrap();
        let targets = Value::from(stores);
        let config = format!(
            "global:\n  scrape_interval: 1s\n  evaluation_interval: 1s\n\
             rule_files: [alerts.yml]\n\
             scrape_configs:\n  - job_name: flotilla\n{access}    static_configs:\n      \
             - targets: {targets}\n"
        );
        std::fs::write(dir.join("prometheus.yml"), config).unwrap();
        let addr = port.addr().to_string();
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", dir.join("prometheus.yml").display()));
        command.arg(format!("--storage.tsdb.path={}", dir.join("tsdb").display()));
        command.arg(format!("--web.listen-address={addr}"));
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Self { child, addr }
    }

    /// Waits until it answers.
    async fn ready(&self) {
        let answers = async { while !is_ready(&self.addr).await {} };
        timeout(PATIENCE, answers).await.expect("Prometheus answers");
    }

    /// The names and stores of the alerts that fire.
    async fn firing(&self) -> Vec<(String, String)> {
        let answer = ask(&self.addr, "/api/v1/alerts").await;
        // The body may come in chunks, whose lengths stand between.
        let json = &answer[answer.find('{').unwrap()..=answer.rfind('}').unwrap()];
        let answer: Value = serde_json::from_str(json).unwrap_or_default();
        let alerts = answer["data"]["alerts"].as_array().cloned().unwrap_or_default();
        let firing = alerts.iter().filter(|alert| alert["state"] == "firing");
        let label = |alert: &Value, name: &str| {
            alert["labels"][name].as_str().unwrap_or_default().to_owned()
        };
        firing.map(|alert| (label(alert, "alertname"), label(alert, "instance"))).collect()
    }

    /// Waits until an alert fires for a store, or no longer does.
    async fn await_firing(&self, name: &str, store: &str, fires: bool) {
        let expected = (name.to_owned(), store.to_owned());
        let seen = async { while self.firing().await.contains(&expected) != fires {} };
        timeout(PATIENCE, seen).await.unwrap_or_else(|_| panic!("{name} at {store}: not {fires}"));
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prometheus_says_that_a_store_is_down_and_that_it_is_back() {
    if !has_program("prometheus") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let mut cluster = Playground::start(&PlaygroundConfig::new(&data)).await.unwrap();
    cluster.ready(PATIENCE).await.unwrap();
    let endpoints = cluster.endpoints();
    let port = ReservedPort::reserve(([127, 0, 0, 1], 0).into()).unwrap();
    let prometheus = Prometheus::start(dir.path(), &port, &endpoints, "");
    prometheus.ready().await;
    cluster.abandon(2).await;
    prometheus.await_firing("FlotillaStoreDown", &endpoints[2], true).await;
    prometheus.await_firing("FlotillaStoreDisconnected", &endpoints[0], true).await;
    let down =
        prometheus.firing().await.into_iter().filter(|(name, _)| name == "FlotillaStoreDown");
    assert_eq!(down.count(), 1, "the others answer");
    cluster.restart(2).await.unwrap();
    prometheus.await_firing("FlotillaStoreDown", &endpoints[2], false).await;
    prometheus.await_firing("FlotillaStoreDisconnected", &endpoints[0], false).await;
    cluster.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prometheus_says_that_a_disk_is_full_and_that_it_has_room() {
    if !has_program("prometheus") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let settings = PlaygroundConfig::new(dir.path().join("data"));
    let cluster = Playground::start(&settings).await.unwrap();
    cluster.ready(PATIENCE).await.unwrap();
    let endpoints = cluster.endpoints();
    let port = ReservedPort::reserve(([127, 0, 0, 1], 0).into()).unwrap();
    let prometheus = Prometheus::start(dir.path(), &port, &endpoints, "");
    prometheus.ready().await;
    // No disk has so much room.
    let keep_free = |full_free_bytes| {
        let mut config = settings.common.clone();
        config.disk.full_free_bytes = full_free_bytes;
        cluster.node(1).unwrap().reload(config).unwrap();
    };
    keep_free(1 << 60);
    prometheus.await_firing("FlotillaDiskFull", &endpoints[1], true).await;
    let firing = prometheus.firing().await;
    let full = firing.into_iter().filter(|(name, _)| name == "FlotillaDiskFull");
    assert_eq!(full.count(), 1, "the others have room");
    keep_free(1 << 20);
    prometheus.await_firing("FlotillaDiskFull", &endpoints[1], false).await;
    cluster.shutdown().await.unwrap();
}

/// `flotilla cert` in `dir`.
fn make_certificate(dir: &Path, args: &str) {
    let dir = ["--dir".into(), dir.as_os_str().to_owned()];
    let args = ["flotilla", "cert"].into_iter().chain(args.split_whitespace());
    let code = command_line::run(args.map(Into::into).chain(dir));
    assert_eq!(code, ExitCode::SUCCESS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prometheus_says_that_a_certificate_ends_and_that_it_was_renewed() {
    if !has_program("prometheus") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let certificates = dir.path().join("certs");
    for args in
        ["ca", "store s1 --host 127.0.0.1 --days 10", "operator playground", "client prometheus"]
    {
        make_certificate(&certificates, args);
    }
    let mut settings = PlaygroundConfig::new(dir.path().join("data"));
    (settings.stores, settings.certificates) = (1, Some(certificates.clone()));
    let cluster = Playground::start(&settings).await.unwrap();
    cluster.ready(PATIENCE).await.unwrap();
    let (endpoints, file) = (cluster.endpoints(), |name| certificates.join(name));
    let access = format!(
        "    scheme: https\n    tls_config:\n      ca_file: {:?}\n      cert_file: {:?}\n      \
         key_file: {:?}\n",
        file("ca.pem"),
        file("client-prometheus.pem"),
        file("client-prometheus-key.pem"),
    );
    let port = ReservedPort::reserve(([127, 0, 0, 1], 0).into()).unwrap();
    let prometheus = Prometheus::start(dir.path(), &port, &endpoints, &access);
    prometheus.ready().await;
    prometheus.await_firing("FlotillaCertificateEnds", &endpoints[0], true).await;
    let firing = prometheus.firing().await;
    assert!(firing.iter().all(|(name, _)| name != "FlotillaCertificateEndsSoon"), "{firing:?}");
    make_certificate(&certificates, "store s1 --host 127.0.0.1 --renew");
    cluster.node(0).unwrap().security().reload().await;
    prometheus.await_firing("FlotillaCertificateEnds", &endpoints[0], false).await;
    cluster.shutdown().await.unwrap();
}
