//! Runs the tests in `tests/go`, which are written in Go and use TiKV's client for it.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Builds the Go test. `None`, and a line that says so, where that cannot be done.
pub(crate) fn go_test(dir: &Path) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("go");
    let go = |args: &[&str]| Command::new("go").args(args).current_dir(&source).status();
    match go(&["mod", "download"]) {
        Ok(status) if status.success() => {}
        Ok(_) => {
            println!("skipped: the modules of the Go client cannot be fetched");
            return None;
        }
        Err(error) => {
            println!("skipped: Go is not installed here ({error})");
            return None;
        }
    }
    let program = dir.join("rawkv.test");
    let built = go(&["test", "-c", "-o", program.to_str().unwrap()]).unwrap();
    assert!(built.success(), "the Go test does not compile");
    Some(program)
}

/// A run of one of the Go tests, whose many words are shown only if it fails.
pub(crate) struct GoRun {
    child: tokio::process::Child,
    log: tempfile::NamedTempFile,
}

impl GoRun {
    /// Starts a test against a cluster.
    pub(crate) fn start(
        program: &Path,
        test: &str,
        endpoints: &[String],
        settings: &[(&str, String)],
    ) -> Self {
        let log = tempfile::NamedTempFile::new().unwrap();
        let child = tokio::process::Command::new(program)
            .args(["-test.v", "-test.timeout=3600s", &format!("-test.run=^{test}$")])
            .env("FLOTILLA_PD", endpoints.join(","))
            .envs(settings.iter().map(|(name, value)| (name, value)))
            .stdout(log.as_file().try_clone().unwrap())
            .stderr(log.as_file().try_clone().unwrap())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Self { child, log }
    }

    /// Waits until the test has passed.
    pub(crate) async fn finish(self) {
        self.finish_within(Duration::from_secs(300)).await;
    }

    /// Waits until the test has passed, but no longer than this.
    pub(crate) async fn finish_within(mut self, limit: Duration) {
        let ended = tokio::time::timeout(limit, self.child.wait()).await;
        let passed = ended.is_ok_and(|status| status.unwrap().success());
        assert!(passed, "{}", std::fs::read_to_string(self.log.path()).unwrap());
    }
}
