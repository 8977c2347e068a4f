//! The filter of a running process's log, asked and set by HTTP, and the settings that are read
//! again at SIGHUP.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use flotilla_cli::{ReservedPort, playground};
use rustix::process::{Pid, Signal, kill_process};

const PATIENCE: Duration = Duration::from_secs(60);

/// A store of its own, whose settings are in a file.
struct LoggingStore {
    child: Child,
    addr: String,
}

impl LoggingStore {
    async fn start(dir: &Path, port: &ReservedPort, config: &Path) -> Self {
        let addr = port.addr().to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_flotilla"));
        let log = std::fs::File::create(dir.with_extension("log")).unwrap();
        command.env_remove("FLOTILLA_LOG").stdin(Stdio::null()).stderr(log);
        command.args(["serve", "--new", "--addr", &addr]);
        command.arg("--data-dir").arg(dir).arg("--config").arg(config);
        let child = command.spawn().unwrap();
        playground::ready(std::slice::from_ref(&addr), 1, PATIENCE).await.unwrap();
        Self { child, addr }
    }

    /// The status and the body of one request.
    fn ask(&self, method: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.addr).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let (addr, bytes) = (&self.addr, body.len());
        let request = format!(
            "{method} /log-level HTTP/1.1\r\nHost: {addr}\r\nContent-Length: {bytes}\r\n\
             Connection: close\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.trim_end().to_owned())
    }

    /// Sends SIGHUP, and waits until the filter is `expected`.
    fn hang_up(&self, expected: &str) {
        kill_process(Pid::from_child(&self.child), Signal::HUP).unwrap();
        let end = Instant::now() + PATIENCE;
        while self.ask("GET", "").1 != expected {
            assert!(Instant::now() < end, "the filter is {}", self.ask("GET", "").1);
        }
    }
}

impl Drop for LoggingStore {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn the_filter_is_set_by_http_and_read_again_at_sighup() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("flotilla.toml");
    let write = |log: &str| std::fs::write(&config, format!("log = \"{log}\"\n")).unwrap();
    write("warn");
    let port = ReservedPort::reserve(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let store = LoggingStore::start(&dir.path().join("data"), &port, &config).await;
    assert_eq!(store.ask("GET", ""), (200, "warn".to_owned()));
    let filter = "flotilla_node=debug,info";
    assert_eq!(store.ask("PUT", filter), (200, filter.to_owned()));
    let (status, words) = store.ask("PUT", "loud");
    assert!(status == 400 && words.contains("no level"), "{status} {words}");
    let (status, _) = store.ask("PUT", &"x".repeat(5000));
    assert_eq!(status, 413);
    assert_eq!(store.ask("GET", ""), (200, filter.to_owned()), "what is refused changes nothing");
    write("error");
    store.hang_up("error");
    // A file that makes no sense changes nothing, and the store goes on.
    std::fs::write(&config, "log = 7\n").unwrap();
    store.hang_up("error");
    write("info");
    store.hang_up("info");
}

#[tokio::test]
async fn settings_that_may_change_do_at_sighup_and_the_others_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("flotilla.toml");
    std::fs::write(&config, "log = 'warn'\n").unwrap();
    let port = ReservedPort::reserve(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let data = dir.path().join("data");
    let store = LoggingStore::start(&data, &port, &config).await;
    let says = |words: &str| {
        let end = Instant::now() + PATIENCE;
        let said = || std::fs::read_to_string(data.with_extension("log")).unwrap();
        while !said().contains(words) {
            assert!(Instant::now() < end, "{}", said());
        }
    };
    let settings = "[limits]\nslow_request_ms = '2s'\nconnections_max = 100\n";
    std::fs::write(&config, format!("log = 'info'\n{settings}")).unwrap();
    store.hang_up("info");
    says("SIGHUP: changed: log, limits.slow_request_ms\n");
    says("SIGHUP: these do not change before the next start: limits.connections_max\n");
    std::fs::write(&config, format!("log = 'debug'\n{settings}regions = 0\n")).unwrap();
    kill_process(Pid::from_child(&store.child), Signal::HUP).unwrap();
    says("line 5: `limits.regions` is no setting; the nearest is `regions`");
    assert_eq!(store.ask("GET", ""), (200, "info".to_owned()), "nothing is changed");
}
