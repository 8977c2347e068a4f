//! The program as an operator meets it: settings, signals, exit codes, and the line that says
//! `ready`.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

use std::io::{BufRead as _, BufReader, Lines};
use std::net::{SocketAddr, TcpListener};
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use flotilla_cli::{ReservedPort, playground};
use flotilla_client::{Client, Config};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

const PATIENCE: Duration = Duration::from_secs(60);

fn flotilla() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flotilla"));
    command.env_remove("FLOTILLA_LOG").stdin(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Three ports, one after the other: of no other test, and none that is given to whoever wants any.
fn three_ports() -> Vec<ReservedPort> {
    static TRIES: AtomicU32 = AtomicU32::new(0);
    let keep = |port: u16| ReservedPort::reserve(SocketAddr::from(([127, 0, 0, 1], port)));
    loop {
        let place = (std::process::id() + TRIES.fetch_add(1, Ordering::Relaxed)) % 3_000;
        let first = 22_000 + place as u16 * 3;
        if let Ok(ports) = (first..first + 3).map(keep).collect() {
            return ports;
        }
    }
}

/// A process that a test has started. A test that fails leaves none behind: dropping this ends it,
/// and waits until it has ended.
struct Started {
    child: Option<Child>,
    pid: Pid,
}

impl Started {
    fn new(command: &mut Command) -> Started {
        let child = command.spawn().unwrap();
        Started { pid: Pid::from_child(&child), child: Some(child) }
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).unwrap();
    }

    /// Waits for the end of a process that was told to end, or ends by itself.
    fn ended(mut self) -> Output {
        self.child.take().unwrap().wait_with_output().unwrap()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let Some(child) = self.child.take() else { return };
        // Asked first: a playground then ends its stores too. Its id is its own until it is waited
        // for.
        let _ = kill_process(self.pid, Signal::TERM);
        let (ended, end) = mpsc::channel();
        std::thread::spawn(move || ended.send(child.wait_with_output()));
        if end.recv_timeout(PATIENCE).is_err() {
            let _ = kill_process(self.pid, Signal::KILL);
            let _ = end.recv();
        }
    }
}

fn refused(args: &[&str]) -> String {
    let output = flotilla().args(args).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

async fn client(endpoint: &str) -> Client {
    Client::connect(&[endpoint], Config::default()).await.unwrap()
}

fn serve(addr: &str, dir: &Path) -> Started {
    let mut command = flotilla();
    command.args([
        "serve",
        "--new",
        "--addr",
        addr,
        "--regions",
        "2",
        "--log",
        "warn",
        "--data-dir",
    ]);
    Started::new(command.arg(dir))
}

#[test]
fn wrong_settings_are_refused_with_what_would_be_right() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("flotilla.toml");
    let config = file.to_str().unwrap();
    std::fs::write(&file, "name = \"s1\"\n[raft]\nelection_tick = 3\n").unwrap();
    let said = refused(&["serve", "--config", config]);
    assert!(said.contains("election_tick") && said.contains("line 3"), "{said}");
    std::fs::write(&file, "[limits]\nconnections_max = 1\n").unwrap();
    let said = refused(&["serve", "--config", config]);
    assert!(said.contains("limits.connections_max = 1 is out of range: 16 to"), "{said}");
    let said = refused(&["serve", "--regions", "0", "--set", "raft.tick_ms=1h"]);
    let lines = "flotilla: --set: raft.tick_ms = 1h is out of range: 10ms to 10s\n\
                 flotilla: --regions: regions = 0 is out of range: 1 to 9997\n";
    assert_eq!(said, lines);
    let said = refused(&["serve", "--name", "x", "--initial-cluster", "s1=h:1,s2=h:2"]);
    assert!(said.contains("\"x\" is not in initial_cluster, which has s1, s2"), "{said}");
    let said = refused(&["serve", "--log", "loud=very"]);
    assert!(said.contains("loud=very"), "{said}");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let said = refused(&["serve", "--addr", &addr, "--data-dir", dir.path().to_str().unwrap()]);
    assert!(said.contains(&format!("cannot listen on {addr}")), "{said}");
}

#[tokio::test]
async fn a_store_ends_well_by_signal_and_finds_its_data_again() {
    let dir = tempfile::tempdir().unwrap();
    let port = ReservedPort::reserve(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let addr = port.addr().to_string();
    for (round, ending) in [Signal::TERM, Signal::INT, Signal::TERM].into_iter().enumerate() {
        let store = serve(&addr, dir.path());
        playground::ready(std::slice::from_ref(&addr), 2, PATIENCE).await.unwrap();
        let client = client(&addr).await;
        for earlier in 0..round {
            assert_eq!(client.get(format!("{earlier}")).await.unwrap().unwrap(), "kept");
        }
        client.put(format!("{round}"), "kept").await.unwrap();
        let second = serve("127.0.0.1:0", dir.path());
        let said = second.ended();
        assert_eq!(said.status.code(), Some(1));

        store.signal(ending);
        let output = store.ended();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

fn play(args: &[&str]) -> (Started, Lines<BufReader<ChildStdout>>, Vec<ReservedPort>) {
    let ports = three_ports();
    let (started, lines) = play_at(ports[0].addr().port(), args);
    (started, lines, ports)
}

fn play_at(port: u16, args: &[&str]) -> (Started, Lines<BufReader<ChildStdout>>) {
    let mut command = flotilla();
    command.args(["playground", "--regions", "4", "--port", &port.to_string()]).args(args);
    let mut started = Started::new(command.stdout(Stdio::piped()));
    let stdout = started.child.as_mut().unwrap().stdout.take().unwrap();
    (started, BufReader::new(stdout).lines())
}

/// Reads on until each store of a playground of processes has said its id, and one line more.
fn ids(lines: &mut Lines<BufReader<ChildStdout>>) -> (Vec<Pid>, String) {
    let mut pids = Vec::new();
    loop {
        let line = lines.next().unwrap().unwrap();
        match line.rsplit_once("process ") {
            Some((_, pid)) => pids.push(Pid::from_raw(pid.parse().unwrap()).unwrap()),
            None => return (pids, line),
        }
    }
}

fn assert_gone(pids: &[Pid]) {
    for pid in pids {
        assert!(test_kill_process(*pid).is_err(), "process {pid:?} is still there");
    }
}

#[tokio::test]
async fn a_playground_says_when_it_is_ready_and_leaves_nothing_behind() {
    let (playground, mut lines, ports) = play(&[]);
    let ready = lines.next().unwrap().unwrap();
    assert!(ready.starts_with("ready"), "{ready}");
    assert!(ports.iter().all(|port| ready.contains(&port.addr().to_string())), "{ready}");
    client(&ports[2].addr().to_string()).await.put("key", "value").await.unwrap();
    let dir = ready.split("data in ").nth(1).unwrap().split(',').next().unwrap().to_owned();
    assert!(Path::new(&dir).join("s1").exists());
    playground.signal(Signal::INT);
    let output = playground.ended();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!Path::new(&dir).exists());
}

/// It is the first one, which answers where clients look for placement if that address is free.
#[tokio::test]
async fn a_playground_goes_on_without_a_store_that_was_told_to_leave() {
    let (playground, mut lines) = play_at(0, &["--stores", "4"]);
    let ready = lines.next().unwrap().unwrap();
    let stores: Vec<_> = ready.split(' ').filter(|word| word.starts_with("127.0.0.1:")).collect();
    let others = stores[1..4].join(",");
    let leave = ["ctl", "store", "leave", "s1", "--wait", "60", "--endpoints", &others];
    let left = flotilla().args(leave).output().unwrap();
    assert_eq!(left.status.code(), Some(0), "{left:?}");
    let line = lines.next().unwrap().unwrap();
    assert!(line.starts_with("store s1 ended: store 1, s1,"), "{line}");
    assert!(line.contains("has left the cluster"), "{line}");
    client(stores[1]).await.put("key", "without s1").await.unwrap();

    playground.signal(Signal::INT);
    let output = playground.ended();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), errors.as_ref()), (Some(0), ""));
}

#[tokio::test]
async fn a_playground_of_processes_says_which_one_died_and_ends_the_others() {
    let dir = tempfile::tempdir().unwrap();
    // A server that never answers, unless a playground of another test is there.
    let stranger = TcpListener::bind("127.0.0.1:2379");
    let (playground, mut lines, ports) =
        play(&["--processes", "--dir", dir.path().to_str().unwrap()]);
    let (pids, ready) = ids(&mut lines);
    assert!(ready.starts_with("ready"), "{ready}");
    assert!(stranger.is_err() || !ready.contains(":2379"), "{ready}");
    assert_eq!(pids.len(), 3);
    let client = client(&ports[0].addr().to_string()).await;
    client.put("key", "value").await.unwrap();

    kill_process(pids[1], Signal::KILL).unwrap();
    let line = lines.next().unwrap().unwrap();
    let expected = format!("store s2 (process {}) ended", pids[1].as_raw_nonzero());
    assert!(line.starts_with(&expected), "{line}");
    client.put("key", "without s2").await.unwrap();

    playground.signal(Signal::TERM);
    let output = playground.ended();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_gone(&pids);
}

#[test]
fn a_test_that_fails_leaves_no_process_behind() {
    let dir = tempfile::tempdir().unwrap();
    let mut left = Vec::new();
    let failed = std::panic::catch_unwind(AssertUnwindSafe(|| {
        let (playground, mut lines, _ports) =
            play(&["--processes", "--dir", dir.path().to_str().unwrap()]);
        left = ids(&mut lines).0;
        left.push(playground.pid);
        std::panic::resume_unwind(Box::new("as a failed assertion does"));
    }));
    assert!(failed.is_err());
    assert_eq!(left.len(), 4);
    assert_gone(&left);
}
