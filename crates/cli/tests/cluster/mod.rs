//! A cluster in this process, and `flotilla` as a process of its own that is told of it.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::process::{Output, Stdio};
use std::time::Duration;

use flotilla_cli::playground::{Playground, PlaygroundConfig};
use serde_json::Value;
use tokio::process::Command;

/// How long anything may take on a machine that has much else to do.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Three stores, and four regions of clients' keys.
pub(crate) struct Cluster {
    pub(crate) playground: Playground,
    _dir: tempfile::TempDir,
}

impl Cluster {
    pub(crate) async fn start() -> Cluster {
        let dir = tempfile::tempdir().unwrap();
        let mut settings = PlaygroundConfig::new(dir.path());
        settings.common.regions = 4;
        let playground = Playground::start(&settings).await.unwrap();
        playground.ready(PATIENCE).await.unwrap();
        Cluster { playground, _dir: dir }
    }

    /// A command that has no input.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        command(args, &self.playground.endpoints().join(","))
    }

    pub(crate) async fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().await.unwrap()
    }

    /// The output, and that the command succeeds.
    pub(crate) async fn says(&self, args: &[&str]) -> String {
        let output = self.run(args).await;
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The same, as JSON.
    pub(crate) async fn tells(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.says(args).await).unwrap()
    }

    /// Writes that all stores have acknowledged.
    pub(crate) async fn puts(&self) -> u64 {
        let stores = self.tells(&["ctl", "stores", "--json"]).await;
        let stores = stores.as_array().unwrap();
        stores.iter().filter_map(|store| store["writes_acknowledged"].as_u64()).sum()
    }

    /// Standard error of a command, and that it fails with this code.
    pub(crate) async fn refuses(&self, args: &[&str], code: i32) -> String {
        let output = self.run(args).await;
        assert_eq!(output.status.code(), Some(code), "{args:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

/// A command that has no input, on the cluster of `endpoints`.
pub(crate) fn command(args: &[&str], endpoints: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flotilla"));
    command.args(args).args(["--endpoints", endpoints]).stdin(Stdio::null());
    command
}

pub(crate) async fn flotilla(args: &[&str], endpoints: &str) -> Output {
    command(args, endpoints).output().await.unwrap()
}
