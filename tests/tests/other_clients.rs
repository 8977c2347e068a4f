//! Clients in other languages, each run by a script in `tests/clients`, which fetches the client as
//! it is published: a region splits and the store that leads it dies under their requests. Where a
//! tool or a registry is missing the script ends with 77, and the test says that it is skipped.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use flotilla_cli::playground::{Playground, PlaygroundConfig};
use flotilla_client::{Client, Config, RequestApi};
use flotilla_identity::ApiVersion;
use tokio::process::{Child, Command};

const PATIENCE: Duration = Duration::from_secs(60);
/// How long a client works, and how long from its start to the split, and to the death of a store.
const WORK_S: u32 = 8;
const SPLIT_AFTER: Duration = Duration::from_secs(2);
const DEATH_AFTER: Duration = Duration::from_secs(4);
/// For a script that has to fetch its client first.
const SCRIPT_PATIENCE: Duration = Duration::from_secs(400);
/// The exit code of a script whose client cannot be had.
const SKIPPED: i32 = 77;

/// A cluster with a region for each part of the keys that a client uses.
struct Cluster {
    playground: Playground,
    client: Client,
    api: ApiVersion,
    _dir: tempfile::TempDir,
}

impl Cluster {
    async fn start(api: ApiVersion) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut settings = PlaygroundConfig::new(dir.path());
        settings.common.api = Some(api);
        let playground = Playground::start(&settings).await.unwrap();
        playground.ready(PATIENCE).await.unwrap();
        let api_of_requests = match api {
            ApiVersion::V1Ttl => RequestApi::V1,
            ApiVersion::V2 => RequestApi::V2,
        };
        let config = Config { api: api_of_requests, ..Config::default() };
        let client = Client::connect(&playground.endpoints(), config).await.unwrap();
        let cluster = Self { playground, client, api, _dir: dir };
        cluster.split(0x40).await;
        // The last region has none of the keys: two clients ask the wrong one for it.
        cluster.split(0xe0).await;
        cluster
    }

    /// A key of the cluster that begins with this byte for its client.
    fn key(&self, first: u8) -> Bytes {
        match self.api {
            ApiVersion::V1Ttl => vec![first].into(),
            ApiVersion::V2 => vec![b'r', 0, 0, 0, first].into(),
        }
    }

    async fn split(&self, first: u8) {
        let border = self.key(first);
        let region = self.client.region_of(border.clone()).await.unwrap();
        self.client.split_region(region.region.id, [border]).await.unwrap();
    }

    /// Writes until then.
    async fn write_until(&self, then: Instant) {
        while Instant::now() < then {
            self.client.put(self.key(0xf0), "v").await.unwrap();
        }
    }

    /// Fetches the client, so that its work begins with its script. False if it cannot be had.
    async fn fetch(&self, script: &str) -> bool {
        let mut child = self.command(script).env("FLOTILLA_FETCH", "1").spawn().unwrap();
        has_passed(script, &mut child).await
    }

    fn run(&self, script: &str) -> Child {
        self.command(script).spawn().unwrap()
    }

    fn command(&self, script: &str) -> Command {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients");
        let mut command = Command::new(dir.join(script));
        command
            .env("FLOTILLA_PD", self.playground.endpoints().join(","))
            .env("FLOTILLA_SECONDS", WORK_S.to_string())
            .env("FLOTILLA_API", self.api.to_string())
            .kill_on_drop(true);
        command
    }

    /// Runs a script, and splits a region and ends a store meanwhile.
    async fn serve(mut self, script: &str) {
        if !self.fetch(script).await {
            self.playground.shutdown().await.unwrap();
            return;
        }
        let mut child = self.run(script);
        let began = Instant::now();
        self.write_until(began + SPLIT_AFTER).await;
        self.split(0x80).await;
        self.write_until(began + DEATH_AFTER).await;
        let led = self.client.region_of(self.key(0x80)).await.unwrap();
        // Ids are given in the order of the list.
        let leader = led.leader.unwrap().store_id as usize - 1;
        self.playground.abandon(leader).await;
        self.client.put(self.key(0x80), "v").await.unwrap();
        self.playground.restart(leader).await.unwrap();
        has_passed(script, &mut child).await;
        self.playground.shutdown().await.unwrap();
    }
}

/// Waits for the end of a script, which must be a good one. False if it is skipped.
async fn has_passed(script: &str, child: &mut Child) -> bool {
    let ended = tokio::time::timeout(SCRIPT_PATIENCE, child.wait()).await;
    match ended.expect("the client hangs").unwrap().code() {
        Some(SKIPPED) => {
            println!("skipped: {script}");
            false
        }
        code => {
            assert_eq!(code, Some(0), "{script}");
            true
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_python_client_is_served() {
    Cluster::start(ApiVersion::V1Ttl).await.serve("python.sh").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_java_client_is_served_in_both_versions() {
    for api in [ApiVersion::V1Ttl, ApiVersion::V2] {
        Cluster::start(api).await.serve("java.sh").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grpcurl_finds_everything_by_reflection() {
    let cluster = Cluster::start(ApiVersion::V1Ttl).await;
    let mut child = cluster.run("grpcurl.sh");
    has_passed("grpcurl.sh", &mut child).await;
    cluster.playground.shutdown().await.unwrap();
}
